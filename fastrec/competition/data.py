"""``CompetitionData``: a competition's rows, laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastrec.table import Table


@dataclass
class CompetitionData:
    """A competition's data: rows to learn from and rows to predict, and what their features are made from.

    Args:
        train: labelled rows. In a ranking task candidates: lists stand together, in ascending order of the list column.
        test: the rows to predict, without their target; in a ranking task one list per target row. None: there are
            none, and the submission has the training rows with their out-of-fold predictions.
        targets: the id columns of the submission. In a ranking task whose form has one line per list, one row per test
            list, in the order of the lists; else one row per test row. None: the test rows' own columns.
        tables: other tables by name (an event log, item properties).
        truth: what ``test`` is scored by, where it is known; for the final score only: labels float64 ``[n_test]`` of a
            ranking task, else a table with the target column(s).
        oracle: the expected score of the true probabilities, where they are known.
    """

    train: Table
    test: Table | None = None
    targets: Table | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    truth: Any = None
    oracle: float | None = None
