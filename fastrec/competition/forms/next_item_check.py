"""A submission of next items held against its test file, and against the items that followed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.form import ReportLines
from fastrec.competition.forms.next_item_form import NextItemForm

__all__ = ["NextItemScore", "check_items", "score_items"]


@dataclass(frozen=True)
class NextItemScore(ReportLines):
    """A submission's scores at ``k``, over how many sessions, and each session's rank (0: not among its items)."""

    k: int
    hr: float
    ndcg: float
    mrr: float
    ranks: np.ndarray

    def lines(self) -> list[str]:
        """Return lines to print; the last is MRR with five decimals."""
        found = {"hr": self.hr, "ndcg": self.ndcg, "mrr": self.mrr}
        return [f"sessions {len(self.ranks)}", *(f"{n}@{self.k} {v:.5f}" for n, v in found.items())]


def check_items(path: str | Path, test_path: str | Path, form: NextItemForm) -> tuple[int, int, tuple[str, ...]]:
    """Check that a submission has the form, and exactly the test file's sessions.

    Args:
        path: the submission.
        test_path: the test file.
        form: the form of both.

    Returns:
        The number of lines and of ids, and warnings: what is allowed but loses score.

    Raises:
        SubmissionError: other columns, sessions or lists than there may be; the first is named, the rest are counted.
        FastrecError: a file cannot be read, or lacks a column.
    """
    table, ids = form.read(path)
    match = form.match(table, form.sessions(test_path), path, role="no session")
    warnings = []
    if (match[1:] < match[:-1]).any():
        warnings.append(f"the sessions are in another order than in {Path(test_path).name}")
    short = int((ids.length < form.max_items).sum())
    if short:
        warnings.append(f"{short} lists have fewer than {form.max_items} ids")
    return len(table), len(ids.flat), tuple(warnings)


def score_items(path: str | Path, truth_path: str | Path, form: NextItemForm) -> NextItemScore:
    """Score a submission by where the item that followed stands in each list.

    Args:
        path: the submission.
        truth_path: the file with the targets; it needs no other column but the sessions' ids, where the form has them.
        form: the form of both.

    Raises:
        SubmissionError: the lines are not those of the truth, or no lists of the form.
        FastrecError: a file cannot be read, or lacks a column or a target.
    """
    table, ids = form.read(path)
    wanted, answers = form.answers(truth_path)
    match = form.match(table, wanted, path, role="no session")
    answer = answers.take(pa.array(match)).take(pa.array(ids.row))
    hit = pc.equal(pc.cast(ids.flat, pa.large_string()), answer).to_numpy(zero_copy_only=False)
    ranks = np.zeros(len(table), dtype=np.int64)
    ranks[match[ids.row[hit]]] = ids.place[hit] + 1
    place = ranks[ranks > 0].astype(np.float64)
    n = max(len(ranks), 1)
    gains = len(place), (1 / np.log2(place + 1)).sum(), (1 / place).sum()
    return NextItemScore(form.max_items, *(float(g) / n for g in gains), ranks)
