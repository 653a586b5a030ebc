"""``CoVisitation``: what others looked at next to a session's last items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError
from fastrec.sequences._near_items import Nearness, near_items, near_to_all, two_hops
from fastrec.sequences._neighbours import exponential
from fastrec.sequences.base import SessionModel
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import by_age
from fastrec.table.offsets import rows_of


class CoVisitation(SessionModel):
    """Item to item by how near two items stood in sessions, and how near the item stands to the session's end.

    ``w(i, j)`` sums ``exp(-(d - 1) / near)`` over the events of ``j`` that came ``d`` events after ``i``, times
    ``before`` for those before it, over ``n_i^norm n_j^norm`` with ``n`` an item's events. A session's item that is
    ``d`` events from its end weighs ``exp(-d / own)``.

    Args:
        window: how many events apart neighbours may be.
        near: in events; None: all in the window weigh the same.
        before: the weight of items before; 0: only what came after counts (directed).
        own: in events; None: all of the session weigh the same.
        norm: how much the items' own frequencies are taken out: 0 not at all, .5 as the cosine does; two numbers: of
            the session's item, and of the one that may follow.
        recency: an event counts ``exp(-age / recency)``, its session's age in shares of the log's span; None: alike.
        keep: how many near items of each item are kept.
        hops: 2: near items' near items too, ``hop`` times as much: what never stood together may be near.
        hop: see there.
        again: a session's own item counts this much of the weight of what is nearest to it.
        event: the side feature (``SessionFrame(features=…)``) that says what kind an event is, with ``weights``: kind →
            weight of an event as a neighbour and of the session's own; other kinds do not count. None: all weigh 1.
        gap: seconds between neighbours, at most, where events have times.

    Raises:
        DataError: a number makes no sense.

    Source: Linden, Smith, York 2003, "Amazon.com recommendations: item-to-item collaborative filtering".
    """

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
            raise DataError(
                f"window={window}, keep={keep}, hops={hops}, before={before}",
                remedy="Give a window and keep of 1 or more, 1 or 2 hops, and weights of 0 or more",
            )
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
        given = Nearness(after, before, weights, sessions.times, float("inf") if self.gap is None else self.gap)
        items, scores = near_items(sessions.values, sessions.offsets, factor, given, self.keep)
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
        if self.event not in sessions.sides:
            raise MissingColumnError(
                "sessions have no such side feature", column=self.event, remedy="Name it in SessionFrame(features=…)"
            )
        vocab = sessions.codings[self.event].vocab
        if vocab is None:
            raise DataError("it is a number, no kind of event", column=self.event, remedy="Make it text or a category")
        table = torch.tensor([self.weights.get(str(kind), 0.0) for kind in vocab.classes])
        return table[sessions.sides[self.event]]

    def _asked(self, sessions: SessionFrame) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the sessions' events that count: session, item, weight."""
        rows = rows_of(sessions.offsets)
        steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
        table = exponential(self.own)
        weight = table[steps.clamp_max(len(table) - 1)] * self._of_events(sessions)
        kept = (weight >= limits.CO_VISITATION_LEAST) & (sessions.values > 0)
        return rows[kept], sessions.values[kept], weight[kept]

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        if self._matrix is None:
            near = as_matrix(self._items, self._scores)
            self._matrix = near.toarray() if len(self._items) <= limits.CO_VISITATION_DENSE else near
        rows, items, weight = (x.numpy() for x in self._asked(sessions))
        found = csr_matrix((weight, (rows, items)), shape=(len(sessions), len(self._prior))) @ self._matrix
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        return torch.from_numpy(dense).float() + self._prior

    def candidates(self, sessions: SessionFrame, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest items of each session, as ``recommend`` gives them, without a score of every item.

        Args:
            sessions: any.
            k: how many.

        Returns:
            Codes int64 ``[n, k]`` and scores float32; 0 and -inf where fewer are near.
        """
        sessions = sessions.recode(self._known())
        found = near_to_all(*self._asked(sessions), len(sessions), self._items, self._scores, k)
        return found[0].clamp_min(0), found[1].masked_fill(found[0] < 0, -torch.inf)

    def _state(self) -> dict[str, Any]:
        return {"items": self._items, "scores": self._scores, "prior": self._prior}

    def _restore(self, state: dict[str, Any]) -> None:
        self._items, self._scores, self._prior = state["items"], state["scores"], state["prior"]
        self._matrix = None


def as_matrix(items: torch.Tensor, scores: torch.Tensor) -> csr_matrix:
    """Return the near items of every item, ``[items, k]`` with -1 for none, as a float32 matrix ``[items, items]``."""
    there = items >= 0
    starts = np.concatenate([[0], np.cumsum(there.sum(1).numpy())])
    return csr_matrix((scores[there].numpy(), items[there].numpy(), starts), shape=(len(items), len(items)))
