"""Dask frames as partitions of Tables, and result columns as Dask frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.imports import is_dask, library_of
from fastrec.errors import DataError
from fastrec.features._dask.blocks import OUTER, ROW, Blocks, task
from fastrec.features._dask.files import MadeParts, PartFiles, SplitTable
from fastrec.features._dask.states import quietly
from fastrec.features._engine.folds import fold_numbers
from fastrec.features.columns import Selector
from fastrec.table import Column, Table, as_column, attach, column_names, concat, select_columns, take_rows
from fastrec.table.read import check_names


def as_blocks(frame: Any, names: Sequence[str], optional: Sequence[str] = ()) -> Blocks:
    """Read columns of a frame in partitions: a Dask frame's partitions, any other frame as one."""
    # optional: columns that are filled with missing values if the frame lacks them
    there = [str(n) for n in frame.columns] if is_dask(frame) else None
    names = list(dict.fromkeys(names))
    if there is None:
        return Blocks(names, [task(_read, frame, names, list(optional))])
    check_names(there, [n for n in names if n not in optional])
    together = getattr(frame, "together", ())

    def read(some: list[str]) -> list[Any]:
        found = [n for n in some if n in there]
        return [task(_read, p, some, list(optional)) for p in partitions(frame, found or None)]

    return Blocks(names, read(names), together, read if type(frame) is PartFiles else None)


def partitions(frame: Any, names: Sequence[str] | None = None) -> list[Any]:
    """Return a task per partition of a frame, even if only some columns are read; None: all columns."""
    # Dask's full optimization reads several small files as one partition, depending on the columns
    some = frame if names is None else frame[list(names)]
    if not hasattr(some, "simplify"):  # PartFiles and SplitTable have no optimizer that could merge partitions
        return some.to_delayed()
    lean = some.simplify()
    return (lean if lean.npartitions == frame.npartitions else some).to_delayed(optimize_graph=False)


def _read(part: Any, names: list[str], optional: list[str]) -> Table:
    there = set(column_names(part))
    gone = [n for n in names if n in optional and n not in there]
    table = Table.read(part, [n for n in names if n not in gone])
    blank = torch.full((len(part),), torch.nan, dtype=torch.float64)
    return table.with_columns({n: Column("number", blank, name=n) for n in gone}) if gone else table


def with_row_numbers(blocks: Blocks) -> Blocks:
    """Add each row's number in the whole frame, for folds without a key; takes a pass over the rows."""

    def numbered(table: Table, start: int) -> Table:
        return Table({ROW: torch.arange(start, start + len(table))})

    starts, tables = row_starts(blocks), blocks.select(blocks.names[:1])
    parts = [task(numbered, t, int(at)) for t, at in zip(tables, starts[:-1], strict=True)]
    return blocks.with_layer([ROW], parts)


def row_starts(blocks: Blocks) -> np.ndarray:
    """Return the number of each partition's first row, then of all rows: int64 ``[partitions + 1]``."""
    sizes = dask.compute(*[task(len, t) for t in blocks.select(blocks.names[:1])])
    return np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])


def with_outer_folds(blocks: Blocks, frame: Any, folds: Any) -> tuple[Blocks, list[int]]:
    """Add outer folds (a column's name, or one number per row) to the rows; also return the distinct fold numbers."""
    if isinstance(folds, str):
        tables = as_blocks(frame, [folds]).select([folds])
        parts = [task(lambda t: Table({OUTER: fold_numbers(t[folds], folds)}), t) for t in tables]
    else:
        starts, column = row_starts(blocks), as_column(folds, name="folds")
        if len(column) != starts[-1]:
            raise DataError(f"{len(column)} folds for {starts[-1]} rows", remedy="Give one fold number per row")
        numbers = fold_numbers(column).cpu()
        parts = [task(Table, {OUTER: numbers[a:b].numpy().copy()}) for a, b in pairwise(starts)]
    seen = dask.compute(*[task(lambda t: torch.unique(t[OUTER].values).tolist(), part) for part in parts])
    return blocks.with_layer([OUTER], parts), sorted(set().union(*seen))


def as_frame(
    frame: Any, blocks: Blocks, outputs: Sequence[str], kept: Sequence[str] | None, meta: Any, *, fold: Any = None
) -> Any:
    """Attach columns of ``blocks`` to the Dask frame they were computed from."""
    # kept: the frame's columns to keep; meta: the empty result; fold: an outer fold's number and whether to return its
    # rows or the others; None: all rows
    own = frame if kept is None else frame[list(kept)]
    parts = partitions(frame, kept)
    made = blocks.select([*outputs, *([] if fold is None else [OUTER])])
    done = [task(_attached, p, m, list(outputs), meta, fold) for p, m in zip(parts, made, strict=True)]
    if isinstance(frame, PartFiles):
        return MadeParts(done, [*(n for n in own.columns if n not in outputs), *outputs])
    divisions = frame.divisions if fold is None else None
    return dd.from_delayed(done, meta=meta, divisions=divisions, verify_meta=False)


def as_table(
    split: SplitTable, blocks: Blocks, outputs: Sequence[str], kept: Sequence[str] | None, *, fold: Any = None
) -> Table:
    """Attach columns of ``blocks`` to the table that was split, in memory (see ``as_frame``)."""
    with quietly():
        made = concat(list(dask.compute(*blocks.select([*outputs, *([] if fold is None else [OUTER])]))))
    own = split.table if kept is None else split.table.select(kept)
    whole = own.with_columns({n: made[n] for n in outputs})
    return whole if fold is None else whole.take((made[OUTER].values == fold[0]) == fold[1])


def _attached(part: Any, made: Table, outputs: list[str], meta: Any, fold: tuple[int, bool] | None) -> Any:
    whole = attach(part, {n: made[n] for n in outputs})
    if library_of(meta) == "pandas":
        whole = whole.astype({n: meta[n].dtype for n in outputs if whole[n].dtype != meta[n].dtype})
    if fold is None:
        return whole
    rows = (made[OUTER].values == fold[0]) == fold[1]
    return take_rows(whole, rows.nonzero().squeeze(1))


def no_rows(frame: Any, names: Sequence[str]) -> Table:
    """Return columns of a Dask frame without rows, but with their kinds."""
    # For a column of objects the first partition shows whether it holds text, lists or vectors
    empty = Table.read(frame._meta, names)
    unknown = [n for n in names if str(frame._meta[n].dtype) == "object"]
    parts = partitions(frame, unknown) if unknown else []
    if not parts:
        return empty
    shown = dask.compute(task(lambda part: Table.read(part.head(limits.HEAD_ROWS)).slice(0, 0), parts[0]))[0]
    return empty.with_columns({n: shown[n] for n in unknown})


def declared(frame: Any, kept: Sequence[str] | None, columns: Mapping[str, Column]) -> Any:
    """Return the empty frame that declares the result's columns and types."""
    # Only all partitions together show whether an integer or boolean is ever missing, so pandas' nullable types are
    # declared, which hold both. A category is declared by its values' type
    meta = attach(frame._meta if kept is None else select_columns(frame._meta, kept), columns)
    if library_of(meta) != "pandas":
        return meta
    import pandas as pd

    dtypes = {}
    for name in columns:
        dtype = meta[name].dtype
        if isinstance(dtype, pd.CategoricalDtype):
            dtypes[name] = dtype.categories.dtype
        elif isinstance(dtype, np.dtype) and dtype.kind in "iub":
            dtypes[name] = "boolean" if dtype.kind == "b" else dtype.name.replace("i", "I").replace("u", "U")
    return meta.astype(dtypes)


class Profile:
    """Kind and number of distinct values of every column of a Dask frame, for the selectors."""

    def __init__(self, frame: Any, selectors: Sequence[Selector]) -> None:
        counted = any(_counts(s) for s in selectors)
        parts = dask.compute(*[task(_profile, p, counted) for p in partitions(frame)])
        self.names = [str(n) for n in frame.columns]
        self._columns = {n: concat([Table({n: found[n]}) for found in parts])[n] for n in self.names}

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]


def _counts(selector: Any) -> bool:
    parts = [p for p in (getattr(selector, "first", None), getattr(selector, "second", None)) if p is not None]
    how = selector.how
    return how.get("min_card") is not None or how.get("max_card") is not None or any(map(_counts, parts))


def _profile(part: Any, counted: bool) -> dict[str, Column]:
    table = Table.read(part)
    return {
        n: _distinct_rows(table[n]) if counted else table[n].slice(0, min(len(table), limits.HEAD_ROWS))
        for n in table.names
    }


def _distinct_rows(column: Column) -> Column:
    """Return one row per value if values may be counted, else the first rows, which show the kind."""
    floats = column.kind == "number" and column.values.is_floating_point()
    if column.kind not in ("number", "category") or floats:
        return column.slice(0, min(len(column), limits.HEAD_ROWS))
    codes, rows = column.coded().codes, torch.arange(len(column), device=column.values.device)
    first = rows.new_full((column.coded().size,), len(rows)).scatter_reduce_(0, codes, rows, "amin")
    return column.take(first[first < len(rows)])
