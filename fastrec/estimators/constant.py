"""``ConstantModel``: the same prediction for every row, the yardstick that every model must beat."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from fastrec.errors import DataError
from fastrec.estimators._learnable import constant_of, learnable, outputs_of
from fastrec.estimators.base import Estimator
from fastrec.table import load_state, save_state
from fastrec.validate import Rows


class ConstantModel(Estimator):
    """Predicts what is known without any feature: shares of the classes, the mean or the median; weights count.

    A ranking's scores are all 0.

    Args:
        name: the model's name.
        statistic: of amounts the ``'mean'`` (the least squared error) or the ``'median'`` (the least absolute error).

    Raises:
        DataError: there is no such statistic.
    """

    learns = False

    def __init__(self, name: str = "constant", *, statistic: Literal["mean", "median"] = "mean") -> None:
        if statistic not in ("mean", "median"):
            raise DataError(f"there is no statistic {statistic!r} here", remedy="Give 'mean' or 'median'")
        self.name, self.statistic = name, statistic
        self.forget()

    def forget(self) -> None:
        """Drop the constant."""
        super().forget()
        self._value: torch.Tensor | None = None

    def fit(
        self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> ConstantModel:
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
            middle = _median if self.statistic == "median" and train.task == "regression" else constant_of
            values = [middle(label, weight) for label in outputs_of(train)]
            value = torch.tensor(values[0] if train.n_scores == 1 else values, dtype=torch.float64)
        self._value = value.double()
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """The constant for every row: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._value is None:
            raise self.not_fitted()
        return self._value.expand(len(data), *self._value.shape).clone()

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"name": self.name, "statistic": self.statistic}

    def write(self, folder: Path) -> dict[str, Any]:
        """The constant."""
        if self._value is None:
            raise self.not_fitted()
        save_state(folder / "constant", {"value": self._value})
        return {}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The inverse of ``write``."""
        self._value = load_state(folder / "constant")["value"]


def _median(label: torch.Tensor, weight: torch.Tensor) -> float:
    """The value with half of the weight on either side; between two values that both have it, their mean."""
    values, order = torch.sort(label.double())
    share = torch.cumsum(weight[order], 0) / weight.sum()
    low, high = (int(torch.searchsorted(share, at)) for at in (0.5 - 1e-12, 0.5 + 1e-12))
    return float((values[low] + values[min(high, len(values) - 1)]) / 2)
