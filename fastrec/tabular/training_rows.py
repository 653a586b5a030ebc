"""What procs learn of a column's training rows by compiled loops: in the frame's order, without a copy of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.kernels import compiled, frames
from fastrec.tabular.column_parts import FrameColumns
from fastrec.tabular.moments import Moments


def worth(numbers: int) -> bool:
    """Return whether to use compiled loops for a frame of so many numbers and codes."""
    return numbers >= limits.LOOPS_FROM and compiled(numbers)


def address_of(values: np.ndarray) -> tuple[int, int] | None:
    """Return an array's address and its type's number for the loops; None if they do not take it."""
    if values.dtype not in frames().TYPES or not values.flags.c_contiguous:
        return None
    return values.ctypes.data, frames().TYPES.index(values.dtype)


@dataclass(frozen=True)
class Summary:
    """Statistics of a column's training rows, of which procs learn: from tensors, compiled loops and streams alike.

    Args:
        fill: median or mode of the numbers; None if none was computed.
    """

    moments: Moments
    gaps: int
    fill: float | None = None


class TrainingRows:
    """The training rows of a frame's columns.

    Args:
        columns: the frame's; None: the rows count as they stand, and no loops are used.
    """

    def __init__(self, count: int, columns: FrameColumns | None = None) -> None:
        self.rows = slice(0, count) if columns is None else columns.ascending(count)
        self.count, self.by_loops = count, False
        if columns is None or columns.device.type != "cpu" or not worth(columns.size * len(columns.names)):
            return
        places = columns.places
        self.by_loops = columns.order is None or places is not None
        self.chosen = np.empty(0, np.bool_) if places is None else places < count
        self.size = count if places is None else columns.size

    @cached_property
    def _sample(self) -> slice | np.ndarray:
        step = max(min(self.count // limits.MEDIAN_SAMPLE, limits.MEDIAN_SAMPLED), 1)
        return slice(0, self.count, step) if isinstance(self.rows, slice) else self.rows.numpy()[::step]

    def numbers(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values that a loop covers: all of the frame's, or the first ones."""
        return values[: self.size]

    def count_whole(self, values: torch.Tensor, low: int, size: int) -> torch.Tensor | None:
        """Count ``low`` and each of the ``size - 1`` numbers after it, int64 ``[size]``.

        Args:
            values: whole numbers ``[n]``, in the frame's order.

        Returns:
            The counts; None where no loop takes them.
        """
        found = address_of(values.numpy()) if self.by_loops else None
        if found is None:
            return None
        counts = np.zeros(size, np.int64)
        frames().count_whole(*found, self.chosen, self.size, low, counts)
        return torch.from_numpy(counts)

    def summary(self, values: np.ndarray, *, median: bool) -> Summary | None:
        """Summarize numbers in one compiled loop.

        Args:
            values: ``[n]``, in the frame's order, NaN = missing.

        Returns:
            The summary; None where it takes another look: no loop takes them, none is there or one has no end, they
            are all but equal, or the sample does not come near the median.
        """
        found = address_of(values) if self.by_loops and self.count >= 4 * limits.MEDIAN_SAMPLE else None
        if found is None:
            return None
        sample = values[self._sample].astype(np.float64)
        sample = np.sort(sample[~np.isnan(sample)])
        if len(sample) < limits.MEDIAN_SAMPLE // 2 or not np.isfinite(sample[[0, -1]]).all():
            return None
        middle, off = len(sample) // 2, 2 * int(len(sample) ** 0.5)  # four standard deviations of the middle's rank
        near = max(middle - off, 0), min(middle + off, len(sample) - 1)
        first, last = (float(sample[i]) if median else np.nan for i in near)
        room = self.count // 4 + frames().PIECE if median else 0
        between, shift = np.empty(room), float(sample.mean())
        count, gaps, total, squares, *ranks = frames().look(*found, self.chosen, self.size, shift, first, last, between)
        mean, squares = total / count, squares - total * (total / count)
        if not np.isfinite(squares) or mean * mean * count > limits.MEAN_FAR * squares:
            return None
        moments = Moments()
        moments.merge(count, shift + mean, squares)
        moments.low, moments.high = -np.inf, np.inf  # not computed: constant columns do not come here
        if moments.std <= limits.NEARLY_CONSTANT * abs(moments.mean):
            return None
        middle_one = _median(count, first, last, ranks, between) if median else None
        return None if median and middle_one is None else Summary(moments, gaps, middle_one)


def _median(count: int, first: float, last: float, ranks: list[int], between: np.ndarray) -> float | None:
    """Return the median of ``count`` numbers from the loop's counts; None if it is not among them.

    Args:
        first, last: numbers below and above it, if the sample was good.
        ranks: how many are below ``first``, at most ``first``, below ``last``, at most ``last``, and in ``between``.
    """
    below_first, to_first, below_last, to_last, held = ranks
    upper = count // 2
    lower = upper if count % 2 else upper - 1
    if below_first <= lower and upper < to_first:
        return first
    if below_last <= lower and upper < to_last:
        return last
    if lower < to_first or upper >= below_last or held < below_last - to_first:
        return None
    ordered = np.sort(between[:held])
    low, high = float(ordered[lower - to_first]), float(ordered[upper - to_first])
    return high if count % 2 else (low + high) / 2
