"""``PooledSASRec``: self-attention that weighs a session's items, whose own vectors are added up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.sasrec import SASRec

__all__ = ["PooledSASRec"]


class PooledSASRec(SASRec):
    """SASRec, and beside it a weighted mean of the session's items, which lies where items lie.

    The mean is CORE's (arXiv 2204.11067), whose session is the mean alone, once it has ended. Here every event has
    weights of its own for the events up to it, which depend on how many events ago these were too, so that all
    positions are learned from at once; and a learned share of SASRec's output is added: a mean of the items seen would
    never be nearer to another one. It is for logs in which items come back; where none does, SASRec alone is better.

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        **options: see ``SASRec``.
    """

    def __init__(self, items: ItemTower, codings: Any = (), **options: Any) -> None:
        super().__init__(items, codings, **options)
        self.ask, self.offer = nn.Linear(items.width, items.width), nn.Linear(items.width, items.width)
        nn.init.zeros_(self.ask.weight)
        nn.init.zeros_(self.ask.bias)  # weights begin as the distance's alone
        self.ago = nn.Parameter(-0.5 * torch.arange(self.max_len, dtype=torch.float32))
        self.share = nn.Parameter(torch.zeros(()))

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        x = super().hidden(inputs, lengths)
        place = torch.arange(inputs.shape[1], device=inputs.device)
        apart = place.unsqueeze(1) - place
        near = self.ago[apart.clamp_min(0)].masked_fill(apart < 0, -torch.inf)
        read = (t.unsqueeze(1) for t in (self.ask(x), self.offer(x), inputs))  # one head
        pooled = F.scaled_dot_product_attention(*read, attn_mask=near)
        return pooled.squeeze(1) + self.share * x
