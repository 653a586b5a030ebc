"""``ItemTower``: an item's vector, of its own and of what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastrec.sequences._sides import Coding
from fastrec.sequences.byte_dropout import ByteDropout

__all__ = ["EventInput", "ItemTower"]


class ItemTower(nn.Module):
    """Vectors of items by their codes; side features make one for an item that was in no session.

    Args:
        codes: how many codes there are, 0 included.
        width: of the vectors.
        extra: virtual items behind the last code (a mask, say).
        codings, sides: side features of items as in ``SessionFrame``: how they were coded, ``[codes, …]`` each.
        sparse: the table's gradients are row-sparse, for tables much larger than a batch.
    """

    def __init__(
        self,
        codes: int,
        width: int,
        *,
        extra: int = 0,
        codings: Mapping[str, Coding] | None = None,
        sides: Mapping[str, Tensor] | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.codes, self.width, self.codings = codes, width, dict(codings or {})
        self.table = nn.Embedding(codes + extra, width, sparse=sparse)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        with torch.no_grad():
            self.table.weight[0] = 0.0
        self.readers = nn.ModuleList()
        self._names: list[str] = []
        for i, (name, coding) in enumerate(self.codings.items()):
            self.readers.append(_reader(coding, width))
            values = (sides or {})[name]
            self.register_buffer(f"side_{i}", torch.cat([values, values.new_zeros(extra, *values.shape[1:])]))
            self._names.append(f"side_{i}")

    def forward(self, codes: Tensor) -> Tensor:
        """Return vectors ``[…, width]`` of codes ``[…]``."""
        found = self.table(codes)
        for reader, name in zip(self.readers, self._names, strict=True):
            found = found + reader(getattr(self, name)[codes])
        return found

    def all(self) -> Tensor:
        """Return vectors of all codes, ``[codes, width]``; virtual items are left out."""
        if not self.readers:
            return self.table.weight[: self.codes]
        return self(torch.arange(self.codes, device=self.table.weight.device))

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Begin with known vectors ``[codes, at most width]``; rows of zeros, and further columns, stay as they are."""
        known = (vectors != 0).any(1)
        self.table.weight[: self.codes][known, : vectors.shape[1]] = vectors[known].to(self.table.weight)


class EventInput(nn.Module):
    """What a model reads at an event: its item's vector, and its own side features, added up.

    Args:
        items: the items' vectors.
        codings: how the events' side features were coded, in the order of the batch.
        dropout: share of numbers that are dropped.
    """

    def __init__(self, items: ItemTower, codings: Sequence[Coding] = (), *, dropout: float = 0.0) -> None:
        super().__init__()
        self.items = items
        self.readers = nn.ModuleList(_reader(c, items.width) for c in codings)
        self.dropout = ByteDropout(dropout)

    def forward(self, codes: Tensor, *sides: Tensor) -> Tensor:
        """Return inputs ``[b, L, width]`` of codes ``[b, L]`` and side features ``[b, L]``."""
        found = self.items(codes)
        for reader, side in zip(self.readers, sides, strict=True):
            found = found + reader(side)
        return self.dropout(found)


def _reader(coding: Coding, width: int) -> nn.Module:
    if coding.vocab is not None:
        made: Any = nn.Embedding(len(coding.vocab), width, padding_idx=0)
        nn.init.normal_(made.weight, std=0.02)
        with torch.no_grad():
            made.weight[0] = 0.0
        return made
    return _NumberInput(coding.width, width)


class _NumberInput(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(values if self.linear.in_features > 1 else values.unsqueeze(-1))
