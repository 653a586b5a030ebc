from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Cross, FeatureSet, TargetEncode

part = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
rows = st.lists(st.tuples(part, st.one_of(st.none(), st.integers(-2, 2))), min_size=1, max_size=20)


def fnv(text, buckets, seed):
    state = 0xCBF29CE484222325 ^ seed
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    state = (state ^ (state >> 32)) * 0x100000001B3 % 2**64
    return (state >> 1) % buckets


def frame_of(rows):
    return pd.DataFrame({"x": [r[0] for r in rows], "y": pd.array([r[1] for r in rows], dtype="Int64")})


@settings(max_examples=40, deadline=None)
@given(rows, rows, st.integers(1, 3))
def test_codes_equal_a_loop(train, new, min_count):
    cross = Cross("x", "y", min_count=min_count).fit(frame_of(train))
    whole = [r for r in train if None not in r]
    kept = sorted({r for r in whole if whole.count(r) >= min_count})
    for some in (train, new):
        made = cross.transform(frame_of(some))["x_x_y"].astype("Int64")
        expected = [kept.index(r) + 1 if r in kept else None for r in some]
        assert [None if pd.isna(v) else v for v in made] == expected


@settings(max_examples=30, deadline=None)
@given(rows, st.integers(1, 50), st.integers(0, 5))
def test_buckets_equal_a_plain_hash_of_the_values_in_order(train, buckets, seed):
    made = Cross("x", "y", buckets=buckets, seed=seed).fit_transform(frame_of(train))["x_x_y"].astype("Int64")
    for found, (x, y) in zip(made, train, strict=True):
        if None in (x, y):
            assert pd.isna(found)
        else:
            text = ":".join(f"{len(t.encode())}:{t}" for t in (x, str(y)))
            assert found == fnv(text, buckets, seed) + 1


def test_equal_values_do_not_collapse_and_the_order_counts():
    values = [str(k) for k in range(200)]
    frame = pd.DataFrame({"a": values, "b": values, "c": values[::-1]})
    same = Cross("a", "b", buckets=1000).fit_transform(frame)["a_x_b"]
    assert same.nunique() > 150
    one, two = (Cross(*c, buckets=1000).fit_transform(frame) for c in (("a", "c"), ("c", "a")))
    assert (one["a_x_c"] == two["c_x_a"]).mean() < 0.1
    assert same.min() >= 1
    assert same.max() <= 1000


def test_no_two_tuples_of_text_read_the_same():
    frame = pd.DataFrame({"a": ["1:x", "1", "", "a\x1f"], "b": ["y", ":xy", "1:xy", "b"]})
    assert Cross("a", "b", buckets=10**9).fit_transform(frame)["a_x_b"].nunique() == 4


def test_a_bucket_does_not_depend_on_the_type_that_holds_the_value():
    kinds = ["int64", "float64", "Int64", "int8", "category"]
    found = [
        Cross("a", "b", buckets=10**6).fit_transform(pd.DataFrame({"a": pd.Series([1, 2], dtype=k), "b": ["x", "y"]}))
        for k in kinds
    ]
    assert all(f["a_x_b"].tolist() == found[0]["a_x_b"].tolist() for f in found)


def test_both_ways_to_name_the_columns():
    assert repr(Cross("a", "b")) == repr(Cross(["a", "b"])) == repr(Cross(("a", "b")))
    assert Cross("a", "b", "c").outputs == ["a_x_b_x_c"]
    assert Cross(Cross("a", "b"), "c").outputs == ["a_x_b_x_c"]


def test_many_buckets_and_wide_keys():
    frame = pd.DataFrame({"a": np.arange(1000) * 2**40, "b": np.arange(1000) * 2**40 + 2**62, "y": 1.0})
    made = FeatureSet([Cross("a", "b"), TargetEncode(Cross("a", "b"), "y")], key="a").fit_transform(frame)
    assert made["a_x_b"].tolist() == list(range(1, 1001))


@pytest.mark.parametrize("make", [lambda: Cross("a"), lambda: Cross([]), lambda: Cross("a", "b", buckets=0)])
def test_crosses_that_cannot_be(make):
    with pytest.raises(FastrecError, match="Cross"):
        make()
