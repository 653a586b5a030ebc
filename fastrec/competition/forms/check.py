"""``check_submission``: whether a submission has the official form, and exactly the target rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms._rows import _check_candidates, _read_targets
from fastrec.competition.forms.form import ReportLines
from fastrec.competition.forms.id_lists import IdLists, check_lists
from fastrec.competition.forms.list_form import RECSYS2019, SubmissionFormat
from fastrec.competition.forms.next_item_check import check_items
from fastrec.competition.forms.next_item_form import NextItemForm
from fastrec.competition.forms.row_keys import RowKeys
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.forms.value_rows import wanted_rows
from fastrec.errors import SubmissionError

__all__ = ["CheckReport", "check_submission"]


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
    submission_path: str | Path,
    test_path: str | Path,
    format: SubmissionFormat | ValueForm | NextItemForm = RECSYS2019,
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

    Returns:
        Counts, and warnings about candidates that are in no list.

    Raises:
        SubmissionError: other columns than the official ones; a duplicate, extra or missing row; a list that is empty,
            too long, names an id twice or one that is not a candidate of its row. It names the first, counts the rest.
        MissingFileError, UnreadableFileError, MissingColumnError: a file is absent, empty, corrupt or lacks a column.
        DataError: the test file has no target, or one twice.
    """
    if isinstance(format, ValueForm):
        return _check_values(Path(submission_path), Path(test_path), format)
    if isinstance(format, NextItemForm):
        return CheckReport(str(submission_path), *check_items(submission_path, test_path, format))
    table = format.read_lines(submission_path)
    targets, numbers = _read_targets(test_path, format)
    match = format.match(table, RowKeys(targets, format.keys, test_path, numbers), submission_path, role="not a target")
    ids = IdLists(table[format.prediction], format.sep)
    check_lists(ids, submission_path, format)
    candidates = IdLists(targets[format.candidates].take(pa.array(match)), format.candidates_sep)
    warnings = _check_candidates(ids, candidates, submission_path, format)
    return CheckReport(str(submission_path), len(table), len(ids.flat), warnings)


def _check_values(path: Path, test_path: Path, form: ValueForm) -> CheckReport:
    """Check the columns and rows of a submission with one line per row, and that numbers are numbers."""
    table = form.read_lines(path)
    match = form.match(table, wanted_rows(form, test_path), path, complete=form.per_list is None)
    warnings = []
    if (match[1:] < match[:-1]).any():
        warnings.append(f"the rows are in another order than in {test_path.name}")
    text = [n for n in form.values if not _is_number(table[n])]
    for name in form.values:
        if name not in text or form.probabilities:
            form.numbers(table, name, path)
        elif pc.any(pc.equal(table[name], "")).as_py():
            row = pc.index(table[name], "").as_py()
            raise SubmissionError("a value is empty", file=path, column=name, row=row, remedy="Predict every row")
    return CheckReport(str(path), len(table), len(table) * len(form.values), tuple(warnings))


def _is_number(column: pa.ChunkedArray) -> bool:
    """Return whether the first value of a text column is a number."""
    try:
        float(column[0].as_py() if len(column) else "")
    except ValueError:
        return False
    return True
