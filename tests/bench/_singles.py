"""Generators one at a time, as fastrec, pandas and polars make them: the same values in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from _eight import SMOOTH, pandas_target, polars_target

from fastrec.features import (
    CountEncode,
    Cross,
    CumStat,
    Cyclic,
    Diff,
    FeatureSet,
    GroupRank,
    GroupStats,
    History,
    Lag,
    NUnique,
    Rolling,
    TargetEncode,
)
from fastrec.features.base import Feature


@dataclass(frozen=True)
class Single:
    """One generator and its peers.

    Args:
        name: of the generator.
        make: a new one.
        pandas: the same columns from a pandas frame and that frame in the order of time (rows are told by the index).
        polars: the same columns as expressions; the options order a window by time.
    """

    name: str
    make: Callable[[], Feature]
    pandas: Callable[[Any, Any], Sequence[Any]]
    polars: Callable[[dict[str, Any]], Sequence[Any]]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.make().outputs)

    def with_fastrec(self, frame: Any) -> Any:
        """The frame with fastrec's columns."""
        return FeatureSet([self.make()]).fit_transform(frame)

    def with_pandas(self, df: Any, *, ordered: bool) -> Any:
        """The frame with pandas' columns."""
        made = df.copy(deep=False)
        in_order = df if ordered or self.name not in _IN_TIME else df.sort_values("timestamp")
        for name, values in zip(self.outputs, self.pandas(df, in_order), strict=True):
            made[name] = values
        return made

    def with_polars(self, frame: Any, *, ordered: bool) -> Any:
        """The frame with polars' columns."""
        made = self.polars({} if ordered else {"order_by": "timestamp"})
        named = [expression.alias(name) for name, expression in zip(self.outputs, made, strict=True)]
        return frame.lazy().with_columns(*named).collect()


def _by(df: Any, keys: Any, column: str = "price") -> Any:
    return df.groupby(keys, sort=False)[column]


def _col(name: str) -> Any:
    import polars as pl

    return pl.col(name)


def _rows() -> Any:
    import polars as pl

    return pl.len()


def _pandas_cyclic(df: Any, _: Any) -> list[Any]:
    import numpy as np

    angle = (df["timestamp"] % 86_400 // 3_600) * (2 * math.pi / 24)
    return [np.sin(angle), np.cos(angle)]


def _polars_cyclic(_: Any) -> list[Any]:
    angle = (_col("timestamp") % 86_400 // 3_600) * (2 * math.pi / 24)
    return [angle.sin(), angle.cos()]


def _pandas_cumulative(df: Any, in_order: Any) -> list[Any]:
    of_user = _by(in_order, "user")
    return [(of_user.cumsum() - in_order["price"]) / of_user.cumcount()]


def _polars_cumulative(by_time: dict[str, Any]) -> list[Any]:
    price = _col("price")
    return [((price.cum_sum() - price) / (price.cum_count().cast(int) - 1)).over("user", **by_time)]


def _pandas_history(df: Any, in_order: Any) -> list[Any]:
    groups = _by(in_order, ["user", "item"], "timestamp")
    return [groups.cumcount(), groups.diff()]


def _polars_history(by_time: dict[str, Any]) -> list[Any]:
    pair = ["user", "item"]
    return [
        _col("timestamp").cum_count().over(pair, **by_time).cast(int) - 1,
        _col("timestamp") - _col("timestamp").shift(1).over(pair, **by_time),
    ]


def _pandas_rolling(df: Any, in_order: Any) -> list[Any]:
    rolled = _by(in_order, "user").rolling(5, min_periods=1, closed="left").mean()
    return [rolled.droplevel(0)]


def _polars_rolling(by_time: dict[str, Any]) -> list[Any]:
    return [_col("price").rolling_mean(5, min_samples=1).shift(1).over("user", **by_time)]


def _polars_cross(_: Any) -> list[Any]:
    import polars as pl

    return [pl.struct("item", "city").rank("dense")]


_TIME = {"order": "timestamp"}
_IN_TIME = ("Lag", "Diff", "CumStat", "History", "Rolling")
SINGLES = (
    Single(
        "TargetEncode",
        lambda: TargetEncode("item", "clicked", fold_column="fold", smooth=SMOOTH),
        lambda df, _: [pandas_target(df, ["item"])],
        lambda _: [polars_target(["item"])],
    ),
    Single(
        "CountEncode",
        lambda: CountEncode("item"),
        lambda df, _: [_by(df, "item").transform("size")],
        lambda _: [_rows().over("item")],
    ),
    Single(
        "Cross",
        lambda: Cross("item", "city"),
        lambda df, _: [df.groupby(["item", "city"]).ngroup() + 1],
        _polars_cross,
    ),
    Single(
        "GroupStats",
        lambda: GroupStats("price", by="item", stats="mean"),
        lambda df, _: [_by(df, "item").transform("mean")],
        lambda _: [_col("price").mean().over("item")],
    ),
    Single(
        "NUnique",
        lambda: NUnique("item", by="user"),
        lambda df, _: [_by(df, "user", "item").transform("nunique")],
        lambda _: [_col("item").n_unique().over("user")],
    ),
    Single(
        "GroupRank",
        lambda: GroupRank("price", by="session"),
        lambda df, _: [_by(df, "session").rank("min")],
        lambda _: [_col("price").rank("min").over("session")],
    ),
    Single(
        "Lag",
        lambda: Lag("price", by="user", **_TIME),
        lambda _, in_order: [_by(in_order, "user").shift(1)],
        lambda by_time: [_col("price").shift(1).over("user", **by_time)],
    ),
    Single(
        "Diff",
        lambda: Diff("price", by="session", **_TIME),
        lambda _, in_order: [_by(in_order, "session").diff()],
        lambda by_time: [_col("price") - _col("price").shift(1).over("session", **by_time)],
    ),
    Single(
        "CumStat",
        lambda: CumStat("price", by="user", stats="mean", **_TIME),
        _pandas_cumulative,
        _polars_cumulative,
    ),
    Single(
        "Rolling",
        lambda: Rolling("price", "mean", by="user", window=5, **_TIME),
        _pandas_rolling,
        _polars_rolling,
    ),
    Single(
        "History",
        lambda: History(["user", "item"], stats=["count", "since"], **_TIME),
        _pandas_history,
        _polars_history,
    ),
    Single("Cyclic", lambda: Cyclic("timestamp", "hour"), _pandas_cyclic, _polars_cyclic),
)
