"""``EventFeatures``: what a ranker can know of a candidate by the kinds of events: clicks, carts, orders."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from fastrec.errors import DataError, MissingColumnError
from fastrec.retrieval._saved import Saved
from fastrec.sequences import SessionFrame
from fastrec.table import Table
from fastrec.table.offsets import rows_of


class EventFeatures(Saved):
    """Adds columns to a table of candidates, by kinds of events.

    For every kind: how many events of it the session had about the item, how many in all, how many the log had about
    the item, and their share of the item's events. How many events, and seconds, ago the session's last event about the
    item was; NaN where there was none.

    Args:
        event: the side feature (``SessionFrame(features=…)``) that says what kind an event is.
    """

    def __init__(self, event: str) -> None:
        self.event = event

    def fit(self, sessions: SessionFrame) -> Self:
        """Count the log's events of each kind about each item; of the log that the sources learn from."""
        self._kinds = kinds_of(sessions, self.event)
        counts = torch.bincount(
            self._of(sessions) * len(sessions.items) + sessions.values,
            minlength=len(self._kinds) * len(sessions.items),
        )
        self._counts = counts.view(len(self._kinds), -1).float()
        return self

    def _of(self, sessions: SessionFrame) -> Tensor:
        """Return the events' kinds as ``fit`` numbers them; 0: one that it did not see."""
        place = {name: i for i, name in enumerate(self._kinds) if name}
        table = torch.tensor([place.get(name, 0) for name in kinds_of(sessions, self.event)], dtype=torch.int64)
        return table[sessions.sides[self.event]]

    def to_state(self) -> dict[str, Any]:
        """Return what was counted, as ``save_state`` takes it."""
        return {"event": self.event, "kinds": self._kinds, "counts": self._counts}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        made = cls(state["event"])
        made._kinds, made._counts = list(state["kinds"]), state["counts"]
        return made

    def __call__(self, table: Table, sessions: SessionFrame) -> Table:
        """Return the table with these columns more.

        Args:
            table: candidates, with ``session`` and ``item``.
            sessions: those that are asked for.
        """
        session, item = table["session"].values, table["item"].values
        codes, rows, kinds = len(sessions.items), rows_of(sessions.offsets), self._of(sessions)
        pairs, which = torch.unique(rows * codes + sessions.values, return_inverse=True)
        wanted = session * codes + item
        at = torch.searchsorted(pairs, wanted).clamp_max(max(len(pairs) - 1, 0))
        own = pairs[at] == wanted if len(pairs) else torch.zeros(len(wanted), dtype=torch.bool)
        made: dict[str, Tensor] = {}
        total = self._counts.sum(0).clamp_min(1)
        for code, kind in enumerate(self._kinds):
            if not kind:
                continue
            of_kind = (kinds == code).float()
            counts = torch.zeros(len(pairs)).index_add_(0, which, of_kind)
            made[f"own_{kind}"] = torch.where(own, counts[at], 0.0) if len(pairs) else torch.zeros(len(wanted))
            made[f"session_{kind}"] = torch.zeros(len(sessions)).index_add_(0, rows, of_kind)[session]
            made[f"item_{kind}"] = self._counts[code][item]
            made[f"item_{kind}_share"] = (self._counts[code] / total)[item]
        steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
        made["own_steps_ago"] = self._least(steps.float(), which, len(pairs), at, own)
        if sessions.times is not None:
            ago = sessions.times[sessions.offsets[rows + 1] - 1] - sessions.times
            made["own_seconds_ago"] = self._least(ago.float(), which, len(pairs), at, own)
        return table.with_columns(made)

    @staticmethod
    def _least(values: Tensor, which: Tensor, count: int, at: Tensor, own: Tensor) -> Tensor:
        if not count:
            return torch.full((len(at),), torch.nan)
        least = torch.full((count,), torch.inf).scatter_reduce_(0, which, values, "amin")
        return torch.where(own, least[at], torch.nan)


def kinds_of(sessions: SessionFrame, event: str) -> list[str]:
    """Return the kinds of events by their codes; '' of codes that stand for no kind.

    Raises:
        MissingColumnError: sessions have no such side feature.
        DataError: it is a number.
    """
    coding = sessions.codings.get(event)
    if coding is None:
        raise MissingColumnError(
            "sessions have no such side feature", column=event, remedy="Name it in SessionFrame(features=…)"
        )
    if coding.vocab is None:
        raise DataError("it is a number, no kind of event", column=event, remedy="Make it text or a category")
    names = coding.vocab.decode(torch.arange(len(coding.vocab))).to_pylist()
    return ["" if i < len(coding.vocab.reserved) else str(v) for i, v in enumerate(names)]
