"""The checks of ``check_leakage`` that change a row, a time or a fold, and the record of leaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrec._core import limits
from fastrec.features.leakage.draws import change, one_sided, scattered, share_below
from fastrec.features.leakage.report import Kind, Leak, LeakageReport
from fastrec.features.leakage.rows import CheckedRows, cut_places, key_sizes, probe_rows
from fastrec.features.leakage.runs import Made, Runner, SetRunner, moved, shown, typical, with_rows_of
from fastrec.features.leakage.static import HeldTarget
from fastrec.table import as_column, take_rows


@dataclass(frozen=True, eq=False)
class Try:
    """A run with one row's target changed.

    Args:
        row: its place among the checked rows.
        made: the columns.
        what: the change, for messages.
        targets: the changed targets, as numbers float64 ``[n]``.
    """

    row: int
    made: Made
    what: str
    targets: dict[str, torch.Tensor]


class LeakCheck:
    """The checks, one method each.

    Args:
        runner: runs the pipeline.
        frame: the rows, as the runner takes them.
        choice: targets, order and key of the same rows.
        rows: int64, their numbers in the user's frame.
        strict: see ``check_leakage``.
    """

    def __init__(self, runner: Runner, frame: Any, choice: CheckedRows, rows: torch.Tensor, strict: bool) -> None:
        self.runner, self.frame, self.choice, self.rows, self.strict = runner, frame, choice, rows, strict
        self.base = runner.start(frame)
        self.scale = {n: typical(c) for n, c in self.base.items()}
        self.suspects = list(self.base)  # columns whose moving means something
        self.unclear: set[str] = set()  # those of which no single row's move means anything
        self.held = {n: HeldTarget(n, choice.table[n], choice.table[n], rows) for n in choice.targets}
        self.tries: list[Try] = []
        self.leaks: dict[tuple[str, Kind], Leak] = {}
        self.excused: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.checked: list[str] = []

    def report(self, whole: int) -> LeakageReport:
        """Return the leaks among the columns that the pipeline returns."""
        outputs = self.runner.listed
        leaks = [leak for leak in self.leaks.values() if leak.column in {*outputs, *self.runner.passed_on}]
        used = f"{len(self.rows):,} rows" + (f" of {whole:,}" if len(self.rows) < whole else "")
        excused = [f"{n!r} {e}" for n, e in self.excused.items() if n in outputs and (n, "future") not in self.leaks]
        return LeakageReport(leaks, [*excused, *self.notes], [used, *self.checked], outputs)

    def twice(self) -> None:
        """Run twice on the same rows: random columns are leaks of their own, and no suspects afterwards."""
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
                if not bool(moved(column.take(known), values.to("cpu").take(known)).any()):
                    self.add(name, "copy", None, f"its values are those of {target!r}", {name})
                    self.suspects = [n for n in self.suspects if n != name]

    def own_targets(self, probes: int) -> None:
        """Change one row's target at a time."""
        sizes = key_sizes(self.frame, self.choice)
        tries = [self.try_one(row) for row in probe_rows(self.choice, sizes, probes)]
        self.checked.append(f"the own targets of {len(tries)}")
        odd = {n for n in self.suspects for t in tries if self._moved(n, t) and scattered(self.base[n], t.made[n])}
        if odd:
            rows = probe_rows(self.choice, sizes, limits.LEAK_SIGNS)
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
        source = self.choice.other_targets(torch.tensor([row]))
        made = self.runner.run(with_rows_of(self.frame, source), f"with another target in row {int(self.rows[row])}")
        name, taken = next(iter(source.items()))
        column = self.choice.table[name]
        what = f"{name!r} of this row alone went from {shown(column, row)} to {shown(column, int(taken[row]))}"
        return Try(row, made, what, self.targets(source))

    def targets(self, source: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: held.y[source[n]] for n, held in self.held.items()}

    def _moved(self, name: str, tried: Try) -> bool:
        at = torch.tensor([tried.row])
        made = tried.made.get(name)
        return made is not None and bool(moved(self.base[name].take(at), made.take(at), self.scale[name]).any())

    def _one_sided(self, name: str, tries: Sequence[Try]) -> bool:
        # A row's value follows its own target if it moves farther, or against it, than those of most others.
        target, held = next(iter(self.held.items()))
        shares = [
            share_below(change(self.base[name], t.made[name]), t.row, float((t.targets[target] - held.y)[t.row].sign()))
            for t in tries
            if name in t.made
        ]
        return one_sided(shares)

    def future(self) -> None:
        """Drop, then shuffle, the rows at or after a time."""
        cuts = cut_places(self.choice, self.frame)
        self.checked.append(f"the future of {len(cuts)} times" if cuts else "no future, as there is one time only")
        fixed = self.runner.fixed(self.frame) if cuts else None
        fixed_base = fixed(self.frame) if fixed is not None else {}
        name = self.choice.order[0]
        for cut in cuts:
            before, after = (self.choice.rank < cut).nonzero().squeeze(1), (self.choice.rank == cut).nonzero()
            when = f"the rows at or after {name} = {shown(self.choice.table[name], int(after[0]))}"
            mixed = with_rows_of(self.frame, self.choice.mixed_future(cut, self.runner.columns(self.frame)))
            left = torch.arange(len(before))
            for what, frame, at_made in (
                (f"{when} were dropped", take_rows(self.frame, before), left),
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
            changed = with_rows_of(self.frame, self.choice.one_target(folds == k))
            what = f"the targets of fold {k} were changed"
            inside = (folds == k).nonzero().squeeze(1)
            if not isinstance(self.runner, SetRunner):
                self.compare("outer fold", self.base, self.runner.run(changed, f"when {what}"), what, inside)
                continue
            sides = ((folds != k).nonzero().squeeze(1), inside)
            pairs = (self.runner.cross_fit(frame, folds, k) for frame in (self.frame, changed))
            for rows, base, made in zip(sides, *pairs, strict=True):
                self.compare("outer fold", base, made, what, rows, at=torch.arange(len(rows)))

    def compare(
        self,
        kind: Kind,
        base: Made,
        made: Made,
        what: str,
        rows: torch.Tensor,
        *,
        at: torch.Tensor | None = None,
        at_made: torch.Tensor | None = None,
        excuse: Callable[[str], str | None] = lambda name: None,
    ) -> set[str]:
        """Record the suspects that have moved, and return them.

        Args:
            kind: the kind of leak that a move is.
            base, made: the columns before and after the change.
            what: the change, for messages.
            rows: int64, the rows of the checked frame that must not move.
            at: their places in ``base``; None: their numbers.
            at_made: their places in ``made``; None: ``at``.
            excuse: returns, in words, why a column's move is no leak; None: it is one.
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
            scale = self.scale[name] if base is self.base else typical(base[name])
            odd = moved(base[name].take(at), made[name].take(at_made), scale).nonzero()
            if len(odd):
                first[name] = int(odd[0])
        for name, i in first.items():
            excused = excuse(name)
            if excused is not None:
                self.excused.setdefault(name, excused)
                continue
            change = f"{shown(base[name], int(at[i]))} became {shown(made[name], int(at_made[i]))}"
            self.add(name, kind, int(self.rows[rows[i]]), f"{change} when {what}", set(first))
        return set(first)

    def add(self, column: str, kind: Kind, row: int | None, detail: str, together: set[str]) -> None:
        maker = self.runner.maker(column, together)
        leak = Leak(column, kind, row, detail, None if maker is None else repr(maker))
        self.leaks.setdefault((column, kind), leak)

    def _learns_from_all(self, column: str) -> str | None:
        learners = [] if self.strict else self.runner.learns_from_all(column)
        return f"uses later rows of the training data, through {learners[0]!r}" if learners else None
