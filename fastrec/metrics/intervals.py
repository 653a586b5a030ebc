"""Bootstrap intervals of means and of paired differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.metrics.lists import flat_tensor, refuse_rows

_BLOCK = 1 << 22  # numbers drawn at once by the bootstrap: 32 MiB of them


class Interval(NamedTuple):
    """A mean and the interval that holds it at the asked level."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.5f} [{self.low:.5f}, {self.high:.5f}]"


def bootstrap_interval(values: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of a mean (Efron and Tibshirani 1993, section 13.3).

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
    means = _resampled_means(x, repeats, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(x.mean()), float(low), float(high))


def paired_difference(a: Any, b: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of ``a - b`` over the same groups, with its bootstrap interval.

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


def _resampled_means(x: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    # Resampling n values with replacement draws how often each *distinct* value comes from a multinomial. Reciprocal
    # ranks take a few dozen values, so this is the same bootstrap at a small part of the cost.
    distinct, counts = np.unique(x, return_counts=True)
    few = len(distinct) * 16 <= len(x)
    width = len(distinct) if few else len(x)
    step = max(1, _BLOCK // width)
    blocks = []
    for start in range(0, repeats, step):
        rows = min(step, repeats - start)
        if few:
            blocks.append(rng.multinomial(len(x), counts / len(x), size=rows) @ distinct / len(x))
        else:
            blocks.append(x[rng.integers(0, len(x), size=(rows, len(x)))].mean(axis=1))
    return np.concatenate(blocks)
