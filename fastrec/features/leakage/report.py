"""Report of ``check_leakage``: leaks by kind, their remedies, and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fastrec.errors import LeakageError

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
        kind: one of:

            - ``random``: two runs differ;
            - ``copy``: it is the target, or maps one to one to it;
            - ``own target``: the row's own target changes its value;
            - ``leave-one-out``: the value reveals the row's own target, but only other rows' targets change it;
            - ``outside``: it is a statistic of these rows' targets, computed before the pipeline (another table);
            - ``row order``: it is a row number or id, and the rows are sorted by the target;
            - ``future``, ``outer fold``: later rows, or targets of the row's fold, change its value.
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
