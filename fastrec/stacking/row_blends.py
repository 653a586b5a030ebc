"""Blends of rows that stand for themselves (every task but ranking): means, weighted sums, and one model alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch

from fastrec.estimators import Estimator, Trace
from fastrec.stacking.linear import logistic, pool, ridge_regression
from fastrec.stacking.row_inputs import as_task, labels_of, predicted_by, weights_of
from fastrec.validate import Rows


class OneBase(Estimator):
    """One base model alone, as it is.

    Args:
        model: the base model's name.
        name: the blend's name; None: the model's.
    """

    learns = False

    def __init__(self, model: str, *, name: str | None = None) -> None:
        self.model, self.name = model, name or model
        self.forget()

    def forget(self) -> None:
        """Give the whole weight to the model: nothing is learned."""
        self.trace = Trace(importance={self.model: 1.0})

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Return the blend as it is: there is nothing to learn."""
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the model's predictions: float64 ``[n]`` or ``[n, k]``."""
        return as_task(predicted_by([self.model], data)[:, 0], data)


class MeanBlend(Estimator):
    """The plain mean of what the base models predict: nothing is fitted, so nothing can be overfitted.

    Args:
        models, name: as of ``LinearBlend``.
    """

    learns = False
    tasks = ("binary", "multiclass", "regression", "multilabel")

    def __init__(self, models: Sequence[str], *, name: str = "mean") -> None:
        self.models, self.name = list(models), name
        self.forget()

    def forget(self) -> None:
        """Give all models the same weight: nothing is learned."""
        self.trace = Trace(importance=dict.fromkeys(self.models, 1 / len(self.models)))

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Return the blend as it is: there is nothing to learn."""
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the mean: float64 ``[n]`` or ``[n, k]``."""
        return as_task(predicted_by(self.models, data).mean(1), data)


class WeightedBlend(Estimator):
    """Fitted weighted sum: weights ``[models, k]`` and a constant ``[k]``.

    Args:
        models: the base models' names.
        name: the blend's name; None: that of its kind.
        ridge: penalty on the squared weights, in units of rows.
    """

    kind: str
    solve: ClassVar[Callable[..., tuple[torch.Tensor, torch.Tensor]]]  # of one target
    learned = ("weights", "constant")

    def __init__(self, models: Sequence[str], *, name: str | None = None, ridge: float = 1.0) -> None:
        self.models, self.name, self.ridge = list(models), name or self.kind, ridge
        self.forget()

    def forget(self) -> None:
        """Drop the weights."""
        super().forget()
        self.weights: torch.Tensor | None = None
        self.constant: torch.Tensor | None = None

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights; ``valid`` is not looked at."""
        self.check_task(train)
        found = self._find(self._inputs(train), labels_of(train), weights_of(train))
        self._keep(*found)
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the weighted sum on the task's scale: float64 ``[n]`` or ``[n, k]``."""
        return as_task(self._as_predicted(self.linear(data)), data)

    def linear(self, data: Rows) -> torch.Tensor:
        """Return the weighted sum itself (logits, log-probabilities or values): float64 ``[n, k]``."""
        if self.weights is None or self.constant is None:
            raise self.not_fitted()
        return torch.einsum("nmk,mk->nk", self._inputs(data), self.weights) + self.constant

    def _find(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fits = [type(self).solve(x[:, :, j], y[:, j], w, self.ridge) for j in range(y.shape[1])]
        return torch.stack([f[0] for f in fits], 1), torch.stack([f[1] for f in fits])

    def _inputs(self, data: Rows) -> torch.Tensor:
        return predicted_by(self.models, data)

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums

    def _keep(self, weights: torch.Tensor, constant: torch.Tensor) -> None:
        self.weights, self.constant = weights, constant
        self.trace = Trace(importance=dict(zip(self.models, weights.mean(1).tolist(), strict=True)))


class RidgeBlend(WeightedBlend):
    """A weighted sum of the base models' values and a constant, by least squares with a ridge; targets one by one.

    Args:
        models, name: as of ``LinearBlend``; a name of None is ``ridge``.
        ridge: penalty on the squared weights, in units of rows (values in units of the target's standard deviation).

    Source: Breiman 1996, "Stacked regressions"; Hoerl and Kennard 1970.
    """

    kind, tasks, solve = "ridge", ("regression",), staticmethod(ridge_regression)


class LogisticBlend(WeightedBlend):
    """A logistic regression on the logits of the base models' probabilities; labels one by one.

    Args:
        models, name: as of ``LinearBlend``; a name of None is ``logistic``.
        ridge: penalty on the squared weights, in units of rows.

    Source: Wolpert 1992, "Stacked generalization".
    """

    kind, tasks, solve = "logistic", ("binary", "multilabel"), staticmethod(logistic)

    def _inputs(self, data: Rows) -> torch.Tensor:
        # A model that is sure beyond a millionth gets no more weight by it.
        return predicted_by(self.models, data).logit(eps=1e-6)

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.sigmoid()


class PoolBlend(WeightedBlend):
    """A multinomial model of the logarithms of the base models' class probabilities: a weight a model, a constant a
    class.

    A weight for every model, class and pair of classes would be many where classes are many.

    Args:
        models, name: as of ``LinearBlend``; a name of None is ``logistic``.
        ridge: penalty on the squared weights and constants, in units of rows.

    Source: Genest and Zidek 1986, "Combining probability distributions", section 3 (logarithmic pools).
    """

    kind, tasks = "logistic", ("multiclass",)

    def _find(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, constant = pool(x, y[:, 0].long(), w, self.ridge)
        return weights[:, None].expand(-1, x.shape[2]).contiguous(), constant

    def _inputs(self, data: Rows) -> torch.Tensor:
        # As in LogisticBlend.
        return predicted_by(self.models, data).clamp(min=1e-6).log()

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.softmax(1)
