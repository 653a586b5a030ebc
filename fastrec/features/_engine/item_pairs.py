"""Weights of unordered pairs of items that are near each other."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fastrec._core import limits
from fastrec.segments import Groups


class Pairs(NamedTuple):
    """Weights of pairs of items in several cells.

    Args:
        low: int64 ``[U]``, the smaller item of each pair, from 0; pairs are sorted.
        high: int64 ``[U]``, the larger item.
        weight: float64 ``[cells, U]``.
    """

    low: torch.Tensor
    high: torch.Tensor
    weight: torch.Tensor


def near_pairs(
    groups: Groups,
    item: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    time: torch.Tensor | None,
    *,
    window: int,
    half_life: float,
    size: tuple[int, int],
) -> Pairs:
    """Sum every two places of a group up to ``window`` apart by pair of items.

    Args:
        groups: the sorted places.
        item: int64 ``[n]`` from 0, in sorted order, as are all that follow.
        cell: int64 ``[n]``; two places in different cells make no pair.
        weight: float64 ``[n]``; a pair weighs the product of both.
        time: float64 ``[n]``: a pair's weight halves with every ``half_life`` between its places; None: it stays.
        window: how many places apart.
        half_life: see ``time``.
        size: number of items and of cells.
    """
    items, cells = size
    joined = item.new_zeros(0)
    total = weight.new_zeros(0)
    for begin in range(0, len(item), limits.PAIRED_PLACES):
        end = min(begin + limits.PAIRED_PLACES, len(item))
        found, weights = [joined], [total]
        for step in range(1, window + 1):
            a = torch.arange(begin, max(min(end, len(item) - step), begin), device=item.device)
            a = a[groups.codes[a] == groups.codes[a + step]]
            a = a[(item[a] != item[a + step]) & (cell[a] == cell[a + step])]
            b = a + step
            low, high = torch.minimum(item[a], item[b]), torch.maximum(item[a], item[b])
            weighs = weight[a] * weight[b]
            if time is not None:
                weighs = weighs * torch.exp2(-(time[b] - time[a]).abs() / half_life)
            found.append((low * items + high) * cells + cell[a])
            weights.append(weighs)
        keys, order = torch.sort(torch.cat(found), stable=True)
        joined, place = torch.unique_consecutive(keys, return_inverse=True)
        total = weight.new_zeros(len(joined)).index_add_(0, place, torch.cat(weights)[order])
    pair, place = torch.unique_consecutive(joined // cells, return_inverse=True)
    made = weight.new_zeros(cells, len(pair))
    made[joined % cells, place] = total
    return Pairs(pair // max(items, 1), pair % max(items, 1), made)


def merge_pairs(a: Pairs, b: Pairs, left: torch.Tensor, right: torch.Tensor, size: int) -> Pairs:
    """Merge two parts' pairs.

    Args:
        a, b: the pairs.
        left, right: int64, where the items of each stand among those of both, in the same order.
        size: number of items together.
    """
    keys = []
    for part, places in ((a, left), (b, right)):
        places = places.to(part.low.device)
        keys.append(places[part.low] * size + places[part.high])
    pair, place = torch.unique(torch.cat(keys), return_inverse=True)
    weight = a.weight.new_zeros(max(len(a.weight), len(b.weight)), len(pair))
    weight[: len(a.weight), place[: len(a.low)]] += a.weight
    weight[: len(b.weight), place[len(a.low) :]] += b.weight
    return Pairs(pair // max(size, 1), pair % max(size, 1), weight)


def find_pairs(keys: torch.Tensor, a: torch.Tensor, b: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the places of pairs of items among sorted keys.

    Args:
        keys: int64 ``[U]``, ``low * size + high``.
        a, b: int64 ``[m]``, items from 0; anything below 0 is in no pair.
        size: number of items.

    Returns:
        int64 ``[m]`` places, and bool ``[m]``: whether the pair is there.
    """
    wanted = torch.minimum(a, b) * size + torch.maximum(a, b)
    place = torch.searchsorted(keys, wanted).clamp_max(max(len(keys) - 1, 0))
    if not len(keys):
        return torch.zeros_like(place), torch.zeros_like(place, dtype=torch.bool)
    return place, (keys[place] == wanted) & (a >= 0) & (b >= 0)
