"""Weighted means, and sums over rows in the order of a prediction, with equal predictions taken as one."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_of(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weighted mean over rows: ``[n]`` → scalar, ``[n, t]`` → ``[t]``; NaN if the weights sum to 0."""
    if weight is None:
        return values.mean(0)
    w = weight if weight.ndim == values.ndim else weight[:, None]
    return (values * w).sum(0) / w.sum(0)


def counted(bad: Tensor, weight: Tensor | None) -> Tensor:
    """Return weights of the rows with those marked set to 0, in the shape of the marks."""
    keep = (~bad).double()
    if weight is None:
        return keep
    return keep * (weight if weight.ndim == keep.ndim else weight[:, None])


def area_under_steps(y: Tensor, order_by: Tensor, weight: Tensor | None) -> Tensor:
    """Integrate cumulated ``w y`` over the weights, rows from high to low, equal values as one step.

    Args:
        weight: float64 ``[n]``, or None.

    Returns:
        The integral, a scalar; see Kaggle's normalised Gini, which it becomes after its diagonal is taken off.
    """
    w = torch.ones_like(y) if weight is None else weight
    order = torch.sort(order_by, descending=True, stable=True).indices
    ends = last_of_runs(order_by[order])
    zero = y.new_zeros(1)
    gained = torch.cat([zero, (w * y)[order].cumsum(0)[ends]])
    seen = torch.cat([zero, w[order].cumsum(0)[ends]])
    return ((gained[1:] + gained[:-1]) / 2 * seen.diff()).sum()


def last_of_runs(values: Tensor) -> Tensor:
    """Return the end of each run of equal neighbours of ``[n]`` values."""
    change = values[1:] != values[:-1]
    return torch.cat([change, change.new_ones(1)]).nonzero()[:, 0]


def between(distinct: Tensor) -> Tensor:
    """Return cuts below, between and above ``[m]`` ascending distinct values: ``[m + 1]``."""
    low, high = distinct[:-1], distinct[1:]
    middle = (low + high) / 2
    middle = torch.where((middle >= low) & (middle < high), middle, low)  # neighbours in float64, or infinite ones
    return torch.cat([distinct.new_tensor([-torch.inf]), middle, distinct.new_tensor([torch.inf])])
