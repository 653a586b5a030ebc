from __future__ import annotations

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec._core.kernels import compiled
from fastrec.errors import DataError
from fastrec.table import Coded, Keys, Table, as_column
from fastrec.table import keys as text_codes
from fastrec.table.keys import align_types, common_type, join_coded, match_type

INTEGERS = st.one_of(st.none(), st.integers(-2, 2), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]))
TEXT = st.one_of(st.none(), st.sampled_from(["", "a", "b", "a\0", "é", "😀", "ab"]))
BOOLEANS = st.one_of(st.none(), st.booleans())
ROWS = st.lists(st.tuples(INTEGERS, TEXT, BOOLEANS), max_size=30)
TYPES = (pa.int64(), pa.large_string(), pa.bool_())


def table(rows) -> Table:
    columns = list(zip(*rows)) if rows else [(), (), ()]
    return Table.read(pa.table({n: pa.array(c, t) for n, c, t in zip("abc", columns, TYPES)}))


def tuples(keys: Keys) -> list[tuple]:
    return list(zip(*(c.to_pylist() for c in keys.columns)))


def check_coded(coded: Coded, rows: list[tuple]) -> None:
    """Codes are dense and 0 says missing; every code decodes to the row's key; every key stands once and occurs."""
    keys = tuples(coded.keys)
    assert len(set(keys)) == len(keys)
    for code, row in zip(coded.codes.tolist(), rows, strict=True):
        assert code == 0 if any(v is None for v in row) else keys[code - 1] == row
    assert coded.size == len(keys) + 1


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_joint_codes_group_rows_as_pandas_does(rows):
    for names in (("a",), ("a", "b"), ("c", "b", "a")):
        coded = table(rows).coded(names)
        picked = [tuple(row["abc".index(n)] for n in names) for row in rows]
        check_coded(coded, picked)
        assert {c for c in coded.codes.tolist() if c} == set(range(1, coded.size))
        frame = pd.DataFrame({n: pd.Series([r[i] for r in picked], dtype=object) for i, n in enumerate(names)})
        groups = frame.groupby(list(names), sort=False, dropna=True).ngroup().fillna(-1).tolist() if len(frame) else []
        pairs = {(g, c) for g, c in zip(groups, coded.codes.tolist())}  # the same partition of the rows, missing apart
        assert len({g for g, _ in pairs}) == len(pairs) == len({c for _, c in pairs})


@given(ROWS, ROWS)
@settings(max_examples=60, deadline=None)
def test_recode_looks_keys_up_as_a_dict_does(fitted, new):
    for names in (("a",), ("b",), ("c", "a"), ("a", "b", "c")):
        known = table(fitted).coded(names).keys
        where = {key: i + 1 for i, key in enumerate(tuples(known))}
        wanted = [where.get(tuple(row["abc".index(n)] for n in names), 0) for row in new]
        coded = table(new).coded(names)
        assert coded.recode(known).tolist() == wanted
        assert (coded.keys.find_in(known) + 1).tolist() == [where.get(k, 0) for k in tuples(coded.keys)]


@given(ROWS, ROWS)
@settings(max_examples=40, deadline=None)
def test_concat_and_distinct_unite_keys(first, second):
    a, b = (table(rows).coded(("a", "b", "c")).keys for rows in (first, second))
    both = a.concat(b)
    assert tuples(both) == tuples(a) + tuples(b)
    codes, kept = both.distinct()
    assert tuples(kept) == list(dict.fromkeys(tuples(both)))
    assert [tuples(kept)[c] for c in codes.tolist()] == tuples(both)


@given(ROWS)
@settings(max_examples=40, deadline=None)
def test_sort_order_sorts_by_value(rows):
    for names in (("a",), ("b",), ("c",), ("c", "b", "a")):
        keys = table(rows).coded(names).keys
        order = keys.sort_order()
        assert tuples(keys.take(order)) == sorted(
            tuples(keys), key=lambda k: [v.encode() if isinstance(v, str) else v for v in k]
        )


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.5, np.nan, np.inf, -np.inf, 1.5, 0.0, -0.0]),
        np.array([0.1, 0.1, np.nan], np.float32),
        np.array([1, 2, 1], np.int16),
        np.array([0, 255], np.uint8),
        np.array([2**64 - 1, 0, 2**64 - 1], np.uint64),
        np.array(["2020-01-01", "NaT", "1900-05-05"], "M8[D]"),
        [Decimal("1.10"), None, Decimal("1.1"), Decimal("1")],
        pd.array([2**53 + 1, None, 2**53], dtype="Int64"),
        ["a\0b", "a", None, "😀", ""],
        [True, None, False],
        [None, None],
        [],
    ],
)
def test_a_single_column_of_any_kind_is_coded_exactly(values):
    column = as_column(values, name="x")
    rows = [(v,) for v in column.to_arrow().to_pylist()]
    check_coded(column.coded(), rows)
    check_coded(Table({"x": column, "y": column}).coded(("x", "y")), [(v[0], v[0]) for v in rows])


def test_joint_codes_are_missing_with_any_part_are_kept_and_follow_replaced_columns():
    coded = Table.read({"a": [1, None, 1, 1], "b": ["x", "x", None, "x"]}).coded(("a", "b"))
    assert coded.codes.tolist() == [1, 0, 0, 1]
    assert tuples(coded.keys) == [(1, "x")]
    part = as_column(["a", None]).coded()
    assert join_coded([part]) is part
    made = Table.read({"a": [1, 2], "b": [1, 1]})
    assert made.coded(("a", "b")) is made.coded(["a", "b"])
    assert made.select(["b", "a"]).coded(("a", "b")) is made.coded(("a", "b"))
    assert made.with_columns({"a": [5, 5]}).coded(("a", "b")).codes.tolist() == [1, 1]


def test_codes_on_the_device_equal_those_on_the_host(device):
    made = Table.read({"a": np.array([3.5, np.nan, 3.5, -0.0, 0.0]), "b": ["x", "y", "x", None, "z"]})
    moved = made.to(device)
    for names in ("a", "b", ("a", "b")):
        host, there = made.coded(names), moved.coded(names)
        assert there.codes.device.type == device.type
        decoded = [tuples(c.keys)[i - 1] if i else None for c in (host, there) for i in c.codes.tolist()]
        assert decoded[:5] == decoded[5:]
        assert there.recode(host.keys).tolist() == host.codes.tolist()


def test_no_keys_have_no_type():
    nothing, text, number = (as_column(v, name="x").coded().keys for v in ([None], ["a", "b"], [1]))
    assert text.find_in(nothing).tolist() == [-1, -1]
    assert nothing.find_in(text).tolist() == []
    assert tuples(nothing.concat(text)) == tuples(text.concat(nothing)) == [("a",), ("b",)]
    with pytest.raises(DataError, match=r"column 'x': holds whole numbers here, but text before"):
        text.concat(number)
    with pytest.raises(DataError, match=r"column 'x'"):
        number.find_in(text)


NUMBERS = {
    pa.int8(): [-128, 0, 127],
    pa.int64(): [-(2**63), -1, 0, 1, 127, 128, 2**53, 2**53 + 1, 2**63 - 1],
    pa.uint8(): [0, 1, 127, 255],
    pa.uint64(): [0, 1, 255, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1],
    pa.bool_(): [True, False],
    pa.float32(): [-0.5, 0.0, 1.0, 255.0, 2.0**24, 2.0**63, float("inf")],
    pa.float64(): [-1.0, 0.1, 1.0, 2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e300, float("-inf")],
}


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("other", NUMBERS, ids=str)
def test_numbers_of_every_two_types_match_exactly_and_unite_exactly_or_are_refused(kind, other):
    a, b = pa.array(NUMBERS[kind], kind), pa.array(NUMBERS[other], other)
    values, known = a.to_pylist(), b.to_pylist()
    found = Keys((a,)).find_in(Keys((b,))).tolist()
    assert found == [next((i for i, k in enumerate(known) if v == k), -1) for v in values]
    matched = match_type(a, other)
    assert matched.type == other
    assert all(m is None or m == v for m, v in zip(matched.to_pylist(), values, strict=True))
    wide = common_type(kind, other)
    if any(match_type(array, wide).null_count for array in (a, b)):
        with pytest.raises(DataError, match=r"column 'x'.*no one type holds all the values exactly"):
            align_types(a, b, name="x")
        return
    left, right = align_types(a, b, name="x")
    assert left.type == right.type
    assert all(x == y for x, y in zip(left.to_pylist() + right.to_pylist(), values + known, strict=True))


def test_ids_that_met_a_missing_value_stay_integers_and_times_unite_in_the_finer_unit():
    left, right = align_types(pa.array([2**53 + 1, 5]), pa.array([5.0, 7.0]))
    assert left.type == right.type == pa.int64()
    left, right = align_types(pa.array([5]), pa.array([5.5]))
    assert left.type == right.type == pa.float64()
    a, b = pa.array([1], pa.timestamp("s", "UTC")), pa.array([1500], pa.timestamp("ms", "Europe/Berlin"))
    left, right = align_types(a, b)
    assert left.type == right.type == pa.timestamp("ms", "UTC")
    assert left.cast(pa.int64()).to_pylist() + right.cast(pa.int64()).to_pylist() == [1000, 1500]
    with pytest.raises(DataError, match="exactly"):
        align_types(pa.array([2**62], pa.timestamp("s")), pa.array([1], pa.timestamp("ns")))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), unique=True, min_size=1, max_size=30),
    st.lists(st.integers(-9, 9) | st.sampled_from([-(2**63), 2**63 - 1]), unique=True, min_size=1, max_size=30),
    st.sampled_from([pa.int64(), pa.int32(), pa.uint64()]),
    st.booleans(),
)
def test_numbers_are_found_where_they_stand_in_any_order(known, wanted, kind, rising):
    low, high = {pa.int64(): (-(2**63), 2**63), pa.int32(): (-(2**31), 2**31), pa.uint64(): (0, 2**64)}[kind]
    known, wanted = ([v for v in values if low <= v < high] for values in (known, wanted))
    known = sorted(known) if rising else known
    found = Keys((pa.array(wanted, kind),)).find_in(Keys((pa.array(known, kind),)))
    assert found.tolist() == [known.index(v) if v in known else -1 for v in wanted]


FEW_WORDS = st.text("abé\x00", max_size=3)
FEW_NUMBERS = st.integers(-30, 30) | st.sampled_from([2**62, -(2**63), 2**63 - 1])


@pytest.mark.parametrize("kinds", [("t",), ("n",), ("t", "n"), ("n", "n", "t")], ids="".join)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_second_look_finds_what_the_first_found(kinds: tuple[str, ...], data: st.DataObject) -> None:
    row = st.tuples(*(FEW_WORDS if k == "t" else FEW_NUMBERS for k in kinds))
    types = [pa.large_string() if k == "t" else pa.int64() for k in kinds]
    known = data.draw(st.lists(row, min_size=20, max_size=40, unique=True))
    keys = Keys(tuple(pa.array([r[i] for r in known], t) for i, t in enumerate(types)))
    for _ in range(5):
        asked = data.draw(st.lists(row, max_size=1)) + data.draw(st.lists(st.sampled_from(known), max_size=1))
        few = Keys(tuple(pa.array([r[i] for r in asked], t) for i, t in enumerate(types)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "FEW_KEYS_IN", 1)
            found = few.find_in(keys).tolist()
        assert found == [known.index(r) if r in known else -1 for r in asked]


def test_two_values_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_codes, "_hashes", lambda values: pa.compute.utf8_length(values).to_numpy().astype("int64"))
    known = Keys((pa.array([*"abcdefghijklmnopqrstuvwxyz", "aa", "bbb"]),))
    for _ in range(5):
        assert Keys((pa.array(["z"]),)).find_in(known).tolist() == [25]
        assert Keys((pa.array(["?"]),)).find_in(known).tolist() == [-1]
        assert Keys((pa.array(["aa"]),)).find_in(known).tolist() == [26]


def test_a_copy_for_another_process_has_no_hashes_of_this_one() -> None:
    known = Keys((pa.array([f"k{i}" for i in range(100)]),))
    for _ in range(4):
        Keys((pa.array(["k7"]),)).find_in(known)
    assert "_prepared" in vars(known)
    copy = pickle.loads(pickle.dumps(known))
    assert "_prepared" not in vars(copy)
    assert Keys((pa.array(["k7"]),)).find_in(copy).tolist() == [7]


TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]


def check_text(array: pa.Array) -> None:
    """Codes and distinct values in order of appearance."""
    seen: dict[str, int] = {}
    expected = [0 if v is None else seen.setdefault(v, len(seen) + 1) for v in array.to_pylist()]
    for loops in (False, True) if compiled(1 << 30) else (False,):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "COMPILED_TEXT_ROWS", 0 if loops else 1 << 60)
            patch.setattr(text_codes, "compiled", lambda *_, loops=loops: loops)
            codes, distinct = text_codes.encode(array)
        assert (codes.dtype, codes.tolist(), distinct.to_pylist()) == (np.dtype(np.int32), expected, list(seen))
        assert distinct.type == pa.large_string()


@given(width=st.integers(0, 11), kind=st.sampled_from(TEXT_TYPES), start=st.integers(0, 3), data=st.data())
def test_text_of_one_width_and_of_any_equals_a_loop(width, kind, start, data) -> None:
    value = st.text(alphabet=st.sampled_from("ab\0\x7f"), min_size=width, max_size=width)
    value = st.text(max_size=9) if width > 10 else value
    values = data.draw(st.lists(st.none() | value if data.draw(st.booleans()) else value, max_size=40))
    check_text(pa.array(values, kind)[start:])


def test_many_rows_lengths_that_only_add_up_bytes_behind_a_missing_value_and_text_that_differs_late() -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 4, 8):
        words = [str(i).zfill(width) for i in range(min(10**width, 5_000))]
        check_text(pa.array([words[i] for i in rng.integers(0, len(words), 70_001)]))
    for values in (["a", "abc", "ab", "ab"], ["", "abcd", None, "ab"], ["ä", "ab", "ä", None, "ö"]):
        check_text(pa.array(values))
    valid, offsets = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 2, 4, 4], dtype=np.int32))
    check_text(pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"abcd")]))
    words = [start + "x" * k + end for start in ("", "0123456\0") for k in range(30) for end in ("", "a", "b\0", "b")]
    check_text(pa.array([words[i] for i in rng.integers(0, len(words), 5_000)]))
