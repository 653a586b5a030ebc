"""Bootstrap over clusters: whole sessions are resampled, because lists of one session are not independent."""

from __future__ import annotations

import numpy as np

from fastrec.errors import DataError
from fastrec.metrics.intervals import Interval

_BLOCK = 1 << 22  # resampling weights held at once: 32 MiB of them


def cluster_means(
    values: np.ndarray, clusters: np.ndarray, *, repeats: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Means of several columns, as they are and over resampled clusters (Davison and Hinkley 1997, section 3.8).

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
    _refuse(values, clusters, repeats)
    _, codes = np.unique(clusters, return_inverse=True)
    n_clusters = int(codes.max()) + 1
    sums = np.stack([np.bincount(codes, weights=column, minlength=n_clusters) for column in values.T], axis=1)
    sizes = np.bincount(codes, minlength=n_clusters)
    both = np.column_stack([sums, sizes])
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n_clusters)
    blocks = []
    for start in range(0, repeats, step):
        times = np.empty((min(step, repeats - start), n_clusters))
        for row in times:
            row[:] = np.bincount(rng.integers(0, n_clusters, size=n_clusters), minlength=n_clusters)
        blocks.append(times @ both)
    drawn = np.concatenate(blocks)
    return values.mean(axis=0), drawn[:, :-1] / drawn[:, -1:]


def interval_of(mean: float, draws: np.ndarray, *, level: float = 0.95) -> Interval:
    """Percentile interval of resampled means.

    Args:
        mean: the mean of the data itself.
        draws: float64 ``[repeats]`` resampled means, or differences of two columns of them.
        level: share of the draws inside the interval, between 0 and 1.

    Returns:
        The mean and the ends of its interval.
    """
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean), float(low), float(high))


def _refuse(values: np.ndarray, clusters: np.ndarray, repeats: int) -> None:
    if values.ndim != 2 or not len(values):
        raise DataError("there are no values to resample", remedy="Give at least one row and one column")
    if len(clusters) != len(values):
        raise DataError(f"{len(values)} rows have {len(clusters)} clusters", remedy="Give one cluster per row")
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise DataError("a value is not a finite number", row=int(bad.argmax()), remedy="Drop or fill it first")
    if repeats < 1:
        raise DataError(f"{repeats} resamples were asked for", remedy="Ask for at least one")
