"""``PopularItems``: what everybody looks at, lately or always."""

from __future__ import annotations

from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.sequences.base import SessionModel
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import by_age
from fastrec.table.offsets import rows_of


class PopularItems(SessionModel):
    """How many events an item had, the same for every session: what any other model must beat.

    Args:
        recency: an event counts ``exp(-age / recency)``, its session's age before the end of the log in shares of the
            log's span; None: all count alike.

    Raises:
        DataError: ``recency`` is not above 0.
    """

    def __init__(self, *, recency: float | None = None) -> None:
        if recency is not None and not recency > 0:
            raise DataError(f"recency={recency} is not above 0", remedy="Give a share of the log's span, or None")
        self.recency = recency

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        weight = torch.ones_like(age) if self.recency is None else torch.exp(-age / self.recency)
        weight = weight[rows_of(sessions.offsets)]
        self._sums = torch.bincount(sessions.values, weights=weight, minlength=len(sessions.items)).float()

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        return self._sums.repeat(len(sessions), 1)

    def recommend(
        self, sessions: SessionFrame, k: int, exclude_seen: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best items, see ``SessionModel.recommend``; found once, as they are the same for every session."""
        if exclude_seen or not len(sessions):
            return super().recommend(sessions, k, exclude_seen)
        items, found = super().recommend(sessions.take(torch.arange(1)), k)
        return items.repeat(len(sessions), 1), found.repeat(len(sessions), 1)

    def _state(self) -> dict[str, Any]:
        return {"sums": self._sums}

    def _restore(self, state: dict[str, Any]) -> None:
        self._sums = state["sums"]
