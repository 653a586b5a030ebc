"""``check_leakage``: runs a pipeline again on changed rows, and names the columns that know what they must not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fastrec.columns import as_column
from fastrec.convert import take_rows
from fastrec.errors import DataError, LeakageError
from fastrec.features.base import as_list
from fastrec.features.folds import given_folds
from fastrec.features.leakage_rows import Choice, cut_places, key_sizes, probe_rows, sample_rows
from fastrec.features.leakage_runs import (
    FunctionRunner,
    Made,
    Runner,
    SetRunner,
    as_features,
    moved,
    shown,
    typical,
    with_rows_of,
)

Kind = Literal["random", "copy", "own target", "future", "outer fold"]

REMEDIES: dict[str, str] = {
    "random": "Fix the seed: what differs from run to run cannot be checked, nor made again for the test rows",
    "copy": "Drop the column: it is the target",
    "own target": "Encode targets out of fold (TargetEncode in a FeatureSet, fit_transform), or from earlier rows only",
    "future": "Use only rows earlier than the row: lags, cumulative statistics and windows that end before it",
    "outer fold": "Compute everything that a target is in, the prior too, from the other folds alone "
    "(FeatureSet.cross_fit), and anew for every fold",
}
_MOST_FOLDS = 5


@dataclass(frozen=True)
class Leak:
    """One column that knows too much.

    Args:
        column: the column.
        kind: ``random`` (two runs differ), ``copy`` (it is the target), ``own target``, ``future`` or ``outer fold``.
        row: the first row found, counted from 0 in the frame that was given; None where all rows show it.
        detail: what was changed, and what it did to the row's value.
        generator: the generator that it begins with, as it is written; None for a function.
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
    """What ``check_leakage`` found; true where it found nothing.

    Args:
        leaks: the leaks, one for each column and kind.
        notes: what is no leak by itself, but worth knowing.
        checked: what was tried, in words.
        outputs: all columns that were looked at.
    """

    leaks: list[Leak]
    notes: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no leak."""
        return not self.leaks

    def __bool__(self) -> bool:
        return self.ok

    @property
    def columns(self) -> list[str]:
        """The guilty columns, each once."""
        return list(dict.fromkeys(leak.column for leak in self.leaks))

    def raise_for_leaks(self) -> None:
        """Stop where there is a leak.

        Raises:
            LeakageError: naming the columns.
        """
        if self.leaks:
            first = self.leaks[0]
            raise LeakageError(
                f"{len(self.columns)} of {len(self.outputs)} columns leak ({', '.join(self.columns)}); {first.kind}: "
                f"{first.detail}",
                column=first.column,
                row=first.row,
                remedy=REMEDIES[first.kind],
            )

    def __str__(self) -> str:
        count = len(self.columns)
        head = "no leak found" if self.ok else f"{count} column{'s leak' if count > 1 else ' leaks'}"
        lines = [f"{head} among {len(self.outputs)} ({'; '.join(self.checked)})"]
        for kind, remedy in REMEDIES.items():
            found = [leak for leak in self.leaks if leak.kind == kind]
            lines += [f"  {leak}" for leak in found]
            lines += [f"    → {remedy}."] if found else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


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
    """Whether a pipeline's columns give away the target or the future, found by changing rows and running it again.

    *Own target*: a row's target alone is changed, and none of the row's values may move. *Future* (with ``order``):
    rows at or after a time are dropped, then mixed up, and no value before it may move. *Outer folds* (with
    ``folds``): a fold's targets are changed, and no value of its rows may move; of a FeatureSet, no value at all of
    what ``cross_fit`` gives for that fold. Runs that differ by themselves, and copies of the target, are told first.
    A column that stays still is not proved clean, only not caught at the rows tried.

    Args:
        pipeline: a FeatureSet, a generator, or any function that takes a frame and returns it with columns added (or
            only those), a row for every row. It is run some thirty times; what a FeatureSet has learned stays as it is.
        df: training rows of any supported library, with the target; not changed.
        target: the target column(s).
        order: the column(s) that say what is earlier: a time, or a step. Rows of one time do not count as earlier.
        key: the column(s) of rows that belong together (a session); for one generator also the key of its folds. None:
            a FeatureSet's own.
        folds: the folds of the model's validation: integers ``[n]`` from 0, or a column's name.
        tables: other tables that a FeatureSet reads, by name (a function closes over its own).
        probes: how many rows' targets are changed, one after the other: rows of rare keys and of frequent ones.
        seed: of the choice of rows.
        max_rows: of more rows a part is checked: whole keys, or the earliest rows, or any.
        strict: also report what a FeatureSet learns from all training rows, later ones included (out of fold or not)
            (a count, say). It is only noted otherwise.

    Returns:
        The report: ``report.ok``, ``report.columns``, ``print(report)``, ``report.raise_for_leaks()``.

    Raises:
        DataError: there is nothing to change (one row, a constant target), or the pipeline fails or returns other rows.

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
        raise DataError(
            f"check_leakage: probes={probes}, max_rows={max_rows} leave nothing to try",
            remedy="Use at least 1 probe and 2 rows",
        )
    features = as_features(pipeline, key)
    if features is None and not callable(pipeline):
        raise DataError(
            f"check_leakage: a {type(pipeline).__name__} is neither a FeatureSet nor a function",
            remedy="Give a FeatureSet, a generator, or a function from frame to frame",
        )
    targets, times = as_list(target), as_list(order)
    keys = as_list(key) or as_list(features.key if features is not None else None)
    fixed = list(dict.fromkeys([*keys, *times, *([folds] if isinstance(folds, str) else [])]))
    choice = Choice.of(df, targets, times, keys, seed)
    outer = None if folds is None else given_folds(df, folds, choice.table).cpu()
    rows, whole = sample_rows(choice, max_rows), len(choice.table)
    if len(rows) < whole:
        df, choice = take_rows(df, rows), choice.take(rows)
        outer = None if outer is None else outer[rows]
    runner: Runner = (
        SetRunner(features, tables) if features is not None else FunctionRunner(pipeline, targets, [*fixed, *targets])
    )
    check = _Check(runner, runner.prepare(df, [*targets, *fixed]), choice, rows, strict)
    check.twice()
    check.copies(fixed)
    check.own_targets(probes)
    if times:
        check.future()
    if outer is not None:
        check.outer_folds(outer)
    return check.report(whole)


class _Check:
    """The tries, one method each.

    Args:
        runner: what is checked.
        frame: the rows, as the runner takes them.
        choice: what is chosen by, of the same rows.
        rows: int64, their numbers in the frame that the user gave.
        strict: see ``check_leakage``.
    """

    def __init__(self, runner: Runner, frame: Any, choice: Choice, rows: torch.Tensor, strict: bool) -> None:
        self.runner, self.frame, self.choice, self.rows, self.strict = runner, frame, choice, rows, strict
        self.base = runner.start(frame)
        self.suspects = list(self.base)  # columns whose moving means something
        self.leaks: dict[tuple[str, Kind], Leak] = {}
        self.excused: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.checked: list[str] = []

    def report(self, whole: int) -> LeakageReport:
        """What was found, of the columns that the pipeline returns."""
        outputs = self.runner.listed
        leaks = [leak for leak in self.leaks.values() if leak.column in {*outputs, *self.runner.passed_on}]
        used = f"{len(self.rows):,} rows" + (f" of {whole:,}" if len(self.rows) < whole else "")
        excused = [f"{n!r} {e}" for n, e in self.excused.items() if n in outputs and (n, "future") not in self.leaks]
        return LeakageReport(leaks, [*excused, *self.notes], [used, *self.checked], outputs)

    # The tries -------------------------------------------------------------------------------------------------------

    def twice(self) -> None:
        """Two runs on the same rows: what differs by itself cannot be told from what moves."""
        made = self.runner.run(self.frame, "on the rows as they are")
        odd = self._compare("random", self.base, made, "it was run a second time", torch.arange(len(self.rows)))
        self.suspects = [n for n in self.suspects if n not in odd]

    def copies(self, fixed: Sequence[str]) -> None:
        """Columns that are the target row by row."""
        passed = {n: as_column(self.frame[n], name=n) for n in self.runner.passed_on if n not in fixed}
        for target in self.choice.targets:
            column = self.choice.table[target]
            known = (~column.is_missing()).nonzero().squeeze(1)
            for name, values in {**self.base, **passed}.items():
                if not bool(moved(column.take(known), values.to("cpu").take(known)).any()):
                    self._add(name, "copy", None, f"its values are those of {target!r}", {name})
                    self.suspects = [n for n in self.suspects if n != name]

    def own_targets(self, probes: int) -> None:
        """One row's target changed at a time."""
        rows = probe_rows(self.choice, key_sizes(self.frame, self.choice), probes)
        self.checked.append(f"the own targets of {len(rows)}")
        for row in rows:
            source = self.choice.other_targets(torch.tensor([row]))
            made = self.runner.run(
                with_rows_of(self.frame, source), f"with another target in row {int(self.rows[row])}"
            )
            name, taken = next(iter(source.items()))
            column = self.choice.table[name]
            what = f"{name!r} of this row alone went from {shown(column, row)} to {shown(column, int(taken[row]))}"
            self._compare("own target", self.base, made, what, torch.tensor([row]))

    def future(self) -> None:
        """Rows at or after a time dropped, then mixed up."""
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
                    self._compare("future", fixed_base, fixed(frame), what, before, at_made=at_made)
                made = self.runner.run(frame, f"when {what}")
                self._compare("future", self.base, made, what, before, at_made=at_made, excuse=self._learns_from_all)

    def outer_folds(self, folds: torch.Tensor) -> None:
        """All targets of one fold changed."""
        present = torch.unique(folds).tolist()
        tried = present[:: max(len(present) // _MOST_FOLDS, 1)][:_MOST_FOLDS]
        self.checked.append(f"the targets of {len(tried)} outer fold{'s' if len(tried) > 1 else ''}")
        for k in tried:
            changed = with_rows_of(self.frame, self.choice.one_target(folds == k))
            what = f"the targets of fold {k} were changed"
            inside = (folds == k).nonzero().squeeze(1)
            if not isinstance(self.runner, SetRunner):
                self._compare("outer fold", self.base, self.runner.run(changed, f"when {what}"), what, inside)
                continue
            sides = ((folds != k).nonzero().squeeze(1), inside)
            pairs = (self.runner.cross_fit(frame, folds, k) for frame in (self.frame, changed))
            for rows, base, made in zip(sides, *pairs, strict=True):
                self._compare("outer fold", base, made, what, rows, at=torch.arange(len(rows)))

    # What was found --------------------------------------------------------------------------------------------------

    def _compare(
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
        """Write down the suspects that have moved, and return them.

        Args:
            kind: what a move would be.
            base, made: the columns before and after the change.
            what: the change, for messages.
            rows: int64, the rows of the checked frame whose values should be as they were.
            at: where these rows stand in ``base``; None: at their number.
            at_made: where they stand in ``made``; None: where they stand in ``base``.
            excuse: what makes a column's moving no leak, in words.
        """
        at = rows if at is None else at
        at_made = at if at_made is None else at_made
        first: dict[str, int] = {}
        for name in self.suspects:
            if name not in made:
                self.notes[f"{name!r} could not be compared: it is not made when {what}"] = None
                continue
            odd = moved(base[name].take(at), made[name].take(at_made), typical(base[name])).nonzero()
            if len(odd):
                first[name] = int(odd[0])
        for name, i in first.items():
            excused = excuse(name)
            if excused is not None:
                self.excused.setdefault(name, excused)
                continue
            change = f"{shown(base[name], int(at[i]))} became {shown(made[name], int(at_made[i]))}"
            self._add(name, kind, int(self.rows[rows[i]]), f"{change} when {what}", set(first))
        return set(first)

    def _add(self, column: str, kind: Kind, row: int | None, detail: str, together: set[str]) -> None:
        maker = self.runner.maker(column, together)
        leak = Leak(column, kind, row, detail, None if maker is None else repr(maker))
        self.leaks.setdefault((column, kind), leak)

    def _learns_from_all(self, column: str) -> str | None:
        learners = [] if self.strict else self.runner.learns_from_all(column)
        return f"uses later rows of the training data, through {learners[0]!r}" if learners else None
