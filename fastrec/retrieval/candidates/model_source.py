"""``ModelSource``: any model of sessions as a source of candidates."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from fastrec.retrieval.candidates.source import CandidateSource
from fastrec.sequences import CoVisitation, SessionFrame, SessionModel


class ModelSource(CandidateSource):
    """The items that a model of sessions recommends.

    Args:
        model: such as ``CoVisitation``, ``VSTAN``, ``PopularItems`` or a net; one that is fitted already stays as it is
            where ``fitted``.
        fitted: whether ``fit`` leaves the model as it is.
    """

    def __init__(self, model: SessionModel, *, fitted: bool = False) -> None:
        self.model, self.fitted = model, fitted
        self.items = model.items if fitted else None

    def to_state(self) -> dict[str, Any]:
        """Return the model."""
        return {"model": self.model.to_state(), "fitted": self.fitted}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned; ``state['items']`` is the items' ``Vocab``."""
        made = cls(SessionModel.from_state(state["model"], state["items"]), fitted=state["fitted"])
        made.items = made.model.items
        return made

    def _fit(self, sessions: SessionFrame) -> None:
        if not self.fitted:
            self.model.fit(sessions)
        self.items = self.model.items

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        if isinstance(self.model, CoVisitation):  # there is no need to score every item
            return self.model.candidates(sessions, k)
        return self.model.recommend(sessions, k)
