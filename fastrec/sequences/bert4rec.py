"""``BERT4Rec``: attention to both sides, learned from events that are hidden."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fastrec.sequences.attention import TransformerBlock, padding_mask
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.session_net import SessionNet
from fastrec.sequences.targets import Task

__all__ = ["BERT4Rec", "HiddenEventNet"]


class HiddenEventNet(SessionNet):
    """A net that tells hidden events; what comes next is an event hidden behind the last one."""

    task: ClassVar[Task] = "masked"

    @property
    def reads(self) -> int:
        """How many events it can read when it is asked for the next one."""
        return self.max_len - 1

    def last(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return what is compared with items to find the next one: ``[b, width]``."""
        items = torch.cat([items, items.new_zeros(items.shape[0], 1)], 1)
        items = items.scatter(1, lengths.unsqueeze(1), self.items.codes)
        longer = [torch.cat([s, s.new_zeros(s.shape[0], 1)], 1) for s in sides]
        return super().last(items, lengths + 1, *longer)


class BERT4Rec(HiddenEventNet):
    """Bidirectional transformer (arXiv 1904.06690).

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        blocks, heads: of attention.
        **options: see ``SessionNet``.
    """

    def __init__(self, items: ItemTower, codings: Any = (), *, blocks: int = 2, heads: int = 2, **options: Any) -> None:
        super().__init__(items, codings, **options)
        dropout = self.input.dropout.p
        self.places = nn.Parameter(torch.zeros(self.max_len, items.width))
        self.blocks = nn.ModuleList(TransformerBlock(items.width, heads, dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(items.width)

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        mask = padding_mask(lengths, inputs.shape[1])
        x = inputs + self.places[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)
