"""``Competition``: what a competition's recipe says; ``fastrec.competition.run`` carries it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fastrec.competition.form import RECSYS2019, SubmissionFormat
from fastrec.estimators import Ranker
from fastrec.features import FeatureSet
from fastrec.stacking import Stack
from fastrec.table import Table


@dataclass
class Candidates:
    """A competition's data: candidates in lists, and what their features are made from.

    Args:
        train: labelled candidates; lists stand together, in ascending order of the list column.
        test: the candidates to rank; one list per target row.
        targets: the key columns of the submission, one row per test list, in the order of the lists.
        tables: other tables by name (an event log, item properties).
        truth: float64 ``[n_test]``: the labels of ``test``, where they are known; for the final score only.
        oracle: the expected score of the true probabilities, where they are known.
    """

    train: Table
    test: Table
    targets: Table
    tables: Mapping[str, Table] = field(default_factory=dict)
    truth: torch.Tensor | None = None
    oracle: float | None = None


class Competition(ABC):
    """A recipe: which candidates, which features, which models. ``run`` carries it out.

    Attributes:
        name: the competition.
        list_column: the list of each candidate, int64.
        label: 1 for the candidate that was chosen.
        item: the candidate's id, as submitted.
        fold_key: what validation folds must not split.
        counted: a column: lists where it is 1 are like the test's, and scores are over these; None: all lists.
        weight: a column: how much a list counts in training; None: all alike.
        touched: a column: above 0 where the candidate was known before, for the report; None: not reported.
        submission: the form of the submission.
    """

    name: str
    list_column = "list_id"
    label = "clicked"
    item = "item_id"
    fold_key = "session_id"
    counted: str | None = None
    weight: str | None = None
    touched: str | None = None
    submission: SubmissionFormat = RECSYS2019

    @abstractmethod
    def load(self, data: Path, *, rows: int | None, device: torch.device) -> Candidates:
        """Read the files and lay out the candidates."""

    @abstractmethod
    def features(self) -> FeatureSet:
        """The features."""

    @property
    @abstractmethod
    def categories(self) -> Sequence[str]:
        """The columns that are categories."""

    @property
    def plain(self) -> Sequence[str]:
        """Columns of the candidates that are number features as they are."""
        return []

    @abstractmethod
    def baselines(self) -> Sequence[Ranker]:
        """Rules to compare with."""

    @abstractmethod
    def models(self, *, bs: int | None) -> Sequence[Ranker]:
        """The base models of the stack."""

    def stack(self) -> Stack:
        """The second level."""
        return Stack()
