"""Metrics of rows: classes, probabilities and numbers, as formulas on checked float64 tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError, refuse
from fastrec.metrics import ranking
from fastrec.metrics.ranking import check_weights, flat_tensor, plain_tensor


def mean_of(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weighted mean over rows: ``[n]`` → scalar, ``[n, t]`` → ``[t]``; NaN if the weights sum to 0."""
    if weight is None:
        return values.mean(0)
    w = weight if weight.ndim == values.ndim else weight[:, None]
    return (values * w).sum(0) / w.sum(0)


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


# The shapes determine the kind of target:
#
# - target ``[n]``, prediction ``[n]``: one number a row (binary, regression, ranking, or class codes);
# - target ``[n]``, prediction ``[n, k]``: class codes and one number a class (multiclass);
# - target ``[n, t]``, prediction ``[n, t]``: several targets (multilabel, regression).


def paired(y: Any, prediction: Any) -> tuple[Tensor, Tensor]:
    """Return targets ``[n]`` or ``[n, t]`` and predictions ``[n]`` or ``[n, k]``: float64, on one device, complete."""
    p = _columns(prediction, "prediction")
    p = (p.cpu() if p.device.type == "mps" else p).double()  # Apple's GPU has no float64
    target = _columns(y, "y").to(p.device).double()
    if not len(p):
        raise DataError("there are no rows to score", column="prediction", remedy="Give at least one row")
    if len(target) != len(p):
        remedy = "Give one for each row"
        raise DataError(f"y has {len(target)} rows, prediction has {len(p)}", column="y", remedy=remedy)
    if target.ndim == 2 and target.shape != p.shape:
        problem = f"y is {tuple(target.shape)}, prediction is {tuple(p.shape)}"
        raise DataError(problem, column="prediction", remedy="Give a prediction for each target of a row")
    refuse(_any_column(target.isnan()), "y", "a value is missing", "Leave out rows without a known target")
    refuse(_any_column(p.isnan()), "prediction", "a value is NaN", "Look at what predicted it, or fill it first")
    return target, p


def row_weights(weight: Any, prediction: Tensor) -> Tensor | None:
    """Return weights ``[n]`` as float64 on the predictions' device; None stays None."""
    if weight is None:
        return None
    w = check_weights(flat_tensor(weight, "weight").to(prediction.device), "weight")
    if len(w) != len(prediction):
        remedy = "Give one weight per predicted row"
        raise DataError(f"weight has {len(w)} rows, prediction has {len(prediction)}", column="weight", remedy=remedy)
    return w


def check_probabilities(prediction: Tensor, *, of_classes: bool) -> None:
    """Refuse anything that cannot be probabilities, ``[n]`` or ``[n, k]``; ``of_classes``: each row sums to 1."""
    outside = ~((prediction >= 0) & (prediction <= 1))
    remedy = "Put raw scores through a sigmoid (one column) or a softmax (a column a class) first"
    refuse(_any_column(outside), "prediction", "a value is no probability: it is outside 0..1", remedy)
    if of_classes:
        # Sums of half-precision probabilities are off by up to .002.
        off = (prediction.sum(1) - 1).abs() > 0.01
        refuse(off, "prediction", "a value is of a row whose classes do not sum to 1", remedy)


def to_classes(y: Tensor, prediction: Tensor, *, rounded: bool = False) -> Tensor:
    """Turn predictions into class codes.

    Several classes: the highest in a row (the first of equal ones). One column: whole numbers are already codes; for a
    target of 0 and 1, class 1 means above .5. Several targets: each above .5. ``rounded``: values for an ordinal target
    are rounded to the nearest code instead of being refused.
    """
    if y.ndim == 2:
        return (prediction > 0.5).double()
    if prediction.ndim == 2:
        return prediction.argmax(1).double()
    fraction = prediction != prediction.round()
    if not bool(fraction.any()):
        return prediction
    if bool(((y == 0) | (y == 1)).all()):
        return (prediction > 0.5).double()
    if not rounded:
        remedy = "Give codes, or one probability for each class; best_rounding learns cuts for values"
        refuse(fraction, "prediction", "a value is no class code", remedy)
    return prediction.round()


def check_codes(codes: Tensor, name: str, n: int | None = None) -> Tensor:
    """Return class codes as int64: for ``n`` classes from 0 to n-1, otherwise any whole numbers."""
    bad = (codes != codes.round()) | codes.isinf()
    if n is not None:
        bad = bad | (codes < 0) | (codes >= n)
    range_ = "a class code" if n is None else f"among the {n} classes"
    remedy = "Classes are whole numbers from 0, one for each column of probabilities"
    refuse(bad, name, f"a value is not {range_}", remedy)
    return codes.long()


def check_binary(y: Tensor, name: str = "y") -> None:
    """Refuse a target or classes ``[n]`` or ``[n, t]`` with values other than 0 and 1."""
    refuse(_any_column((y != 0) & (y != 1)), name, "a value is neither 0 nor 1", "Code the two classes as 0 and 1")


def _any_column(bad: Tensor) -> Tensor:
    return bad if bad.ndim == 1 else bad.any(1)


def _columns(x: Any, name: str) -> Tensor:
    t = plain_tensor(x, name)
    if t.ndim not in (1, 2) or (t.ndim == 2 and not t.shape[1]) or t.is_complex():
        raise DataError(f"{name} has shape {tuple(t.shape)}", column=name, remedy="Give one or several values a row")
    return t[:, 0] if t.ndim == 2 and t.shape[1] == 1 else t


def one_column(y: Any, prediction: Any) -> tuple[Tensor, Tensor]:
    """Return targets and predictions as in ``paired``, with one finite number per row."""
    target, p = paired(y, prediction)
    if p.ndim == 2:
        raise DataError(f"prediction is {tuple(p.shape)}", column="prediction", remedy="Give one number a row")
    refuse(p.isinf(), "prediction", "a value is infinite", "Look at what predicted it")
    return target, p


# Metrics of classes need only counts (hits, true rows and predicted rows of each class, on the last axis), so that
# ``thresholds.py`` can evaluate every cut point at once.


class Counts(NamedTuple):
    """Row weights per class, float64 ``[…, k]``: correct predictions, true rows, predicted rows."""

    hits: Tensor
    true: Tensor
    predicted: Tensor


def accuracy_of(c: Counts) -> Tensor:
    """Compute the share of rows with the right class."""
    return c.hits.sum(-1) / c.true.sum(-1)


def balanced_accuracy_of(c: Counts) -> Tensor:
    """Compute the mean recall of the classes that occur in the target (Brodersen et al. 2010)."""
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
    """Compute the F1 of all classes counted together; with one class per row it equals the accuracy."""
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


def of_counts(y: Tensor, p: Tensor, *, formula: Callable[[Counts], Tensor], weight: Tensor | None, **_: Any) -> float:
    """Apply a formula of counts to rows with one class each."""
    return float(formula(_count(y, p, weight)))


def f1(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the F1 of class 1, for a target of two classes."""
    check_binary(y)
    check_binary(p, "prediction")
    return float(f1_of(_count(y, p, weight)))


def accuracy(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the share of rows that are right; for a row of labels, all of them must be."""
    if y.ndim == 2:
        check_binary(y)
        return float(mean_of((y == p).all(1).double(), weight))
    return float(accuracy_of(_count(y, p, weight)))


def f1_macro(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean F1 of the classes that occur, or of all labels of a multilabel target."""
    if y.ndim == 2:
        return float(_f1(_count_labels(y, p, weight)).mean())
    return float(f1_macro_of(_count(y, p, weight)))


def f1_micro(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the F1 of all classes, or all labels, counted together; 0 if no label is true or predicted."""
    counts = _count_labels(y, p, weight) if y.ndim == 2 else _count(y, p, weight)
    return float(torch.nan_to_num(f1_micro_of(counts)))


def quadratic_kappa(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the agreement of ordered classes beyond chance, weighted by squared distance (Cohen 1968).

    The expected squared distance of independent rows is a sum of moments, so no table of classes is needed. NaN if both
    sides have only the same single class.
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
    # The array of counts is as long as the highest code.
    if int(both.min()) < 0 or int(both.max()) > limits.COUNTED_CODES:
        both = torch.unique(both, return_inverse=True)[1]
        true, predicted = both[: len(y)], both[len(y) :]
    k = max(int(both.max()) + 1, 2)
    right = true == predicted
    hits = true[right], None if weight is None else weight[right]
    return Counts(*(torch.bincount(codes, w, k).double() for codes, w in (hits, (true, weight), (predicted, weight))))


def _count_labels(y: Tensor, p: Tensor, weight: Tensor | None) -> Counts:
    check_binary(y)
    w = y.new_ones(len(y)) if weight is None else weight
    return Counts(w @ (y * p), w @ y, w @ p)


def log_loss(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean negative log likelihood in nats, over labels too; probabilities are clipped at float64's eps."""
    eps = torch.finfo(torch.float64).eps
    if y.ndim == 1 and p.ndim == 2:
        of_true = p.gather(1, check_codes(y, "y", p.shape[1])[:, None])[:, 0] / p.sum(1)
        return float(mean_of(-of_true.clamp(eps, 1).log(), weight))
    check_binary(y)
    inside = p.clamp(eps, 1 - eps)
    return float(mean_of(-(torch.xlogy(y, inside) + torch.xlogy(1 - y, 1 - inside)), weight).mean())


def brier(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean squared error of probabilities (Brier 1950), summed over classes or averaged over labels."""
    if y.ndim == 1 and p.ndim == 2:
        of_true = p.gather(1, check_codes(y, "y", p.shape[1])[:, None])[:, 0]
        return float(mean_of(p.square().sum(1) - 2 * of_true + 1, weight))
    check_binary(y)
    return float(mean_of((y - p).square(), weight).mean())


def auc(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the area under the ROC curve; for several classes or labels, the mean of each against the rest.

    A class that all rows or no rows have is left out, as it has no area (NaN if none remains).
    """
    return _each_against_the_rest(lambda t, s: ranking.auc(s, t, weight), y, p)


def average_precision(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Sum precision times gain in recall over the distinct scores; for several classes or labels, average the result.

    A class that no row has is left out (NaN if none remains).
    """
    if p.ndim == 1 or y.ndim == 2:
        check_binary(y)

    def of_one(y: Tensor, p: Tensor) -> float:
        w = torch.ones_like(y) if weight is None else weight
        order = torch.sort(p, descending=True, stable=True).indices
        ends = last_of_runs(p[order])
        hits, seen = (w * y)[order].cumsum(0)[ends], w[order].cumsum(0)[ends]
        gain = hits.diff(prepend=hits.new_zeros(1))
        return float((gain * torch.nan_to_num(hits / seen)).sum() / hits[-1])

    return _each_against_the_rest(of_one, y, p)


def _each_against_the_rest(one: Callable[[Tensor, Tensor], float], y: Tensor, p: Tensor) -> float:
    if p.ndim == 1:
        return one(y, p)
    if y.ndim == 1:
        check_codes(y, "y", p.shape[1])
    values = [one(y[:, j] if y.ndim == 2 else (y == j).double(), p[:, j]) for j in range(p.shape[1])]
    defined = [v for v in values if v == v]
    return sum(defined) / len(defined) if defined else float("nan")


# Metrics of numbers. Target and prediction are ``[n]`` or ``[n, t]``; several targets are averaged. A target outside a
# metric's domain (such as a negative one under a logarithm) is refused. A prediction outside makes the metric infinite,
# its limit there, so that such a model loses but nothing stops.


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
        return torch.inf
    return rmse(y.log1p(), p.log1p(), weight=weight)


def rmspe(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the root mean squared error as a share of the target, without targets of 0 (Kaggle, Rossmann 2015)."""
    share, weight = _relative_error(y, p, weight)
    return float(mean_of(share.square(), weight).sqrt().mean())


def mape(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean absolute error as a share (not a percentage) of the target, without rows of target 0."""
    share, weight = _relative_error(y, p, weight)
    return float(mean_of(share.abs(), weight).mean())


def smape(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 |y - p| / (|y| + |p|), from 0 to 2; 0 if both are 0 (Makridakis 1993)."""
    size = y.abs() + p.abs()
    return float(mean_of(torch.where(size == 0, 0.0, 2 * (y - p).abs() / size), weight).mean())


def r2(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the share of the target's variance that is explained; NaN for a constant target."""
    share = 1 - mean_of((y - p).square(), weight) / mean_of((y - mean_of(y, weight)).square(), weight)
    return float(torch.where((y == y[0]).all(0), torch.nan, share).mean())


def pinball(y: Tensor, p: Tensor, *, q: float, weight: Tensor | None, **_: Any) -> float:
    """Compute the loss of the q-quantile (Koenker and Bassett 1978); at .5 it is half the absolute error."""
    error = y - p
    return float(mean_of(torch.maximum(q * error, (q - 1) * error), weight).mean())


def poisson_deviance(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 (y log(y / p) - y + p) (McCullagh and Nelder 1989, table 2.1); infinite if a p is <= 0."""
    _refuse(y < 0, "is below 0, where counts start")
    if bool((p <= 0).any()):
        return torch.inf
    return float(mean_of(2 * (torch.xlogy(y, y / p) - y + p), weight).mean())


def gamma_deviance(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the mean of 2 (log(p / y) + y / p - 1) (McCullagh and Nelder 1989, table 2.1); infinite if p <= 0."""
    _refuse(y <= 0, "is 0 or less, where the deviance is infinite")
    if bool((p <= 0).any()):
        return torch.inf
    return float(mean_of(2 * ((p / y).log() + y / p - 1), weight).mean())


def gini(y: Tensor, p: Tensor, *, weight: Tensor | None, **_: Any) -> float:
    """Compute the normalised Gini: the cumulated target by descending prediction, relative to the best possible order.

    For a target of 0 and 1 it is 2 AUC - 1. It is computed as on Kaggle (Allstate 2011, Porto Seguro 2017), but equal
    predictions count as one step, whatever the row order. NaN for a constant target.
    """
    if y.ndim == 2:
        return sum(gini(y[:, j], p[:, j], weight=weight) for j in range(y.shape[1])) / y.shape[1]
    w = torch.ones_like(y) if weight is None else weight
    if bool((y == y[0]).all()):
        return float("nan")
    y = y - y.min()  # this moves the diagonal, but not the quotient

    def above_diagonal(by: Tensor) -> Tensor:
        order = torch.sort(by, descending=True, stable=True).indices
        ends, zero = last_of_runs(by[order]), y.new_zeros(1)  # equal values are one step
        gained, seen = (torch.cat([zero, v[order].cumsum(0)[ends]]) for v in (w * y, w))
        return ((gained[1:] + gained[:-1]) / 2 * seen.diff()).sum() - (w * y).sum() * w.sum() / 2

    return float(above_diagonal(p) / above_diagonal(y))


def _relative_error(y: Tensor, p: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return errors as shares of the targets, and weights that leave out targets of 0."""
    zero = y == 0
    counted = (~zero).double()
    if weight is not None:
        counted = counted * (weight if weight.ndim == y.ndim else weight[:, None])
    return torch.where(zero, 0.0, (y - p) / y), counted


def _refuse(bad: Tensor, problem: str) -> None:
    refuse(_any_column(bad), "y", f"a value {problem}", "Take another metric, or other targets")
