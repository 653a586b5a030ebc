"""Values of an ordinal target (grades, stars) to its classes, by the cut points that a metric is best at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics.inputs import one_column, row_weights
from fastrec.metrics.lists import flat_tensor, refuse_rows
from fastrec.metrics.metric import Metric, OwnFunction
from fastrec.metrics.registry import get_metric
from fastrec.metrics.weighted import between, last_of_runs, mean_of


def best_rounding(y: Any, value: Any, metric: str | Metric = "quadratic_kappa", *, weight: Any = None) -> Tensor:
    """Find the cut points between ordered classes that a metric is best at.

    For quadratic_kappa, accuracy and balanced_accuracy no other cuts are better: the cost of a row is its own, so that
    the best partition of the sorted values comes from dynamic programming over classes. Kappa is a quotient of two
    such sums: the partition that is best for their difference, weighted by the last quotient, until it stays
    (Dinkelbach 1967). For any other metric one cut after another is moved from there, as long as that helps.

    Args:
        y: ``[n]`` whole numbers from 0, the ordered classes.
        value: ``[n]`` predicted values, in any unit: only their order matters.
        metric: a metric that wants classes, or its name.
        weight: ``[n]`` weights >= 0, or None.

    Returns:
        Cuts, ascending float64 ``[highest class]``: a row's class is how many cuts are below its value. A class that is
        better never given has equal cuts; ``-inf`` and ``inf`` stand below and above all values.

    Raises:
        DataError: a metric that does not want classes, targets that are no whole numbers from 0 (or above 1,000), or
            inputs as for a metric.
    """
    chosen = of_classes(metric, "multiclass")
    target, p = one_column(y, value)
    # Dynamic programming takes a pass over the rows for each class.
    bad = (target < 0) | (target > 1000) | (target != target.round())
    refuse_rows(bad, "y", f"is no class from 0 to {1000}", "Number the ordered classes from 0")
    w = row_weights(weight, p)
    rows = _SortedRows(target, p, torch.ones_like(p) if w is None else w)
    known = None if isinstance(chosen.function, OwnFunction) else chosen.name
    if known in _EXACT:
        places = _EXACT[known](rows)
    else:
        starts = [find(rows) for find in _EXACT.values()]
        places = _moved(starts, rows, chosen)
    # a class below the lowest of the targets is never given
    return torch.cat([rows.cuts[:1].expand(rows.lowest), rows.cuts[places]])


def apply_cuts(value: Any, cuts: Any) -> Tensor:
    """Turn values into classes: how many cuts are below each.

    Args:
        value: ``[n]`` numbers.
        cuts: ascending numbers, as :func:`best_rounding` gives them.

    Returns:
        int64 ``[n]``.

    Raises:
        DataError: a value is NaN, or the cuts do not ascend.
    """
    v = flat_tensor(value, "value").double()
    c = flat_tensor(cuts, "cuts").double().to(v.device)
    refuse_rows(v.isnan(), "value", "is NaN", "Look at what predicted it, or fill it first")
    if bool((c[1:] < c[:-1]).any() | c.isnan().any()):
        raise DataError("the cuts do not ascend", column="cuts", remedy="Give them from low to high")
    return torch.searchsorted(c, v)


def of_classes(metric: str | Metric, task: str) -> Metric:
    """Return the metric, if cut points matter to it.

    Raises:
        DataError: it does not want classes, is not of the task, or needs groups.
    """
    chosen = get_metric(metric)
    if chosen.wants != "classes" or chosen.needs_groups:
        raise DataError(
            f"{chosen.name} is not computed from classes", remedy="Take one that is, such as f1 or quadratic_kappa"
        )
    if task not in chosen.tasks:
        raise DataError(f"{chosen.name} is for {', '.join(chosen.tasks)}, not {task}", remedy="Take another metric")
    return chosen


class _SortedRows:
    """Rows by value, and sums of them below every place where a cut can be."""

    def __init__(self, y: Tensor, p: Tensor, w: Tensor) -> None:
        order = torch.sort(p, stable=True).indices
        self.y, self.p, self.w = y[order], p[order], w[order]
        self.ends = last_of_runs(self.p)
        self.cuts = between(self.p[self.ends])
        self.lowest, self.highest = int(y.min()), int(y.max())

    def below(self, of_row: Tensor) -> Tensor:
        return torch.cat([of_row.new_zeros(1), of_row.cumsum(0)[self.ends]])

    def partition(self, cost: Callable[[int], Tensor]) -> Tensor:
        """Find the cuts of the lowest cost.

        Args:
            cost: class → cost of all rows below each cut, if they were of this class, ``[m + 1]``.

        Returns:
            Which cuts, ascending int64 ``[highest - lowest]``.
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


def _for_balanced_accuracy(rows: _SortedRows) -> Tensor:
    of_class = torch.bincount(rows.y.long(), rows.w).clamp(min=torch.finfo(torch.float64).tiny)
    return rows.partition(lambda c: -rows.below(rows.w * (rows.y == c)) / of_class[c])


_EXACT: dict[str, Callable[[_SortedRows], Tensor]] = {
    "quadratic_kappa": _for_kappa,
    "accuracy": lambda rows: rows.partition(lambda c: -rows.below(rows.w * (rows.y == c))),
    "balanced_accuracy": _for_balanced_accuracy,
}


def _moved(starts: list[Tensor], rows: _SortedRows, metric: Metric) -> Tensor:
    """Move one cut after another of the best start to the best place between its neighbours."""
    sign = 1 if metric.greater_is_better else -1

    def score(places: Tensor) -> float:
        classes = rows.lowest + torch.searchsorted(rows.cuts[places], rows.p)
        value = sign * metric(rows.y, classes, weight=rows.w)
        return value if value == value else -float("inf")

    best, places = max(((score(s), s) for s in starts), key=lambda pair: pair[0])
    # Bounds the sweeps; they stop once nothing improves.
    for _ in range(20):
        before = best
        for i in range(len(places)):
            low = int(places[i - 1]) if i else 0
            high = int(places[i + 1]) if i + 1 < len(places) else len(rows.cuts) - 1
            # The metric is called for each place: a hundred of them between the neighbours.
            for place in torch.linspace(low, high, min(100, high - low + 1)).round().long().unique().tolist():
                moved = places.clone()
                moved[i] = place
                if (value := score(moved)) > best:
                    best, places = value, moved
        if best == before:
            break
    return places
