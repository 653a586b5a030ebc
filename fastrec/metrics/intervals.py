"""Bootstrap intervals of any metric, of means and of paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError, check_whole, refuse
from fastrec.metrics.ranking import flat_tensor
from fastrec.metrics.registry import Metric, get_metric
from fastrec.metrics.rows import paired


class Interval(NamedTuple):
    """A mean and its interval at the requested level."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.5f} [{self.low:.5f}, {self.high:.5f}]"


def bootstrap_interval(values: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Compute the percentile bootstrap interval of a mean (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: ``[g]`` finite numbers, one per independent unit (a group's reciprocal rank, a session's mean).
        repeats: the number of resamples.
        level: share of the resampled means inside the interval, between 0 and 1.
        seed: the same seed gives the same interval.

    Returns:
        The mean of the values and the two ends of its interval.

    Raises:
        DataError: no values, a value that is not finite, or ``repeats`` or ``level`` out of range.
    """
    x = flat_tensor(values, "values").double().cpu().numpy()
    if not len(x):
        raise DataError("there are no values", column="values", remedy="Give at least one")
    refuse(torch.from_numpy(~np.isfinite(x)), "values", "a value is not a finite number", "Drop or fill it first")
    _check_range(repeats, level)
    # Reciprocal ranks have a few dozen distinct values: counting them first is the same bootstrap at less cost.
    distinct, counts = np.unique(x, return_counts=True)
    # A multinomial draw takes time per distinct value: it pays only if values repeat often.
    few = len(distinct) * 16 <= len(x)
    sums = _resampled(distinct if few else x, repeats, seed, counts=counts if few else None)
    return interval_of(float(x.mean()), sums / len(x), level=level)


def _is_share(level: object) -> bool:
    return isinstance(level, Real) and 0 < level < 1


def _check_range(repeats: int, level: float) -> None:
    if repeats < 1 or not _is_share(level):
        remedy = "Use 1 or more, and a level of 0 to 1"
        raise DataError(f"repeats {repeats} or level {level!r} is out of range", remedy=remedy)


def paired_difference(a: Any, b: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Compute the mean of ``a - b`` over the same groups, with its bootstrap interval.

    Args:
        a, b: ``[g]`` values of two models, one per group, in the same order.
        repeats, level, seed: as for :func:`bootstrap_interval`.

    Returns:
        The mean difference and its interval; the two models differ clearly if it excludes 0.

    Raises:
        DataError: lengths differ, or as for :func:`bootstrap_interval`.
    """
    first, second = flat_tensor(a, "a").double().cpu(), flat_tensor(b, "b").double().cpu()
    if len(first) != len(second):
        raise DataError(f"a has {len(first)} values, b has {len(second)}", remedy="Compare the same groups")
    return bootstrap_interval(first - second, repeats=repeats, level=level, seed=seed)


def cluster_means(
    values: np.ndarray, clusters: np.ndarray, *, weights: np.ndarray | None = None, repeats: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Compute means of columns, as they are and over resampled clusters (Davison and Hinkley 1997, section 3.8).

    A resample draws as many clusters as there are, with replacement, and takes all rows of each. Its mean is the sum of
    the drawn clusters divided by their number of rows. All columns share the draws, so differences between result
    columns are paired. ``values``: finite float64 ``[n, m]``, a row per list and a column per model. ``clusters``:
    ``[n]`` of any sortable type. ``weights``: ``[n]`` numbers above 0; None: equal. Returns the means, float64 ``[m]``,
    and those of every resample, ``[repeats, m]``.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise DataError("there are no values to resample", remedy="Give at least one row and one column")
    if len(clusters) != len(values):
        raise DataError(f"{len(values)} rows have {len(clusters)} clusters", remedy="Give one cluster per row")
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise DataError("a value is not a finite number", row=int(bad.argmax()), remedy="Drop or fill it first")
    check_whole("a bootstrap", repeats=repeats)
    _, codes = np.unique(clusters, return_inverse=True)
    n_clusters = int(codes.max()) + 1
    weighed = values if weights is None else values * weights[:, None]
    sums = np.stack([np.bincount(codes, weights=column, minlength=n_clusters) for column in weighed.T], axis=1)
    sizes = np.bincount(codes, weights=weights, minlength=n_clusters)
    drawn = _resampled(np.column_stack([sums, sizes]), repeats, seed)
    return np.average(values, axis=0, weights=weights), drawn[:, :-1] / drawn[:, -1:]


def interval_of(mean: float, draws: np.ndarray, *, level: float = 0.95) -> Interval:
    """Compute the percentile interval of resampled means ``[repeats]``, or of differences of two columns of them."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean), float(low), float(high))


def _resampled(rows: np.ndarray, repeats: int, seed: int, *, counts: np.ndarray | None = None) -> np.ndarray:
    """Sum over ``repeats`` resamples, with replacement, of as many rows ``[n]`` or ``[n, c]`` as there are.

    Row i occurs ``counts[i]`` times (None: once). One draw from a multinomial distribution tells how often it is drawn,
    instead of one draw per occurrence.
    """
    rng, n = np.random.default_rng(seed), len(rows)
    step = max(1, limits.RESAMPLED_AT_ONCE // n)
    blocks = []
    for start in range(0, repeats, step):
        size = min(step, repeats - start)
        if counts is None:
            times = np.empty((size, n))
            for row in times:
                row[:] = np.bincount(rng.integers(0, n, size=n), minlength=n)
        else:
            times = rng.multinomial(counts.sum(), counts / counts.sum(), size=size)
        blocks.append(times @ rows)
    return np.concatenate(blocks)


_MEANS_OF_LISTS = ("mrr", "ndcg", "map", "hit_rate", "recall")  # all lists have equal weight, empty ones count as 0


class Resampled(NamedTuple):
    """A metric of several predictions, as it is and over shared resamples."""

    values: dict[str, float]  #: prediction → the metric over all rows
    #: prediction → float64 ``[repeats]``; NaN if the metric is undefined for a resample
    draws: dict[str, np.ndarray]
    level: float  #: share of the draws inside an interval

    def interval(self, name: str) -> Interval:
        """Return the metric of one prediction with its interval."""
        return self._interval(self.values[name], self.draws[name])

    def difference(self, a: str, b: str) -> Interval:
        """Return the metric of ``a`` minus that of ``b``; they differ clearly if the interval excludes 0."""
        return self._interval(self.values[a] - self.values[b], self.draws[a] - self.draws[b])

    def _interval(self, value: float, draws: np.ndarray) -> Interval:
        known = draws[~np.isnan(draws)]
        if not len(known):
            return Interval(value, float("nan"), float("nan"))
        return interval_of(value, known, level=self.level)


def bootstrap_metric(
    metric: str | Metric,
    y: Any,
    predictions: Mapping[str, Any],
    *,
    groups: Any = None,
    clusters: Any = None,
    parts: Any = None,
    repeats: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Resampled:
    """Resample a metric, whatever its formula (Davison and Hinkley 1997, sections 2.4 and 3.8).

    A resample draws as many clusters as there are, with replacement, and takes all rows of each. For means over lists
    (mrr, ndcg, map, hit rate, recall) with more than 500 clusters, 500 random blocks of clusters are resampled instead.
    The interval's width is then off by some 3 %, and the metric is computed once instead of ``repeats`` times. For
    other metrics with more than 100,000 clusters, a resample draws 100,000. The distance of its metric from that of all
    rows is then multiplied by the root of 100,000 / n (Bickel, Götze and van Zwet 1997: fewer than n draws).

    Args:
        metric: a name, or a ``Metric``.
        y, predictions: the targets, and name → prediction, in the form that the metric takes.
        groups: ``[n]`` integers, the list of each row; None if there are no lists.
        clusters: ``[n]`` integers: the independent units (users, sessions); None: the lists, or the rows if there are
            no lists.
        parts: ``[n]`` integers: the score is the mean of the metric in each part, weighted by rows. Use it where parts
            are predicted by different models, whose predictions need not be on one scale. A part in which the metric is
            undefined is left out, unless it is undefined in all. For means over lists it changes nothing.
        repeats, level, seed: as for :func:`bootstrap_interval`.

    Raises:
        DataError: ``repeats`` or ``level`` is out of range, ``clusters`` or ``parts`` differ in length from the rows,
            or the metric itself raises it.
    """
    metric = get_metric(metric)
    _check_range(repeats, level)
    data = {n: tuple(t.cpu() for t in paired(y, p)) for n, p in predictions.items()}
    groups = None if groups is None else flat_tensor(groups, "groups").cpu()
    clusters = groups if clusters is None else flat_tensor(clusters, "clusters").cpu()
    size = len(next(iter(data.values()))[0]) if data else 0
    parts = None if parts is None else flat_tensor(parts, "parts").cpu()
    for name, given in (("cluster", clusters), ("part", parts)):
        if given is not None and len(given) != size:
            raise DataError(f"{len(given)} {name}s for {size} rows", remedy=f"Give one {name} for each row")
    codes = torch.arange(size) if clusters is None else torch.unique(clusters, return_inverse=True)[1]
    of_lists = metric.name.partition("@")[0] in _MEANS_OF_LISTS and groups is not None
    parts = None if of_lists else parts  # a list's scores are compared with one another alone
    once = torch.ones(size, dtype=torch.int64)
    values = {
        n: metric(t, p, groups=groups) if parts is None else _weighted(metric, t, p, groups, parts)(once)
        for n, (t, p) in data.items()
    }
    if of_lists:
        draws = _by_blocks(metric, data, groups, codes, repeats, seed)
    else:
        share = limits.DRAWN_CLUSTERS / max(int(codes.max()) + 1, 1)
        draws = _by_clusters(metric, data, groups, codes, parts, repeats, seed)
        if share < 1:
            # Fewer draws have a spread that is wider by the root of the share.
            draws = {n: values[n] + share**0.5 * (d - values[n]) for n, d in draws.items()}
    return Resampled(values, draws, level)


def _by_blocks(
    metric: Metric, data: Mapping[str, tuple[Tensor, Tensor]], groups: Tensor, codes: Tensor, repeats: int, seed: int
) -> dict[str, np.ndarray]:
    """Draw a mean over lists as a mean of the blocks' means, weighted by their numbers of lists."""
    count = int(codes.max()) + 1
    # Neighbouring lists may be similar, so that blocks of neighbours would differ too much.
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    block = (shuffled * min(count, limits.LIST_BLOCKS) // count)[codes]
    pieces = torch.split(torch.argsort(block, stable=True), torch.bincount(block).tolist())
    scores, lists = [], []
    for rows in pieces:
        lists.append(len(torch.unique(groups[rows])))
        scores.append([metric(t[rows], p[rows], groups=groups[rows]) for t, p in data.values()])
    repeated = np.repeat(np.array(scores), lists, axis=0)
    _, draws = cluster_means(repeated, np.repeat(np.arange(len(lists)), lists), repeats=repeats, seed=seed)
    return {n: draws[:, j] for j, n in enumerate(data)}


def _by_clusters(
    metric: Metric,
    data: Mapping[str, tuple[Tensor, Tensor]],
    groups: Tensor | None,
    codes: Tensor,
    parts: Tensor | None,
    repeats: int,
    seed: int,
) -> dict[str, np.ndarray]:
    rng, count = np.random.default_rng(seed), int(codes.max()) + 1
    size = min(count, limits.DRAWN_CLUSTERS)
    whole = {n: _weighted(metric, t, p, groups, parts) for n, (t, p) in data.items()} if size == count else {}
    draws: dict[str, list[float]] = {n: [] for n in data}
    for _ in range(repeats):
        times = torch.from_numpy(np.bincount(rng.integers(0, count, size=size), minlength=count))[codes]
        rows = times.nonzero().squeeze(1)
        for name, (y, p) in data.items():
            if size == count:
                draws[name].append(whole[name](times))
            else:  # with many clusters, most are not drawn: compute the metric on the drawn rows
                drawn = (None if v is None else v[rows] for v in (groups, parts))
                draws[name].append(_weighted(metric, y[rows], p[rows], *drawn)(times[rows]))
    return {n: np.array(d) for n, d in draws.items()}


def _weighted(
    metric: Metric, y: Tensor, p: Tensor, groups: Tensor | None, parts: Tensor | None = None
) -> Callable[[Tensor], float]:
    """Return the metric, or its mean over parts, as a function of how often each row was drawn."""
    if parts is not None:
        pieces = [(parts == k).nonzero().squeeze(1) for k in parts.unique()]
        own = [(r, _weighted(metric, y[r], p[r], None if groups is None else groups[r])) for r in pieces]
        own = [(r, of) for r, of in own if not math.isnan(of(torch.ones_like(r)))]

        def mean(times: Tensor) -> float:
            drawn = [(int(times[r].sum()), of(times[r])) for r, of in own]
            drawn = [(n, score) for n, score in drawn if n and not math.isnan(score)]  # some draws lack a class
            return sum(n * score for n, score in drawn) / sum(n for n, _ in drawn) if drawn else math.nan

        if own:
            return mean
    if metric.name == "auc" and y.ndim == p.ndim == 1:
        return _sorted_auc(y, p)
    # a user's own metric may take no weights: then rows are repeated as often as they were drawn
    if "weight" in getattr(metric.function, "takes", {"weight"}):
        return lambda times: metric(y, p, groups=groups, weight=times)

    def repeated(times: Tensor) -> float:
        rows = torch.repeat_interleave(torch.arange(len(y)), times)
        if groups is None:
            return metric(y[rows], p[rows])
        # a list that was drawn twice counts as two lists
        turn = torch.arange(len(rows)) - (times.cumsum(0) - times)[rows]
        again = torch.unique(torch.stack([groups[rows], turn], 1), dim=0, return_inverse=True)[1]
        return metric(y[rows], p[rows], groups=again)

    return repeated


# Conformal prediction: errors of out-of-fold predictions bound the errors of new ones.


def conformal_gaps(label: np.ndarray, predicted: np.ndarray, *, classes: bool) -> np.ndarray:
    """Compute the distance of predictions from the labels: absolute errors, or 1 - the true class's probability.

    Regression values: ``[n, k]``, class numbers ``[n, 1]``; probabilities ``[n, classes]``, or ``[n, 1]`` of class 1.
    """
    if not classes:
        return np.abs(label - predicted)
    wide = np.concatenate([1 - predicted, predicted], 1) if predicted.shape[1] == 1 else predicted
    return 1 - np.take_along_axis(wide, label.astype(np.int64), 1)


def conformal_bound(gaps: np.ndarray, level: float) -> float:
    """Return a bound on a new row's gap that holds with probability ``level`` or more (split conformal prediction).

    It is the ``ceil((n + 1) level)``-th smallest of ``gaps`` ``[n]`` (Lei et al. 2018, algorithm 2), if rows are
    exchangeable.
    """
    if not _is_share(level):
        raise DataError(f"level is {level!r}", remedy="Give a share between 0 and 1, such as 0.9")
    place = math.ceil((len(gaps) + 1) * level)
    if place > len(gaps):
        most = len(gaps) / (len(gaps) + 1)
        raise DataError(f"{len(gaps)} rows are too few for level {level}", remedy=f"Give {most:.3g} or less")
    return float(np.partition(gaps, place - 1)[place - 1])


def _sorted_auc(y: Tensor, p: Tensor) -> Callable[[Tensor], float]:
    order = torch.sort(p).indices
    relevant = (y > 0)[order]
    run = torch.unique_consecutive(p[order], return_inverse=True)[1]
    size = int(run[-1]) + 1

    def score(times: Tensor) -> float:
        w = times[order].double()
        positive, negative = w * relevant, w * ~relevant
        if size < len(w):
            positive, negative = (torch.zeros(size, dtype=w.dtype).index_add_(0, run, v) for v in (positive, negative))
        below = negative.cumsum(0) - negative / 2  # ties count half
        pairs = positive.sum() * negative.sum()
        return float((positive * below).sum() / pairs) if pairs > 0 else float("nan")

    return score
