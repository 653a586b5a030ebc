"""Features of a ranking that are tried: of the group, of items, and of what stands before and after a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.auto.problem import Problem, shared_columns
from fastrec.auto.trial import QuickTrial
from fastrec.features import (
    Bucketize,
    Combine,
    CountEncode,
    Cross,
    CumCount,
    CumTarget,
    DatePart,
    DeviationFromGroup,
    GroupRank,
    GroupStats,
    Neighbours,
    TargetEncode,
)
from fastrec.features.base import Feature


def _numbers(problem: Problem, trial: QuickTrial) -> list[str]:
    """Return the numbers that differ within groups, the most informative ones."""
    own = [c for c in problem.kinds("number") if c.name not in problem.shared]
    return [c.name for c in sorted(own, key=lambda c: -trial.told_by(c))[: limits.RANKED_NUMBERS]]


def _keys(problem: Problem, least: int) -> list[str]:
    """Return the items, and the categories that differ within groups, of so many different values."""
    own = [c.name for c in problem.kinds("category") if c.name not in problem.shared and c.distinct >= least]
    return [*([problem.item] if problem.item is not None else []), *own[: limits.RANKED_NUMBERS]]


def _placed(made: Feature, lists: str) -> list[Feature]:
    """Return a feature, and where each row stands by it in its group: the largest first."""
    return [made, GroupRank(made, by=lists, descending=True)]


def _group(problem: Problem, trial: QuickTrial) -> list[Feature]:
    lists, numbers = str(problem.lists), _numbers(problem, trial)
    made: list[Feature] = [GroupStats(lists, by=lists, stats="count", over="group")]
    if numbers:
        made.append(GroupRank(numbers, by=lists))
        made += [DeviationFromGroup(numbers, by=lists, how=how) for how in ("diff", "ratio", "z")]
    return made


def _extremes(problem: Problem, trial: QuickTrial) -> list[Feature]:
    lists, numbers = str(problem.lists), _numbers(problem, trial)
    if not numbers:
        return []
    stats = GroupStats(numbers, by=lists, stats=["mean", "std", "min", "max"], over="group")
    return [stats, Neighbours(numbers, by=lists, what=["above", "below"])]


def _places(problem: Problem, trial: QuickTrial) -> list[Feature]:
    lists, numbers = str(problem.lists), _numbers(problem, trial)
    if not problem.as_shown:
        return []
    beside = [Neighbours(numbers, by=lists, what=["diff_previous", "diff_next"])] if numbers else []
    return [CumCount(lists), *beside]


def _counts(problem: Problem, trial: QuickTrial) -> list[Feature]:
    keys, lists = _keys(problem, limits.COUNTED_VALUES), str(problem.lists)
    if not keys:
        return []
    counts = CountEncode(keys, log=True)
    return [*_placed(counts, lists), DeviationFromGroup(counts, by=lists)]


def _usual(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Compare a row with other rows of its item: a price with the item's usual one, a place with its usual place."""
    if problem.item is None:
        return []
    item, table = problem.item, trial.table
    least = 1.05 * len(table[item].coded().keys)  # a number that is one for all rows of an item is no news about a row
    moving: list[str | Feature] = [n for n in _numbers(problem, trial) if len(table.coded([item, n]).keys) > least]
    if problem.as_shown:
        moving.append(CumCount(str(problem.lists)))
    if not moving:
        return []
    made = [GroupStats(moving, by=problem.item, stats="mean")]
    return [*made, *(DeviationFromGroup(moving, by=problem.item, over="train", how=how) for how in ("diff", "ratio"))]


def _means(problem: Problem, trial: QuickTrial) -> list[Feature]:
    keys = _keys(problem, limits.MEAN_VALUES)
    return _placed(TargetEncode(keys, problem.target[0], smooth=20), str(problem.lists)) if keys else []


def _time(problem: Problem, trial: QuickTrial) -> str | None:
    """Return the column of times that says which rows are earlier; None: there is none."""
    times = [c.name for c in problem.columns if c.kind == "time" and not c.missing and c.name in trial.table]
    time = problem.time or next(iter(times), None)
    return None if time is None or time not in trial.table or trial.table[time].is_missing().any() else time


def _rates(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Return rates of the items at earlier times only, as those of the rows to predict are."""
    time = _time(problem, trial)
    if problem.item is None or time is None:
        return []
    return _placed(CumTarget(problem.item, problem.target[0], order=time, smooth=20), str(problem.lists))


def _owners(problem: Problem, trial: QuickTrial) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the columns whose values have several groups at different times, such as users.

    Each comes with the arguments of a ``CumTarget`` of earlier groups, and of one whose half-life is their usual pause.
    """
    time, found = _time(problem, trial), []
    # A time that differs within a group would show a row the labels of others of its group.
    if time is None or time not in problem.shared:
        return []
    starts = trial.rows.groups.unique_consecutive(return_counts=True)[1].cumsum(0)
    starts = torch.cat([starts.new_zeros(1), starts[:-1]])
    ticks = trial.table[time].number(torch.float64).cpu()[starts]
    for name in problem.keys:
        codes = trial.table[name].coded().codes.long().cpu()[starts]
        order = ticks.argsort(stable=True)
        order = order[codes[order].argsort(stable=True)]
        pauses = ticks[order].diff()[codes[order].diff() == 0]
        pauses = pauses[pauses > 0]
        if len(pauses) >= limits.OWNED_GROUPS * len(starts):
            usual = {"order": time, "target": problem.target[0]}
            found.append((name, usual, {**usual, "half_life": float(pauses.median()), "name": "last"}))
    return found[:2]


def _owned_items(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Return what the group's owner has done with the row's item, and with its other keys, in earlier groups."""
    keys, made = _keys(problem, 2)[:3], []
    for owner, *both in _owners(problem, trial) if keys else ():
        pairs = [Cross(owner, k) for k in keys]
        # A row in which the item was passed over halves its rate: shown before and never shown differ.
        made += [CumTarget(pairs, smooth=1, **options) for options in both]
    return made


def _owned_choices(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Compare a row's numbers with those of what the group's owner chose in earlier groups."""
    lists, rows = str(problem.lists), problem.train
    # A mean of infinite numbers is none, and is refused.
    floats = [n for n in rows.column_names if pa.types.is_floating(rows[n].type)]
    endless = {n for n in floats if pc.any(pc.is_inf(rows[n])).as_py()}
    numbers = [n for n in _numbers(problem, trial) if n not in endless][:4]
    ranks = {n for f in trial.base for n in f.outputs} & {f"rank_{n}__{lists}" for n in numbers[:2]}
    compared: list[str | Feature] = [*numbers, *sorted(ranks), *([CumCount(lists)] if problem.as_shown else [])]
    made: list[Feature] = []
    for owner, *both in _owners(problem, trial) if compared else ():
        for options in both:
            made.append(chosen := CumTarget(owner, of=compared, smooth=0.1, **options))
            made += [Combine(of, "-", n) for of, n in zip(compared, chosen.outputs, strict=True)]
    return made


def _crosses(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Return target means of items, and of steps of numbers, in each context."""
    contexts = [c for c in shared_columns(problem) if c.kind == "category" and c.distinct >= 2]
    contexts = sorted(contexts, key=lambda c: c.distinct)[: limits.RANKED_CONTEXTS]
    own: list[str | Feature] = [*_keys(problem, 2)[:2]]
    own += [Bucketize(n, quantiles=20) for n in _numbers(problem, trial)[:2]]
    pairs = [Cross(o, c.name) for o in own for c in contexts]
    return [TargetEncode(pairs, problem.target[0], smooth=20)] if pairs else []


def _times(problem: Problem, trial: QuickTrial) -> list[Feature]:
    times = [c.name for c in problem.kinds("time") if c.name in problem.shared]
    with_clock = [n for n in times if not pa.types.is_date(problem.train[n].type)]
    return [
        *(DatePart(n, ["hour"]) for n in with_clock[:1]), *(DatePart(n, ["dayofweek", "month"]) for n in times[:1])
    ]  # fmt: skip


Idea = Callable[[Problem, QuickTrial], list[Feature]]
IDEAS: tuple[tuple[str, Idea], ...] = (
    ("ranks in the group and differences from it", _group),
    ("items in earlier groups of the owner", _owned_items),
    ("what the owner chose in earlier groups", _owned_choices),
    ("counts of items", _counts),
    ("target means of items", _means),
    ("differences from what is usual of an item", _usual),
    ("place in the group and the rows beside", _places),
    ("extremes of the group and next values", _extremes),
    ("rates of items so far", _rates),
    ("target means of items in a context", _crosses),
    ("times of the group", _times),
)
