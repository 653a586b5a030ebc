"""Numbers far from 0, in one part and in several, have the digits of those near 0; integers that a float64 does not
hold, and decimals, are exact in every way that a frame can hold them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fastrec.features as ff
from fastrec.errors import FastrecError
from fastrec.table import Table
from tests.features.frames import learned, pieces


def far(n=3000):
    """Numbers around 0, and the same around 1e8: every mean is 1e8 more, and every deviation the same."""
    rng = np.random.default_rng(5)
    near = np.round(rng.normal(0, 1, n) * 2**20) / 2**20  # so that adding 1e8 loses nothing
    near[rng.random(n) < 0.05] = np.nan
    frame = pd.DataFrame({"id": range(n), "g": rng.choice(["a", "b", "c"], n), "t": rng.permutation(n), "x": near})
    return frame, frame.assign(x=near + 1e8)


FAR = {
    "GroupStats": lambda x: ff.GroupStats(x, by="g", stats=["mean", "std", "median", "q25", "skew"]),
    "GroupStats own": lambda x: ff.GroupStats(x, by="g", stats=["mean", "std", "median", "skew"], over="group"),
    "TargetEncode": lambda x: ff.TargetEncode("g", x, stats=["mean", "std"], smooth=0),
    "TargetEncode smooth": lambda x: ff.TargetEncode("g", x, smooth=7.5),
    "Rolling": lambda x: ff.Rolling(x, ["mean", "std", "median"], by="g", order="t", window=[3, 400]),
    "Rolling of time": lambda x: ff.Rolling(x, ["mean", "std"], by="g", order="t", window="700s"),
    "Normalize": lambda x: ff.Normalize(x),
    "CumTarget": lambda x: ff.CumTarget("g", x, order="t", smooth=3),
    "CumTarget decaying": lambda x: ff.CumTarget("g", x, order="t", smooth=3, half_life=500.0),
    "Ewm": lambda x: ff.Ewm(x, half_life=[2, "90s"], by="g", order="t"),
    "DeviationFromGroup": lambda x: ff.DeviationFromGroup(x, by="g", how="diff"),
    "DeviationFromGroup z": lambda x: ff.DeviationFromGroup(x, by="g", how="z"),
    "DeviationFromGroup train": lambda x: ff.DeviationFromGroup(x, by="g", how="z", over="train", stat="median"),
    "CumStat": lambda x: ff.CumStat(x, by="g", order="t", stats=["mean", "min"]),
    "FillMissing": lambda x: ff.FillMissing(x, "mean", add_col=False),
    "Bucketize": lambda x: ff.Bucketize(x, quantiles=8),
}
FREE = ("std", "skew", "norm", "diff", "z", "bucket")  # statistics that a constant added to all leaves as they are


@pytest.mark.parametrize("name", FAR)
def test_statistics_of_numbers_near_1e8_have_the_digits_of_those_near_0(name):
    near, there = far()
    feature = FAR[name]("x")
    for call in ("fit_transform", "transform"):
        a, b = ff.FeatureSet([feature], key="id"), ff.FeatureSet([FAR[name]("x")], key="id")
        if call == "transform":
            a.fit(near), b.fit(there)
        made = [getattr(fs, call)(frame)[feature.outputs] for fs, frame in ((a, near), (b, there))]
        first = near["t"] == 0 if call == "fit_transform" else near["t"] < 0  # CumTarget's first row knows nothing: 0
        for column in feature.outputs:
            x, y = (m[column].astype("float64").to_numpy() for m in made)
            moved = any(w in column for w in FREE)
            y = y if moved else np.where(first.to_numpy() & (y == 0), y, y - 1e8)
            # 1e8 + x has 2^-26 of x's digits; a one-pass deviation has none.
            assert y == pytest.approx(x, abs=2e-7, rel=2e-6, nan_ok=True), column


@pytest.mark.parametrize("parts", [2, 7, 64])
def test_deviations_near_1e8_survive_partitions(parts):
    near, there = far(700)
    make = [
        lambda: ff.TargetEncode("g", "x", stats=["mean", "std"], smooth=2),
        lambda: ff.GroupStats("x", by="g", stats=["mean", "std", "skew"]),
    ]
    for maker in make:
        a, b = maker().fit(near), learned(maker(), pieces(there, parts))
        x, y = a.transform(near)[a.outputs], b.transform(there)[b.outputs]
        x[[n for n in x if "mean" in n or n == "te_g__x"]] += 1e8
        assert y.to_numpy() == pytest.approx(x.to_numpy(), rel=1e-7, abs=2e-7)
        assert x.filter(like="std").nunique().tolist() == [3]


BIG = 1 << 53
NUMBERS = [BIG + 1, BIG + 3, BIG, BIG + 4, None, BIG + 3]
HUGE = [(1 << 64) - 2, (1 << 64) - 1, (1 << 63) + 1, 1 << 63]


def plain(values):
    return pa.array(values, pa.int64())


def dictionary(values):
    return plain(values).dictionary_encode()


def unsigned(values):
    return pa.array(values, pa.uint64()).dictionary_encode()


def categorical(values):
    return pd.Series(values, dtype="Int64").astype("category")


HELD = [dictionary, unsigned, categorical]


def made(feature, **columns):
    frame = Table.read(columns)
    found = feature.fit_transform(frame)
    return {n: found[n].to_arrow().to_pylist() for n in feature.outputs}


FEATURES = [
    lambda: ff.Lag("x", order="t"),
    lambda: ff.TimeSince(order="t"),
    lambda: ff.Diff("v", order="t"),
    lambda: ff.GroupRank("v", by="g"),
    lambda: ff.GroupPick("x", by="g", order="v"),
    lambda: ff.Neighbours("v", by="g", order="t", what=["diff_previous", "above", "below"]),
    lambda: ff.Digits("v", 3),
    lambda: ff.Clip("v", low=BIG + 1, high=BIG + 3),
    lambda: ff.PctChange("v", order="t"),
    lambda: ff.RoundTo("v", 10, stats=["value", "gap", "is_round"]),
]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("make", FEATURES)
def test_integers_of_a_category_are_exact(make, held):
    order = [BIG + 5, BIG + 1, BIG + 2, BIG, BIG + 3, BIG + 4]
    rest = {"x": pa.array([1.0, 2, 3, 4, 5, 6]), "g": pa.array([1, 1, 1, 2, 2, 2])}
    expected = made(make(), v=plain(NUMBERS), t=plain(order), **rest)
    assert made(make(), v=held(NUMBERS), t=held(order), **rest) == expected


@pytest.mark.parametrize(
    "held", [lambda v: pa.array(v, pa.uint64()), lambda v: pa.array(v, pa.uint64()).dictionary_encode()]
)
def test_unsigned_integers_are_ranked_exactly_or_refused_by_name(held):
    rest = {"g": pa.array([1] * 4), "x": pa.array([1, 2, 3, 4])}
    for feature in (ff.GroupRank("v", by="g"), ff.Lag("x", order="v"), ff.Digits("v"), ff.Diff("v")):
        with pytest.raises(FastrecError, match="2\\^63") as error:
            made(feature, v=held(HUGE), **rest)
        assert error.value.column == "v"
    as_key = made(ff.GroupRank("x", by="v"), v=held(HUGE), **rest)
    assert as_key == {"rank_x__v": [1, 1, 1, 1]}


def test_decimals_of_a_dictionary_are_numbers():
    values = pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2))
    array = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0]), values)
    assert Table.read({"v": array})["v"].to_arrow().to_pylist() == [1.5, None, -2.25, 1.5]
