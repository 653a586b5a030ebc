"""What every ranker is: something that learns from lists of candidates and scores the candidates of other lists."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.files import atomic_folder, check_replaceable
from fastrec.table import Table


@dataclass(frozen=True, eq=False)
class Lists:
    """Candidates in lists, with their features.

    Groups, labels and weights are kept on the CPU, wherever the table is: a few values per candidate, which metrics,
    trees and blends read there.

    Args:
        table: ``[n]`` candidates.
        groups: int64 ``[n]``: the list of each candidate; a list's candidates stand together, lists in ascending order.
        cats: the columns that are categories.
        conts: the columns that are numbers.
        label: float ``[n]``: how relevant a candidate is (1 = clicked); None where it is not known.
        weight: float ``[n]``, 0 or above: how much each candidate's list counts; None: all alike.

    Raises:
        DataError: the lists are not in order, a weight is below 0 or not a number, or the lengths differ.
    """

    table: Table
    groups: torch.Tensor
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    label: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("groups", "label", "weight"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, values.cpu())  # the dataclass is frozen
        sizes = {n: len(v) for n, v in (("label", self.label), ("weight", self.weight)) if v is not None}
        sizes |= {"groups": len(self.groups)} | ({"table": len(self.table)} if self.table.names else {})
        if len(set(sizes.values())) > 1:
            raise DataError(f"lists of unequal lengths: {sizes}", remedy="Give one of each for every candidate")
        self._check_order_and_weights()

    def _check_order_and_weights(self) -> None:
        if len(self.groups) > 1 and bool((self.groups[1:] < self.groups[:-1]).any()):
            row = int((self.groups[1:] < self.groups[:-1]).nonzero()[0]) + 1
            raise DataError("lists are not in ascending order", row=row, remedy="Sort the candidates by list first")
        if self.weight is not None and bool((bad := ~(self.weight >= 0) | self.weight.isinf()).any()):
            raise DataError(
                "a weight is below 0, missing or infinite",
                row=int(bad.nonzero()[0]),
                remedy="Use 0 for a list that is not to count",
            )

    def __len__(self) -> int:
        return len(self.groups)

    def with_table(self, table: Table) -> Lists:
        """The same lists with other columns."""
        return replace(self, table=table)

    def take(self, rows: torch.Tensor) -> Lists:
        """The candidates at ``rows`` (bool ``[n]`` or ascending int64 ``[m]``)."""
        rows = rows.cpu()
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
    beside = False  # may train in a thread of its own: it draws on no global random state and lets the interpreter go

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
        """Write what was learned as a folder, without pickle; an earlier save there is replaced in one step.

        Raises:
            WriteError: the folder holds something else, or the file system refused.
        """

    def forget(self) -> None:
        """Drop what was learned."""
        self.trace = Trace()

    def fresh(self) -> Ranker:
        """An untrained copy with the same settings."""
        made = copy.copy(self)
        made.forget()  # before the deep copy: a trained model may be large
        return copy.deepcopy(made)

    def not_fitted(self) -> NotFittedError:
        """What to raise where something was asked of an untrained ranker."""
        return NotFittedError(f"{self.name} has not been trained", remedy="Call fit first")


def whole_lists(data: Lists, *, name: str = "the ranker") -> Lists:
    """The lists that can teach a ranking: those of two candidates or more, one of them relevant, of a weight above 0.

    Args:
        data: lists with labels.
        name: who is to learn from them, for messages.

    Raises:
        DataError: there are no labels, or no such list.
    """
    if data.label is None:
        raise DataError(f"{name} was given lists without labels to learn from", remedy="Give label=")
    _, codes, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
    label = data.label.double() if data.weight is None else data.label.double() * (data.weight > 0)
    relevant = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, codes, label)
    chosen = ((sizes > 1) & (relevant > 0))[codes]  # not those where a label is NaN
    if not bool(chosen.any()):
        raise DataError(
            f"{name} has no list to learn from",
            remedy="Give lists of two candidates or more, one of them relevant, of a weight above 0",
        )
    return data if bool(chosen.all()) else data.take(chosen)


@contextmanager
def saved_to(folder: str | Path) -> Iterator[Path]:
    """A folder to save a ranker into, which takes the place of an earlier save when the block ends well."""
    check_replaceable(folder, "ranker.json", "blend")
    with atomic_folder(folder) as part:
        yield part
