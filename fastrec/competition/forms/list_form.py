"""``SubmissionFormat``: a submission of a list of item ids for each target (a row of the test file to rank)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from fastrec.competition.forms.form import SubmissionForm
from fastrec.competition.forms.next_item_form import NextItemForm
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.run_json import read_json
from fastrec.errors import DataError, SubmissionError, UnreadableFileError
from fastrec.table.csv_text import read_text_csv

__all__ = ["RECSYS2019", "SubmissionFormat", "form_around", "form_of_run"]


@dataclass(frozen=True, kw_only=True)
class SubmissionFormat(SubmissionForm):
    """The form of a submission of ranked lists, and the columns of its test file and ground truth.

    Args:
        keys: columns that name a target row, in the order of the file.
        prediction: the column with the ordered item ids, last in the file.
        sep: separates two ids.
        max_items: the most ids in one list.
        targets: (column, value) pairs; the test rows that equal all of them are the targets.
        candidates: the test file's column with the ids that may be recommended.
        candidates_sep: separates two of those.
        answer: the ground truth's column with the right id.

    Raises:
        DataError: no file can have this form: an empty separator, no room for an item, or a column named twice.
    """

    kind: ClassVar[str] = "lists"
    keys: tuple[str, ...]
    prediction: str
    sep: str = " "
    max_items: int = 25
    targets: tuple[tuple[str, str], ...] = ()
    candidates: str = "impressions"
    candidates_sep: str = "|"
    answer: str = "reference"

    def __post_init__(self) -> None:
        if not self.sep or not self.candidates_sep or self.max_items < 1 or len(set(self.header)) < len(self.header):
            raise DataError(
                f"no submission has the columns {', '.join(self.header)}, the separators {self.sep!r} and "
                f"{self.candidates_sep!r} and {self.max_items} items",
                remedy="Name each column once, and give separators and 1 item or more",
            )

    @property
    def keys_needed(self) -> tuple[str, ...]:
        """The columns that target rows need to be written in this form."""
        return self.keys

    @property
    def predictions(self) -> tuple[str, ...]:
        """The column with the lists."""
        return (self.prediction,)

    def read_lines(self, path: str | Path, *, exact: bool = True) -> pa.Table:
        """Read a submission as text; a missing column is a ``MissingColumnError``."""
        try:
            return super().read_lines(path, exact=exact)
        except SubmissionError:
            read_text_csv(path, self.header)  # names a missing column rather than the header
            raise


RECSYS2019 = SubmissionFormat(
    keys=("user_id", "session_id", "timestamp", "step"),
    prediction="item_recommendations",
    targets=(("action_type", "clickout item"), ("reference", "")),
)


def form_of_run(folder: str | Path) -> SubmissionFormat | ValueForm | NextItemForm:
    """Return the form of a run's submission.

    Args:
        folder: a run directory.

    Raises:
        MissingFileError, UnreadableFileError: there is no ``config.json``, or it is damaged.
        DataError: the run is of several goals, whose submissions have no form here.
    """
    path = Path(folder) / "config.json"
    state = read_json(path)
    try:
        if state["task"] != "objectives":
            kinds = {form.kind: form for form in (SubmissionFormat, ValueForm, NextItemForm)}
            return kinds[state["submission"]["kind"]].from_state(state["submission"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableFileError(
            f"the run's submission form cannot be read ({error})",
            file=path,
            remedy="Run the recipe again, or give the form by its competition",
        ) from error
    raise DataError(
        "submissions of several goals are not checked or scored here", file=path, remedy="Read the run's scores.json"
    )


def form_around(submission: str | Path) -> SubmissionFormat | ValueForm | NextItemForm:
    """Return the form of the run whose directory a submission is in; elsewhere ``RECSYS2019``.

    Args:
        submission: its path, which need not exist.

    Raises:
        UnreadableFileError: the run's ``config.json`` is damaged.
    """
    run = run_around(submission)
    return RECSYS2019 if run is None else form_of_run(run)


def run_around(path: str | Path) -> Path | None:
    """Return the run directory that a path is in, or None."""
    runs = (p for p in Path(path).absolute().parents if (p / "scores.json").is_file())
    return next((p for p in runs if (p / "config.json").is_file()), None)
