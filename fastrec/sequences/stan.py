"""``STAN``: session kNN that looks at places and at age."""

from __future__ import annotations

import torch

from fastrec.sequences._neighbours import Decays, exponential
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import SessionKNN


class STAN(SessionKNN):
    """Sequence and time aware neighbourhood: three exponential decays on the cosine of sessions.

    Args:
        k: how many neighbours count.
        sample: how many of the sessions that share an item are looked at: the latest.
        own: an item that is ``d`` events from the end of the session weighs ``exp(-d / own)`` (λ1).
        recency: a neighbour weighs ``exp(-age / recency)``, its age before the end of the log in shares of the log's
            span (λ2).
        near: a neighbour's item that is ``d`` events away from the shared one that is latest in the session gets
            ``exp(-d / near)`` (λ3). None, of each of the three: it does not matter.

    Source: Garg, Gupta, Malhotra, Vig, Shroff 2019, "Sequence and time aware neighborhood for session-based
    recommendations: STAN".
    """

    def __init__(
        self,
        *,
        k: int = 500,
        sample: int = 5000,
        own: float | None = 3.0,
        recency: float | None = 0.7,
        near: float | None = 3.0,
    ) -> None:
        super().__init__(k=k, sample=sample)
        self.own, self.recency, self.near = own, recency, near

    def _weights(self, sessions: SessionFrame, age: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        of_session = sessions.lengths.clamp_min(1).double().rsqrt()
        if self.recency is not None:
            of_session = of_session * torch.exp(-age / self.recency)
        near = exponential(self.near)
        decays = Decays(exponential(self.own), exponential(None), near, near)
        return of_session, torch.ones(len(sessions.items)), decays
