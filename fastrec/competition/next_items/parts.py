"""``SessionParts``: what a run for next items has finished, so that an interrupted one goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastrec._version import __version__
from fastrec.competition.parts import Parts, say_damaged
from fastrec.errors import FastrecError
from fastrec.features._engine.digests import NoDigestError, class_digest, digest
from fastrec.sequences import SessionBlend, SessionFrame, SessionModel
from fastrec.table import load_state, save_state

__all__ = ["SessionParts"]


class SessionParts:
    """The store of a ``SessionBlend``: fitted models and chosen weights, by a digest of all that they were made from.

    Args:
        parts: of the run directory.
        about: what else decides what comes out: the seed, the device, the time that is given.
    """

    def __init__(self, parts: Parts, *about: Any) -> None:
        self.parts, self.about = parts, (__version__, torch.get_num_threads(), *about)

    def fit(self, model: SessionModel, sessions: SessionFrame, fit: Callable[[], object]) -> None:
        """See ``FitStore``."""
        key = self._key("model", sessions, [model])
        if key is None:
            fit()
            return
        place = self.parts.folder_of(f"model-{type(model).__name__}", key)
        if place.is_dir():
            try:
                state = load_state(place)
                model.items = sessions.items
                model._restore(state["learned"])
                self.parts.reused += 1
                return
            except (FastrecError, KeyError, TypeError, ValueError, RuntimeError):
                say_damaged(place)
        fit()
        self._keep(place, {"learned": model._state()})

    def choose(self, blend: SessionBlend, sessions: SessionFrame, choose: Callable[[], None]) -> None:
        """See ``FitStore``."""
        settings = {**blend.settings(), "weights": None, "models": list(blend.models)}
        key = self._key("weights", sessions, list(blend.models.values()), settings)
        if key is None:
            choose()
            return
        place = self.parts.folder_of("weights", key)
        if place.is_dir():
            try:
                state = load_state(place)
                blend.weights, blend.valid, blend.held = state["weights"], state["valid"], state["held"]
                self.parts.reused += 1
                return
            except (FastrecError, KeyError):
                say_damaged(place)
        choose()
        self._keep(place, {"weights": blend.weights, "valid": blend.valid, "held": blend.held})

    def _key(
        self, kind: str, sessions: SessionFrame, models: Sequence[SessionModel], settings: Any = None
    ) -> str | None:
        """Return a digest; None: something has none, and is made anew each time."""
        try:
            described = [(class_digest(type(m)), str(m.settings())) for m in models]
            return digest(*self.about, kind, _content(sessions), described, str(settings))[:20]
        except NoDigestError:
            return None

    def _keep(self, place: Any, state: dict[str, Any]) -> None:
        if place.is_dir():  # damaged, and could not be removed
            shutil.rmtree(place)
        save_state(place, state)


def _content(sessions: SessionFrame) -> str:
    """Return the digest of all of the sessions that a model can learn from."""
    codings = [sessions.codings, sessions.item_codings]
    about = [str({n: (c.kind, c.mean, c.scale, c.width) for n, c in group.items()}) for group in codings]
    values = [sessions.values, sessions.offsets, sessions.times, sessions.sides, sessions.item_sides, sessions.target]
    return digest(*values, sessions.items.values, *about)
