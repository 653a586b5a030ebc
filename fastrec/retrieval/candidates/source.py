"""``CandidateSource``: what finds some items for each session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from fastrec.errors import DataError, NotFittedError
from fastrec.retrieval._saved import Saved
from fastrec.sequences import SessionFrame
from fastrec.table import Table, Vocab


class CandidateSource(Saved, ABC):
    """Learns from sessions, then finds some items for each of others.

    One of your own has ``_fit`` and ``_best``; to be saved, ``to_state`` and ``from_state``, of what was learned too
    (``items`` are saved apart).
    """

    items: Vocab | None = None

    @abstractmethod
    def _fit(self, sessions: SessionFrame) -> None:
        """Learn; what is needed of them only."""

    @abstractmethod
    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        """Return codes int64 ``[n, k]``, the best first, and scores float32 ``[n, k]``; 0 and -inf where there are
        fewer.
        """

    def fit(self, sessions: SessionFrame) -> Self:
        """Learn from sessions: from those before the ones that are asked for (see ``cut_at``)."""
        self.items = sessions.items
        self._fit(sessions)
        return self

    def best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        """Return the best items of each session.

        Args:
            sessions: any.
            k: how many, at most.

        Returns:
            Codes int64 ``[n, k]``, the best first, and scores float32 ``[n, k]``; 0 and -inf where there are fewer.

        Raises:
            NotFittedError: nothing was learned.
            DataError: ``k`` is below 1.
        """
        if self.items is None:
            raise NotFittedError(f"{type(self).__name__} has not been fitted", remedy="Call fit first")
        if k < 1:
            raise DataError(f"k={k} candidates were asked for", remedy="Ask for one or more")
        return self._best(sessions.recode(self.items), k)

    def find(self, sessions: SessionFrame, k: int) -> Table:
        """Return the best items of each session as rows.

        Returns:
            ``session`` (its number, int64), ``item`` (its code, int64), ``score`` (float32) and ``rank`` (from 1),
            sessions in the order given, the best first.
        """
        items, scores = self.best(sessions, k)
        session, place = (items > 0).nonzero(as_tuple=True)
        found = {"session": session, "item": items[session, place], "score": scores[session, place], "rank": place + 1}
        return Table(found)


def best_of_pairs(session: Tensor, item: Tensor, score: Tensor, count: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` best items of each session from rows in any order, each pair once; of equal ones the lower
    code.
    """
    order = torch.argsort(item, stable=True)
    order = order[torch.argsort(score[order], descending=True, stable=True)]
    order = order[torch.argsort(session[order], stable=True)]
    session, item, score = session[order], item[order], score[order]
    place = torch.arange(len(session)) - torch.searchsorted(session, session)
    kept = place < k
    items = torch.zeros((count, k), dtype=torch.int64)
    scores = torch.full((count, k), -torch.inf)
    items[session[kept], place[kept]] = item[kept]
    scores[session[kept], place[kept]] = score[kept].float()
    return items, scores
