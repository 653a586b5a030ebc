"""CSV files whose every value is text: ids and keys stay exactly what the file says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.errors import MissingColumnError, MissingFileError, UnreadableFileError


def csv_header(path: str | Path, *, sep: str = ",") -> list[str]:
    """Read the column names of a CSV file.

    Args:
        path: the file; compressed ones are recognised by their ending.
        sep: what stands between two values.

    Returns:
        Its first line, split.

    Raises:
        MissingFileError: there is no such file.
        UnreadableFileError: it is empty, a folder, not CSV, or names a column twice.
    """
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
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnreadableFileError(
            "the column stands twice in the header", file=path, column=twice[0], remedy="Keep one"
        )
    return names


def read_text_csv(path: str | Path, columns: Sequence[str], *, sep: str = ",") -> pa.Table:
    """Read columns of a CSV file as text; an empty value is the empty string, never missing.

    Args:
        path: the file.
        columns: the columns to read, in the order wanted.
        sep: what stands between two values.

    Returns:
        An Arrow table of strings, in the file's order.

    Raises:
        MissingFileError, UnreadableFileError: as for :func:`csv_header`, or a line has too few or too many values.
        MissingColumnError: a column is not there.
    """
    names = csv_header(path, sep=sep)
    for name in columns:
        if name not in names:
            raise MissingColumnError(
                "the column is not in the file", file=path, column=name, remedy=f"The file has {', '.join(names)}"
            )
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

    Args:
        path: the file to write or replace.
        table: an Arrow table of strings without nulls.
        sep: what stands between two values, one character.

    Raises:
        WriteError: the file system refused; what was at ``path`` is as it was.
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
    lines = pc.binary_join_element_wise(*columns, between)
    return "\n".join([*lines.to_pylist(), ""])


def _parse(sep: str) -> pa_csv.ParseOptions:
    return pa_csv.ParseOptions(delimiter=sep, newlines_in_values=True)


def _unreadable(path: Path | str, error: Exception) -> UnreadableFileError:
    return UnreadableFileError(
        f"it cannot be read as CSV ({str(error).splitlines()[0]})", file=path, remedy="Write or download the file again"
    )
