"""Files and frames of every supported library into columns, and columns back onto the frame they came from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch

from fastrec.backends import library_of
from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.table import UNITS_PER_SECOND, Column, Table, mask_of

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "NaT"]
_WIDE = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64, np.dtype("float16"): np.float32}


def read_columns(
    source: Any, columns: Sequence[str] | None = None, *, types: Mapping[str, pa.DataType] | None = None
) -> dict[str, Column]:
    """Columns of a file or a frame (see ``Table.read``)."""
    if isinstance(source, str | Path):
        return _arrow_columns(read_file(source, columns, types=types), columns, file=source)
    if isinstance(source, Table):
        return {n: source[n] for n in (columns if columns is not None else source.names)}
    if isinstance(source, pa.Table | pa.RecordBatch):
        return _arrow_columns(source, columns)
    if isinstance(source, Mapping):
        _check_names(list(source), columns)
        return {n: as_column(source[n], name=n) for n in (columns if columns is not None else source)}
    library = library_of(source)
    if library == "pandas":
        _check_names(list(source.columns), columns)
        return {n: _pandas_column(source[n], name=n) for n in (columns if columns is not None else source.columns)}
    if library == "polars":
        if not hasattr(source, "get_column"):
            raise DataError("a lazy polars frame has no values yet", remedy="Call .collect() first")
        _check_names(source.columns, columns)
        return {n: as_column(source[n].to_arrow(), name=n) for n in (columns if columns is not None else source.columns)}
    if library == "cudf":
        from fastrec.backends import cudf

        _check_names(list(source.columns), columns)
        return cudf.read_columns(source, columns if columns is not None else list(source.columns))
    raise DataError(
        f"cannot read a {type(source).__module__}.{type(source).__qualname__}",
        remedy="Give a CSV or Parquet path, a frame of pandas, polars, Arrow or cuDF, a dict of arrays, or a Table "
        "(a Dask frame: .compute() it, or write it to Parquet)",
    )


def column_names(frame: Any) -> list[str]:
    """The column names of a frame of any supported library."""
    if isinstance(frame, Table):
        return frame.names
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.schema.names
    return list(frame) if isinstance(frame, Mapping) else list(frame.columns)


def attach(frame: Any, columns: Mapping[str, Column]) -> Any:
    """A frame of the same library with columns added (or replaced); index, order and other columns are untouched.

    Args:
        frame: what the user gave; it is not changed.
        columns: name → column of equal length.
    """
    if isinstance(frame, Table):
        return frame.with_columns(columns)
    if isinstance(frame, pa.RecordBatch):
        return attach(pa.Table.from_batches([frame]), columns)
    if isinstance(frame, pa.Table):
        for name, column in columns.items():
            array = column.to_arrow()
            at = frame.schema.get_field_index(name)
            frame = frame.append_column(name, array) if at < 0 else frame.set_column(at, name, array)
        return frame
    if isinstance(frame, Mapping):
        return {**frame, **{n: c.to_arrow().to_numpy(zero_copy_only=False) for n, c in columns.items()}}
    library = library_of(frame)
    if library == "pandas":
        import pandas as pd

        made = Table(columns).to_pandas() if columns else pd.DataFrame(index=range(len(frame)))
        made.index = frame.index
        kept = frame.drop(columns=[n for n in columns if n in frame.columns])
        return pd.concat([kept, made], axis=1)
    if library == "polars":
        return frame.with_columns(*Table(columns).to_polars().get_columns()) if columns else frame
    if library == "cudf":
        from fastrec.backends import cudf

        return cudf.attach(frame, dict(columns))
    raise DataError(f"cannot add columns to a {library} frame", remedy="Use pandas, polars, Arrow, cuDF or a Table")


def take_rows(frame: Any, rows: torch.Tensor) -> Any:
    """The rows (int64 ``[m]``) of a frame of any supported library, in that order, its index and dtypes kept."""
    if isinstance(frame, Table):
        return frame.take(rows)
    numbers = rows.cpu().numpy()
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.take(pa.array(numbers))
    if isinstance(frame, Mapping):
        return {n: np.asarray(v)[numbers] for n, v in frame.items()}
    return frame[numbers] if library_of(frame) == "polars" else frame.iloc[numbers]


def read_file(
    path: str | Path, columns: Sequence[str] | None = None, *, types: Mapping[str, pa.DataType] | None = None
) -> pa.Table:
    """A CSV or Parquet file, or a folder of Parquet files, as an Arrow table.

    Raises:
        MissingFileError, UnreadableFileError, MissingColumnError: naming the file.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError("there is no such file", file=path, remedy="Check the path")
    if path.is_file() and path.stat().st_size == 0:
        raise UnreadableFileError("the file is empty", file=path, remedy="Fetch or write it again")
    try:
        if path.is_dir() or path.suffix.lower() in (".parquet", ".pq"):
            names = pq.ParquetDataset(path).schema.names
            _check_names(names, columns, file=path)
            return pq.read_table(path, columns=list(columns) if columns is not None else None)
        return _read_csv(path, columns, dict(types or {}))
    except MissingColumnError:
        raise
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise UnreadableFileError(
            f"the file cannot be read ({str(error).splitlines()[0]})",
            file=path,
            remedy="Check that it is whole and of the kind that its name says",
        ) from error


def _read_csv(path: Path, columns: Sequence[str] | None, types: dict[str, pa.DataType]) -> pa.Table:
    with pa_csv.open_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True)) as reader:
        names = reader.schema.names
    _check_names(names, columns, file=path)
    for _ in range(len(names) + 1):  # a column that turns out to hold text after its first block is read as text
        options = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(columns) if columns is not None else None,
            null_values=_MISSING_TEXT,
            strings_can_be_null=True,
        )
        try:
            return pa_csv.read_csv(path, convert_options=options, parse_options=pa_csv.ParseOptions(newlines_in_values=True))
        except pa.ArrowInvalid as error:
            found = re.search(r"CSV column #(\d+)", str(error))
            name = names[int(found.group(1))] if found else None
            if name is None or types.get(name) == pa.string():
                raise
            types[name] = pa.float64() if types.get(name) is None and "to int64" in str(error) else pa.string()
    raise AssertionError("unreachable: every column is text by now")


def _check_names(names: Sequence[str], columns: Sequence[str] | None, *, file: str | Path | None = None) -> None:
    for name in columns or ():
        if name not in names:
            raise MissingColumnError(
                f"there is no such column; there are {', '.join(map(repr, names))}",
                file=file,
                column=name,
                remedy="Check the spelling, or add the column",
            )


def _arrow_columns(
    table: pa.Table | pa.RecordBatch, columns: Sequence[str] | None, *, file: str | Path | None = None
) -> dict[str, Column]:
    _check_names(table.schema.names, columns, file=file)
    return {n: as_column(table.column(n), name=n) for n in (columns if columns is not None else table.schema.names)}


def as_column(values: Any, *, name: str = "") -> Column:
    """A column from a ``Column``, tensor, numpy array, Arrow array, pandas or polars series, or list.

    Args:
        values: ``[n]`` values, or ``[n, d]`` for vectors.
        name: the column's name, for messages.
    """
    if isinstance(values, Column):
        return values if values.name == name or not name else _renamed(values, name)
    if isinstance(values, torch.Tensor):
        return Column("vector" if values.dim() == 2 else "number", values, name=name)
    if isinstance(values, np.ndarray):
        return _numpy_column(values, name=name)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
        if isinstance(values, pa.ChunkedArray):  # older Arrow keeps chunks here
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if isinstance(values, pa.Array):
        return _arrow_column(values, name=name)
    library = library_of(values)
    if library == "pandas":
        return _pandas_column(values, name=name)
    if library == "polars":
        return as_column(values.to_arrow(), name=name)
    if library == "cudf":
        from fastrec.backends import cudf

        return cudf.column_of(values, name=name)
    return _arrow_column(_to_arrow(list(values), name=name), name=name)


def _renamed(column: Column, name: str) -> Column:
    from dataclasses import replace

    return replace(column, name=name)


def _to_arrow(values: Any, *, name: str) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
        kinds = sorted({type(v).__name__ for v in values if v is not None and v == v})
        raise DataError(
            f"holds values of several or unknown types ({', '.join(kinds[:5])})",
            column=name or None,
            remedy="Convert the column to one type, for example with .astype(str)",
        ) from error


def _pandas_column(series: Any, *, name: str) -> Column:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iufbMm":
        return _numpy_column(series.to_numpy(), name=name)
    if getattr(dtype, "tz", None) is not None and dtype.__class__.__name__ == "DatetimeTZDtype":
        naive = _numpy_column(series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), name=name)
        return Column("datetime", naive.values, name=name, missing=naive.missing, unit=naive.unit, zone=str(dtype.tz))
    if dtype.name == "category":
        categories = _arrow_column(_to_arrow(dtype.categories.to_series(), name=name), name=name).to_arrow()
        codes = torch.from_numpy(series.cat.codes.to_numpy().astype(np.int32) + 1)
        return Column("category", codes, name=name, distinct=categories, ordered=bool(dtype.ordered))
    array = _to_arrow(series, name=name)
    return as_column(array, name=name)


def _numpy_column(values: np.ndarray, *, name: str) -> Column:
    if values.ndim == 2:
        return Column("vector", torch.from_numpy(np.ascontiguousarray(values)), name=name)
    kind = values.dtype.kind
    if kind == "M":
        unit = np.datetime_data(values.dtype)[0]
        values = values if unit in UNITS_PER_SECOND else values.astype("datetime64[s]")
        missing = np.isnat(values)
        numbers = np.where(missing, 0, values.view("int64"))
        mask = torch.from_numpy(missing) if missing.any() else None
        return Column("datetime", torch.from_numpy(numbers), name=name, missing=mask, unit=np.datetime_data(values.dtype)[0])
    if kind == "m":
        seconds = values / np.timedelta64(1, "s")
        return Column("number", torch.from_numpy(seconds), name=name)
    if values.dtype == np.uint64:
        return _arrow_column(pa.array(values), name=name)
    if kind not in "iufb" or values.dtype.itemsize > 8:
        return as_column(_to_arrow(values, name=name), name=name)
    values = values.astype(_WIDE.get(values.dtype, values.dtype.newbyteorder("=")), copy=False)
    return Column("number", torch.from_numpy(_writable_view(np.ascontiguousarray(values))), name=name)


class _WritableView:
    """Offers an array's memory without its read-only mark: torch warns of that mark, and nothing here writes to its input."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values  # keeps the memory alive
        self.__array_interface__ = {**values.__array_interface__, "data": (values.__array_interface__["data"][0], False)}


def _writable_view(values: np.ndarray) -> np.ndarray:
    return values if values.flags.writeable or values.size == 0 else np.asarray(_WritableView(values))


def _arrow_column(array: pa.Array, *, name: str) -> Column:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dictionary_column(array, name=name)
    if str(kind) == "string_view":
        array, kind = array.cast(pa.large_string()), pa.large_string()
    if pa.types.is_null(kind):
        return Column("number", torch.full((len(array),), torch.nan, dtype=torch.float64), name=name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind) or _is_huge(array):
        return _encode(array, name=name)
    if pa.types.is_uint64(kind):
        array, kind = array.cast(pa.int64()), pa.int64()
    if pa.types.is_floating(kind):
        values = (array.cast(pa.float32()) if pa.types.is_float16(kind) else array).to_numpy(zero_copy_only=False)
        return Column("number", torch.from_numpy(_writable_view(values)), name=name)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        filled = array.fill_null(False if pa.types.is_boolean(kind) else 0) if array.null_count else array
        column = _numpy_column(filled.to_numpy(zero_copy_only=False), name=name)
        return Column("number", column.values, name=name, missing=mask_of(array))
    if pa.types.is_date(kind):
        array, kind = array.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms")), pa.timestamp("s" if pa.types.is_date32(kind) else "ms")
    if pa.types.is_timestamp(kind):
        numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return Column("datetime", torch.from_numpy(_writable_view(numbers)), name=name, missing=mask_of(array), unit=kind.unit, zone=kind.tz)
    if pa.types.is_duration(kind):
        seconds = array.cast(pa.int64()).cast(pa.float64()).to_numpy(zero_copy_only=False) / UNITS_PER_SECOND[kind.unit]
        return Column("number", torch.from_numpy(seconds), name=name)
    if pa.types.is_fixed_size_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        flat = array.fill_null([0] * kind.list_size) if array.null_count else array
        values = flat.flatten().to_numpy(zero_copy_only=False).reshape(len(array), kind.list_size)
        return Column("vector", torch.from_numpy(_writable_view(values)), name=name, missing=mask_of(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_column(array, name=name)
    return Column("opaque", array, name=name)


def _is_huge(array: pa.Array) -> bool:
    return pa.types.is_uint64(array.type) and len(array) > array.null_count and pc.max(array).as_py() >= 1 << 63


def _encode(array: pa.Array, *, name: str) -> Column:
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) + 1
    distinct = encoded.dictionary
    return Column("category", torch.from_numpy(codes), name=name, distinct=distinct.cast(pa.large_string()) if pa.types.is_string(distinct.type) else distinct)


def _dictionary_column(array: pa.DictionaryArray, *, name: str) -> Column:
    values = array.dictionary
    if values.null_count or pc.count_distinct(values).as_py() < len(values):
        return _arrow_column(array.cast(values.type), name=name)
    codes = array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) + 1
    distinct = values.cast(pa.large_string()) if pa.types.is_string(values.type) or str(values.type) == "string_view" else values
    return Column("category", torch.from_numpy(codes), name=name, distinct=distinct, ordered=True if array.type.ordered else None)


def _list_column(array: pa.Array, *, name: str) -> Column:
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Column("list", torch.from_numpy(offsets), name=name, missing=mask_of(array), elements=as_column(array.flatten(), name=name))
