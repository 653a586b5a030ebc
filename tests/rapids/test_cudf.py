"""cuDF's frames as columns and back, on cuDF where there is a GPU, else on its rehearsal; pandas is the oracle."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.table import Column, Table, as_column, attach
from tests.rapids import rehearsal


@pytest.fixture(scope="module")
def cudf() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        installed = importlib.util.find_spec("cudf") is not None
        yield importlib.import_module("cudf") if installed else rehearsal.bring(patch)


def column_of(cudf: ModuleType, values: Any) -> Column:
    series = values if isinstance(values, cudf.Series) else cudf.Series(values)
    return Table.read(cudf.DataFrame({"x": series}))["x"]


NUMBERS = ["Int64", "UInt16", "Int8", "Float32", "boolean", "int64[pyarrow]", "double[pyarrow]"]
VALUES = {dtype: [[1, 0, 1], [1, None, 0], [None, None]] for dtype in NUMBERS}
for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int64"):
    VALUES[f"{kind}[pyarrow]"] = [[0, np.iinfo(kind).max, np.iinfo(kind).min], [1, None]]


@pytest.mark.parametrize(("dtype", "values"), [(dtype, values) for dtype, own in VALUES.items() for values in own])
def test_pandas_nullable_and_arrow_s_numbers_to_their_ends(cudf: ModuleType, dtype: str, values: list) -> None:
    own = pd.array(values, dtype=dtype)
    found, known = column_of(cudf, cudf.Series(own)), as_column(pd.Series(own))
    assert found.kind == known.kind
    assert found.to_arrow().to_pylist() == known.to_arrow().to_pylist() == values
    assert found.values.dtype == known.values.dtype or all(v is None for v in values)


@pytest.mark.parametrize("values", [[], [None, None], ["a", None, "b", "a"]])
def test_text_has_one_type_whatever_is_in_it(cudf: ModuleType, values: list) -> None:
    found = column_of(cudf, cudf.Series(pa.array(values, pa.string())))
    assert found.kind == "category"
    assert found.distinct.type == pa.large_string()
    assert found.to_arrow().to_pylist() == values
    assert found.values.dtype == torch.int32


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("values", [["b", "a", None, "b"], [3, 1, None, 3], [None, None]])
def test_categories_stay_on_the_gpu(cudf: ModuleType, values: list, ordered: bool, monkeypatch: Any) -> None:
    kinds = sorted({v for v in values if v is not None}, reverse=True)
    given_ = pd.Series(pd.Categorical(values, categories=kinds, ordered=ordered))
    known = as_column(given_)
    series = cudf.Series(pa.array(given_))
    monkeypatch.setattr(type(series), "to_arrow", None)  # the rows do not come to the host
    found = column_of(cudf, series)
    monkeypatch.undo()
    if kinds:
        assert (found.kind, found.ordered) == (known.kind, known.ordered)
        assert found.distinct.to_pylist() == known.distinct.to_pylist()
        assert found.values.dtype == known.values.dtype
    assert found.to_arrow().to_pylist() == values


COLUMNS = {
    "whole": as_column([1, None, 3]),
    "plain": as_column(torch.tensor([1, 2, 3], dtype=torch.int32)),
    "floats": as_column([0.5, None, float("inf")]),
    "truth": as_column([True, None, False]),
    "all true": as_column([True, True, True]),
    "times": as_column(pa.array([1, None, 3], pa.timestamp("us"))),
    "zoned": as_column(pa.array([1, None, 3], pa.timestamp("ms", "Europe/Oslo"))),
    "text": as_column(["a", None, "b"]),
    "no text": Column("category", torch.zeros(3, dtype=torch.int32), distinct=pa.array([], pa.large_string())),
    "huge": as_column(pa.array([2**63 + 1, None, 5], pa.uint64())),
    "lists": as_column([[1, 2], None, []]),
    "lists of text": as_column([["a"], [], ["b", None]]),
    "vectors": as_column(torch.arange(6.0).reshape(3, 2)),
    "opaque": as_column(pa.array([{"a": 1}, None, {"a": 2}])),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_attached_and_read_back(cudf: ModuleType, name: str) -> None:
    column = COLUMNS[name]
    frame = cudf.DataFrame({"a": [1, 2, 3]}, index=cudf.DataFrame({"i": [7, 8, 9]}).index)
    new = attach(frame, {"x": column})
    assert list(frame.columns) == ["a"]
    assert list(new.columns) == ["a", "x"]
    found = Table.read(new)["x"]
    assert found.to_arrow().to_pylist() == column.to_arrow().to_pylist()
    assert found.kind == ("list" if column.kind == "vector" else column.kind)
    assert (found.unit, found.zone) == (column.unit, column.zone)
    if column.kind in ("number", "datetime"):
        assert found.values.dtype == column.values.dtype


@given(st.lists(st.one_of(st.none(), st.floats(width=32), st.just(-0.0))))
def test_any_floats_come_back(cudf: ModuleType, values: list) -> None:
    column = as_column(pa.array(values, pa.float64(), from_pandas=True))
    new = attach(cudf.DataFrame({"a": list(range(len(values)))}), {"x": column})
    found = Table.read(new)["x"].values
    assert torch.equal(found.nan_to_num(7.5), column.values.nan_to_num(7.5))


def test_features_of_a_cudf_frame_are_those_of_pandas(cudf: ModuleType) -> None:
    rng = np.random.default_rng(0)
    log = pd.DataFrame({"user": rng.integers(0, 9, 60).astype(str), "time": rng.permutation(60)})
    log = log.assign(price=rng.random(60), y=rng.integers(0, 2, 60))
    log.loc[::7, "price"] = np.nan

    def features() -> FeatureSet:
        lag = Lag("price", by="user", order="time")
        return FeatureSet([CountEncode("user"), TargetEncode("user", "y"), GroupStats("price", by="user"), lag])

    known, step = features().fit_transform(log), features()
    found = step.fit_transform(cudf.from_pandas(log))
    assert isinstance(found, cudf.DataFrame)
    for name in step.outputs:
        own = np.array(found[name].to_arrow().to_pylist(), dtype=float)
        np.testing.assert_allclose(own, known[name].to_numpy(float, na_value=np.nan), rtol=1e-9)
