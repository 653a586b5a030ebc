"""Boosted trees that order candidates: ``RankedCandidates`` for the next item, ``ObjectiveRanker`` for goals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
import xgboost as xgb
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, shared, view
from fastrec._core.kernels import sessions as loops
from fastrec.errors import DataError, NotFittedError, check_whole
from fastrec.estimators._tree_model import Deadline
from fastrec.estimators.xgboost import InTime
from fastrec.retrieval.candidates.sources import ModelSource, RepeatedItems, best_of_pairs
from fastrec.retrieval.candidates.union import CandidateFeatures, Candidates, EventFeatures, numeric, sample_negatives
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionFrame, SessionModel, by_time, prefixes
from fastrec.table import Table, Vocab
from fastrec.table.state import Saved, saved_name

_PARAMS = {"eta": 0.1, "max_depth": 6, "subsample": 0.8, "colsample_bytree": 0.6, "min_child_weight": 5}


def _grown(x: Tensor, y: Tensor, rounds: int, seed: int, seconds: float = math.inf) -> xgb.Booster:
    """Grow trees; fewer, or at a higher rate, if ``seconds`` are short. A second is the least."""
    params = {**_PARAMS, "objective": "binary:logistic", "seed": seed, "nthread": torch.get_num_threads()}
    in_time = InTime(Deadline(max(seconds, 1.0)), _PARAMS["eta"], rounds)
    return xgb.train(params, xgb.DMatrix(x.numpy(), label=y.numpy()), rounds, callbacks=[in_time])


def _as_bytes(trees: xgb.Booster) -> Tensor:
    return torch.frombuffer(bytearray(trees.save_raw("ubj")), dtype=torch.uint8)


def _of_bytes(raw: Tensor) -> xgb.Booster:
    return xgb.Booster(model_file=bytearray(raw.numpy().tobytes()))


def log_odds(trees: xgb.Booster, x: Tensor) -> Tensor:
    """Return the trees' margins of rows float32 ``[n, features]`` (NaN: missing): float32 ``[n]``.

    A compiled loop takes a fifth of XGBoost's time (120 trees, one core), with the same bits.
    """
    work = len(x) * trees.num_boosted_rounds() * int(_PARAMS["max_depth"])
    if not compiled(work):
        return torch.from_numpy(trees.inplace_predict(x.numpy(), predict_type="margin"))
    base, *nodes = _nodes(trees)
    out = torch.full((len(x),), base)
    shared(loops().sum_of_leaves, view(x.contiguous()), *nodes, view(out), numbers=work)
    return out


@lru_cache(limits.RANKED_CANDIDATES_LAID_OUT)
def _nodes(booster: xgb.Booster) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return the base margin, and the trees as ``sum_of_leaves`` takes them, filled up to one depth."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    about, trees = learner["learner_model_param"], learner["gradient_booster"]["model"]["trees"]
    names, levels = ("left_children", "right_children", "split_indices", "split_conditions"), 0
    for tree in trees:  # saved ones may be deeper than what is grown now
        at, depth = np.zeros(1, np.int64), 0
        children = np.array([tree["left_children"], tree["right_children"]])
        while len(at := children[:, at[children[0, at] >= 0]].reshape(-1)):
            depth += 1
        levels = max(levels, depth)
    feature, value = np.zeros((len(trees), 1 << levels), np.uint32), np.zeros((2, len(trees), 1 << levels), np.float32)
    for t, tree in enumerate(trees):
        left, right, index, split = (np.array(tree[n]) for n in names)
        index, at = index + int(about["num_feature"]) * (np.array(tree["default_left"]) == 0), np.zeros(1, np.int64)
        for level in range(levels):  # a leaf above the last level is its own child on both sides
            nodes, inner = slice(1 << level, 2 << level), left[at] >= 0
            feature[t, nodes], value[0, t, nodes] = np.where(inner, index[at], 0), split[at]
            at = np.where(inner, (left[at], right[at]), at).T.reshape(-1)
        value[1, t] = split[at]
    return float(-np.log(1 / np.float32(about["base_score"].strip("[]")) - 1)), feature, *value


def _matrix(table: Table) -> Tensor:
    return torch.stack([table[n].values.float() for n in numeric(table)], 1)


class RankedCandidates(SessionModel):
    """Several models' candidates, scored by XGBoost: the log-odds of being next, 0 for the least.

    The trees learn on the last sessions, from candidates of models fitted to the earlier ones; then the models learn
    from all sessions. Other items come last, by popularity.

    Args:
        models: name → model that finds candidates, the slowest first; None: two-hop and directed co-visitation, session
            kNN and recent popularity. A session's own items are candidates too.
        k: candidates per model, or name → number.
        share: of the sessions, the last, for the trees.
        most: maximum of their events, drawn at random; fewer if time is short.
        negatives: wrong candidates per event for the trees.
        rounds: number of trees; fewer, at a higher learning rate, if time is short.

    Source: the two stages of the OTTO competition's solutions (Kaggle 2022): co-visitation, then boosted trees.
    """

    learned = ("models", "_features", "_trees")

    def __init__(
        self,
        models: Mapping[str, SessionModel] | None = None,
        *,
        k: int | Mapping[str, int] | None = None,
        share: float = 0.12,
        most: int = 100_000,
        negatives: int = 30,
        rounds: int = 120,
    ) -> None:
        usual = {"near": 100, "next": 40, "knn": 100, "popular": limits.RANKED_CANDIDATES_FEW}
        given = k if k is not None else usual if models is None else 100
        if models is None:
            following = CoVisitation(window=1, near=None, before=0.0, own=0.3, again=0.0)
            models = {"near": CoVisitation(hops=2), "next": following, "knn": VSTAN(recency="held-out")}
            models["popular"] = PopularItems(recency=0.02)
        self.models = dict(models)
        if not self.models or most < 1 or negatives < 1 or rounds < 1:
            problem = f"{len(self.models)} models, most={most}, negatives={negatives}, rounds={rounds}"
            raise DataError(problem, remedy="Give one or more of each")
        self.k = dict(given) if isinstance(given, Mapping) else dict.fromkeys(self.models, given)
        self.share, self.most, self.negatives, self.rounds = share, most, negatives, rounds

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        models = {n: {"class": saved_name(type(m)), "settings": m.settings()} for n, m in self.models.items()}
        return {**super().settings(), "models": models}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        past, late = by_time(sessions, self.share)
        asked = prefixes(late, drawn=self.most, seed=seed, longest=limits.PREFIX_LONGEST)
        # in any order: if time is short, the first blocks are a sample
        asked = asked.take(torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed)))
        seconds = math.inf if minutes is None else 60 * minutes
        whole, trees = Deadline(seconds), Deadline(seconds * limits.RANKED_CANDIDATES_SHARE)
        self._fit_models(past if bool((past.lengths > 1).any()) else sessions, seed, whole, 2)
        parts, labels, half = [], [], trees.left / 2
        for table in self._candidates.stream(asked):
            label = self._candidates.label(table, asked.target)
            rows = sample_negatives(table, label, self.negatives, seed=seed)
            parts.append(_matrix(self._features(table, asked))[rows])
            labels.append(label[rows])
            if trees.left < half or trees.is_over:
                break
        y = torch.cat(labels)
        # without a right candidate, the first model's scores are used
        self._trees = _grown(torch.cat(parts), y, self.rounds, seed, trees.left) if bool(y.any()) else None
        self._fit_models(sessions, seed, whole, 1)

    def _fit_models(self, sessions: SessionFrame, seed: int, whole: Deadline, rounds: int) -> None:
        """Fit each model in an equal share of the time left; quick models come last and leave theirs unused."""
        self._features = CandidateFeatures().fit(sessions)
        for i, model in enumerate(list(self.models.values())[::-1]):
            left = max(whole.left, 1.0) / 60 / rounds / (len(self.models) - i)
            fit = model.fit if rounds > 1 else model.refit  # what was chosen for the past is right for all
            fit(sessions, seed=seed, minutes=None if left == math.inf else left)
        self._take()

    def _take(self) -> None:
        """Make sources of the fitted models."""
        own = RepeatedItems()
        own.items = next(iter(self.models.values())).items
        sources = {n: ModelSource(m, fitted=True) for n, m in self.models.items()}
        self._candidates = Candidates({**sources, "own": own}, {**self.k, "own": limits.RANKED_CANDIDATES_FEW})

    def _scored(self, sessions: SessionFrame) -> tuple[Tensor, Tensor, Tensor]:
        """Return all candidates: sessions, codes, and scores, 0 for a session's least."""
        table = self._candidates.union(sessions)
        session, x = table["session"].values, _matrix(self._features(table, sessions))
        if self._trees is None or not len(x):
            return session, table["item"].values, x.nan_to_num(0)[:, 0]
        # With probabilities, a blend would use the first candidates only (Diginetica, 6,000 held-out events: NDCG@20 of
        # the blend with a net .2949, with log-odds .2958).
        score = log_odds(self._trees, x)
        least = torch.zeros(len(sessions)).scatter_reduce_(0, session, score, "amin", include_self=False)
        return session, table["item"].values, score - least[session]

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        out = self._features.popularity.mul(1e-30).repeat(len(sessions), 1)
        session, item, score = self._scored(sessions)
        out[session, item] = score + 2e-30  # above the most popular other item
        return out

    def standard_scores(self, sessions: SessionFrame) -> torch.Tensor:
        """Compute ``SessionModel.standard_scores`` from the candidates alone: all other items have one score."""
        sessions = sessions.recode(self._known())
        session, item, score = self._scored(sessions)
        counts, score = torch.bincount(session, minlength=len(sessions)), score.double()
        if not bool((counts > 0).all()):  # there popularity alone puts items in order
            return super().standard_scores(sessions)
        codes, reserved = len(sessions.items), len(sessions.items.reserved)
        mean = torch.zeros(len(sessions), dtype=torch.float64).index_add_(0, session, score) / (codes - reserved)
        spread = (codes - reserved - counts) * mean.square()
        spread.index_add_(0, session, (score - mean[session]).square())
        deviation = (spread / (codes - reserved)).sqrt().clamp_min(1e-30)
        out = (-mean / deviation).float().unsqueeze(1).repeat(1, codes)
        out[:, :reserved] = 0.0
        out[session, item] = ((score - mean[session]) / deviation[session]).float()
        return out

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "_trees": None if self._trees is None else _as_bytes(self._trees)}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore({**state, "_trees": None if state["_trees"] is None else _of_bytes(state["_trees"])})
        self._take()


class ObjectiveRanker(Saved):
    """Candidates of several models, ordered by boosted trees per goal, such as clicks, carts and orders.

    Args:
        objectives: the goals: kinds of events, as ``event`` names them.
        models: name → model that finds candidates; a session's own items are candidates too.
        event: side feature of the kinds of events (``SessionFrame(features=…)``).
        k: candidates per model, or name → number.
        negatives: wrong candidates per session for the trees.
        rounds: trees per goal.

    Attributes:
        candidates: the fitted sources; ``candidates.seconds`` has their times.
        instead: goal → source whose order comes before the trees'; for goals where it is better on held-out sessions.

    Source: the solutions of the OTTO competition (Kaggle 2022): co-visitation by kinds of events, then boosted trees.
    """

    learned = ("items", "candidates", "instead", "_popular", "_kinds", "_timed", "_trees")

    def __init__(
        self,
        objectives: Sequence[str],
        models: Mapping[str, SessionModel],
        *,
        event: str = "type",
        k: int | Mapping[str, int] = 60,
        negatives: int = 40,
        rounds: int = 120,
    ) -> None:
        if not objectives or not models or negatives < 1 or rounds < 1:
            problem = f"{len(objectives)} goals, {len(models)} models, negatives={negatives}, rounds={rounds}"
            raise DataError(problem, remedy="Give one or more of each")
        self.objectives, self.models, self.event = list(objectives), dict(models), event
        self.k = dict(k) if isinstance(k, Mapping) else dict.fromkeys(self.models, k)
        self.negatives, self.rounds = negatives, rounds
        self.items: Vocab | None = None
        self._trees: dict[str, xgb.Booster] = {}
        self.instead: dict[str, str] = {}

    def find(self, sessions: SessionFrame) -> Self:
        """Fit the sources and the features to all events known at prediction; the trees stay."""
        self.items, self._timed = sessions.items, sessions.times is not None
        sources = {n: ModelSource(m) for n, m in self.models.items()}
        self.candidates = Candidates({**sources, "own": RepeatedItems()}, {**self.k, "own": 20}).fit(sessions)
        self._popular, self._kinds = CandidateFeatures().fit(sessions), EventFeatures(self.event).fit(sessions)
        return self

    def learn(self, asked: SessionFrame, wanted: Mapping[str, SessionFrame], *, seed: int = 0) -> Self:
        """Train the trees of every goal.

        Args:
            asked: sessions up to a moment; ``find`` must not have seen later events.
            wanted: goal → the items of each session that reached it.
            seed: of everything random.

        Raises:
            NotFittedError: ``find`` was not called.
            DataError: no candidate is right for a goal, or ``wanted`` lacks it.
        """
        asked = asked.recode(self._known())
        if (absent := next((n for n in self.objectives if n not in wanted), None)) is not None:
            raise DataError(f"wanted lacks the goal {absent!r}", remedy=f"It has {', '.join(wanted) or 'none'}")
        parts: dict[str, list[tuple[Tensor, Tensor]]] = {n: [] for n in self.objectives}
        for table in self.candidates.stream(asked):
            numbers = self._numbers(table, asked)
            for i, name in enumerate(self.objectives):
                label = self.candidates.label(table, wanted[name])
                rows = sample_negatives(table, label, self.negatives, seed=seed + i)
                parts[name].append((numbers[rows], label[rows]))
        for name, found in parts.items():
            x, y = (torch.cat(part) for part in zip(*found, strict=True))
            if not bool(y.any()):
                raise DataError(f"no candidate is right for {name!r}", remedy="Give more sessions, or leave it out")
            self._trees[name] = _grown(x, y, self.rounds, seed)
        return self

    def recommend(self, asked: SessionFrame, k: int = 20) -> dict[str, Tensor]:
        """Return the best items of each session for every goal: codes int64 ``[n, k]``, 0 where there are fewer.

        Raises:
            NotFittedError: ``find`` or ``learn`` was not called.
        """
        check_whole("recommend", k=k)
        asked = asked.recode(self._known(learned=True))
        best = {n: torch.zeros((len(asked), k), dtype=torch.int64) for n in self.objectives}
        for table in self.candidates.stream(asked):
            session, item = table["session"].values, table["item"].values
            if not len(session):
                continue
            first, count = int(session[0]), int(session[-1] - session[0]) + 1
            numbers = self._numbers(table, asked)
            for name in self.objectives:
                score = log_odds(self._trees[name], numbers).sigmoid()
                if name in self.instead:  # below 1, the trees' probabilities stand behind
                    rank = table[f"{self.instead[name]}_rank"].values
                    score = torch.where(rank.isnan(), score, 1 + 1 / rank)
                best[name][first : first + count] = best_of_pairs(session - first, item, score, count, k)[0]
        return best

    def _state(self) -> dict[str, Any]:
        self._known(learned=True)
        return {**super()._state(), "_trees": {n: _as_bytes(t) for n, t in self._trees.items()}}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore({**state, "_trees": {n: _of_bytes(raw) for n, raw in state["_trees"].items()}})

    def _numbers(self, table: Table, asked: SessionFrame) -> Tensor:
        if (asked.times is not None) != self._timed:
            problem = f"sessions {'without' if self._timed else 'with'} times, unlike those that find was given"
            raise DataError(problem, remedy="Make both with order=…, or neither")
        return _matrix(self._kinds(self._popular(table, asked), asked))

    def _known(self, learned: bool = False) -> Vocab:
        if self.items is None:
            raise NotFittedError("nothing finds candidates yet", remedy="Call find first")
        if learned and not self._trees:
            raise NotFittedError("no trees have been grown", remedy="Call learn first")
        return self.items


def events_of(sessions: SessionFrame, event: str, kind: str, *, first: bool = False) -> SessionFrame:
    """Return each session's events of one kind.

    Args:
        event: side feature of the kinds of events.
        kind: which are kept.
        first: keep only the first of them.

    Raises:
        MissingColumnError, DataError: there is no such side feature, or it is a number.
    """
    names = sessions.kinds(event)
    kept = sessions.sides[event] == (names.index(kind) if kind in names else -1)
    made = sessions.cut(sessions.offsets[:-1], sessions.offsets[1:])
    made._keep(kept)
    if first:
        starts = made.offsets[:-1]
        made = made.cut(starts, torch.minimum(starts + 1, made.offsets[1:]))
    made.sessions = sessions.sessions
    return made


def recall_of_sets(items: Tensor, wanted: SessionFrame) -> float:
    """Return ``Σ found / Σ min(k, wanted)`` over sessions; NaN if nothing is wanted.

    Args:
        items: codes int64 ``[n, k]`` of the vocabulary of ``wanted``; 0: none.
        wanted: each session's items, counted once each; unknown ones count and are never found.
    """
    codes = len(wanted.items)
    rows = torch.repeat_interleave(wanted.lengths)
    known = wanted.values > 0
    pairs = torch.unique((rows * codes + wanted.values)[known])
    counts = torch.bincount(pairs // codes, minlength=len(wanted)) + torch.bincount(rows[~known], minlength=len(wanted))
    given = (torch.arange(len(items))[:, None] * codes + items)[items > 0]
    total = int(counts.clamp_max(items.shape[1]).sum())
    return int(torch.isin(pairs, given).sum()) / total if total else float("nan")
