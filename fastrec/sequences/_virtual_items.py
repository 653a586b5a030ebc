"""Virtual items: events without an item, a search or a page, as items that are read and never recommended."""

from __future__ import annotations

import torch

from fastrec.table import Column, Vocab

_PREFIX = "virtual: "  # no name that a vocabulary reserves begins so


def with_virtual(items: Vocab, item: Column, says: Column) -> Vocab:
    """Return a vocabulary with a reserved code for each value of ``says`` where there is no item, in sorted order.

    Args:
        items: the items' codes.
        item: ``[events]``, missing where an event has none.
        says: ``[events]``, what such an event was.
    """
    alone = item.is_missing() & ~says.is_missing()
    texts = _texts(Vocab.fit(says.take(alone.nonzero().squeeze(1))))[1:] if bool(alone.any()) else []
    return Vocab(
        items.values, reserved=(*items.reserved, *texts), rare=items.rare, ordered=items.ordered, name=items.name
    )


def virtual_codes(items: Vocab, item: Column, says: Column) -> torch.Tensor:
    """Return codes of virtual items, int64 ``[events]``: 0 where an event has an item, or none that the vocabulary
    has.
    """
    known = {name: i for i, name in enumerate(items.reserved) if name.startswith(_PREFIX)}
    coded = Vocab.fit(says)
    table = torch.tensor([0, *(known.get(text, 0) for text in _texts(coded)[1:])], dtype=torch.int64)
    return torch.where(item.is_missing().cpu(), table[coded.encode(says).cpu().long()], 0)


def has_virtual(items: Vocab) -> bool:
    """Return whether some codes of a vocabulary are virtual items."""
    return any(name.startswith(_PREFIX) for name in items.reserved)


def _texts(values: Vocab) -> list[str]:
    """Return the names of all codes of a vocabulary; the first is no value."""
    return ["", *(f"{_PREFIX}{v}" for v in values.values.to_pylist())]
