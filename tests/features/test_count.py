from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import CountEncode, Cross, FeatureSet

key = st.one_of(st.none(), st.sampled_from(["a", "b", ""]))
rows = st.lists(st.tuples(key, key), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(rows, rows)
def test_counts_equal_a_loop(train, new):
    first, second = (pd.DataFrame(r, columns=["x", "y"], dtype=object) for r in (train, new))
    fs = FeatureSet([CountEncode(["x", "y"]), CountEncode("x", log=True), CountEncode(Cross("x", "y"))]).fit(first)
    for frame in (first, second):
        made = fs.transform(frame)
        for i, (x, y) in enumerate(frame.itertuples(index=False)):
            counts = [sum(r[c] == v for r in train) if v is not None else 0 for c, v in ((0, x), (1, y))]
            both = train.count((x, y)) if None not in (x, y) else 0
            assert made.loc[i, ["count_x", "count_y", "count_x_x_y"]].tolist() == [*counts, both]
            assert made.loc[i, "log_count_x"] == pytest.approx(math.log1p(counts[0]))
    assert fs.fit_transform(first)["count_x"].tolist() == fs.transform(first)["count_x"].tolist()


@settings(max_examples=40, deadline=None)
@given(rows, rows)
def test_shares_and_counts_in_groups_equal_a_loop(train, new):
    first, second = (pd.DataFrame(r, columns=["x", "y"], dtype=object) for r in (train, new))
    fs = FeatureSet(
        [
            CountEncode(["x", "y"], normalise=True),
            CountEncode("x", by="y", normalise=True),
            CountEncode("x", by=["y"]),
            CountEncode("y", by="x", log=True),
        ]
    ).fit(first)
    for frame in (first, second):
        made = fs.transform(frame)
        for i, (x, y) in enumerate(frame.itertuples(index=False)):
            shares = [sum(r[c] == v for r in train) / len(train) if v is not None else 0 for c, v in ((0, x), (1, y))]
            assert made.loc[i, ["share_x", "share_y"]].tolist() == pytest.approx(shares)
            both = train.count((x, y)) if None not in (x, y) else 0
            group = sum(r[1] == y for r in train)
            assert made.loc[i, "share_x__y"] == pytest.approx(both / group if both else 0)
            assert made.loc[i, "count_x__y"] == both
            assert made.loc[i, "log_count_y__x"] == pytest.approx(math.log1p(both))


def test_shares_equal_pandas_and_count_rows_without_a_key():
    frame = pd.DataFrame({"k": ["a", "a", None, "b"], "g": [1, 2, 1, 1]})
    made = CountEncode("k", normalise=True).fit_transform(frame)["share_k"]
    assert made.tolist() == frame["k"].map(frame["k"].value_counts() / len(frame)).fillna(0).tolist()
    assert CountEncode("k", by="g", normalise=True).fit_transform(frame)["share_k__g"].tolist() == [1 / 3, 1, 0, 1 / 3]


def test_shares_of_unlabeled_rows():
    train, test = pd.DataFrame({"k": ["a", "b"], "g": [1, 1]}), pd.DataFrame({"k": ["b", "c"], "g": [1, 2]})
    fs = FeatureSet(
        [CountEncode("k", normalise=True, scope="all"), CountEncode("k", by="g", normalise=True, scope="all")]
    )
    assert fs.fit_transform(train, unlabeled=test)["share_k"].tolist() == [0.25, 0.5]
    made = fs.transform(test)
    assert made["share_k"].tolist() == [0.5, 0.25]
    assert made["share_k__g"].tolist() == pytest.approx([2 / 3, 1])


def test_a_share_has_no_logarithm():
    with pytest.raises(FastrecError, match="CountEncode"):
        CountEncode("k", log=True, normalise=True)


def test_unlabeled_rows_count_where_asked_and_are_reported():
    train, test = pd.DataFrame({"k": ["a", "b"]}), pd.DataFrame({"k": ["b", "c", "b"]})
    both, own = CountEncode("k", scope="all"), CountEncode("k", log=True)
    fs = FeatureSet([both, own])
    assert fs.fit_transform(train, unlabeled=test)["count_k"].tolist() == [1, 3]
    assert fs.transform(test)["count_k"].tolist() == [3, 1, 3]
    assert fs.transform(test)["log_count_k"].tolist() == pytest.approx([math.log(2), 0, math.log(2)])
    assert fs.transductive == ["count_k"]
    assert FeatureSet([CountEncode("k", scope="all")]).fit(train).transductive == []


def test_unlabeled_rows_of_a_generator_that_counts_another():
    train = pd.DataFrame({"a": ["x", "x"], "b": [1, 2], "y": [0, 1]})
    test = pd.DataFrame({"a": ["x", "x", "z"], "b": [1, 1, 1]})
    fs = FeatureSet([CountEncode(Cross("a", "b"), scope="all")]).fit(train, unlabeled=test)
    assert fs.transform(train)["count_a_x_b"].tolist() == [3, 1]


def test_keys_beyond_the_floats():
    frame = pd.DataFrame({"k": pd.array([2**53, 2**53 + 1, 2**53 + 1, None], dtype="Int64")})
    assert CountEncode("k").fit_transform(frame)["count_k"].tolist() == [1, 2, 2, 0]
    large = pd.DataFrame({"k": pd.Series([2**64 - 1, 2**64 - 1, 5], dtype="uint64")})
    assert CountEncode("k").fit_transform(large)["count_k"].tolist() == [2, 2, 1]


def test_a_scope_that_is_none():
    with pytest.raises(FastrecError, match="scope"):
        CountEncode("k", scope="test")
