"""Data that benchmarks run on, drawn from a seed: an event log, a frame for fastai, one of numbers alone; a clock."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from _timing import cpu_time
from fastai.callback.core import Callback, CancelFitException, CancelValidException
from fastai.data.block import CategoryBlock

KEYS = ("user", "session", "item", "city")
CARDINALITIES = (2, 7, 24, 100, 1_000, 5_000, 20_000, 100_000)
CATS, CONTS = [f"c{i}" for i in range(8)], [f"x{i}" for i in range(10)]
ABOUT = (
    f"8 categoricals (cardinality {', '.join(f'{c:,}' for c in CARDINALITIES)}; int64 or text), 10 numbers (6 float64, "
    "2 float32, 2 int64; 5 % missing in three), a target"
)


def skewed(rng: np.random.Generator, size: int, rows: int) -> np.ndarray:
    """Draw numbers below ``size``, number k in proportion to 1 / (k + 10)."""
    share = np.cumsum(1 / (np.arange(size) + 10))
    return np.searchsorted(share, rng.random(rows) * share[-1]).clip(0, size - 1)


def event_log(rows: int, *, keys: str = "int", ordered: bool = False, seed: int = 0) -> pa.Table:
    """Draw a log like a travel site's, without missing values.

    Users have sessions (2.5 on average) and sessions have events (10 on average); four in five events are in the item's
    own city. No two times of a user are the same, so that every system sees one order. User, session, item and city are
    int64 or, with keys of ``str``, text; rows are in the order of user and time, or in none.
    """
    rng = np.random.default_rng(seed)

    def runs(mean: float, count: int) -> np.ndarray:  # 0, 0, 0, 1, 1, …
        lengths = rng.geometric(1 / mean, int(count / mean * 1.5) + 100)
        return np.repeat(np.arange(len(lengths)), lengths)[:count]

    def ids(codes: np.ndarray, name: str) -> np.ndarray | pa.Array:
        numbers = np.cumsum(rng.integers(1, 1_000, int(codes.max()) + 1))  # with gaps
        if keys == "int":
            return numbers[codes]
        return pa.array([f"{name[0].upper()}{number:011X}" for number in numbers.tolist()]).take(pa.array(codes))

    session = runs(10, rows)
    user = runs(2.5, int(session[-1]) + 1)[session]
    items, cities = max(min(100_000, rows // 10), 2), min(1_000, rows // 10 + 2)
    drawn = skewed(rng, items, rows)
    item = rng.permutation(items)[drawn]
    drawn = skewed(rng, cities, rows)
    city = rng.permutation(cities)[drawn]
    city = np.where(rng.random(rows) < 0.8, rng.integers(0, cities, items)[item], city)
    rate = rng.beta(2, 6, items)[item]
    columns = {"row": np.arange(rows)}
    columns |= {name: ids(codes, name) for name, codes in zip(KEYS, (user, session, item, city), strict=True)}
    gap = rng.integers(1, 90, rows)
    gap[1:] += (session[1:] != session[:-1]) * rng.integers(3_600, 86_400, rows - 1)
    total, first = np.cumsum(gap), np.flatnonzero(np.r_[True, user[1:] != user[:-1]])
    begun = total[first] - rng.integers(0, 86_400, len(first))
    columns["timestamp"] = 1_541_030_400 + total - np.repeat(begun, np.diff(np.r_[first, rows]))
    columns["price"] = np.round(rng.lognormal(4.5, 0.6, rows), 2)
    columns["clicked"] = (rng.random(rows) < rate).astype(np.int8)
    columns["fold"] = rng.integers(0, 5, rows)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if ordered:
        return table
    return table.drop_columns(["row"]).take(pa.array(rng.permutation(rows))).add_column(0, "row", table["row"])


def tabular(rows: int, keys: str, *, seed: int = 0) -> pd.DataFrame:
    """Draw a frame (see ``ABOUT``) of skewed categoricals whose order is not that of their codes.

    They are integers (``int``), text of eight characters (``str``) or of two to nine (``words``).
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name, size in zip(CATS, CARDINALITIES, strict=True):
        codes = skewed(rng, size, rows)
        ids = rng.permutation(np.cumsum(rng.integers(1, 20, size)))
        form = {"str": "v{:07X}", "words": "v{}"}.get(keys)
        words = pa.array([form.format(i) for i in ids.tolist()]) if form else None
        columns[name] = ids[codes] if words is None else words.take(pa.array(codes)).to_pandas()
    for i, name in enumerate(CONTS):
        values = rng.normal(size=rows) * 10 ** (i % 4)
        values = values.astype("float32") if i in (6, 7) else values.astype("int64") if i in (8, 9) else values
        if i in (0, 1, 6):
            values[rng.random(rows) < 0.05] = np.nan
        columns[name] = values
    return pd.DataFrame(columns | {"y": (rng.random(rows) < 0.3).astype("int64")})


def wide(rows: int, count: int) -> pd.DataFrame:
    """Draw a frame of numbers alone: ``count`` counts that are mostly 0; beyond 100, decimals and flags among them."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for i in range(count):
        values = rng.negative_binomial(0.2, 0.1 + 0.8 * i / count, rows)
        if count > 100 and i % 3:
            values = rng.normal(size=rows) * 10 ** (i % 5) if i % 3 == 1 else rng.integers(0, 2 + i % 7, rows)
            if i % 50 == 7:
                values = np.where(rng.random(rows) < 0.05, np.nan, values)
        columns[f"f{i}"] = values
    return pd.DataFrame(columns | {"y": rng.integers(0, 9, rows)})


class Clock(Callback):
    """Notes wall and CPU seconds of ``counted`` batches after those ``skipped``, which end the training, or of all."""

    order = -100

    def __init__(self, counted: int | None = None, *, skipped: int = 0, profile: Any = None) -> None:
        super().__init__()
        self.counted, self.skipped, self.profile, self.seen = counted, skipped, profile, 0

    def start(self) -> None:
        if self.profile is not None:
            self.profile.start()
        self.begun = now()

    def stop(self) -> None:
        self.took = tuple(b - a for a, b in zip(self.begun, now()))
        if self.profile is not None:
            self.profile.stop()

    def before_train(self) -> None:
        if self.skipped == self.seen == 0:
            self.start()

    def before_batch(self) -> None:
        if self.seen == self.skipped > 0:
            self.start()

    def after_batch(self) -> None:
        self.seen += self.training
        if self.counted and self.seen == self.skipped + self.counted:
            self.stop()
            raise CancelFitException

    def after_train(self) -> None:
        if not self.counted:
            self.stop()

    def before_validate(self) -> None:
        if self.counted:
            raise CancelValidException


def now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # what was started there is to be counted
    return time.perf_counter(), cpu_time()


def _names(df: pd.DataFrame) -> tuple[list[str], list[str]]:
    return [n for n in df if n[0] == "c"], [n for n in df if n[0] in "xf"]


def with_fastrec(df: pd.DataFrame, splits: Any = None) -> Any:
    from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame

    return TabularFrame(df, [Categorify, FillMissing, Normalize], *_names(df), "y", CategoryBlock, splits=splits)


def with_fastai(df: pd.DataFrame, splits: Any = None) -> Any:
    from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pandas' options and arrays
        procs = [Categorify, FillMissing, Normalize]
        return TabularPandas(df, procs, *_names(df), "y", CategoryBlock(), splits=splits)


def check_equal(ours: Any, theirs: Any, *, split: bool = False) -> None:
    """Stop if two prepared frames differ: codes exactly, numbers to what float32 leaves of them.

    With ``split`` there are validation rows: fastai counts their text among the classes, so only columns of the same
    classes are compared.
    """
    names = list(ours.cat_names)
    same = [not split or list(ours.classes[n]) == list(theirs.classes[n]) for n in names]
    theirs_cat = torch.from_numpy(theirs.cats.to_numpy(dtype=np.int64))
    if names != list(theirs.cat_names) or not torch.equal(ours.x_cat.long()[:, same], theirs_cat[:, same]):
        raise SystemExit("prepare: the codes differ")
    theirs_cont = torch.from_numpy(theirs.conts.to_numpy(dtype=np.float32))
    if not torch.allclose(ours.x_cont, theirs_cont, rtol=1e-3, atol=1e-3):
        raise SystemExit("prepare: the numbers differ")
