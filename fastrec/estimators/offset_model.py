"""``OffsetModel``: what a column foretells, and an estimator that learns what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch

from fastrec.errors import DataError
from fastrec.estimators.base import Estimator, Wrapper
from fastrec.validate import Rows


class OffsetModel(Wrapper):
    """A column's value and an estimator's correction to it: the estimator learns the target less the column.

    For amounts that something simpler foretells well (an earlier value, a regression): trees need very many splits to
    follow a number, and none to correct it. Where the column is missing the mean target of the training rows is taken.

    Args:
        model: learns the correction; its name is this estimator's name, too. None: ``read`` brings it.
        column: a number on the scale of the labels (of a target that is learned as its log, a log).

    Raises:
        DataError: the rows have several targets, or lack the column.
    """

    tasks = ("regression",)
    learns = True  # the mean, even where the model is a rule
    learned = ("model", "_mean")

    def __init__(self, model: Estimator | None, column: str) -> None:
        self.model, self.column = model, column
        self.forget()

    def suit(self, metric: str) -> None:
        """Let the correction be what a metric of misses is best at: they are the same with and without the offset."""
        if self.model is not None and metric.partition("@")[0] in ("mae", "pinball"):
            self.model.suit(metric)

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        self._mean: float | None = None

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Learn the correction."""
        self.check_task(train)
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        if train.n_outputs > 1:
            raise DataError(f"{self.name}: {train.n_outputs} targets, and one offset", remedy="Give one target")
        if self.model is None:
            raise self.not_fitted()
        self.forget()
        weight = torch.ones(len(train)) if train.weight is None else train.weight
        self._mean = float((train.label.double() @ weight.double()) / weight.double().sum().clamp_min(1e-300))
        self.model.fit(self._less(train), None if valid is None else self._less(valid), seed=seed, device=device)
        self.trace = self.model.trace
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the column plus the correction: float64 ``[n]`` on the CPU."""
        if self.model is None or self._mean is None:
            raise self.not_fitted()
        return self._offset(data) + self.model.predict(data)

    def _less(self, data: Rows) -> Rows:
        return data if data.label is None else replace(data, label=data.label.double() - self._offset(data))

    def _offset(self, data: Rows) -> torch.Tensor:
        values = data.table[self.column].number().cpu()
        return torch.where(values.isnan(), self._mean, values)
