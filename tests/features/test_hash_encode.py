from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import HashEncode

MASK = (1 << 64) - 1


def fnv(text, buckets, seed=0):
    """The hash as its definition has it, one byte at a time."""
    state = 0xCBF29CE484222325 ^ seed
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    state = ((state ^ (state >> 32)) * 0x100000001B3) & MASK
    return 1 + (state >> 1) % buckets


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1), st.integers(1, 1000), st.integers(0, 5))
def test_text_equals_a_plain_loop(texts, buckets, seed):
    frame = pa.table({"k": pa.array(texts, pa.large_string())})
    made = HashEncode("k", buckets, seed=seed).fit_transform(frame)["hash_k"].to_pylist()
    assert made == [0 if t is None else fnv(t, buckets, seed) for t in texts]


def test_a_number_has_one_code_whatever_holds_it():
    codes = {
        tuple(HashEncode("k", 10**6).fit_transform(frame)["hash_k"].to_list())
        for frame in (
            pd.DataFrame({"k": [1, 2**53 + 1]}),
            pd.DataFrame({"k": pd.array([1, 2**53 + 1], dtype="Int64")}),
            pd.DataFrame({"k": pd.Series([1, 2**53 + 1], dtype="uint64")}),
            pl.DataFrame({"k": ["1", str(2**53 + 1)]}),
        )
    }
    assert codes == {(fnv("1", 10**6), fnv(str(2**53 + 1), 10**6))}
    floats = pd.DataFrame({"k": [1.0, 0.5, None, True]}, dtype="float64")
    assert HashEncode("k", 99).fit_transform(floats)["hash_k"].tolist() == [
        fnv("1", 99),
        fnv("0.5", 99),
        0,
        fnv("1", 99),
    ]


def test_large_numbers_and_times_have_one_code_too():
    feature = HashEncode("k", 10**6)
    for kind, value in ((pa.int64(), 10**17), (pa.float64(), 1e17), (pa.uint64(), 10**17)):
        made = feature.fit_transform(pa.table({"k": pa.array([value], kind)}))["hash_k"].to_pylist()
        assert made == [fnv(str(10**17), 10**6)]
    for unit, value in (("s", 60), ("ms", 60_000), ("ns", 60 * 10**9)):
        made = feature.fit_transform(pa.table({"k": pa.array([value], pa.timestamp(unit))}))["hash_k"].to_pylist()
        assert made == [fnv("60", 10**6)]


def test_other_seeds_tell_colliding_values_apart():
    frame = pd.DataFrame({"k": [f"v{i}" for i in range(300)]})
    one, two = HashEncode("k", 50), HashEncode("k", 50, seed=1, name="hash2")
    made = two.fit_transform(one.fit_transform(frame))
    assert made["hash_k"].nunique() <= 50
    assert len(made[["hash_k", "hash2_k"]].drop_duplicates()) > 270
    assert made["hash_k"].between(1, 50).all()


def test_no_bucket():
    with pytest.raises(FastrecError, match="HashEncode"):
        HashEncode("k", 0)
