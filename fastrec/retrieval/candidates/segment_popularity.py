"""``SegmentPopularity``: what sessions of a kind look at, lately."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from fastrec.errors import DataError, MissingColumnError
from fastrec.retrieval.candidates.source import CandidateSource, best_of_pairs
from fastrec.sequences import SessionFrame
from fastrec.sequences.session_knn import by_age
from fastrec.table.offsets import rows_of


class SegmentPopularity(CandidateSource):
    """The items with the most events in the session's segment, recent ones counting most.

    Args:
        segment: a side feature of events, of codes (``SessionFrame(features=…)``): a country, a device, a kind of user.
            A session is of its last event's segment. None: all are of one.
        recency: an event counts ``exp(-age / recency)``, its session's age before the end of the log in shares of the
            log's span; None: all count alike.
        most: how many items of each segment are kept.
    """

    def __init__(self, segment: str | None = None, *, recency: float | None = 0.1, most: int = 200) -> None:
        if (recency is not None and not recency > 0) or most < 1:
            raise DataError(f"recency={recency}, most={most}", remedy="Give numbers above 0")
        self.segment, self.recency, self.most = segment, recency, most

    def to_state(self) -> dict[str, Any]:
        """Return the constructor's arguments, and what was counted."""
        about = {"segment": self.segment, "recency": self.recency, "most": self.most}
        return {"settings": about, "items": self._items, "scores": self._scores}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        made = cls(**state["settings"])
        made._items, made._scores = state["items"], state["scores"]
        return made

    def _fit(self, sessions: SessionFrame) -> None:
        sessions, age = by_age(sessions)
        weight = torch.ones_like(age) if self.recency is None else torch.exp(-age / self.recency)
        there = sessions.values > 0
        segment, codes = self._of_events(sessions)[there], len(sessions.items)
        pair, which = torch.unique(segment * codes + sessions.values[there], return_inverse=True)
        score = torch.zeros(len(pair), dtype=torch.float64)
        score.index_add_(0, which, weight[rows_of(sessions.offsets)][there])
        count = int(segment.max()) + 1 if len(segment) else 1
        self._items, self._scores = best_of_pairs(pair // codes, pair % codes, score, count, self.most)

    def _of_events(self, sessions: SessionFrame) -> Tensor:
        if self.segment is None:
            return torch.zeros_like(sessions.values)
        if self.segment not in sessions.sides:
            raise MissingColumnError(
                "sessions have no such side feature", column=self.segment, remedy="Name it in SessionFrame(features=…)"
            )
        codes = sessions.sides[self.segment]
        if codes.dtype != torch.int64:
            raise DataError("it is a number, no segment", column=self.segment, remedy="Make it text or a category")
        return codes

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        segment = torch.zeros(len(sessions), dtype=torch.int64)  # code 0: not known
        filled = sessions.lengths > 0
        segment[filled] = self._of_events(sessions)[sessions.offsets[1:][filled] - 1]
        segment = segment.masked_fill(segment >= len(self._items), 0)
        items, scores = self._items[segment][:, :k], self._scores[segment][:, :k]
        short = k - items.shape[1]
        if short > 0:
            items = torch.nn.functional.pad(items, (0, short))
            scores = torch.nn.functional.pad(scores, (0, short), value=-torch.inf)
        return items, scores
