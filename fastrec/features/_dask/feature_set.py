"""FeatureSet's methods on Dask frames; ``fs`` is the ``FeatureSet``, whose module imports this one at first use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from fastrec._core.imports import is_dask
from fastrec.errors import DataError, DataWarning
from fastrec.features._dask.blocks import Blocks, Hidden, task
from fastrec.features._dask.chain import DaskChain
from fastrec.features._dask.files import PartFiles, SplitTable
from fastrec.features._dask.frames import (
    Profile,
    as_blocks,
    as_frame,
    as_table,
    declared,
    no_rows,
    partitions,
    with_outer_folds,
    with_row_numbers,
)
from fastrec.features._dask.plan import Others
from fastrec.features._engine.chain import Chain
from fastrec.features._engine.saving import selectors_of
from fastrec.features.base import Context
from fastrec.features.columns import as_list
from fastrec.table import Column, Table, as_column, column_names


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
    made = _chain(fs).apply(work, _others(fs, tables)).from_task(past)
    return _out(fs, df, made, _meta(fs, df, tables))


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
