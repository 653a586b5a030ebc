"""Numbers with a long tail: counts that are mostly small, amounts of which a few are huge."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec._core import limits
from fastrec.table import Table


def long_tails(table: Table, names: Sequence[str]) -> list[str]:
    """Find the columns of numbers whose furthest value lies far beyond the middle half of the values.

    Args:
        table: the training rows; of many only some, evenly spread, are looked at.
        names: the columns of numbers.

    Returns:
        Those of the names.
    """
    step = max(len(table) // limits.LONG_TAIL_ROWS, 1)
    long = []
    for name in names:
        values = table[name].number(torch.float64)[::step]
        ordered = values[values.isfinite()].sort().values
        if len(ordered.unique_consecutive()) < 5:
            continue  # so few different values are kinds, not amounts
        low, middle, high = (float(ordered[round(q * (len(ordered) - 1))]) for q in (0.25, 0.5, 0.75))
        # Eight distances of the quartiles: far beyond a normal distribution's extremes.
        if max(float(ordered[-1]) - middle, middle - float(ordered[0])) > 8.0 * (high - low):
            long.append(name)
    return long
