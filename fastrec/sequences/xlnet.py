"""``XLNet``: attention to both sides by how far apart events are, learned from hidden events or from permutations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fastrec.sequences.attention import TransformerBlock, padding_mask
from fastrec.sequences.bert4rec import HiddenEventNet
from fastrec.sequences.item_tower import ItemTower

__all__ = ["XLNet"]


class XLNet(HiddenEventNet):
    """A bidirectional transformer that knows distances, not places (after arXiv 1906.08237 and Transformers4Rec).

    With the loader's ``task='masked'`` hidden events are told from all others (XLNet-MLM, which Transformers4Rec found
    best for sessions); with ``'permuted'`` a hidden event also sees those hidden ones that come before it in an order
    drawn at random. There, one stream holds what events are, another what is asked; the second sees, of the first,
    only what comes earlier. Distances enter as a learned number for each, added to the attention's logits.

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        blocks, heads: of attention.
        **options: see ``SessionNet``.
    """

    permutes: ClassVar[bool] = True

    def __init__(self, items: ItemTower, codings: Any = (), *, blocks: int = 2, heads: int = 2, **options: Any) -> None:
        super().__init__(items, codings, **options)
        dropout = self.input.dropout.p
        self.start = nn.Parameter(torch.randn(items.width) * 0.02)
        self.apart = nn.Parameter(torch.zeros(blocks, heads, 2 * self.max_len + 1))
        self.blocks = nn.ModuleList(TransformerBlock(items.width, heads, dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(items.width)

    def forward(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]``, of use where events are hidden.

        Args:
            items: codes int64 ``[b, L]``.
            lengths: int64 ``[b]``.
            *sides: of the events; one more than those says when each hidden event is told, int64 ``[b, L]``: 0 for
                those that are not hidden. Without it, events with the mask's code are hidden, and none sees another.
        """
        mask = self.items.codes
        known = sides[: len(self.codings)]
        order = sides[-1] if len(sides) > len(known) else (items == mask).long()
        # an event that all see: one that sees nothing has no attention
        first = self.start.expand(items.shape[0], 1, -1)
        content = torch.cat([first, self.input(items, *known)], 1)
        asked = self.input(torch.full_like(items, mask), *known)
        then = torch.cat([order.new_full((order.shape[0], 1), -1), order], 1)
        inside = padding_mask(lengths + 1, then.shape[1])
        keys = then[:, None, None, :]
        by_content, by_asked = inside & (keys <= then[:, None, :, None]), inside & (keys < order[:, None, :, None])
        for block, apart in zip(self.blocks, self.apart, strict=True):
            logits = self._apart(apart, then.shape[1])
            told = block(asked, logits[:, 1:].masked_fill(~by_asked, -torch.inf), content)
            content = block(content, logits.masked_fill(~by_content, -torch.inf))
            asked = told
        return self.norm(asked)

    def _apart(self, apart: Tensor, length: int) -> Tensor:
        """Return a number for each two events by their distance: ``[heads, L, L]``."""
        place = torch.arange(length, device=apart.device)
        return apart[:, place.unsqueeze(0) - place.unsqueeze(1) + self.max_len]
