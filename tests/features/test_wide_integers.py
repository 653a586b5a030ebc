"""Integers that a float64 does not hold, and decimals, in every way that a frame can hold them."""

from __future__ import annotations

from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

import fastrec.features as ff
from fastrec.errors import FastrecError
from fastrec.table import Table

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
