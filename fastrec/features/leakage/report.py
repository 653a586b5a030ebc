"""What ``check_leakage`` has found: leaks by kind, what to do about them, and what is only worth knowing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fastrec.errors import LeakageError

Kind = Literal["random", "copy", "own target", "leave-one-out", "outside", "row order", "future", "outer fold"]

REMEDIES: dict[str, str] = {
    "random": "Fix the seed: what differs from run to run cannot be checked, nor made again for the test rows",
    "copy": "Drop the column: it is the target, or the target in other words",
    "own target": "Encode targets out of fold (TargetEncode in a FeatureSet, fit_transform), or from earlier rows only",
    "leave-one-out": "Encode targets by folds of many rows: the other rows of a key tell the total, so that what is "
    "left out shows the row's own target",
    "outside": "Make it inside the pipeline, out of fold (TargetEncode): what was made beforehand from the targets of "
    "these rows holds each row's own",
    "row order": "Drop the column, or number the rows by something that is known when they are scored",
    "future": "Use only rows earlier than the row: lags, cumulative statistics and windows that end before it",
    "outer fold": "Compute everything that a target is in, the prior too, from the other folds alone "
    "(FeatureSet.cross_fit), and anew for every fold",
}


@dataclass(frozen=True)
class Leak:
    """One column that knows too much.

    Args:
        column: the column.
        kind: one of these.

            - ``random``: two runs differ;
            - ``copy``: it is the target, or stands for it value by value;
            - ``own target``: the row's own target moves its value;
            - ``leave-one-out``: the value says the row's own target, though only those of other rows move it;
            - ``outside``: it is a statistic of the targets of these rows, made before the pipeline (another table);
            - ``row order``: it is a row's place or id, and the rows stand in the order of the target;
            - ``future``, ``outer fold``: later rows, or targets of the row's fold, move its value.
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
