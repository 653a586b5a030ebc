"""``Reading``: how to read a folder's files: roles, headers, separators, times and numbers in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError, MissingFileError, warn
from fastrec.table import Table
from fastrec.table.column_types import as_type, as_types, differing, shared_types, times_in_text, type_of, types_of
from fastrec.table.keys import UNITS_PER_SECOND
from fastrec.table.read import MISSING_TEXT, CsvForm, read_file

LETTERS = r"[A-Za-z]{1,3}[-_ ]?(?=\d{1,4}$)"  # before numbers of months, days, hours: c-8
_MINUS, _GAP = "\u2212", "\u00a0"
_SIGNS = rf"[-+{_MINUS}]?\s*[$€£]?\s*[-+{_MINUS}]?\s*"
_DIGITS = rf"(?:\d{{1,3}}(?:[,' {_GAP}]\d{{2,3}})*[,' {_GAP}]\d{{3}}|\d+)"  # groups of thousands, in India of hundreds
_AROUND = rf"\(?{_SIGNS}\(?(?:%s)\s*[%%$€£]?\s*\)?"  # in brackets: negative, as accountants write
NUMBER_TEXT = _AROUND % rf"{_DIGITS}(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+"
COMMA_TEXT = _AROUND % rf"(?:\d{{1,3}}(?:[.' {_GAP}]\d{{3}})+|\d+)(?:,\d+)?"
_ROWS = ("train", "test", "history")  # tables of rows, which share the types of columns


@dataclass(repr=False)
class Reading:
    """File roles, text formats and column types that the files do not determine.

    Args:
        files: role (``train``, ``test``, ``truth``, ``sample``) → file name, such as ``{'train': 'flights.csv'}``.
        tables: other files to read, by name; None: all in the folder.
        header, delimiter, missing: see ``fastrec.table.read.CsvForm``. (If a file's first line has other names than
            ``header``, it is used as the header.)
        dates: columns of times, written as text or as whole numbers such as 20240131 → their format, as in
            ``'%d/%m/%Y'``; None: ISO 8601.
        numbers: text columns of numbers with signs around them: ``'$1,200'``, ``'5 %'``.
        decimal_commas: those of ``numbers`` that are written as in ``'1.200,50'``.
        texts: columns of text whose values look like numbers: ``'00715'``.
        types: table → column → type, learned by a run (see ``fastrec.table.column_types``).
        gaps: the columns with missing values in a run's training rows; None: unknown.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[str] | None = None
    header: Sequence[str] | None = None
    delimiter: str | None = None
    missing: Sequence[str] = ()
    dates: Mapping[str, str | None] = field(default_factory=dict)
    numbers: Sequence[str] = ()
    decimal_commas: Sequence[str] = ()
    texts: Sequence[str] = ()
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gaps: Sequence[str] | None = None

    def __repr__(self) -> str:
        """Return the arguments that are not the defaults, as Python."""
        own, usual = ({n: list(v) if type(v) is tuple else v for n, v in vars(r).items()} for r in (self, Reading()))
        said = {n: v for n, v in own.items() if n not in ("types", "gaps") and v != usual[n]}
        return f"Reading({', '.join(f'{n}={v!r}' for n, v in said.items())})"

    def read(self, path: str | Path, table: str = "train", names: Sequence[str] | None = None) -> pa.Table:
        """Read a file as an Arrow table and convert its columns to their types.

        Args:
            path: the file.
            table: its role: ``train``, ``test``, ``history`` or another table's name.
            names: the columns to convert; None: all.

        Raises:
            FastrecError: the file cannot be read; of a wrong value, the error names the column and row.
        """
        form = CsvForm(self.header, self.delimiter, self.missing)
        text = [n for n, t in self._types(table).items() if t == "text"]
        types = dict.fromkeys([*self.dates, *self.numbers, *self.texts, *text], pa.string())
        return self.convert(read_file(path, form=form, types=types), table, names, file=path)

    def convert(
        self,
        table: pa.Table,
        role: str = "train",
        names: Sequence[str] | None = None,
        *,
        file: str | Path | None = None,
    ) -> pa.Table:
        """Convert a table's columns to their types; absent columns are ignored.

        Args:
            role, names: ``table`` and ``names`` of ``read``.
            file: for messages.

        Returns:
            The table. Values that do not have the recipe's format become missing, with a ``DataWarning``.

        Raises:
            DataError: a value does not have the type or format that the run learned, naming column and row. (If the
                column has missing values in the training rows, the value becomes missing with a ``DataWarning``.)
        """
        types = self._types(role)
        for name in table.column_names:
            values = made = table[name]
            wanted = types.get(name) if names is None or name in names else None
            # A run knows its columns; a recipe's first reading may meet texts for missing values.
            refuse = wanted is not None and name not in (self.gaps or ())
            if name in self.texts:
                made = as_type(made, "text", column=name, file=file)
            if name in self.dates and (type_of(made.type) == "text" or pa.types.is_integer(made.type)):
                form = self.dates[name]
                made = _by_value(made, lambda v, f=form: times_in_text(v.cast(pa.string()), f))
                remedy = f"If they are times of another format, write Reading(dates={{{name!r}: '…'}})"
                what = f"is no time of the format {form or 'ISO 8601'}"
                _tell_of_lost(values, made, name, file, what, remedy, refuse)
            if name in self.numbers and type_of(made.type) == "text":
                comma = name in self.decimal_commas
                if wanted is not None:
                    _refuse_other_commas(made, name, file, comma)
                text, made = made, _by_value(made, lambda v, c=comma: parse_numbers(v, decimal_comma=c))
                remedy = f"If they are codes or words, write Reading(texts=[{name!r}]) and not numbers=[{name!r}]"
                _tell_of_lost(text, made, name, file, "is no number", remedy, refuse)
            if wanted is not None:
                made = as_type(made, wanted, column=name, file=file)
            if made is not values:
                table = table.set_column(table.column_names.index(name), name, made)
        return table

    def frame(self, source: Any, table: str = "train", names: Sequence[str] | None = None) -> Table:
        """Convert a frame of any library, or a ``Table``, to a table, with its columns as by ``convert``."""
        made = source if isinstance(source, Table) else Table.read(source)
        made = made.rename({n: str(n) for n in made.names if not isinstance(n, str)})
        own = [n for n in (*self.dates, *self.numbers, *self.texts) if n in made]
        if own:
            read = Table.read(self.convert(made.select(own).to_arrow(), table, names), device=made.device)
            made = made.with_columns({n: read[n] for n in own})
        return as_types(made, self._types(table), names)

    def written(self, name: str) -> dict[str, Any] | None:
        """Return the text format of a column's values, for ``parsed``; None: the default."""
        if self.dates.get(name) is not None:
            return {"date": self.dates[name]}
        if name in self.numbers:
            return {"number": True, "comma": name in self.decimal_commas}
        kind = self._types("train").get(name)
        return {kind: True} if kind in ("clock", "bool") else None

    def _types(self, table: str) -> Mapping[str, str]:
        return self.types.get("train" if table in _ROWS else table, {})


def parse_numbers(values: pa.Array, *, decimal_comma: bool = False) -> pa.Array:
    """Convert texts to numbers without currency, percent signs and thousands separators; ``(5)`` is -5, ``c-8`` is 8.

    With a ``decimal_comma``, dots separate thousands.
    """
    import pandas as pd

    text = pd.Series(values.to_pandas(), dtype="object").str.strip()
    plain = text.str.replace(f"^{LETTERS}", "", regex=True)
    plain = plain.where(plain.str.fullmatch(COMMA_TEXT if decimal_comma else NUMBER_TEXT, na=False), None)
    minus = plain.str.startswith("(", na=False)
    plain = plain.str.replace(_MINUS, "-")
    if decimal_comma:
        plain = plain.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    made = pd.to_numeric(plain.str.replace(r"[\s$€£%,'()]", "", regex=True), errors="coerce")
    return pa.array(made.where(~minus, -made).to_numpy(dtype="float64"), from_pandas=True)


def parsed(values: pa.Array, written: Mapping[str, Any], *, column: str) -> pa.Array:
    """Parse a column's text by its format (``Reading.written``); a value that does not parse is a ``DataError``."""
    if "bool" in written:
        made = as_type(as_type(values, "bool", column=column), "number", column=column)
    elif "clock" in written:
        made = Table.read(pa.table({column: as_type(values, "clock", column=column)}))[column].to_arrow()
    elif "number" in written:
        _refuse_other_commas(pa.chunked_array([values]), column, None, bool(written["comma"]))
        made = parse_numbers(values.cast(pa.string()), decimal_comma=bool(written["comma"]))
    else:
        made = times_in_text(values.cast(pa.string()), written["date"])
    blank = pc.is_in(pc.utf8_trim_whitespace(values), value_set=pa.array(MISSING_TEXT, values.type))
    row = pc.index(pc.and_(made.is_null(), pc.and_not(values.is_valid(), blank)), pa.scalar(True)).as_py()
    if row >= 0:
        what = f"time of the format {written['date']}" if "date" in written else "number"
        raise DataError(f"{values[row].as_py()!r} is no {what}", column=column, row=row)
    return made


def _refuse_other_commas(values: pa.ChunkedArray, column: str, file: str | Path | None, decimal_comma: bool) -> None:
    """Refuse numbers with the other decimal sign: ``1.234,56`` in a column of ``1,234.56``."""
    own, other = (COMMA_TEXT, NUMBER_TEXT) if decimal_comma else (NUMBER_TEXT, COMMA_TEXT)
    text = pc.utf8_trim_whitespace(_plain(values))
    lost = pc.and_(pc.match_substring_regex(text, f"^{other}$"), pc.invert(pc.match_substring_regex(text, f"^{own}$")))
    row = pc.index(lost, pa.scalar(True)).as_py()
    if row >= 0:
        comma, point = ("comma", "point") if decimal_comma else ("point", "comma")
        problem = f"{values[row].as_py()!r} has a decimal {point}, and the column is one with a decimal {comma}"
        raise DataError(problem, file=file, column=column, row=row, remedy="Write its numbers as in the training rows")


def _tell_of_lost(
    values: pa.ChunkedArray, made: pa.Array, column: str, file: str | Path | None, what: str, remedy: str, refuse: bool
) -> None:
    if made.null_count == values.null_count:
        return
    texts = _plain(values).cast(pa.string())
    gone = pc.fill_null(pc.and_(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), made.is_null()), False)
    lost = texts.filter(gone)
    if len(lost) and refuse:
        row, remedy = pc.index(gone, pa.scalar(True)).as_py(), "Write it as in the training rows, or leave it empty"
        raise DataError(f"{lost[0].as_py()!r} {what}", file=file, column=column, row=row, remedy=remedy)
    if len(lost):
        where = "" if file is None else f"{Path(file).name}: "
        share = len(lost) / len(values)
        warn(
            f"{where}column {column!r}: {lost[0].as_py()!r} {what}; such texts ({pc.count_distinct(lost).as_py()} "
            f"different ones, {share:.1%} of the rows) are taken as missing. {remedy}"
        )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column


def _by_value(column: pa.ChunkedArray, make: Any) -> pa.Array:
    coded = pc.dictionary_encode(_plain(column)).combine_chunks()
    return make(coded.dictionary).take(coded.indices)


_ALIKE = {"text", "number", "bool", "clock"}


@dataclass
class CompetitionData:
    """Training rows, rows to predict, and other tables that features read."""

    #: labelled rows; in a ranking task candidates, sorted by the list column
    train: Table
    #: the rows to predict, without their target; in a ranking task one list per target row. None: the submission has
    #: the training rows with their out-of-fold predictions
    test: Table | None = None
    #: the id columns of the submission. In a ranking task whose form has one line per list, one row per test list, in
    #: the order of the lists; else one row per test row. None: the test rows' own columns
    targets: Table | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)  #: other tables by name (an event log, item properties)
    #: the truth of ``test``, if known, for the final score only: labels float64 ``[n_test]`` of a ranking task, else a
    #: table with the target column(s)
    truth: Any = None
    oracle: float | None = None  #: the expected score of the true probabilities, if known
    #: table → column → type (see ``fastrec.table.column_types``), if the files have more than the tables
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def settle_types(self, known: Mapping[str, Mapping[str, str]]) -> None:
        """Learn the types of all columns, and unify those of train and test.

        ``known`` are the types learned by an earlier run.
        """
        made = {"train": shared_types(self.train, self.test), **{n: types_of(t) for n, t in self.tables.items()}}
        self.types = {n: {**own, **self.types.get(n, {}), **known.get(n, {})} for n, own in made.items()}
        self.train, self.test = (None if t is None else _alike(t, self.types["train"]) for t in (self.train, self.test))
        self.tables = {n: _alike(t, self.types[n]) for n, t in self.tables.items()}
        test = [] if self.test is None else [self.test]
        self.train, *others = in_one_unit([self.train, *self.tables.values(), *test])
        self.tables = dict(zip(self.tables, others, strict=False))
        self.test = others[-1] if test else None


def in_one_unit(tables: Sequence[Table]) -> list[Table]:
    """Convert times of one name to the finest unit of all tables: CSV reads seconds, which Parquet cannot store."""
    made = list(tables)
    for name in dict.fromkeys(n for t in tables for n in t.names):
        own = {i: t[name] for i, t in enumerate(made) if name in t and t[name].kind == "datetime"}
        unit = max((str(c.unit) for c in own.values()), key=UNITS_PER_SECOND.__getitem__, default="s")
        for i, c in own.items():
            times = UNITS_PER_SECOND[unit] // UNITS_PER_SECOND[str(c.unit)]
            known = c.values[~c.is_missing()]
            # A date that the finer unit cannot hold is left unchanged; features that compare it refuse it.
            if times > 1 and not bool((known.abs() > (2**63 - 1) // times).any()):
                made[i] = made[i].with_columns({name: replace(c, values=c.values * times, unit=unit)})
    return made


def _alike(table: Table, types: Mapping[str, str]) -> Table:
    own = types_of(table)
    fits = [n for n, t in types.items() if own.get(n, t) == t or {own[n], t} <= _ALIKE or own[n][:4] == t[:4] == "time"]
    return as_types(table, types, fits)


ROW_NUMBER = "row_number"


def with_row_numbers(table: Table, item: str) -> Table:
    """Add the numbers of rows, if a ranking's ``item`` is ``'row_number'`` and the table has no such column."""
    if item != ROW_NUMBER or item in table:
        return table
    return table.with_columns({item: torch.arange(len(table), device=table.device)})


ENDINGS = (".parquet", ".pq", ".csv", ".csv.gz", ".csv.zip", ".tsv")
SAMPLES = ("sample_submission", "sampleSubmission", "sample")  # names of a sample submission
_TRUTHS = ("ground_truth", "truth", "solution")


def table_files(folder: Path, roles: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Map the tables of a folder by name (without the extension), sorted by name.

    ``roles``: name → the file for it.
    """
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", file=folder, remedy="Give the folder of the files")
    found = {role: folder / name for role, name in (roles or {}).items()}
    absent = next((p for p in found.values() if not p.is_file()), None)
    if absent is not None:
        remedy = "Put it there, or mend the recipe's reading"
        raise MissingFileError("there is no such file", file=absent, remedy=remedy)
    for path in sorted(folder.iterdir()):
        ending = next((e for e in ENDINGS if path.name.lower().endswith(e)), None)
        beside = path.suffix == ".zip" and path.with_suffix("").exists()  # it was unpacked in place
        if ending is None or beside or path.name.startswith(".") or path in found.values():
            continue
        name = path.name[: -len(ending)]
        if name in found:
            raise DataError(f"{found[name].name} and {path.name} have one name", file=folder, remedy="Keep one of them")
        found[name] = path
    return found


def files_of(data: Path, role: str, remedy: str, roles: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Map the tables of a folder by name, one of them for ``role``; a single file has that role.

    ``roles`` are names of files as in ``Reading``; the folder need not have all.
    """
    if data.is_file():
        return {role: data}
    if not data.exists():
        raise MissingFileError("there is no such file or folder", file=data, remedy=remedy)
    found = table_files(data, {r: n for r, n in (roles or {}).items() if (data / n).is_file()})
    if role not in found:
        problem = f"there is no {role} file (there is {', '.join(p.name for p in found.values()) or 'nothing'})"
        raise MissingFileError(problem, file=data, remedy=remedy)
    return found


def truth_file(folder: Path, roles: Mapping[str, str] | None = None) -> Path | None:
    """Return the file with the truth of the test rows; None: there is none."""
    files = table_files(folder, roles) if folder.is_dir() else {}
    return next((files[n] for n in _TRUTHS if n in files), None)


def read_folder(
    folder: Path, *, rows: int | None = None, device: torch.device | None = None, reading: Reading | None = None
) -> CompetitionData:
    """Read ``train``, ``test``, the truth of the test if present, and every other table by its name.

    Args:
        folder: has ``train`` and, usually, ``test`` as CSV or Parquet; ``ground_truth`` scores the test.
        rows: use only the first so many training rows.
        device: where the tables go.
        reading: how to read the files; None: the defaults.

    Raises:
        MissingFileError: there is no folder, or no ``train`` in it.
        FastrecError: a file cannot be read.
    """
    reading = reading or Reading()
    files = table_files(folder, reading.files)
    if "train" not in files:
        problem = f"there is no train file (there is {', '.join(p.name for p in files.values()) or 'nothing'})"
        remedy = "Name the training rows train.csv or train.parquet, or write load() in the recipe"
        raise MissingFileError(problem, file=folder, remedy=remedy)
    if reading.tables is not None:
        asked = {"train", "test", *_TRUTHS, *SAMPLES, *reading.files, *reading.tables}
        files = {n: p for n, p in files.items() if n in asked}
    read = {n: reading.read(p, n) for n, p in files.items() if n not in SAMPLES}
    mixed = differing(read["train"], read.get("test"))
    if mixed:  # keep numbers as written: 00715
        reading = replace(reading, texts=[*reading.texts, *mixed])
        read |= {n: reading.read(files[n], n) for n in ("train", "test") if n in read}
    side = [n for n in read if n not in ("train", "test", *_TRUTHS)]
    types = {"train": shared_types(read["train"], read.get("test")), **{n: types_of(read[n]) for n in side}}
    tables = {n: Table.read(t, device=device) for n, t in read.items()}
    train = tables.pop("train")
    truth = next((tables.pop(n) for n in _TRUTHS if n in tables), None)
    if rows is not None and rows < len(train):
        train = train.slice(0, rows)
    return CompetitionData(train, tables.pop("test", None), tables=tables, truth=truth, types=types)
