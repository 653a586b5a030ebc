"""``HillClimb``: greedy ensemble selection that optimises the metric directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from fastrec.errors import DataError
from fastrec.estimators import Estimator, Trace
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.metrics.registry import known_metric
from fastrec.stacking.blends import as_task, base_models, in_lists, predicted_by
from fastrec.validate import Rows


class HillClimb(Estimator):
    """Mean of base models in which each counts as often as it helps the metric; many not at all.

    The search starts from the best model. In each step it adds the model that makes the best mean, and finally returns
    the best mean found. Probabilities and values are averaged; in lists, the in-list log-softmax.

    Args:
        models: the base models' names.
        name: the blend's name.
        metric: the metric to optimise, a name or a ``Metric``; None: the task's default. A metric of your own is not
            saved: a loaded blend predicts as before, but refitting it would use the task's default metric.
        steps: the maximum of models to add, including the first one.
        rows: use about this many of the training rows (whole lists), chosen at random; None: all.

    Source: Caruana et al. 2004, "Ensemble selection from libraries of models".
    """

    learned = ("weights",)
    weights: torch.Tensor | None

    def __init__(
        self,
        models: Sequence[str],
        *,
        name: str = "hill_climb",
        metric: str | Metric | None = None,
        steps: int = 40,
        rows: int | None = 50_000,
    ) -> None:
        self.models, self.name, self.metric, self.steps, self.rows = base_models(models), name, metric, steps, rows
        self.forget()

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights, without looking at ``valid``."""
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        train = self._some(train, seed)
        metric = get_metric(default_metric(train.task) if self.metric is None else self.metric)
        counts = climb(metric, train, self._inputs(train), self.steps)
        self.weights = counts.double() / counts.sum()
        self.trace = Trace(importance=dict(zip(self.models, self.weights.tolist(), strict=True)))
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the weighted mean: float64 ``[n]`` or ``[n, k]``."""
        if self.weights is None:
            raise self.not_fitted()
        return as_task(torch.einsum("nmk,m->nk", self._inputs(data), self.weights), data)

    def _inputs(self, data: Rows) -> torch.Tensor:
        if data.task == "ranking":
            return in_lists(self.models, data)[:, :, None]
        return predicted_by(self.models, data)

    def _some(self, train: Rows, seed: int) -> Rows:
        if self.rows is None or len(train) <= self.rows:
            return train
        draw = torch.Generator().manual_seed(seed)
        if train.groups is None:
            return train.take(torch.randperm(len(train), generator=draw)[: self.rows].sort().values)
        ids, codes = torch.unique(train.groups, return_inverse=True)
        chosen = torch.randperm(len(ids), generator=draw)[: max(int(self.rows / len(train) * len(ids)), 1)]
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[chosen] = True
        return train.take(mask[codes])

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments; a metric is given by name if it has one."""
        metric = self.metric.name if isinstance(self.metric, Metric) else self.metric
        return {**super().settings(), "metric": None if known_metric(metric) is None else metric}


def climb(metric: Metric, data: Rows, x: torch.Tensor, steps: int) -> torch.Tensor:
    """Count how often each model is taken: int64 ``[models]``; ``x``: float64 ``[n, models, k]``. Ties take the
    first.
    """

    def score(mean: torch.Tensor) -> float:
        return metric(data.label, mean[:, 0] if mean.shape[1] == 1 else mean, groups=data.groups)

    taken = torch.zeros(x.shape[1], dtype=torch.int64)
    total = torch.zeros_like(x[:, 0])
    best, best_score, since = taken, float("nan"), 0
    for step in range(1, steps + 1):
        scores = [score((total + x[:, m]) / step) for m in range(x.shape[1])]
        chosen = best_of(metric, scores)
        taken = taken.clone()
        taken[chosen] += 1
        total = total + x[:, chosen]
        since += 1
        if step == 1 or metric.better(scores[chosen], best_score):
            best, best_score, since = taken, scores[chosen], 0
        # One addition may not help where two would; after five in a row, help is unlikely.
        if since >= 5:
            break
    return best


def best_of(metric: Metric, scores: Sequence[float]) -> int:
    """Return the index of the best score, the first one among ties."""
    best = 0
    for i, value in enumerate(scores):
        best = i if metric.better(value, scores[best]) else best
    return best
