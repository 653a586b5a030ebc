"""``OffsetModel``: what a column foretells, and an estimator that learns what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from fastrec.errors import DataError
from fastrec.estimators.base import Estimator
from fastrec.validate import Rows


class OffsetModel(Estimator):
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

    def __init__(self, model: Estimator | None, column: str) -> None:
        self.model, self.column = model, column
        self.forget()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the estimator that learns the correction."""
        return "offset" if self.model is None else self.model.name

    @property
    def beside(self) -> bool:  # type: ignore[override]
        """As the estimator that learns the correction."""
        return self.model is not None and self.model.beside

    def suit(self, metric: str) -> None:
        """Let the correction be what a metric of misses is best at: they are the same with and without the offset."""
        if self.model is not None and metric.partition("@")[0] in ("mae", "pinball"):
            self.model.suit(metric)

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        if self.model is not None:
            self.model = self.model.fresh()
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

    def start_from(self, other: Estimator) -> bool:
        """Let the model of the corrections begin with another's."""
        known = isinstance(other, OffsetModel) and other.model is not None and self.model is not None
        return known and self.model.start_from(other.model)

    def start_anew(self) -> None:
        """Let the model of the corrections begin from nothing."""
        if self.model is not None:
            self.model.start_anew()

    def predict(self, data: Rows) -> torch.Tensor:
        """The column and the correction: float64 ``[n]`` on the CPU."""
        if self.model is None or self._mean is None:
            raise self.not_fitted()
        return self._offset(data) + self.model.predict(data)

    def _less(self, data: Rows) -> Rows:
        return data if data.label is None else replace(data, label=data.label.double() - self._offset(data))

    def _offset(self, data: Rows) -> torch.Tensor:
        values = data.table[self.column].number().cpu()
        return torch.where(values.isnan(), self._mean, values)

    def settings(self) -> dict[str, Any]:
        """The column; the estimator is kept whole."""
        return {"model": None, "column": self.column}

    def write(self, folder: Path) -> dict[str, Any]:
        """The estimator (``model/``) and the mean."""
        if self.model is None or self._mean is None:
            raise self.not_fitted()
        self.model.save(folder / "model")
        return {"mean": self._mean}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The inverse of ``write``."""
        self.model, self._mean = Estimator.load(folder / "model"), float(about["mean"])
