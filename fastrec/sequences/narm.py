"""``NARM``: a recurrent net that looks back at the events that matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastrec.sequences.byte_dropout import ByteDropout
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.session_net import SessionNet

__all__ = ["NARM"]


class NARM(SessionNet):
    """Neural attentive recommendation machine (arXiv 1711.04725): the last state beside a mean of all states so far.

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        state: width of the recurrent state; None: the items'.
        **options: see ``SessionNet``.
    """

    def __init__(self, items: ItemTower, codings: Any = (), *, state: int | None = None, **options: Any) -> None:
        super().__init__(items, codings, **options)
        state = state or items.width
        self.gru = nn.GRU(items.width, state, batch_first=True)
        self.of_now, self.of_then = nn.Linear(state, state), nn.Linear(state, state, bias=False)
        self.weigh = nn.Linear(state, 1, bias=False)
        self.out = nn.Sequential(ByteDropout(self.input.dropout.p), nn.Linear(2 * state, items.width, bias=False))

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        states = self.gru(inputs)[0]
        length = states.shape[1]
        weight = self.weigh(torch.sigmoid(self.of_now(states).unsqueeze(2) + self.of_then(states).unsqueeze(1)))
        seen = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
        local = weight.squeeze(3).masked_fill(~seen, 0.0) @ states  # no softmax, as in the paper
        return self.out(torch.cat([states, local], 2))
