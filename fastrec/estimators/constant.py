"""``ConstantModel``: the same prediction for every row, the yardstick that every model must beat."""

from __future__ import annotations

from typing import Self

import torch

from fastrec.estimators._learnable import constant_of, learnable, outputs_of
from fastrec.estimators.base import Estimator
from fastrec.metrics import get_metric
from fastrec.validate import Rows

_OF_MEANS = ("rmse", "r2", "poisson_deviance", "gamma_deviance")  # the mean is their best


class ConstantModel(Estimator):
    """Predicts what is known without any feature: shares of the classes, the mean, or a metric's best; weights count.

    A ranking's scores are all 0.

    Args:
        name: the model's name.
        metric: of amounts the value that this metric is best at, of the mean and 201 quantiles; None: the mean.
    """

    learns = False
    learned = ("_value",)

    def __init__(self, name: str = "constant", *, metric: str | None = None) -> None:
        self.name, self.metric = name, metric
        self.forget()

    def suit(self, metric: str) -> None:
        """Find the value that a metric is best at, where no other was named."""
        self.metric = self.metric or metric

    def forget(self) -> None:
        """Drop the constant."""
        super().forget()
        self._value: torch.Tensor | None = None

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the constant."""
        self.check_task(train)
        train = learnable(train, name=self.name)
        weight = torch.ones(len(train)) if train.weight is None else train.weight
        weight = weight.double()
        if train.task == "ranking":
            value = torch.tensor(0.0)
        elif train.task == "multiclass":
            (label,) = outputs_of(train)
            value = torch.zeros(train.n_outputs, dtype=torch.float64).index_add_(0, label.long(), weight) / weight.sum()
        else:
            values = [self._best(label, weight, train.task) for label in outputs_of(train)]
            value = torch.tensor(values[0] if train.n_scores == 1 else values, dtype=torch.float64)
        self._value = value.double()
        return self

    def _best(self, label: torch.Tensor, weight: torch.Tensor, task: str) -> float:
        mean = constant_of(label, weight)
        if task != "regression" or self.metric is None or self.metric in _OF_MEANS:
            return mean
        metric, order = get_metric(self.metric), torch.argsort(label)
        # Some 20,000 rows tell quantiles well enough; the metric is computed 202 times.
        order = order[:: max(len(order) // 20_000, 1)]
        label, weight = label[order].double(), weight[order]
        tried = torch.cat([torch.tensor([mean], dtype=torch.float64), _quantiles(label, weight)])
        scores = [metric(label, value.expand(len(label)), weight=weight) for value in tried]
        best = 0
        for i, score in enumerate(scores):
            best = i if metric.better(score, scores[best]) else best
        return float(tried[best])

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the constant for every row: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._value is None:
            raise self.not_fitted()
        return self._value.expand(len(data), *self._value.shape).clone()


def _quantiles(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return quantiles of ascending values; if two values fit one, their mean."""
    share = torch.cumsum(weight, 0) / weight.sum()
    q = torch.linspace(0, 1, 201, dtype=torch.float64)
    low, high = (torch.searchsorted(share, q + d).clamp(max=len(values) - 1) for d in (-1e-12, 1e-12))
    return (values[low] + values[high]) / 2
