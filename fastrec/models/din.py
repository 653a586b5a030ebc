"""``DIN``: a candidate weighs the session's events one by one, and adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastrec.models.event_net import EventNet


class DIN(EventNet):
    """Deep interest network: every event is weighed by a small net that sees it beside the candidate.

    The weights are no shares: many events like the candidate weigh more in all than one does.

    Args:
        emb_szs, n_cont, out_sz, layers: see ``EventNet``.
        hidden: width of the net that weighs.
        **options: see ``EventNet``.

    Source: Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction", section 4.3.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (128, 64),
        *,
        hidden: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(emb_szs, n_cont, out_sz, layers, **options)
        # A layer of (event, candidate, event * candidate, same) in parts: that of an event is had once a list.
        self.of_event = nn.Linear(self.width, hidden)
        self.of_candidate = nn.Linear(self.width, hidden, bias=False)
        self.of_both = nn.Linear(self.width + 1, hidden, bias=False)
        self.weigh = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 1))
        self.about = nn.Parameter(torch.zeros(self.width))

    def read(self, candidate: Tensor, event: Tensor, same: Tensor, there: Tensor, lists: Tensor) -> Tensor:
        """Return the weighted sum of the events, see ``EventNet.read``."""
        mine = event[lists]
        both = torch.cat([mine * candidate[:, None], same], 2)
        hidden = self.of_event(event)[lists] + self.of_candidate(candidate)[:, None] + self.of_both(both)
        weight = self.weigh(hidden) * there[lists][..., None]
        return (weight * (mine + same * self.about)).sum(1)
