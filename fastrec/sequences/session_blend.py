"""``SessionBlend``: a weighted sum of several models' standardised scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.memory import keeping_memory
from fastrec.errors import DataError
from fastrec.sequences.base import SessionModel, best_items, hide_items, item_ranks, mean_gains, sequence_metrics
from fastrec.sequences.items import PopularItems
from fastrec.sequences.reading import SessionFrame, by_time, leave_one_out, prefixes

_STEPS = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.45, 2.0)  # a weight is tried times these


class FitStore(Protocol):
    """Stores finished parts of a blend's training."""

    def fit(self, model: SessionModel, sessions: SessionFrame, fit: Callable[[], object]) -> None:
        """Call ``fit``, which trains the model on the sessions, and store the model; or restore a stored one."""

    def choose(self, blend: SessionBlend, sessions: SessionFrame, choose: Callable[[], None]) -> None:
        """Call ``choose``, which sets ``weights``, ``valid`` and ``held``, and store these; or restore stored ones."""


class SessionBlend(SessionModel):
    """Weighted sum of models' scores, standardised per session, with weights chosen on held-out sessions.

    ``fit`` holds out the last sessions, or each one's last event, trains every model on the rest, chooses the weights
    by NDCG, and retrains all models on all sessions if the time allows.

    Args:
        models: name → model.
        weights: of each model; None: chosen by ``fit``.
        k: number of items by which weights are chosen.
        share: of the sessions, held out.
        most: maximum of scored held-out events, the last ones.
        hold: ``'sessions'``: all events of the last sessions; ``'events'``: each session's last event, if sessions are
            users who come back.
        exclude_seen: leave a session's own items out when choosing weights, and in ``recommend_each``.

    Attributes:
        valid: name → held-out metrics of each model, of the blend (``'blend'``, each half of the events by weights that
            the other half chose) and of the baseline (``'popularity'``).
        held: the held-out events, int64: ``'target'`` (codes), ``'length'`` (events before it) and, by the names of
            ``valid``, the target's rank, ``k + 1`` if not shown.
        store: stores finished parts, so that an interrupted ``fit`` can continue; None: nothing is stored.
    """

    store: FitStore | None = None
    learned = ("models", "valid")

    def __init__(
        self,
        models: dict[str, SessionModel] | None = None,
        *,
        weights: Sequence[float] | None = None,
        k: int = 20,
        share: float = 0.1,
        most: int = 8_000,
        hold: Literal["sessions", "events"] = "sessions",
        exclude_seen: bool = False,
    ) -> None:
        if hold not in ("sessions", "events"):
            raise DataError(f"a blend cannot hold out {hold!r}", remedy="Use 'sessions' or 'events'")
        self.models, self.weights, self.k = dict(models or {}), None if weights is None else list(weights), k
        self.share, self.most, self.hold, self.exclude_seen = share, most, hold, exclude_seen
        self.valid: dict[str, dict[str, float]] = {}
        self.held: dict[str, Tensor] = {}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, the models left out."""
        return {n: v for n, v in super().settings().items() if n != "models"}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        if not self.models:
            raise DataError("a blend of no models", remedy="Give one or more")
        until = None if minutes is None else time.monotonic() + 60 * minutes
        self._took: dict[int, float] = {}
        if self.weights is None:
            choose = partial(self._choose, sessions, seed, until)
            choose() if self.store is None else self.store.choose(self, sessions, choose)
        self._fit_all(sessions, seed, until)

    def _fit_all(self, sessions: SessionFrame, seed: int, until: float | None) -> None:
        """Train each model in an equal share of the time left; quick models come last and leave theirs unused.

        A model that was trained already, on fewer sessions, is kept if the time left is far less than it took.
        """
        took = self._took
        for i, model in enumerate(list(self.models.values())[::-1]):
            left = None if until is None else max(until - time.monotonic(), 1.0) / 60 / (len(self.models) - i)
            if left is not None and left * 60 < limits.SESSION_BLEND_ENOUGH * took.get(id(model), 0.0):
                continue
            began = time.monotonic()
            fit = partial(model.fit, sessions, seed=seed, minutes=left)
            fit() if self.store is None else self.store.fit(model, sessions, fit)
            took[id(model)] = time.monotonic() - began

    def _choose(self, sessions: SessionFrame, seed: int, until: float | None) -> None:
        """Choose weights on the last sessions, after training on the others in half or most of the time."""
        even, share_of_time = [1.0] * len(self.models), 0.5
        if self.hold == "events":
            train, asked = leave_one_out(sessions)
        else:
            share = min(self.share, max(self.most / max(len(sessions.values), 1), 2 / max(len(sessions), 1)))
            train, held = by_time(sessions, share)
            asked = prefixes(held, last=self.most, longest=limits.PREFIX_LONGEST)
            if len(held.values) <= limits.SESSION_BLEND_FEW * len(sessions.values):
                share_of_time = limits.SESSION_BLEND_ONCE
        if not len(asked) or not bool((train.lengths > 1).any()):
            self.weights = even
            return
        asked = asked.take(torch.arange(max(len(asked) - self.most, 0), len(asked)))
        ends = None if until is None else time.monotonic() + (until - time.monotonic()) * share_of_time
        self._fit_all(train, seed, ends)
        self.held = {"target": asked.target, "length": asked.lengths}
        codes, scores, best = self._best_of_each(asked)
        shown = dict(zip(self.models, best, strict=True))
        popular = self.popular_beside()
        if popular is not None:
            popular.fit(train)
            shown["popularity"] = popular.recommend(asked, self.k, self.exclude_seen)[0]
        for name, items in shown.items():
            self.held[name] = item_ranks(items, asked.target, self.k)
            self.valid[name] = sequence_metrics(items, asked.target, self.k, codes=len(sessions.items))
        if len(self.models) == 1:
            self.weights = even
        else:
            self._weigh(codes, scores, asked.target)

    def popular_beside(self) -> PopularItems | None:
        """Return an unfitted popularity baseline; None if one is among the models."""
        there = "popularity" in self.models or any(isinstance(m, PopularItems) for m in self.models.values())
        return None if there else PopularItems()

    def _weigh(self, codes: Tensor, scores: Tensor, target: Tensor) -> None:
        """Choose the weights with the best NDCG, and score weights that were chosen on other events.

        A few items per session suffice to try many weights: ``codes`` are int64 ``[n, c]``, ascending (an item may be
        there twice), ``scores`` of each model float32 ``[n, c, models]``, and ``target`` the right items, ``[n]``.
        """
        names = range(len(self.models))

        def chosen(rows: Tensor) -> list[float]:
            ranks = partial(_ranks, codes[rows], scores[rows], target[rows], k=self.k)

            def ndcg(weights: list[float]) -> float:
                return mean_gains(ranks(weights), self.k)[f"ndcg@{self.k}"]

            alone = max(([float(i == j) for i in names] for j in names), key=ndcg)
            found = [alone]
            # Even weights alone end in a local optimum: MovieLens-1M's blend reached .179, its net .194.
            for weights in ([1.0] * len(names), [w or 0.1 for w in alone]):
                for _ in range(3):
                    before = weights
                    for place in names[:0:-1]:  # the first model's stays: only ratios count
                        tried = [[*weights[:place], weights[place] * s, *weights[place + 1 :]] for s in _STEPS]
                        weights = max(tried, key=ndcg)
                    if weights == before:
                        break
                found.append(weights)
            return max(found[::-1], key=ndcg)

        rows = torch.arange(len(target))
        self.weights = chosen(rows)
        # Each half is scored by the weights of the other: those of its own would fit its chance.
        first, second = rows.tensor_split(2)
        halves = [
            _ranks(codes[b], scores[b], target[b], chosen(a), k=self.k) for a, b in ((second, first), (first, second))
        ]
        self.held["blend"] = torch.cat(halves)
        self.valid["blend"] = mean_gains(self.held["blend"], self.k)

    def _best_of_each(self, sessions: SessionFrame) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the union of the models' best items with all their scores; and each one's ``k`` best, ``[n, k]``."""
        order, parts, tops = [], [], []
        for rows, scores in self._parts(sessions):
            for s in scores:
                self._hide(s, sessions, rows)
            best = [best_items(s, limits.SESSION_BLEND_LOOKED_AT * self.k)[0] for s in scores]
            tops.append(torch.stack([b[:, : self.k] for b in best]))
            codes = torch.cat(best, 1).sort(1).values
            order.append(rows)
            parts.append((codes, torch.stack([s.gather(1, codes) for s in scores], 2)))
        rows = torch.argsort(torch.cat(order))
        codes, scores = (torch.cat(x)[rows] for x in zip(*parts, strict=True))
        return codes, scores, list(torch.cat(tops, 1)[:, rows])

    def _parts(self, sessions: SessionFrame) -> Any:
        """Yield blocks of sessions, and each model's standardised scores of them."""
        order = torch.argsort(sessions.lengths, stable=True)
        for rows in order.split(max(1, limits.BLOCK // max(len(sessions.items), 1))):
            part = sessions.take(rows)
            yield rows, [m.standard_scores(part) for m in self.models.values()]

    def _hide(self, scores: Tensor, sessions: SessionFrame, rows: Tensor) -> None:
        """Set reserved codes and, if asked, the sessions' own items to -inf."""
        scores[:, : len(sessions.items.reserved)] = -torch.inf
        if self.exclude_seen:
            hide_items(scores, sessions.take(rows))

    def _block(self, sessions: SessionFrame) -> Tensor:
        return _sum([m.standard_scores(sessions) for m in self.models.values()], self.weights)

    @keeping_memory()
    def recommend_each(
        self, sessions: SessionFrame, k: int, done: Callable[[int], None] | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return ``recommend`` of every model and, as ``'blend'``, of their blend, with one scoring.

        Args:
            k: number of items.
            done: called with the number of sessions just scored.
        """
        sessions = sessions.recode(self._known())
        names = [*self.models, *(["blend"] if len(self.models) > 1 else [])]
        found = {n: (torch.zeros(len(sessions), k, dtype=torch.int64), torch.zeros(len(sessions), k)) for n in names}
        for rows, parts in self._parts(sessions):
            together = [_sum([parts[0].clone(), *parts[1:]], self.weights)] if len(parts) > 1 else []
            for name, scores in zip(names, [*parts, *together], strict=True):
                self._hide(scores, sessions, rows)
                found[name][0][rows], found[name][1][rows] = best_items(scores, k)
            if done is not None:
                done(len(rows))
        return found


def _ranks(codes: Tensor, scores: Tensor, target: Tensor, weights: Sequence[float], *, k: int) -> Tensor:
    """Return the targets' ranks under some weights, int64 ``[n]``; ``k + 1``: not among the codes."""
    total = scores.nan_to_num(neginf=-1e30) @ torch.tensor(weights, dtype=torch.float32)
    again = torch.zeros_like(codes, dtype=torch.bool)
    again[:, 1:] = codes[:, 1:] == codes[:, :-1]
    total = total.masked_fill(again | (codes == 0), -torch.inf)
    same = (codes == target.unsqueeze(1)) & ~again & (target > 0).unsqueeze(1)
    place = same.long().argmax(1, keepdim=True)
    own = total.gather(1, place)
    ranks = (total > own).sum(1) + ((total == own) & (torch.arange(total.shape[1]) < place)).sum(1) + 1
    return torch.where(same.any(1), ranks, k + 1)


def _sum(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = parts[0].mul_(weights[0])  # in place
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.add_(part, alpha=weight)
    return total
