"""Cut points learned from predictions: from probabilities to classes, from values to ordered classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError, refuse
from fastrec.metrics import rows as row_metrics
from fastrec.metrics.ranking import flat_tensor, plain_tensor
from fastrec.metrics.registry import Metric, OwnFunction, get_metric
from fastrec.metrics.rows import between, check_binary, last_of_runs, mean_of, one_column, row_weights


def best_rounding(y: Any, value: Any, metric: str | Metric = "quadratic_kappa", *, weight: Any = None) -> Tensor:
    """Find the cut points between ordered classes that optimise a metric.

    For quadratic_kappa, accuracy and balanced_accuracy, the cuts are optimal. The cost of each row is independent, so
    dynamic programming over classes finds the best partition of the sorted values. Kappa is a quotient of two such
    sums: the partition is optimised for their difference, weighted by the last quotient, until it is stable (Dinkelbach
    1967). For any other metric, cuts are then moved one by one as long as the metric improves.

    Args:
        y: ``[n]`` whole numbers from 0, the ordered classes.
        value: ``[n]`` predicted values, in any unit: only their order matters.
        metric, weight: a metric of classes, or its name; ``[n]`` weights >= 0, or None.

    Returns:
        Cuts, ascending float64 ``[highest class]``: a row's class is the number of cuts below its value. A class that
        is best never predicted has equal cuts; ``-inf`` and ``inf`` are below and above all values.

    Raises:
        DataError: the metric is not one of classes, targets are not whole numbers from 0 to 1,000, or inputs as for a
            metric.
    """
    chosen = of_classes(metric, "multiclass")
    target, p = one_column(y, value)
    # Dynamic programming takes a pass over the rows for each class.
    bad = (target < 0) | (target > 1000) | (target != target.round())
    refuse(bad, "y", f"a value is no class from 0 to {1000}", "Number the ordered classes from 0")
    w = row_weights(weight, p)
    rows = _SortedRows(target, p, torch.ones_like(p) if w is None else w)
    known = None if isinstance(chosen.function, OwnFunction) else chosen.name
    if known in _EXACT:
        places = _EXACT[known](rows)
    else:
        places = _moved([find(rows) for find in _EXACT.values()], rows, chosen)
    # a class below the lowest target is never predicted
    return torch.cat([rows.cuts[:1].expand(rows.lowest), rows.cuts[places]])


def apply_cuts(value: Any, cuts: Any) -> Tensor:
    """Turn values ``[n]`` into classes, int64 ``[n]``: the number of cuts below each.

    Args:
        value: numbers.
        cuts: ascending numbers, as returned by :func:`best_rounding`.

    Raises:
        DataError: a value is NaN, or the cuts do not ascend.
    """
    v = flat_tensor(value, "value").double()
    c = flat_tensor(cuts, "cuts").double().to(v.device)
    refuse(v.isnan(), "value", "a value is NaN", "Look at what predicted it, or fill it first")
    if bool((c[1:] < c[:-1]).any() | c.isnan().any()):
        raise DataError("the cuts do not ascend", column="cuts", remedy="Give them from low to high")
    return torch.searchsorted(c, v)


def of_classes(metric: str | Metric, task: str) -> Metric:
    """Return the metric if it is one of classes and supports the task."""
    chosen = get_metric(metric)
    if chosen.wants != "classes" or chosen.needs_groups:
        raise DataError(f"{chosen.name} is not computed from classes", remedy="Take f1 or quadratic_kappa, say")
    if task not in chosen.tasks:
        raise DataError(f"{chosen.name} is for {', '.join(chosen.tasks)}, not {task}", remedy="Take another metric")
    return chosen


class _SortedRows:
    """Rows sorted by value, and cumulative sums below every possible cut."""

    def __init__(self, y: Tensor, p: Tensor, w: Tensor) -> None:
        order = torch.sort(p, stable=True).indices
        self.y, self.p, self.w = y[order], p[order], w[order]
        self.ends = last_of_runs(self.p)
        self.cuts = between(self.p[self.ends])
        self.lowest, self.highest = int(y.min()), int(y.max())

    def below(self, of_row: Tensor) -> Tensor:
        return torch.cat([of_row.new_zeros(1), of_row.cumsum(0)[self.ends]])

    def partition(self, cost: Callable[[int], Tensor]) -> Tensor:
        """Find the cuts of the lowest cost, ascending int64 ``[highest - lowest]``.

        ``cost``: class → cost of all rows below each cut if they had this class, ``[m + 1]``.
        """
        best, came_from = cost(self.lowest), []
        for c in range(self.lowest + 1, self.highest + 1):
            of_class = cost(c)
            lowest, place = (best - of_class).cummin(0)
            best = of_class + lowest
            came_from.append(place.int())
        places, at = [], len(self.cuts) - 1
        for place in reversed(came_from):
            at = int(place[at])
            places.append(at)
        return torch.tensor(places[::-1], dtype=torch.int64, device=best.device)


def _for_kappa(rows: _SortedRows) -> Tensor:
    # 1 - kappa = sum w (y - p)^2 / sum w ((y - m)^2 + (p - m)^2), with m the mean of y: two sums over rows.
    mean = mean_of(rows.y, rows.w)
    weights, centred = rows.below(rows.w), rows.below(rows.w * (rows.y - mean))
    variance = (rows.w * (rows.y - mean).square()).sum()
    from_mean = torch.arange(rows.lowest, rows.highest + 1, device=mean.device) - mean

    def best_for(quotient: float) -> Tensor:
        def cost(c: int) -> Tensor:
            d = from_mean[c - rows.lowest]
            return (1 - quotient) * d * d * weights - 2 * d * centred

        return rows.partition(cost)

    def quotient_of(places: Tensor) -> float:
        ends = torch.cat([places.new_zeros(1), places, places.new_tensor([len(rows.cuts) - 1])])
        spread = (from_mean.square() * weights[ends].diff()).sum()
        return float((variance + spread - 2 * (from_mean * centred[ends].diff()).sum()) / (variance + spread))

    quotient, places = 1.0, best_for(1.0)  # one class for all rows has the quotient 1
    while (better := quotient_of(places)) < quotient:
        quotient, places = better, best_for(better)
    return places


def _for_hits(rows: _SortedRows, *, balanced: bool) -> Tensor:
    of_class = torch.bincount(rows.y.long(), rows.w).clamp(min=torch.finfo(torch.float64).tiny)
    of_class = of_class if balanced else torch.ones_like(of_class)
    return rows.partition(lambda c: -rows.below(rows.w * (rows.y == c)) / of_class[c])


_EXACT: dict[str, Callable[[_SortedRows], Tensor]] = {
    "quadratic_kappa": _for_kappa,
    "accuracy": partial(_for_hits, balanced=False),
    "balanced_accuracy": partial(_for_hits, balanced=True),
}


def _moved(starts: list[Tensor], rows: _SortedRows, metric: Metric) -> Tensor:
    """Move the cuts of the best start one by one, each to the best place between its neighbours."""
    sign = 1 if metric.greater_is_better else -1

    def score(places: Tensor) -> float:
        value = sign * metric(rows.y, rows.lowest + torch.searchsorted(rows.cuts[places], rows.p), weight=rows.w)
        return value if value == value else -float("inf")

    best, places = max(((score(s), s) for s in starts), key=lambda pair: pair[0])
    # At most 20 sweeps; they stop once nothing improves.
    for _ in range(20):
        before = best
        for i in range(len(places)):
            low = int(places[i - 1]) if i else 0
            high = int(places[i + 1]) if i + 1 < len(places) else len(rows.cuts) - 1
            # The metric is called for each place, so at most a hundred places between the neighbours are tried.
            for place in torch.linspace(low, high, min(100, high - low + 1)).round().long().unique().tolist():
                moved = places.clone()
                moved[i] = place
                if (value := score(moved)) > best:
                    best, places = value, moved
        if best == before:
            break
    return places


_OF_COUNTS: dict[str, Callable[[row_metrics.Counts], Tensor]] = {
    "accuracy": row_metrics.accuracy_of,
    "balanced_accuracy": row_metrics.balanced_accuracy_of,
    "f1": row_metrics.f1_of,
    "f1_macro": row_metrics.f1_macro_of,
    "f1_micro": row_metrics.f1_micro_of,
    "mcc": row_metrics.mcc_of,
    # NaN if the target has one class and every row is in it, which no cut can improve
    "quadratic_kappa": lambda counts: torch.nan_to_num(row_metrics.binary_kappa_of(counts), nan=1.0),
}


def best_threshold(y: Any, probability: Any, metric: str | Metric, *, weight: Any = None) -> float:
    """Find the threshold between class 0 and class 1 that optimises a metric of classes.

    For accuracy, balanced_accuracy, f1, f1_macro, f1_micro, mcc and quadratic_kappa, every threshold between distinct
    probabilities is tried, by counting. For your own metric, 500 evenly spread ones are tried, then up to 500 around
    the best.

    Args:
        y: ``[n]`` of 0 and 1.
        probability: ``[n]`` numbers; class 1 is above the threshold.
        metric, weight: a metric of classes, or its name; ``[n]`` weights >= 0, or None.

    Returns:
        The threshold, halfway between two probabilities; among equally good ones, the nearest to .5. It is ``-inf`` if
        all rows are best in class 1, ``inf`` if none is.

    Raises:
        DataError: the metric is not one of classes or not for two classes, or inputs as for a metric.
    """
    chosen = of_classes(metric, "binary")
    target, p = one_column(y, probability)
    check_binary(target)
    w = row_weights(weight, p)
    rows = _SortedRows(target, p, torch.ones_like(p) if w is None else w)
    formula = None if isinstance(chosen.function, OwnFunction) else _OF_COUNTS.get(chosen.name)
    if formula is None:
        sign = 1 if chosen.greater_is_better else -1
        first, last = 0, len(rows.cuts) - 1
        for _ in range(2):
            # The metric is called for each cut: first on a coarse grid, then on a fine one.
            tried = torch.linspace(first, last, min(500, last - first + 1), dtype=torch.float64).round().long().unique()
            values = [chosen(target, (p > t).double(), weight=w) for t in rows.cuts[tried].tolist()]
            best = _best_cut(rows.cuts[tried], sign * torch.tensor(values, dtype=torch.float64))
            place = int((rows.cuts[tried] == best).nonzero()[0, 0])
            first, last = int(tried[max(place - 1, 0)]), int(tried[min(place + 1, len(tried) - 1)])
        return best
    below = torch.stack([rows.below(rows.w * of) for of in (1 - rows.y, rows.y)])  # of class 0, of class 1
    total = below[:, -1:]
    predicted = torch.stack([below.sum(0), (total - below).sum(0)], 1)
    hits = torch.stack([below[0], total[1] - below[1]], 1)
    return _best_cut(rows.cuts, formula(row_metrics.Counts(hits, total.T.expand_as(hits), predicted)))


def _best_cut(cuts: Tensor, values: Tensor) -> float:
    """Return the cut of the highest value; among equal values (up to rounding) the nearest to .5 wins."""
    values = torch.nan_to_num(values, nan=-torch.inf)
    best = values.max()
    good = values >= best - 1e-12 * best.abs() if bool(best.isfinite()) else values == best
    return float(cuts[good][(cuts[good] - 0.5).abs().argmin()])


def cross_fitted_classes(y: Any, prediction: Any, folds: Any, metric: str | Metric) -> Tensor:
    """Turn out-of-fold predictions into classes; each fold's cuts are learned on the other folds.

    The score of these classes is unbiased: no row's own target influences its cuts.

    Args:
        y: targets ``[n]``: 0 and 1 (a threshold is learned), or ordered classes (cuts between values).
        prediction: ``[n]``.
        folds: ``[n]`` integers, the fold of each row (``folds.codes``).
        metric: a metric of classes, or its name.

    Returns:
        int64 ``[n]``.

    Raises:
        DataError: fewer than two folds, a metric that is not one of classes, or inputs as for a metric.
    """
    target, p = one_column(y, prediction)
    codes = flat_tensor(folds, "folds").to(p.device)
    if len(codes) != len(p) or len(codes.unique()) < 2:
        problem = f"{len(codes)} rows in {len(codes.unique())} folds, for {len(p)} predictions"
        raise DataError(problem, column="folds", remedy="Give the fold of each predicted row, of two folds or more")
    two = bool(((target == 0) | (target == 1)).all())
    classes = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    for fold in codes.unique():
        rest, inside = codes != fold, codes == fold
        if two:
            classes[inside] = (p[inside] > best_threshold(target[rest], p[rest], metric)).long()
        else:
            classes[inside] = apply_cuts(p[inside], best_rounding(target[rest], p[rest], metric))
    return classes


def as_scored(metric: str | Metric, y: Any, prediction: Any, folds: Any) -> Tensor:
    """Turn out-of-fold predictions into a metric's input: the single rule by which a run's classes are judged.

    Args:
        metric, y, prediction: as for ``cross_fitted_classes``, targets on their own scale.
        folds: ``[n]`` integers, the fold of each row. A single fold is split into five parts, row by row.

    Returns:
        ``cross_fitted_classes`` for a metric of classes and one prediction per row. All else is unchanged: the metric
        takes the highest of several classes, and labels above .5.
    """
    target, p = plain_tensor(y, "y"), plain_tensor(prediction, "prediction")
    if get_metric(metric).wants != "classes" or target.ndim != 1 or p.ndim != 1:
        return p
    codes = flat_tensor(folds, "folds")
    if len(codes.unique()) < 2:
        # A single fold is split into parts: no row's own target influences its cut.
        codes = torch.arange(len(p)) % 5
    return cross_fitted_classes(target, p, codes, metric)


def loss_of(metric: str | Metric, task: str) -> Metric:
    """Return the loss to optimise instead of a metric of classes; other metrics, and any of labels, stay."""
    chosen = get_metric(metric)
    if chosen.wants != "classes" or task in ("ranking", "multilabel"):
        return chosen
    return get_metric("rmse" if task == "regression" else "logloss")
