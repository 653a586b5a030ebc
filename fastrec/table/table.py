"""``Table``: named columns of equal length as tensors on one device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import pyarrow as pa
import torch

from fastrec._core.device import DeviceLike, on_host, resolve_device
from fastrec._core.imports import require
from fastrec.errors import DataError, refuse_rows
from fastrec.table.column import Column
from fastrec.table.convert import as_column, read_columns
from fastrec.table.keys import Coded, Keys, align_types, join_coded
from fastrec.table.read import check_names


@dataclass(eq=False)
class _Remembered:
    """A cached result: its columns, whether it is complete, and its value."""

    names: frozenset[str]
    made: bool = False
    value: Any = None
    lock: RLock = field(default_factory=RLock)


class Table:
    """Ordered named columns of equal length on one device.

    Args:
        columns: name → ``Column``, tensor, numpy array, Arrow array or list.
        device: where the tensors go; None: where they are.
    """

    def __init__(self, columns: Mapping[str, Any], *, device: DeviceLike = None) -> None:
        self._columns: dict[str, Column] = {n: as_column(c, name=n) for n, c in columns.items()}
        if device is not None:
            self._columns = {n: c.to(device) for n, c in self._columns.items()}
        self._memory: dict[Hashable, _Remembered] = {}
        self._lock = RLock()
        sizes = {n: len(c) for n, c in self._columns.items()}
        if len(set(sizes.values())) > 1:
            raise DataError(f"columns of unequal length: {sizes}", remedy="Give every column the same number of rows")

    @classmethod
    def read(
        cls,
        source: Any,
        columns: Sequence[str] | None = None,
        *,
        device: DeviceLike = None,
        types: Mapping[str, pa.DataType] | None = None,
    ) -> Table:
        """Read a file or a frame.

        Args:
            source: a CSV or Parquet path, a folder of Parquet files, or a frame of pandas, polars, Arrow, cuDF, a dict,
                a Table.
            columns: the columns to read, in this order; None: all.
            device: where the tensors go; None: ``FASTREC_DEVICE``, else the CPU (a cuDF frame stays on its GPU).
            types: Arrow types to read columns of a CSV as.

        Raises:
            MissingFileError, UnreadableFileError, MissingColumnError, DataError: naming file, column and row.
        """
        found = read_columns(source, columns, types=types)
        if device is None and isinstance(source, Table):
            return cls(found)
        on_gpu = [c.values.device for c in found.values() if c.kind != "opaque" and not on_host(c.values)]
        if device is None and on_gpu:
            return cls(found, device=on_gpu[0])
        return cls(found, device=resolve_device(device))

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return list(self._columns)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return next((c.values.device for c in self._columns.values() if c.kind != "opaque"), torch.device("cpu"))

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self._columns,)  # locks, and what is remembered, stay in this process

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            check_names(self.names, [name])
        return self._columns[name]

    def select(self, names: Iterable[str]) -> Table:
        """Return the table with these columns only, in this order."""
        return self._like({n: self[n] for n in names})

    def drop(self, names: Iterable[str]) -> Table:
        """Return the table without these columns."""
        dropped = set(names)
        return self._like({n: c for n, c in self._columns.items() if n not in dropped})

    def rename(self, names: Mapping[str, str]) -> Table:
        """Rename columns (old name → new name).

        Raises:
            DataError: two columns would have one name.
        """
        renamed = {names.get(n, n): c for n, c in self._columns.items()}
        if len(renamed) < len(self._columns):
            new = [names.get(n, n) for n in self._columns]
            twice = next(n for i, n in enumerate(new) if n in new[:i])
            raise DataError("two columns would have this name", column=twice, remedy="Choose another name, or drop one")
        return Table(renamed)

    def with_columns(self, columns: Mapping[str, Any]) -> Table:
        """Add columns, or replace those of the same name (scalars are not broadcast)."""
        new = Table({**self._columns, **columns}, device=self.device if self._columns else None)
        new._memory = {k: kept for k, kept in list(self._memory.items()) if not kept.names & set(columns)}
        return new

    def take(self, rows: torch.Tensor) -> Table:
        """Return the rows at ``rows``: int64 numbers ``[m]`` in any order, or a bool mask ``[n]``."""
        rows = rows.to(self.device)
        if rows.dtype == torch.bool:
            if len(rows) != len(self):
                remedy = "Give one per row"
                raise DataError(f"a mask of {len(rows)} rows was given for a table of {len(self)}", remedy=remedy)
            rows = rows.nonzero().squeeze(1)
        return Table({n: c.take(rows) for n, c in self._columns.items()})

    def slice(self, start: int, stop: int) -> Table:
        """Return rows ``start`` up to ``stop``, which share the table's memory.

        Raises:
            DataError: not ``0 <= start <= stop <= rows``.
        """
        if not 0 <= start <= stop <= len(self):
            remedy = "Give 0 <= start <= stop <= rows"
            raise DataError(f"rows {start} up to {stop} of a table of {len(self)} rows", remedy=remedy)
        return Table({n: c.slice(start, stop) for n, c in self._columns.items()})

    def to(self, device: DeviceLike) -> Table:
        """Return the table on another device."""
        return Table(self._columns, device=device)

    def coded(self, names: str | Sequence[str]) -> Coded:
        """Return one or several columns together as a key, coded once and cached.

        Args:
            names: a column or several.

        Returns:
            Dense codes int64 ``[n]`` (0 = missing, for several columns: any of them) and the distinct keys.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        if not names:
            raise DataError("there is a key of no columns", remedy="Name at least one column")
        if len(names) == 1:
            return self[names[0]].coded()
        return self.remember(("coded", names), names, lambda: join_coded([self[n].coded() for n in names]))

    def remember(self, key: Hashable, names: Iterable[str], make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned for this key, cached.

        Args:
            key: identifies the result.
            names: the columns that it depends on: it is forgotten with them.
            make: called at most once for a key, also where several threads ask.
        """
        with self._lock:
            kept = self._memory.setdefault(key, _Remembered(frozenset(names)))
        with kept.lock:  # others may make other things meanwhile
            if not kept.made:
                kept.value, kept.made = make(), True
            return kept.value

    def forget(self, name: str) -> None:
        """Drop caches of a column: its codes, and what ``remember`` holds of it."""
        column = self[name]
        with column._lock:  # a thread may be about to return what it has just made
            column._cache.clear()
        with self._lock:
            for key in [k for k, kept in self._memory.items() if name in kept.names]:
                del self._memory[key]

    def to_arrow(self) -> pa.Table:
        """Return the table as an Arrow table."""
        return pa.table({str(n): c.to_arrow() for n, c in self._columns.items()})

    def to_pandas(self) -> Any:
        """Return a pandas frame with a fresh index; integers with missing values become ``Int64``."""
        import pandas as pd

        shares = int(pd.__version__.partition(".")[0]) >= 3  # before, writing to the frame would write to the table
        frame = {}
        for name, column in self._columns.items():
            if column.kind == "number" and column.missing is None:
                values = column.values.cpu().numpy()
                frame[name] = values if shares else values.copy()
                continue
            array = column.to_arrow()
            if column.kind == "number" and array.null_count and not pa.types.is_floating(array.type):
                made = pd.arrays.BooleanArray if pa.types.is_boolean(array.type) else pd.arrays.IntegerArray
                values, mask = column.values.cpu().numpy().copy(), column.is_missing().cpu().numpy().copy()
                frame[name] = pd.Series(made(values, mask))
            else:
                frame[name] = array.to_pandas()
        return pd.DataFrame(frame, copy=False)

    def to_polars(self) -> Any:
        """Return the table as a polars frame."""
        return require("polars", "polars", "pip install polars").from_arrow(self.to_arrow())

    def _like(self, columns: dict[str, Column]) -> Table:
        table = Table(columns)
        table._memory = {k: kept for k, kept in list(self._memory.items()) if kept.names <= set(columns)}
        return table

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {c.kind}" for n, c in self._columns.items())
        return f"Table({len(self)} rows on {self.device}; {shown})"


def concat(tables: Sequence[Table]) -> Table:
    """Concatenate tables of the same columns.

    Args:
        tables: at least one; the columns of the first decide.

    Returns:
        One table on the first one's device.

    Raises:
        DataError: there is no table, or a column's values in several tables do not fit together.
        MissingColumnError: a table lacks one of the first one's columns.
    """
    if not tables:
        raise DataError("there is no table to put below another", remedy="Give at least one")
    if len(tables) == 1:
        return tables[0]
    device = tables[0].device
    return Table({n: concat_columns([t[n] for t in tables], device) for n in tables[0].names})


def concat_columns(parts: Sequence[Column], device: torch.device) -> Column:
    """Concatenate columns, at least one, on a device; those with no value at all take the others' type."""
    parts = [p.to(device) for p in parts]
    void = [p.kind != "opaque" and bool(p.is_missing().all()) for p in parts]
    model = next((p for p, empty in zip(parts, void, strict=True) if not empty), None)
    model = model or next((p for p in parts if p.kind != "number"), parts[0])
    parts = [
        p if _same(p, model) or not empty else _all_missing(model, len(p)) for p, empty in zip(parts, void, strict=True)
    ]
    if model.kind == "number" and all(p.kind == "number" for p in parts):
        kinds = {p.values.dtype for p in parts}
        floats = [k for k in kinds if k.is_floating_point]
        if not floats or len(floats) == len(kinds):  # joined values take the widest of the types
            return replace(model, values=torch.cat([p.values for p in parts]), missing=_stack_missing(parts))
        for part in (p for p in parts if p.values.dtype == torch.int64):
            problem = "holds floats in one table and integers beyond 2^53, which floats do not hold, in another"
            remedy = "Give the column the same type in every frame (ids with missing values: nullable Int64)"
            lost = ~part.is_missing() & (part.values.abs() > 1 << 53)
            refuse_rows(lost, problem, column=part.name or None, remedy=remedy)
        return replace(model, values=torch.cat([p.number() for p in parts]), missing=None)
    if all(p.kind == "category" for p in parts):
        return _stack_categories(parts, model)
    if model.kind in ("datetime", "vector") and all(_same(p, model) for p in parts):
        return replace(model, values=torch.cat([p.values for p in parts]), missing=_stack_missing(parts))
    if model.kind == "list" and all(p.kind == "list" for p in parts):
        # Each part counts its elements from 0: later offsets are shifted.
        offsets, end = [parts[0].values[:1]], 0
        for part in parts:
            offsets.append(part.values[1:] + end)
            end += int(part.values[-1])
        elements = concat_columns([p.elements for p in parts], device)
        return replace(model, values=torch.cat(offsets), elements=elements, missing=_stack_missing(parts))
    joined = parts[0].to_arrow()  # times of several units or zones, huge and small integers, opaque values
    for part in parts[1:]:
        array = part.to_arrow()
        if not array.type.equals(joined.type):
            if "opaque" in (part.kind, model.kind) or {part.kind, model.kind} & {"list", "vector"}:
                problem = f"holds {array.type} in one table and {joined.type} in another"
                remedy = "Give the column the same type in every frame"
                raise DataError(problem, column=model.name or None, remedy=remedy)
            joined, array = align_types(joined, array, name=model.name)
        joined = pa.concat_arrays([joined, array])
    return as_column(joined, name=model.name).to(device)


def _same(a: Column, b: Column) -> bool:
    if a.kind != b.kind:
        return False
    if a.kind == "vector":
        return a.values.shape[1] == b.values.shape[1] and a.values.dtype == b.values.dtype
    return a.kind not in ("number", "datetime") or (a.values.dtype, a.unit, a.zone) == (b.values.dtype, b.unit, b.zone)


def _all_missing(model: Column, size: int) -> Column:
    device = torch.device("cpu") if model.kind == "opaque" else model.values.device
    missing = torch.ones(size, dtype=torch.bool, device=device)
    if model.kind == "opaque":
        return replace(model, values=pa.nulls(size, model.values.type), missing=None)
    if model.kind == "category":
        return replace(model, values=torch.zeros(size, dtype=torch.int32, device=device), missing=None)
    if model.kind == "list":
        nothing = model.elements.take(torch.empty(0, dtype=torch.int64, device=device))
        offsets = torch.zeros(size + 1, dtype=torch.int64, device=device)
        return replace(model, values=offsets, elements=nothing, missing=missing)
    if model.kind == "number" and model.values.is_floating_point():
        return replace(model, values=model.values.new_full((size,), torch.nan), missing=None)
    return replace(model, values=model.values.new_zeros((size, *model.values.shape[1:])), missing=missing)


def _stack_missing(parts: Sequence[Column]) -> torch.Tensor | None:
    return None if all(p.missing is None for p in parts) else torch.cat([p.is_missing() for p in parts])


def _stack_categories(parts: Sequence[Column], model: Column) -> Column:
    if all(p.distinct.equals(model.distinct) for p in parts):
        return replace(model, values=torch.cat([p.values for p in parts]))
    union = Keys((model.distinct,), (model.name,))
    for part in parts:
        union = union.concat(Keys((part.distinct,), (part.name,)))
    union = union.distinct()[1]
    codes = []
    for part in parts:
        table = torch.zeros(len(part.distinct) + 1, dtype=torch.int32)
        table[1:] = Keys((part.distinct,), (part.name,)).find_in(union) + 1
        codes.append(table.to(part.values.device)[part.values.long()])
    ordered = model.ordered if len({p.ordered for p in parts}) == 1 else None
    return replace(model, values=torch.cat(codes), distinct=union.columns[0], ordered=ordered)
