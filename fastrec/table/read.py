"""Files as Arrow tables: CSV, Parquet, folders of Parquet."""

from __future__ import annotations

import glob
import gzip
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.errors import DataError, FastrecError, MissingColumnError, MissingFileError, UnreadableFileError

MISSING_TEXT = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "NaT"]
_NOT_UTF8 = "Save the file as UTF-8 (iconv -f latin1 -t utf8), or leave the column out with columns=…"


@dataclass(frozen=True)
class CsvForm:
    """Format of a text file that differs from the usual."""

    # the columns of a file that has none in its first line; None: the first line names them
    header: Sequence[str] | None = None
    # what separates columns; None: a tab in ``.tsv``, else a comma. A space after the sign (``', '``): spaces around
    # text are not part of it
    delimiter: str | None = None
    # texts that mean a missing value, beside the usual ones (empty, ``NA``, ``NaN``, ``null``, …)
    missing: Sequence[str] = ()


def read_file(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    types: Mapping[str, pa.DataType] | None = None,
    form: CsvForm | None = None,
) -> pa.Table:
    """Read a CSV or Parquet file, or a folder of Parquet files, as an Arrow table of ``columns``, in their order.

    ``.parquet``, ``.pq`` or a folder is read as Parquet, anything else as CSV, in its ``form`` and with Arrow ``types``
    (``.tsv``: with tabs; ``.gz`` and a ``.zip`` with one CSV file in it are unpacked). Rows of a pattern of such
    (``part-*.parquet``) follow one another in the order of their names. Errors name the file.
    """
    path = Path(path)
    named = [] if path.exists() else sorted(glob.glob(str(path), recursive=True))
    if named:
        parts = [read_file(file, columns, types=types, form=form) for file in named]
        return pa.concat_tables(parts, promote_options="permissive")
    if not path.exists():
        raise MissingFileError("there is no such file", file=path, remedy="Check the path")
    if path.is_file() and path.stat().st_size == 0:
        raise UnreadableFileError("the file is empty", file=path, remedy="Fetch or write it again")
    try:
        if path.is_dir() or path.suffix.lower() in (".parquet", ".pq"):
            dataset = pq.ParquetDataset(path)
            # An empty folder has no schema to report.
            if not dataset.files:
                raise UnreadableFileError("the folder holds no Parquet files", file=path, remedy="Check the path")
            check_names(dataset.schema.names, columns, file=path)
            return dataset.read(columns=list(columns) if columns is not None else None)
        return _read_csv(path, columns, dict(types or {}), form or CsvForm())
    except FastrecError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"the file cannot be read ({str(error).splitlines()[0]})"
        remedy = "Check that it is whole and of the kind that its name says"
        if "Expected 1 columns" in str(error):
            with open_text(path) as file:
                other = other_separator([file.readline().decode(errors="ignore")])
            if other is not None:
                problem = f"it looks separated by {other!r}, and is read as one column"
                remedy = "Separate it as the other files are, or name the sign in Reading(delimiter=…)"
        raise UnreadableFileError(problem, file=path, remedy=remedy) from error


def open_text(path: Path) -> BinaryIO:
    """Open a text file's bytes, unpacked from ``.gz`` or from the one CSV file in a ``.zip``."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    if path.suffix.lower() != ".zip":
        return path.open("rb")
    try:
        with zipfile.ZipFile(path) as archive:
            held = [n for n in archive.namelist() if not n.endswith("/") and not n.startswith("__MACOSX")]
            if len(held) == 1 and held[0].lower().endswith((".csv", ".tsv", ".txt", ".data")):
                return io.BytesIO(archive.read(held[0]))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # torn, or locked by a password
        raise UnreadableFileError(f"the archive cannot be read ({error})", file=path, remedy="Unpack it") from error
    problem = f"the archive holds {len(held)} files ({', '.join(held[:5])}) instead of one CSV file"
    raise UnreadableFileError(problem, file=path, remedy="Unpack it: give a folder with CSV or Parquet files")


def check_names(names: Sequence[str], columns: Sequence[str] | None, *, file: str | Path | None = None) -> None:
    """Refuse columns that are not among ``names``, or that appear there twice."""
    known = set(names)
    for name in columns if columns is not None else ():
        if name not in known:
            problem = f"there is no such column; there are {', '.join(map(repr, names)) or 'none'}"
            raise MissingColumnError(problem, file=file, column=name, remedy="Check the spelling, or add the column")
    if len(known) == len(names):
        return
    wanted = known if columns is None else set(columns)
    for i, name in enumerate(names):
        if name in wanted and name in names[:i]:
            remedy = "Rename them, so that each has its own"
            raise DataError("several columns have this name", file=file, column=name, remedy=remedy)


def _read_csv(path: Path, columns: Sequence[str] | None, types: dict[str, pa.DataType], form: CsvForm) -> pa.Table:
    asked, raw = frozenset(types), {n for n, t in types.items() if pa.types.is_binary(t)}
    given = form.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    sign, trim = (given[0], True) if len(given) > 1 and not given[1:].strip() else (given, False)
    if len(sign) != 1:
        raise DataError(f"{given!r} is no delimiter", file=path, remedy="Give one character")
    how = {
        "read_options": pa_csv.ReadOptions(column_names=None if form.header is None else list(form.header)),
        "parse_options": pa_csv.ParseOptions(newlines_in_values=True, delimiter=sign),
    }
    missing = [*MISSING_TEXT, *(t for m in form.missing for t in ((m, f" {m}") if trim else (m,)))]
    with pa_csv.open_csv(_source(path), **how) as reader:
        try:
            names = reader.schema.names
        except UnicodeDecodeError as error:
            raise UnreadableFileError("the header is not UTF-8", file=path, remedy=_NOT_UTF8) from error
    check_names(names, columns, file=path)

    def convert(columns: Sequence[str] | None, types: dict[str, pa.DataType], asked: frozenset[str]) -> pa.Table:
        """Read the file; a column that outgrows the type guessed from its first block gets a wider one."""
        included = list(columns) if columns is not None else None
        while True:
            options = pa_csv.ConvertOptions(
                column_types=types, include_columns=included, null_values=missing, strings_can_be_null=True
            )
            try:
                return pa_csv.read_csv(_source(path), **how, convert_options=options)
            except pa.ArrowInvalid as error:
                found = re.search(r"CSV column #(\d+).*conversion error to (\w+)", str(error))
                if found is None:
                    raise
                name, kind = names[int(found.group(1))], found.group(2)
                if name in asked and kind != "string":
                    raise _unfit(path, name, types[name], how, error) from error
                types[name] = {"null": pa.int64(), "int64": pa.float64(), "string": pa.binary()}.get(kind, pa.string())

    table = convert(columns, types, asked)
    floats = [n for n in table.column_names if n not in asked and pa.types.is_float64(table[n].type)]
    # Above 2^63 Arrow takes integers for floats, and ids lose their last digits: these are read again, as text.
    long = [n for n in floats if (pc.max(pc.abs(table[n])).as_py() or 0) >= 2.0**63]
    text = convert(long, dict.fromkeys(long, pa.string()), frozenset(long)) if long else {}
    for name in long:
        digits = pc.utf8_trim_whitespace(text[name])
        if not pc.all(pc.match_substring_regex(digits, r"^[+-]?\d+$")).as_py():
            continue
        try:
            digits = digits.cast(pa.uint64())
        except pa.ArrowInvalid:  # negative ones as well, or more digits than 64 bits hold
            if not pc.any(pc.match_substring_regex(digits, r"\d{20}")).as_py():
                continue
        table = table.set_column(table.column_names.index(name), name, digits)
    for i, name in enumerate(table.column_names):
        if pa.types.is_binary(table[name].type) and name not in raw:
            values = enumerate(table[name].to_pylist())
            row = next((i for i, v in values if v and v.decode(errors="ignore").encode() != v), None)
            raise UnreadableFileError("holds text that is not UTF-8", file=path, column=name, row=row, remedy=_NOT_UTF8)
        if trim and pa.types.is_string(table[name].type):
            table = table.set_column(i, name, pc.utf8_trim_whitespace(table[name]))
    return table


def other_separator(names: Sequence[str]) -> str | None:
    """Return the sign that seems to separate columns where a header was read as one name; None: nothing does."""
    return max(",\t;|", key=names[0].count) if len(names) == 1 and re.search("[,\t;|]", names[0]) else None


def _source(path: Path) -> Any:
    return open_text(path) if path.suffix.lower() == ".zip" else path


def _unfit(path: Path, name: str, kind: pa.DataType, how: dict[str, Any], error: Exception) -> DataError:
    found = re.search(r"invalid value '(.*)'", str(error), re.DOTALL)
    value = found.group(1) if found else None
    options = pa_csv.ConvertOptions(column_types={name: pa.binary()}, include_columns=[name])
    raw = pa_csv.read_csv(_source(path), **how, convert_options=options)[name]
    row = pc.index(raw, pa.scalar((value or "").encode(), pa.binary())).as_py()
    problem = f"holds {value!r}, which is not of type {kind}" if found else f"holds values that are not of type {kind}"
    remedy = "Ask for another type, or mend the file"
    return DataError(problem, file=path, column=name, row=row if found and row >= 0 else None, remedy=remedy)


# CSV files of text only: ids and keys stay exactly as in the file.


def csv_header(path: str | Path, *, sep: str = ",") -> list[str]:
    """Read the column names of a CSV file that ``sep`` separates; compressed ones are recognised by their ending."""
    path = Path(path)
    if not path.exists():
        raise MissingFileError("there is no such file", file=path, remedy="Check the path")
    if not path.is_file():
        raise UnreadableFileError("it is not a file", file=path, remedy="Give the CSV file itself")
    if path.stat().st_size == 0:
        raise UnreadableFileError("the file is empty", file=path, remedy="Write it again; it needs a header line")
    try:
        with pa_csv.open_csv(path, parse_options=_parse(sep)) as reader:
            names = reader.schema.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    for name in (n for n in sorted(names) if names.count(n) > 1):
        raise UnreadableFileError("the column stands twice in the header", file=path, column=name, remedy="Keep one")
    return names


def read_text_csv(path: str | Path, columns: Sequence[str], *, sep: str = ",") -> pa.Table:
    """Read columns of a CSV file as text, in the order wanted; an empty value is the empty string, never missing."""
    names = csv_header(path, sep=sep)
    for name in (n for n in columns if n not in names):
        remedy = f"The file has {', '.join(names)}"
        raise MissingColumnError("the column is not in the file", file=path, column=name, remedy=remedy)
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=list(columns), strings_can_be_null=False
    )
    try:
        return pa_csv.read_csv(path, parse_options=_parse(sep), convert_options=convert)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def write_text_csv(path: str | Path, table: pa.Table, *, sep: str = ",") -> None:
    """Write text columns as CSV, whole or not at all.

    Every value stays what it is. One that begins with ``=``, ``+``, ``-`` or ``@`` may be a formula to a spreadsheet,
    and nothing is put before it: that would be another id, which neither ``fastrec check`` nor a competition would find
    among its own. Look at such files in an editor, or let the spreadsheet import every column as text.

    Lines end in a line feed and only values that need quotes get them: the same table gives the same bytes everywhere.
    """
    header = pa.table({name: pa.array([name], pa.large_string()) for name in table.column_names})
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        file.write(_csv_lines(header, sep).encode())
        for start in range(0, len(table), limits.CSV_ROWS):
            file.write(_csv_lines(table.slice(start, limits.CSV_ROWS), sep).encode())


def _csv_lines(table: pa.Table, sep: str) -> str:
    # By hand, because no library writes these bytes: Arrow's writer quotes every string, and pandas (with csv before
    # Python 3.13) leaves a lone carriage return bare, where readers see a line end.
    mark, between, nothing = (pa.scalar(text, pa.large_string()) for text in ('"', sep, ""))
    columns = []
    for column in table.columns:
        text = column.cast(pa.large_string())
        quoted = pc.binary_join_element_wise(mark, pc.replace_substring(text, '"', '""'), mark, nothing)
        odd = f'["\r\n{re.escape(sep)}]' + ("|^$" if len(table.columns) == 1 else "")  # a blank line is no row
        columns.append(pc.if_else(pc.match_substring_regex(text, odd), quoted, text))
    return "\n".join([*pc.binary_join_element_wise(*columns, between).to_pylist(), ""])


def _parse(sep: str) -> pa_csv.ParseOptions:
    return pa_csv.ParseOptions(delimiter=sep, newlines_in_values=True)


def _unreadable(path: Path | str, error: Exception) -> UnreadableFileError:
    problem = f"it cannot be read as CSV ({str(error).splitlines()[0]})"
    return UnreadableFileError(problem, file=path, remedy="Write or download the file again")
