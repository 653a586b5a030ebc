"""``ValueForm``: a submission with one line per row (or per candidate): ids, and predicted values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fastrec.competition.forms.form import SubmissionForm
from fastrec.competition.forms.ordering import arrow_column
from fastrec.competition.forms.row_keys import key_text
from fastrec.errors import DataError, MissingColumnError, SubmissionError
from fastrec.table.csv_text import csv_header

__all__ = ["ValueForm"]


@dataclass(frozen=True, kw_only=True)
class ValueForm(SubmissionForm):
    """The form of a submission with one line for each test row.

    Args:
        ids: the columns that name a row, first in the file; none: lines are in the order of the test rows.
        values: the columns that are predicted. Of classes: one column for each class (their probabilities, in the order
            of the classes), or one (the probability of class 1, or the class itself if the metric scores classes).
        sep: separates two values, one character.
        decimals: digits after the point; None: as many as tell one float64 from another.
        per_list: in a ranking task the most lines of a list, best first; None: all, in the order of the candidates.
        probabilities: values must lie between 0 and 1.

    Raises:
        DataError: no file can have this form.
    """

    kind: ClassVar[str] = "values"
    ids: tuple[str, ...] = ()
    values: tuple[str, ...]
    sep: str = ","
    decimals: int | None = None
    per_list: int | None = None
    probabilities: bool = False

    def __post_init__(self) -> None:
        for name in ("ids", "values"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))  # it is frozen
        if not self.values or len(set(self.header)) < len(self.header) or len(self.sep) != 1 or self.sep in '"\r\n':
            raise DataError(
                f"no submission has the columns {', '.join(self.header)} and the separator {self.sep!r}",
                remedy="Name each column once, one of them to be predicted, and give one character as the separator",
            )

    @property
    def keys_needed(self) -> tuple[str, ...]:
        """The columns that rows need to be written in this form."""
        return self.ids

    @property
    def predictions(self) -> tuple[str, ...]:
        """The columns of predicted values."""
        return self.values

    @property
    def delimiter(self) -> str:  # type: ignore[override]
        """The character between two columns."""
        return self.sep

    @classmethod
    def of_sample(cls, path: str | Path, *, ids: Sequence[str] | str | None = None, **options: Any) -> ValueForm:
        """Take the form from a sample submission: its separator and its columns.

        Args:
            path: the sample, such as ``sample_submission.csv``.
            ids: the columns that name a row; None: the first column, where there are two or more.
            **options: other arguments of ``ValueForm``.

        Raises:
            MissingFileError, UnreadableFileError, MissingColumnError: the file cannot be used.
        """
        sep = max((",", "\t", ";", "|"), key=lambda s: len(csv_header(path, sep=s)))
        header = csv_header(path, sep=sep)
        ids = (header[:1] if len(header) > 1 else []) if ids is None else [ids] if isinstance(ids, str) else list(ids)
        absent = next((n for n in ids if n not in header), None)
        if absent is not None:
            raise MissingColumnError(
                "the column is not in the file", file=path, column=absent, remedy=f"It has {', '.join(header)}"
            )
        return cls(ids=tuple(ids), values=tuple(n for n in header if n not in ids), sep=sep, **options)

    # Files -----------------------------------------------------------------------------------------------------------

    def write(self, path: str | Path, ids: Any, values: Mapping[str, Any]) -> None:
        """Write a submission, or nothing: the same input always gives the same bytes.

        Args:
            path: the file to write or replace.
            ids: pandas, polars or Arrow table, or a dict of columns, with the id columns; other columns are ignored.
            values: column → ``[n]`` numbers (or classes as text, integers or booleans), in the order of the ids.

        Raises:
            MissingColumnError: a column is not there.
            DataError: a value is missing or not finite, or lengths differ.
            SubmissionError: two rows have the same ids.
            WriteError: the file system refused; what was at ``path`` is as it was.
        """
        columns = {n: key_text(ids, n, what="id", times=True) for n in self.ids} | {
            n: self._value_text(values, n) for n in self.values
        }
        self.write_lines(path, columns)

    def read(self, path: str | Path) -> pa.Table:
        """Read a submission as text; see ``read_lines``."""
        return self.read_lines(path)

    def numbers(self, table: pa.Table, name: str, path: str | Path) -> np.ndarray:
        """Return a value column of a submission as float64 ``[n]``.

        Raises:
            SubmissionError: a value is no finite number, or no probability if the form wants one.
        """
        text = arrow_column(table[name], name)
        try:
            numbers = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
            bad = ~np.isfinite(numbers)
        except pa.ArrowInvalid:
            bad = np.array([not _is_number(t) for t in text.to_pylist()])
            numbers = np.zeros(len(text))
        problem = "is no finite number"
        if self.probabilities and not bad.any():
            bad, problem = (numbers < 0) | (numbers > 1), "is no probability"
        if bad.any():
            row = int(bad.argmax())
            raise SubmissionError(
                f"{text[row].as_py()!r} {problem} ({int(bad.sum())} such rows in all)",
                file=path,
                column=name,
                row=row,
                remedy="Write a number between 0 and 1" if self.probabilities else "Write a number",
            )
        return numbers

    def _value_text(self, values: Mapping[str, Any], name: str) -> pa.Array:
        if name not in values:
            raise MissingColumnError(
                "nothing was predicted for it", column=name, remedy=f"There is {', '.join(values)}"
            )
        column = arrow_column(values[name], name)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null())[0])
            raise DataError("a value is missing", column=name, row=row, remedy="Predict every row")
        if not pa.types.is_floating(column.type):
            return column.cast(pa.large_string())
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise DataError("a value is not finite", column=name, row=row, remedy="Look at the model that made it")
        if self.decimals is None:
            return pa.array(list(map(repr, numbers.tolist())), pa.large_string())
        return pa.array([f"{v:.{self.decimals}f}" for v in numbers.tolist()], pa.large_string())


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
