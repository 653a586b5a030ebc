"""What a ``ParquetFrame`` has to know before it can stream: classes, fill values, means, target classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.threads import run_parallel
from fastrec.table import Column, Table, Vocab
from fastrec.tabular.moments import Moments
from fastrec.tabular.procs.categorify import Categorify
from fastrec.tabular.procs.fill_missing import FillMissing
from fastrec.tabular.procs.normalize import Normalize
from fastrec.tabular.recipe import _FLAGS, FrameRecipe
from fastrec.tabular.stream.fit import FirstMode, MedianSearch, ValueCounts
from fastrec.tabular.stream.rows import FileRows
from fastrec.tabular.targets import Labels
from fastrec.tabular.training_rows import Summary, TrainingRows


def learn(recipe: FrameRecipe, rows: FileRows) -> None:
    """Fit a recipe's procs and targets on all rows, block by block."""
    rows.make_features(fit=True)
    if rows.made is not None:
        numeric = [n for n in rows.made.names if rows.made[n].kind in ("number", "datetime")]
        recipe.conts = recipe.conts + [n for n in numeric if n not in recipe.conts and n not in recipe.cats]
    standard = _by_blocks(recipe)
    counts = {n: ValueCounts(n) for n in recipe.cats} if recipe.proc(Categorify) is not None else {}
    targets = {n: ValueCounts(n) for n in _class_names(recipe.labels, rows)}
    conts = {n: _ColumnStatistics(recipe) for n in recipe.conts} if standard else {}
    gaps = dict.fromkeys(recipe.labels.names, False)

    def first_look(table: Table) -> None:
        def take(task: tuple[str, Callable[[Column], None]]) -> None:
            task[1](table[task[0]])

        tasks: list[tuple[str, Callable[[Column], None]]] = [(n, c.add) for n, c in (*counts.items(), *targets.items())]
        tasks += [(n, c.look) for n, c in conts.items()]
        run_parallel(take, tasks, rows=len(table))
        for name in gaps:
            gaps[name] = gaps[name] or bool(table[name].is_missing().any())

    for _, table in rows.tables():
        first_look(table)
    if any(n.median is not None for n in conts.values()):
        for _, table in rows.tables():
            run_parallel(lambda name, t=table: conts[name].look_again(t[name]), list(conts), rows=len(table))
    columns = _like_target(rows, recipe.labels.names, gaps)
    for name, seen in targets.items():
        columns[name] = Table.read(pa.table({name: seen.result()[0]}))[name]
    recipe.labels.fit(columns, TrainingRows(max((len(c) for c in columns.values()), default=0)))
    if standard:
        for proc in recipe.cont_procs:
            proc.reset(recipe.conts)
        for name, seen in conts.items():
            summary = seen.summary()
            for proc in recipe.cont_procs:
                proc.learn(name, summary)
    else:
        _fit_columns(recipe, rows)
    _fit_classes(recipe, counts)


def _by_blocks(recipe: FrameRecipe) -> bool:
    fill = recipe.proc(FillMissing)
    known = all(type(p) in (FillMissing, Normalize) for p in recipe.cont_procs)
    return bool(recipe.cont_procs) and known and (fill is None or isinstance(fill.fill_strategy, str))


class _ColumnStatistics:
    """Statistics of a continuous column for ``FillMissing`` and ``Normalize``."""

    def __init__(self, recipe: FrameRecipe) -> None:
        fill = recipe.proc(FillMissing)
        rule = fill.fill_strategy if fill is not None else None
        self.median = MedianSearch() if rule == "median" else None
        self.mode = FirstMode() if rule == "mode" else None
        self.moments, self.scales = Moments(), recipe.proc(Normalize) is not None
        self.missing = 0

    def look(self, column: Column) -> None:
        present = _present(column)
        self.missing += len(column) - len(present)
        for part in (self.median, self.mode):
            if part is not None:
                part.look(present)
        if self.scales:
            self.moments.add(present)

    def look_again(self, column: Column) -> None:
        self.median.look_again(_present(column))

    def summary(self) -> Summary:
        search = self.median or self.mode
        return Summary(self.moments, self.missing, None if search is None else search.result())


def _present(column: Column) -> np.ndarray:
    values = column.number().cpu().numpy()
    gone = np.isnan(values)
    return values[~gone] if gone.any() else values


def _fit_columns(recipe: FrameRecipe, rows: FileRows) -> None:
    procs = recipe.cont_procs
    for proc in procs:
        proc.reset(recipe.conts)
    for name in recipe.conts if procs else []:
        values = torch.cat([torch.zeros(0, dtype=torch.float64), *(c.number() for c in _column(rows, name))])
        for i, proc in enumerate(procs):
            proc.fit(name, values)
            values = proc.apply(name, values) if i + 1 < len(procs) else values


def _column(rows: FileRows, name: str) -> Iterator[Column]:
    if rows.made is not None and name in rows.made:
        yield rows.made[name]
        return
    for _, block in rows.source.scan(1 << 17, [name]):
        yield Table.read(block)[name]


def _fit_classes(recipe: FrameRecipe, counts: dict[str, ValueCounts]) -> None:
    categorify = recipe.proc(Categorify)
    if categorify is None:
        return
    categorify.reset(recipe.cat_names)
    for name, seen in counts.items():
        values, times = seen.result()
        order = seen.keys.sort_order() if seen.keys is not None else torch.zeros(0, dtype=torch.int64)
        options = categorify.options_of(name)
        vocab = Vocab.of_counts(values.take(pa.array(order.numpy())), times[order], name=name, **options)
        categorify.set_vocab(name, vocab)
    recipe.check_flags()
    for name in recipe.flagged:
        categorify.set_vocab(f"{name}_na", _FLAGS)


def _class_names(labels: Labels, rows: FileRows) -> list[str]:
    if not labels.names:
        return []
    # The block itself is to learn from rows: one with its classes found, though there were none, would keep these.
    probe = Labels(labels.names, copy.deepcopy(labels.block), dtype=labels.asked_dtype)
    empty = _like_target(rows, labels.names, dict.fromkeys(labels.names, False))
    probe.fit(empty, TrainingRows(0))
    return labels.names[:1] if probe.kind == "category" else []


def _like_target(rows: FileRows, names: list[str], gaps: dict[str, bool]) -> dict[str, Column]:
    """Return one row of every target's type, missing if the target ever is."""
    found: dict[str, Column] = {}
    for name in names:
        kind = rows.source.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        missing = gaps[name] or pa.types.is_null(kind)
        value: Any = None if missing else pa.scalar(0, pa.int64()).cast(kind).as_py()
        found[name] = Table.read(pa.table({name: pa.array([value], kind)}))[name]
    return found
