"""``RankMean``: the mean of what share of the training rows each base model puts lower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch

from fastrec._core import limits
from fastrec.estimators import Estimator, Trace
from fastrec.stacking.linear import logistic, ridge_regression
from fastrec.stacking.row_inputs import as_task, labels_of, predicted_by, weights_of
from fastrec.validate import Rows


class RankMean(Estimator):
    """The mean rank of a row, for metrics that look at the order alone; models on different scales count alike.

    A row's rank is its place among the training rows (between two of the knots that are kept it is interpolated), so
    that a row's prediction does not depend on the rows beside it. One straight line takes the mean rank to the task's
    own scale: through the logit to a probability, or to values. It changes no order as long as higher means more.

    Args:
        models, name: as of ``LinearBlend``.
    """

    tasks = ("binary", "multilabel", "regression")
    learned = ("_knots", "_line")

    def __init__(self, models: Sequence[str], *, name: str = "mean_rank") -> None:
        self.models, self.name = list(models), name
        self.forget()

    def forget(self) -> None:
        """Drop the knots."""
        self.trace = Trace(importance=dict.fromkeys(self.models, 1 / len(self.models)))
        self._knots: list[list[torch.Tensor]] = []  # of each model and column: values, shares
        self._line: torch.Tensor | None = None  # [2, k]: slope and constant

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Keep the training rows' distribution, and find the line; ``valid`` is not looked at."""
        self.check_task(train)
        x, y, w = predicted_by(self.models, train), labels_of(train), weights_of(train)
        self._knots = [_knots_of(values) for values in x.flatten(1).T]
        shares = self._shares(x)
        find = ridge_regression if train.task == "regression" else logistic
        line = [find(_on_scale(shares[:, [j]], train), y[:, j], w, 1e-6) for j in range(y.shape[1])]
        self._line = torch.stack([torch.stack([f[0][0] for f in line]), torch.stack([f[1] for f in line])])
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values in the order of the mean ranks: float64 ``[n]`` or ``[n, k]``."""
        if self._line is None:
            raise self.not_fitted()
        sums = _on_scale(self._shares(predicted_by(self.models, data)), data) * self._line[0] + self._line[1]
        return as_task(sums if data.task == "regression" else sums.sigmoid(), data)

    def _shares(self, x: torch.Tensor) -> torch.Tensor:
        """Return the share of training rows below, mean over the models: float64 ``[n, k]``."""
        each = [_interpolated(v.contiguous(), *knots) for v, knots in zip(x.flatten(1).T, self._knots, strict=True)]
        return torch.stack(each, 1).reshape(x.shape).mean(1)


def _on_scale(shares: torch.Tensor, data: Rows) -> torch.Tensor:
    # The logit of the first and the last row would be infinite.
    return shares if data.task == "regression" else shares.logit(eps=1e-4)


def _knots_of(values: torch.Tensor) -> list[torch.Tensor]:
    """Return distinct values and the share of rows at or below each (ties: their middle)."""
    ordered = torch.sort(values).values
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    shares = (counts.cumsum(0) - counts / 2) / len(values)
    if len(distinct) > limits.RANK_KNOTS:
        places = torch.searchsorted(shares, torch.linspace(0, 1, limits.RANK_KNOTS, dtype=shares.dtype)).clamp(
            max=len(shares) - 1
        )
        places = torch.unique_consecutive(places)
        distinct, shares = distinct[places], shares[places]
    return [distinct, shares]


def _interpolated(values: torch.Tensor, knots: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    if len(knots) == 1:
        return torch.full_like(values, 0.5)
    above = torch.searchsorted(knots, values).clamp(1, len(knots) - 1)
    low, high = knots[above - 1], knots[above]
    part = ((values - low) / (high - low)).clamp(0, 1)
    return shares[above - 1] + part * (shares[above] - shares[above - 1])
