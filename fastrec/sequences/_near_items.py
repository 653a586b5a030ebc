"""For every item those near it in sessions: the sums behind co-visitation, without listing all pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, sessions, shared, view
from fastrec.table.offsets import rows_of, runs


@dataclass
class Nearness:
    """What makes two events of a session neighbours.

    Args:
        after, before: float32: weights of the events 1, 2, … after one, and before it; those farther do not count.
        weights: float32 ``[events]``: of an event as a neighbour; None: all 1.
        times: float64 ``[events]`` in seconds; None: not known.
        farthest: seconds between neighbours, at most.
        cap: how many of an item's events are looked at: the last of the log.
    """

    after: Tensor
    before: Tensor
    weights: Tensor | None = None
    times: Tensor | None = None
    farthest: float = float("inf")
    cap: int = 1 << 14


def near_items(values: Tensor, offsets: Tensor, of_item: Tensor, nearness: Nearness, k: int) -> tuple[Tensor, Tensor]:
    """Return the items near each item, the heaviest first.

    Args:
        values, offsets: packed sessions, those of the past first; codes 0 to items - 1.
        of_item: float32 ``[items]``: factor of an item as a neighbour, above 0.
        nearness: which events count, and how much.
        k: how many near items are kept.

    Returns:
        Codes int64 ``[items, k]``, -1 where there are fewer, and the sums of weights times factors float32, 0 there. Of
        equal ones the lower code comes first.
    """
    rows = rows_of(offsets)
    places = torch.argsort(values, stable=True)
    starts = torch.zeros(len(of_item) + 1, dtype=torch.int64)
    starts[1:] = torch.cumsum(torch.bincount(values, minlength=len(of_item)), 0)
    items = torch.full((len(of_item), k), -1, dtype=torch.int64)
    scores = torch.zeros(len(of_item), k)
    weights = torch.ones(len(values)) if nearness.weights is None else nearness.weights
    timed = nearness.times is not None and nearness.farthest < float("inf")
    times = nearness.times.double() if timed else torch.zeros(0, dtype=torch.float64)
    work = len(values) * (len(nearness.after) + len(nearness.before))
    log, postings, tables = (values, offsets, rows), (places, starts), (nearness.after, nearness.before)
    if compiled(work):
        log, postings, tables = (tuple(view(x.contiguous()) for x in some) for some in (log, postings, tables))
        given = (log, view(weights), view(times), nearness.farthest, tables, postings, nearness.cap)
        shared(sessions().co_visits, *given, *map(view, (of_item, items, scores)), numbers=work)
    else:
        _with_tensors(log, weights, times, nearness, postings, of_item, items, scores)
    return items, scores


def two_hops(items: Tensor, scores: Tensor, share: float, keep: int, width: int = 50) -> tuple[Tensor, Tensor]:
    """Near items with the near items of these: ``w(i, j) + share · Σ w(i, m) w(m, j) / Σ w(m, ·)``.

    Args:
        items, scores: what ``near_items`` gives.
        share: how much the second hop counts.
        keep: how many near items are kept.
        width: how many near items a hop goes through.

    Returns:
        As ``near_items``, ``[items, keep]``.
    """
    # hops go by shares, so that a much visited item in the middle does not outweigh all others
    near, total = items[:, :width].contiguous(), scores[:, :width].sum(1, keepdim=True)
    weights = scores[:, :width] / torch.where(total > 0, total, 1)
    codes = torch.full((len(items), keep), -1, dtype=torch.int64)
    found = torch.zeros(len(items), keep)
    work = int((near >= 0).sum()) * near.shape[1]
    if compiled(work):
        shared(sessions().two_hops, view(near), view(weights), share, view(codes), view(found), numbers=work)
    else:
        _two_hops_with_tensors(near, weights, share, codes, found)
    return codes, found * total


def _two_hops_with_tensors(near, weights, share, codes, found):
    step = max(1, limits.BLOCK // near.shape[1] ** 2)
    for a in range(0, len(near), step):
        first, given = near[a : a + step], weights[a : a + step]
        middle = first.clamp_min(0)
        second = torch.cat([first[:, :, None], near[middle]], 2)  # the near items themselves, and theirs
        weight = given[:, :, None] * torch.cat([torch.ones_like(given)[:, :, None], share * weights[middle]], 2)
        item = torch.arange(a, a + len(first))[:, None, None].expand_as(second)
        kept = (first >= 0)[:, :, None] & (second >= 0) & (second != item) & (weight > 0)
        pair, which = torch.unique(item[kept] * len(near) + second[kept], return_inverse=True)
        _keep_best(pair, torch.zeros(len(pair)).index_add_(0, which, weight[kept]), codes, found)


def near_to_all(
    rows: Tensor, events: Tensor, weight: Tensor, count: int, items: Tensor, scores: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """For each session the items that are nearest to its events.

    Args:
        rows, events, weight: session (ascending), item (int64) and weight (float32) of each event.
        count: how many sessions there are.
        items, scores: near items of every item and their weights, as ``near_items`` gives them, in any order.
        k: how many are wanted.

    Returns:
        Codes int64 ``[count, k]``, -1 where there are fewer, and the sums of weights times weights, 0 there.
    """
    found = torch.full((count, k), -1, dtype=torch.int64)
    sums = torch.zeros(count, k)
    offsets = torch.searchsorted(rows, torch.arange(count + 1))
    work = len(rows) * items.shape[1]
    if compiled(work):
        given = (view(x.contiguous()) for x in (events, weight, offsets, items, scores, found, sums))
        shared(sessions().near_to_all, *given, numbers=work)
        return found, sums
    step = max(1, limits.BLOCK // max(1, items.shape[1]))
    starts = torch.searchsorted(rows, rows[::step].contiguous()).unique()  # whole sessions
    for a, b in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)]):
        near, part = items[events[a:b]], scores[events[a:b]] * weight[a:b, None]
        kept = (near >= 0) & (part > 0)
        pair = (rows[a:b, None] * len(items) + near)[kept]
        pair, which = torch.unique(pair, return_inverse=True)
        _keep_best(pair, torch.zeros(len(pair)).index_add_(0, which, part[kept]), found, sums, len(items))
    return found, sums


def _with_tensors(log, weights, times, nearness, postings, of_item, items, scores):
    values, offsets, rows = log
    places, starts = postings
    first = torch.maximum(starts[:-1], starts[1:] - nearness.cap)
    span = len(nearness.after) + len(nearness.before)
    many = torch.cumsum(starts[1:] - first, 0) * span
    table = torch.cat([nearness.before.flip(0), torch.zeros(1), nearness.after])
    away = torch.arange(-len(nearness.before), len(nearness.after) + 1)
    at = 0
    while at < len(first):
        before = int(many[at - 1]) if at else 0
        end = max(at + 1, int(torch.searchsorted(many, before + limits.BLOCK, right=True)))
        p = places[runs(first[at:end], starts[at + 1 : end + 1] - first[at:end])[1]]
        q = p[:, None] + away
        inside = (q >= offsets[rows[p]][:, None]) & (q < offsets[rows[p] + 1][:, None])
        q = q.clamp(0, max(len(values) - 1, 0))
        weight = table * weights[q] * inside * (values[q] != values[p][:, None])
        if len(times):
            weight = weight * ((times[q] - times[p][:, None]).abs() <= nearness.farthest)
        kept = weight > 0
        pair = (values[p][:, None] * len(of_item) + values[q])[kept]
        pair, which = torch.unique(pair, return_inverse=True)
        summed = torch.zeros(len(pair)).index_add_(0, which, weight[kept].float())
        _keep_best(pair, summed * of_item[pair % len(of_item)], items, scores)
        at = end


def _keep_best(pair: Tensor, score: Tensor, items: Tensor, scores: Tensor, codes: int | None = None) -> None:
    """Put the best of each row's items into it; pairs (``row * codes + item``) ascend."""
    codes = len(items) if codes is None else codes
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(pair[order] // codes, stable=True)]
    item = pair[order] // codes
    place = torch.arange(len(item)) - torch.searchsorted(item, item)
    kept = place < items.shape[1]
    order, item, place = order[kept], item[kept], place[kept]
    items[item, place] = pair[order] % codes
    scores[item, place] = score[order]
