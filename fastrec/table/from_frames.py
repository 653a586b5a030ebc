"""Frames and files of every supported library as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fastrec._core.optional import library_of
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.table.column import Column
from fastrec.table.from_values import as_column
from fastrec.table.read import check_names, read_file

__all__ = ["column_names", "read_columns"]


def read_columns(
    source: Any, columns: Sequence[str] | None = None, *, types: Mapping[str, pa.DataType] | None = None
) -> dict[str, Column]:
    """Read columns of a file or a frame (see ``Table.read``)."""
    columns = [columns] if isinstance(columns, str) else columns
    file = source if isinstance(source, str | Path) else None
    if file is not None:
        source = read_file(file, columns, types=types)
    if library_of(source) == "polars" and not hasattr(source, "get_column"):
        raise DataError(
            f"a polars {type(source).__name__} is no frame with values", remedy="Give a DataFrame (.collect())"
        )
    names = column_names(source)
    check_names(names, columns, file=file)
    wanted = names if columns is None else list(columns)
    if library_of(source) == "cudf":
        from fastrec.table import cudf

        return cudf.read_columns(source, wanted)
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
    raise DataError(
        f"cannot read a {type(frame).__module__}.{type(frame).__qualname__}",
        remedy="Give a CSV or Parquet path, a frame of pandas, polars, Arrow or cuDF, a dict of arrays, or a Table "
        "(a Dask frame: .compute() it, or write it to Parquet)",
    )
