"""Items near an item, and popular items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, sessions, shared, view
from fastrec.errors import DataError
from fastrec.sequences.base import SessionModel
from fastrec.sequences.neighbours import by_age, exponential
from fastrec.sequences.reading import SessionFrame
from fastrec.table.column import offsets_of, rows_of

# Sums of co-visitation for every item, without listing all pairs.


def near_items(
    log: SessionFrame,
    tables: tuple[Tensor, Tensor],
    weights: Tensor,
    of_item: Tensor,
    k: int,
    *,
    gap: float | None = None,
    cap: int = 1 << 14,
) -> tuple[Tensor, Tensor]:
    """Return each item's ``k`` nearest items, highest sum first, from sessions in the order of time.

    ``tables`` are the weights of the events 1, 2, … after one, and before it, float32; farther ones, and those more
    than ``gap`` seconds away, do not count. ``weights`` are those of events as neighbours, float32 ``[events]``, and
    ``of_item`` a factor above 0 for each item as one, float32 ``[items]``. An item's last ``cap`` events are looked at.
    Returns codes int64 ``[items, k]``, -1 where there are fewer, and sums of weights times factors, 0 there; ties: the
    lower code first.
    """
    postings = torch.argsort(log.values, stable=True), offsets_of(torch.bincount(log.values, minlength=len(of_item)))
    items = torch.full((len(of_item), k), -1, dtype=torch.int64)
    scores = torch.zeros(len(of_item), k)
    times = torch.zeros(0, dtype=torch.float64) if log.times is None or gap is None else log.times.double()
    work = len(log.values) * sum(map(len, tables))
    events, farthest = (log.values, log.offsets, rows_of(log.offsets)), float("inf") if gap is None else gap
    if compiled(work):
        events, postings, tables = (tuple(view(x.contiguous()) for x in some) for some in (events, postings, tables))
        given = (events, view(weights), view(times), farthest, tables, postings, cap)
        shared(sessions().co_visits, *given, *map(view, (of_item, items, scores)), numbers=work)
    else:
        _without_loops(events, weights, times, farthest, tables, postings, cap, of_item, items, scores)
    return items, scores


def two_hops(items: Tensor, scores: Tensor, share: float, keep: int, width: int = 50) -> tuple[Tensor, Tensor]:
    """Add items at two hops: ``w(i, j) + share · Σ w(i, m) w(m, j) / Σ w(m, ·)``, by the ``width`` nearest ``m``.

    Takes and returns the arrays of ``near_items``, ``[items, keep]``.
    """
    # shares, so that a frequent item between two others does not dominate
    near, total = items[:, :width].contiguous(), scores[:, :width].sum(1, keepdim=True)
    weights = scores[:, :width] / torch.where(total > 0, total, 1)
    codes = torch.full((len(items), keep), -1, dtype=torch.int64)
    found = torch.zeros(len(items), keep)
    work = int((near >= 0).sum()) * near.shape[1]
    if compiled(work):
        shared(sessions().two_hops, view(near), view(weights), share, view(codes), view(found), numbers=work)
        return codes, found * total
    rows, sums, near, weights = (x.numpy() for x in (codes, found, near, weights))
    for item, (first, given) in enumerate(zip(near, weights, strict=True)):
        first = first[first >= 0]
        second = np.column_stack([first, near[first]])  # the near items themselves, and theirs
        weight = given[: len(first), None] * np.column_stack([np.ones_like(first), share * weights[first]])
        kept = (second >= 0) & (second != item) & (weight > 0)
        _keep_best(second[kept], weight[kept], rows[item], sums[item])
    return codes, found * total


def near_to_all(
    rows: Tensor, events: Tensor, weight: Tensor, count: int, items: Tensor, scores: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return the ``k`` items nearest to the events of each of ``count`` sessions.

    Each event has its session (ascending), item and weight; ``items`` and ``scores`` are those of ``near_items``, in
    any order. Returns codes int64 ``[count, k]``, -1 where there are fewer, and sums of weights, 0 there.
    """
    found = torch.full((count, k), -1, dtype=torch.int64)
    sums = torch.zeros(count, k)
    offsets = torch.searchsorted(rows, torch.arange(count + 1))
    work = len(rows) * items.shape[1]
    if compiled(work):
        given = (view(x.contiguous()) for x in (events, weight, offsets, items, scores, found, sums))
        shared(sessions().near_to_all, *given, numbers=work)
        return found, sums
    events, weight, items, scores, best, of_best = (x.numpy() for x in (events, weight, items, scores, found, sums))
    for row, part in enumerate(map(slice, offsets[:-1].tolist(), offsets[1:].tolist())):
        near, weights = items[events[part]], scores[events[part]] * weight[part, None]
        kept = (near >= 0) & (weights > 0)
        _keep_best(near[kept], weights[kept], best[row], of_best[row])
    return found, sums


def _without_loops(events, weights, times, farthest, tables, postings, cap, of_item, items, scores):
    """Compute ``near_items`` without the compiled loop: NumPy, one item at a time."""
    (values, offsets, rows), (places, starts) = (tuple(x.numpy() for x in some) for some in (events, postings))
    weights, times, of_item, items, scores = (x.numpy() for x in (weights, times, of_item, items, scores))
    after, before = tables
    table = torch.cat([before.flip(0), torch.zeros(1), after]).numpy()
    away = np.arange(-len(before), len(after) + 1)
    for item, (lo, hi) in enumerate(pairwise(starts)):
        p = places[max(lo, hi - cap) : hi, None]
        inside = (p + away >= offsets[rows[p]]) & (p + away < offsets[rows[p] + 1])
        q = (p + away).clip(0, max(len(values) - 1, 0))
        weight = table * weights[q] * (inside & (values[q] != item))
        if len(times):
            weight = weight * (np.abs(times[q] - times[p]) <= farthest)
        _keep_best(values[q][weight > 0], weight[weight > 0], items[item], scores[item], of_item)


def _keep_best(
    codes: np.ndarray, weights: np.ndarray, items: np.ndarray, scores: np.ndarray, factor: np.ndarray | None = None
) -> None:
    """Write the codes with the largest sums of weights times factors into a row; ties: the lower code first."""
    codes, which = np.unique(codes, return_inverse=True)
    sums = np.zeros(len(codes), dtype=np.float32)
    np.add.at(sums, which, weights.astype(np.float32))  # in order and in float32, to the bit as the compiled loops do
    sums = sums if factor is None else sums * factor[codes]
    best = np.argsort(-sums, kind="stable")[: len(items)]
    items[: len(best)], scores[: len(best)] = codes[best], sums[best]


class CoVisitation(SessionModel):
    """Item-to-item scores from the distances of two items in sessions, weighted by the item's distance from the end.

    ``w(i, j)`` sums ``exp(-(d - 1) / near)`` over the events of ``j`` that come ``d`` events after ``i`` (before it:
    times ``before``), over ``n_i^norm n_j^norm`` with ``n`` an item's events. A session's item ``d`` events from its
    end weighs ``exp(-d / own)``.

    Args:
        window: largest distance of neighbours, in events.
        near: in events; None: equal weights in the window.
        before: weight of items before; 0: directed, only later items count.
        own: in events; None: equal weights in the session.
        norm: exponent of the items' frequencies: 0 none, .5 the cosine's; or two numbers, for the session's item and
            the candidate.
        recency: an event weighs ``exp(-age / recency)``, its session's age in shares of the log's span; None: 1.
        keep: number of near items stored per item.
        hops: 2: also the near items of near items, with weight ``hop``.
        hop: see ``hops``.
        again: weight of a session's own item, as a share of its nearest item's.
        event: side feature of the kinds of events (``SessionFrame(features=…)``), with ``weights``: kind → weight, 0
            for other kinds. None: all weigh 1.
        gap: largest time between neighbours in seconds, if events have times.

    Raises:
        DataError: a number is out of range.

    Source: Linden, Smith, York 2003, "Amazon.com recommendations: item-to-item collaborative filtering".
    """

    learned = ("_items", "_scores", "_prior")

    def __init__(
        self,
        *,
        window: int = 10,
        near: float | None = 3.0,
        before: float = 0.5,
        own: float | None = 2.0,
        norm: float | Sequence[float] = 0.2,
        recency: float | None = None,
        keep: int = 200,
        hops: int = 1,
        hop: float = 1.0,
        again: float = 0.5,
        event: str | None = None,
        weights: Mapping[str, float] | None = None,
        gap: float | None = None,
    ) -> None:
        if (event is None) != (weights is None):
            raise DataError("event and weights belong together", remedy="Give both, or neither")
        if window < 1 or keep < 1 or hops not in (1, 2) or before < 0:
            remedy = "Give a window and keep of 1 or more, 1 or 2 hops, and weights of 0 or more"
            raise DataError(f"window={window}, keep={keep}, hops={hops}, before={before}", remedy=remedy)
        self.window, self.near, self.before, self.own = window, near, before, own
        norm = norm if isinstance(norm, int | float) else list(norm)
        if isinstance(norm, list) and len(norm) != 2:
            raise DataError(f"norm={norm}", remedy="Give one number, or two: of the session's item and of the next")
        self.norm, self.recency, self.keep, self.hops, self.hop = norm, recency, keep, hops, hop
        self.again, self.event, self.weights, self.gap = again, event, weights and dict(weights), gap

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        counts = torch.bincount(sessions.values, minlength=len(sessions.items)).clamp_min(1).double()
        seen, shown = self.norm if isinstance(self.norm, list) else (self.norm, self.norm)
        factor = (counts**-shown).float()
        after = exponential(self.near)
        after = after[: self.window] if len(after) > 1 else torch.ones(self.window)
        before = after * self.before if self.before else torch.zeros(0)
        weights = self._of_events(sessions)
        if self.recency is not None:
            weights = weights * torch.exp(-age / self.recency).float()[rows_of(sessions.offsets)]
        items, scores = near_items(sessions, (after, before), weights, factor, self.keep, gap=self.gap)
        scores *= (counts**-seen).float()[:, None]
        if self.hops == 2:
            items, scores = two_hops(items, scores, self.hop, self.keep)
        if self.again:
            items = torch.cat([items, torch.arange(len(items))[:, None]], 1)
            scores = torch.cat([scores, self.again * scores[:, :1]], 1)
        self._items, self._scores, self._matrix = items, scores, None
        self._prior = (counts / counts.max()).float() * 1e-30

    def _of_events(self, sessions: SessionFrame) -> torch.Tensor:
        """Return weights of events by their kinds, float32."""
        if self.event is None or self.weights is None:
            return torch.ones(len(sessions.values))
        table = torch.tensor([self.weights.get(kind, 0.0) for kind in sessions.kinds(self.event)])
        return table[sessions.sides[self.event]]

    def _asked(self, sessions: SessionFrame) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the sessions' events with a weight: session, item, weight."""
        (rows, steps), table = sessions.steps(), exponential(self.own)
        weight = table[steps.clamp_max(len(table) - 1)] * self._of_events(sessions)
        kept = (weight >= limits.CO_VISITATION_LEAST) & (sessions.values > 0)
        return rows[kept], sessions.values[kept], weight[kept]

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        if self._matrix is None:
            there, size = self._items >= 0, len(self._items)
            near = (self._scores[there].numpy(), self._items[there].numpy(), offsets_of(there.sum(1)).numpy())
            self._matrix = csr_matrix(near, shape=(size, size))
            if size <= limits.CO_VISITATION_DENSE:  # a dense product is faster
                self._matrix = self._matrix.toarray()
        rows, items, weight = (x.numpy() for x in self._asked(sessions))
        found = csr_matrix((weight, (rows, items)), shape=(len(sessions), len(self._prior))) @ self._matrix
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        return torch.from_numpy(dense).float() + self._prior

    def candidates(self, sessions: SessionFrame, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each session's ``k`` nearest items, as ``recommend`` does, without scoring all items."""
        sessions = sessions.recode(self._known())
        found = near_to_all(*self._asked(sessions), len(sessions), self._items, self._scores, k)
        return found[0].clamp_min(0), found[1].masked_fill(found[0] < 0, -torch.inf)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore({**state, "_matrix": None})


class PopularItems(SessionModel):
    """Number of events of an item, the same for every session: the baseline of any other model.

    Args:
        recency: an event weighs ``exp(-age / recency)``, its session's age in shares of the log's span; None: 1.

    Raises:
        DataError: ``recency`` is not above 0.
    """

    learned = ("_sums",)

    def __init__(self, *, recency: float | None = None) -> None:
        if recency is not None and not recency > 0:
            raise DataError(f"recency={recency} is not above 0", remedy="Give a share of the log's span, or None")
        self.recency = recency

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        weight = torch.ones_like(age) if self.recency is None else torch.exp(-age / self.recency)
        weight = weight[rows_of(sessions.offsets)]
        self._sums = torch.bincount(sessions.values, weights=weight, minlength=len(sessions.items)).float()

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        return self._sums.repeat(len(sessions), 1)

    def recommend(
        self, sessions: SessionFrame, k: int, exclude_seen: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best items, see ``SessionModel.recommend``."""
        # computed once: they are the same for every session
        if exclude_seen or not len(sessions):
            return super().recommend(sessions, k, exclude_seen)
        items, found = super().recommend(sessions.take(torch.arange(1)), k)
        return items.repeat(len(sessions), 1), found.repeat(len(sessions), 1)
