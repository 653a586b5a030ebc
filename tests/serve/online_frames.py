"""Random events, requests and FeatureSets, and what a request's features must be: those of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec.features import (
    Collect,
    Combine,
    CountEncode,
    CoVisit,
    CumCount,
    CumStat,
    Diff,
    Ewm,
    FeatureSet,
    GroupRank,
    GroupStats,
    History,
    JaccardToHistory,
    JoinTable,
    Lag,
    LastAction,
    LastKnown,
    Neighbours,
    Rolling,
    TimeSince,
)
from fastrec.features.base import Feature

KINDS = ["view", "click", "buy"]
SCHEMA = pa.schema(
    [("user", pa.string()), ("item", pa.string()), ("t", pa.int64()), ("kind", pa.string()), ("x", pa.float64())]
)
ITEMS = pa.table({"item": ["a", "b", "c"], "tags": [["x", "y"], ["y"], ["z", "x"]], "stars": [3, None, 5]})


def from_log() -> list[Feature]:
    stats, kinds = ["count", "since", "steps", "since_first"], {"event": "kind", "kinds": ["click", "view"]}
    more = {"stats": stats, "values": ["kind", "x"], "sums": ["x"], "name": "of_item"}
    return [
        History("item", order="t", table="log", by_kind=True, **kinds, **more),
        History("item", order="t", table="log", stats=["count"], sums="x", name="plain"),
        History("user", order="t", table="log", stats=["count", "since"], values=["x", "item"], name="of_user"),
        History(["user", "item"], order="t", table="log", stats=["count", "is_last"], name="pair"),
        LastAction("item", order="t", action="kind", table="log", n=[1, 2]),
        Collect(["kind", "x"], by="item", order="t", table="log", max_len=3),
        JaccardToHistory("user", item="item", properties="tags", order="t", table="log", items="items", last=2),
        CoVisit("item", by="user", order="t", table="log", last=2),
        JoinTable("items", "item", ["stars", "tags"]),
        Combine("plain_count", "/", "of_item_count", name="ratio"),
    ]


def from_rows() -> list[Feature]:
    return [
        CumCount("user", order="t"),
        CumCount("item"),
        Lag(["x", "kind"], by="user", order="t", n=[1, 2]),
        Lag("x", by="item", order="t", horizon=2),
        Lag("x", by="user", order="t", n=-1),
        Diff("t", by="item", order="t"),
        Rolling("x", ["mean", "count"], by="item", order="t", window=2),
        Rolling("x", ["sum", "max"], by="user", order="t", window="3s", min_count=0, name="timed"),
        Ewm("x", half_life=2, by="user", order="t"),
        CumStat("x", by="item", order="t", stats=["count", "sum", "min", "smaller"]),
        LastKnown("x", by="user", order="t"),
        TimeSince("x", by="item", order="t"),
        TimeSince(by="user", order="t", first=True),
        GroupStats("x", by="user", stats=["mean", "nunique"], over="group"),
        GroupRank("x", by="user"),
        Neighbours("x", by="item", order="t", what=["previous", "above"]),
        History("item", order="t", stats=["count", "since"], sums="x", name="own"),
        LastAction("user", order="t", action="kind", name="own"),
        Collect("item", by="user", order="t", max_len=2, name="own"),
        CoVisit("item", by="user", order="t", last=2, name="own"),
        Lag("rollmean2_x__item", by="user", order="t"),  # of another group's feature: rows of rows are needed
        Lag("x", order="t", n=3),
        CountEncode("item"),
    ]


def equal(got: pa.Table, want: pa.Table) -> None:
    """Counts, codes and values to the bit, floats within rounding."""
    for name in got.column_names:
        a, b = got[name].to_pylist(), want[name].to_pylist()
        assert len(a) == len(b), name
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert _same(x, y), (name, i, x, y)


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(_same(a, b) for a, b in zip(x, y, strict=True))
    gone = [v is None or (isinstance(v, float) and math.isnan(v)) for v in (x, y)]
    if any(gone):
        return all(gone)
    if isinstance(x, float) or isinstance(y, float):
        return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9)
    return x == y


def random_rows(rng: np.random.Generator, n: int, times: tuple[int, int]) -> pa.Table:
    """Rows with ties in time, missing keys and values, and now and then a key that nothing else has."""

    def some(share: float, words: list[str]) -> list[str | None]:
        return [None if rng.random() < share else rng.choice(words) for _ in range(n)]

    made = {
        "user": some(0.1, ["u", "v", "é", "w"]),
        "item": some(0.1, ["a", "b", "c", f"new{rng.integers(9)}"]),
        "t": np.sort(rng.integers(*times, n)) if rng.random() < 0.7 else rng.integers(*times, n),
        "kind": some(0.1, KINDS),
        "x": [None if rng.random() < 0.2 else float(rng.integers(0, 5)) / 3 for _ in range(n)],
    }
    return pa.table(made, schema=SCHEMA)


def fitted(features: list[Feature], seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    frame, log = random_rows(rng, 30, (0, 10)), random_rows(rng, 60, (0, 10))
    return FeatureSet(features, keep="outputs").fit(frame, tables={"log": log, "items": ITEMS})


def batch(fs: FeatureSet, asked: pa.Table, log: pa.Table, past: pa.Table | None) -> pa.Table:
    history = past if past is not None and len(past) else None
    made = fs.transform(asked, tables={"log": log, "items": ITEMS}, history=history)
    return made if isinstance(made, pa.Table) else pa.table(made)
