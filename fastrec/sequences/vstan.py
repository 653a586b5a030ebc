"""``VSTAN``: session kNN with the decays of V-SKNN and of STAN."""

from __future__ import annotations

import torch

from fastrec.sequences._neighbours import Decays, exponential
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import SessionKNN, inverse_frequency


class VSTAN(SessionKNN):
    """STAN with two weights of V-SKNN's: by where the latest shared item stands, and by how rare an item is.

    The defaults' mild decays were chosen on the last sessions of Diginetica's training part.

    Args:
        k: how many neighbours count.
        sample: how many of the sessions that share an item are looked at: the latest.
        own: an item that is ``d`` events from the end of the session weighs ``exp(-d / own)``.
        back: a neighbour whose latest shared item is ``d`` events from that end weighs ``exp(-d / back)``.
        near: a neighbour's item that is ``d`` events away from the shared one gets ``exp(-d / near)``.
        before: what those before the shared one get, as a share of that.
        recency: a neighbour weighs ``exp(-age / recency)``, its age before the end of the log in shares of the log's
            span. None, of ``own``, ``back``, ``near`` and this: it does not matter.
        idf: an item scores ``1 + idf · log(sessions / sessions with it)`` times what its neighbours give.

    Source: Ludewig, Mauro, Latifi, Jannach 2021, "Empirical analysis of session-based recommendation algorithms".
    """

    def __init__(
        self,
        *,
        k: int = 300,
        sample: int = 10_000,
        own: float | None = 6.0,
        back: float | None = 1.5,
        near: float | None = 4.0,
        before: float = 0.5,
        recency: float | None = 1.0,
        idf: float = 1.0,
    ) -> None:
        super().__init__(k=k, sample=sample)
        self.own, self.back, self.near, self.before = own, back, near, before
        self.recency, self.idf = recency, idf

    def _weights(self, sessions: SessionFrame, age: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        of_session = sessions.lengths.clamp_min(1).double().rsqrt()
        if self.recency is not None:
            of_session = of_session * torch.exp(-age / self.recency)
        near = exponential(self.near)
        decays = Decays(exponential(self.own), exponential(self.back), near, near * self.before)
        return of_session, 1 + self.idf * inverse_frequency(sessions), decays
