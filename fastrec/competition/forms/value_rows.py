"""Lines of a ``ValueForm`` held against the rows that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.row_keys import RowKeys
from fastrec.competition.forms.value_form import ValueForm
from fastrec.errors import SubmissionError
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


def wanted_rows(form: ValueForm, path: Path) -> RowKeys:
    """The ids of the rows that a submission must have; of a form without ids their numbers.

    Raises:
        FastrecError: the file cannot be read or lacks an id column.
    """
    return RowKeys(read_text(path, form.ids, form) if form.ids else read_file(path), form.ids, path)


def match_rows(form: ValueForm, table: pa.Table, wanted: RowKeys, path: Path) -> np.ndarray:
    """For every line its row in ``wanted``: int64 ``[n]``.

    Raises:
        DataError: two of the wanted rows have the same ids.
        SubmissionError: a line is about no such row, or a row has no line.
    """
    if not form.ids and len(table) != len(wanted.text):
        raise SubmissionError(
            f"it has {len(table)} rows, {wanted.path.name} has {len(wanted.text)}",
            file=path,
            remedy="Write one for each",
        )
    return RowKeys(table, form.ids, path).match(wanted, role="no row", complete=form.per_list is None)


def is_number_column(column: Any) -> bool:
    """Whether the first value of a text column is a number."""
    first = column[0].as_py() if len(column) else ""
    try:
        float(first)
    except ValueError:
        return False
    return True
