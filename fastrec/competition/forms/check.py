"""A submission held against the official rows: its form and its score."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.lists import RECSYS2019, SubmissionFormat
from fastrec.competition.forms.rows import IdLists, ReportLines, RowKeys, SubmissionForm
from fastrec.errors import DataError
from fastrec.table.read import read_text_csv

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CheckReport(ReportLines):
    """What a submission that passed holds; ``warnings`` are what is allowed but loses score."""

    path: str
    rows: int
    ids: int
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return lines to print; the last begins with ``ok``."""
        return [*(f"warning: {text}" for text in self.warnings), f"ok {self.rows} rows, {self.ids} ids"]


def check_submission(
    submission_path: str | Path, test_path: str | Path, format: SubmissionForm = RECSYS2019, *, any_order: bool = False
) -> CheckReport:
    """Check that a submission has the official form and exactly the test file's targets.

    Ids and keys are compared as text. One that a spreadsheet takes for a formula (``=1+1``) is an id like any other: it
    passes where the test file has exactly that id, and is refused, as every id that is not there, where a spreadsheet
    has made another of it (``2``, ``'=1+1``).

    Args:
        submission_path: the submission CSV.
        test_path: the test CSV it answers; of a ``ValueForm`` the test file or the sample submission, which say the
            rows and (the sample) their order.
        format: the form to hold it against.
        any_order: do not warn of lines in another order than the test's: a ranking's ids say which line is whose.

    Returns:
        Counts, and warnings about candidates that are in no list.

    Raises:
        SubmissionError: other columns than the official ones; a duplicate, extra or missing row; a list that is empty,
            too long, names an id twice or one that is not a candidate of its row. It names the first, counts the rest.
        MissingFileError, UnreadableFileError, MissingColumnError: a file is absent, empty, corrupt or lacks a column.
        DataError: the test file has no target, or one twice.
    """
    return CheckReport(str(submission_path), *format.check(submission_path, test_path, any_order=any_order))


@dataclass(frozen=True)
class ScoreReport(ReportLines):
    """The score of a submission.

    ``per_row`` is a pandas frame in the ground truth's order: its keys, ``answer``, ``listed`` (how often the answer is
    in the list), ``rank`` (from 1; 0 where it does not count) and ``reciprocal_rank``.
    """

    mrr: float
    n: int
    per_row: pd.DataFrame = field(repr=False, compare=False)

    def lines(self) -> list[str]:
        """Return lines to print; the last is ``mrr`` and the score with five decimals."""
        rank = self.per_row["rank"].to_numpy()
        counts = {"rows": self.n, "first": int((rank == 1).sum()), "not_counted": int((rank == 0).sum())}
        return [*(f"{name} {count}" for name, count in counts.items()), f"mrr {self.mrr:.5f}"]


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
    table = format.read_lines(submission_path, exact=False)
    truth = read_text_csv(ground_truth_path, (*format.keys, format.answer))
    if not len(truth):
        raise DataError("it has a header and no rows", file=ground_truth_path, remedy="Give the file with the answers")
    no_answer = np.flatnonzero(pc.equal(truth[format.answer], ""))
    if len(no_answer):
        problem = f"no answer ({len(no_answer)} rows in all)"
        remedy = "Score against the file with the clicked items"
        raise DataError(problem, file=ground_truth_path, column=format.answer, row=int(no_answer[0]), remedy=remedy)
    wanted = RowKeys(truth, format.keys, ground_truth_path)
    match = format.match(table, wanted, submission_path, role="not a target")
    ids = IdLists(table[format.prediction], format.sep)
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
