"""``SessionKNN``: what the sessions that are like a session went on with."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.sequences._neighbours import Decays, SessionIndex
from fastrec.sequences.base import SessionModel
from fastrec.sequences.session_frame import SessionFrame
from fastrec.table.offsets import rows_of


class SessionKNN(SessionModel):
    """Finds the sessions that share items with a session, and adds up what they hold, each by how like it is.

    Items that no neighbour has come last, by popularity.

    Args:
        k: how many neighbours count.
        sample: how many of the sessions that share an item are looked at: the latest.

    A class of your own defines ``settings`` and ``_weights``.
    """

    def __init__(self, *, k: int, sample: int) -> None:
        if k < 1 or sample < k:
            raise DataError(f"k={k} neighbours out of {sample}", remedy="Give k of 1 or more, and no smaller a sample")
        self.k, self.sample = k, sample

    @abstractmethod
    def _weights(self, sessions: SessionFrame, age: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        """Factors of sessions and of codes, float64, and the decays.

        Args:
            sessions: those learned from, the past first.
            age: how long before the end of the log each ended, in shares of the log's span, float64 ``[n]``.
        """

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        of_session, of_item, self._decays = self._weights(sessions, age)
        self._of_session, self._of_item = of_session.float(), of_item.float()
        self._index = SessionIndex.of(sessions.values, sessions.offsets, len(sessions.items))
        self._prior = _popularity(self._index)

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        values = torch.where(sessions.values > 0, sessions.values, -1)
        factors = {"of_session": self._of_session, "of_item": self._of_item, "prior": self._prior}
        return self._index.score(values, sessions.offsets, self._decays, **factors, sample=self.sample, k=self.k)

    def _state(self) -> dict[str, Any]:
        index = {"values": self._index.values, "offsets": self._index.offsets}
        return {**index, "of_session": self._of_session, "of_item": self._of_item, "decays": list(self._decays)}

    def _restore(self, state: dict[str, Any]) -> None:
        self._index = SessionIndex.of(state["values"], state["offsets"], len(state["of_item"]))
        self._of_session, self._of_item = state["of_session"], state["of_item"]
        self._decays, self._prior = Decays(*state["decays"]), _popularity(self._index)


def _popularity(index: SessionIndex) -> torch.Tensor:
    """Return scores that ordered what no neighbour has, and are too small to move anything else: float32
    ``[codes]``.
    """
    sessions = index.starts.diff().float()
    return sessions / sessions.max().clamp_min(1) * 1e-30


def by_age(sessions: SessionFrame) -> tuple[SessionFrame, torch.Tensor]:
    """Return sessions in the order in which they ended, and how old each is.

    Returns:
        The sessions, and their ages in shares of the log's span, float64 ``[n]``, 0 for the last: by time where there
        are times, else by their places.
    """
    ends = sessions.ends
    if ends is None:
        return sessions, torch.linspace(1, 0, len(sessions), dtype=torch.float64)
    ends = ends.nan_to_num(nan=float(ends.nan_to_num(torch.inf).min()))  # empty sessions say nothing
    order = torch.argsort(ends, stable=True)
    ends = ends[order]
    span = ends[-1] - ends[0]
    return sessions.take(order), (ends[-1] - ends) / (span if span > 0 else 1)


def inverse_frequency(sessions: SessionFrame) -> torch.Tensor:
    """``log(sessions / sessions with the item)`` of every code, float64; of those in no session that of one."""
    pairs = torch.unique(rows_of(sessions.offsets) * len(sessions.items) + sessions.values)
    counts = torch.bincount(pairs % len(sessions.items), minlength=len(sessions.items))
    return torch.log(len(sessions) / counts.clamp_min(1).double())
