"""Text coded as words against Arrow's own dictionary, and against a loop."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec._core.kernels import compiled
from fastrec.table import keys as text_codes

TYPES = [pa.string(), pa.large_string(), pa.string_view()]


def by_loop(values: list[str | None]) -> tuple[list[int], list[str]]:
    """Codes and distinct values in order of appearance."""
    seen: dict[str, int] = {}
    codes = [0 if v is None else seen.setdefault(v, len(seen) + 1) for v in values]
    return codes, list(seen)


def check(array: pa.Array) -> None:
    expected = by_loop(array.to_pylist())
    for loops in (False, True) if compiled(1 << 30) else (False,):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "COMPILED_TEXT_ROWS", 0 if loops else 1 << 60)
            patch.setattr(text_codes, "compiled", lambda _, loops=loops: loops)
            codes, distinct = text_codes.encode(array)
        assert (codes.dtype, codes.tolist(), distinct.to_pylist()) == (np.dtype(np.int32), *expected)
        assert distinct.type == pa.large_string()


@given(width=st.integers(0, 10), kind=st.sampled_from(TYPES), start=st.integers(0, 3), data=st.data())
def test_one_width_equals_a_loop(width: int, kind: pa.DataType, start: int, data: st.DataObject) -> None:
    value = st.text(alphabet=st.sampled_from("ab\0\x7f"), min_size=width, max_size=width)
    values = data.draw(st.lists(st.none() | value if data.draw(st.booleans()) else value, max_size=40))
    check(pa.array(values, kind)[start:])


@given(values=st.lists(st.none() | st.text(max_size=9), max_size=30), kind=st.sampled_from(TYPES))
def test_any_text_equals_a_loop(values: list[str | None], kind: pa.DataType) -> None:
    check(pa.array(values, kind))


@given(
    values=st.lists(st.text(alphabet="ab\0\x7fé", max_size=9), max_size=30, unique=True),
    kind=st.sampled_from(TYPES),
    start=st.integers(0, 3),
)
@example(values=["a\0", "a"], kind=pa.string(), start=0)
def test_short_text_is_sorted_by_its_bytes(values: list[str], kind: pa.DataType, start: int) -> None:
    array = pa.array(values, kind)[start:]
    order = text_codes.short_text_order(array)
    if order is not None:
        assert array.take(pa.array(order)).to_pylist() == sorted(array.to_pylist(), key=str.encode)
    else:
        left = array.to_pylist()
        ends_alike = len({v.rstrip("\0") for v in left}) < len(left)
        assert (
            not left or kind == pa.string_view() or ends_alike or max(len(v.encode()) for v in left) > 8 or left == [""]
        )


@pytest.mark.parametrize("width", [1, 3, 4, 8])
def test_many_rows(width: int) -> None:
    rng = np.random.default_rng(width)
    words = [str(i).zfill(width) for i in range(min(10**width, 5_000))]
    check(pa.array([words[i] for i in rng.integers(0, len(words), 70_001)]))


def test_long_text_that_differs_late() -> None:
    rng = np.random.default_rng(0)
    words = [start + "x" * k + end for start in ("", "0123456\0") for k in range(30) for end in ("", "a", "b\0", "b")]
    check(pa.array([words[i] for i in rng.integers(0, len(words), 5_000)]))


def test_lengths_that_only_add_up_are_not_taken_for_one_width() -> None:
    check(pa.array(["a", "abc", "ab", "ab"]))
    check(pa.array(["", "abcd", None, "ab"]))


def test_bytes_behind_a_missing_value() -> None:
    valid, offsets = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 2, 4, 4], dtype=np.int32))
    check(pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"abcd")]))


def test_characters_of_several_bytes() -> None:
    check(pa.array(["ä", "ab", "ä", None, "ö"]))


def test_values_other_than_text_keep_their_type() -> None:
    codes, distinct = text_codes.encode(pa.array([1, None, 1, 2**63], pa.uint64()))
    assert codes.tolist() == [1, 0, 1, 2]
    assert distinct.type == pa.uint64()
