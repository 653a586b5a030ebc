from __future__ import annotations

import math
import operator

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import BayesianRate, Bucketize, Combine, Where

number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e300]))
pairs = st.lists(st.tuples(number, number), max_size=12)
some = settings(max_examples=40, deadline=None)
WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "over"}
DO = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def frame_of(rows):
    return pd.DataFrame({n: pd.Series([r[i] for r in rows], dtype="float64") for i, n in enumerate("ab")})


@some
@given(pairs, st.sampled_from(sorted(WORDS)))
def test_combinations_equal_a_loop(rows, how):
    expected = []
    for a, b in rows:
        missing = a is None or b is None or (how == "/" and b == 0)
        expected.append(math.nan if missing else DO[how](a, b))
    found = Combine("a", how, "b").fit_transform(frame_of(rows))[f"a_{WORDS[how]}_b"].tolist()
    assert found == pytest.approx(expected, nan_ok=True)


def test_nullable_columns_and_booleans():
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]})
    made = Combine("a", "+", "b", name="sum").fit_transform(frame)["sum"].tolist()
    assert made == pytest.approx([2.0, math.nan], nan_ok=True)


def test_a_sign_that_is_none():
    with pytest.raises(FastrecError, match="Combine"):
        Combine("a", "%", "b")


@some
@given(pairs)
def test_where_equals_a_loop(rows):
    expected = [math.nan if a is None or b is None or not b > 0 else a for a, b in rows]
    found = Where("a", "b").fit_transform(frame_of(rows))["a_where_b"].tolist()
    assert found == pytest.approx(expected, nan_ok=True)


@some
@given(pairs, st.lists(st.integers(-3, 3), min_size=1, max_size=4, unique=True).map(sorted))
def test_buckets_equal_a_loop(rows, edges):
    expected = [None if a is None else sum(a >= e for e in edges) for a, _ in rows]
    found = Bucketize("a", edges).fit_transform(frame_of(rows))["a_bucket"]
    assert [None if pd.isna(v) else v for v in found] == expected


@pytest.mark.parametrize("edges", [[], [2, 1], [1, 1]])
def test_edges_that_do_not_ascend(edges):
    with pytest.raises(FastrecError, match="Bucketize"):
        Bucketize("a", edges)


count = st.one_of(st.none(), st.integers(0, 9).map(float))


@some
@given(st.lists(st.tuples(count, count), min_size=1, max_size=12), st.sampled_from([1, 20.0]))
def test_rates_equal_a_loop(rows, weight):
    clicks, views = (sum(r[i] or 0 for r in rows) for i in (0, 1))
    prior = clicks / views if views else 0
    expected = [((a or 0) + weight * prior) / ((b or 0) + weight) for a, b in rows]
    found = BayesianRate("a", "b", weight=weight).fit_transform(frame_of(rows))["rate_a"].tolist()
    assert found == pytest.approx(expected)
