"""``RowKeys``: the columns that name a submission's rows, as one text for each row.

Keys are read and compared as text, so that they stay exactly what they are in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.ordering import arrow_column
from fastrec.errors import DataError, MissingColumnError, SubmissionError
from fastrec.table.key_types import is_text

_UNIT = "\x1f"  # stands between the keys of a row


class RowKeys:
    """The keys of a file's rows.

    Args:
        table: the rows.
        names: the columns that name a row; none: its number does.
        path: the file that the rows are of, or are to be.
        numbers: ``[n]`` where the rows stand in that file; None: they are all of it.
    """

    def __init__(
        self, table: pa.Table, names: Sequence[str], path: str | Path, numbers: np.ndarray | None = None
    ) -> None:
        self.names, self.path = tuple(names), Path(path)
        self.numbers = np.arange(len(table)) if numbers is None else numbers
        if self.names:
            columns = [arrow_column(table[n], n).cast(pa.large_string()) for n in self.names]
            self.text = pc.binary_join_element_wise(*columns, pa.scalar(_UNIT, pa.large_string()))
        else:
            self.text = pa.array(self.numbers).cast(pa.large_string())

    def named(self, row: int) -> str:
        """Describe a row by its keys."""
        text = self.text[int(row)].as_py()
        return ", ".join(f"{n} {v}" for n, v in zip(self.names, text.split(_UNIT))) if self.names else f"row {text}"

    def repeated(self) -> np.ndarray:
        """Return the rows whose keys an earlier row has."""
        codes = self.text.dictionary_encode().indices.to_numpy()  # as they appear: what is new has the highest code
        return np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1]) + 1

    def refuse_repeated(self) -> None:
        """Refuse a submission with two rows of the same keys.

        Raises:
            SubmissionError: naming the first such row.
        """
        again = self.repeated()
        if len(again):
            raise SubmissionError(
                f"{self.named(again[0])} stands in an earlier row too ({len(again)} such rows in all)",
                file=self.path, column=", ".join(self.names), row=int(self.numbers[again[0]]),
                remedy="Keep one row each",
            )  # fmt: skip

    def match(self, wanted: RowKeys, *, role: str, complete: bool = True) -> np.ndarray:
        """Find for every row of a submission the row that it is about: int64 ``[n]``.

        Args:
            wanted: the keys of the rows that the submission must have.
            role: what a row is that is not among them (``'not a target'``).
            complete: none of them may be left out.

        Raises:
            DataError: two of the wanted rows have the same keys.
            SubmissionError: a row is about none of them, or one is left out.
        """
        column, name, twice = ", ".join(self.names), wanted.path.name, wanted.repeated()
        if len(twice):
            raise DataError(
                f"{wanted.named(twice[0])} stands in an earlier row too ({len(twice)} in all)",
                file=wanted.path, column=column, row=int(wanted.numbers[twice[0]]),
                remedy="Give the file as it was published",
            )  # fmt: skip
        found = pc.index_in(self.text, value_set=wanted.text)
        extra = np.flatnonzero(found.is_null())
        if len(extra):
            raise SubmissionError(
                f"{self.named(extra[0])} is {role} of {name} ({len(extra)} such rows in all)",
                file=self.path, column=column, row=int(extra[0]),
                remedy="Keep the rows of that file alone, with their keys as they are there",
            )  # fmt: skip
        rows = found.to_numpy().astype(np.int64)
        missing = np.setdiff1d(np.arange(len(wanted.text)), rows)
        if len(missing) and complete:
            raise SubmissionError(
                f"row {wanted.numbers[missing[0]]} of {name} has no row here: {wanted.named(missing[0])} "
                f"({len(missing)} missing in all)",
                file=self.path, column=column, remedy="Write one row for each that is to be predicted",
            )  # fmt: skip
        return rows


def key_text(frame: Any, name: str, *, what: str = "key", times: bool = False) -> pa.Array:
    """Convert a column of keys to text.

    Args:
        frame: a table of any library, or a dict of columns.
        name: the column.
        what: what errors call one of its values.
        times: dates and times are keys too: days as days, moments to the second.

    Raises:
        MissingColumnError: there is no such column.
        DataError: a key is missing, or of a type that has no exact text.
    """
    names = frame.column_names if isinstance(frame, pa.Table) else list(getattr(frame, "columns", frame))
    if name not in names:
        raise MissingColumnError(f"the {what}s lack it", column=name, remedy=f"They have {', '.join(map(str, names))}")
    column = arrow_column(frame[name], name)
    refuse_nulls(column, name, f"{'an' if what[0] in 'aeiou' else 'a'} {what} is missing")
    if times and pa.types.is_timestamp(column.type):
        midnight = pc.all(pc.equal(pc.floor_temporal(column, unit="day"), column)).as_py() in (True, None)
        return pc.strftime(column, format="%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M:%S").cast(pa.large_string())
    if not (is_text(column.type) or pa.types.is_integer(column.type) or (times and pa.types.is_date(column.type))):
        raise DataError(
            f"{what}s are {column.type}, which has no exact text", column=name, remedy="Give integers or strings"
        )
    return column.cast(pa.large_string())


def refuse_nulls(column: pa.Array, name: str, problem: str) -> None:
    """Refuse a column with missing values.

    Raises:
        DataError: naming the first such row.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise DataError(f"{problem} ({column.null_count} in all)", column=name, row=row, remedy="Fill it first")
