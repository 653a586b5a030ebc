"""Statistics of whole number columns by cell, merged exactly: value counts (for quantiles, mode) and moments."""

from __future__ import annotations

import torch

from fastrec.features._engine.keyed import merge_kept, merge_moments, sum_by_cell
from fastrec.features.base import Cells, State

_EMPTY = {"count": 0.0, "mean": 0.0, "m2": 0.0, "low": torch.inf, "high": -torch.inf}


# Value counts --------------------------------------------------------------------------------------------------------


def count_values(numbers: torch.Tensor, cells: Cells | None = None) -> State:
    """Count distinct values.

    Args:
        numbers: float64 ``[n]``; NaN does not count.
        cells: each number's cell; None: all are in one.

    Returns:
        ``value`` float64 ``[K]``, ascending, and ``count`` int64 ``[cells, K]``.
    """
    known = ~numbers.isnan()
    rows = None if bool(known.all()) else known
    numbers = numbers if rows is None else numbers[rows]
    if cells is None or cells.count == 1:
        value, count = torch.unique_consecutive(torch.sort(numbers).values, return_counts=True)
        return {"value": value, "count": count[None]}
    ordered, order = torch.sort(numbers, stable=True)
    value, codes = torch.unique_consecutive(ordered, return_inverse=True)
    cell = (cells.codes if rows is None else cells.codes[rows])[order]
    return {"value": value, "count": sum_by_cell(torch.ones_like(codes), codes, Cells(cell, cells.count), len(value))}


def merge_values(a: State, b: State) -> State:
    both = torch.cat([a["value"], b["value"].to(a["value"].device)])
    value, codes = torch.unique(both, return_inverse=True)
    count = a["count"].new_zeros(max(len(a["count"]), len(b["count"])), len(value))
    left, right = codes[: len(a["value"])], codes[len(a["value"]) :]
    count[: len(a["count"]), left] += a["count"]
    count[: len(b["count"]), right] += b["count"].to(count.device)
    return {"value": value, "count": count}


def total_counts(counts: State, keep: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the counts over the cells where ``keep`` is True (None: all): distinct values ``[K]``, counts ``[K]``."""
    by_cell = counts["count"]
    total = (by_cell if keep is None else by_cell[keep.to(by_cell.device)]).sum(0)
    return counts["value"], total


def quantiles(value: torch.Tensor, count: torch.Tensor, shares: list[float]) -> torch.Tensor:
    """Compute exact quantiles of values with counts, linear between neighbours as ``numpy.quantile``.

    Args:
        value: float64 ``[K]``, ascending.
        count: int64 ``[K]``, how often each occurs.
        shares: numbers from 0 to 1.

    Returns:
        float64 ``[len(shares)]``; NaN where nothing was counted. Beside an infinity the lower neighbour is taken.
    """
    ends = torch.cumsum(count, 0)
    size = int(ends[-1]) if len(ends) else 0
    share = torch.tensor(shares, dtype=torch.float64, device=value.device)
    if not size:
        return torch.full_like(share, torch.nan)
    place = share * (size - 1)
    below = torch.floor(place).long()
    a, b = (value[torch.searchsorted(ends, p, right=True)] for p in (below, (below + 1).clamp_max(size - 1)))
    part = place - below
    between = torch.where(part < 0.5, a + (b - a) * part, b - (b - a) * (1 - part))
    return torch.where((a == b) | ~between.isfinite(), a, between)


def mode(value: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the value with the highest count, float64 ``[]``: the smallest of equals, NaN if nothing was counted."""
    if not len(count) or not int(count.max()):
        return value.new_tensor(torch.nan)
    return value[(count == count.max()).nonzero()[0, 0]]  # argmax promises no order among equals


# Moments -------------------------------------------------------------------------------------------------------------


def column_moments(numbers: torch.Tensor, cells: Cells | None = None) -> State:
    """Compute count, mean, sum of squared deviations and range in two passes: 1e8 ± 1 keeps its digits.

    Args:
        numbers: float64 ``[n]``; NaN and infinities do not count.
        cells: each number's cell; None: all are in one.

    Returns:
        ``count``, ``mean``, ``m2``, ``low``, ``high``: float64 ``[cells]`` each.
    """
    finite = numbers.isfinite()
    every = bool(finite.all())
    present = numbers if every else numbers[finite]
    if cells is None or cells.count == 1:
        made = _moments_of(present)
        return {n: v[None] for n, v in made.items()}
    # Cells are few: taking each one's rows by itself keeps torch's pairwise sums.
    codes = cells.codes if every else cells.codes[finite]
    parts = [_moments_of(present[codes == cell]) for cell in range(cells.count)]
    return {n: torch.stack([p[n] for p in parts]) for n in _EMPTY}


def _moments_of(present: torch.Tensor) -> State:
    if not len(present):
        return {n: present.new_tensor(v, dtype=torch.float64) for n, v in _EMPTY.items()}
    size = float(len(present))
    mean = (present / size).sum()  # divided first: the sum of large numbers would overflow; torch adds in pairs
    rest = present - mean
    return {
        "count": present.new_tensor(size),
        "mean": mean,
        "m2": torch.dot(rest, rest),
        "low": present.min(),
        "high": present.max(),
    }


def merge_column_moments(a: State, b: State) -> State:
    cells = max(len(a["count"]), len(b["count"]))
    return _together(*({n: _wide(s[n].to(a["count"].device), cells, _EMPTY[n]) for n in _EMPTY} for s in (a, b)))


def _together(a: State, b: State) -> State:
    count, mean, m2 = merge_moments(*((s["count"], s["mean"], s["m2"]) for s in (a, b)))
    low, high = torch.minimum(a["low"], b["low"]), torch.maximum(a["high"], b["high"])
    return {"count": count, "mean": mean, "m2": m2, "low": low, "high": high}


def total_moments(moments: State, keep: torch.Tensor | None = None) -> State:
    """Merge moments over the cells where ``keep`` is True (None: all): float64 ``[]`` each."""
    return merge_kept(moments, keep, _EMPTY, _together)


def _wide(values: torch.Tensor, size: int, fill: float) -> torch.Tensor:
    return torch.cat([values, values.new_full((size - len(values),), fill)]) if len(values) < size else values
