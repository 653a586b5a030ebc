"""``ShiftedBlend``: a fitted weighted sum whose constant is the best by the metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.estimators import Estimator
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.stacking.hill_climb import is_known
from fastrec.stacking.row_blends import RidgeBlend
from fastrec.stacking.row_inputs import labels_of
from fastrec.validate import Rows

_STEPS = 30
_GOLDEN = (5**0.5 - 1) / 2


class ShiftedBlend(RidgeBlend):
    """``RidgeBlend`` with the constant that the metric likes best: models that learn a mean are off for other metrics.

    A percentage error, for one, is least below the mean. On a log scale the constant is a factor. It is found by a
    golden section search, for one target.

    Args:
        models: the base models' names.
        name: the blend's name; None: ``shifted``.
        ridge: as for ``RidgeBlend``.
        metric: what to shift by, a name or a ``Metric``; None: the task's usual one. A metric of one's own is not
            saved: what is loaded predicts as before, but would be fitted anew by the task's usual metric.

    Source: Kiefer 1953, "Sequential minimax search for a maximum", for the search.
    """

    kind = "shifted"

    def __init__(
        self,
        models: Sequence[str],
        *,
        name: str | None = None,
        ridge: float = 1.0,
        metric: str | Metric | None = None,
    ) -> None:
        self.metric = metric
        super().__init__(models, name=name, ridge=ridge)

    def fit(
        self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Estimator:
        """Find the weights, then the constant; ``valid`` is not looked at."""
        super().fit(train)
        assert self.weights is not None
        assert self.constant is not None
        metric = get_metric(default_metric(train.task) if self.metric is None else self.metric)
        said = self.linear(train)[:, 0]
        sign = -1.0 if metric.greater_is_better else 1.0
        reach = float((labels_of(train)[:, 0] - said).std(correction=0))
        found = _least(lambda shift: sign * metric(train.label, said + shift, weight=train.weight), reach)
        self._keep(self.weights, self.constant + found)
        return self

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments; a metric by its name where it has one."""
        metric = self.metric.name if isinstance(self.metric, Metric) else self.metric
        return {**super().settings(), "metric": metric if is_known(metric) else None}


def _least(loss: Any, reach: float) -> float:
    """Where a function of one valley is least between ``-reach`` and ``reach``; 0 where nothing is less than there."""
    low, high = -reach, reach
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    middle = (low + high) / 2
    return middle if loss(middle) < loss(0.0) else 0.0
