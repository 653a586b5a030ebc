"""Columns from frames and values of every supported library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.imports import library_of
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.table.column import Column, _plain_zero, _shared, _vector_column, arrow_column
from fastrec.table.keys import UNITS_PER_SECOND, Coded, Keys
from fastrec.table.read import check_names, read_file

_WIDE_TENSORS = {
    torch.uint16: torch.int32, torch.uint32: torch.int64, torch.float16: torch.float32, torch.bfloat16: torch.float32,
}  # fmt: skip


def as_column(values: Any, *, name: str = "") -> Column:
    """Convert a ``Column``, tensor, numpy array, Arrow array, pandas, polars or cuDF series, or list to a column.

    Args:
        values: ``[n]`` values, or ``[n, d]`` for vectors. Memory is shared where possible and never written to.
        name: the column's name, for messages.

    Raises:
        DataError: the values have several types, or none that a column can hold.
    """
    if isinstance(values, Column):
        if values.name == name or not name:
            return values
        renamed = replace(values, name=name)
        if "coded" in values._cache:  # coding costs a sort: the codes stay
            coded = values._cache["coded"]
            renamed._cache["coded"] = Coded(coded.codes, Keys(coded.keys.columns, (name,)))
        return renamed
    if isinstance(values, torch.Tensor):
        if values.dim() not in (1, 2):
            raise _refuse_shape(values.dim(), name=name)
        values = values.detach()
        if values.dtype == torch.uint64 or values.is_complex():
            return _numpy_column(values.cpu().numpy(), name=name).to(values.device)
        values = values.to(_WIDE_TENSORS.get(values.dtype, values.dtype))
        return Column("vector" if values.dim() == 2 else "number", values, name=name)
    if isinstance(values, np.ndarray):
        return _numpy_column(values, name=name)
    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_string(values.type) and values.nbytes >= 1 << 31:
            values = values.cast(pa.large_string())  # 32-bit offsets do not reach the end of one chunk
        chunks = values.chunks if values.num_chunks < 2 else values.unify_dictionaries().chunks
        values = pa.concat_arrays(chunks) if len(chunks) > 1 else chunks[0] if chunks else pa.array([], values.type)
    if isinstance(values, pa.Array):
        return arrow_column(values, name=name)
    library = library_of(values)
    if library in ("pandas", "polars"):
        return (_pandas_column if library == "pandas" else _polars_column)(values, name=name)
    if library == "cudf":
        from fastrec.table import cudf

        return cudf.column_of(values, name=name)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        problem = f"holds one {type(values).__name__} instead of a value for every row"
        raise DataError(problem, column=name or None, remedy="Give a list or an array")
    return arrow_column(_to_arrow(list(values), name=name), name=name)


def _refuse_shape(dims: int, *, name: str) -> DataError:
    remedy = "Give one value, or one vector, for every row"
    return DataError(f"holds an array of {dims} dimensions", column=name or None, remedy=remedy)


def _numpy_column(values: np.ndarray, *, name: str) -> Column:
    if values.ndim not in (1, 2):
        raise _refuse_shape(values.ndim, name=name)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        if values.ndim == 2:
            raise DataError("holds masked vectors", column=name or None, remedy="Fill their masked elements first")
        array = pa.array(np.ma.getdata(values), mask=np.ma.getmaskarray(values), from_pandas=True)
        return arrow_column(array, name=name)
    values = np.asarray(values)
    if values.ndim == 2:
        return _vector_column(values, name=name)
    kind = values.dtype.kind
    if kind == "M":
        unit, step = np.datetime_data(values.dtype)
        if unit not in UNITS_PER_SECOND or step != 1:
            unit = unit if unit in UNITS_PER_SECOND else "ns" if unit in ("ps", "fs", "as") else "s"
            values = values.astype(f"datetime64[{unit}]")
        gone = np.isnat(values)
        numbers, missing = np.where(gone, 0, values.view("int64")), torch.from_numpy(gone) if gone.any() else None
        return Column("datetime", torch.from_numpy(numbers), name=name, missing=missing, unit=unit)
    if kind == "m":
        return Column("number", torch.from_numpy(values / np.timedelta64(1, "s")), name=name)
    if values.dtype == np.uint64:
        return arrow_column(pa.array(values), name=name)
    if kind == "U":  # Arrow would cut numpy's text at a NUL
        return arrow_column(pa.array(values.astype(object)), name=name)
    if kind not in "iufb" or values.dtype.itemsize > 8:
        return as_column(_to_arrow(values, name=name), name=name)
    return Column("number", _shared(values), name=name)


def _to_arrow(values: Any, *, name: str) -> pa.Array:
    try:
        array = pa.array(values, from_pandas=True)
        objects = str(getattr(values, "dtype", "object")) == "object" and pa.types.is_floating(array.type)
        # Floats, and so Arrow, would round some integers.
        if not (objects and any(isinstance(v, int) and abs(v) > 1 << 53 and int(float(v)) != v for v in values)):
            return array
        problem = None
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        problem = error
    kinds = [None if _is_missing(v) else type(v).__name__ for v in values]
    found = sorted({k for k in kinds if k})
    if found == ["int"] and all(k is None or 0 <= v < 1 << 64 for k, v in zip(kinds, values)):
        # Arrow looks for int64 only.
        return pa.array([None if k is None else v for k, v in zip(kinds, values)], pa.uint64())
    first = next((k for k in kinds if k), None)
    odd = next((i for i, k in enumerate(kinds) if k and (k != first or len(found) == 1)), None)
    said = f"holds values of several or unknown types ({', '.join(found[:5])})"
    remedy = "Convert the column to one type, for example with .astype(str)"
    raise DataError(said, column=name or None, row=odd, remedy=remedy) from problem


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _pandas_column(values: Any, *, name: str) -> Column:
    import pandas as pd

    if isinstance(values, pd.DataFrame):
        raise DataError("holds a whole frame", column=name or None, remedy="Give one column of it")
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    dtype = series.dtype
    if isinstance(dtype, pd.SparseDtype):
        series = series.sparse.to_dense()
        dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iufbMm":
        return _numpy_column(series.to_numpy(), name=name)
    if isinstance(dtype, pd.DatetimeTZDtype):
        naive = _numpy_column(series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), name=name)
        try:
            kind = pa.array(series.iloc[:0]).type
        except pa.ArrowException as error:  # a fixed distance from UTC that is not of whole minutes
            problem = f"is in the time zone {dtype.tz}, which Arrow does not know ({error})"
            remedy = "Convert it first, for example with .dt.tz_convert('UTC')"
            raise DataError(problem, column=name or None, remedy=remedy) from error
        return replace(naive, zone=kind.tz)  # Arrow's name of the zone, which it can read back
    if isinstance(dtype, pd.CategoricalDtype):
        values = series.cat.categories
        column = _pandas_column(values.to_series(), name=name)
        if column.kind not in ("number", "datetime", "category"):  # intervals of pd.cut, periods: their text is the key
            column = _pandas_column(values.astype(str).to_series(), name=name)
        codes, ordered = torch.from_numpy(series.cat.codes.to_numpy().astype(np.int32) + 1), bool(series.cat.ordered)
        return Column("category", codes, name=name, distinct=_plain_zero(column.to_arrow()), ordered=ordered)
    if isinstance(dtype, pd.PeriodDtype):  # the moment that it begins
        return _pandas_column(series.dt.to_timestamp(), name=name)
    if isinstance(dtype, pd.IntervalDtype):
        return as_column(_to_arrow(series.astype(object).map(str, na_action="ignore"), name=name), name=name)
    return as_column(_to_arrow(series, name=name), name=name)


def _polars_column(series: Any, *, name: str) -> Column:
    kind = type(series.dtype).__name__ if not isinstance(series.dtype, type) else series.dtype.__name__
    if kind == "Object":  # polars hands out addresses for these, not values
        raise DataError("holds Python objects", column=name or None, remedy="Convert the column to one type first")
    try:
        column = as_column(series.to_arrow(), name=name)
    except pa.ArrowException as error:
        problem = f"holds values of type {series.dtype}, which Arrow does not know"
        raise DataError(problem, column=name or None, remedy="Cast it first") from error
    return replace(column, ordered=False) if kind == "Enum" and column.kind == "category" else column


def read_columns(
    source: Any, columns: Sequence[str] | None = None, *, types: Mapping[str, pa.DataType] | None = None
) -> dict[str, Column]:
    """Read columns of a file or a frame (see ``Table.read``)."""
    columns = [columns] if isinstance(columns, str) else columns
    file = source if isinstance(source, str | Path) else None
    if file is not None:
        source = read_file(file, columns, types=types)
    if library_of(source) == "polars" and not hasattr(source, "get_column"):
        remedy = "Give a DataFrame (.collect())"
        raise DataError(f"a polars {type(source).__name__} is no frame with values", remedy=remedy)
    names = column_names(source)
    check_names(names, columns, file=file)
    wanted = names if columns is None else list(columns)
    # Text is coded on one thread a column; frames of other libraries are left to the caller's own thread.
    rows = len(source) if isinstance(source, pa.Table | pa.RecordBatch) else 0
    return dict(zip(wanted, run_parallel(lambda n: as_column(source[n], name=n), wanted, rows=rows), strict=True))


def column_names(frame: Any) -> list[str]:
    """List the column names of a frame of any supported library.

    Raises:
        DataError: it is no frame.
    """
    if library_of(frame) == "fastrec":
        return frame.names
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.schema.names
    if isinstance(frame, Mapping):
        return list(frame)
    if library_of(frame) in ("pandas", "polars", "cudf") and hasattr(frame, "columns"):
        return list(frame.columns)
    problem = f"cannot read a {type(frame).__module__}.{type(frame).__qualname__}"
    remedy = "Give a CSV or Parquet path, a frame of pandas, polars, Arrow or cuDF, a dict of arrays, or a Table "
    remedy += "(a Dask frame: .compute() it, or write it to Parquet)"
    raise DataError(problem, remedy=remedy)
