"""The rows and the truth that lines of a ``ValueForm`` are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.ordering import arrow_column
from fastrec.competition.forms.row_keys import RowKeys
from fastrec.competition.forms.value_form import ValueForm
from fastrec.errors import DataError
from fastrec.table.csv_text import csv_header, read_text_csv
from fastrec.table.read import read_file


def read_text(path: Path, names: tuple[str, ...], form: ValueForm) -> pa.Table:
    """Read columns of a CSV or Parquet file as text.

    Raises:
        FastrecError: there is no such file, or a column is not in it.
    """
    if _is_parquet(path):
        table = read_file(path, list(names))
        return pa.table({n: pc.cast(table[n], pa.large_string()) for n in names})
    return read_text_csv(path, names, sep=_separator(path, form))


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _separator(path: Path, form: ValueForm) -> str:
    return max((form.sep, "\t", ","), key=lambda s: len(csv_header(path, sep=s)))


def read_truth(path: Path, form: ValueForm, label: str | None) -> tuple[pa.Table, str | None]:
    """Read a ranking's truth as text, and name its column of labels.

    Args:
        path: a CSV or Parquet file with the form's ids.
        form: the submission's form.
        label: the recipe's column of labels; if the truth lacks it, its one column of 0 and 1 is taken.

    Returns:
        The ids and the labels; None as the labels' name: the truth has none, and its lines are the relevant ones.

    Raises:
        FastrecError: the file cannot be read or lacks an id.
    """
    if _is_parquet(path):
        names = [f.name for f in read_file(path).schema if not pa.types.is_nested(f.type)]
    else:
        names = csv_header(path, sep=_separator(path, form))
    beside = [n for n in names if n not in form.ids]
    if label not in beside:
        flags = [n for n in beside if _is_flag(read_text(path, (n,), form)[n])]
        label = flags[0] if len(flags) == 1 else None
    return read_text(path, (*form.ids, *([label] if label else [])), form), label


def relevance(
    lines: pa.Table, truth: pa.Table, ids: Sequence[str], label: str | None, path: str | Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of candidates.

    Args:
        lines: candidates with the columns ``ids``.
        truth: its ids and labels; lines that it lacks are irrelevant.
        ids: the columns of the list and of the item.
        label: the truth's column of labels; None: its lines are relevant, all of them.
        path: the file of the truth, for errors.

    Returns:
        Labels float64 ``[n]``, and whether the candidate's list is in the truth, bool ``[n]``.

    Raises:
        DataError: a label is no number, a candidate has two, or all candidates (or none) are relevant.
    """
    asked, known = RowKeys(lines, ids, path), RowKeys(truth, ids, path)
    value = np.ones(len(truth)) if label is None else _labels(arrow_column(truth[label], label), label, path)
    again = known.repeated() if label is not None else []
    if len(again):
        raise DataError(
            f"{known.named(again[0])} stands in an earlier row too ({len(again)} in all)", file=path,
            column=", ".join(ids), row=int(again[0]), remedy="Keep one label for each candidate",
        )  # fmt: skip
    found = pc.index_in(asked.text, value_set=known.text)
    there = np.asarray(found.is_valid())
    made = np.zeros(len(lines))
    made[there] = value[found.drop_null().to_numpy()]
    counted = np.asarray(pc.is_in(_first(lines, ids), value_set=_first(truth, ids)))
    if not counted.any():
        raise DataError("the truth has no list of the submission", file=path, remedy="Give the right file")
    relevant = made[counted] > 0
    if relevant.all() or not relevant.any():
        raise DataError(
            f"{'every' if relevant.any() else 'no'} line of the submission is relevant by this truth", file=path,
            column=label, remedy="Give labels in a column, such as 0 and 1, or the relevant candidates alone",
        )  # fmt: skip
    return made, counted


def _first(table: pa.Table, ids: Sequence[str]) -> pa.Array:
    return arrow_column(table[ids[0]], ids[0]).cast(pa.large_string())


def _is_flag(column: pa.ChunkedArray) -> bool:
    values = set(pc.unique(pc.utf8_lower(column)).to_pylist())
    return values in ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"})


def _labels(column: pa.Array, name: str, path: str | Path) -> np.ndarray:
    made = np.empty(len(column))
    for row, text in enumerate(column.cast(pa.large_string()).to_pylist()):
        text = (text or "").lower()
        try:
            made[row] = text == "true" if text in ("true", "false") else float(text)
        except ValueError:
            made[row] = np.nan
        if np.isnan(made[row]):
            raise DataError(
                f"{text!r} is no label", file=path, column=name, row=row, remedy="Write a number, such as 0 or 1"
            )
    return made


def wanted_rows(form: ValueForm, path: Path) -> RowKeys:
    """Read the ids of the rows that a submission must have; of a form without ids their numbers.

    Raises:
        FastrecError: the file cannot be read or lacks an id column.
    """
    return RowKeys(read_text(path, form.ids, form) if form.ids else read_file(path), form.ids, path)
