"""Metrics of classes and their probabilities: formulas on checked float64 tensors, for the registry.

Each takes a target and a prediction as ``inputs.py`` describes their shapes. Those of classes count: hits, true rows
and predicted rows of each class, on the last axis, is all that they need, so that ``thresholds.py`` can put every cut
point through the same formula at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.metrics import ranking
from fastrec.metrics.inputs import check_binary, check_codes
from fastrec.metrics.weighted import last_of_runs, mean_of


class Counts(NamedTuple):
    """Weights of the rows by class, float64 ``[…, k]``: predicted rightly, of the class, predicted as the class."""

    hits: Tensor
    true: Tensor
    predicted: Tensor


# --- formulas of counts ---------------------------------------------------------------------------------------------


def accuracy_of(c: Counts) -> Tensor:
    """Compute the share of the rows whose class is right."""
    return c.hits.sum(-1) / c.true.sum(-1)


def balanced_accuracy_of(c: Counts) -> Tensor:
    """Compute the mean recall of the classes that the target has (Brodersen et al. 2010)."""
    there = c.true > 0
    recall = torch.where(there, c.hits / c.true, 0.0)
    return recall.sum(-1) / there.sum(-1)


def f1_of(c: Counts) -> Tensor:
    """Compute the harmonic mean of precision and recall of class 1; 0 if neither target nor prediction has it."""
    return _f1(c)[..., 1]


def f1_macro_of(c: Counts) -> Tensor:
    """Compute the mean F1 of the classes that the target or the prediction has."""
    return _f1(c).sum(-1) / (c.true + c.predicted > 0).sum(-1)


def f1_micro_of(c: Counts) -> Tensor:
    """Compute the F1 of all classes counted together; for one class a row the accuracy."""
    return 2 * c.hits.sum(-1) / (c.true.sum(-1) + c.predicted.sum(-1))


def mcc_of(c: Counts) -> Tensor:
    """Compute Matthews' correlation of any classes (Gorodkin 2004, equation 8); 0 if one side has one class."""
    rows = c.true.sum(-1)
    agreed = c.hits.sum(-1) * rows - (c.true * c.predicted).sum(-1)
    spread = [x.sum(-1).square() - x.square().sum(-1) for x in (c.true, c.predicted)]
    return torch.where((spread[0] > 0) & (spread[1] > 0), agreed / (spread[0] * spread[1]).sqrt(), 0.0)


def binary_kappa_of(c: Counts) -> Tensor:
    """Compute quadratic kappa of two classes (Cohen's kappa); NaN if both sides are one and the same class."""
    rows = c.true.sum(-1)
    true, predicted = c.true[..., 1] / rows, c.predicted[..., 1] / rows
    return 1 - (1 - accuracy_of(c)) / (true + predicted - 2 * true * predicted)


def _f1(c: Counts) -> Tensor:
    both = c.true + c.predicted
    return torch.where(both > 0, 2 * c.hits / both, 0.0)


# --- metrics of classes ---------------------------------------------------------------------------------------------


def of_counts(y: Tensor, p: Tensor, *, formula: Callable[[Counts], Tensor], weight: Tensor | None, **_: Any) -> float:
    """Apply a formula of counts to one class a row."""
    return float(formula(_count(y, p, weight)))


def f1(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the F1 of class 1, for a target of two classes."""
    check_binary(y)
    check_binary(p, "prediction")
    return float(f1_of(_count(y, p, weight)))


def accuracy(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the share of the rows that are right: of a row of labels, all of them."""
    if y.ndim == 2:
        check_binary(y)
        return float(mean_of((y == p).all(1).double(), weight))
    return float(accuracy_of(_count(y, p, weight)))


def f1_macro(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean F1 of the classes that are there, or of all labels of a multilabel target."""
    if y.ndim == 2:
        return float(_f1(_count_labels(y, p, weight)).mean())
    return float(f1_macro_of(_count(y, p, weight)))


def f1_micro(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the F1 of all classes, or all labels, counted together; 0 if no label is true or predicted."""
    counts = _count_labels(y, p, weight) if y.ndim == 2 else _count(y, p, weight)
    return float(torch.nan_to_num(f1_micro_of(counts)))


def quadratic_kappa(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the agreement of ordered classes beyond chance, weighted by squared distance (Cohen 1968).

    The expected squared distance of independent rows is a sum of moments, so that no table of classes is needed.
    NaN where both sides are one and the same class.
    """
    check_codes(y, "y")
    apart = mean_of((y - p).square(), weight)
    by_chance = mean_of(y.square(), weight) + mean_of(p.square(), weight) - 2 * mean_of(y, weight) * mean_of(p, weight)
    if bool((y == y[0]).all() & (p == y[0]).all()):
        return float("nan")
    return float(1 - apart / by_chance)


def _count(y: Tensor, p: Tensor, weight: Tensor | None) -> Counts:
    true, predicted = check_codes(y, "y"), check_codes(p, "prediction")
    both = torch.cat([true, predicted])
    # Counts are an array as long as the highest code.
    if int(both.min()) < 0 or int(both.max()) > limits.COUNTED_CODES:
        both = torch.unique(both, return_inverse=True)[1]
        true, predicted = both[: len(y)], both[len(y) :]
    k = max(int(both.max()) + 1, 2)
    right = true == predicted
    of_hits = None if weight is None else weight[right]
    sums = (
        torch.bincount(true[right], of_hits, k),
        torch.bincount(true, weight, k),
        torch.bincount(predicted, weight, k),
    )
    return Counts(*(s.double() for s in sums))


def _count_labels(y: Tensor, p: Tensor, weight: Tensor | None) -> Counts:
    check_binary(y)
    w = y.new_ones(len(y)) if weight is None else weight
    return Counts(w @ (y * p), w @ y, w @ p)


# --- metrics of probabilities and scores ----------------------------------------------------------------------------


def log_loss(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean negative log likelihood in nats, mean over a row's labels; clipped at float64's precision."""
    eps = torch.finfo(torch.float64).eps
    if y.ndim == 1 and p.ndim == 2:
        codes = check_codes(y, "y", p.shape[1])
        of_true = p.gather(1, codes[:, None])[:, 0] / p.sum(1)
        return float(mean_of(-of_true.clamp(eps, 1).log(), weight))
    check_binary(y)
    inside = p.clamp(eps, 1 - eps)
    loss = -(torch.xlogy(y, inside) + torch.xlogy(1 - y, 1 - inside))
    return float(mean_of(loss, weight).mean())


def brier(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean squared error of probabilities (Brier 1950); of classes their sum, of labels their mean."""
    if y.ndim == 1 and p.ndim == 2:
        codes = check_codes(y, "y", p.shape[1])
        of_true = p.gather(1, codes[:, None])[:, 0]
        return float(mean_of(p.square().sum(1) - 2 * of_true + 1, weight))
    check_binary(y)
    return float(mean_of((y - p).square(), weight).mean())


def auc(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the area under the ROC curve; of several classes or labels the mean of each against the rest.

    A class that all rows or none are of has no area and is left out (NaN where that leaves none).
    """
    return _each_against_the_rest(lambda t, s: ranking.auc(s, t, weight), y, p)


def average_precision(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Sum precision times gain in recall over the distinct scores; of several classes or labels the mean.

    A class that no row is of has none and is left out (NaN where that leaves none).
    """
    if p.ndim == 1 or y.ndim == 2:
        check_binary(y)
    return _each_against_the_rest(lambda t, s: _average_precision(t, s, weight), y, p)


def _average_precision(y: Tensor, p: Tensor, weight: Tensor | None) -> float:
    w = torch.ones_like(y) if weight is None else weight
    order = torch.sort(p, descending=True, stable=True).indices
    ends = last_of_runs(p[order])
    hits, seen = (w * y)[order].cumsum(0)[ends], w[order].cumsum(0)[ends]
    gain = hits.diff(prepend=hits.new_zeros(1))
    return float((gain * torch.nan_to_num(hits / seen)).sum() / hits[-1])


def _each_against_the_rest(one: Callable[[Tensor, Tensor], float], y: Tensor, p: Tensor) -> float:
    if p.ndim == 1:
        return one(y, p)
    if y.ndim == 1:
        check_codes(y, "y", p.shape[1])
    values = [one(y[:, j] if y.ndim == 2 else (y == j).double(), p[:, j]) for j in range(p.shape[1])]
    defined = [v for v in values if v == v]
    return sum(defined) / len(defined) if defined else float("nan")
