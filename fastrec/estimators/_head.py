"""A net's outputs for a task: targets, loss and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.validate import Rows
from fastrec.validate.tasks import Task

_POSITIVE, _LEAST = ("poisson_deviance", "gamma_deviance"), 1e-3  # predictions above this share of the mean
OBJECTIVES = ("mae", "pinball", *_POSITIVE)


@dataclass(frozen=True)
class Head:
    """The outputs of a net for a task.

    Binary: one output, the logit of class 1. Multiclass: one for each class. Multilabel: a logit for each label.
    Regression: each target standardised; what is predicted keeps to the training rows' range, as RealMLP's
    (arXiv 2407.04491, section 3).

    Args:
        task: the task.
        n_out: how many outputs.
        mean, sd, low, high: of each target of a regression.
        quantile: of a regression, which quantile is learned; None: the mean.
    """

    task: Task
    n_out: int
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    quantile: float | None = None

    @classmethod
    def fit(cls, data: Rows, objective: str | None = None) -> Head:
        """Fit the head to rows with labels; ``objective``: see ``NetModel``."""
        n_out = data.n_outputs if data.task in ("multiclass", "multilabel", "regression") else 1
        if data.task != "regression":
            return cls(data.task, n_out)
        y = _matrix(data)
        sd, mean = torch.std_mean(y, 0, correction=0)
        name, _, number = (objective or "").partition("@")
        low = y.amin(0) if name not in _POSITIVE else torch.maximum(y.amin(0), mean * _LEAST)
        moments = mean, torch.where(sd > 1e-12 * mean.abs(), sd, 1.0), low, y.amax(0)
        quantile = 0.5 if name == "mae" else float(number) if name == "pinball" else None
        return cls(data.task, n_out, *(tuple(m.tolist()) for m in moments), quantile)

    def targets(self, data: Rows) -> Tensor:
        """Return targets as the loss takes them: float64 ``[n, 1]`` for binary and multiclass, else ``[n, n_out]``."""
        y = _matrix(data)
        if self.task != "regression":
            return y
        return (y - y.new_tensor(self.mean)) / y.new_tensor(self.sd)

    def loss(self, smoothing: float = 0.0) -> RowLoss:
        """Return the loss of outputs, targets and weights."""
        return RowLoss(self.task, self.n_out, smoothing, self.quantile)

    def predict(self, outputs: Tensor) -> Tensor:
        """Turn outputs float64 ``[n, n_out]`` into predictions ``[n]`` or ``[n, k]``."""
        if self.task == "regression":
            values = outputs * outputs.new_tensor(self.sd) + outputs.new_tensor(self.mean)
            values = values.clamp(outputs.new_tensor(self.low), outputs.new_tensor(self.high))
            return values.squeeze(1) if self.n_out == 1 else values
        if self.task == "multiclass":
            return outputs.softmax(1)
        return outputs.sigmoid().squeeze(1) if self.task == "binary" else outputs.sigmoid()

    def to_state(self) -> dict[str, Any]:
        """Return JSON values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Make the head of its ``to_state``."""
        return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in state.items()})


class RowLoss(nn.Module):
    """Task's loss of each row times its weight, mean over the rows.

    Binary and multilabel: cross-entropy of sigmoids (mean over the labels); multiclass: of the softmax; regression:
    squared error or pinball loss (mean over the targets). Targets are ``[b, m + 1]``: the last column is the row's
    weight, 1 in the mean over all rows.

    Args:
        task: the task.
        n_out: number of outputs.
        smoothing: label smoothing ε: targets ``y (1 - ε) + ε / classes`` (arXiv 1512.00567, section 7); only in
            training.
        quantile: of a regression, which quantile is learned; None: the mean.
    """

    by_row = True  # members of a TabM are rows to it

    def __init__(self, task: Task, n_out: int, smoothing: float = 0.0, quantile: float | None = None) -> None:
        super().__init__()
        if not 0 <= smoothing < 1:
            raise DataError(f"label smoothing of {smoothing}", remedy="Give a number from 0 up to, not including, 1")
        self.task, self.n_out, self.smoothing, self.quantile = task, n_out, smoothing, quantile
        self.combine = {"regression": "mean", "multiclass": "softmax"}.get(task, "sigmoid")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of outputs ``[b, n_out]``: a scalar."""
        outputs, targets = outputs.as_subclass(Tensor), targets.as_subclass(Tensor).to(outputs.dtype)
        return (self.each(outputs, targets[:, :-1], self.smoothing) * targets[:, -1]).mean()

    def each(self, outputs: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return each row's loss ``[b]``, of targets ``[b, m]``."""
        if self.task == "multiclass":
            return F.cross_entropy(outputs, y[:, 0].long(), reduction="none", label_smoothing=smoothing)
        if self.task == "regression":
            over = y - outputs
            if self.quantile is None:
                return over.square().mean(1)
            return torch.maximum(self.quantile * over, (self.quantile - 1) * over).mean(1)
        y = y * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)


def _matrix(data: Rows) -> Tensor:
    if data.label is None:
        raise DataError("rows came without labels", remedy="Give label=, or leave valid out")
    return (data.label if data.label.ndim == 2 else data.label[:, None]).double()
