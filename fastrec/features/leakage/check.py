"""``check_leakage``: the checks, their run, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fastrec._core import limits
from fastrec.errors import DataError, LeakageError
from fastrec.features._engine.folds import given_folds
from fastrec.features.base import Feature
from fastrec.features.columns import as_list
from fastrec.features.feature_set import FeatureSet
from fastrec.features.leakage import frames, statistics
from fastrec.table import Column, as_column, column_names, take_rows

Kind = Literal["random", "copy", "own target", "leave-one-out", "outside", "row order", "future", "outer fold"]

REMEDIES: dict[str, str] = {
    "random": "Fix the seed: a column that differs from run to run cannot be checked or repeated for the test rows",
    "copy": "Drop the column: it is the target, or maps one to one to it",
    "own target": "Encode targets out of fold (TargetEncode in a FeatureSet, fit_transform), or from earlier rows only",
    "leave-one-out": "Encode targets by folds of many rows: a key's total less its other rows is the row's own target",
    "outside": "Compute it in the pipeline, out of fold (TargetEncode): beforehand it includes each row's own target",
    "row order": "Drop the column, or number the rows by something that is known when they are scored",
    "future": "Use only rows earlier than the row: lags, cumulative statistics and windows that end before it",
    "outer fold": "Compute everything that a target is in, the prior too, from the other folds alone "
    "(FeatureSet.cross_fit), and anew for every fold",
}


@dataclass(frozen=True)
class Leak:
    """Leaking column.

    Args:
        column: the column.
        kind: the check that found it (see ``check_leakage``); ``random``: two runs differ.
        row: the first affected row, from 0 in the given frame; None: all rows.
        detail: the change, and its effect on the row's value.
        generator: the generator that causes the leak, as written; None for a function.
    """

    column: str
    kind: Kind
    row: int | None
    detail: str
    generator: str | None = None

    def __str__(self) -> str:
        made = f" (made by {self.generator})" if self.generator else ""
        where = "" if self.row is None else f"row {self.row}: "
        return f"{self.column!r}, {self.kind}: {where}{self.detail}{made}"


@dataclass(frozen=True)
class LeakageReport:
    """Result of ``check_leakage``; true if there are no leaks."""

    leaks: list[Leak]  #: one for each column and kind
    notes: list[str] = field(default_factory=list)  #: effects that alone are no leak
    checked: list[str] = field(default_factory=list)  #: the checks, in words
    outputs: list[str] = field(default_factory=list)  #: all columns checked

    @property
    def ok(self) -> bool:
        """Whether there is no leak."""
        return not self.leaks

    def __bool__(self) -> bool:
        return self.ok

    @property
    def columns(self) -> list[str]:
        """The leaking columns, each once."""
        return list(dict.fromkeys(leak.column for leak in self.leaks))

    def raise_for_leaks(self) -> None:
        """Raise LeakageError with the columns if there is a leak."""
        if self.leaks:
            first = self.leaks[0]
            found = f"{len(self.columns)} of {len(self.outputs)} columns leak ({', '.join(self.columns)})"
            problem = f"{found}; {first.kind}: {first.detail}"
            raise LeakageError(problem, column=first.column, row=first.row, remedy=REMEDIES[first.kind])

    def __str__(self) -> str:
        count = len(self.columns)
        head = "no leak found" if self.ok else f"{count} column{'s leak' if count > 1 else ' leaks'}"
        lines = [f"{head} among {len(self.outputs)} ({'; '.join(self.checked)})"]
        for kind, remedy in REMEDIES.items():
            found = [leak for leak in self.leaks if leak.kind == kind]
            lines += [f"  {leak}" for leak in found]
            lines += [f"    → {remedy}."] if found else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


# Checks that change a row, a time or a fold, and the record of leaks.


@dataclass(frozen=True, eq=False)
class Try:
    """Run with one row's target changed; ``targets``: all rows' targets as numbers float64 ``[n]``."""

    row: int
    made: frames.Made
    what: str
    targets: dict[str, torch.Tensor]


class LeakCheck:
    """Checks, one method each, on a ``frame``; ``rows``: int64, the rows' numbers in the user's frame."""

    def __init__(
        self, runner: frames.Runner, frame: Any, choice: frames.CheckedRows, rows: torch.Tensor, strict: bool
    ) -> None:
        self.runner, self.frame, self.choice, self.rows, self.strict = runner, frame, choice, rows, strict
        self.base = runner.start(frame)
        self.scale = {n: frames.typical(c) for n, c in self.base.items()}
        self.suspects = list(self.base)  # columns whose changes can be leaks
        self.unclear: set[str] = set()  # columns for which one row's change proves nothing
        self.held = {n: statistics.HeldTarget(n, choice.table[n], choice.table[n], rows) for n in choice.targets}
        self.tries: list[Try] = []
        self.leaks: dict[tuple[str, Kind], Leak] = {}
        self.excused: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.checked: list[str] = []

    def report(self, whole: int) -> LeakageReport:
        outputs = self.runner.listed
        leaks = [leak for leak in self.leaks.values() if leak.column in {*outputs, *self.runner.passed_on}]
        used = f"{len(self.rows):,} rows" + (f" of {whole:,}" if len(self.rows) < whole else "")
        excused = [f"{n!r} {e}" for n, e in self.excused.items() if n in outputs and (n, "future") not in self.leaks]
        return LeakageReport(leaks, [*excused, *self.notes], [used, *self.checked], outputs)

    def twice(self) -> None:
        """Run twice on the same rows: columns that differ are ``random`` leaks, and no suspects afterwards."""
        made = self.runner.run(self.frame, "on the rows as they are")
        odd = self.compare("random", self.base, made, "it was run a second time", torch.arange(len(self.rows)))
        self.suspects = [n for n in self.suspects if n not in odd]

    def copies(self, fixed: Sequence[str]) -> None:
        """Find columns that equal a target row by row."""
        passed = {n: as_column(self.frame[n], name=n) for n in self.runner.passed_on if n not in fixed}
        for target in self.choice.targets:
            column = self.choice.table[target]
            known = (~column.is_missing()).nonzero().squeeze(1)
            for name, values in {**self.base, **passed}.items():
                if not bool(frames.moved(column.take(known), values.to("cpu").take(known)).any()):
                    self.add(name, "copy", None, f"its values are those of {target!r}", {name})
                    self.suspects = [n for n in self.suspects if n != name]

    def own_targets(self, probes: int) -> None:
        """Change one row's target at a time."""
        keys = frames.key_codes(self.frame, self.choice).values()
        sizes = [torch.where(codes > 0, torch.bincount(codes)[codes], 0) for codes in keys]  # size of each row's key
        tries = [self.try_one(row) for row in frames.probe_rows(self.choice, sizes, probes)]
        self.checked.append(f"the own targets of {len(tries)}")
        odd = {
            n
            for n in self.suspects
            for t in tries
            if self._moved(n, t) and statistics.scattered(self.base[n], t.made[n])
        }
        if odd:
            rows = frames.probe_rows(self.choice, sizes, limits.LEAK_SIGNS)
            more = [row for row in rows if row not in {t.row for t in tries}]
            every = [*tries, *(self.try_one(row) for row in more[: limits.LEAK_SIGNS - len(tries)])]
            self.unclear = {n for n in odd if not self._one_sided(n, every)}
        for name in sorted(self.unclear):
            self.notes[
                f"{name!r} moves with one target in all rows, as with folds that are drawn by the targets; whether a "
                "row's own moves it is not told"
            ] = None
        for t in tries:
            self.compare("own target", self.base, t.made, t.what, torch.tensor([t.row]))
        self.tries = tries

    def try_one(self, row: int) -> Try:
        source, made, targets = self.change(torch.tensor([row]), f"with another target in row {int(self.rows[row])}")
        name, taken = next(iter(source.items()))
        column = self.choice.table[name]
        was, now = (frames.shown(column, r) for r in (row, int(taken[row])))
        return Try(row, made, f"{name!r} of this row alone went from {was} to {now}", targets)

    def change(
        self, rows: torch.Tensor, what: str
    ) -> tuple[dict[str, torch.Tensor], frames.Made, dict[str, torch.Tensor]]:
        """Change some rows' targets: return the rows they are taken from, the columns, and all rows' targets."""
        source = self.choice.other_targets(rows)
        made = self.runner.run(frames.with_rows_of(self.frame, source), what)
        return source, made, {n: held.y[source[n]] for n, held in self.held.items()}

    def _moved(self, name: str, tried: Try) -> bool:
        at = torch.tensor([tried.row])
        made = tried.made.get(name)
        return made is not None and bool(frames.moved(self.base[name].take(at), made.take(at), self.scale[name]).any())

    def _one_sided(self, name: str, tries: Sequence[Try]) -> bool:
        # A row's value follows its own target if it moves farther, or in the other direction, than most others. By
        # chance all but one of ``LEAK_SIGNS`` rows are on one side of them with probability 4 in 100,000.
        target, held = next(iter(self.held.items()))
        above = []  # others that move less minus others that move more, in the target's direction
        for t in (t for t in tries if name in t.made):
            moves = statistics.change(self.base[name], t.made[name]) * (t.targets[target] - held.y)[t.row].sign()
            above.append(int((moves < moves[t.row]).sum() - (moves > moves[t.row]).sum()))
        most = max(sum(a > 0 for a in above), sum(a < 0 for a in above))
        return len(above) >= limits.LEAK_SIGNS and most >= len(above) - 1

    def future(self) -> None:
        """Drop, then shuffle, the rows at or after a time."""
        cuts = frames.cut_places(self.choice, self.frame)
        self.checked.append(f"the future of {len(cuts)} times" if cuts else "no future, as there is one time only")
        fixed = self.runner.fixed(self.frame) if cuts else None
        fixed_base = fixed(self.frame) if fixed is not None else {}
        name = self.choice.order[0]
        for cut in cuts:
            before, after = (self.choice.rank < cut).nonzero().squeeze(1), (self.choice.rank == cut).nonzero()
            when = f"the rows at or after {name} = {frames.shown(self.choice.table[name], int(after[0]))}"
            mixed = frames.with_rows_of(self.frame, self.choice.mixed_future(cut, column_names(self.frame)))
            for what, frame, at_made in (
                (f"{when} were dropped", take_rows(self.frame, before), torch.arange(len(before))),
                (f"{when} were mixed up", mixed, before),
            ):
                if fixed is not None:
                    self.compare("future", fixed_base, fixed(frame), what, before, at_made=at_made)
                made = self.runner.run(frame, f"when {what}")
                self.compare("future", self.base, made, what, before, at_made=at_made, excuse=self._learns_from_all)

    def outer_folds(self, folds: torch.Tensor) -> None:
        """Change all targets of one fold at a time."""
        present = torch.unique(folds).tolist()
        tried = present[:: max(len(present) // limits.LEAK_FOLDS, 1)][: limits.LEAK_FOLDS]
        self.checked.append(f"the targets of {len(tried)} outer fold{'s' if len(tried) > 1 else ''}")
        for k in tried:
            changed = frames.with_rows_of(self.frame, self.choice.one_target(folds == k))
            what = f"the targets of fold {k} were changed"
            inside = (folds == k).nonzero().squeeze(1)
            if not isinstance(self.runner, frames.SetRunner):
                self.compare("outer fold", self.base, self.runner.run(changed, f"when {what}"), what, inside)
                continue
            sides = ((folds != k).nonzero().squeeze(1), inside)
            pairs = (self.runner.cross_fit(frame, folds, k) for frame in (self.frame, changed))
            for rows, base, made in zip(sides, *pairs, strict=True):
                self.compare("outer fold", base, made, what, rows, at=torch.arange(len(rows)))

    def compare(
        self,
        kind: Kind,
        base: frames.Made,
        made: frames.Made,
        what: str,
        rows: torch.Tensor,
        *,
        at: torch.Tensor | None = None,
        at_made: torch.Tensor | None = None,
        excuse: Callable[[str], str | None] = lambda name: None,
    ) -> set[str]:
        """Record the suspects that differ between ``base`` and ``made`` as leaks of this kind, and return them.

        ``rows`` of the checked frame must not change; they are at ``at`` in ``base`` (None: their numbers) and at
        ``at_made`` in ``made``. ``excuse`` returns why a column's change is no leak, if so.
        """
        at = rows if at is None else at
        at_made = at if at_made is None else at_made
        first: dict[str, int] = {}
        for name in self.suspects:
            if kind == "own target" and name in self.unclear:
                continue
            if name not in made:
                self.notes[f"{name!r} could not be compared: it is not made when {what}"] = None
                continue
            scale = self.scale[name] if base is self.base else frames.typical(base[name])
            odd = frames.moved(base[name].take(at), made[name].take(at_made), scale).nonzero()
            if len(odd):
                first[name] = int(odd[0])
        for name, i in first.items():
            excused = excuse(name)
            if excused is not None:
                self.excused.setdefault(name, excused)
                continue
            change = f"{frames.shown(base[name], int(at[i]))} became {frames.shown(made[name], int(at_made[i]))}"
            self.add(name, kind, int(self.rows[rows[i]]), f"{change} when {what}", set(first))
        return set(first)

    def add(self, column: str, kind: Kind, row: int | None, detail: str, together: set[str]) -> None:
        maker = self.runner.maker(column, together)
        self.leaks.setdefault((column, kind), Leak(column, kind, row, detail, None if maker is None else repr(maker)))

    def _learns_from_all(self, column: str) -> str | None:
        learners = [] if self.strict else self.runner.learns_from_all(column)
        return f"uses later rows of the training data, through {learners[0]!r}" if learners else None


# Checks that change many targets at once, or none.

# Returns a description of a column's leak, or None.
Test = Callable[[Column, statistics.HeldTarget], str | None]
_TOLD: tuple[Kind, ...] = ("copy", "own target", "leave-one-out")


@dataclass(frozen=True, eq=False)
class RandomRuns:
    """Runs with targets of all rows changed at random."""

    made: list[frames.Made]  # columns of each run
    targets: list[dict[str, torch.Tensor]]  # targets of each run by name, as float64 ``[n]``
    flips: torch.Tensor  # bool ``[runs, n]``, rows whose targets each run changed
    moves: dict[str, torch.Tensor]  # change of each column in all runs: float64 ``[runs, n]``

    def of(self, name: str) -> list[Column]:
        return [made[name] for made in self.made if name in made]

    def still(self, name: str) -> bool:
        """Test that no run has changed a column."""
        return name in self.moves and not bool(self.moves[name].any())


def draws(check: LeakCheck) -> RandomRuns:
    """Change many rows' targets at random, then of the shrinking set that seems to follow; return the first runs."""
    known = torch.ones(len(check.rows), dtype=torch.bool)
    for name in check.choice.targets:
        known &= ~check.choice.table[name].is_missing()
    random = check.choice.generator()
    flips = statistics.patterns(known, random)

    def flip(chosen: torch.Tensor) -> tuple[frames.Made, dict[str, torch.Tensor]]:
        return check.change(chosen.nonzero().squeeze(1), f"with other targets in {int(chosen.sum())} rows")[1:]

    runs, targets = zip(*map(flip, flips))
    every = [n for n in check.suspects if all(n in made for made in runs)]
    moves = {n: torch.stack([statistics.change(check.base[n], run[n], check.scale[n]) for run in runs]) for n in every}
    drawn = RandomRuns(list(runs), list(targets), flips, moves)
    check.checked.append(f"those of all, changed at random {len(flips)} times")
    names = [n for n in every if n not in check.unclear and (n, "own target") not in check.leaks]
    found = {n: _followers(check.base[n], drawn, n) for n in names}
    few = {n: statistics.movers(moves[n], flips) for n in names}
    for _ in range(limits.LEAK_ROUNDS):
        several = [f.rows for f in found.values() if len(f.rows) > 1]
        if not several:
            break
        some = torch.cat(several).unique()
        flipped = torch.zeros(len(known), dtype=torch.bool)
        flipped[some[torch.rand(len(some), generator=random) < 0.6]] = True
        made, _ = flip(flipped)
        there = {n: f for n, f in found.items() if n in made}
        found |= {
            n: f.left(statistics.change(check.base[n], made[n], exact=f.exact), flipped) for n, f in there.items()
        }
    for name in names:
        _confirm(check, name, found[name], few[name])
    return drawn


def _followers(base: Column, drawn: RandomRuns, name: str) -> statistics.Followers:
    if not drawn.still(name):
        return statistics.followers(drawn.moves[name], drawn.flips, exact=False)
    if base.kind != "number" or all(torch.equal(base.values, c.values) for c in drawn.of(name)):
        return statistics.Followers(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), exact=True)
    return statistics.followers(
        torch.stack([statistics.change(base, c, exact=True) for c in drawn.of(name)]), drawn.flips, exact=True
    )


def _confirm(check: LeakCheck, name: str, found: statistics.Followers, few: torch.Tensor) -> None:
    # A row that follows by chance does not move if only its target changes.
    base = check.base[name]
    rows = found.rows[: limits.LEAK_SINGLE].tolist()
    for row in dict.fromkeys([*rows, *few[: limits.LEAK_SINGLE].tolist()]):
        t = check.try_one(row)
        if name not in t.made:
            continue
        exact = row in rows and found.exact
        delta = statistics.change(base, t.made[name], exact=exact)
        if not float(delta[row]):
            continue
        if not exact:
            check.compare("own target", check.base, t.made, t.what, torch.tensor([row]))
            return
        if int((delta != 0).sum()) == 1:  # if other values move too, it may be rounding
            check.add(name, "own target", int(check.rows[row]), f"its last digits changed when {t.what}", {name})
            return


def leave_one_out(check: LeakCheck, drawn: RandomRuns, df: Any) -> None:
    """Find values that reveal their row's target within a key of ``df``, whatever the targets are."""
    keys = [torch.zeros(len(check.rows), dtype=torch.int64), *frames.key_pairs(df, check.choice).values()]
    if check.choice.keys:
        keys.append(check.choice.table.coded(check.choice.keys).codes)
    for name in check.suspects:
        if name not in drawn.moves or drawn.still(name) or (name, "own target") in check.leaks:
            continue
        runs = [statistics.numbers(c) for c in drawn.of(name)]
        if any(v is None for v in runs):
            continue
        for target in check.choice.targets:
            cases = [(y[target], v) for y, v in zip(drawn.targets, runs, strict=True)]
            within = any(statistics.says_target(((codes, y, v) for y, v in cases), "drawn") for codes in keys)
            if within or statistics.says_target(_among_moved(check, name, target), "moved"):
                what = f"within its key it says the row's {target!r}, however the targets are changed"
                check.add(name, "leave-one-out", None, what, {name})


def _among_moved(check: LeakCheck, name: str, target: str) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield, for ``told_within``, the rows moved by one row's target, with that row, before and after."""
    for t in check.tries:
        if name not in t.made:
            continue
        group = frames.moved(check.base[name], t.made[name], check.scale[name]).to("cpu")
        group[t.row] = True
        one = torch.zeros(int(group.sum()), dtype=torch.int64)
        for y, column in ((check.held[target].y, check.base[name]), (t.targets[target], t.made[name])):
            if len(one) >= 4 and len(torch.unique(y[group])) > 1:
                yield one, y[group], column.number().to("cpu")[group]


def made_beforehand(
    check: LeakCheck, drawn: RandomRuns, df: Any, given: Any, whole: frames.CheckedRows, fixed: Sequence[str]
) -> None:
    """Compare columns that no target changes with statistics of the targets."""
    # given, whole: the user's full frame and its targets, order and key: means in a table are over all rows
    columns = {n: check.base[n] for n in check.suspects if drawn.still(n)}
    columns |= {n: as_column(df[n], name=n) for n in check.runner.passed_on if n not in fixed}
    columns = {n: c.to("cpu") for n, c in columns.items() if not any((n, k) in check.leaks for k in _TOLD)}
    keys = frames.key_pairs(df, check.choice)
    check.checked.append("columns that no target moves, other tables' among them, held to the targets")

    def whole_key(names: tuple[str, ...]) -> torch.Tensor:
        if given is df:
            return keys[names]
        return frames.paired([as_column(given[n], name=n).to("cpu").coded().codes for n in names])

    for target in check.choice.targets:
        held = statistics.HeldTarget(target, check.choice.table[target], whole.table[target], check.rows)
        orders = {n: statistics.by_group(codes, held.y) for n, codes in keys.items()}
        for name, column in columns.items():
            others = {n: (codes, orders[n]) for n, codes in keys.items() if name not in n}
            _hold(check, name, column, held, lambda c, h, others=others: statistics.of_key(c, others, whole_key, h))


def _hold(check: LeakCheck, name: str, column: Column, held: statistics.HeldTarget, of_key: Test) -> None:
    tests: tuple[tuple[Kind, Test], ...] = (
        ("copy", statistics.one_to_one),
        ("row order", statistics.row_order),
        ("outside", of_key),
    )
    for kind, test in tests:
        what = test(column, held)
        if what is None:
            continue
        if kind == "row order" and check.choice.order:  # time may explain the order
            check.notes[f"{name!r}: {what}"] = None
        else:
            check.add(name, kind, None, what, {name})
        return
    what = statistics.follows(column, held)
    if what is not None:
        check.notes[f"{name!r} {what}"] = None


def check_leakage(
    pipeline: Any,
    df: Any,
    target: str | Sequence[str],
    order: str | Sequence[str] | None = None,
    *,
    key: str | Sequence[str] | None = None,
    folds: Any = None,
    tables: Mapping[str, Any] | None = None,
    probes: int = 8,
    seed: int = 0,
    max_rows: int = 5000,
    strict: bool = False,
) -> LeakageReport:
    """Check whether a pipeline's columns leak the target or the future, by running it on changed rows.

    - *Own target*: one row's target is changed, then many at random; no value may change with its row's target.
    - *Leave-one-out*: no value may reveal its row's target within a key (columns of few distinct values, or pairs of
      them), whatever the targets are.
    - *Outside*, *copy*, *row order*: this concerns columns that no target changes, those of tables and the frame too
      (tables are not varied). None may be a statistic of the target by key over all rows, map one to one to it, or be
      the row number of a frame sorted by it.
    - *Future* (with ``order``): rows from a time on are dropped, then shuffled; no earlier value may change.
    - *Outer folds* (with ``folds``): a fold's targets are changed; no value of its rows may change. For a FeatureSet
      this includes values that ``cross_fit`` yields for the fold.

    Random runs and copies are checked first. A column without a finding is not proved clean: means computed beforehand
    from other folds, or a noisy table of targets, pass. Effects that a very good column may show are notes, not leaks.

    Args:
        pipeline: a FeatureSet, a generator, or a function from a frame to it with columns added (or only those), in
            the same row order. It runs about 20 times, 30 with ``order`` and ``folds``; a FeatureSet is not changed.
        df: training rows of any supported library, with the target; not changed.
        target: the target column(s).
        order: the column(s) of time or steps. Rows at the same time do not count as earlier.
        key: the column(s) that group rows (a session); for one generator also its folds' key. None: the FeatureSet's.
        folds: the folds of the model's validation: integers ``[n]`` from 0, or a column's name.
        tables: other tables that a FeatureSet reads, by name; not changed.
        probes: the number of rows, of rare and of frequent keys, whose targets are changed one by one.
        seed: the seed of the choice of rows.
        max_rows: the maximal number of rows checked: whole keys, the earliest rows, or random ones.
        strict: also report statistics that a FeatureSet learns from later training rows (counts), instead of a note.

    Returns:
        The report: ``report.ok``, ``report.columns``, ``print(report)``, ``report.raise_for_leaks()``.

    Raises:
        DataError: nothing can be changed (one row, a constant target), or the pipeline fails or returns other rows.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import check_leakage
        >>> df = pd.DataFrame({"item": ["a", "a", "b", "b"], "clicked": [1, 0, 1, 1]})
        >>> def rates(df):
        ...     return df.assign(rate=df.groupby("item")["clicked"].transform("mean"))
        >>> report = check_leakage(rates, df, "clicked")
        >>> report.ok, report.columns, report.leaks[0].kind
        (False, ['rate'], 'own target')
    """
    if probes < 1 or max_rows < 2:
        problem = f"check_leakage: probes={probes}, max_rows={max_rows} leave nothing to try"
        raise DataError(problem, remedy="Use at least 1 probe and 2 rows")
    features = pipeline if isinstance(pipeline, FeatureSet) else None
    if isinstance(pipeline, Feature):
        features = FeatureSet([pipeline], key=as_list(key) or None)
    if features is None and not callable(pipeline):
        problem = f"check_leakage: a {type(pipeline).__name__} is neither a FeatureSet nor a function"
        raise DataError(problem, remedy="Give a FeatureSet, a generator, or a function from frame to frame")
    targets, times = as_list(target), as_list(order)
    keys = as_list(key) or as_list(features.key if features is not None else None)
    fixed = list(dict.fromkeys([*keys, *times, *([folds] if isinstance(folds, str) else [])]))
    choice = frames.CheckedRows.of(df, targets, times, keys, seed)
    outer = None if folds is None else given_folds(df, folds, choice.table).cpu()
    rows, given, whole = frames.sample_rows(choice, max_rows), df, choice
    if len(rows) < len(whole.table):
        df, choice = take_rows(df, rows), choice.take(rows)
        outer = None if outer is None else outer[rows]
    runner: frames.Runner = (
        frames.SetRunner(features, tables)
        if features is not None
        else frames.FunctionRunner(pipeline, targets, [*fixed, *targets])
    )
    check = LeakCheck(runner, runner.prepare(df, [*targets, *fixed]), choice, rows, strict)
    check.twice()
    check.copies(fixed)
    check.own_targets(probes)
    drawn = draws(check)
    leave_one_out(check, drawn, df)
    made_beforehand(check, drawn, df, given, whole, fixed)
    if times:
        check.future()
    if outer is not None:
        check.outer_folds(outer)
    return check.report(len(whole.table))
