"""Lines of a ``ValueForm`` held against the rows that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.value_form import ValueForm, named_key
from fastrec.errors import DataError, SubmissionError
from fastrec.table.csv_text import csv_header, read_text_csv
from fastrec.table.read import read_file


def read_text(path: Path, names: tuple[str, ...], form: ValueForm) -> pa.Table:
    """Columns of a CSV or Parquet file as text.

    Raises:
        FastrecError: there is no such file, or a column is not in it.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        table = read_file(path, list(names))
        return pa.table({n: pc.cast(table[n], pa.large_string()) for n in names})
    sep = max((form.sep, "\t", ","), key=lambda s: len(csv_header(path, sep=s)))
    return read_text_csv(path, names, sep=sep)


def wanted_rows(form: ValueForm, path: Path) -> pa.Table:
    """The ids of the rows that a submission must have; of a form without ids its number of rows.

    Raises:
        FastrecError: the file cannot be read or lacks an id column.
        DataError: it has two rows of the same ids.
    """
    if not form.ids:
        table = read_file(path)
        return pa.table({"": pa.array(np.arange(len(table)))})
    wanted = read_text(path, form.ids, form)
    keys = form.keys(wanted)
    codes = keys.dictionary_encode().indices.to_numpy()
    again = np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1]) + 1
    if len(again):
        raise DataError(
            f"{named_key(form, keys, int(again[0]))} stands in an earlier row too ({len(again)} in all)",
            file=path,
            column=", ".join(form.ids),
            row=int(again[0]),
            remedy="Give the file as it was published",
        )
    return wanted


def match_rows(form: ValueForm, table: pa.Table, wanted: pa.Table, path: Path, wanted_path: Path) -> np.ndarray:
    """For every line its row in ``wanted``: int64 ``[n]``.

    Raises:
        SubmissionError: a line is about no such row, or a row has no line.
    """
    if not form.ids and len(table) != len(wanted):
        raise SubmissionError(
            f"it has {len(table)} rows, {wanted_path.name} has {len(wanted)}", file=path, remedy="Write one for each"
        )
    keys, wanted_keys = form.keys(table), form.keys(wanted)
    match = pc.index_in(keys, value_set=wanted_keys)
    extra = np.flatnonzero(match.is_null())
    column = ", ".join(form.ids)
    if len(extra):
        row = int(extra[0])
        raise SubmissionError(
            f"{named_key(form, keys, row)} is no row of {wanted_path.name} ({len(extra)} such rows in all)",
            file=path,
            column=column,
            row=row,
            remedy="Keep the ids as they are in that file",
        )
    found = match.to_numpy().astype(np.int64)
    missing = np.setdiff1d(np.arange(len(wanted)), found)
    if len(missing) and form.per_list is None:
        raise SubmissionError(
            f"row {missing[0]} of {wanted_path.name} has no row here: {named_key(form, wanted_keys, int(missing[0]))} "
            f"({len(missing)} missing in all)",
            file=path,
            column=column,
            remedy="Write one row for every row of that file",
        )
    return found


def is_number_column(column: Any) -> bool:
    """Whether the first value of a text column is a number."""
    first = column[0].as_py() if len(column) else ""
    try:
        float(first)
    except ValueError:
        return False
    return True
