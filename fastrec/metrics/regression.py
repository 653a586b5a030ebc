"""Metrics of numbers: formulas on checked float64 tensors, for the registry.

Target and prediction are ``[n]`` or ``[n, t]``; of several targets the mean of the metric over them. A target outside a
metric's domain (such as a negative one under a logarithm) is refused; a prediction outside makes the metric infinite,
which is what it tends to there, so that such a model loses and nothing stops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastrec.metrics.lists import refuse_rows
from fastrec.metrics.weighted import area_under_steps, counted, mean_of

_INF = float("inf")


def rmse(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the root of the mean squared error."""
    return float(mean_of((y - p).square(), weight).sqrt().mean())


def mae(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean absolute error."""
    return float(mean_of((y - p).abs(), weight).mean())


def rmsle(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the root of the mean squared difference of log(1 + value); infinite if a prediction is -1 or less."""
    _refuse(y <= -1, "is -1 or less, under a logarithm of 1 + value")
    if bool((p <= -1).any()):
        return _INF
    return rmse(y.log1p(), p.log1p(), weight=weight)


def rmspe(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the root mean squared error as a share of the target, without targets of 0 (Kaggle, Rossmann 2015)."""
    zero = y == 0
    share = torch.where(zero, 0.0, (y - p) / y)
    return float(mean_of(share.square(), counted(zero, weight)).sqrt().mean())


def mape(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean absolute error as a share (not a percentage) of the target; rows of target 0 left out."""
    zero = y == 0
    share = torch.where(zero, 0.0, (y - p) / y)
    return float(mean_of(share.abs(), counted(zero, weight)).mean())


def smape(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 |y - p| / (|y| + |p|), from 0 to 2; 0 if both are 0 (Makridakis 1993)."""
    size = y.abs() + p.abs()
    return float(mean_of(torch.where(size == 0, 0.0, 2 * (y - p).abs() / size), weight).mean())


def r2(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the share of the target's variance that is explained; NaN for a constant target."""
    variance = mean_of((y - mean_of(y, weight)).square(), weight)
    share = 1 - mean_of((y - p).square(), weight) / variance
    return float(torch.where((y == y[0]).all(0), torch.nan, share).mean())


def pinball(y: Tensor, p: Tensor, *, q: float, weight: Tensor | None, **_: Any) -> float:
    """Compute the loss of the q-quantile (Koenker and Bassett 1978); at .5 half the absolute error."""
    error = y - p
    return float(mean_of(torch.maximum(q * error, (q - 1) * error), weight).mean())


def poisson_deviance(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 (y log(y / p) - y + p) (McCullagh and Nelder 1989, table 2.1); infinite if a p is <= 0."""
    _refuse(y < 0, "is below 0, where counts start")
    if bool((p <= 0).any()):
        return _INF
    return float(mean_of(2 * (torch.xlogy(y, y / p) - y + p), weight).mean())


def gamma_deviance(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 (log(p / y) + y / p - 1) (McCullagh and Nelder 1989, table 2.1); infinite if p <= 0."""
    _refuse(y <= 0, "is 0 or less, where the deviance is infinite")
    if bool((p <= 0).any()):
        return _INF
    return float(mean_of(2 * ((p / y).log() + y / p - 1), weight).mean())


def gini(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the normalised Gini: the target gained from the highest prediction down, over the best possible gain.

    For a target of 0 and 1 it is 2 AUC - 1. As on Kaggle (Allstate 2011, Porto Seguro 2017), but equal predictions
    count as one step, whatever the order of the rows. NaN for a constant target.
    """
    if y.ndim == 2:
        return sum(gini(y[:, j], p[:, j], weight=weight) for j in range(y.shape[1])) / y.shape[1]
    w = torch.ones_like(y) if weight is None else weight
    if bool((y == y[0]).all()):
        return float("nan")
    y = y - y.min()  # the diagonal moves with it, the quotient does not
    diagonal = (w * y).sum() * w.sum() / 2
    return float((area_under_steps(y, p, w) - diagonal) / (area_under_steps(y, y, w) - diagonal))


def _refuse(bad: Tensor, problem: str) -> None:
    refuse_rows(bad if bad.ndim == 1 else bad.any(1), "y", problem, "Take another metric, or other targets")
