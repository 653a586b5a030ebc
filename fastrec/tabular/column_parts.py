"""Columns as they are taken in: read one at a time and in parts; training rows that know only their own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.device import resolve_device
from fastrec._core.optional import library_of
from fastrec.table import Coded, Column, Keys, Table, as_column

_PLAIN = frozenset({"int8", "uint8", "int16", "int32", "int64", "float32", "float64"})

Rows = slice | torch.Tensor


class FrameColumns:
    """Named columns of a frame, each read when it is asked for and not kept: a copy lives as long as its reader.

    Args:
        order: the frame's rows that count, int64 ``[m]``; None: all.
        device: where the columns go; None: the GPU where any is there already, else as ``FASTREC_DEVICE`` says.
    """

    def __init__(
        self,
        frame: Any,
        names: Sequence[str],
        size: int,
        *,
        ready: Mapping[str, Column] | None = None,
        order: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.frame, self.ready, self.size, self.order = frame, dict(ready or {}), size, order
        self.names = list(dict.fromkeys([*names, *self.ready]))
        self._known = frozenset(self.names)
        self._places: np.ndarray | None = None
        self._ascending: dict[int, Rows] = {}
        self.device = _device_of(frame, self.names) if device is None else device

    @classmethod
    def of(cls, table: Table | FrameColumns) -> FrameColumns:
        """Wrap a table's columns."""
        return table if isinstance(table, FrameColumns) else cls(table, table.names, len(table))

    def __len__(self) -> int:
        return self.size if self.order is None else len(self.order)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Column:
        column = self.raw(name)
        if self.order is None:
            return column
        by_row = column.kind in ("number", "datetime", "category")
        return rows_of(column, self.order) if by_row else column.take(self.order.to(self.device))

    def raw(self, name: str) -> Column:
        """Return a column with all of the frame's rows, in the frame's order."""
        if name in self.ready:
            return self.ready[name]
        if isinstance(self.frame, Table):
            return self.frame[name]
        if library_of(self.frame) == "cudf":
            from fastrec.table import cudf

            return cudf.read_columns(self.frame, [name])[name]
        return as_column(self.frame[name], name=name).to(self.device)

    def shares(self, name: str) -> bool:
        """Return whether reading a column of numbers makes no copy, so that holding it is free."""
        if name in self.ready or isinstance(self.frame, Table):
            return True
        return self.device.type == "cpu" and _is_plain(self.frame[name])

    def rows(self, start: int, stop: int) -> Rows:
        """Return the places of rows ``start`` up to ``stop`` in the frame."""
        return slice(start, stop) if self.order is None else self.order[start:stop]

    @property
    def places(self) -> np.ndarray | None:
        """The place of each of the frame's rows among those that count, int64 ``[size]``; their number: it does not
        count.

        None where they are all rows as they stand, or where one counts twice.
        """
        if self.order is None:
            return None
        if self._places is None:
            order, n = self.order.cpu().numpy(), len(self.order)
            places = np.full(self.size, n, dtype=np.int64)
            places[order] = np.arange(n)
            self._places = places if np.count_nonzero(places < n) == n else places[:0]
        return self._places if len(self._places) == self.size else None

    def ascending(self, stop: int) -> Rows:
        """Return the places of the first ``stop`` rows in the frame, from front to back if no row counts twice.

        What the order does not change is read in this one: memory is several times as fast then.
        """
        if self.order is None:
            return slice(0, stop)
        if stop not in self._ascending:
            places = self.places
            found = self.order[:stop] if places is None else torch.from_numpy(np.flatnonzero(places < stop))
            self._ascending[stop] = found
        return self._ascending[stop]

    def take(self, rows: torch.Tensor) -> FrameColumns:
        """Return the same columns of the rows at ``rows`` (int64 ``[m]``)."""
        order = rows if self.order is None else self.order[rows]
        return FrameColumns(self.frame, self.names, self.size, ready=self.ready, order=order, device=self.device)

    def as_they_stand(self) -> FrameColumns:
        """Return the columns in the frame's order, without a gather, if each of its rows counts once; else these.

        The rows are others then: only what does not hang on their order may be asked of them.
        """
        if self.device.type != "cpu" or self.places is None or len(self.order) < self.size:
            return self
        return FrameColumns(self.frame, self.names, self.size, ready=self.ready, device=self.device)

    def coded(self, names: Sequence[str]) -> Coded:
        """Encode several columns together as a key (see ``Table.coded``)."""
        return Table({n: self[n] for n in names}).coded(names)


def _device_of(frame: Any, names: Sequence[str]) -> torch.device:
    if isinstance(frame, Table):
        return frame.device
    if library_of(frame) == "cudf":
        return torch.device("cuda", torch.cuda.current_device())
    held = [frame[n] for n in names if n in frame] if isinstance(frame, Mapping) else []
    held = [v.values if isinstance(v, Column) else v for v in held]
    return next((v.device for v in held if isinstance(v, torch.Tensor) and v.is_cuda), resolve_device(None))


def _is_plain(values: Any) -> bool:
    """Return whether values are numbers in one piece, none missing, of a type that tensors have."""
    if isinstance(values, torch.Tensor | Column):
        return True
    if library_of(values) == "pandas":
        values = values.to_numpy() if isinstance(values.dtype, np.dtype) else None
    if isinstance(values, np.ndarray):
        return values.dtype.name in _PLAIN and values.dtype.isnative and values.flags.c_contiguous
    if library_of(values) == "polars":
        return str(values.dtype).lower() in _PLAIN and values.n_chunks() == 1 and not values.null_count()
    if isinstance(values, pa.ChunkedArray):
        numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        plain = numeric and np.dtype(values.type.to_pandas_dtype()).name in _PLAIN
        return plain and values.num_chunks == 1 and not values.null_count
    return False


def rows_of(column: Column, rows: Rows) -> Column:
    """Return rows of a number, time or category column, sharing memory where they are a slice."""
    missing = None if column.missing is None else take_values(column.missing, rows)
    return replace(column, values=take_values(column.values, rows), missing=missing)


def take_values(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return rows of a tensor, sharing memory where they are a slice."""
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows.to(values.device))


def plain_numbers(column: Column) -> np.ndarray | None:
    """Return a column's numbers if they are an unmasked array on the host, else None."""
    return column.values.numpy() if column.kind == "number" and column.missing is None else None


def numbers_of(column: Column, rows: Rows) -> torch.Tensor:
    """Return rows of a column as float64, NaN where missing."""
    if column.kind == "number" and column.missing is None:
        return take_values(column.values, rows).to(torch.float64)
    if column.kind in ("number", "datetime"):
        return rows_of(column, rows).number()
    return take_values(as_number(column).values, rows)


def as_number(column: Column) -> Column:
    """Return a category of decimals as a column of their values; numbers and times as they are."""
    return column if column.kind in ("number", "datetime") else Column("number", column.number(), name=column.name)


def coded_of(column: Column) -> Coded:
    """Encode a column as a key for lookups; its keys may hold values that do not occur.

    Whole numbers in a narrow range are their own codes: nothing is hashed. A category's codes stay as they are, int32.
    """
    if column.kind == "category":
        return Coded(column.values, Keys((column.distinct,), (column.name,)))
    whole = column.kind == "number" and not column.values.is_floating_point() and column.values.dtype != torch.bool
    if not whole or column.missing is not None or len(column) < 4096 or "coded" in column._cache:
        return column.coded()
    low, high = (int(v) for v in torch.aminmax(column.values))
    if high - low >= len(column) // 4:
        return column.coded()
    dtype = pa.from_numpy_dtype(str(column.values.dtype).removeprefix("torch."))
    keys = pa.array(np.arange(low, high + 1), dtype)
    return Coded(column.values.long() - (low - 1), Keys((keys,), (column.name,)))


def training_part(column: Column, coded: Coded, rows: int) -> Column:
    """Return the first ``rows`` rows of a coded column as a category with these rows' values only."""
    codes, keys = coded.codes[:rows], coded.keys.columns[0]
    if column.ordered is not None:  # a categorical keeps its categories, as in fastai
        return Column("category", codes, name=column.name, distinct=keys, ordered=column.ordered)
    used = torch.bincount(codes, minlength=coded.size)[1:] > 0
    if not bool(used.all()):
        table = torch.zeros(coded.size, dtype=torch.int64, device=codes.device)
        table[1:] = torch.cumsum(used, 0) * used
        codes, keys = table[codes], keys.filter(pa.array(used.cpu().numpy()))
    part = Column("category", codes, name=column.name, distinct=keys)
    part._cache["coded"] = Coded(codes, Keys((keys,), (column.name,)))
    return part
