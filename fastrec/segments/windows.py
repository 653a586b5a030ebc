"""Kernels over windows of sorted rows.

Each value is computed only from its window's rows, so neither large nor infinite values of other rows affect it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch

from fastrec._core.device import on_host
from fastrec.segments.groups import Groups, run_starts

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
Parts = tuple[torch.Tensor, ...]


def keys_before(keys: torch.Tensor, span: Fraction, *, beyond: bool = False) -> torch.Tensor:
    """Return the smallest key that is at most ``span`` (``beyond``: less than ``span``) below each of ``[n]``.

    The result has the keys' type. Integers are exact, and clipped to the lowest one.
    """
    if keys.is_floating_point():
        bound = keys - float(span)
        return torch.nextafter(bound, torch.full_like(bound, torch.inf)) if beyond else bound
    shift = min(math.ceil(span) - 1 if beyond else math.floor(span), 1 << 64)
    while shift > 0:  # a span may be wider than an int64: it is split into steps that fit
        step = min(shift, _HIGHEST)
        keys, shift = keys.clamp_min(_LOWEST + step) - step, shift - step
    return keys


def first_at_least(keys: torch.Tensor, bounds: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Find the first position from ``low`` on whose key is at least the bound; ``high`` if there is none.

    Keys ascend from each ``low`` (int64 ``[n]``) up to its ``high``. By binary search over the longest range.
    """
    if not len(low):
        return low
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high) >> 1
        after = (keys[middle.clamp_max(len(keys) - 1)] < bounds) & (low < high)
        low, high = torch.where(after, middle + 1, low), torch.where(after, high, middle)
    return low


def tie_start(groups: Groups, keys: torch.Tensor) -> torch.Tensor:
    """Return the first position of each sorted position's group with the same (sorted) key: int64 ``[n]``."""
    new = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    new[1:] = (keys[1:] != keys[:-1]) | (groups.codes[1:] != groups.codes[:-1])
    return run_starts(new)


def count_before(marks: torch.Tensor) -> torch.Tensor:
    """Count the marked positions before each position, and before the end: bool ``[n]`` → int64 ``[n + 1]``."""
    counts = torch.zeros(len(marks) + 1, dtype=torch.int64, device=marks.device)
    torch.cumsum(marks, 0, out=counts[1:])
    return counts


def fold_windows(
    values: Parts, first: torch.Tensor, end: torch.Tensor, join: Callable[..., Parts], *, empty: float = 0.0
) -> Parts:
    """Reduce ``values`` (one or more ``[m]``) of each window by blocks of 1, 2, 4, … rows (binary digits of its
    length).

    This takes n log w steps for windows of up to w rows, and memory for one block size at a time. A window is from
    ``first`` up to ``end``, int64 ``[q]`` each. ``join`` combines two blocks, given their numbers of rows; a window
    without rows is ``empty``. Returns as many ``[q]`` as there are ``values``.
    """
    length, place = end - first, first.clone()
    total = tuple(torch.full(first.shape, empty, dtype=v.dtype, device=v.device) for v in values)
    size, longest, here = 1, int(length.max()) if len(length) else 0, on_host(length)
    while size <= longest:
        hit = (length & size) > 0
        rows = hit.nonzero().squeeze(1) if here else slice(None)  # on a device this would cause a wait
        if not here or len(rows):
            at = place[rows] if here else torch.where(hit, place, 0)
            made = join(tuple(t[rows] for t in total), tuple(v[at] for v in values), length[rows] & (size - 1), size)
            for part, new in zip(total, made, strict=True):
                part[rows] = new if here else torch.where(hit, new, part)
            place[rows] = at + size if here else torch.where(hit, at + size, place)
        if size * 2 <= longest:
            values = join(tuple(v[:-size] for v in values), tuple(v[size:] for v in values), size, size)
        size *= 2
    return total


def window_extreme(values: torch.Tensor, first: torch.Tensor, end: torch.Tensor, *, largest: bool) -> torch.Tensor:
    """Take the extreme row of each window: float64 ``[q]``, ∓inf if there are none. See ``fold_windows``."""
    pick = torch.maximum if largest else torch.minimum
    empty = -torch.inf if largest else torch.inf
    return fold_windows((values,), first, end, lambda a, b, *_: (pick(a[0], b[0]),), empty=empty)[0]


def window_squares(values: torch.Tensor, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Sum squared deviations from each window's mean: float64 ``[q]``, NaN if a row is infinite.

    Blocks are joined with their means (Chan, Golub, LeVeque 1979, eq. 2.1), so that 1e8 ± 1 has a spread of 1.
    """

    def join(a: Parts, b: Parts, rows_a: torch.Tensor | int, rows_b: int) -> Parts:
        rows_a = torch.as_tensor(rows_a, dtype=torch.float64, device=a[0].device)
        share = rows_b / (rows_a + rows_b)
        delta = b[0] - a[0]
        return a[0] + delta * share, a[1] + b[1] + delta * (delta * (rows_a * share))

    return fold_windows((values, torch.zeros_like(values)), first, end, join)[1]


def window_median(values: torch.Tensor, codes: torch.Tensor, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Take the median of the rows of each window (for an even number, the mean of the middle two); NaN if empty.

    ``values`` are float64 ``[m]`` without NaN. No window, from ``first`` up to ``end`` (int64 ``[q]``), extends across
    groups, which ascend. Returns float64 ``[q]``.
    """
    result = torch.full(first.shape, torch.nan, dtype=torch.float64, device=values.device)
    filled = (end > first).nonzero().squeeze(1)
    if not len(filled):
        return result
    by_value = Groups.of(codes, values)
    rank, ascending = by_value.unsort(by_value.place), by_value.sort(values)
    first, end = first[filled], end[filled]
    count = end - first
    twice = (count % 2 == 0).nonzero().squeeze(1)  # an even number has a second middle
    first, end = torch.cat([first, first[twice]]), torch.cat([end, end[twice]])
    nth = torch.cat([(count - 1) // 2, count[twice] // 2])
    found = ascending[by_value.start[first] + _nth_smallest(rank, first, end, nth)]
    low, high = found[: len(filled)], found[len(filled) :]
    middle = low.clone()
    middle[twice] = low[twice] * 0.5 + high * 0.5
    result[filled] = middle
    return result


def _nth_smallest(rank: torch.Tensor, first: torch.Tensor, end: torch.Tensor, nth: torch.Tensor) -> torch.Tensor:
    """Return the ``nth`` smallest (from 0) of the ranks (int64 ``[m]``) in each window: int64 ``[q]``.

    This is a wavelet matrix (Claude, Navarro, Ordóñez 2015, sec. 3), processed level by level for all windows together.
    Rows with highest binary digit 0 go before those with a 1, and each window moves to the part with its answer.
    """
    found, places = torch.zeros_like(nth), torch.arange(len(rank), device=rank.device)
    for level in reversed(range(int(rank.max()).bit_length())):
        one = (rank >> level & 1).bool()
        zeros = count_before(~one)
        low, high = zeros[first], zeros[end]
        right = nth >= high - low
        nth = torch.where(right, nth - (high - low), nth)
        first = torch.where(right, zeros[-1] + first - low, low)
        end = torch.where(right, zeros[-1] + end - high, high)
        found += right.long() << level
        to = torch.where(one, zeros[-1] + places - zeros[:-1], zeros[:-1])
        rank = torch.empty_like(rank).scatter_(0, to, rank)
    return found
