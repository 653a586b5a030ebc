"""Submissions: write one, check its form against the test file, score it by the official rule.

A submission has one row per target (a row of the test file that is to be ranked): the target's keys and an ordered list
of item ids. Everything is read and compared as text, so that ids stay exactly what they are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = ["RECSYS2019", "SubmissionFormat"]


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
