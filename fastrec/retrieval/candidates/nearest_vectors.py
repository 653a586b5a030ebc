"""``NearestVectors``: items whose vectors are near to those of a session."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.retrieval.candidates.source import CandidateSource
from fastrec.retrieval.index import Index
from fastrec.sequences import SessionFrame
from fastrec.table import as_column
from fastrec.table.offsets import rows_of


class NearestVectors(CandidateSource):
    """The items nearest to the mean of a session's vectors, the last counting most.

    Args:
        vectors: float ``[n, d]``: a net's item vectors, say.
        ids: whose they are, ``[n]``.
        decay: an event that is ``d`` events from the session's end counts ``exp(-d / decay)``.
        metric: ``"cosine"`` or ``"dot"``.
    """

    def __init__(self, vectors: Tensor, ids: Any, *, decay: float = 2.0, metric: Any = "cosine") -> None:
        if not decay > 0:
            raise DataError(f"decay={decay} is not above 0", remedy="Give a number of events")
        self.index, self.decay = Index(vectors, ids, metric=metric, verbose=False), decay

    def to_state(self) -> dict[str, Any]:
        """Return the index, and the items' places in it."""
        return {"index": self.index.to_state(), "decay": self.decay, "code": self._code, "place": self._place}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        made = cls.__new__(cls)
        made.index, made.decay = Index.from_state(state["index"]), state["decay"]
        made._code, made._place = state["code"], state["place"]
        return made

    def _fit(self, sessions: SessionFrame) -> None:
        """Find the place of every code, -1 for none, and the code of every place, 0 for none."""
        self._code = sessions.items.encode(as_column(self.index.ids.values, name="item"))
        self._place = torch.full((len(sessions.items),), -1, dtype=torch.int64)
        known = self._code > 0
        self._place[self._code[known]] = torch.arange(len(self._code))[known]

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        rows = rows_of(sessions.offsets)
        steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
        weight = torch.exp(-steps.double() / self.decay).float()
        place = self._place[sessions.values]
        kept = (place >= 0) & (weight > 0)
        vectors = self.index.vectors
        query = torch.zeros(len(sessions), vectors.shape[1])
        for part in kept.nonzero().squeeze(1).split(1 << 18):
            query.index_add_(0, rows[part], vectors[place[part]] * weight[part, None])
        some = torch.zeros(len(sessions), dtype=torch.bool)
        some[rows[kept]] = True  # sessions without a vector find nothing
        items = torch.zeros((len(sessions), k), dtype=torch.int64)
        scores = torch.full((len(sessions), k), -torch.inf)
        found, best = self.index.search(
            query[some], k, allowed=self._code > 0 if bool((self._code == 0).any()) else None
        )
        items[some] = torch.where(found < 0, 0, self._code[found.clamp_min(0)])
        scores[some] = best
        return items, scores
