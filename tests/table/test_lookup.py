from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.table import lookup
from fastrec.table.lookup import Lookup, hash_text

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
near = st.integers(-50, 50)
far = st.sampled_from(ENDS) | st.integers(-(2**63), 2**63 - 1)


def plain(values: list, codes: list[int], wanted: list, absent: int) -> list[int]:
    known = dict(zip(values, codes, strict=True))
    return [known.get(v, absent) for v in wanted]


@given(
    st.lists(near, unique=True, max_size=40) | st.lists(far, unique=True, max_size=40), st.lists(near | far), st.data()
)
@settings(max_examples=200, deadline=None)
def test_integers_near_and_far(values, others, data):
    codes = data.draw(st.lists(st.integers(0, 99), min_size=len(values), max_size=len(values)))
    absent = data.draw(st.integers(0, 99))
    wanted = others + values
    found = Lookup(pa.array(values, pa.int64()), np.array(codes), absent=absent)
    assert found.numbers(torch.tensor(wanted, dtype=torch.int64)).tolist() == plain(values, codes, wanted, absent)


@given(st.sets(st.integers(-(2**40), 2**40), min_size=1, max_size=300), st.integers(300, 999))
@settings(max_examples=60, deadline=None)
def test_many_values_that_want_the_same_places(values, absent):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "NARROW_SPAN", 0)
        patch.setattr(limits, "NARROW_SPARE", 0)
        patch.setattr(lookup, "_FACTOR", 1)  # every value falls on the first place, or on the last
        patch.setattr(lookup, "_SIGNED", 1)
        values = sorted(values)
        found = Lookup(pa.array(values), np.arange(len(values)), absent=absent)
        wanted = [*values[::-1], 2**41, -1 - 2**41]
        codes = [*reversed(range(len(values))), absent, absent]
        assert found.numbers(torch.tensor(wanted)).tolist() == codes


@given(st.sets(st.floats(allow_nan=False, width=32), max_size=30), st.lists(st.floats(width=32)))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_by_value(kind, values, others):
    values = list(values)
    wanted = [-0.0, 0.0, float("nan"), *values, *others]
    found = Lookup(pa.array(values, kind), np.arange(len(values)) + 1, absent=0)
    for dtype in (torch.float32, torch.float64):
        codes = found.numbers(torch.tensor(wanted, dtype=dtype)).tolist()
        assert codes == plain(values, list(range(1, len(values) + 1)), wanted, 0)
    assert not found.takes(torch.int64)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_of_any_width(dtype):
    found = Lookup(pa.array([0, 1, 100]), np.array([5, 6, 7]), absent=1)
    assert found.takes(dtype)
    wanted = [True, False] if dtype == torch.bool else [1, 0, 100, 99]
    assert found.numbers(torch.tensor(wanted, dtype=dtype)).tolist() == [6, 5, 7, 1][: len(wanted)]
    flags = Lookup(pa.array([True, False]), np.array([2, 1]), absent=0)
    assert flags.numbers(torch.tensor([0, 1, 2])).tolist() == [1, 2, 0]


words = st.text(st.sampled_from("ab\0é😀"), max_size=20)


@given(st.sets(words, max_size=60), st.lists(words), st.integers(0, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_text(values, others, front, large):
    values, kind = sorted(values), pa.large_string() if large else pa.string()
    wanted = list(dict.fromkeys([*others, *values]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ARROW_LOOKUPS", 0)
        found = Lookup(pa.array(values, pa.large_string()), np.arange(len(values)) + 3, absent=2)
    codes = found.distinct(pa.array(["x"] * front + wanted, kind)[front:])
    assert codes.tolist() == plain(values, list(range(3, len(values) + 3)), wanted, 2)


def test_text_of_equal_hash_is_told_apart(monkeypatch):
    values = [f"word {i}" for i in range(600)]
    monkeypatch.setattr(lookup, "hash_text", lambda v: np.full(len(v), 7, dtype=np.int64))
    known = Lookup(pa.array(values, pa.large_string()), np.arange(600), absent=0)
    assert known.distinct(pa.array(["word 599", "word 4", "another"])).tolist() == [599, 4, 0]
    monkeypatch.undo()
    known = Lookup(pa.array(values, pa.large_string()), np.arange(600), absent=0)
    same = hash_text(pa.array(["word 9"], pa.large_string()))
    monkeypatch.setattr(lookup, "hash_text", lambda v: np.repeat(same, len(v)))
    assert known.distinct(pa.array(["word 9", "none"], pa.large_string())).tolist() == [9, 0]


def test_hashes_of_much_text_differ_and_depend_on_nothing_else():
    values = pa.array([f"{'x' * (i % 23)}{i}" for i in range(50_000)], pa.large_string())
    hashed = hash_text(values)
    assert len(np.unique(hashed)) == 50_000
    assert len(np.unique(hashed >> 48)) > 34_500  # of 65,536 random places 34,977 would be hit
    np.testing.assert_array_equal(hash_text(values[100:200]), hashed[100:200])
    assert len(hash_text(values[:0])) == 0
    assert len(set(hash_text(pa.array(["", "\0", "\0\0", "\0" * 8, "\0" * 9], pa.large_string())).tolist())) == 5


def test_values_of_other_types_are_found_where_they_are_equal():
    known = Lookup(pa.array([3, 5, 2**40]), np.array([1, 2, 3]), absent=0)
    assert known.distinct(pa.array([5.0, 5.5, 2.0**40])).tolist() == [2, 0, 3]
    assert known.distinct(pa.array([3, 7], pa.int8())).tolist() == [1, 0]
    assert known.distinct(pa.array([], pa.string())).tolist() == []
    assert Lookup(pa.array([], pa.null()), np.array([]), absent=4).distinct(pa.array(["a"])).tolist() == [4]
    with pytest.raises(DataError, match="column 'x'"):
        Lookup(pa.array([3]), np.array([1]), absent=0, name="x").distinct(pa.array(["3"]))
