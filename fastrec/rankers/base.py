"""What every ranker is: something that learns from lists of candidates and scores the candidates of other lists."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.table import Table


@dataclass(frozen=True, eq=False)
class Lists:
    """Candidates in lists, with their features.

    Args:
        table: ``[n]`` candidates.
        groups: int64 ``[n]``: the list of each candidate; a list's candidates stand together, lists in ascending order.
        cats: the columns that are categories.
        conts: the columns that are numbers.
        label: float ``[n]``: how relevant a candidate is (1 = clicked); None where it is not known.
        weight: float ``[n]``: how much each candidate's list counts; None: all alike.
    """

    table: Table
    groups: torch.Tensor
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    label: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.groups) > 1 and bool((self.groups[1:] < self.groups[:-1]).any()):
            row = int((self.groups[1:] < self.groups[:-1]).nonzero()[0]) + 1
            raise DataError("lists are not in ascending order", row=row, remedy="Sort the candidates by list first")

    def __len__(self) -> int:
        return len(self.groups)

    def with_table(self, table: Table) -> Lists:
        """The same lists with other columns."""
        return replace(self, table=table)

    def take(self, rows: torch.Tensor) -> Lists:
        """The candidates at ``rows`` (bool ``[n]`` or ascending int64 ``[m]``)."""
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        some = {n: None if v is None else v[rows] for n, v in (("label", self.label), ("weight", self.weight))}
        return replace(self, table=self.table.take(rows), groups=self.groups[rows], **some)


@dataclass
class Trace:
    """What a ranker can tell of its training.

    Args:
        curves: one record per epoch: ``{'epoch': 0, 'train_loss': …, 'valid_loss': …, 'mrr': …}``.
        importance: feature → total gain.
    """

    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)


class Ranker(ABC):
    """Learns from lists with labels, then scores candidates: the higher, the nearer the top."""

    name: str
    trace: Trace

    @abstractmethod
    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Learn.

        Args:
            train: lists with labels.
            valid: other lists with labels, only to report on while training; nothing is chosen by them.
            seed: of everything random.
            device: where to train.
        """

    @abstractmethod
    def predict(self, data: Lists) -> torch.Tensor:
        """Scores of the candidates: float64 ``[n]`` on the CPU."""

    @abstractmethod
    def save(self, folder: Any) -> None:
        """Write what was learned into a folder, without pickle."""

    def fresh(self) -> Ranker:
        """An untrained copy with the same settings."""
        return copy.deepcopy(self)


def whole_lists(data: Lists) -> Lists:
    """The lists that can teach a ranking: those of two candidates or more, one of them relevant."""
    assert data.label is not None
    _, codes, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
    relevant = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, codes, data.label.double())
    return data.take(((sizes > 1) & (relevant > 0))[codes])
