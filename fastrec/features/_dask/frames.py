"""Dask frames as partitions of Tables, a FeatureSet's methods on them (``fs``), and result columns as Dask frames."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.imports import is_dask, library_of
from fastrec.errors import DataError, DataWarning
from fastrec.features._dask.blocks import OUTER, ROW, Blocks, Hidden, task
from fastrec.features._dask.chain import DaskChain
from fastrec.features._dask.files import MadeParts, PartFiles, SplitTable
from fastrec.features._dask.gathered import Others
from fastrec.features._dask.states import quietly
from fastrec.features._engine.chain import Chain
from fastrec.features._engine.folds import fold_numbers
from fastrec.features._engine.saving import selectors_of
from fastrec.features.base import Context
from fastrec.features.columns import Selector, as_list
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
    return blocks.with_layer([ROW], [task(numbered, t, int(at)) for t, at in zip(tables, starts[:-1], strict=True)])


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
    return dd.from_delayed(done, meta=meta, divisions=frame.divisions if fold is None else None, verify_meta=False)


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
    return take_rows(whole, ((made[OUTER].values == fold[0]) == fold[1]).nonzero().squeeze(1))


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


def _counts(selector: Selector) -> bool:
    how = selector.how
    return how.get("min_card") is not None or how.get("max_card") is not None or any(map(_counts, selector.parts))


def _profile(part: Any, counted: bool) -> dict[str, Column]:
    table = Table.read(part)
    return {
        n: _distinct_rows(table[n]) if counted else table[n].slice(0, min(len(table), limits.HEAD_ROWS))
        for n in table.names
    }


def _distinct_rows(column: Column) -> Column:
    """Return one row per value if values may be counted, else the first rows, which show the kind."""
    if column.kind not in ("number", "category") or (column.kind == "number" and column.values.is_floating_point()):
        return column.slice(0, min(len(column), limits.HEAD_ROWS))
    codes, rows = column.coded().codes, torch.arange(len(column), device=column.values.device)
    first = rows.new_full((column.coded().size,), len(rows)).scatter_reduce_(0, codes, rows, "amin")
    return column.take(first[first < len(rows)])


def transform(fs: Any, df: Any, tables: Mapping[str, Any] | None, history: Any) -> Any:
    """Transform rows with full statistics; ``history``: preceding rows that are not returned."""
    _check_library(fs)
    targets = fs.targets
    work = as_blocks(df, fs.inputs, optional=targets)
    past = 0
    if history is not None:
        before = as_blocks(history, fs.inputs, optional=targets)
        past = len(before)
        work = Blocks(fs.inputs, [*before.select(fs.inputs), *work.select(fs.inputs)])
    return _out(fs, df, _chain(fs).apply(work, _others(fs, tables)).from_task(past), _meta(fs, df, tables))


class Job:
    """Training rows on their way through a FeatureSet."""

    def __init__(
        self, fs: Any, df: Any, y: Any, tables: Mapping[str, Any] | None, unlabeled: Any, folds: Any = None
    ) -> None:
        _check_library(fs)
        self.fs, self.df, self.unlabeled, self.folds = fs, df, unlabeled, folds
        if isinstance(df, SplitTable):
            fs._resolve(df.table)
        elif selectors := selectors_of(fs.steps):
            fs._choose(selectors, Profile(df, selectors))
        self.chain = _chain(fs)
        self.chain.check_targets()
        self.work = self._blocks(y)
        if not self.chain.key and self.chain.tainted:
            self.work = with_row_numbers(self.work)
        self.chain.look(self.work)
        self.others = _others(fs, tables)
        self.meta = _meta(fs, df, tables, y)
        names = None if unlabeled is None else self.chain.unlabeled_columns()
        self.extra = None if names is None else as_blocks(unlabeled, names)

    def _blocks(self, y: Any) -> Blocks:
        names = self.fs.fit_inputs or [str(n) for n in self.df.columns]
        if y is None or not set(self.fs.targets) & set(names):
            return as_blocks(self.df, names)
        remedy = "Give y as a column of the frame"
        if not is_dask(y):
            raise DataError("y is not of Dask, and the rows are", remedy=remedy)
        target, parts = self.fs._one_target(), partitions(y)
        work = as_blocks(self.df, [n for n in names if n != target])
        if len(parts) != len(work):
            raise DataError(f"y has {len(parts)} partitions, and the rows have {len(work)}", remedy=remedy)
        return work.with_layer(
            [target], [task(lambda part, n: Table({n: as_column(part, name=n)}), part, target) for part in parts]
        )

    def learn(self, **_: Any) -> Blocks:
        """Fit all steps; return the rows with their columns, which are computed where they are read."""
        work = self.chain.run(self.work, self.others, self.extra)
        self.fs.fitted_on_unlabeled = self.unlabeled is not None
        return work

    def clean(self) -> Blocks:
        """Return the rows with the columns that do not depend on a target, without fitting."""
        steps = [s for s in self.chain.steps if s not in self.chain.tainted]
        return self.chain.run(self.work, self.others, self.extra, steps=steps, learn=False)

    def nested(self, work: Blocks) -> Any:
        """Return the user's frame with the outputs, mixing steps recomputed fold by fold."""
        return self.out(self.chain.nest(work, self.others, None))

    def outer_folds(self, work: Blocks, only: Collection[int] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield both sides of each outer fold; ``work`` has the columns that do not depend on a target."""
        work, present = with_outer_folds(work, self.df, self.folds)
        for k in present:
            if only is not None and k not in only:
                continue
            made = self.chain.run(work, self.others, steps=self.chain.tainted, hidden=Hidden(k), learn=False)
            made = self.chain.nest(made, self.others, k)
            yield self.out(made, (k, False)), self.out(made, (k, True))

    def out(self, made: Blocks, fold: tuple[int, bool] | None = None) -> Any:
        return _out(self.fs, self.df, made, self.meta, fold)


def _chain(fs: Any) -> DaskChain:
    if fs.cache is not None:
        warnings.warn("a FeatureSet's cache is not used on Dask frames", DataWarning, stacklevel=4)
    return DaskChain(fs.steps, key=as_list(fs.key), folds=fs.folds, targets=fs.targets)


def _others(fs: Any, tables: Mapping[str, Any] | None) -> Others:
    read = fs._read_tables(tables, lambda t, names: as_blocks(t, names) if is_dask(t) else Table.read(t, names))
    return Others(read, tuple(tables or {}))


def _meta(fs: Any, df: Any, tables: Mapping[str, Any] | None, y: Any = None) -> Any:
    """Return the empty result frame by running the steps on no rows."""
    if isinstance(df, PartFiles):  # the result is a Table or an Arrow table
        return None
    chain = Chain([copy.copy(s) for s in fs.steps], key=as_list(fs.key), folds=fs.folds, targets=fs.targets)
    there, given = set(column_names(df._meta)), {} if y is None else {fs._one_target(): y}
    names = [n for n in fs.fit_inputs if n in there and n not in given]
    read = fs._read_tables(tables, lambda t, names: no_rows(t, names) if is_dask(t) else Table.read(t, names))
    empty = no_rows(df, names).with_columns({n: as_column(v._meta, name=n) for n, v in given.items()})
    blank = [n for n in fs.fit_inputs if n not in empty]
    nothing = torch.zeros(0, dtype=torch.float64)
    empty = empty.with_columns({n: Column("number", nothing, name=n) for n in blank})
    done = chain.run(empty, Context(read, tuple(tables or {})))
    return declared(df, fs._kept(column_names(df._meta)), {n: done[n] for n in fs.outputs})


def _out(fs: Any, df: Any, made: Blocks, meta: Any, fold: tuple[int, bool] | None = None) -> Any:
    kept = fs._kept([str(n) for n in df.columns])
    if isinstance(df, SplitTable):
        return as_table(df, made, fs.outputs, kept, fold=fold)
    return as_frame(df, made, fs.outputs, kept, meta, fold=fold)


def _check_library(fs: Any) -> None:
    if fs._library not in (None, "pandas"):
        problem = f"a Dask frame cannot come back as {fs._library}"
        raise DataError(problem, remedy="Call set_output(transform='default')")
