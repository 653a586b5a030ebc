"""What a run scores by: its metric on the target's own scale, classes by thresholds learned out of fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fastrec.errors import DataError
from fastrec.metrics import Metric, default_metric, get_metric, reciprocal_ranks
from fastrec.validate import Rows, Target, Task


@dataclass(frozen=True)
class Scorer:
    """A run's metric.

    Args:
        metric: the metric.
        target: what is predicted; None in a ranking task.
    """

    metric: Metric
    target: Target | None

    @classmethod
    def of(cls, metric: str | Metric | None, target: Target | None) -> Scorer:
        """The metric of a recipe.

        Raises:
            DataError: it cannot score the task.
        """
        task: Task = "ranking" if target is None else target.task
        found = get_metric(metric or default_metric(task))
        if task not in found.tasks:
            raise DataError(
                f"{found.name} scores no {task} task (it does {', '.join(found.tasks)})",
                remedy="Give another metric, or another task",
            )
        return cls(found, target)

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric.name

    @property
    def wants_classes(self) -> bool:
        """Whether class numbers are scored, which thresholds make of predictions."""
        return self.metric.wants == "classes" and self.target is not None and self.target.task != "multilabel"

    def __call__(self, rows: Rows, prediction: torch.Tensor, chosen: torch.Tensor | None = None) -> float:
        """The score of predictions.

        Args:
            rows: rows with labels.
            prediction: float64 ``[n]`` or ``[n, k]``.
            chosen: bool ``[n]``: the rows that count; None: all.
        """
        label, groups = rows.label, rows.groups if rows.task == "ranking" else None
        if label is None:
            raise DataError("rows without labels cannot be scored", remedy="Give the truth")
        if chosen is not None:
            label, prediction = label[chosen], prediction[chosen]
            groups = None if groups is None else groups[chosen]
        if self.metric.name == "mrr":  # ties as submitted: by the order of display
            return float(reciprocal_ranks(prediction, label, groups, ties="ordinal")[1].mean())
        return self.metric(self._own(label), self._own(prediction), groups=groups)

    def for_choosing(self) -> Metric:
        """What a stack chooses by: the metric on the learned scale; of classes the probabilities' own loss."""
        if self.wants_classes:
            assert self.target is not None
            return get_metric("rmse" if self.target.task == "regression" else "logloss")
        if self.target is None or self.target.scale is None:
            return self.metric
        return replace(self.metric, function=_restored(self.metric.function, self.target))

    def _own(self, values: torch.Tensor) -> torch.Tensor:
        return values if self.target is None else self.target.restore(values)


def _restored(function: Callable[..., float], target: Target) -> Callable[..., float]:
    def of_own_scale(y: torch.Tensor, prediction: torch.Tensor, **options: object) -> float:
        return function(target.restore(y), target.restore(prediction), **options)

    return of_own_scale
