"""Train and test rows → how the test was cut from them: by time, by group or at random, and what says so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.table import Column, Table, column_names
from fastrec.table.key_types import is_text
from fastrec.validate.cut_random import has_fractions
from fastrec.validate.given import Times, given_times, in_one_unit, times_of

AUTO = "auto"
_TIME_WORDS = re.compile(
    r"(?<![a-z])(?:time|timestamp|date|datetime|day|week|month|quarter|year|hour|minute|period|ts|dt)s?(?![a-z])"
)


class Mirror(NamedTuple):
    """Cut that mirrors how the test was cut.

    Args:
        by: ``'time'``, ``'group'`` or ``'random'``.
        column: the column of times or groups.
        why: what says so, in plain words.
        folds: how many folds mirror it.
        gap, horizon: of folds by time, as ``Folds.time_series`` takes them.
    """

    by: str
    column: str | None
    why: str
    folds: int
    gap: Any = 0
    horizon: Any = None


def mirror(train: Any, test: Any, *, target: str | None, time: str | None, group: str | None, folds: int) -> Mirror:
    """Find out how the test was cut from the rows: see ``Folds.like``."""
    train, test = (Table.read(t) if isinstance(t, str | Path) else t for t in (train, test))
    known = set(column_names(test))
    names = [n for n in column_names(train) if n in known and n != target]
    if time == AUTO:
        time = _found_time(train, test, names)
    if time is not None:
        return _by_time(train, test, time, folds)
    if group == AUTO:
        found = _found_group(train, test, names, folds)
        if found is not None:
            return Mirror("group", *found, folds)
    elif group is not None:
        return Mirror("group", group, f"by {group}, as asked", folds)
    looked = (
        f"of {len(names)} columns in train and test, none has times that are later in test, and none groups rows of "
    )
    return Mirror("random", None, looked + "which test has only new groups: test looks cut at random", folds)


def _found_time(train: Any, test: Any, names: Iterable[str]) -> str | None:
    """Find the column whose times in test are after those in train: dates first, then numbers whose name says time."""
    named = []
    for name in names:
        column, other = _column(train, name), _column(test, name)
        text = column.kind == "category" and is_text(column.distinct.type)
        if column.kind == "datetime" or text:
            if _is_later(column, other):
                return name
        elif _TIME_WORDS.search(_words(name)) and _is_later(column, other):
            named.append(name)
    return named[0] if named else None


def _is_later(column: Column, other: Column) -> bool:
    """Return whether test's times are after train's, but for some five in a hundred of each."""
    try:
        ours, theirs = in_one_unit(*(_known(c) for c in (column, other)))
    except DataError:
        return False  # no times
    if not len(ours.ticks) or not len(theirs.ticks):
        return False
    last, first = ours.ticks.sort().values[int(0.95 * (len(ours.ticks) - 1))], theirs.ticks.sort().values
    return bool(first[int(np.ceil(0.05 * (len(first) - 1)))] > last)


def _by_time(train: Any, test: Any, name: str, folds: int) -> Mirror:
    """Mirror the length of the test and its distance from train, if train lasts long enough."""
    ours, theirs = in_one_unit(given_times(train, name, "time"), given_times(test, name, "time"))
    last, first = ours.ticks.max(), ours.ticks.min()
    # Some test rows may overlap train: only later ones tell how long the test lasts.
    later = theirs.ticks[theirs.ticks > last]
    if not len(later):
        return Mirror("time", name, f"by {name}, as asked, though test is not later than train", folds)
    share = f"{100 * len(later) / len(theirs.ticks):.4g} % of the test rows are later, by {name}, than all of train "
    share += f"(which ends at {ours.moment(last.item())}, test at {theirs.moment(later.max().item())})"
    # the step between times: all differences are multiples of it; of fractions the smallest difference
    steps = torch.unique(torch.unique(torch.cat([ours.ticks, later])).diff())
    grain = steps.min().item() if steps.is_floating_point() else int(np.gcd.reduce(steps.numpy()))
    gap = max((later.min() - last).item() - grain, 0)
    horizon = (later.max() - later.min()).item() + grain
    room = int(((last - first).item() + grain - gap - horizon) // horizon)  # a horizon or more is left to train on
    fits = min(folds, room)
    place = torch.div(last - ours.ticks, horizon, rounding_mode="floor").long()  # 0: the last horizon
    if fits < 1 or not bool((torch.bincount(place[place < fits], minlength=fits) > 0).all()):
        why = f"{share}; train has no rows for folds as long as test ({ours.shown(horizon)}): blocks of as many rows"
        return Mirror("time", name, why, folds)
    why = f"{share}; each fold lasts as long as test, {ours.shown(horizon)}"
    why += f", {ours.shown(gap)} after what it trains on" if gap else ""
    why += f"; train is long enough for {fits} of {folds} folds" if fits < folds else ""
    return Mirror("time", name, why, fits, ours.length(gap), ours.length(horizon))


def _found_group(train: Any, test: Any, names: Iterable[str], folds: int) -> tuple[str, str] | None:
    """Find the coarsest key of which test has only new values though each is in several rows.

    Returns:
        The column, and why; None where there is none.
    """
    candidates = []
    for name in names:
        column, other = _column(train, name).plain(), _column(test, name).plain()
        if column.kind not in ("number", "category") or (column.kind == "number" and has_fractions(column)):
            continue
        ours, theirs = column.coded(), other.coded()
        rows, groups = int((ours.codes > 0).sum()), len(ours.keys)
        new = theirs.codes > 0
        # Fewer groups may be apart by chance; with hardly a row each the column numbers rows.
        if groups < max(20, 2 * folds) or rows < 1.5 * groups or int(new.sum()) < 20:
            continue
        try:
            known = (theirs.recode(ours.keys) > 0)[new].double().mean().item()
        except DataError:
            continue  # values of another kind in test
        # A few known groups do not make the cut random.
        if known <= 0.01:
            why = f"{100 * (1 - known):.4g} % of the test rows have a {name} that train does not have, though a {name} "
            candidates.append((groups, name, why + f"of train has {rows / groups:.3g} rows on average"))
    return min(candidates)[1:] if candidates else None


def _known(column: Column) -> Times:
    times = times_of(column)
    return times._replace(ticks=times.ticks[~column.is_missing().cpu()])


def _column(data: Any, name: str) -> Column:
    return Table.read(data, [name])[name]


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).lower()
