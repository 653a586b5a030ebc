"""``Moments``: count, mean and standard deviation, block by block."""

from __future__ import annotations

import numpy as np


class Moments:
    """Count, mean, spread, smallest and largest of numbers, by merging blocks (Chan, Golub, LeVeque 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.low, self.high = np.inf, -np.inf

    def add(self, values: np.ndarray, *, extremes: bool = True) -> None:
        """Add float64 ``[m]``, none missing; ``extremes``: the smallest and largest too."""
        if not len(values):
            return
        mean = values.mean()
        rest = values - mean
        more = rest.mean()  # what the first look's rounding left
        rest *= rest
        self.merge(len(values), float(mean + more), float(rest.sum() - more * more * len(rest)))
        if extremes:
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Add ``count`` numbers of this mean and sum of squares about it."""
        if not count:
            return
        total, gap = self.count + count, mean - self.mean
        self.squares += squares + gap * gap * self.count * count / total
        self.mean += gap * count / total
        self.count = total

    def add_equal(self, value: float, times: int) -> None:
        """Add one number several times."""
        if times:
            self.merge(times, value, 0.0)
            self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def std(self) -> float:
        """Standard deviation over all of them (divided by their number)."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0
