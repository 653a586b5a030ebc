"""``PseudoLabelled``: an estimator that labels rows without labels, and learns from those it is sure of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.estimators.base import Estimator, Wrapper
from fastrec.table import Table, concat
from fastrec.validate import Rows
from fastrec.validate.tasks import Task

_TASKS = ("binary", "multiclass", "regression", "multilabel")


class PseudoLabelled(Wrapper):
    """An estimator that is trained twice: on the labelled rows, and on these and the rows that it then labels itself.

    Self-training (Lee, "Pseudo-Label", ICML 2013 workshop). A row gets its likeliest class if that has at least the
    probability ``confidence`` (with several labels: if each of them has). Amounts have no such confidence: all rows are
    taken, with their predictions. Rows that were labelled so are never held out to stop by.

    It may pay if labels are few and classes lie apart, for smooth models rather than trees; the out-of-fold score
    tells. ``CrossFit`` gives each fold the rows to label; without any it is the estimator alone.

    Args:
        model: what learns; its name is this estimator's name, too. None: ``read`` brings it.
        confidence: the least probability of a class, above 0, at most 1.
        weight: how much a row that was labelled so counts beside a training row of mean weight.
        rounds: how often rows are labelled anew, each time by the last round's model.

    Attributes:
        taken: how many rows were labelled in the last round.

    Raises:
        DataError: a setting is out of its range.
    """

    wants_unlabeled = True
    learned = ("model", "taken")

    def __init__(
        self, model: Estimator | None, *, confidence: float = 0.9, weight: float = 0.5, rounds: int = 1
    ) -> None:
        if not (0 < confidence <= 1 and weight > 0 and rounds >= 1):
            raise DataError(
                f"no pseudo-labels of confidence {confidence}, weight {weight} and {rounds} rounds",
                remedy="Give a confidence above 0 and at most 1, a weight above 0, and one round or more",
            )
        self.model, self.confidence, self.weight, self.rounds = model, confidence, weight, rounds
        self.forget()

    @property
    def tasks(self) -> Sequence[Task]:  # type: ignore[override]
        """Those of the estimator that learns, but for ranking: a list has no label of its own."""
        return tuple(t for t in _TASKS if self.model is None or t in self.model.tasks)

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        self.taken = 0

    def start_from(self, other: Estimator) -> bool:
        """Return False: the last round's model has learned from labels that it gave itself."""
        return False

    def fit(
        self,
        train: Rows,
        valid: Rows | None = None,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        unlabeled: Rows | None = None,
    ) -> Self:
        """Learn from labelled rows, label others, learn from both.

        Args:
            train, valid, seed, device: see ``Estimator.fit``.
            unlabeled: the rows to label; their own labels, if they have any, are not looked at. None: none.
        """
        self.check_task(train)
        if self.model is None:
            raise self.not_fitted()
        self.forget()
        self.model.fit(train, valid, seed=seed, device=device)
        for _ in range(self.rounds if unlabeled is not None and len(unlabeled) else 0):
            label, sure = self._labelled(train.task, self.model.predict(replace(unlabeled, label=None)))
            if not bool(sure.any()):
                break
            both = self._together(train, unlabeled.take(sure), label[sure])
            self.model = self.model.fresh().fit(both, valid, seed=seed, device=device)  # type: ignore[assignment]
            self.taken = int(sure.sum())
        self.trace = self.model.trace
        return self

    def _labelled(self, task: Task, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels for the rows, and bool ``[n]``: which of them are sure."""
        if task == "regression":
            return predicted, torch.ones(len(predicted), dtype=torch.bool)
        if task == "multiclass":
            most = predicted.max(1)
            return most.indices, most.values >= self.confidence
        sure = torch.maximum(predicted, 1 - predicted) >= self.confidence
        return predicted > 0.5, sure if task == "binary" else sure.all(1)

    def _together(self, train: Rows, more: Rows, label: Tensor) -> Rows:
        assert train.label is not None
        n, m = len(train), len(more)
        weight = None
        if train.weight is not None or self.weight != 1:
            given = torch.ones(n, dtype=torch.float64) if train.weight is None else train.weight.double()
            mean = given[given > 0].mean()  # rows of weight 0 are as rows left out
            weight = torch.cat([given, (self.weight * mean).expand(m)])
        some = {n: v for n in ("groups", "order") if (v := getattr(train, n)) is not None}
        return replace(
            train,
            table=_below(train, more.table),
            label=torch.cat([train.label, label.to(train.label.dtype)]),
            weight=weight,
            guessed=torch.arange(n + m) >= n,
            **{name: torch.cat([v, v.max().expand(m)]) for name, v in some.items()},  # told by ``guessed`` rows never
        )


def _below(train: Rows, more: Table) -> Table:
    """Concatenate the columns that are learned from, and others of one kind in both tables."""
    ours = train.table
    others = [n for n in ours.names if n not in train.names and n in more and ours[n].kind == more[n].kind]
    names = [*train.names, *others]
    return concat([ours.select(names), more.select(names)])
