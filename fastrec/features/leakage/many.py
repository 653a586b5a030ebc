"""The checks of ``check_leakage`` that change many targets at once, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrec._core import limits
from fastrec.features.leakage.draws import Followers, by_group, change, followers, movers, patterns, says_target
from fastrec.features.leakage.report import Kind
from fastrec.features.leakage.rows import CheckedRows, key_pairs, paired
from fastrec.features.leakage.runs import Made, moved, with_rows_of
from fastrec.features.leakage.static import HeldTarget, follows, numbers, of_key, one_to_one, row_order
from fastrec.features.leakage.tries import LeakCheck
from fastrec.table import Column, as_column

# Describes what is wrong with a column, or returns None.
Test = Callable[[Column, HeldTarget], str | None]
_TOLD: tuple[Kind, ...] = ("copy", "own target", "leave-one-out")


@dataclass(frozen=True, eq=False)
class RandomRuns:
    """Runs with targets of all rows changed at random.

    Args:
        made: the columns of each run.
        targets: each run's targets as numbers, by name: float64 ``[n]``.
        flips: bool ``[runs, n]``, whose targets were changed in which run.
        moves: by how much each column has moved, float64 ``[runs, n]``; only columns of all runs.
    """

    made: list[Made]
    targets: list[dict[str, torch.Tensor]]
    flips: torch.Tensor
    moves: dict[str, torch.Tensor]

    def of(self, name: str) -> list[Column]:
        """Return one column of the runs that have it."""
        return [made[name] for made in self.made if name in made]

    def still(self, name: str) -> bool:
        """Test whether no run has moved a column."""
        return name in self.moves and not bool(self.moves[name].any())


def draws(check: LeakCheck) -> RandomRuns:
    """Change many rows' targets at random, then of ever fewer that seem to follow their own; return the first runs."""
    known = torch.ones(len(check.rows), dtype=torch.bool)
    for name in check.choice.targets:
        known &= ~check.choice.table[name].is_missing()
    random = check.choice.generator()
    flips = patterns(known, random)
    runs = [_flip(check, f) for f in flips]
    every = [n for n in check.suspects if all(n in made for made, _ in runs)]
    moves = {n: torch.stack([change(check.base[n], made[n], check.scale[n]) for made, _ in runs]) for n in every}
    drawn = RandomRuns([made for made, _ in runs], [targets for _, targets in runs], flips, moves)
    check.checked.append(f"those of all, changed at random {len(flips)} times")
    names = [n for n in every if n not in check.unclear and (n, "own target") not in check.leaks]
    found = {n: _followers(check.base[n], drawn, n) for n in names}
    few = {n: movers(moves[n], flips) for n in names}
    for _ in range(limits.LEAK_ROUNDS):
        several = [f.rows for f in found.values() if len(f.rows) > 1]
        if not several:
            break
        some = torch.cat(several).unique()
        flipped = torch.zeros(len(known), dtype=torch.bool)
        flipped[some[torch.rand(len(some), generator=random) < 0.6]] = True
        made, _ = _flip(check, flipped)
        there = {n: f for n, f in found.items() if n in made}
        found |= {n: f.left(change(check.base[n], made[n], exact=f.exact), flipped) for n, f in there.items()}
    for name in names:
        _confirm(check, name, found[name], few[name])
    return drawn


def _followers(base: Column, drawn: RandomRuns, name: str) -> Followers:
    if not drawn.still(name):
        return followers(drawn.moves[name], drawn.flips, exact=False)
    if base.kind != "number" or all(torch.equal(base.values, c.values) for c in drawn.of(name)):
        return Followers(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), exact=True)
    return followers(torch.stack([change(base, c, exact=True) for c in drawn.of(name)]), drawn.flips, exact=True)


def _flip(check: LeakCheck, flipped: torch.Tensor) -> tuple[Made, dict[str, torch.Tensor]]:
    source = check.choice.other_targets(flipped.nonzero().squeeze(1))
    made = check.runner.run(with_rows_of(check.frame, source), f"with other targets in {int(flipped.sum())} rows")
    return made, check.targets(source)


def _confirm(check: LeakCheck, name: str, found: Followers, few: torch.Tensor) -> None:
    # A row that follows by chance does not move with its target changed alone.
    base = check.base[name]
    rows = found.rows[: limits.LEAK_SINGLE].tolist()
    for row in dict.fromkeys([*rows, *few[: limits.LEAK_SINGLE].tolist()]):
        t = check.try_one(row)
        if name not in t.made:
            continue
        exact = row in rows and found.exact
        delta = change(base, t.made[name], exact=exact)
        if not float(delta[row]):
            continue
        if not exact:
            check.compare("own target", check.base, t.made, t.what, torch.tensor([row]))
            return
        if int((delta != 0).sum()) == 1:  # where others' digits move as well it may be rounding
            check.add(name, "own target", int(check.rows[row]), f"its last digits changed when {t.what}", {name})
            return


def leave_one_out(check: LeakCheck, drawn: RandomRuns, df: Any) -> None:
    """Find values that tell their row's target within a key of ``df``, whatever the targets are."""
    keys = [torch.zeros(len(check.rows), dtype=torch.int64), *key_pairs(df, check.choice).values()]
    if check.choice.keys:
        keys.append(check.choice.table.coded(check.choice.keys).codes)
    for name in check.suspects:
        if name not in drawn.moves or drawn.still(name) or (name, "own target") in check.leaks:
            continue
        runs = [numbers(c) for c in drawn.of(name)]
        if any(v is None for v in runs):
            continue
        for target in check.choice.targets:
            cases = [(y[target], v) for y, v in zip(drawn.targets, runs, strict=True)]
            within = any(says_target(((codes, y, v) for y, v in cases), "drawn") for codes in keys)
            if within or says_target(_among_moved(check, name, target), "moved"):
                what = f"within its key it says the row's {target!r}, however the targets are changed"
                check.add(name, "leave-one-out", None, what, {name})


def _among_moved(check: LeakCheck, name: str, target: str) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield, for ``told_within``, the rows that one row's target has moved, with that row, before and after."""
    for t in check.tries:
        if name not in t.made:
            continue
        group = moved(check.base[name], t.made[name], check.scale[name]).to("cpu")
        group[t.row] = True
        one = torch.zeros(int(group.sum()), dtype=torch.int64)
        for y, column in ((check.held[target].y, check.base[name]), (t.targets[target], t.made[name])):
            if len(one) >= 4 and len(torch.unique(y[group])) > 1:
                yield one, y[group], column.number().to("cpu")[group]


def made_beforehand(
    check: LeakCheck, drawn: RandomRuns, df: Any, given: Any, whole: CheckedRows, fixed: Sequence[str]
) -> None:
    """Compare columns that no target moves with statistics of the targets.

    Args:
        check: the record of leaks.
        drawn: see ``draws``.
        df: the checked rows.
        given: all rows, as the user gave them; a table's means are over all of them.
        whole: targets, order and key of all rows.
        fixed: columns that may be passed on: order, key and folds.
    """
    columns = {n: check.base[n] for n in check.suspects if drawn.still(n)}
    columns |= {n: as_column(df[n], name=n) for n in check.runner.passed_on if n not in fixed}
    columns = {n: c.to("cpu") for n, c in columns.items() if not any((n, k) in check.leaks for k in _TOLD)}
    keys = key_pairs(df, check.choice)
    check.checked.append("columns that no target moves, other tables' among them, held to the targets")

    def whole_key(names: tuple[str, ...]) -> torch.Tensor:
        if given is df:
            return keys[names]
        return paired([as_column(given[n], name=n).to("cpu").coded().codes for n in names])

    for target in check.choice.targets:
        held = HeldTarget(target, check.choice.table[target], whole.table[target], check.rows)
        orders = {n: by_group(codes, held.y) for n, codes in keys.items()}
        for name, column in columns.items():
            others = {n: (codes, orders[n]) for n, codes in keys.items() if name not in n}
            _hold(check, name, column, held, lambda c, h, others=others: of_key(c, others, whole_key, h))


def _hold(
    check: LeakCheck, name: str, column: Column, held: HeldTarget, of_key: Callable[[Column, HeldTarget], str | None]
) -> None:
    tests: tuple[tuple[Kind, Callable[[Column, HeldTarget], str | None]], ...] = (
        ("copy", one_to_one),
        ("row order", row_order),
        ("outside", of_key),
    )
    for kind, test in tests:
        what = test(column, held)
        if what is None:
            continue
        if kind == "row order" and check.choice.order:  # time may bring it about
            check.notes[f"{name!r}: {what}"] = None
        else:
            check.add(name, kind, None, what, {name})
        return
    what = follows(column, held)
    if what is not None:
        check.notes[f"{name!r} {what}"] = None
