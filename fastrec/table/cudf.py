"""cuDF columns as tensors and back, through DLPack, without a copy to the host."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from fastrec._core.imports import require
from fastrec.table.column import Column, arrow_column

_HOW = "pip install 'fastrec-tabular[gpu]' on Linux with an NVIDIA GPU"


def column_of(series: Any, *, name: str) -> Column:
    """Convert a cuDF series: numbers and times by DLPack, text by ``factorize`` on the GPU, the rest by Arrow."""
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if hasattr(dtype, "numpy_dtype") and kind in "iufb":  # pandas' nullable and Arrow's numbers: CuPy has no such type
        series = series.astype(dtype.numpy_dtype)
        dtype = series.dtype
    if str(dtype) == "category":  # its categories keep their order
        categories = series.cat.categories.to_arrow()
        made = arrow_column(pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), categories), name=name)
        if made.kind != "category":  # categories that are no key: intervals, NaN
            return arrow_column(series.to_arrow(), name=name).to(device())
        codes = torch.from_dlpack(series.cat.codes.astype("int32").fillna(-1).to_cupy()) + 1
        return made.changed(values=codes, ordered=bool(series.cat.ordered))
    if str(dtype).startswith(("list", "struct", "decimal", "interval")) or kind == "m" or str(dtype) == "uint64":
        return arrow_column(series.to_arrow(), name=name).to(device())
    if str(dtype) in ("object", "str", "string") or kind in "OSU":
        codes, values = series.factorize()
        distinct = values.to_arrow() if hasattr(values, "to_arrow") else pa.array(values)
        if not pa.types.is_large_string(distinct.type):  # no type at all where there is no value
            distinct = distinct.cast(pa.large_string())
        tensor = torch.from_dlpack(codes).to(torch.int32) + 1  # factorize says -1 for missing
        return Column("category", tensor, name=name, distinct=distinct)
    if kind == "f":
        return Column("number", torch.from_dlpack(series.fillna(float("nan")).to_cupy()), name=name)
    missing = torch.from_dlpack(series.isnull().to_cupy().view("uint8")).to(torch.bool) if series.has_nulls else None
    if kind == "M":
        unit = str(dtype).split("[")[1].rstrip("]").split(",")[0]
        zone = str(series.dt.tz) if getattr(series.dt, "tz", None) is not None else None
        values = torch.from_dlpack(series.astype("int64").fillna(0).to_cupy())
        return Column("datetime", values, name=name, missing=missing, unit=unit, zone=zone)
    if kind == "b":
        values = torch.from_dlpack(series.fillna(False).astype("uint8").to_cupy()).to(torch.bool)
        return Column("number", values, name=name, missing=missing)
    if kind == "u" and series.dtype.itemsize > 1:  # types that few kernels take
        series = series.astype("int64" if series.dtype.itemsize > 2 else "int32")
    return Column("number", torch.from_dlpack(series.fillna(0).to_cupy()), name=name, missing=missing)


def device() -> torch.device:
    """Return the device that cuDF's frames are on."""
    return torch.from_dlpack(require("cupy", "CuPy", _HOW).zeros(1, "uint8")).device


def attach(frame: Any, columns: dict[str, Column]) -> Any:
    """Add columns to a cuDF frame; its index and other columns are untouched."""
    new = frame.copy(deep=False)
    for name, column in columns.items():
        series = _series_of(column)
        series.index = frame.index
        new[name] = series
    return new


def _series_of(column: Column) -> Any:
    """Convert a column to a cuDF series; distinct values, lists, vectors and time zones come from the host."""
    series = require("cudf", "cuDF", _HOW).Series
    if column.kind == "category":
        return series.from_arrow(pa.concat_arrays([pa.nulls(1, column.distinct.type), column.distinct])).take(
            _array(column.values)
        )
    if column.kind not in ("number", "datetime") or column.zone is not None:
        array = column.to_arrow()
        if column.kind in ("list", "vector"):  # the one type of lists that cuDF takes
            array = array.cast(pa.list_(array.type.value_type))
        return series.from_arrow(array)
    made = series(_array(column.values))
    if column.values.dtype == torch.bool:
        made = made.astype("bool")
    made = made if column.unit is None else made.astype(f"datetime64[{column.unit}]")
    return made if column.missing is None else made.where(series(_array(~column.missing)).astype("bool"))


def take(frame: Any, rows: torch.Tensor) -> Any:
    """Take the rows (int64 ``[m]``) of a cuDF frame."""
    return frame.take(_array(rows))


def _array(values: torch.Tensor) -> Any:
    """Share a tensor with CuPy: truth values as bytes."""
    values = values.view(torch.uint8) if values.dtype == torch.bool else values
    return require("cupy", "CuPy", _HOW).from_dlpack(values.contiguous().to(device()))
