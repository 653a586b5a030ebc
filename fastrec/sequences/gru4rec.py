"""``GRU4Rec``: a recurrent net over a session's events."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastrec.sequences.byte_dropout import ByteDropout
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.session_net import SessionNet

__all__ = ["GRU4Rec"]


class GRU4Rec(SessionNet):
    """Gated recurrent units (arXiv 1511.06939), whose state is turned to the items' space.

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        state: width of the recurrent state; None: the items'.
        layers: how many.
        **options: see ``SessionNet``.
    """

    def __init__(
        self, items: ItemTower, codings: Any = (), *, state: int | None = None, layers: int = 1, **options: Any
    ) -> None:
        super().__init__(items, codings, **options)
        state = state or items.width
        self.gru = nn.GRU(items.width, state, layers, batch_first=True)
        self.out = nn.Sequential(ByteDropout(self.input.dropout.p), nn.Linear(state, items.width))

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        return self.out(self.gru(inputs)[0])
