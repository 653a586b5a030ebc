"""Submissions: write one, check its form against the test file, score it by the official rule.

A submission has one row per target (a row of the test file that is to be ranked): the target's keys and an ordered list
of item ids. Everything is read and compared as text, so that ids stay exactly what they are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.csv_text import csv_header, read_text_csv, write_text_csv
from fastrec.errors import DataError, MissingColumnError, SubmissionError
from fastrec.key_types import is_text
from fastrec.rank import arrow_column

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "RECSYS2019",
    "CheckReport",
    "ScoreReport",
    "SubmissionFormat",
    "check_submission",
    "score_submission",
    "write_submission",
]

_UNIT = "\x1f"  # stands between the keys of a row where rows are compared


@dataclass(frozen=True, kw_only=True)
class SubmissionFormat:
    """The form of a competition's submission, and where its test file and ground truth keep what it is held against.

    Args:
        keys: columns that name a target row, in the order of the file.
        prediction: the column with the ordered item ids, last in the file.
        sep: what stands between two ids.
        max_items: the most ids in one list.
        targets: (column, value) pairs; the test rows that equal all of them are the targets.
        candidates: the test file's column with the ids that may be recommended.
        candidates_sep: what stands between two of those.
        answer: the ground truth's column with the right id.
    """

    keys: tuple[str, ...]
    prediction: str
    sep: str = " "
    max_items: int = 25
    targets: tuple[tuple[str, str], ...] = ()
    candidates: str = "impressions"
    candidates_sep: str = "|"
    answer: str = "reference"

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.keys, self.prediction)


RECSYS2019 = SubmissionFormat(
    keys=("user_id", "session_id", "timestamp", "step"),
    prediction="item_recommendations",
    targets=(("action_type", "clickout item"), ("reference", "")),
)


@dataclass(frozen=True)
class CheckReport:
    """What a submission that passed holds; ``warnings`` are what is allowed but loses score."""

    path: str
    rows: int
    ids: int
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Lines to print; the last begins with ``ok``."""
        return [*(f"warning: {text}" for text in self.warnings), f"ok {self.rows} rows, {self.ids} ids"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class ScoreReport:
    """The score of a submission.

    ``per_row`` is a pandas frame in the ground truth's order: its keys, ``answer``, ``listed`` (how often the answer is
    in the list), ``rank`` (from 1; 0 where it does not count) and ``reciprocal_rank``.
    """

    mrr: float
    n: int
    per_row: pd.DataFrame = field(repr=False, compare=False)

    def lines(self) -> list[str]:
        """Lines to print; the last is ``mrr`` and the score with five decimals."""
        rank = self.per_row["rank"].to_numpy()
        counts = {"rows": self.n, "first": int((rank == 1).sum()), "not_counted": int((rank == 0).sum())}
        return [*(f"{name} {count}" for name, count in counts.items()), f"mrr {self.mrr:.5f}"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def write_submission(path: str | Path, keys_frame: Any, lists: Any, format: SubmissionFormat = RECSYS2019) -> None:
    """Write a submission, or nothing: the same input always gives the same bytes.

    Ids that begin with ``=`` are written as they are, see :func:`fastrec.csv_text.write_text_csv`.

    Args:
        path: the CSV to write or replace.
        keys_frame: pandas, polars or Arrow table, or a dict of columns: the key columns, one row per target, in the
            order to write; other columns are ignored. Integers or strings.
        lists: one entry per target: strings as :func:`fastrec.rank.ranked_strings` makes them, or lists of ids.
        format: the form to write.

    Raises:
        DataError: a key column is missing, holds missing values or floats; lengths differ.
        SubmissionError: a duplicate row, or a list that is empty, too long or names an id twice.
        WriteError: the file system refused; what was at ``path`` is as it was.
    """
    columns = {name: _key_text(keys_frame, name) for name in format.keys}
    columns[format.prediction] = _list_text(lists, format)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"lengths differ: {lengths}", remedy="Give one list per row of keys")
    table = pa.table(columns)
    _refuse_duplicates(_row_keys(table, format), path, format)
    _check_lists(_Ids(table[format.prediction], format.sep), path, format)
    write_text_csv(path, table)


def check_submission(
    submission_path: str | Path, test_path: str | Path, format: SubmissionFormat = RECSYS2019
) -> CheckReport:
    """Check that a submission has the official form and exactly the test file's targets.

    Ids and keys are compared as text. One that a spreadsheet takes for a formula (``=1+1``) is an id like any other: it
    passes where the test file has exactly that id, and is refused, as every id that is not there, where a spreadsheet
    has made another of it (``2``, ``'=1+1``).

    Args:
        submission_path: the submission CSV.
        test_path: the test CSV it answers.
        format: the form to hold it against.

    Returns:
        Counts, and warnings about candidates that are in no list.

    Raises:
        SubmissionError: other columns than the official ones; a duplicate, extra or missing row; a list that is empty,
            too long, names an id twice or one that is not a candidate of its row. It names the first, counts the rest.
        MissingFileError, UnreadableFileError, MissingColumnError: a file is absent, empty, corrupt or lacks a column.
        DataError: the test file has no target, or one twice.
    """
    table = _read_submission(submission_path, format, exact=True)
    targets, numbers = _read_targets(test_path, format)
    match = _match_rows(table, targets, submission_path, test_path, format, numbers)
    ids = _Ids(table[format.prediction], format.sep)
    _check_lists(ids, submission_path, format)
    candidates = _Ids(targets[format.candidates].take(pa.array(match)), format.candidates_sep)
    warnings = _check_candidates(ids, candidates, submission_path, format)
    return CheckReport(str(submission_path), len(table), len(ids.flat), warnings)


def score_submission(
    submission_path: str | Path, ground_truth_path: str | Path, format: SubmissionFormat = RECSYS2019
) -> ScoreReport:
    """Score by the official rule: the mean of 1 / rank of the answer, 0 where it is not listed exactly once.

    Rows are matched by all keys, in any order. The competition's own script skips rows that the submission lacks; here
    a submission whose rows are not exactly the ground truth's is refused.

    Args:
        submission_path: the submission CSV.
        ground_truth_path: the CSV with the answers.
        format: the form of both.

    Returns:
        The score and its rows.

    Raises:
        SubmissionError: a duplicate, extra or missing row.
        MissingFileError, UnreadableFileError, MissingColumnError: a file is absent, empty, corrupt or lacks a column.
        DataError: the ground truth is without rows or answers, or has a row twice.
    """
    table = _read_submission(submission_path, format, exact=False)
    truth = read_text_csv(ground_truth_path, (*format.keys, format.answer))
    if not len(truth):
        raise DataError("it has a header and no rows", file=ground_truth_path, remedy="Give the file with the answers")
    no_answer = np.flatnonzero(pc.equal(truth[format.answer], ""))
    if len(no_answer):
        raise DataError(
            f"no answer ({len(no_answer)} rows in all)",
            file=ground_truth_path,
            column=format.answer,
            row=int(no_answer[0]),
            remedy="Score against the file with the clicked items",
        )
    match = _match_rows(table, truth, submission_path, ground_truth_path, format, np.arange(len(truth)))
    ids = _Ids(table[format.prediction], format.sep)
    answer = truth[format.answer].take(pa.array(match))
    hit = pc.equal(ids.flat, answer.take(pa.array(ids.row)).combine_chunks()).to_numpy(zero_copy_only=False)
    listed = np.bincount(ids.row[hit], minlength=len(table))
    rank = np.zeros(len(table), dtype=np.int64)
    rank[ids.row[hit]] = ids.place[hit] + 1
    rank[listed != 1] = 0
    in_order = np.argsort(match)  # submission rows in the ground truth's order
    rank, listed = rank[in_order], listed[in_order]
    score = np.divide(1.0, rank, out=np.zeros(len(rank)), where=rank > 0)
    frame = truth.select(format.keys).append_column("answer", truth[format.answer])
    for name, values in {"listed": listed, "rank": rank, "reciprocal_rank": score}.items():
        frame = frame.append_column(name, pa.array(values))
    return ScoreReport(float(score.mean()), len(score), frame.to_pandas())


class _Ids:
    """The ids of all rows end to end, with the row and the place in its list of each."""

    def __init__(self, column: pa.ChunkedArray, sep: str) -> None:
        lists = arrow_column(pc.split_pattern(column, sep), "ids")
        self.flat = lists.flatten()
        self.length = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        self.row = np.repeat(np.arange(len(lists)), self.length)
        self.place = np.arange(len(self.flat)) - np.repeat(np.cumsum(self.length) - self.length, self.length)


def _key_text(frame: Any, name: str) -> pa.Array:
    names = frame.column_names if isinstance(frame, pa.Table) else list(getattr(frame, "columns", frame))
    if name not in names:
        raise MissingColumnError("the keys lack it", column=name, remedy=f"They have {', '.join(map(str, names))}")
    column = arrow_column(frame[name], name)
    if not (is_text(column.type) or pa.types.is_integer(column.type)):
        raise DataError(
            f"keys are {column.type}, which has no exact text", column=name, remedy="Give integers or strings"
        )
    _refuse_nulls(column, name, "a key is missing")
    return column.cast(pa.large_string())


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
    _refuse_nulls(column, form.prediction, "a list, or an id in it, is missing")
    return column.cast(pa.large_string())


def _refuse_nulls(column: pa.Array, name: str, problem: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null())[0])
        raise DataError(f"{problem} ({column.null_count} in all)", column=name, row=row, remedy="Fill it first")


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


def _row_keys(table: pa.Table, form: SubmissionFormat) -> pa.Array:
    columns = [arrow_column(table[name], name).cast(pa.large_string()) for name in form.keys]
    return pc.binary_join_element_wise(*columns, pa.scalar(_UNIT, pa.large_string()))


def _repeated(keys: pa.Array) -> np.ndarray:
    """Rows whose value stood in an earlier row."""
    codes = keys.dictionary_encode().indices.to_numpy()  # numbered as they appear: a new value is a new highest code
    highest = np.maximum.accumulate(codes)
    return np.flatnonzero(codes[1:] <= highest[:-1]) + 1


def _refuse_duplicates(keys: pa.Array, path: str | Path, form: SubmissionFormat) -> None:
    rows = _repeated(keys)
    if len(rows):
        _fail(f"{_named(keys, rows[0], form)} stands in an earlier row too", rows, path, form.keys, "Keep one row each")


def _match_rows(
    table: pa.Table,
    wanted: pa.Table,
    path: str | Path,
    wanted_path: str | Path,
    form: SubmissionFormat,
    numbers: np.ndarray,
) -> np.ndarray:
    """For every row of the submission its row in ``wanted``; refuses unless the two sets of rows are the same."""
    keys, wanted_keys = _row_keys(table, form), _row_keys(wanted, form)
    twice = _repeated(wanted_keys)
    if len(twice):
        raise DataError(
            f"{_named(wanted_keys, twice[0], form)} stands in an earlier row too ({len(twice)} in all)",
            file=wanted_path,
            column=", ".join(form.keys),
            row=int(numbers[twice[0]]),
            remedy="Give the file as it was published",
        )
    _refuse_duplicates(keys, path, form)
    match = pc.index_in(keys, value_set=wanted_keys)
    name = Path(wanted_path).name
    extra = np.flatnonzero(match.is_null())
    if len(extra):
        problem = f"{_named(keys, extra[0], form)} is not a target of {name}"
        _fail(problem, extra, path, form.keys, "Keep the targets alone, with their keys as they are in that file")
    match = match.to_numpy()
    missing = np.setdiff1d(np.arange(len(wanted)), match)
    if len(missing):
        raise SubmissionError(
            f"row {numbers[missing[0]]} of {name} has no row here: {_named(wanted_keys, missing[0], form)} "
            f"({len(missing)} missing in all)",
            file=path,
            column=", ".join(form.keys),
            remedy="Write one row for every target",
        )
    return match


def _named(keys: pa.Array, row: int, form: SubmissionFormat) -> str:
    return ", ".join(f"{name} {key}" for name, key in zip(form.keys, keys[int(row)].as_py().split(_UNIT)))


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


def _fail(problem: str, rows: np.ndarray, path: str | Path, column: str | tuple[str, ...], remedy: str) -> NoReturn:
    raise SubmissionError(
        f"{problem} ({len(np.unique(rows))} such rows in all)",
        file=path,
        column=column if isinstance(column, str) else ", ".join(column),
        row=int(rows[0]),
        remedy=remedy,
    )
