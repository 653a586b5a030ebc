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
    named_column,
    no_rows,
    partitions,
    with_outer_folds,
    with_row_numbers,
)
from fastrec.features._dask.plan import Others
from fastrec.features._engine.chain import Chain, check_names, naming_table
from fastrec.features._engine.saving import selectors_of
from fastrec.features.base import Context
from fastrec.features.columns import as_list
from fastrec.table import Column, Table, as_column, column_names


def fit(fs: Any, df: Any, y: Any, tables: Mapping[str, Any] | None, unlabeled: Any) -> None:
    _Job(fs, df, y, tables, unlabeled).learn()


def fit_transform(fs: Any, df: Any, y: Any, tables: Mapping[str, Any] | None, unlabeled: Any) -> Any:
    job = _Job(fs, df, y, tables, unlabeled)
    return job.out(job.chain.nest(job.learn(), job.others, None))


def cross_fit(
    fs: Any,
    df: Any,
    folds: Any,
    tables: Mapping[str, Any] | None,
    unlabeled: Any,
    only: Collection[int] | None,
) -> Iterator[tuple[Any, Any]]:
    job = _Job(fs, df, None, tables, unlabeled)
    yield from job.outer_folds(folds, only, job.clean())


def fit_transform_folds(
    fs: Any, df: Any, folds: Any, tables: Mapping[str, Any] | None, unlabeled: Any
) -> tuple[Any, Iterator[tuple[Any, Any]]]:
    job = _Job(fs, df, None, tables, unlabeled)
    learned = job.learn()
    return job.out(job.chain.nest(learned, job.others, None)), job.outer_folds(folds, None, learned)


def transform(fs: Any, df: Any, tables: Mapping[str, Any] | None, history: Any) -> Any:
    _check_library(fs)
    targets = fs.targets
    work = as_blocks(df, fs.inputs, optional=targets)
    past = 0
    if history is not None:
        before = as_blocks(history, fs.inputs, optional=targets)
        past = len(before)
        work = Blocks(fs.inputs, [*before.select(fs.inputs), *work.select(fs.inputs)])
    chain = _chain(fs)
    made = chain.apply(work, _others(fs, tables)).from_task(past)
    return _out(fs, df, made, _meta(fs, df, tables))


class _Job:
    """Training rows on their way through a FeatureSet."""

    def __init__(self, fs: Any, df: Any, y: Any, tables: Mapping[str, Any] | None, unlabeled: Any) -> None:
        _check_library(fs)
        self.fs, self.df, self.tables, self.unlabeled = fs, df, tables, unlabeled
        _resolve(fs, df)
        self.chain = _chain(fs)
        self.chain.check_targets()
        self.work = self._blocks(df, y)
        if not self.chain.key and self.chain.tainted:
            self.work = with_row_numbers(self.work)
        self.chain.look(self.work)
        self.others = _others(fs, tables)
        self.meta = _meta(fs, df, tables, y)

    def _blocks(self, df: Any, y: Any) -> Blocks:
        names = self.fs.fit_inputs or [str(n) for n in df.columns]
        if y is None or not set(self.fs.targets) & set(names):
            return as_blocks(df, names)
        if not is_dask(y):
            raise DataError("y is not of Dask, and the rows are", remedy="Give y as a column of the frame")
        target, parts = _one_target(self.fs), partitions(y)
        work = as_blocks(df, [n for n in names if n != target])
        if len(parts) != len(work):
            raise DataError(
                f"y has {len(parts)} partitions, and the rows have {len(work)}",
                remedy="Give y as a column of the frame",
            )
        return work.with_layer([target], [task(named_column, part, target) for part in parts])

    def _extra(self) -> Blocks | None:
        steps = self.chain.all_steps()
        if self.unlabeled is None or not steps:
            return None
        made = {n for s in steps for n in s.outputs}
        return as_blocks(self.unlabeled, [n for s in steps for n in s.inputs if n not in made and n not in s.fit_only])

    def learn(self) -> Blocks:
        work = self.chain.run(self.work, self.others, self._extra())
        self.fs.fitted_on_unlabeled = self.unlabeled is not None
        return work

    def clean(self) -> Blocks:
        tainted = self.chain.tainted
        steps = [s for s in self.chain.steps if s not in tainted]
        return self.chain.run(self.work, self.others, self._extra(), steps=steps, learn=False)

    def outer_folds(self, folds: Any, only: Collection[int] | None, work: Blocks) -> Iterator[tuple[Any, Any]]:
        work, present = with_outer_folds(work, self.df, folds)
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
    read: dict[str, Blocks | Table] = {}
    for name, columns in _table_columns(fs, tables).items():
        with naming_table(name):
            read[name] = (
                as_blocks(tables[name], columns) if is_dask(tables[name]) else Table.read(tables[name], columns)
            )
    return Others(read, tuple(tables or {}))


def _table_columns(fs: Any, tables: Mapping[str, Any] | None) -> dict[str, list[str]]:
    needed: dict[str, dict[str, None]] = {}
    for step in fs.steps:
        for table, names in step.table_inputs.items():
            needed.setdefault(table, {}).update(dict.fromkeys(names))
    return {n: list(columns) for n, columns in needed.items() if n in (tables or {})}


def _meta(fs: Any, df: Any, tables: Mapping[str, Any] | None, y: Any = None) -> Any:
    """Return an empty frame with the columns of the result, by running the steps on no rows."""
    if isinstance(df, SplitTable | PartFiles):  # its result is a table, or Arrow's
        return None
    steps = [copy.copy(s) for s in fs.steps]
    chain = Chain(steps, key=as_list(fs.key), folds=fs.folds, targets=fs.targets)
    there, given = set(column_names(df._meta)), {} if y is None else {_one_target(fs): y}
    names = [n for n in fs.fit_inputs if n in there and n not in given]
    read = {}
    for name, columns in _table_columns(fs, tables).items():
        read[name] = no_rows(tables[name], columns) if is_dask(tables[name]) else Table.read(tables[name], columns)
    empty = no_rows(df, names).with_columns({n: as_column(v._meta, name=n) for n, v in given.items()})
    blank = [n for n in fs.fit_inputs if n not in empty]
    nothing = torch.zeros(0, dtype=torch.float64)
    empty = empty.with_columns({n: Column("number", nothing, name=n) for n in blank})
    done = chain.run(empty, Context(read, tuple(tables or {})))
    return declared(df, _kept(fs, df), {n: done[n] for n in fs.outputs})


def _kept(fs: Any, df: Any) -> list[str] | None:
    return None if fs.keep == "all" else [] if fs.keep == "outputs" else as_list(fs.keep)


def _out(fs: Any, df: Any, made: Blocks, meta: Any, fold: tuple[int, bool] | None = None) -> Any:
    kept = _kept(fs, df)
    own = [str(n) for n in df.columns] if kept is None else kept
    fs.feature_names_out_ = [*(n for n in own if n not in fs.outputs), *fs.outputs]
    if isinstance(df, SplitTable):
        return as_table(df, made, fs.outputs, kept, fold=fold)
    return as_frame(df, made, fs.outputs, kept, meta, fold=fold)


def _resolve(fs: Any, df: Any) -> None:
    if isinstance(df, SplitTable):
        fs._resolve(df.table)
        return
    selectors = selectors_of(fs.steps)
    if not selectors:
        return
    closed = {n for s in fs.steps for n in s.fit_only} | {*as_list(fs.key), *fs.targets}
    profile = Profile(df, selectors)
    for selector in selectors:
        selector.resolve(profile, closed)  # type: ignore[arg-type] - it has what a selector looks at
    check_names(fs.features, fs.steps)


def _check_library(fs: Any) -> None:
    if fs._library not in (None, "pandas"):
        raise DataError(
            f"a Dask frame cannot come back as {fs._library}", remedy="Call set_output(transform='default')"
        )


def _one_target(fs: Any) -> str:
    if len(fs.targets) != 1:
        raise DataError(f"y was given, but the generators use {len(fs.targets)} targets", remedy="Give them as columns")
    return fs.targets[0]
