"""``check_leakage``: runs a pipeline again on changed rows, and names the columns that know what they must not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrec.columns import as_column
from fastrec.convert import take_rows
from fastrec.errors import DataError
from fastrec.features.base import as_list
from fastrec.features.folds import given_folds
from fastrec.features.leakage_draws import (
    SIGNS,
    Followers,
    change,
    followers,
    one_sided,
    patterns,
    scattered,
    share_below,
    static,
    tells_enough,
    told_within,
)
from fastrec.features.leakage_report import Kind, Leak, LeakageReport
from fastrec.features.leakage_rows import Choice, cut_places, key_codes, key_sizes, probe_rows, sample_rows
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
from fastrec.features.leakage_static import Held, follows, numbers, of_key, one_to_one, row_order
from fastrec.table import Column

_MOST_FOLDS, _MOST_ROUNDS, _MOST_SINGLE = 5, 5, 3
_TOLD: tuple[Kind, ...] = ("copy", "own target", "leave-one-out")


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
    rows, given, whole = sample_rows(choice, max_rows), df, choice
    if len(rows) < len(whole.table):
        df, choice = take_rows(df, rows), choice.take(rows)
        outer = None if outer is None else outer[rows]
    runner: Runner = (
        SetRunner(features, tables) if features is not None else FunctionRunner(pipeline, targets, [*fixed, *targets])
    )
    check = _Check(runner, runner.prepare(df, [*targets, *fixed]), choice, rows, strict)
    check.twice()
    check.copies(fixed)
    check.own_targets(probes)
    check.draws()
    check.leave_one_out(df)
    check.made_beforehand(df, given, whole, fixed)
    if times:
        check.future()
    if outer is not None:
        check.outer_folds(outer)
    return check.report(len(whole.table))


@dataclass(frozen=True, eq=False)
class _Try:
    """One run with one row's target changed.

    Args:
        row: its place among the checked rows.
        made: the columns.
        what: the change, for messages.
        targets: each target after it, as numbers float64 ``[n]``.
    """

    row: int
    made: Made
    what: str
    targets: dict[str, torch.Tensor]


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
        self.unclear: set[str] = set()  # those of which no single row's move means anything
        self.held = {n: Held(n, choice.table[n], choice.table[n], rows) for n in choice.targets}
        self.tries: list[_Try] = []
        self.drawn: list[tuple[Made, dict[str, torch.Tensor]]] = []
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
        sizes = key_sizes(self.frame, self.choice)
        tries = [self._try_one(row) for row in probe_rows(self.choice, sizes, probes)]
        self.checked.append(f"the own targets of {len(tries)}")
        odd = {n for n in self.suspects for t in tries if self._moved(n, t) and scattered(self.base[n], t.made[n])}
        if odd:
            more = [row for row in probe_rows(self.choice, sizes, SIGNS) if row not in {t.row for t in tries}]
            every = [*tries, *(self._try_one(row) for row in more[: SIGNS - len(tries)])]
            self.unclear = {n for n in odd if not self._one_sided(n, every)}
        for name in sorted(self.unclear):
            self.notes[
                f"{name!r} moves with one target in all rows, as with folds that are drawn by the targets; whether a "
                "row's own moves it is not told"
            ] = None
        for t in tries:
            self._compare("own target", self.base, t.made, t.what, torch.tensor([t.row]))
        self.tries = tries

    def _try_one(self, row: int) -> _Try:
        source = self.choice.other_targets(torch.tensor([row]))
        made = self.runner.run(with_rows_of(self.frame, source), f"with another target in row {int(self.rows[row])}")
        name, taken = next(iter(source.items()))
        column = self.choice.table[name]
        what = f"{name!r} of this row alone went from {shown(column, row)} to {shown(column, int(taken[row]))}"
        return _Try(row, made, what, self._targets(source))

    def _targets(self, source: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: held.y[source[n]] for n, held in self.held.items()}

    def _moved(self, name: str, tried: _Try) -> bool:
        at = torch.tensor([tried.row])
        made = tried.made.get(name)
        return made is not None and bool(moved(self.base[name].take(at), made.take(at), typical(self.base[name])).any())

    def _one_sided(self, name: str, tries: Sequence[_Try]) -> bool:
        """Whether a row's value goes with its own target farther than those of most others, or against it."""
        target, held = next(iter(self.held.items()))
        shares = [
            share_below(change(self.base[name], t.made[name]), t.row, float((t.targets[target] - held.y)[t.row].sign()))
            for t in tries
            if name in t.made
        ]
        return one_sided(shares)

    def draws(self) -> None:
        """Many rows' targets changed at random, then fewer and fewer of those that seem to move with their own."""
        known = torch.ones(len(self.rows), dtype=torch.bool)
        for name in self.choice.targets:
            known &= ~self.choice.table[name].is_missing()
        random = self.choice.generator()
        flips = patterns(known, random)
        runs = [self._flip(f) for f in flips]
        self.drawn = [(made, self._targets(source)) for made, source in runs]
        self.checked.append(f"those of all, changed at random {len(flips)} times")
        names = [n for n in self.suspects if n not in self.unclear and all(n in made for made, _ in self.drawn)]
        names = [n for n in names if (n, "own target") not in self.leaks]
        found = {n: followers(self.base[n], [made[n] for made, _ in self.drawn], flips) for n in names}
        found = {n: f for n, f in found.items() if len(f.rows)}
        for _ in range(_MOST_ROUNDS):
            if all(len(f.rows) <= 1 for f in found.values()):
                break
            some = torch.cat([f.rows for f in found.values() if len(f.rows) > 1]).unique()
            flipped = torch.zeros(len(known), dtype=torch.bool)
            flipped[some[torch.rand(len(some), generator=random) < 0.6]] = True
            made, _ = self._flip(flipped)
            found = {n: f.left(change(self.base[n], made[n], exact=f.exact), flipped) for n, f in found.items()}
        for name, rows in found.items():
            self._confirm(name, rows)

    def _flip(self, flipped: torch.Tensor) -> tuple[Made, dict[str, torch.Tensor]]:
        source = self.choice.other_targets(flipped.nonzero().squeeze(1))
        made = self.runner.run(with_rows_of(self.frame, source), f"with other targets in {int(flipped.sum())} rows")
        return made, source

    def _confirm(self, name: str, found: Followers) -> None:
        """One row's target changed alone: only what moves then is a leak."""
        for row in found.rows[:_MOST_SINGLE].tolist():
            t = self._try_one(row)
            delta = change(self.base[name], t.made[name], exact=found.exact)
            alone = not found.exact or int((delta != 0).sum()) == 1  # else it may be rounding
            flipped = torch.arange(len(delta)) == row
            if not alone or row not in found.left(delta, flipped).rows:
                continue
            if found.exact:
                self._add(name, "own target", int(self.rows[row]), f"its last digits changed when {t.what}", {name})
            else:
                self._compare("own target", self.base, t.made, t.what, torch.tensor([row]))
            return

    def leave_one_out(self, df: Any) -> None:
        """Values that say their row's target within a key, whatever the targets are."""
        keys = [torch.zeros(len(self.rows), dtype=torch.int64), *key_codes(df, self.choice).values()]
        if self.choice.keys:
            keys.append(self.choice.table.coded(self.choice.keys).codes)
        for name in self.suspects:
            values = numbers(self.base[name])
            drawn = [(numbers(made[name]), y) for made, y in self.drawn[:3] if name in made]
            if values is None or (name, "own target") in self.leaks or any(v is None for v, _ in drawn):
                continue
            if static(self.base[name], [made[name] for made, _ in self.drawn if name in made]):
                continue
            for target, held in self.held.items():
                within = any(tells_enough([told_within(c, y[target], v) for v, y in drawn]) for c in keys)
                if within or tells_enough(self._among_moved(name, target, values)):
                    what = f"within its key it says the row's {target!r}, however the targets are changed"
                    self._add(name, "leave-one-out", None, what, {name})

    def _among_moved(self, name: str, target: str, values: torch.Tensor) -> list[tuple[int, int]]:
        """The same among the rows that one row's target has moved, before and after, with that row."""
        pairs = []
        for t in self.tries:
            after = numbers(t.made[name]) if name in t.made else None
            if after is None:
                continue
            group = change(self.base[name], t.made[name]) != 0
            group[t.row] = True
            if int(group.sum()) > 2:
                one = torch.zeros(int(group.sum()), dtype=torch.int64)
                sides = ((self.held[target].y, values), (t.targets[target], after))
                pairs += [told_within(one, y[group], v[group]) for y, v in sides if len(torch.unique(y[group])) > 1]
        return pairs

    def made_beforehand(self, df: Any, given: Any, whole: Choice, fixed: Sequence[str]) -> None:
        """Columns that no target moves, held to the targets by statistics."""
        made = [made for made, _ in self.drawn]
        columns = {n: self.base[n] for n in self.suspects if static(self.base[n], [m[n] for m in made if n in m])}
        columns |= {n: as_column(df[n], name=n) for n in self.runner.passed_on if n not in fixed}
        columns = {n: c.to("cpu") for n, c in columns.items() if not any((n, k) in self.leaks for k in _TOLD)}
        keys = key_codes(df, self.choice)
        self.checked.append("columns that no target moves, other tables' among them, against the targets by key")

        def whole_key(name: str) -> torch.Tensor:
            return as_column(given[name], name=name).to("cpu").coded().codes

        for target in self.choice.targets:
            held = Held(target, self.choice.table[target], whole.table[target], self.rows)
            for name, column in columns.items():
                others = {n: codes for n, codes in keys.items() if n != name}
                self._hold(name, column, held, lambda c, h, others=others: of_key(c, others, whole_key, h))

    def _hold(self, name: str, column: Column, held: Held, of_key: Callable[[Column, Held], str | None]) -> None:
        tests = (("copy", one_to_one), ("row order", row_order), ("outside", of_key))
        for kind, test in tests:
            what = test(column, held)
            if what is not None and kind == "row order" and self.choice.order:
                self.notes[f"{name!r}: {what}"] = None
                return
            if what is not None:
                self._add(name, kind, None, what, {name})
                return
        what = follows(column, held)
        if what is not None:
            self.notes[f"{name!r} {what}"] = None

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
            if kind == "own target" and name in self.unclear:
                continue
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
