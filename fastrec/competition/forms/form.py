"""``SubmissionForm``: what all forms of a submission share: lines named by keys, checked, read and written as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from fastrec.competition.forms.row_keys import RowKeys
from fastrec.errors import DataError, SubmissionError
from fastrec.table.csv_text import csv_header, read_text_csv, write_text_csv


class SubmissionForm:
    """A submission: keys that name a line, and columns of predictions. Its kinds are frozen dataclasses.

    Everything is read and compared as text, so that ids are exactly as they are in the file.
    """

    kind: ClassVar[str]
    delimiter: ClassVar[str] = ","

    @property
    def keys_needed(self) -> tuple[str, ...]:
        """The columns that name a line; none: its number does."""
        raise NotImplementedError

    @property
    def predictions(self) -> tuple[str, ...]:
        """The columns of predictions, after the keys."""
        raise NotImplementedError

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.keys_needed, *self.predictions)

    def to_state(self) -> dict[str, Any]:
        """Return the form as JSON values, for a run's ``config.json``."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Invert ``to_state``.

        Raises:
            ValueError, TypeError, KeyError: the state is not one that ``to_state`` returns.
        """
        hints = get_type_hints(cls)
        known = {n: _frozen(state[n]) for n in (f.name for f in fields(cls))}  # type: ignore[arg-type]
        wrong = next((n for n, value in known.items() if not _fits(value, hints[n])), None)
        if wrong is not None:
            raise TypeError(f"{wrong} is {known[wrong]!r}")
        return cls(**known)

    def read_lines(self, path: str | Path, *, exact: bool = True) -> pa.Table:
        """Read a submission as text.

        Args:
            path: the file.
            exact: it has the form's columns alone, in their order.

        Raises:
            SubmissionError: it has other columns, or two lines with the same keys.
            MissingFileError, UnreadableFileError, MissingColumnError: it cannot be read, or lacks a column.
        """
        sep = self.delimiter
        names = tuple(csv_header(path, sep=sep)) if exact else self.header
        if names != self.header:
            other = next((n for n in names if n not in self.header), None)
            remedy = f"Write exactly {sep.join(self.header)}"
            raise SubmissionError(f"the header is {sep.join(names)}", file=path, column=other, remedy=remedy)
        table = read_text_csv(path, self.header, sep=sep)
        RowKeys(table, self.keys_needed, path).refuse_repeated()
        return table

    def write_lines(self, path: str | Path, columns: Mapping[str, pa.Array]) -> pa.Table:
        """Write columns of text, or nothing.

        Raises:
            DataError: lengths differ.
            SubmissionError: two lines have the same keys.
            WriteError: the file system refused; what was at ``path`` is as it was.
        """
        table = self.table_of(columns, path)
        write_text_csv(path, table, sep=self.delimiter)
        return table

    def table_of(self, columns: Mapping[str, pa.Array], path: str | Path) -> pa.Table:
        """Put columns of text together; raises as ``write_lines`` does."""
        lengths = {n: len(c) for n, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"lengths differ: {lengths}", remedy="Give one value or list for each row of keys")
        table = pa.table(dict(columns))
        RowKeys(table, self.keys_needed, path).refuse_repeated()
        return table

    def match(
        self, table: pa.Table, wanted: RowKeys, path: str | Path, *, role: str = "no row", complete: bool = True
    ) -> np.ndarray:
        """Find for every line the row that it is about: int64 ``[n]``.

        Args:
            table: the submission.
            wanted: the keys of the rows that it must have.
            path: the submission's file, for errors.
            role: what a line is that is not about one of them.
            complete: every row needs a line.

        Raises:
            DataError: two of the rows have the same keys.
            SubmissionError: a line is about no such row, or a row has no line.
        """
        if not self.keys_needed and len(table) != len(wanted.text):
            problem = f"it has {len(table)} rows, {wanted.path.name} has {len(wanted.text)}"
            raise SubmissionError(problem, file=path, remedy="Write one line for each, in their order")
        return RowKeys(table, self.keys_needed, path).match(wanted, role=role, complete=complete)


class ReportLines:
    """A result that prints as lines."""

    def lines(self) -> list[str]:
        """Return the lines to print."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _fits(value: Any, hint: Any) -> bool:
    kinds = get_args(hint)
    if get_origin(hint) is tuple:
        kinds = kinds[:1] * len(value) if kinds[-1] is ... and isinstance(value, tuple) else kinds
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    return any(_fits(value, k) for k in kinds) if kinds else type(value) is hint
