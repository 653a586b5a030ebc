"""``CoVisitation``: what others looked at next to a session's last items."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec.errors import DataError
from fastrec.sequences._near_items import Nearness, near_items, two_hops
from fastrec.sequences._neighbours import exponential
from fastrec.sequences.base import SessionModel
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import by_age
from fastrec.table.offsets import rows_of

_LEAST = 1e-4  # of an event's weight: older ones are left out
_DENSE = 1 << 13  # items: of fewer the whole matrix is held


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
        norm: how much the items' own frequencies are taken out: 0 not at all, .5 as the cosine does.
        recency: an event counts ``exp(-age / recency)``, its session's age in shares of the log's span; None: alike.
        keep: how many near items of each item are kept.
        hops: 2: near items' near items too, ``hop`` times as much: what never stood together may be near.
        hop: see there.

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
        norm: float = 0.2,
        recency: float | None = None,
        keep: int = 200,
        hops: int = 1,
        hop: float = 0.2,
    ) -> None:
        if window < 1 or keep < 1 or hops not in (1, 2) or before < 0:
            raise DataError(
                f"window={window}, keep={keep}, hops={hops}, before={before}",
                remedy="Give a window and keep of 1 or more, 1 or 2 hops, and weights of 0 or more",
            )
        self.window, self.near, self.before, self.own = window, near, before, own
        self.norm, self.recency, self.keep, self.hops, self.hop = norm, recency, keep, hops, hop

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("window", "near", "before", "own", "norm", "recency", "keep", "hops", "hop")
        return {n: getattr(self, n) for n in names}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        counts = torch.bincount(sessions.values, minlength=len(sessions.items)).clamp_min(1).double()
        factor = (counts**-self.norm).float()
        after = exponential(self.near)
        after = after[: self.window] if len(after) > 1 else torch.ones(self.window)
        before = after * self.before if self.before else torch.zeros(0)
        weights = None
        if self.recency is not None:
            weights = torch.exp(-age / self.recency).float()[rows_of(sessions.offsets)]
        items, scores = near_items(
            sessions.values, sessions.offsets, factor, Nearness(after, before, weights), self.keep
        )
        scores *= factor[:, None]
        if self.hops == 2:
            items, scores = two_hops(items, scores, self.hop, self.keep)
        self._hold(as_matrix(items, scores), (counts / counts.max()).float() * 1e-30)

    def _hold(self, near: csr_matrix, prior: torch.Tensor) -> None:
        self._near, self._prior = near, prior
        self._right = near.toarray() if near.shape[0] <= _DENSE else near

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        rows = rows_of(sessions.offsets)
        steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
        table = exponential(self.own)
        weight = table[steps.clamp_max(len(table) - 1)]
        kept = (weight >= _LEAST) & (sessions.values > 0)
        given = (weight[kept].numpy(), (rows[kept].numpy(), sessions.values[kept].numpy()))
        found = csr_matrix(given, shape=(len(sessions), len(self._prior))) @ self._right
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        return torch.from_numpy(dense).float() + self._prior

    def _state(self) -> dict[str, Any]:
        parts = {n: torch.from_numpy(getattr(self._near, n).copy()) for n in ("data", "indices", "indptr")}
        return {**parts, "prior": self._prior}

    def _restore(self, state: dict[str, Any]) -> None:
        size = len(state["prior"])
        parts = tuple(state[n].numpy() for n in ("data", "indices", "indptr"))
        self._hold(csr_matrix(parts, shape=(size, size)), state["prior"])


def as_matrix(items: torch.Tensor, scores: torch.Tensor) -> csr_matrix:
    """The near items of every item, ``[items, k]`` with -1 for none, as a float32 matrix ``[items, items]``."""
    there = items >= 0
    starts = np.concatenate([[0], np.cumsum(there.sum(1).numpy())])
    return csr_matrix((scores[there].numpy(), items[there].numpy(), starts), shape=(len(items), len(items)))
