"""``RankedCandidates``: several models' candidates, ordered by boosted trees, as one model of sessions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import xgboost as xgb

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.retrieval.candidates import CandidateFeatures, Candidates, ModelSource, RepeatedItems, sample_negatives
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionFrame, SessionModel, by_time, prefixes
from fastrec.table import Table
from fastrec.table.saved_class import class_named, saved_name

_PARAMS = {"eta": 0.1, "max_depth": 6, "subsample": 0.8, "colsample_bytree": 0.6, "min_child_weight": 5}


class RankedCandidates(SessionModel):
    """What several models find for a session, scored by XGBoost: the probability that an item is next.

    The trees learn from the last sessions what came next, out of candidates of models that learned from the sessions
    before; then the models learn from all. What is no candidate comes last, by popularity.

    Args:
        models: name → model that finds candidates (also as ``{"class", "settings"}``), the one that takes longest
            first; None: co-visitation by two hops, what comes right after, session kNN, popularity of late. A session's
            own items are candidates too.
        k: how many candidates each model finds, or name → how many.
        share: of the sessions, the last, that the trees learn from.
        most: how many events of these, drawn at random.
        negatives: how many wrong candidates of each the trees see.
        rounds: how many trees.

    Source: the two stages of the OTTO competition's solutions (Kaggle 2022): co-visitation, then boosted trees.
    """

    def __init__(
        self,
        models: Mapping[str, SessionModel | Mapping[str, Any]] | None = None,
        *,
        k: int | Mapping[str, int] | None = None,
        share: float = 0.12,
        most: int = 30_000,
        negatives: int = 60,
        rounds: int = 120,
    ) -> None:
        usual = models is None
        self.models = {n: _made(m) for n, m in (_usual() if models is None else models).items()}
        if not self.models or most < 1 or negatives < 1 or rounds < 1:
            raise DataError(
                f"{len(self.models)} models, most={most}, negatives={negatives}, rounds={rounds}",
                remedy="Give one or more of each",
            )
        given = (
            ({"near": 100, "next": 40, "knn": 100, "popular": limits.RANKED_CANDIDATES_FEW} if usual else 100)
            if k is None
            else k
        )
        self.k = dict(given) if isinstance(given, Mapping) else dict.fromkeys(self.models, given)
        self.share, self.most, self.negatives, self.rounds = share, most, negatives, rounds

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        models = {n: {"class": saved_name(type(m)), "settings": m.settings()} for n, m in self.models.items()}
        names = ("k", "share", "most", "negatives", "rounds")
        return {"models": models, **{n: getattr(self, n) for n in names}}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        past, late = by_time(sessions, self.share)
        asked = prefixes(late, drawn=self.most, seed=seed, longest=limits.PREFIX_LONGEST)
        began = time.monotonic()
        until = None if minutes is None else began + 60 * minutes
        self._fit_models(past if bool((past.lengths > 1).any()) else sessions, seed, until, 2)
        self._grow(asked, seed, None if minutes is None else began + limits.RANKED_CANDIDATES_SHARE * 60 * minutes)
        self._fit_models(sessions, seed, until, 1)

    def _fit_models(self, sessions: SessionFrame, seed: int, until: float | None, rounds: int) -> None:
        """Fit each in an equal share of the time that is left; quick ones, which come last, leave theirs unused."""
        for i, model in enumerate(list(self.models.values())[::-1]):
            left = None if until is None else max(until - time.monotonic(), 1.0) / 60 / rounds
            model.fit(sessions, seed=seed, minutes=None if left is None else left / (len(self.models) - i))
        self._features = CandidateFeatures().fit(sessions)
        self._take()

    def _take(self) -> None:
        """Make sources of the fitted models."""
        own = RepeatedItems()
        own.items = next(iter(self.models.values())).items
        sources = {n: ModelSource(m, fitted=True) for n, m in self.models.items()}
        self._candidates = Candidates({**sources, "own": own}, {**self.k, "own": limits.RANKED_CANDIDATES_FEW})

    def _grow(self, asked: SessionFrame, seed: int, until: float | None) -> None:
        parts, labels = [], []
        for table in self._candidates.stream(asked):
            label = self._candidates.label(table, asked.target)
            rows = sample_negatives(table, label, self.negatives, seed=seed)
            parts.append(self._numbers(table, asked)[rows])
            labels.append(label[rows])
        x, y = torch.cat(parts), torch.cat(labels)
        self._trees = None
        if bool(y.any()):  # else the models' scores have to do
            params = {**_PARAMS, "objective": "binary:logistic", "seed": seed, "nthread": torch.get_num_threads()}
            stops = [] if until is None else [_StopAt(until)]
            self._trees = xgb.train(params, xgb.DMatrix(x.numpy(), label=y.numpy()), self.rounds, callbacks=stops)

    def _numbers(self, table: Table, sessions: SessionFrame) -> torch.Tensor:
        full = self._features(table, sessions)
        return torch.stack([full[n].values.float() for n in full.names if n not in ("session", "item")], 1)

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        table = self._candidates.union(sessions)
        out = self._features.popularity.mul(1e-30).repeat(len(sessions), 1)
        x = self._numbers(table, sessions)
        if self._trees is None:
            score = x.nan_to_num(0)[:, 0]
        else:
            score = torch.from_numpy(self._trees.predict(xgb.DMatrix(x.numpy()))) if len(x) else torch.zeros(0)
        out[table["session"].values, table["item"].values] = score + 1e-30
        return out

    def _state(self) -> dict[str, Any]:
        raw = b"" if self._trees is None else bytes(self._trees.save_raw("ubj"))
        trees = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)
        models = {n: m._state() for n, m in self.models.items()}
        return {"models": models, "features": self._features.to_state(), "grown": bool(raw), "trees": trees}

    def _restore(self, state: dict[str, Any]) -> None:
        for name, model in self.models.items():
            model.items = self.items
            model._restore(state["models"][name])
        self._features = CandidateFeatures.from_state(state["features"])
        self._trees = xgb.Booster(model_file=bytearray(state["trees"].numpy().tobytes())) if state["grown"] else None
        self._take()


class _StopAt(xgb.callback.TrainingCallback):
    """Ends a training when the time is over; some trees are grown whatever it takes."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return whether that was the last tree."""
        return epoch + 1 >= limits.RANKED_CANDIDATES_FEWEST_TREES and time.monotonic() > self.until


def _usual() -> dict[str, SessionModel]:
    following = CoVisitation(window=1, near=None, before=0.0, own=0.3, again=0.0)
    return {"near": CoVisitation(hops=2), "next": following, "knn": VSTAN(), "popular": PopularItems(recency=0.02)}


def _made(model: SessionModel | Mapping[str, Any]) -> SessionModel:
    return model if isinstance(model, SessionModel) else class_named(SessionModel, model["class"])(**model["settings"])
