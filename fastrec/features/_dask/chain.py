"""Steps of a FeatureSet on partitions; results equal those of ``Chain`` on one table."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import dask
import torch

from fastrec.errors import DataError, DataWarning
from fastrec.features._dask.blocks import OUTER, Blocks, CellRule, Folding, Hidden, task
from fastrec.features._dask.files import Mapped, spill_folder
from fastrec.features._dask.gathered import (
    HERE,
    Group,
    Others,
    Place,
    in_time,
    in_turn,
    is_causal,
    learns,
    looks_back,
    reads,
    rounds,
    stays,
)
from fastrec.features._dask.states import merge_all, share, tree
from fastrec.features._engine.chain import Chain, by_fold, compute, masked, mixing_steps, naming, steps_behind
from fastrec.features._engine.folds import given_fold_keys
from fastrec.features._engine.keyed import union_keys
from fastrec.features._engine.saving import clone_steps
from fastrec.features.base import Cells, Context, Feature, Fitted, State
from fastrec.features.encode import count_keys, merge_counts
from fastrec.table import Column, Keys, Table

_log = logging.getLogger("fastrec.features")


class DaskChain(Chain):
    """Steps in the order of computation, on partitions; see ``Chain`` for the arguments."""

    def __init__(self, steps: Sequence[Feature], **options: Any) -> None:
        super().__init__(steps, **options)
        self.bare = clone_steps(steps, lambda selector: selector)  # workers get no fitted state
        self._fold_keys: dict[str, Keys] = {}

    def run(  # type: ignore[override]
        self,
        work: Blocks,
        others: Others,
        extra: Blocks | None = None,
        *,
        steps: Sequence[Feature] | None = None,
        hidden: Hidden | None = None,
        learn: bool = True,
    ) -> Blocks:
        """Fit steps on training rows and return the rows with the values that training rows get.

        ``extra``: unlabeled rows that ``scope='all'`` counts too; ``hidden``: rows whose targets no value may contain;
        ``learn``: store the fitted states in the steps; ``steps``: those wanted, None: all.
        """
        own = [self.bare[self.steps.index(s)] for s in (self.steps if steps is None else steps)]
        rows = [work] if extra is None else [work, extra]
        for groups in rounds(own, training=True, here=partial(stays, rows=rows, others=others)):
            say(groups)
            places = [Place(work, g, self._names(g, work, hidden), others) for g in groups]
            beyond = [self._beyond(g, extra, others) for g in groups]
            fits = self._fits(self._collect(groups, places, beyond, hidden, others), hidden, learn=learn)
            for group, place in zip(groups, places, strict=True):
                jobs = []
                for step in group.steps:
                    rule, read = self._rule(step, hidden), [n for n in step.inputs if n in self.targets]
                    names = [] if hidden is None or isinstance(step, Fitted) else read
                    jobs.append((step, _way(step, rule), rule, names))
                work = self._columns(work, group, place, jobs, [fits.get(id(s)) for s in group.steps], others)
            for group, (feeding, place) in zip(groups, beyond, strict=True):
                if extra is not None and feeding:
                    part = Group(group.key if any(map(looks_back, feeding)) else None, feeding)
                    jobs = [(s, "learned", None, []) for s in feeding]
                    # Unlabeled rows use the fit on all training rows, even if training rows use folds.
                    originals = [self.steps[self.bare.index(s)] for s in feeding]
                    full = [
                        share(Mapped(_learned(o))) if learn and isinstance(o, Fitted) else fits.get(id(s))
                        for s, o in zip(feeding, originals)
                    ]
                    extra = self._columns(extra, part, place, jobs, full, others)
        return work

    def apply(self, work: Blocks, others: Others) -> Blocks:  # type: ignore[override]
        """Return new rows (not trained on) with all steps' columns."""
        fits = {id(b): share(Mapped(_learned(s))) for b, s in zip(self.bare, self.steps) if isinstance(s, Fitted)}
        for groups in rounds(self.bare, training=False, here=partial(stays, rows=[work], others=others)):
            say(groups)
            for group in groups:
                place = Place(work, group, _outside(group, work, training=False), others)
                jobs = [(s, "learned", None, []) for s in group.steps]
                work = self._columns(work, group, place, jobs, [fits.get(id(s)) for s in group.steps], others)
        return work

    def nest(self, work: Blocks, others: Others, outer: int | None) -> Blocks:  # type: ignore[override]
        """Recompute the mixing steps fold by fold (see ``Chain.nest``); ``outer``: the fold whose values stay."""
        mixing = mixing_steps(self.steps, self.key, self.targets, together=False)
        if mixing and self._keeps_together(work, outer):
            mixing = mixing_steps(self.steps, self.key, self.targets, together=True)
        names = [n for step in mixing for n in step.outputs]
        if not names:
            return work
        folding = Folding(self.key, self.folds)
        used = steps_behind(names, self.tainted)
        made = []
        for fold in range(self.folds):
            hidden = Hidden(outer, (folding, fold))
            made.append(self.run(work, others, steps=used, hidden=hidden, learn=False).select(names))
        read = list(dict.fromkeys([*names, *folding.columns, *Hidden(outer).columns]))
        parts = [
            task(_by_fold, table, folding, Hidden(outer), names, [m[i] for m in made])
            for i, table in enumerate(work.select(read))
        ]
        return work.with_layer(names, parts)

    def look(self, work: Blocks) -> None:
        """Find the values of the fold columns in one pass over the rows."""
        for column in sorted({getattr(s, "fold_column", None) for s in self.steps} - {None}):
            keys = [task(lambda t, c: given_fold_keys(t, c)[0], table, column) for table in work.select([column])]
            every = tree(lambda *parts: reduce(lambda a, b: union_keys(a, b)[0], parts), keys)
            self._fold_keys[column] = dask.compute(every)[0]

    def _rule(self, step: Feature, hidden: Hidden | None) -> CellRule:
        if not (isinstance(step, Fitted) and step.uses_target and not step.causal):
            return CellRule(None, hidden=hidden)
        column = getattr(step, "fold_column", None)
        if column is not None:
            return CellRule(None, (column, self._fold_keys[column]), hidden)
        return CellRule(Folding(self.key, getattr(step, "folds", None) or self.folds), hidden=hidden)

    def _names(self, group: Group, work: Blocks, hidden: Hidden | None) -> list[str]:
        rules = [n for s in group.steps for n in self._rule(s, hidden).columns]
        return list(dict.fromkeys([*_outside(group, work, training=True), *rules]))

    def _beyond(self, group: Group, extra: Blocks | None, others: Others) -> tuple[list[Feature], Place | None]:
        """Return the steps whose columns unlabeled rows need, and the place of those rows."""
        if extra is None:
            return [], None
        feeding = [s for s in group.steps if self._feeds_all(s)]
        whole = Group(group.key, [s for s in group.steps if s in feeding or s.scope == "all"])
        if in_time(group.key) and not any(map(looks_back, whole.steps)):
            whole.key = None  # these rows follow all training rows
        if not whole.steps:
            return [], None
        return feeding, Place(extra, whole, _outside(whole, extra, training=False), others)

    def _collect(
        self,
        groups: list[Group],
        places: list[Place],
        beyond: list[tuple[list[Feature], Place | None]],
        hidden: Hidden | None,
        others: Others,
    ) -> list[tuple[Fitted, dict[str, Any]]]:
        batches: list[tuple[list[Any], list[Any]]] = []
        for group, place, (_, more) in zip(groups, places, beyond, strict=True):
            both = [s for s in group.steps if learns(s) and s.scope == "all" and more is not None]
            for steps in ([s for s in group.steps if learns(s) and s not in both], both):
                if not steps:
                    continue
                parts = _collecting(place, steps, [(s, self._rule(s, hidden)) for s in steps], others)
                if steps is both:
                    parts += _collecting(more, steps, [(s, None) for s in steps], others)
                batches.append((steps, parts))
        merged = merge_all(batches)
        found = [(s, state) for (steps, _), states in zip(batches, merged) for s, state in zip(steps, states)]
        return found + [(s, {}) for g in groups for s in g.steps if isinstance(s, Fitted) and not learns(s)]

    def _fits(
        self, states: list[tuple[Fitted, dict[str, Any]]], hidden: Hidden | None, *, learn: bool
    ) -> dict[int, Any]:
        found = {}
        for step, state in states:
            rule = self._rule(step, hidden)
            with naming(step):
                if learn:
                    original = self.steps[self.bare.index(step)]
                    original.learn(state)
                    pair = _learned(original)
                if _way(step, rule) == "cells":
                    pair = (state, None)
                elif not learn:
                    pair = (state, step.finalize(state, None if hidden is None else ~rule.excluded()[0]))
            found[id(step)] = share(Mapped(pair))
        return found

    def _columns(
        self, work: Blocks, group: Group, place: Place, jobs: list[Any], fits: list[Any], others: Others
    ) -> Blocks:
        tables, contexts = place.tables, [place.contexts(i, group.steps) for i in range(len(place.tables))]

        def columns(i: int, before: Any = None) -> Any:
            return task(_made, tables[i], jobs, fits, contexts[i], others.given, before)

        made: Iterable[Any] = map(columns, range(len(tables)))
        if in_time(group.key):
            asked = [(s, r, names) for s, way, r, names in jobs if _passes_on(s, way)]
            steps = [s for s, _, _ in asked]
            made = in_turn(
                len(tables),
                columns,
                lambda i: task(_passed_on, tables[i], asked),
                lambda a, b: task(_passed_on_by_both, steps, a, b),
            )
        return work.with_layer(group.outputs, place.back(list(made) if spill_folder() is None else made))

    def _keeps_together(self, work: Blocks, outer: int | None) -> bool:
        if not self.key or any(getattr(step, "fold_column", None) is not None for step in self.steps):
            return False
        if outer is None:
            return True

        def count(table: Table, key: list[str], hidden: Hidden) -> tuple[Keys, torch.Tensor]:
            return count_keys(table, key, Cells(hidden.of(table).long(), 2))

        counted = [task(count, t, self.key, Hidden(outer)) for t in work.select([*self.key, OUTER])]
        total = tree(lambda *parts: reduce(lambda a, b: merge_counts(*a, *b), parts), counted)
        counts = dask.compute(total)[0][1]
        return not bool(((counts[0] > 0) & (counts[-1] > 0)).any()) if len(counts) > 1 else True


def _collected(table: Table, jobs: list[Any], tables: list[dict[str, Table]], given: Sequence[str]) -> list[Any]:
    found = []
    for (step, rule), other in zip(jobs, tables, strict=True):
        step = copy.copy(step)  # threads of one worker share it
        with _in_a_partition(), naming(step), step.using(Context(other, tuple(given))):
            found.append(step.collect(table) if rule is None else step.collect(table, rule.of(table)))
    return found


def _made(
    table: Table,
    jobs: list[Any],
    fits: list[Any],
    tables: list[dict[str, Table]],
    given: Sequence[str],
    before: list[State] | None = None,
) -> Table:
    """Compute the columns of several steps; ``before``: the states passed on by earlier tables."""
    outputs: dict[str, Column] = {}
    past = iter(before or [])
    for (step, way, rule, names), fit, other in zip(jobs, fits, tables, strict=True):
        step, context = copy.copy(step), Context(other, tuple(given))
        here = masked(table, names, rule.hidden.of(table)) if names else table
        with _in_a_partition(), naming(step):
            if isinstance(step, Fitted):
                step.state_, step.fit_ = fit.value
            if before is not None and _passes_on(step, way):
                given_past = next(past)
                more = (context, given_past) if looks_back(step) else (given_past, rule.of(here), rule.excluded())
                made = step.compute_after(here, *more)
            elif way == "cells":
                with step.using(context):
                    made = step.compute_out_of_cell(here, step.state_, rule.of(here), rule.excluded())
            else:
                made = compute(step, here, context)
        outputs |= made
        table = table.with_columns(made)
    return Table(outputs)


def _passes_on(step: Feature, way: str) -> bool:
    return looks_back(step) or (way == "cells" and is_causal(step))


def _passed_on(table: Table, jobs: list[Any]) -> list[Any]:
    found = []
    for step, rule, names in jobs:
        here = masked(table, names, rule.hidden.of(table)) if names else table
        with _in_a_partition(), naming(step):
            found.append(step.keep(here) if looks_back(step) else step.collect(here, rule.of(here)))
    return found


def _passed_on_by_both(steps: list[Any], a: list[Any], b: list[Any]) -> list[Any]:
    both = [s.keep_both if looks_back(s) else s.merge for s in steps]
    return [join(*parts) for join, parts in zip(both, zip(a, b), strict=True)]


@contextmanager
def _in_a_partition() -> Iterator[None]:
    """Add to errors with a row number that it counts within the partition."""
    try:
        yield
    except DataError as error:
        if error.row is None:
            raise
        problem = f"{error.problem} (the row is counted in its partition)"
        raise DataError(problem, file=error.file, column=error.column, row=error.row, remedy=error.remedy) from error


def _by_fold(table: Table, folding: Folding, hidden: Hidden, names: list[str], made: list[Table]) -> Table:
    return by_fold(table.select(names), folding.of(table), hidden.of(table), enumerate(made))


def say(groups: Sequence[Group]) -> None:
    """Log which rows are gathered; warn if all rows go to one worker."""
    for group in groups:
        names = ", ".join(group.outputs)
        if in_time(group.key) and len(group.key) > 1:
            _log.info("rows are put in ranges of %s for %s", group.key[1], names)
        elif in_time(group.key):
            _log.info("each partition gets the last rows before it for %s", names)
        elif group.key and group.key != HERE:
            _log.info("rows are shuffled by %s for %s", ", ".join(group.key), names)
        elif group.key == ():
            warnings.warn(
                f"{names}: made of all rows in order, so that the columns read for it come together on one worker",
                DataWarning,
                stacklevel=5,
            )


def _collecting(place: Place, steps: Sequence[Feature], jobs: list[Any], others: Others) -> list[Any]:
    return [task(_collected, t, jobs, place.contexts(i, steps), others.given) for i, t in enumerate(place.tables)]


def _way(step: Feature, rule: CellRule) -> str:
    return "cells" if isinstance(step, Fitted) and (rule.by_fold or step.causal) else "learned"


def _learned(step: Fitted) -> tuple[Any, Any]:
    if step.state_ is None:
        step._learned()  # raises, unless it learns nothing
    return step.state_, step.fit_


def _outside(group: Group, work: Blocks, *, training: bool) -> list[str]:
    made, there = set(group.outputs), set(work.names)
    named = [n for s in group.steps for n in reads(s, training=training)]
    return [n for n in dict.fromkeys(named) if n not in made and n in there]
