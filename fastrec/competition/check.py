"""``check_submission``: whether a submission has the official form, and exactly the target rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    pass
from fastrec.competition._rows import (
    _check_candidates,
    _check_lists,
    _Ids,
    _match_rows,
    _read_submission,
    _read_targets,
)
from fastrec.competition.form import RECSYS2019, SubmissionFormat

__all__ = ["CheckReport", "check_submission"]


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
