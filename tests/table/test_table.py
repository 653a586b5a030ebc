from __future__ import annotations

import dataclasses
import datetime as dt
import math
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, DeviceError, MissingColumnError
from fastrec.table import Column, Table, as_column, concat
from fastrec.table.coding import code_integers

SECOND = dt.datetime(1970, 1, 1, 0, 0, 1)
FRAME = {
    "i": pa.array([3, None, 2**53 + 1, -1]),
    "f": pa.array([1.5, None, math.inf, -0.0]),
    "g": pa.array([0.1, None, 2, 3], pa.float32()),
    "b": pa.array([True, None, False, True]),
    "s": pa.array(["b", None, "a\0", "b"], pa.large_string()),
    "t": pa.array([1, None, -5, 2**40], pa.timestamp("ms", "Europe/Berlin")),
    "l": pa.array([[1, None], None, [], [3]], pa.large_list(pa.int64())),
    "v": pa.array([[1.0, 2], None, [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
    "d": pa.array([Decimal("1.5"), None, Decimal("2.5"), Decimal("1.5")]),
    "u": pa.array([2**63, None, 1, 2], pa.uint64()),
    "o": pa.array([{"a": 1}, None, {"a": 2}, {"a": 3}]),
    "c": pa.DictionaryArray.from_arrays([0, None, 1, 0], ["z", "a"], ordered=True),
}


def frame() -> Table:
    return Table.read(pa.table(FRAME))


def rows(table: Table) -> list[dict]:
    return table.to_arrow().to_pylist()


def test_a_table_is_what_was_read():
    table = frame()
    assert table.names == list(FRAME) == list(table)
    assert (len(table), "i" in table, "z" in table) == (4, True, False)
    assert rows(table) == pa.table(FRAME).to_pylist()  # Decimal("1.5") == 1.5
    others = {"t": "datetime", "l": "list", "v": "vector", "o": "opaque"}
    kinds = {**dict.fromkeys("ifgbd", "number"), **dict.fromkeys("suc", "category"), **others}
    assert {n: table[n].kind for n in table} == kinds
    assert repr(table).startswith(f"Table(4 rows on {table.device}; i: number, f: number")


@given(st.lists(st.integers(-4, 3), max_size=8), st.lists(st.booleans(), min_size=4, max_size=4))
@settings(max_examples=46, deadline=None)
def test_take_gives_those_rows_by_place_and_by_mask(picked, mask):
    plain = pa.table(FRAME).to_pylist()
    assert rows(frame().take(torch.tensor(picked, dtype=torch.int64))) == [plain[i] for i in picked]
    assert rows(frame().take(torch.tensor(mask))) == [r for r, m in zip(plain, mask, strict=True) if m]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=2).map(sorted), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_slice_gives_those_rows(cut, again):
    start, stop = cut
    part = frame().slice(start, stop)
    assert rows(part) == pa.table(FRAME).to_pylist()[start:stop]
    assert rows(part.slice(min(again, len(part)), len(part))) == pa.table(FRAME).to_pylist()[start:stop][again:]
    assert part["i"].coded().codes.tolist() == frame().take(torch.arange(start, stop))["i"].coded().codes.tolist()


def test_slices_share_memory_and_neither_they_nor_masks_reach_beyond_the_table():
    whole = frame()
    assert whole.slice(1, 3)["f"].values.data_ptr() == whole["f"].values[1:].data_ptr()
    for cut in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(DataError, match=r"rows -?\d up to \d of a table of 4 rows"):
            whole.slice(*cut)
    with pytest.raises(DataError, match="a mask of 3 rows was given for a table of 4"):
        whole.take(torch.tensor([True] * 3))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_concat_is_the_inverse_of_cutting(cuts):
    ends = [0, *sorted(cuts), 4]
    parts = [frame().take(torch.arange(a, b)) for a, b in pairwise(ends)]
    joined = concat(parts)
    assert rows(joined) == rows(frame())
    assert {n: joined[n].kind for n in joined} == {n: frame()[n].kind for n in joined}
    assert joined["c"].ordered is True
    assert joined["c"].distinct.to_pylist() == ["z", "a"]
    assert (joined["t"].unit, joined["t"].zone) == ("ms", "Europe/Berlin")
    assert joined["g"].values.dtype == torch.float32


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ([1], [2.5], [1.0, 2.5]),
        (np.array([1], np.int8), np.array([200], np.uint8), [1, 200]),
        ([1, None], [2], [1, None, 2]),
        (np.array([0.5], np.float32), [0.1], [0.5, 0.1]),
        ([2**53 + 1], np.array([np.nan]), [2**53 + 1, None]),
        ([None], ["a"], [None, "a"]),
        ([None], [[1]], [None, [1]]),
        ([[None], []], [["a"]], [[None], [], ["a"]]),
        (np.array([np.nan]), np.array([1], "M8[s]"), [None, SECOND]),
        ([None], np.ones((1, 2)), [None, [1.0, 1.0]]),
        ([None], pa.array([{"a": 1}]), [None, {"a": 1}]),
        (["b", "a"], ["c", None, "a"], ["b", "a", "c", None, "a"]),
        ([2], np.array([2**63], np.uint64), [2, 2**63]),
        ([Decimal("1.5")], [Decimal("22.25"), None], [1.5, 22.25, None]),
        (np.array([1], "M8[s]"), np.array([1500], "M8[ms]"), [SECOND, SECOND.replace(microsecond=500_000)]),
    ],
)
def test_concat_of_parts_of_several_types(first, second, wanted):
    joined = concat([Table.read({"x": first}), Table.read({"x": second})])
    assert joined["x"].to_arrow().to_pylist() == wanted
    assert joined["x"].is_missing().tolist() == [v is None for v in wanted]
    backwards = concat([Table.read({"x": second}), Table.read({"x": first})])
    size = len(Table.read({"x": first}))
    assert backwards["x"].to_arrow().to_pylist() == wanted[size:] + wanted[:size]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1], ["a"]),
        ([2**53 + 1], [0.5]),
        (np.array([2**63], np.uint64), [-2]),
        ([[1]], [1]),
        (np.ones((1, 2)), np.ones((1, 3))),
        (np.array([1], "M8[s]"), [1]),
        (np.array([1], "M8[s]"), pa.array([1], pa.timestamp("s", "UTC"))),
        (pa.array([{"a": 1}]), pa.array([{"b": "x"}])),
        ([["a"]], [[1]]),
    ],
)
def test_concat_of_what_does_not_fit_is_named(first, second):
    with pytest.raises(DataError, match="column 'x'"):
        concat([Table.read({"x": first}), Table.read({"x": second})])


def test_concat_of_zones_and_categories_of_one_table_and_of_none():
    parts = [Table.read({"x": pa.array([10], pa.timestamp("s", z))}) for z in ("UTC", "Europe/Berlin")]
    joined = concat(parts)["x"]
    assert (joined.values.tolist(), joined.zone) == ([10, 10], "UTC")
    a, b = (Table.read({"x": pd.Categorical(["u"], c, ordered=True)}) for c in (["u", "v"], ["v", "u"]))
    joined = concat([a, b])["x"]
    assert joined.to_arrow().to_pylist() == ["u", "u"]
    assert concat([a, a])["x"].ordered is True
    with pytest.raises(DataError, match="no table"):
        concat([])
    with pytest.raises(MissingColumnError, match="column 'a'"):
        concat([Table.read({"a": [1]}), Table.read({"b": [1]})])
    one = Table.read({"a": [1]})
    assert concat([one]) is one


def test_numbers():
    table = frame()
    assert table["i"].number().nan_to_num(-9).tolist()[1:] == [-9, float(2**53), -1]
    assert table["i"].number().dtype == torch.float64
    assert table["i"].number(torch.float32).dtype == torch.float32
    assert table["i"].integer().tolist()[2] == 2**53 + 1
    assert table["b"].number().nan_to_num(-1).tolist() == [1, -1, 0, 1]
    assert table["t"].number().nan_to_num(-1).tolist() == [0.001, -1, -0.005, 2**40 / 1000]
    assert table["t"].integer().tolist()[2:] == [-5, 2**40]
    assert table["d"].number().nan_to_num(-1).tolist() == [1.5, -1, 2.5, 1.5]
    assert as_column(pd.Categorical([True, None, False])).number().nan_to_num(-1).tolist() == [1, -1, 0]
    assert as_column([None, "x"]).take(torch.tensor([0])).is_missing().tolist() == [True]
    for name in "slvo":
        with pytest.raises(DataError, match=f"column '{name}', row 0: holds .* as a number"):
            table[name].number()
        with pytest.raises(DataError, match="an integer or a time"):
            table[name].integer()
    assert as_column(pa.array([[], None], pa.list_(pa.float64()))).vectors(0).shape == (2, 0)
    values = np.array([1e8, 1e8 + 1, 1e8 - 1])
    assert (as_column(values).number() - 1e8).tolist() == [0, 1, -1]
    assert (as_column(values.astype(int)).number() - 1e8).tolist() == [0, 1, -1]


def test_selection_and_names_also_in_messages():
    table = frame().select(["s", "i"])
    assert table.names == ["s", "i"]
    assert table.drop(["s", "absent"]).names == ["i"]
    renamed = table.rename({"s": "text"})
    assert renamed.names == ["text", "i"]
    assert renamed["text"].name == "text"
    assert table.names == ["s", "i"]
    assert table.rename({"s": "i", "i": "s"})["i"].kind == "category"
    with pytest.raises(DataError, match="column 'i': two columns would have this name"):
        table.rename({"s": "i"})
    for act, what in ((table.__getitem__, "z"), (table.select, ["z"]), (table.coded, "z"), (table.coded, ("s", "z"))):
        with pytest.raises(MissingColumnError, match=r"column 'z': .*'s', 'i'"):
            act(what)
    table = Table.read({"a": ["x"]})
    table.coded("a")
    renamed = table.rename({"a": "b"})
    with pytest.raises(DataError, match="column 'b'"):
        renamed.coded("b").recode(Table.read({"b": [1]}).coded("b").keys)
    with pytest.raises(DataError, match="column 'b'"):
        renamed.coded("b").keys.concat(Table.read({"b": [1]}).coded("b").keys)


def test_columns_are_added_and_replaced():
    table = Table.read({"a": [1, 2]})
    new = table.with_columns({"b": ["x", None], "a": torch.tensor([5.0, 6.0])})
    assert rows(new) == [{"a": 5.0, "b": "x"}, {"a": 6.0, "b": None}]
    assert rows(table) == [{"a": 1}, {"a": 2}]
    with pytest.raises(DataError, match="unequal length"):
        table.with_columns({"b": [1]})
    with pytest.raises(DataError, match="unequal length"):
        Table({"a": [1], "b": [1, 2]})


def test_to_pandas_keeps_types_and_copies():
    back = frame().to_pandas()
    assert back["i"].tolist()[2] == 2**53 + 1
    kinds = ["Int64", "boolean", "float64", "float32", "datetime64[ms, Europe/Berlin]"]
    assert [str(back[n].dtype) for n in "ibfgt"] == kinds
    for name in ("int8", "int16", "int32", "uint8"):
        column = Table.read({"x": pa.array([1, None], pa.type_for_alias(name))}).to_pandas()["x"]
        assert str(column.dtype).lower() == name
        assert column.isna().tolist() == [False, True]
        assert Table.read({"x": pa.array([1], pa.type_for_alias(name))}).to_pandas()["x"].dtype == name
    table = Table.read({"x": pa.array([1, None])})
    back = table.to_pandas()
    back.loc[0, "x"] = 9
    assert table["x"].to_arrow().to_pylist() == [1, None]


def test_devices(device, monkeypatch):
    table = frame().to(device)
    assert table.device.type == device.type
    assert rows(table) == rows(frame())
    assert rows(table.take(torch.tensor([2, 0]))) == [rows(frame())[i] for i in (2, 0)]
    assert rows(concat([table, table])) == rows(frame()) * 2
    assert rows(table.to("cpu")) == rows(frame())
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            frame().to("cuda")
        with pytest.raises(DeviceError):
            Table.read({"a": [1]}, device="cuda")
    monkeypatch.setenv("FASTREC_DEVICE", "cuda" if not torch.cuda.is_available() else "no device")
    with pytest.raises(DeviceError):
        Table.read({"a": [1]})


def test_a_table_is_read_as_it_is_with_its_codes_and_a_changed_copy_without():
    table = frame()
    assert Table.read(table, ["s", "i"])["s"] is table["s"]
    with pytest.raises(MissingColumnError, match="column 'z'"):
        Table.read(table, ["z"])
    assert table["s"].coded() is table["s"].coded()
    assert isinstance(table["s"], Column)
    for name in "lvo":
        with pytest.raises(DataError, match=f"column '{name}', row 0: holds .* as a key"):
            table[name].coded()
    column = Table({"u": [3, 1, 3]})["u"]
    column.coded()
    changed = dataclasses.replace(column, values=torch.tensor([7, 8, 9]))
    assert changed.coded().keys.columns[0].take(changed.coded().codes.numpy() - 1).to_pylist() == [7, 8, 9]
    assert changed._lock is not column._lock


def test_empty_columns_of_every_kind():
    nothing = frame().take(torch.empty(0, dtype=torch.int64))
    assert len(nothing) == len(nothing.to_pandas()) == len(nothing.to_polars()) == 0
    for same in (nothing, nothing.take(torch.empty(0, dtype=torch.int64)), concat([nothing, nothing])):
        assert rows(same) == []
    for name in "ifgbstduc":
        assert nothing[name].coded().codes.tolist() == []
    assert nothing.coded(("i", "s")).size == 1
    assert nothing["i"].number().tolist() == []


NEAR = st.integers(-20, 20)
FAR = st.one_of(NEAR, st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]))
ROWS = st.one_of(*(st.lists(st.tuples(v, st.booleans()), max_size=30) for v in (NEAR, FAR)))


def codes_by_hand(values, missing):
    distinct = sorted({v for v, m in zip(values, missing, strict=True) if not m})
    return [0 if m else distinct.index(v) + 1 for v, m in zip(values, missing, strict=True)], distinct


@given(rows=ROWS, small=st.booleans())
@settings(max_examples=80, deadline=None)
def test_codes_are_the_places_among_the_sorted_distinct_values(rows, small):
    values, missing = [v for v, _ in rows], [m for _, m in rows]
    tensor = torch.tensor(values, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MARKED_VALUES", 1 << 10 if small else 0)  # both ways of coding meet the same values
        for mask, gone in ((torch.tensor(missing, dtype=torch.bool), missing), (None, [False] * len(values))):
            codes, distinct = code_integers(tensor, mask)
            assert (codes.tolist(), distinct.tolist()) == codes_by_hand(values, gone)
    assert tensor.tolist() == values  # what was given is as it was
