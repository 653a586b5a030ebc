"""``SASRec`` and ``ESASRec``: self-attention over a session's events, each seeing those before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastrec.sequences.attention import LiGRBlock, TransformerBlock
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.session_net import SessionNet

__all__ = ["ESASRec", "SASRec"]


class SASRec(SessionNet):
    """Self-attentive sequential recommendation (arXiv 1808.09781).

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        blocks, heads: of attention.
        attention_dropout: share of attention that is dropped; None: ``dropout``. 0 is faster for long sessions.
        **options: see ``SessionNet``.
    """

    block: type[nn.Module] = TransformerBlock

    def __init__(
        self,
        items: ItemTower,
        codings: Any = (),
        *,
        blocks: int = 1,
        heads: int = 1,
        attention_dropout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(items, codings, **options)
        shares = {"dropout": self.input.dropout.p, "attention_dropout": attention_dropout}
        self.places = nn.Parameter(torch.zeros(self.max_len, items.width))
        self.blocks = nn.ModuleList(self.block(items.width, heads, **shares) for _ in range(blocks))
        self.norm = nn.LayerNorm(items.width)

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        x = inputs + self.places[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class ESASRec(SASRec):
    """SASRec with LiGR blocks (eSASRec, arXiv 2508.06450)."""

    block = LiGRBlock
