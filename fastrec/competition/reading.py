"""``Reading``: how the files of a folder are read: which is which, headers, separators, times and numbers in text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fastrec.errors import DataWarning
from fastrec.table.read import CsvForm, read_file

LETTERS = r"[A-Za-z]{1,3}[-_ ]?(?=\d{1,4}$)"  # before numbers of months, days, hours: c-8
_AROUND = r"[\s$€£%,']"  # what stands in and around numbers that people write


@dataclass(repr=False)
class Reading:
    """What the files themselves do not say.

    Args:
        files: role → the file's name, such as ``{'train': 'flights.csv'}``: of ``train``, ``test``, ``truth`` and
            ``sample``; other files keep their own names.
        tables: the names of other files that are read too; None: all that lie in the folder.
        header, delimiter, missing: how the text files are written, as ``fastrec.table.read.CsvForm`` has it. (A file
            whose first line holds names that are not ``header`` has a header of its own.)
        dates: columns of text, or of whole numbers such as 20240131, that are times → their format, as in
            ``'%d/%m/%Y'``; None: ISO 8601.
        numbers: columns of text that are numbers with signs around them: ``'$1,200'``, ``'5 %'``.
        decimal_commas: those of ``numbers`` that are written as in ``'1.200,50'``.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[str] | None = None
    header: Sequence[str] | None = None
    delimiter: str | None = None
    missing: Sequence[str] = ()
    dates: Mapping[str, str | None] = field(default_factory=dict)
    numbers: Sequence[str] = ()
    decimal_commas: Sequence[str] = ()

    def __repr__(self) -> str:
        """What is not as usual, as Python."""
        usual = {
            "files": {},
            "tables": None,
            "header": None,
            "delimiter": None,
            "missing": [],
            "dates": {},
            "numbers": [],
            "decimal_commas": [],
        }
        own = {n: list(v) if n in ("missing", "numbers", "decimal_commas") else v for n, v in vars(self).items()}
        return f"Reading({', '.join(f'{n}={v!r}' for n, v in own.items() if v != usual[n])})"

    def read(self, path: str | Path) -> pa.Table:
        """A file as an Arrow table, with its times and numbers as such.

        Raises:
            FastrecError: naming the file and, where one is at fault, column and row.
        """
        form = CsvForm(self.header, self.delimiter, self.missing)
        return self.convert(read_file(path, form=form), file=path)

    def convert(self, table: pa.Table, *, file: str | Path | None = None) -> pa.Table:
        """A table with its times and numbers as such; columns that it lacks are passed over.

        A value that is not of the format becomes missing, and is told of (``DataWarning``).
        """
        for name, form in self.dates.items():
            if name in table.column_names and not pa.types.is_temporal(table[name].type):
                table = _set(table, name, _by_value(table[name], lambda v, f=form, n=name: parse_times(v, f, n, file)))
        for name in self.numbers:
            if name in table.column_names and pa.types.is_string(_plain(table[name]).type):
                comma = name in self.decimal_commas
                made = _by_value(table[name], lambda v, n=name, c=comma: parse_numbers(v, n, file, decimal_comma=c))
                table = _set(table, name, made)
        return table

    def to_state(self) -> dict[str, Any]:
        """As JSON values."""
        made = asdict(self)
        return {
            **made,
            "header": None if self.header is None else list(self.header),
            "numbers": list(self.numbers),
            "decimal_commas": list(self.decimal_commas),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Reading:
        """The inverse of ``to_state``."""
        return cls(**state)


def parse_times(values: pa.Array, form: str | None, column: str, file: str | Path | None = None) -> pa.Array:
    """Texts as times.

    Args:
        values: text, or whole numbers.
        form: as of ``strptime``; None: ISO 8601.
        column: for messages.
        file: for messages.
    """
    import pandas as pd

    text = pd.Series(values.cast(pa.string()).to_pandas(), dtype="object")
    made = pd.to_datetime(text, format=form or "ISO8601", errors="coerce", utc=_has_offsets(text, form))
    _tell_of_lost(text, made.isna(), column, file, f"is no time of the format {form or 'ISO 8601'}")
    return pa.Array.from_pandas(made.dt.as_unit("us"))


def parse_numbers(
    values: pa.Array, column: str, file: str | Path | None = None, *, decimal_comma: bool = False
) -> pa.Array:
    """Texts as numbers: currency and percent signs, spaces and what parts thousands are passed over.

    So are one to three letters that a few digits follow: ``c-8`` is 8.

    Args:
        values: text.
        column: for messages.
        file: for messages.
        decimal_comma: dots part thousands, a comma the decimals.
    """
    import pandas as pd

    text = pd.Series(values.to_pandas(), dtype="object")
    plain = text.str.replace(".", "", regex=False).str.replace(",", ".", regex=False) if decimal_comma else text
    plain = plain.str.strip().str.replace(f"^{LETTERS}", "", regex=True)
    made = pd.to_numeric(plain.str.replace(_AROUND, "", regex=True), errors="coerce")
    _tell_of_lost(text, made.isna() & (text.str.strip() != ""), column, file, "is no number")
    return pa.array(made.to_numpy(dtype="float64"), from_pandas=True)


def _has_offsets(text: Any, form: str | None) -> bool:
    """Whether times carry an offset from UTC: they become UTC then."""
    if form is not None:
        return "%z" in form
    return bool(text.dropna().astype(str).str.contains(r"(?:Z|[+-]\d\d:?\d\d)$", regex=True).any())


def _tell_of_lost(text: Any, lost: Any, column: str, file: str | Path | None, what: str) -> None:
    lost = lost & text.notna()
    if bool(lost.any()):
        where = "" if file is None else f"{Path(file).name}: "
        warnings.warn(
            f"{where}column {column!r}: {text[lost].iloc[0]!r} {what} ({int(lost.sum())} different such values); they "
            "are taken as missing",
            DataWarning,
            stacklevel=2,
        )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary's values in full."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column


def _by_value(column: pa.ChunkedArray, make: Any) -> pa.Array:
    """Each distinct value converted once."""
    coded = pc.dictionary_encode(_plain(column)).combine_chunks()
    made = make(coded.dictionary)
    return made.take(coded.indices)


def _set(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)
