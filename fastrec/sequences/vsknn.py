"""``VSKNN``: session kNN in which the last events count most."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.sequences._neighbours import Decays, exponential
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import SessionKNN, inverse_frequency

Decay = Literal["same", "harmonic", "linear", "log", "quadratic"]
_STEPS = torch.arange(1, (1 << 10) + 1, dtype=torch.float64)
_DECAYS = {
    "same": torch.ones(1, dtype=torch.float64),
    "harmonic": 1 / _STEPS,
    "linear": torch.arange(10, -1, -1, dtype=torch.float64) / 10,  # nothing from the eleventh event on
    "log": 1 / torch.log10(_STEPS + 1.7),
    "quadratic": 1 / _STEPS**2,
}


class VSKNN(SessionKNN):
    """Vector multiplication session kNN: two sessions are as alike as the decayed weights of the items they share.

    Args:
        k: how many neighbours count.
        sample: how many of the sessions that share an item are looked at: the latest.
        weighting: how an item's weight falls with its distance from the end of the session.
        score_weighting: how a neighbour's weight falls with the distance of the latest shared item from that end.
        idf: an item scores ``1 + idf · log(sessions / sessions with it)`` times what its neighbours give.

    Source: Ludewig, Jannach 2018, "Evaluation of session-based recommendation algorithms", §3.4.
    """

    def __init__(
        self,
        *,
        k: int = 100,
        sample: int = 1000,
        weighting: Decay = "harmonic",
        score_weighting: Decay = "harmonic",
        idf: float = 0.0,
    ) -> None:
        super().__init__(k=k, sample=sample)
        for given in (weighting, score_weighting):
            if given not in _DECAYS:
                raise DataError(f"there is no decay {given!r}", remedy=f"Use one of {', '.join(_DECAYS)}")
        self.weighting, self.score_weighting, self.idf = weighting, score_weighting, idf

    def _weights(self, sessions: SessionFrame, age: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        own, back = (_DECAYS[d].float() for d in (self.weighting, self.score_weighting))
        everywhere = exponential(None)
        of_item = 1 + self.idf * inverse_frequency(sessions)
        return torch.ones(len(sessions)), of_item, Decays(own, back, everywhere, everywhere)
