"""``SessionNet``: what every net of this room is: vectors of sessions, compared with vectors of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec.sequences._sides import Coding
from fastrec.sequences.item_tower import EventInput, ItemTower
from fastrec.sequences.targets import Task

__all__ = ["SessionNet"]


class SessionNet(nn.Module):
    """A net whose outputs are compared with the vectors that it reads items by (tied weights).

    One of your own has ``hidden``: ``[b, L, width]`` of inputs ``[b, L, width]``; what stands behind a session's end
    must change nothing.

    Args:
        items: the items' vectors.
        codings: of the events' side features.
        max_len: events that it can read.
        dropout: share of numbers that are dropped.
        cosine: outputs and items are compared by the cosine of their angle, times this; None: by their product.
    """

    task: ClassVar[Task] = "causal"  # what it learns from
    permutes: ClassVar[bool] = False  # whether it learns from permutations, too
    virtual: ClassVar[int] = 1  # codes behind the items' that it reads

    def __init__(
        self,
        items: ItemTower,
        codings: Sequence[Coding] = (),
        *,
        max_len: int = 50,
        dropout: float = 0.25,
        cosine: float | None = 14.0,
    ) -> None:
        super().__init__()
        self.input = EventInput(items, codings, dropout=dropout)
        self.max_len, self.cosine, self.codings = max_len, cosine, list(codings)

    @property
    def reads(self) -> int:
        """How many events it can read when it is asked for the next one."""
        return self.max_len

    @property
    def items(self) -> ItemTower:
        """The items' vectors."""
        return self.input.items

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        raise NotImplementedError

    def forward(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return outputs at every position.

        Args:
            items: codes int64 ``[b, L]``, 0 behind the end.
            lengths: int64 ``[b]``.
            *sides: of the events, ``[b, L]`` each.

        Returns:
            ``[b, L, width]``.
        """
        return self.hidden(self.input(items, *sides), lengths)

    def last(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return what is compared with items to find the next one: ``[b, width]``; of an empty session zeros."""
        found = self(items, lengths, *sides)
        place = (lengths - 1).clamp_min(0)
        return found[torch.arange(found.shape[0], device=found.device), place] * (lengths > 0).unsqueeze(1)

    def query(self, hidden: Tensor) -> Tensor:
        """Return outputs as they are compared with ``keys``."""
        return hidden if self.cosine is None else F.normalize(hidden, dim=-1)

    def keys(self, vectors: Tensor) -> Tensor:
        """Items' vectors as they are compared with ``query``."""
        return vectors if self.cosine is None else self.cosine * F.normalize(vectors, dim=-1)

    def scores(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return scores of all codes for the next item, ``[b, codes]``."""
        return self.query(self.last(items, lengths, *sides)) @ self.keys(self.items.all()).T
