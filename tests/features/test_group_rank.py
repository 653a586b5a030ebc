from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import GroupRank

some = settings(max_examples=40, deadline=None)
value = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), value, value), max_size=15)


def frame_of(rows):
    g, x, t = zip(*rows, strict=True) if rows else ((), (), ())
    return pd.DataFrame(
        {"g": pd.Series(g, dtype=object), "x": pd.Series(x, dtype="float64"), "t": pd.Series(t, dtype="float64")}
    )


def close(a, b):
    assert list(a) == pytest.approx(list(b), rel=1e-9, abs=1e-9, nan_ok=True)


METHODS = {"min": "min", "max": "max", "average": "average", "dense": "dense", "ordinal": "first"}


@some
@given(rows, st.sampled_from(sorted(METHODS)), st.booleans(), st.booleans())
def test_ranks_equal_pandas(data, method, descending, normalise):
    frame = frame_of(data)
    rank = GroupRank("x", by="g", method=method, descending=descending, normalise=normalise)
    expected = frame.groupby("g")["x"].rank(method=METHODS[method], ascending=not descending)
    if normalise:
        size = frame.groupby("g")["x"].transform("count").astype("float64")
        expected = ((expected - 1) / (size - 1)).where(size > 1, expected * 0)
    close(rank.fit_transform(frame)[rank.outputs[0]], expected)


def test_ranks_of_wide_integers_and_times_are_exact():
    frame = pd.DataFrame(
        {
            "g": 1,
            "i": pd.array([2**53 + 1, 2**53, None, -(2**63), 2**63 - 1], dtype="Int64"),
            "t": pd.to_datetime([3, 2, 1, None, 4], unit="ns"),
        }
    )
    for column, up, down in (
        ("i", [3, 2, None, 1, 4], [2, 3, None, 4, 1]),
        ("t", [3, 2, 1, None, 4], [2, 3, 4, None, 1]),
    ):
        for descending, expected in ((False, up), (True, down)):
            rank = GroupRank(column, by="g", descending=descending)
            found = rank.fit_transform(frame)[rank.outputs[0]]
            assert [None if pd.isna(v) else v for v in found] == expected


def test_a_method_that_cannot_be():
    with pytest.raises(FastrecError, match="GroupRank"):
        GroupRank("x", by="g", method="first")
