"""Integers as dense codes in sorted order, and stable sorting.

On a CPU both sort 64-bit words of value and row number: numpy sorts plain words several times faster than it moves row
numbers.
"""

from __future__ import annotations

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.device import on_host


def code_integers(values: torch.Tensor, missing: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Code int64 ``[n]`` densely, in the order of their values; rows of ``missing`` (bool ``[n]``) have the code 0.

    Returns codes int64 ``[n]`` (``i`` = the ``i``-th smallest value) and the distinct values int64 ``[K]``, ascending.
    """
    if missing is not None and not bool(missing.any()):
        missing = None
    if not len(values) or (missing is not None and bool(missing.all())):
        return torch.zeros_like(values), values[:0]
    if missing is not None:
        values = torch.where(missing, values[int(missing.to(torch.uint8).argmin())], values)
    low, high = extremes(values)
    if high - low < max(limits.MARKED_VALUES, 4 * len(values)):
        place = (values - low).add_(1)
        if missing is not None:
            place.masked_fill_(missing, 0)
        # A count marks what occurs twice as fast as writing marks does.
        used = torch.bincount(place, minlength=high - low + 2) > 0
        used[0] = False
        table = torch.cumsum(used, 0)
        table.mul_(used)
        return table.index_select(0, place), used.nonzero().squeeze(1) - 1 + low
    # The values are too far apart for a table.
    order, ordered = sort_rows(values, low, high)
    first = torch.ones(len(values), dtype=torch.bool, device=values.device)
    first[1:] = ordered[1:] != ordered[:-1]
    distinct = ordered[first]
    del ordered  # several columns of this size are held here: one less is a lower peak
    codes = torch.empty_like(values).scatter_(0, order, torch.cumsum(first, 0))
    if missing is None:
        return codes, distinct
    # Codes of missing rows that no other row has are dropped.
    used = torch.bincount(codes[~missing] - 1, minlength=len(distinct)) > 0
    return torch.where(missing, 0, torch.cumsum(used, 0).index_select(0, codes.sub_(1))), distinct[used]


def extremes(*values: torch.Tensor) -> list[int]:
    """Return the least and the greatest of each tensor of integers (``[n]``), one after the other: one wait."""
    if on_host(values[0]):
        return [v.item() for x in values for v in torch.aminmax(x)]
    return torch.stack([v for x in values for v in torch.aminmax(x)]).tolist()


def sort_rows(
    values: torch.Tensor, low: int | None = None, high: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort int64 ``[n]`` stably, between ``low`` and ``high`` if known; return the permutation and sorted values."""
    if not len(values):
        return values, values
    bits = max(len(values) - 1, 1).bit_length()
    if on_host(values) and (low is None or high is None):
        low, high = extremes(values)
    # The sign bit of a word is not used.
    if not on_host(values) or (high - low).bit_length() + bits > 63:
        ordered, order = torch.sort(values, stable=True)
        return order, ordered
    words = (values - low).numpy()
    words = np.left_shift(words, bits, out=words)
    words |= np.arange(len(words))
    words.sort()
    order = torch.from_numpy(words & ((1 << bits) - 1))
    ordered = torch.from_numpy(np.right_shift(words, bits, out=words))
    return order, ordered.add_(low)
