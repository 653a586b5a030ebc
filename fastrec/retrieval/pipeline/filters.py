"""What takes candidates away: items that were seen, that are not to be had, or not for this segment.

A filter is called with the table of candidates (``session`` and ``item``, numbers and codes) and the sessions; it gives
a bool for each row: whether it stays. Yours may be any function of these two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from fastrec.errors import MissingColumnError
from fastrec.retrieval._saved import Saved, ids_of
from fastrec.sequences import SessionFrame
from fastrec.table import Table, Vocab, as_column
from fastrec.table.offsets import rows_of


class Seen(Saved):
    """Takes away the session's own items."""

    def to_state(self) -> dict[str, Any]:
        """It has none."""
        return {}

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``: True where the candidate is none of them."""
        codes = len(sessions.items)
        own = torch.unique(rows_of(sessions.offsets) * codes + sessions.values)
        return ~torch.isin(table["session"].values * codes + table["item"].values, own)


class Available(Saved):
    """Leaves only items available; ``set`` says anew which, between requests.

    Args:
        ids: of the items.
    """

    def __init__(self, ids: Any) -> None:
        self.set(ids)

    def set(self, ids: Any) -> None:
        """Make these items, and no others, available from now on."""
        self.ids, self._vocab = ids, None

    def to_state(self) -> dict[str, Any]:
        """Return the ids."""
        return {"ids": ids_of(self.ids)}

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``."""
        if self._vocab is not sessions.items:
            self._mask, self._vocab = _mask(self.ids, sessions.items), sessions.items
        return self._mask[table["item"].values]


class InSegment(Saved):
    """Leaves only items that are for the session's segment.

    Args:
        segment: a side feature of events (``SessionFrame(features=…)``); a session is of its last event's.
        allowed: the segment's name → ids of its items; sessions of other segments keep all.
    """

    def __init__(self, segment: str, allowed: Mapping[str, Any]) -> None:
        self.segment, self.allowed = segment, dict(allowed)

    def to_state(self) -> dict[str, Any]:
        """Return the segment, and what is allowed."""
        names = list(self.allowed)
        return {"segment": self.segment, "names": names, "ids": [ids_of(self.allowed[n]) for n in names]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        return cls(state["segment"], dict(zip(state["names"], state["ids"], strict=True)))

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``.

        Raises:
            MissingColumnError: the sessions have no such side feature.
        """
        if self.segment not in sessions.sides or sessions.codings[self.segment].vocab is None:
            raise MissingColumnError(
                "sessions have no such side feature of codes",
                column=self.segment,
                remedy="Name it in SessionFrame(features=…)",
            )
        filled = sessions.lengths > 0
        of_session = torch.zeros(len(sessions), dtype=torch.int64)
        of_session[filled] = sessions.sides[self.segment][sessions.offsets[1:][filled] - 1]
        segment, item = of_session[table["session"].values], table["item"].values
        stays = torch.ones(len(table), dtype=torch.bool)
        for code, name in enumerate(map(str, sessions.codings[self.segment].vocab.classes)):
            if name in self.allowed:
                rows = segment == code
                stays[rows] = _mask(self.allowed[name], sessions.items)[item[rows]]
        return stays


def _mask(ids: Any, items: Vocab) -> Tensor:
    """Return bool ``[codes]``: whether the item is among the ids; unknown ids say nothing."""
    mask = torch.zeros(len(items), dtype=torch.bool)
    if len(ids):
        mask[items.encode(as_column(ids, name="item"))] = True
    mask[: len(items.reserved)] = False
    return mask
