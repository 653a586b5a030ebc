from __future__ import annotations

import datetime as dt
import gzip
import math
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.table import Table, as_column, attach, column_names, take_rows

# the project lets fastai warn of read-only arrays; nothing here may
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def _warn_always():
    """Torch gives some warnings once a process; here every one must show."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


COLUMNS = {
    "integers": [3, -1, 2**53 + 1, -(2**63)],
    "nullable": [3, None, 2**53 + 1, 2**63 - 1],
    "floats": [1.5, None, math.inf, -math.inf],
    "booleans": [True, False, True, False],
    "nullable booleans": [True, None, False, True],
    "text": ["b", None, "a\0b", "😀"],
    "empty text": ["", "", "x", None],
    "times": [dt.datetime(2020, 1, 1), None, dt.datetime(1900, 5, 5, 3), dt.datetime(2100, 1, 1, 0, 0, 1)],
    "zoned": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, dt.datetime(2020, 7, 1, tzinfo=dt.UTC), None],
    "decimals": [Decimal("1.50"), None, Decimal("-2.25"), Decimal("1.50")],
    "lists": [[1, 2], None, [], [None]],
    "lists of text": [["a", None], None, [], ["b"]],
    "missing": [None, None, None, None],
}
KINDS = {
    "text": "category", "empty text": "category", "times": "datetime", "zoned": "datetime", "lists": "list",
    "lists of text": "list",
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_every_library_gives_the_same_column(df_module, name):
    values = COLUMNS[name]
    nullable = {"nullable": "Int64", "nullable booleans": "boolean"}.get(name) if df_module.name == "pandas" else None
    frame = df_module.frame({name: pd.array(values, dtype=nullable) if nullable else values})
    column = Table.read(frame)[name]
    nameless = "category" if df_module.name == "cudf" else "number"  # cuDF's column without a value is text
    assert column.kind == (nameless if name == "missing" else KINDS.get(name, "number"))
    assert column.to_arrow().to_pylist() == values
    assert column.is_missing().tolist() == [v is None for v in values]


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_come_back_to_every_library(df_module, name):
    if df_module.name == "cudf":
        pytest.skip("the host's libraries are tested here")
    frame = getattr(Table.read({name: COLUMNS[name]}), f"to_{df_module.name.removeprefix('py')}")()
    assert Table.read(frame)[name].to_arrow().to_pylist() == COLUMNS[name]
    if name not in ("lists", "lists of text"):
        assert df_module.values(frame, name) == COLUMNS[name]


NUMPY = {
    "read-only": np.arange(3.0),
    "read-only vectors": np.arange(6.0).reshape(3, 2),
    "nothing, read-only": np.arange(0.0),
    "every second": np.arange(6)[::2],
    "backwards": np.arange(3)[::-1],
    "a column of a matrix": np.arange(6.0).reshape(3, 2)[:, 1],
    "backwards vectors": np.arange(6).reshape(3, 2)[::-1],
    **{
        f"big-endian {k}": np.array([1, 2, 127]).astype(f">{k}")
        for k in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")
    },
    **{
        k: np.array([0, 1, np.iinfo(k).max], k)
        for k in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    **{f"lowest {k}": np.array([np.iinfo(k).min], k) for k in ("int8", "int16", "int32", "int64")},
    "float16": np.array([0.5, 65504], np.float16),
    "float16 vectors": np.ones((2, 2), np.float16),
    "uint16 vectors": np.full((2, 2), 65535, np.uint16),
    "big-endian vectors": np.ones((2, 2), ">f8"),
    "booleans": np.array([True, False]),
    "text": np.array(["a\0b", "é", ""]),
    "objects": np.array([1, None, 2**53 + 1], object),
    "huge objects": np.array([2**63 + 5, None, 1], object),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays_are_kept_exactly_and_never_written_to(name):
    values = NUMPY[name].copy(order="K") if "read-only" in name else NUMPY[name]
    before = values.tolist()
    values.flags.writeable = "read-only" not in name
    column = as_column(values, name="x")
    assert column.to_arrow().to_pylist() == before
    column.coded() if column.kind != "vector" else None
    column.number() if column.kind == "number" else None
    table = Table({"x": column})
    table.to_pandas(), table.to_polars(), table.take(torch.arange(len(values)).flip(0))
    assert values.tolist() == before


NUMPY_TOO = {
    "big-endian times": (np.array(["2020-01-01", "NaT"], ">M8[s]"), [dt.datetime(2020, 1, 1), None]),
    "months": (np.array(["2020-01", "NaT"], "M8[M]"), [dt.datetime(2020, 1, 1), None]),
    "tens of seconds": (np.array([1, 2], "M8[10s]"), [dt.datetime(1970, 1, 1, 0, 0, s) for s in (10, 20)]),
    "spans": (np.array([1500, "NaT"], "m8[ms]"), [1.5, None]),
    "masked integers": (np.ma.array([1, 2**53 + 1, 3], mask=[1, 0, 0]), [None, 2**53 + 1, 3]),
    "masked floats": (np.ma.array([1.0, 2.0], mask=[0, 1]), [1.0, None]),
    "nothing masked": (np.ma.array([1, 2]), [1, 2]),
    "a tensor that learns": (torch.ones(2, requires_grad=True), [1, 1]),
    "a matrix that learns": (torch.eye(2, requires_grad=True), [[1, 0], [0, 1]]),
}


def test_times_of_numpy():
    for step, unit, value in (("25us", "us", 175), ("ps", "ns", 0), *((u, u, 7) for u in ("s", "ms", "us", "ns"))):
        column = as_column(np.array([7, "NaT"], f"M8[{step}]"))
        assert (column.kind, column.unit, column.zone, int(column.values[0])) == ("datetime", unit, None, value)
        assert column.is_missing().tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_tensors_of_odd_types(dtype):
    column = as_column(torch.tensor([1, 2, 1]).to(dtype), name="x")
    assert column.to_arrow().to_pylist() == column.coded().codes.tolist() == column.number().tolist() == [1, 2, 1]
    assert len(column.take(torch.tensor([2, 0]))) == 2


def test_uint64_is_a_key_but_no_number_from_2_to_the_63():
    for values in (
        np.array([2**63, 5, 2**64 - 1], np.uint64),
        pa.array([2**63, 5, 2**64 - 1], pa.uint64()),
        pd.Series([2**63, 5, 2**64 - 1], dtype="UInt64"),
        pl.Series([2**63, 5, 2**64 - 1], dtype=pl.UInt64),
        [2**63, 5, 2**64 - 1],
    ):
        column = as_column(values, name="x")
        assert column.to_arrow().to_pylist() == [2**63, 5, 2**64 - 1]
        assert column.coded().codes.tolist() == [1, 2, 3]
        with pytest.raises(DataError, match=r"column 'x', row 0: holds integers above 2\^63"):
            column.number()
        with pytest.raises(DataError, match="an integer or a time"):
            column.integer()
    small = as_column(np.array([2**63 - 1, 5], np.uint64))
    assert small.integer().tolist() == [2**63 - 1, 5]
    assert as_column(pa.array([1, 2], pa.uint64()).dictionary_encode()).number().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["a", 1], 1),
        ([None, "a", "b", 1.5], 3),
        (["a", 1, pd.NA], 1),
        (["a", np.ones(2)], 1),
        ([True, 1], 1),
        ([None, object()], 1),
        ([-1, 2**63], 0),
        ([2**64], 0),
        ([2**53 + 1, 0.5], 1),
    ],
)
def test_columns_of_several_types_are_named_with_their_row(values, row):
    for source in (values, np.array([*values, None], object)[:-1], pd.Series(values, dtype=object)):
        with pytest.raises(DataError, match=rf"column 'x', row {row}: .*several or unknown types.*astype") as caught:
            as_column(source, name="x")
        assert caught.value.row == row


@pytest.mark.parametrize(
    "values",
    [
        np.array(3),
        np.ones((2, 2, 2)),
        np.ma.array([[1, 2]], mask=[[0, 1]]),
        torch.tensor(1),
        torch.ones(1, 1, 1),
        np.array([["a"]]),
        np.full((1, 1), 2**63, np.uint64),
        np.ones(2, complex),
        torch.ones(2) * 1j,
        np.zeros(1, [("a", "i4")]),
        "text",
        5,
        pl.Series([object()], dtype=pl.Object),
        *([pl.Series([2**70], dtype=pl.Int128)] if hasattr(pl, "Int128") else []),  # Arrow has no such type
        pd.DataFrame({"a": [1]}),
    ],
    ids=lambda v: type(v).__module__ + "." + type(v).__name__,
)
def test_what_is_no_column_is_named(values):
    with pytest.raises(DataError, match="column 'x'"):
        as_column(values, name="x")


PANDAS = {
    "sparse": (pd.Series(pd.arrays.SparseArray([0, 0, 1])), [0, 0, 1]),
    "sparse with missing": (pd.Series(pd.arrays.SparseArray([np.nan, 0.0, 1])), [None, 0, 1]),
    "a fixed offset": (
        pd.Series(pd.to_datetime(["2020-01-01T00:00:00+02:00", None])),
        [dt.datetime(2019, 12, 31, 22, tzinfo=dt.UTC), None],
    ),
    "Float64": (pd.Series([1, None], dtype="Float64"), [1.0, None]),
    "Arrow text": (pd.Series(["a", None], dtype=pd.ArrowDtype(pa.string())), ["a", None]),
    "durations": (pd.Series(pd.to_timedelta([1500, None], unit="ms")), [1.5, None]),
    "an index": (pd.Index([2**53 + 1, 2]), [2**53 + 1, 2]),
    "a bare categorical": (pd.Categorical(["b", None, "a"]), ["b", None, "a"]),
    "floats as categories": (pd.Series(pd.Categorical([1.5, np.nan])), [1.5, None]),
    "no categories": (pd.Series(pd.Categorical([None, None])), [None, None]),
    "intervals": (pd.Series(pd.cut([1, 9], [0, 5, 10])), ["(0, 5]", "(5, 10]"]),
    "periods": (pd.period_range("2024-01", periods=2, freq="M"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 1)]),
    "NaT and NA among objects": (pd.Series([pd.NaT, pd.NA, None, np.nan], dtype=object), [None] * 4),
    "decimals": (pd.Series([Decimal("0.1"), Decimal("NaN"), None]), [0.1, None, None]),
}


def test_zones_stay():
    for values in (
        pd.Series(pd.to_datetime(["2020-07-01 12:00", None])).dt.tz_localize("Europe/Berlin"),
        pa.array([dt.datetime(2020, 7, 1, 10), None], pa.timestamp("ns", "Europe/Berlin")),
        pl.Series([dt.datetime(2020, 7, 1, 10), None])
        .dt.replace_time_zone("UTC")
        .dt.convert_time_zone("Europe/Berlin"),
    ):
        column = as_column(values)
        assert column.zone == "Europe/Berlin"
        assert column.number().tolist()[0] == dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC).timestamp()
        assert math.isnan(column.number().tolist()[1])
        back = Table({"x": column}).to_pandas()["x"]
        assert str(back.dt.tz) == "Europe/Berlin"


def test_categoricals_keep_their_order_and_unused_categories():
    ordered = as_column(pd.Categorical(["lo", None, "hi"], categories=["lo", "mid", "hi"], ordered=True))
    assert ordered.ordered is True
    assert ordered.distinct.to_pylist() == ["lo", "mid", "hi"]
    assert ordered.values.tolist() == [1, 0, 3]
    assert as_column(pd.Categorical(["b", "a"], categories=["c", "b", "a"])).ordered is False
    enum = as_column(pl.Series(["b", None], dtype=pl.Enum(["c", "b", "a"])))
    assert (enum.ordered, enum.distinct.to_pylist(), enum.values.tolist()) == (False, ["c", "b", "a"], [2, 0])
    assert as_column(pl.Series(["b", None], dtype=pl.Categorical)).ordered is None


view = pa.string_view() if hasattr(pa, "string_view") else pa.string()
coded = pa.DictionaryArray.from_arrays
ARROW = {
    "a slice": (pa.array([1, None, 3, 4])[1:3], [None, 3]),
    "a slice of booleans": (pa.array([True, None, False, True])[1:3], [None, False]),
    "a slice of lists": (pa.array([[1], None, [2, None], [4]])[1:3], [None, [2, None]]),
    "a slice of vectors": (pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2))[1:3], [None, [3, 4]]),
    "a slice of a dictionary": (pa.array(["a", None, "c", "d"]).dictionary_encode()[1:3], [None, "c"]),
    "a slice of times": (pa.array([1, None, 3], pa.timestamp("s"))[1:], [None, dt.datetime(1970, 1, 1, 0, 0, 3)]),
    "chunks": (pa.chunked_array([[1], [], [None, 2**53 + 1]]), [1, None, 2**53 + 1]),
    "no chunks of text": (pa.chunked_array([], pa.string()), []),
    "dictionary chunks": (
        pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", None, "c"]).dictionary_encode()]),
        ["a", "b", "b", None, "c"],
    ),
    "a null in the dictionary": (coded([0, 1, None, 0], pa.array(["a", None])), ["a", None, None, "a"]),
    "NaN in the dictionary": (coded([0, 1, None], pa.array([1.5, math.nan])), [1.5, None, None]),
    "twice in the dictionary": (coded([0, 1, 2], pa.array(["a", "a", "b"])), ["a", "a", "b"]),
    "both zeros in the dictionary": (coded([0, 1], pa.array([0.0, -0.0])), [0, 0]),
    "a dictionary of views": (coded([0, 1, None], pa.array(["a", "b"], view)), ["a", "b", None]),
    "a dictionary of lists": (coded(pa.array([0, 0], pa.uint8()), pa.array([[1]])), [[1], [1]]),
    "a dictionary of dates": (coded([0, None], pa.array([dt.date(2020, 1, 1)])), [dt.datetime(2020, 1, 1), None]),
    "a dictionary of float16": (coded([0], pa.array(np.array([0.5], "f2"))), [0.5]),
    "views of text": (pa.array(["a", None, "a\0"], view), ["a", None, "a\0"]),
    "lists of views": (pa.array([["a"], None], pa.list_(view)), [["a"], None]),
    "float16 with nulls": (pa.array(np.array([0.5, 2], "f2"), mask=np.array([True, False])), [None, 2]),
    "nulls": (pa.nulls(2), [None, None]),
    "dates": (pa.array([dt.date(1969, 12, 31), None]), [dt.datetime(1969, 12, 31), None]),
    "long durations": (pa.array([10**18, None], pa.duration("ns")), [1e9, None]),
    "wide decimals": (pa.array([Decimal("9.5"), None], pa.decimal256(60, 2)), [9.5, None]),
    "whole decimals": (pa.array([Decimal(2**60 + 1), None], pa.decimal128(38, 0)), [2**60 + 1, None]),
    "vectors of integers with holes": (
        pa.array([[1, None], [2, 3]], pa.list_(pa.int32(), 2)),
        [[1.0, math.nan], [2.0, 3.0]],
    ),
    "vectors of uint16": (pa.array([[1, 65535], None], pa.list_(pa.uint16(), 2)), [[1, 65535], None]),
    "no vectors": (pa.array([], pa.list_(pa.float32(), 3)), []),
    "fixed lists of text": (pa.array([["a", None], None], pa.list_(pa.string(), 2)), [["a", None], None]),
    "lists of lists": (pa.array([[[1], None], None, []]), [[[1], None], None, []]),
    "lists of nothing": (pa.array([[None], [], None]), [[None], [], None]),
    "lists of booleans": (pa.array([[True, None], []]), [[True, None], []]),
    "lists of huge integers": (pa.array([[2**63], [1]], pa.list_(pa.uint64())), [[2**63], [1]]),
    "structs": (pa.array([{"a": 1}, None]), [{"a": 1}, None]),
    "bytes": (pa.array([b"\xff", None]), [b"\xff", None]),
    "times of day": (pa.array([dt.time(12, 30), None]), [45_000.0, None]),
    "maps": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[("a", 1)]]),
}


ODD = {**PANDAS, **NUMPY_TOO, **ARROW}


@pytest.mark.parametrize("name", ODD)
def test_odd_columns(name):
    values, wanted = ODD[name]
    column = as_column(values, name="x")
    found = column.to_arrow().to_pylist()
    assert str(found) == str(wanted) or found == wanted
    assert len(column) == len(wanted)
    assert column.is_missing().tolist() == [v is None for v in wanted]
    backwards = column.take(torch.arange(len(wanted)).flip(0)).to_arrow().to_pylist()
    assert str(backwards) == str(found[::-1])
    assert getattr(values, "requires_grad", False) == ("learns" in name)


def test_a_name_on_two_columns_is_refused_where_it_is_asked_for():
    names = ["a", "a", "b"]
    for frame in (pd.DataFrame([[1, 2, 3]], columns=names), pa.table([[1], [2], [3]], names=names)):
        for asked in (None, ["b", "a"]):
            with pytest.raises(DataError, match="column 'a': several columns have this name"):
                Table.read(frame, asked)
        assert Table.read(frame, ["b"])["b"].values.tolist() == [3]


def test_names_that_are_no_text():
    table = Table.read(pd.DataFrame([[1, 2]]))
    assert table.names == [0, 1]
    assert table.to_pandas().columns.tolist() == [0, 1]
    assert table.to_arrow().column_names == ["0", "1"]
    wide = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")]))
    assert Table.read(wide)[("a", "c")].values.tolist() == [2]


def test_missing_columns_are_named(df_module):
    frame = df_module.frame({"a": [1], "b": [2]})
    with pytest.raises(MissingColumnError, match=r"column 'z': .*there are 'a', 'b'"):
        Table.read(frame, ["a", "z"])
    assert Table.read(frame, ["b", "a"]).names == ["b", "a"]
    assert Table.read(frame, "b").names == ["b"]
    assert column_names(frame) == ["a", "b"]


@pytest.mark.parametrize(
    "source",
    [None, [1, 2], 5, pd.Series([1]), pl.Series([1]), pl.LazyFrame({"a": [1]}), np.ones((2, 2)), pa.array([1])],
    ids=lambda s: type(s).__name__,
)
def test_what_is_no_frame_is_named(source):
    with pytest.raises(DataError, match=r"cannot read|no frame"):
        Table.read(source)


def test_frames_without_rows_or_columns(df_module):
    empty = Table.read(df_module.frame({}))
    assert (len(empty), empty.names) == (0, [])
    if df_module.name == "cudf":
        return
    assert column_names(empty.to_pandas()) == column_names(empty.to_polars()) == column_names(empty.to_arrow()) == []
    none = Table.read(df_module.frame({"a": [], "b": []}))
    assert (len(none), none.names) == (0, ["a", "b"])
    assert len(none.coded(("a", "b")).keys) == 0
    assert len(attach(df_module.frame({"a": []}), {"c": as_column([])})) == 0


def test_attach_keeps_the_users_frame(df_module):
    frame = df_module.frame({"a": [3, 1, 2], "b": ["x", None, "y"], "c": [[1], None, []]})
    new = attach(frame, {"b": as_column([1.5, None, 2.5]), "d": as_column([2**53 + 1, None, 1])})
    assert column_names(new) == ["a", "b", "c", "d"]
    assert column_names(frame) == ["a", "b", "c"]
    assert type(new) is type(frame)
    assert df_module.values(new, "b") == [1.5, None, 2.5]
    assert df_module.values(new, "d") == [2**53 + 1, None, 1]
    assert df_module.values(new, "a") == [3, 1, 2]
    assert df_module.values(frame, "b") == ["x", None, "y"]
    assert column_names(attach(frame, {})) == ["a", "b", "c"]
    with pytest.raises(DataError, match="column 'd': has 1 values, but the frame has 3 rows"):
        attach(frame, {"d": as_column([1])})


def test_attach_keeps_index_dtypes_and_odd_names_of_pandas():
    index = pd.MultiIndex.from_tuples([(1, "x"), (1, "x"), (2, "y")], names=["k", "l"])
    columns = pd.Index(["a", 5, "a"], name="names")
    frame = pd.DataFrame([[1, "x", 2.5]] * 3, index=index, columns=columns)
    before = frame.copy()
    new = attach(frame, {"new": as_column([1, 2, 3]), 5: as_column([7, 8, 9])})
    assert new.columns.tolist() == ["a", 5, "a", "new"]
    assert new.columns.name == "names"
    assert new.index.equals(index)
    assert new[5].tolist() == [7, 8, 9]
    pd.testing.assert_frame_equal(new[["a"]], before[["a"]])
    pd.testing.assert_frame_equal(frame, before)
    objects = pd.DataFrame({"o": [object(), {1}]}, index=[5, 5])
    assert attach(objects, {"x": as_column([1, 2])})["o"].tolist() == objects["o"].tolist()
    assert attach(pd.DataFrame(index=[8, 9]), {"x": as_column([1, 2])}).index.tolist() == [8, 9]


def test_attach_to_the_other_frames():
    assert attach({"a": [1, 2]}, {"b": as_column([2**53 + 1, None])})["b"].tolist() == [2**53 + 1, None]
    assert attach(pa.record_batch([pa.array([1])], ["a"]), {"b": as_column([2])}).to_pylist() == [{"a": 1, "b": 2}]
    assert attach(pa.table({}), {"b": as_column([5, 6])}).num_rows == 2
    assert attach(pl.DataFrame(), {"b": as_column([5, 6])}).shape == (2, 1)
    assert attach(Table.read({"a": [1]}), {"b": as_column([2])}).names == ["a", "b"]
    with pytest.raises(DataError, match="cannot read"):
        attach([1], {"b": as_column([2])})


def test_take_rows_of_every_library_of_a_dict_and_of_pandas_keeps_every_kind(df_module):
    frame = df_module.frame({"a": [3, 1, 2], "b": ["x", None, "y"]})
    assert df_module.values(take_rows(frame, torch.tensor([2, 0, 2])), "b") == ["y", "x", "y"]
    assert len(take_rows(frame, torch.tensor([], dtype=torch.int64))) == 0
    frame = {"text": ["a\0", None], "tensor": torch.tensor([1, 2]), "array": np.array([1, 2], "M8[s]")}
    frame |= {"series": pd.Series([1, 2], index=[5, 6]), "arrow": pa.array([1, None]), "column": as_column([1, 2])}
    found = take_rows(frame, torch.tensor([1, 0]))
    assert found["text"] == [None, "a\0"]
    assert found["tensor"].tolist() == found["column"].values.tolist() == [2, 1]
    assert found["array"].dtype == "M8[s]"
    assert found["series"].index.tolist() == [6, 5]
    assert found["arrow"].to_pylist() == [None, 1]
    frame = pd.DataFrame({"a": pd.Categorical(["x", "y"])}, index=["k", "l"])
    found = take_rows(frame, torch.tensor([1]))
    assert found.index.tolist() == ["l"]
    assert found["a"].dtype == frame["a"].dtype


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def long_column(first: str, last: str, rows: int = 250_000) -> str:
    """A CSV whose column x holds `first` for more than one of Arrow's blocks, and `last` at the end."""
    return "x,y,z\n" + f"{first},1,a\n" * rows + f"{last},2,b\n"


@pytest.mark.parametrize(
    ("first", "last", "kind", "top", "bottom"),
    [
        ("5", "abc", "category", "5", "abc"),
        ("5", "5.5", "number", 5.0, 5.5),
        ("", "7", "number", None, 7),
        ("", "7.5", "number", None, 7.5),
        ("", "text", "category", None, "text"),
        ("true", "7", "category", "true", "7"),
        ("2020-01-01", "soon", "category", "2020-01-01", "soon"),
        ("5", str(2**63 + 11), "category", 5, 2**63 + 11),
        (str(2**53 + 1), "text", "category", str(2**53 + 1), "text"),
    ],
)
def test_a_column_that_changes_after_the_first_block(tmp_path, first, last, kind, top, bottom):
    path = write(tmp_path / "x.csv", long_column(first, last))
    assert path.stat().st_size > 1 << 20
    column = Table.read(path, ["y", "x"])["x"]
    assert column.kind == kind
    ends = column.take(torch.tensor([0, len(column) - 1])).to_arrow().to_pylist()
    assert ends == [top, bottom]


def test_csv_forms(tmp_path):
    def read(content, name="x.csv", **options):
        return Table.read(write(tmp_path / name, content), **options).to_arrow().to_pylist()

    assert read('x,y\n"a\nb",1\n"c,""d""",2\n') == [{"x": "a\nb", "y": 1}, {"x": 'c,"d"', "y": 2}]
    assert read("\ufeffx,y\r\n1,2\r\n") == [{"x": 1, "y": 2}]
    assert read("x\n1\n\n2\n") == [{"x": 1}, {"x": 2}]
    assert read("x,y\n") == []
    assert read("x\ty\n1\t2,5\n", "x.tsv") == [{"x": 1, "y": "2,5"}]
    assert read("x,y\nNA,a\n<NA>,NaN\n3,null\n") == [{"x": None, "y": "a"}, {"x": None, "y": None}, {"x": 3, "y": None}]
    assert read(f"x\n{2**53 + 1}\nNA\n{-(2**63)}\n") == [{"x": 2**53 + 1}, {"x": None}, {"x": -(2**63)}]
    assert read(f"x\n{2**63 + 11}\nNA\n5\n") == [{"x": 2**63 + 11}, {"x": None}, {"x": 5}]
    assert read(f"x\n{2**63 + 11}\n-5\n")[1] == {"x": -5.0}
    assert read("x\n1e19\n5\n") == [{"x": 1e19}, {"x": 5.0}]
    assert read("x\n007\n", types={"x": pa.string()}) == [{"x": "007"}]
    assert read("😀\né\n") == [{"😀": "é"}]
    assert read("x,y\n1,2\n", columns=[]) == []
    assert read(b"x,y\ncaf\xe9,1\n", columns=["y"]) == [{"y": 1}]  # not UTF-8, and left out
    with pytest.raises(DataError, match=r"column 'x', row 1: holds 'b', which is not of type int64"):
        read("x,y\n1,a\nb,c\n", types={"x": pa.int64()})


def test_compressed_csv(tmp_path):
    path = write(tmp_path / "x.csv.gz", gzip.compress(b"x,y\n1,a\n"))
    assert Table.read(path).to_arrow().to_pylist() == [{"x": 1, "y": "a"}]
    write(path, gzip.compress(b"x,y\n1,a\n" * 100)[:30])
    with pytest.raises(UnreadableFileError, match=r"x\.csv\.gz"):
        Table.read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n", "Empty CSV"),
        ("x,y\n1,2\n1,2,3\n", "Expected 2 columns, got 3"),
        ('x,y\n"1,2\n', "Expected 2 columns, got 1"),
        (b"x,y\ncaf\xe9,1\n", "column 'x', row 0: holds text that is not UTF-8"),
        (long_column("abc", "x").encode() + b"caf\xe9,2,c\n", "column 'x', row 250001: holds text that is not UTF-8"),
        (long_column("5", "6").encode() + b"caf\xe9,2,c\n", "column 'x', row 250001: holds text that is not UTF-8"),
        (b"caf\xe9,y\n1,2\n", "the header is not UTF-8"),
        (b"PAR1\x00\xff\xfe\x00\n\x00", "not UTF-8"),
    ],
    ids=range(9),
)
def test_damaged_csv_files_are_named(tmp_path, content, message):
    path = write(tmp_path / "bad.csv", content)
    with pytest.raises(UnreadableFileError, match=r"bad\.csv") as caught:
        Table.read(path)
    assert message in str(caught.value)


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"no\.csv"):
        Table.read(tmp_path / "no.csv")
    csv = write(tmp_path / "x.csv", "x,y\n1,2\n")
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "x.parquet")
    for path in (csv, tmp_path / "x.parquet", str(csv)):
        with pytest.raises(MissingColumnError, match=r"file '.*x\.(csv|parquet)', column 'z': .*'x', 'y'"):
            Table.read(path, ["x", "z"])
    with pytest.raises(DataError, match="column 'x': several columns have this name"):
        Table.read(write(tmp_path / "twice.csv", "x,x\n1,2\n"))
    with pytest.raises(UnreadableFileError, match="it looks separated by ';'"):
        Table.read(write(tmp_path / "a.csv", "a;b\n1;2,5\n"))


def test_parquet_in_order_and_folders_whose_files_fit_together(tmp_path):
    table = pa.table({"a.b": [1, 2], "c": [1.5, None], "d": ["x", None], "e": [[1], None]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert Table.read(tmp_path / "x.parquet").to_arrow().to_pylist() == table.to_pylist()
    assert Table.read(str(tmp_path / "x.parquet"), ["d", "a.b"]).names == ["d", "a.b"]
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(UnreadableFileError, match="holds no Parquet files"):
        Table.read(folder)
    pq.write_table(table, folder / "1.parquet")
    pq.write_table(table.slice(0, 1), folder / "2.parquet")
    write(folder / ".3.parquet.part", b"half written")
    assert Table.read(folder)["a.b"].values.tolist() == [1, 2, 1]
    write(folder / "4.csv", "x\n1\n")
    with pytest.raises(UnreadableFileError, match="parts"):
        Table.read(folder)
    other = tmp_path / "of two types"
    other.mkdir()
    for i, values in enumerate(([1], ["x"])):
        pq.write_table(pa.table({"a": values}), other / f"{i}.parquet")
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        Table.read(other)


def test_damaged_parquet_files_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(1000)), "b": ["x"] * 1000}), path)
    whole = path.read_bytes()
    footer = bytearray(whole)
    footer[-40:-8] = b"\xff" * 32
    for damaged in (whole[: len(whole) // 2], whole[:4], b"x,y\n1,2\n", bytes(footer), b""):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFileError, match=r"x\.parquet"):
            Table.read(path)


def test_importing_is_light():
    rooms = "table table.cudf segments metrics _core.atomic _core.device"
    code = f"import sys, fastrec, {', '.join('fastrec.' + r for r in rooms.split())}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    heavy = {"pandas", "polars", "cudf", "dask", "fastai", "xgboost", "sklearn", "matplotlib"}
    assert not set(done.stdout.split()) & heavy
