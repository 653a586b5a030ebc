"""``SessionBlend``: several models' scores added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.sequences.base import SESSION_MODELS, SessionModel
from fastrec.sequences.session_frame import SessionFrame


class SessionBlend(SessionModel):
    """The weighted sum of models' scores, each standardised over the items of a session.

    Args:
        models: session models, also as ``{"class", "settings"}``; ``fit`` fits them all, in turn.
        weights: of each; None: all 1.

    Raises:
        DataError: no model, or weights of another number.
    """

    def __init__(
        self, models: Sequence[SessionModel | Mapping[str, Any]], weights: Sequence[float] | None = None
    ) -> None:
        self.models = [
            m if isinstance(m, SessionModel) else SESSION_MODELS[m["class"]](**m["settings"]) for m in models
        ]
        self.weights = [1.0] * len(self.models) if weights is None else [float(w) for w in weights]
        if not self.models or len(self.weights) != len(self.models):
            raise DataError(
                f"{len(self.models)} models and {len(self.weights)} weights", remedy="Give one weight for each model"
            )

    @classmethod
    def of(cls, models: Sequence[SessionModel], weights: Sequence[float] | None = None) -> SessionBlend:
        """A blend of models that are fitted already, all to one vocabulary.

        Raises:
            DataError: their items differ.
        """
        made = cls(models, weights)
        made.items = made.models[0]._known()
        if any(not m._known().values.equals(made.items.values) for m in made.models):
            raise DataError("the models' items differ", remedy="Fit them to the same sessions, or with the same items=")
        return made

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        models = [{"class": type(m).__name__, "settings": m.settings()} for m in self.models]
        return {"models": models, "weights": self.weights}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        each = None if minutes is None else minutes / len(self.models)
        for model in self.models:
            model.fit(sessions, seed=seed, minutes=each)

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        total = torch.zeros(len(sessions), len(self._known()))
        for model, weight in zip(self.models, self.weights):
            total += weight * _standardised(model._block(sessions)[:, len(self._known().reserved) :], total)
        return total

    def _state(self) -> dict[str, Any]:
        return {"models": [m._state() for m in self.models]}

    def _restore(self, state: dict[str, Any]) -> None:
        for model, learned in zip(self.models, state["models"], strict=True):
            model.items = self.items
            model._restore(learned)


def _made(about: Mapping[str, Any]) -> SessionModel:
    return SESSION_MODELS[about["class"]](**about["settings"])


def _standardised(scores: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Scores of mean 0 and deviation 1 over each row's items; those that are -inf get the row's lowest."""
    finite = torch.isfinite(scores)
    count = finite.sum(1, keepdim=True).clamp_min(1)
    held = scores.masked_fill(~finite, 0)
    mean = held.sum(1, keepdim=True) / count
    centred = (held - mean).masked_fill(~finite, 0)
    spread = (centred.square().sum(1, keepdim=True) / count).sqrt()
    centred = centred / torch.where(spread > 0, spread, 1)
    if not bool(finite.all()):
        centred = torch.where(finite, centred, centred.amin(1, keepdim=True))
    return torch.nn.functional.pad(centred, (like.shape[1] - centred.shape[1], 0))
