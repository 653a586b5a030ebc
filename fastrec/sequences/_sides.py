"""What is known of events and items beside the item: categories as codes, numbers, vectors; and what they were like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.table import Column, Table, Vocab

__all__ = ["Coding", "code_items"]


@dataclass(frozen=True)
class Coding:
    """How a column becomes a tensor.

    Args:
        kind: ``category``, ``number`` or ``vector``.
        vocab: of a category.
        mean, scale: of a number: what is taken away, and what it is then divided by.
        width: of a vector.
    """

    kind: str
    vocab: Vocab | None = None
    mean: float = 0.0
    scale: float = 1.0
    width: int = 1

    @classmethod
    def fit(cls, column: Column) -> Coding:
        """Learn it: text, categories and booleans are categories, all other values numbers or vectors."""
        if column.kind == "vector":
            return cls("vector", width=column.values.shape[1])
        if column.kind == "category" or (column.kind == "number" and column.values.dtype == torch.bool):
            return cls("category", vocab=Vocab.fit(column))
        values = column.number()
        values = values[values.isfinite()]
        mean = float(values.mean()) if len(values) else 0.0
        scale = float(values.std(correction=0)) if len(values) else 1.0
        return cls("number", mean=mean, scale=scale or 1.0)

    def encode(self, column: Column) -> torch.Tensor:
        """Return codes int64 ``[n]`` (0 = missing or unseen), standardised numbers float32 ``[n]`` or vectors ``[n,
        width]``.

        A missing number is the mean, a missing vector zero.
        """
        if self.vocab is not None:
            return self.vocab.encode(column)
        if self.kind == "vector":
            values = column.values.float()
            return values.masked_fill(column.is_missing().unsqueeze(1), 0.0).nan_to_num(0.0)
        values = (column.number() - self.mean) / self.scale
        return values.nan_to_num(0.0, 0.0, 0.0).float()

    def empty(self) -> torch.Tensor:
        """Return what ``encode`` gives of no rows."""
        if self.vocab is not None:
            return torch.zeros(0, dtype=torch.int64)
        return torch.zeros((0, self.width) if self.kind == "vector" else 0)

    def to_state(self) -> dict[str, Any]:
        """Return a plain description, see ``fastrec.table.state``."""
        about = {"kind": self.kind, "mean": self.mean, "scale": self.scale, "width": self.width}
        return about if self.vocab is None else {**about, "vocab": self.vocab.to_state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Coding:
        """Rebuild what ``to_state`` returned."""
        vocab = state.get("vocab")
        return cls(**{**state, "vocab": None if vocab is None else Vocab.from_state(vocab)})


def code_items(source: Any, item: str, items: Vocab) -> tuple[dict[str, Coding], dict[str, torch.Tensor]]:
    """Return the columns of a table of items by the items' codes.

    Args:
        source: what ``Table.read`` takes; one row an item.
        item: its column of ids; all others are side features.
        items: the items' codes.

    Returns:
        How each column was coded, and ``[codes]`` or ``[codes, width]`` of it; an item without a row has zeros.

    Raises:
        DataError: an item has two rows.
    """
    table = Table.read(source)
    codes = items.encode(table[item])
    known = codes >= len(items.reserved)
    counts = torch.bincount(codes[known], minlength=len(items))
    if bool((counts > 1).any()):
        row = int((counts[codes] > 1).logical_and(known).nonzero()[1])
        raise DataError("an item has several rows", column=item, row=row, remedy="Keep one row per item")
    codings, sides = {}, {}
    for name in (n for n in table.names if n != item):
        codings[name] = Coding.fit(table[name])
        values = codings[name].encode(table[name])
        side = values.new_zeros((len(items), *values.shape[1:]))
        side[codes[known]] = values[known]
        sides[name] = side
    return codings, sides
