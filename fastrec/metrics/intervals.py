"""Bootstrap intervals of means and of paired differences, over independent values or over whole clusters of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.metrics.lists import flat_tensor, refuse_rows


class Interval(NamedTuple):
    """A mean and the interval that holds it at the asked level."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.5f} [{self.low:.5f}, {self.high:.5f}]"


def bootstrap_interval(values: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Compute the percentile bootstrap interval of a mean (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: ``[g]`` finite numbers, one per independent unit (a group's reciprocal rank, a session's mean).
        repeats: how many resamples.
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
    refuse_rows(torch.from_numpy(~np.isfinite(x)), "values", "is not a finite number", "Drop or fill it first")
    if repeats < 1 or not 0 < level < 1:
        raise DataError(
            f"repeats {repeats} or level {level} is out of range", remedy="Use repeats >= 1 and a level between 0 and 1"
        )
    # Reciprocal ranks take a few dozen values: counting them first is the same bootstrap at a small part of the cost.
    distinct, counts = np.unique(x, return_counts=True)
    # A multinomial draw costs a time per distinct value: only worth it if values repeat often.
    few = len(distinct) * 16 <= len(x)
    sums = _resampled(distinct if few else x, repeats, seed, counts=counts if few else None)
    return interval_of(float(x.mean()), sums / len(x), level=level)


def paired_difference(a: Any, b: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Compute the mean of ``a - b`` over the same groups, with its bootstrap interval.

    Args:
        a: ``[g]`` values of one model, one per group.
        b: ``[g]`` values of another on the same groups in the same order.
        repeats: how many resamples of the groups.
        level: share of the resampled means inside the interval.
        seed: the same seed gives the same interval.

    Returns:
        The mean difference and its interval; one that leaves out 0 tells the two models apart.

    Raises:
        DataError: lengths differ, or as for :func:`bootstrap_interval`.
    """
    first, second = flat_tensor(a, "a").double().cpu(), flat_tensor(b, "b").double().cpu()
    if len(first) != len(second):
        raise DataError(f"a has {len(first)} values, b has {len(second)}", remedy="Compare the same groups")
    return bootstrap_interval(first - second, repeats=repeats, level=level, seed=seed)


def cluster_means(
    values: np.ndarray, clusters: np.ndarray, *, repeats: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Compute means of columns, as they are and over resampled clusters (Davison and Hinkley 1997, section 3.8).

    A resample draws as many clusters as there are, with replacement, and takes all rows of each: its mean is the
    drawn clusters' sum over their number of rows. All columns share the draws, so that differences between columns
    of the result are paired.

    Args:
        values: float64 ``[n, m]``, finite: one row per list, one column per model.
        clusters: ``[n]`` cluster of each row (any type that sorts: numbers, strings).
        repeats: number of resamples.
        seed: the same seed gives the same draws.

    Returns:
        The means, float64 ``[m]``, and the means of every resample, float64 ``[repeats, m]``.

    Raises:
        DataError: no rows, a value that is not finite, lengths that differ, or fewer than one resample.
    """
    values = np.asarray(values, dtype=np.float64)
    _refuse_clustered(values, clusters, repeats)
    _, codes = np.unique(clusters, return_inverse=True)
    n_clusters = int(codes.max()) + 1
    sums = np.stack([np.bincount(codes, weights=column, minlength=n_clusters) for column in values.T], axis=1)
    sizes = np.bincount(codes, minlength=n_clusters)
    drawn = _resampled(np.column_stack([sums, sizes]), repeats, seed)
    return values.mean(axis=0), drawn[:, :-1] / drawn[:, -1:]


def interval_of(mean: float, draws: np.ndarray, *, level: float = 0.95) -> Interval:
    """Compute the percentile interval of resampled means.

    Args:
        mean: the mean of the data itself.
        draws: float64 ``[repeats]`` resampled means, or differences of two columns of them.
        level: share of the draws inside the interval, between 0 and 1.

    Returns:
        The mean and the ends of its interval.
    """
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean), float(low), float(high))


def _resampled(rows: np.ndarray, repeats: int, seed: int, *, counts: np.ndarray | None = None) -> np.ndarray:
    """Sum over resamples with replacement of as many rows as there are.

    Args:
        rows: float64 ``[n]`` or ``[n, c]``.
        repeats: number of resamples.
        seed: the same seed gives the same draws.
        counts: int64 ``[n]``, how often each row stands; None: once. How often each is drawn is then one draw from a
            multinomial distribution, instead of one draw for every time it stands.

    Returns:
        float64 ``[repeats]`` or ``[repeats, c]``.
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


def _refuse_clustered(values: np.ndarray, clusters: np.ndarray, repeats: int) -> None:
    if values.ndim != 2 or not len(values):
        raise DataError("there are no values to resample", remedy="Give at least one row and one column")
    if len(clusters) != len(values):
        raise DataError(f"{len(values)} rows have {len(clusters)} clusters", remedy="Give one cluster per row")
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise DataError("a value is not a finite number", row=int(bad.argmax()), remedy="Drop or fill it first")
    if repeats < 1:
        raise DataError(f"{repeats} resamples were asked for", remedy="Ask for at least one")
