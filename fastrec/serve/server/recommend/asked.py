"""``AskedSessions``: the sessions of one request; ``RecommendSpec``: what a served model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["AskedSessions", "RecommendSpec", "joined"]


@dataclass(frozen=True)
class RecommendSpec:
    """What a model takes that recommends.

    Args:
        name: what it is called.
        version: a digest of what it was loaded from.
        type: of items' ids, ``int64`` or ``string``.
        items: how many there are.
        k: how many are given unless a request says another number.
        context: values of a session that may be sent, by name, and what they are for.
    """

    name: str
    version: str
    type: str
    items: int
    k: int
    context: Mapping[str, str] = field(default_factory=dict)
    task: str = "recommend"
    events: None = None
    made: tuple[()] = ()


@dataclass
class AskedSessions:
    """Sessions, one after the other.

    Args:
        items: ids of their events, ``[events]``.
        offsets: session ``i`` is ``items[offsets[i]:offsets[i + 1]]``, int64 ``[rows + 1]``.
        k: how many items are wanted.
        context: name → a value for each session, None where there is none.
    """

    items: np.ndarray
    offsets: np.ndarray
    k: int
    context: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many sessions there are."""
        return len(self.offsets) - 1

    def lists(self) -> list[np.ndarray]:
        """Return the ids of each session."""
        return np.split(self.items, self.offsets[1:-1]) if self.rows else []


def joined(batch: Sequence[AskedSessions]) -> AskedSessions:
    """Join the sessions of several requests with the same ``k`` and names of context."""
    if len(batch) == 1:
        return batch[0]
    lengths = np.concatenate([np.diff(a.offsets) for a in batch])
    context = {n: [v for a in batch for v in a.context[n]] for n in batch[0].context}
    items = np.concatenate([a.items for a in batch])
    return AskedSessions(items, np.concatenate([[0], np.cumsum(lengths)]), batch[0].k, context)
