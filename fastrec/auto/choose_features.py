"""Which features a table gets: those that its kinds of columns ask for, and of the others what pays out of fold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fastrec._core import limits
from fastrec.auto.asked_for import asked_for
from fastrec.auto.chosen import Chosen
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem
from fastrec.auto.trial import QuickTrial
from fastrec.errors import FastrecError
from fastrec.features import (
    Bucketize,
    CountEncode,
    Cross,
    DeviationFromGroup,
    RowStats,
    TargetEncode,
    search_crosses,
)
from fastrec.features.base import Feature


def choose_features(problem: Problem, *, seconds: float = 60.0, say: Callable[[str], None] | None = None) -> Chosen:
    """Choose features.

    Dates are taken apart, lists and texts made into numbers, side tables joined: without that nothing could be learned
    from them. Counts, target means, crosses, row statistics and deviations are tried one after the other on some tens
    of thousands of training rows: a model with and without them, cross-fitted, on the same folds.

    Args:
        problem: what is known of the table.
        seconds: time for the trials; what does not fit in is left out.
        say: told of each outcome.
    """
    say, ends = say or (lambda text: None), time.monotonic() + seconds
    chosen = Chosen(asked_for(problem))
    if problem.task == "multilabel" or len(problem.target) > 1 or len(problem.classes) > 40 or seconds <= 0:
        return chosen
    trial = QuickTrial(problem, chosen.features, seconds)
    chosen.metric, chosen.rows = trial.metric.name, len(trial.table)
    for name, make in _IDEAS:
        if time.monotonic() > ends:
            break
        try:
            features = make(problem, trial)
        except FastrecError as error:
            say(f"{name}: not tried ({error.problem})")
            continue
        if not features:
            continue
        family = trial.family(name, features)
        chosen.families.append(family)
        chosen.hurried = trial.hurried
        word = "kept" if family.kept else "left out"
        say(f"{name}: {trial.metric.name} {family.gain:+.5f} ± {family.error:.5f}, {word}")
    return chosen


# What is tried


def _counts(problem: Problem, trial: QuickTrial) -> list[Feature]:
    cols = [c.name for c in problem.kinds("category") if c.distinct >= limits.COUNTED_VALUES]
    cols += [c.name for c in problem.kinds("number") if c.key and c.distinct >= limits.COUNTED_VALUES]
    return [CountEncode(cols[:40], log=True)] if cols else []


def _means(problem: Problem, trial: QuickTrial) -> list[Feature]:
    if trial.target_options is None:
        return []
    cols = [c.name for c in problem.kinds("category") if c.distinct >= limits.MEAN_VALUES]
    cols += [c.name for c in problem.kinds("number") if c.key and c.distinct >= limits.MEAN_VALUES]
    return [TargetEncode(cols[:30], problem.target[0], smooth=20, **trial.target_options)] if cols else []


def _crosses(problem: Problem, trial: QuickTrial) -> list[Feature]:
    return _searched(problem, trial, 20)


def _triples(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Add a third column to the best pairs: a flight is known by its two ends and its minute together."""
    found = [f.cols for f in trial.base if isinstance(f, TargetEncode) and isinstance(f.cols, list)]
    pairs = [c.columns for cols in found for c in cols if isinstance(c, Cross)]
    return _searched(problem, trial, 6, pairs[:4]) if pairs else []


def _searched(
    problem: Problem, trial: QuickTrial, most: int, extend: Sequence[Sequence[str]] | None = None
) -> list[Feature]:
    """Return target means of the crosses that ``search_crosses`` keeps of the most informative columns."""
    if trial.target_options is None or problem.task == "multiclass":
        return []
    cols = [c for c in problem.kinds("category", "number") if c.distinct >= 2]
    told = {c.name: trial.told_by(c) for c in cols}
    # Pairs grow with the square of the columns: the 12 most informative ones are paired.
    sources = [_source(c) for c in sorted(cols, key=lambda c: -told[c.name])[:12]]
    if len(sources) < (2 if extend is None else 3):
        return []
    rows = trial.table.with_columns({"__y__": trial.rows.label})
    folds = trial.folds.codes
    search = search_crosses(rows, sources, "__y__", folds=folds, max_pairs=most, smooth=20, extend=extend)
    kept = search.crosses()
    return [TargetEncode(kept, problem.target[0], smooth=20, **trial.target_options)] if kept else []


def _source(c: ColumnInfo) -> str | Feature:
    """Return a column as a key: a number of many values by its twentieths."""
    plain = c.kind == "category" or c.key or (c.whole and c.distinct <= 30)
    return c.name if plain else Bucketize(c.name, quantiles=20)


def _row_stats(problem: Problem, trial: QuickTrial) -> list[Feature]:
    numbers = [c.name for c in problem.kinds("number")]
    if len(numbers) < limits.WIDE_TABLE:
        return []
    return [RowStats(numbers, stats=("zeros", "missing", "nunique", "sum", "std", "max"))]


def _deviations(problem: Problem, trial: QuickTrial) -> list[Feature]:
    groups = [
        c for c in problem.kinds("category", "number") if 5 <= c.distinct <= 5_000 and (c.key or c.kind == "category")
    ]
    numbers = [c for c in problem.kinds("number") if c.distinct > 50]
    if not groups or not numbers or len(numbers) > limits.WIDE_TABLE:
        return []
    groups = sorted(groups, key=lambda c: -trial.told_by(c))[:2]
    numbers = sorted(numbers, key=lambda c: -trial.told_by(c))[:4]
    return [
        DeviationFromGroup([c.name for c in numbers if c.name != g.name], by=g.name, over="train")
        for g in groups
        if any(c.name != g.name for c in numbers)
    ]


_IDEAS: tuple[tuple[str, Callable[[Problem, QuickTrial], list[Feature]]], ...] = (
    ("counts of values", _counts),
    ("target means of values", _means),
    ("target means of pairs", _crosses),
    ("target means of triples", _triples),
    ("statistics of a row", _row_stats),
    ("deviations from a group", _deviations),
)
