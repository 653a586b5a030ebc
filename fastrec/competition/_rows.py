"""Rows of a submission, read and held against the rows that it must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.form import SubmissionFormat
from fastrec.competition.ordering import arrow_column
from fastrec.competition.row_keys import RowKeys, refuse_nulls
from fastrec.errors import DataError, SubmissionError
from fastrec.table.csv_text import csv_header, read_text_csv
from fastrec.table.key_types import is_text


class _Ids:
    """The ids of all rows end to end, with the row and the place in its list of each."""

    def __init__(self, column: pa.ChunkedArray, sep: str) -> None:
        lists = arrow_column(pc.split_pattern(column, sep), "ids")
        self.flat = lists.flatten()
        self.length = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        self.row = np.repeat(np.arange(len(lists)), self.length)
        self.place = np.arange(len(self.flat)) - np.repeat(np.cumsum(self.length) - self.length, self.length)


def _list_text(lists: Any, form: SubmissionFormat) -> pa.Array:
    column = arrow_column(lists, form.prediction)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ids = column.flatten()
        if not (is_text(ids.type) or pa.types.is_integer(ids.type) or pa.types.is_null(ids.type)):
            raise DataError(f"ids are {ids.type}", column=form.prediction, remedy="Give integers or strings")
        if is_text(ids.type) and pc.any(pc.match_substring(ids, form.sep)).as_py():
            raise DataError(f"an id holds {form.sep!r}", column=form.prediction, remedy="Choose another separator")
        lists = column.cast(pa.large_list(pa.large_string()))
        column = pc.binary_join(lists, pa.scalar(form.sep, pa.large_string()))
    elif not is_text(kind) and len(column):
        raise DataError(f"lists are {kind}", column=form.prediction, remedy="Give strings or lists of ids")
    refuse_nulls(column, form.prediction, "a list, or an id in it, is missing")
    return column.cast(pa.large_string())


def _read_submission(path: str | Path, form: SubmissionFormat, *, exact: bool) -> pa.Table:
    table = read_text_csv(path, form.header)
    names = tuple(csv_header(path)) if exact else form.header
    if names != form.header:
        other = next((name for name in names if name not in form.header), None)
        raise SubmissionError(
            f"the header is {','.join(names)}",
            file=path,
            column=other,
            remedy=f"Write exactly {','.join(form.header)}",
        )
    return table


def _read_targets(path: str | Path, form: SubmissionFormat) -> tuple[pa.Table, np.ndarray]:
    """The target rows of the test file, and their row numbers there."""
    table = read_text_csv(path, dict.fromkeys((*form.keys, *(name for name, _ in form.targets), form.candidates)))
    chosen = np.ones(len(table), dtype=bool)
    for name, value in form.targets:
        chosen &= np.asarray(pc.equal(table[name], value))
    if not chosen.any():
        wanted = " and ".join(f"{name} {value!r}" for name, value in form.targets)
        raise DataError(f"no row with {wanted}", file=path, remedy="Give the test file, with its targets left empty")
    return table.filter(pa.array(chosen)), np.flatnonzero(chosen)


def _match_rows(
    table: pa.Table,
    wanted: pa.Table,
    path: str | Path,
    wanted_path: str | Path,
    form: SubmissionFormat,
    numbers: np.ndarray,
) -> np.ndarray:
    """For every row of the submission its row in ``wanted``; refuses unless the two sets of rows are the same."""
    keys = RowKeys(table, form.keys, path)
    keys.refuse_repeated()
    return keys.match(RowKeys(wanted, form.keys, wanted_path, numbers), role="not a target")


def _check_lists(ids: _Ids, path: str | Path, form: SubmissionFormat) -> None:
    column, blank = form.prediction, np.asarray(pc.equal(ids.flat, ""))
    empty = np.flatnonzero(blank & (ids.length[ids.row] == 1))
    if len(empty):
        _fail("the list is empty", ids.row[empty], path, column, "Rank the row's candidates")
    if blank.any():
        remedy = f"Put one {form.sep!r} between two ids and none at the ends"
        _fail("the list holds an empty id", ids.row[blank], path, column, remedy)
    long = np.flatnonzero(ids.length > form.max_items)
    if len(long):
        problem = f"the list has {ids.length[long[0]]} ids, more than {form.max_items}"
        _fail(problem, long, path, column, f"Keep the first {form.max_items}")
    codes, n_codes = _codes(ids.flat)
    pairs = ids.row * n_codes + codes
    order = np.argsort(pairs, kind="stable")
    again = np.sort(order[1:][pairs[order][1:] == pairs[order][:-1]])
    if len(again):
        problem = f"id {ids.flat[int(again[0])].as_py()!r} is listed twice"
        _fail(problem, ids.row[again], path, column, "List every id once; an answer that is listed twice scores 0")


def _codes(values: pa.Array) -> tuple[np.ndarray, int]:
    encoded = values.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))


def _check_candidates(ids: _Ids, candidates: _Ids, path: str | Path, form: SubmissionFormat) -> tuple[str, ...]:
    """Refuse ids that are not a candidate of their row; warn of candidates that are not listed."""
    codes, n_codes = _codes(pa.concat_arrays([ids.flat, candidates.flat]))
    listed = ids.row * n_codes + codes[: len(ids.flat)]
    offered = candidates.row * n_codes + codes[len(ids.flat) :]
    outside = np.flatnonzero(~np.isin(listed, offered))
    if len(outside):
        problem = f"id {ids.flat[int(outside[0])].as_py()!r} is not among the {form.candidates} of its row"
        _fail(problem, ids.row[outside], path, form.prediction, f"List only ids from that row's {form.candidates}")
    left_out = np.setdiff1d(offered, listed)
    if not len(left_out):
        return ()
    n_rows = len(np.unique(left_out // n_codes))
    return (f"{len(left_out)} {form.candidates} in {n_rows} rows are not listed: an answer among them scores 0",)


def _fail(problem: str, rows: np.ndarray, path: str | Path, column: str, remedy: str) -> NoReturn:
    raise SubmissionError(
        f"{problem} ({len(np.unique(rows))} such rows in all)",
        file=path,
        column=column,
        row=int(rows[0]),
        remedy=remedy,
    )
