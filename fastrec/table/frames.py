"""Frames of every supported library into columns, and columns back onto the frame they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.imports import library_of
from fastrec.errors import DataError
from fastrec.table.column import Column
from fastrec.table.convert import column_names
from fastrec.table.read import check_names
from fastrec.table.table import Table


def attach(frame: Any, columns: Mapping[str, Column]) -> Any:
    """Add (or replace) columns of a frame; index, order and other columns are untouched.

    Args:
        frame: what the user gave; it is not changed.
        columns: name → column of equal length.

    Returns:
        The frame with the columns. A replaced column keeps its place, a new one comes last.

    Raises:
        DataError: a column has not one value for every row.
    """
    # A frame without columns takes any number of values; a pandas index counts rows by itself.
    empty, rows = not column_names(frame), row_count(frame)
    wrong = [n for n, c in columns.items() if len(c) != rows] if rows or not empty else []
    if wrong:
        problem = f"has {len(columns[wrong[0]])} values, but the frame has {rows} rows"
        raise DataError(problem, column=wrong[0], remedy="Give one value for every row")
    if isinstance(frame, Table):
        return frame.with_columns(columns)
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        if not frame.num_columns:
            return Table(columns).to_arrow()
        for name, column in columns.items():
            array = column.to_arrow()
            at = frame.schema.get_field_index(name)
            frame = frame.append_column(name, array) if at < 0 else frame.set_column(at, name, array)
        return frame
    if isinstance(frame, Mapping):
        found = dict(frame)
        for name, column in columns.items():
            array = column.to_arrow()
            whole = array.null_count and pa.types.is_integer(array.type)  # floats would round some
            values = np.array(array.to_pylist(), dtype=object) if whole else array.to_numpy(zero_copy_only=False)
            found[name] = values
        return found
    library = library_of(frame)
    if library == "pandas":
        return _attach_pandas(frame, columns)
    if library == "polars":
        made = Table(columns).to_polars()
        return frame.with_columns(*made.get_columns()) if frame.width else made
    if library == "cudf":
        from fastrec.table import cudf

        return cudf.attach(frame, dict(columns))
    raise DataError(f"cannot add columns to a {library} frame", remedy="Use pandas, polars, Arrow, cuDF or a Table")


def row_count(frame: Any) -> int:
    """Count the rows of a frame of any supported library."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.num_rows
    return len(next(iter(frame.values()), ())) if isinstance(frame, Mapping) else len(frame)


def _attach_pandas(frame: Any, columns: Mapping[str, Column]) -> Any:
    import pandas as pd

    if not columns:
        return frame.copy(deep=False)
    made = Table(columns).to_pandas()
    made.index = frame.index if len(frame.index) or not len(made) else made.index
    result = frame.copy(deep=False)
    for name in [n for n in columns if n in frame.columns]:
        result[name] = made.pop(name)
    if not made.shape[1]:
        return result
    if not result.shape[1]:
        return made
    made.columns = pd.Index(made.columns, name=frame.columns.name) if frame.columns.nlevels == 1 else made.columns
    return pd.concat([result, made], axis=1)


def select_columns(frame: Any, names: Sequence[str]) -> Any:
    """Select columns of a frame of any supported library; its index stays, even without a column.

    Raises:
        MissingColumnError: one of them is not there.
    """
    names = list(names)
    check_names(column_names(frame), names)
    if isinstance(frame, Mapping):
        return {n: frame[n] for n in names}
    if isinstance(frame, Table | pa.Table | pa.RecordBatch) or library_of(frame) == "polars":
        return frame.select(names)
    return frame[names]


def to_library(frame: Any, library: str | None) -> Any:
    """Convert the frame to ``'pandas'`` or ``'polars'``; None, or its own library: unchanged."""
    if library is None or library_of(frame) == library:
        return frame
    table = Table.read(frame)
    return table.to_pandas() if library == "pandas" else table.to_polars()


def take_rows(frame: Any, rows: torch.Tensor) -> Any:
    """Take the rows (int64 ``[m]``) of a frame of any supported library, with index and dtypes."""
    if isinstance(frame, Table):
        return frame.take(rows)
    if library_of(frame) == "cudf":
        from fastrec.table import cudf

        return cudf.take(frame, rows)
    numbers = rows.cpu().numpy()
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.take(pa.array(numbers))
    if isinstance(frame, Mapping):
        return {n: _take_values(v, rows, numbers) for n, v in frame.items()}
    return frame[numbers] if library_of(frame) == "polars" else frame.iloc[numbers]


def _take_values(values: Any, rows: torch.Tensor, numbers: np.ndarray) -> Any:
    if isinstance(values, torch.Tensor):
        return values[rows.to(values.device)]
    if isinstance(values, np.ndarray):
        return values[numbers]
    if isinstance(values, Column):
        return values.take(rows)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.take(pa.array(numbers))
    library = library_of(values)
    if library in ("pandas", "cudf"):
        return values.iloc[numbers] if hasattr(values, "iloc") else values[numbers]
    return values[numbers] if library == "polars" else [values[i] for i in numbers.tolist()]
