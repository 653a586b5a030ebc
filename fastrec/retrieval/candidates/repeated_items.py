"""``RepeatedItems``: a session's own items."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.retrieval.candidates.source import CandidateSource, best_of_pairs
from fastrec.sequences import SessionFrame
from fastrec.table.offsets import rows_of


class RepeatedItems(CandidateSource):
    """The items that a session had, the latest and most frequent first.

    Args:
        decay: an event that is ``d`` events from the session's end counts ``exp(-d / decay)``.
    """

    def __init__(self, *, decay: float = 5.0) -> None:
        if not decay > 0:
            raise DataError(f"decay={decay} is not above 0", remedy="Give a number of events")
        self.decay = decay

    def to_state(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"decay": self.decay}

    def _fit(self, sessions: SessionFrame) -> None:
        pass

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        rows, codes = rows_of(sessions.offsets), len(sessions.items)
        steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
        there = sessions.values > 0
        pair, which = torch.unique((rows * codes + sessions.values)[there], return_inverse=True)
        score = torch.zeros(len(pair), dtype=torch.float64)
        score.index_add_(0, which, torch.exp(-steps[there].double() / self.decay))
        return best_of_pairs(pair // codes, pair % codes, score, len(sessions), k)
