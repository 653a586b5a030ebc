"""``BST``: one transformer layer over the session's events and the candidate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.event_net import EventNet


class BST(EventNet):
    """Behaviour sequence transformer: a transformer layer over the events and, last, the candidate; read at its place.

    Of one layer the output at a place needs the keys and values of all places and the query of that one only: keys and
    values of events are had once a list, whatever the number of candidates.

    Args:
        emb_szs, n_cont, out_sz, layers: see ``EventNet``.
        heads: of the attention; they divide the width.
        drop: dropout on what attention and the feed-forward net add.
        **options: see ``EventNet``.

    Source: Chen et al. 2019, "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", section 2.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (128, 64),
        *,
        heads: int = 4,
        drop: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(emb_szs, n_cont, out_sz, layers, **options)
        if self.width % heads:
            raise DataError(f"{heads} heads do not divide a width of {self.width}", remedy="Choose another number")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(self.width, self.width) for _ in range(3))
        self.near = nn.Parameter(torch.zeros(heads))  # what an event about the candidate itself has more
        self.about = nn.Parameter(torch.zeros(self.width))
        self.out = nn.Linear(self.width, self.width)
        self.wide = nn.Sequential(nn.Linear(self.width, 2 * self.width), nn.LeakyReLU(), nn.Dropout(drop))
        self.back = nn.Linear(2 * self.width, self.width)
        self.first, self.second, self.drop = nn.LayerNorm(self.width), nn.LayerNorm(self.width), nn.Dropout(drop)

    def read(self, candidate: Tensor, event: Tensor, same: Tensor, there: Tensor, lists: Tensor) -> Tensor:
        """Return the layer's output at the candidate's place, see ``EventNet.read``."""
        n, (heads, each) = candidate.shape[0], (self.heads, self.width // self.heads)
        query = self.query(candidate).view(n, 1, heads, each)
        key = self.key(event)[lists].unflatten(2, (heads, each))
        value = (self.value(event)[lists] + same * self.about).unflatten(2, (heads, each))
        own_key, own_value = (f(candidate).view(n, 1, heads, each) for f in (self.key, self.value))
        scores = (query * key).sum(3) / math.sqrt(each) + same * self.near
        scores = scores.masked_fill(~there[lists][..., None], -torch.inf)
        own = (query * own_key).sum(3) / math.sqrt(each)
        share = torch.cat([scores, own], 1).softmax(1)[..., None]
        found = (share * torch.cat([value, own_value], 1)).sum(1).flatten(1)
        made = self.first(candidate + self.drop(self.out(found)))
        return self.second(made + self.drop(self.back(self.wide(made))))
