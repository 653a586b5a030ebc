"""``HistoryFilter``: a collaborative filter as a model of sessions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from scipy.sparse import csr_matrix

from fastrec.errors import DataError
from fastrec.retrieval.base import CollaborativeFilter
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.table.offsets import rows_of
from fastrec.table.saved_class import class_named, saved_name


class HistoryFilter(SessionModel):
    """Fits a filter to sessions as if each were a user, and scores other sessions by the items that they hold.

    A session without an item that the filter knows gets the items by popularity.

    Args:
        filter: one whose scores are a function of a user's row (``EASE``, ``ItemKNN``, ``RP3Beta``, ``SpectralFilter``,
            ``Popularity``), or that finds vectors of new rows (``ImplicitALS``); also as ``{"class", "settings"}``.
        decay: when scoring, an item that is ``d`` events from the session's end counts ``exp(-d / decay)``; None: 1.

    Raises:
        DataError: the filter knows no users but those of ``fit``.
    """

    def __init__(self, filter: CollaborativeFilter | Mapping[str, Any], *, decay: float | None = None) -> None:
        if isinstance(filter, Mapping):
            filter = class_named(CollaborativeFilter, filter["class"])(**filter["settings"])
        if not filter.scores_rows:
            raise DataError(
                f"{type(filter).__name__} scores only the users that it was fitted to",
                remedy="Use EASE, ItemKNN, RP3Beta, SpectralFilter, Popularity or ImplicitALS",
            )
        self.filter, self.decay = copy.copy(filter), decay

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        about = {"class": saved_name(type(self.filter)), "settings": self.filter.settings()}
        return {"filter": about, "decay": self.decay}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        there = sessions.values > 0
        self.filter.fit(rows_of(sessions.offsets)[there], sessions.values[there])
        self._popular = torch.bincount(sessions.values[there], minlength=len(self._known())).float()
        self._find_columns()

    def _find_columns(self) -> None:
        """The filter's column of every code; -1: it has none."""
        known = self.filter.encode_items(torch.arange(len(self._known())))
        self._columns = torch.from_numpy(known)

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        columns, rows = self._columns[sessions.values], rows_of(sessions.offsets)
        weight = torch.ones(len(rows), dtype=torch.float64)
        if self.decay is not None:
            steps = sessions.offsets[rows + 1] - 1 - torch.arange(len(rows))
            weight = torch.exp(-steps.double() / self.decay)
        kept = columns >= 0
        width = int(self._columns.max()) + 1
        pair, which = torch.unique(rows[kept] * width + columns[kept], return_inverse=True)
        latest = torch.zeros(len(pair), dtype=torch.float64).scatter_reduce_(0, which, weight[kept], "amax")
        given = (latest.numpy(), ((pair // width).numpy(), (pair % width).numpy()))
        scores = self.filter.score_rows(csr_matrix(given, shape=(len(sessions), width)))
        found = torch.from_numpy(scores).float()
        known = self._columns >= 0
        out = found.amin(1, keepdim=True).repeat(1, len(self._columns))  # what the filter does not know comes last
        out[:, known] = found[:, self._columns[known]]
        out[torch.bincount(rows[kept], minlength=len(sessions)) == 0] = self._popular
        return out

    def _state(self) -> dict[str, Any]:
        return {"filter": self.filter.to_state(), "popular": self._popular}

    def _restore(self, state: dict[str, Any]) -> None:
        self.filter, self._popular = CollaborativeFilter.from_state(state["filter"]), state["popular"]
        self._find_columns()
