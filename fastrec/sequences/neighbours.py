"""Session kNN: sessions similar to a session, and the items they contain."""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, sessions, shared, view
from fastrec.errors import DataError
from fastrec.sequences.base import SessionModel, sequence_metrics
from fastrec.sequences.reading import SessionFrame, by_time, prefixes
from fastrec.table.column import offsets_of, rows_of

# The sums that all session kNN have in common.


class Decays(NamedTuple):
    """Weights by a distance in events, float32 ``[distances]``; the last one applies to all larger distances."""

    own: Tensor  # of an item, by how far it is from the end of the session that is asked for
    back: Tensor  # of a neighbour, by how far from that end the latest shared item is
    after: Tensor  # of a neighbour's item, by how far after that shared item it stands
    before: Tensor  # and by how far before


def exponential(length: float | None) -> Tensor:
    """Return ``exp(-distance / length)``; None: 1 at any distance."""
    if length is None:
        return torch.ones(1)
    return torch.exp(-torch.arange(limits.NEIGHBOURS_FARTHEST, dtype=torch.float64) / length).float()


@dataclass
class SessionIndex:
    """Past sessions, and the sessions of each item."""

    values: Tensor  # codes of items, int64, session ``i`` at ``offsets[i]`` up to ``offsets[i + 1]``
    offsets: Tensor
    sessions: Tensor  # item ``j`` is in ``sessions[starts[j] : starts[j + 1]]``, last at ``places`` there
    places: Tensor
    starts: Tensor

    @classmethod
    def of(cls, values: Tensor, offsets: Tensor, n_items: int) -> SessionIndex:
        """Index packed sessions in the order of time; codes are 0 to ``n_items - 1``."""
        session = rows_of(offsets)
        order = torch.argsort(values, stable=True)  # within an item by session, within that by place
        item, session = values[order], session[order]
        last = torch.ones(len(order), dtype=torch.bool)
        last[:-1] = (item[1:] != item[:-1]) | (session[1:] != session[:-1])
        item, session = item[last], session[last]
        places = order[last] - offsets[session]
        return cls(values, offsets, session, places, offsets_of(torch.bincount(item, minlength=n_items)))

    def score(
        self,
        values: Tensor,
        offsets: Tensor,
        decays: Decays,
        *,
        of_session: Tensor,
        of_item: Tensor,
        prior: Tensor,
        sample: int,
        k: int,
    ) -> Tensor:
        """Score all items for sessions (``values``, ``offsets``; codes below 0 are unknown items): float32 ``[sessions,
        n_items]``.

        The similarity of two sessions is the sum of the weights of their shared items, times the neighbour's factor. Of
        the ``sample`` latest sessions with a shared item, the ``k`` most similar (ties: the later) add their
        similarity, times the decays and the item's factor above 0, to their items. ``prior`` is added to every score.
        """
        out = (prior / of_item).repeat(len(offsets) - 1, 1)
        queries, factors = (values, offsets), (of_session, of_item)
        known = values[values >= 0]
        work = int((self.starts[known + 1] - self.starts[known]).sum())
        if not compiled(max(work, out.numel())):  # numpy goes session by session, however little they share
            _without_loops(self, queries, decays, factors, (sample, k), out)
            return out
        postings = (self.sessions, self.places, self.starts)
        given = (queries, (self.values, self.offsets), postings, tuple(decays), factors)
        arrays = (tuple(view(x.contiguous()) for x in some) for some in given)
        shared(sessions().score_by_neighbours, *arrays, (sample, k), view(out), numbers=work)
        return out


def _without_loops(
    index: SessionIndex, queries: Any, decays: Decays, factors: Any, at_most: tuple[int, int], out: Tensor
) -> None:
    """Compute the same as the compiled loop: NumPy, one session at a time."""
    (values, offsets), (of_session, _) = (tuple(x.numpy() for x in pair) for pair in (queries, factors))
    names = ("values", "offsets", "sessions", "places", "starts")
    log, log_offsets, sessions, places, starts = (getattr(index, n).numpy() for n in names)
    own, by_end, after, before = (d.numpy() for d in decays)
    for row, lo, hi in zip(out.numpy(), offsets[:-1], offsets[1:], strict=True):
        items, steps = np.unique(values[lo:hi][::-1], return_index=True)  # each once, where it stands last
        weight = own[steps.clip(max=len(own) - 1)]
        items, steps, weight = (x[(items >= 0) & (weight > 0)] for x in (items, steps, weight))
        order = np.argsort(steps)
        items, steps, weight = items[order], steps[order], weight[order]
        of, at = _stretches(starts, items)
        near, first, which = np.unique(sessions[at], return_index=True, return_inverse=True)
        alike = np.bincount(which, weight[of], len(near)).astype(np.float32)
        place, back = places[at][first], steps[of][first]
        near, alike, place, back = (x[-at_most[0] :] for x in (near, alike, place, back))
        alike = alike * of_session[near]
        best = np.lexsort((-near, -alike))[: at_most[1]]  # of equal ones the later session first
        near, given, place = near[best], (alike * by_end[back.clip(max=len(by_end) - 1)])[best], place[best]
        of, at = _stretches(log_offsets, near)
        away = at - (log_offsets[near] + place)[of]
        fades = np.where(away >= 0, after[away.clip(0, len(after) - 1)], before[(-away).clip(0, len(before) - 1)])
        items, which = np.unique(log[at], return_inverse=True)
        row[items] += np.bincount(which, given[of] * fades).astype(np.float32)
    out *= factors[1]


def _stretches(starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of some rows: each one's index among the rows, and its place."""
    first, lengths = starts[rows], starts[rows + 1] - starts[rows]
    of = np.repeat(np.arange(len(rows)), lengths)
    return of, np.arange(len(of)) + (first - lengths.cumsum() + lengths)[of]


Recency = float | Literal["held-out"] | None


class SessionKNN(SessionModel):
    """Scores items by their occurrence in similar sessions; items in no neighbour come last, by popularity.

    Your own class defines ``settings`` and ``_weights``.

    Args:
        k: number of neighbours.
        sample: how many of the latest sessions with a shared item are compared.
    """

    learned = ("_log", "_of_session", "_of_item", "_decays")

    def __init__(self, *, k: int, sample: int, recency: Recency = None) -> None:
        if isinstance(recency, str) and recency != "held-out":
            raise DataError(f"there is no recency {recency!r}", remedy="Use a number, 'held-out' or None")
        if k < 1 or sample < k:
            raise DataError(f"k={k} neighbours out of {sample}", remedy="Give k of 1 or more, and no smaller a sample")
        self.k, self.sample, self.recency = k, sample, recency

    @abstractmethod
    def _weights(self, sessions: SessionFrame) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        """Return factors of the training sessions (in the order of time) and of codes, float64, and the decays."""

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions, age = by_age(sessions)
        recency = self.recency if self.recency != "held-out" else self._held_out_recency(sessions, minutes)
        self._chosen = recency
        of_session, of_item, self._decays = self._weights(sessions)
        of_session = of_session if recency is None else of_session * torch.exp(-age / recency)
        self._of_session, self._of_item = of_session.float(), of_item.float()
        self._log = sessions.values, sessions.offsets
        self._take()

    def _take(self) -> None:
        """Index the sessions; items that no neighbour has get scores by popularity, too small to reorder others."""
        self._index = SessionIndex.of(*self._log, len(self._of_item))
        sessions = self._index.starts.diff().float()
        self._prior = sessions / sessions.max().clamp_min(1) * 1e-30

    def refit(self, sessions: SessionFrame, *, seed: int = 0, minutes: float | None = None) -> Self:
        """Learn from other sessions with the recency of the last ``fit``."""
        given, self.recency = self.recency, getattr(self, "_chosen", self.recency)
        try:
            return self.fit(sessions, seed=seed, minutes=minutes)
        finally:
            self.recency = given

    def _held_out_recency(self, sessions: SessionFrame, minutes: float | None) -> float | None:
        """Return the recency with the best NDCG@20 on the last sessions, learned from the earlier ones."""
        until = math.inf if minutes is None else time.monotonic() + 60 * minutes * limits.RECENCY_TIME
        past, late = by_time(sessions, limits.RECENCY_SHARE)
        asked = prefixes(late, last=limits.RECENCY_EVENTS, longest=limits.PREFIX_LONGEST)
        asked = asked.take(torch.arange(max(len(asked) - limits.RECENCY_EVENTS, 0), len(asked)))
        scores: dict[float | None, float] = {}
        for recency in limits.RECENCIES if len(asked) and bool((past.lengths > 1).any()) else ():
            if time.monotonic() > until:
                break
            trial = copy.copy(self)
            trial.recency = recency
            ranking = trial.fit(past).score(asked)
            scores[recency] = sequence_metrics(ranking, asked.target)["ndcg@20"]  # type: ignore[arg-type]
        # The first recency is preferred unless another is clearly better, so that similar logs give the same choice.
        worth = {r: s * (1 + limits.RECENCY_GAIN * (r == limits.RECENCIES[0])) for r, s in scores.items()}
        return max(worth, key=worth.__getitem__, default=limits.RECENCIES[0])

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        values = torch.where(sessions.values > 0, sessions.values, -1)
        factors = {"of_session": self._of_session, "of_item": self._of_item, "prior": self._prior}
        return self._index.score(values, sessions.offsets, self._decays, **factors, sample=self.sample, k=self.k)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._decays = Decays(*self._decays)  # a tuple comes back as a list
        self._take()


def by_age(sessions: SessionFrame) -> tuple[SessionFrame, torch.Tensor]:
    """Return sessions in the order of their ends, and their ages in shares of the log's span: float64 ``[n]``, last 0.

    Without times, the order is that of the sessions.
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
    """Return ``log(sessions / sessions with the item)`` of every code, float64; codes in no session count as in one."""
    pairs = torch.unique(rows_of(sessions.offsets) * len(sessions.items) + sessions.values)
    counts = torch.bincount(pairs % len(sessions.items), minlength=len(sessions.items))
    return torch.log(len(sessions) / counts.clamp_min(1).double())


Decay = Literal["same", "harmonic", "linear", "log", "quadratic"]
_STEPS = torch.arange(1, (1 << 10) + 1, dtype=torch.float64)
_DECAYS = {
    "same": torch.ones(1, dtype=torch.float64),
    "harmonic": 1 / _STEPS,
    "linear": torch.arange(10, -1, -1, dtype=torch.float64) / 10,  # nothing from the eleventh event on
    "log": 1 / torch.log10(_STEPS + 1.7),
    "quadratic": 1 / _STEPS**2,
}


class VSKNN(SessionKNN):
    """Vector multiplication session kNN: similarity is the sum of the decayed weights of shared items.

    Args:
        k, sample: see ``SessionKNN``.
        weighting: decay of an item's weight with its distance from the session's end.
        score_weighting: decay of a neighbour's weight with the distance of the latest shared item from that end.
        idf: an item's score is multiplied by ``1 + idf · log(sessions / sessions with it)``.

    Source: Ludewig, Jannach 2018, "Evaluation of session-based recommendation algorithms", §3.4.
    """

    def __init__(
        self,
        *,
        k: int = 100,
        sample: int = 1000,
        weighting: Decay = "harmonic",
        score_weighting: Decay = "harmonic",
        idf: float = 0.0,
    ) -> None:
        super().__init__(k=k, sample=sample)
        for given in (weighting, score_weighting):
            if given not in _DECAYS:
                raise DataError(f"there is no decay {given!r}", remedy=f"Use one of {', '.join(_DECAYS)}")
        self.weighting, self.score_weighting, self.idf = weighting, score_weighting, idf

    def _weights(self, sessions: SessionFrame) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        own, back = (_DECAYS[d].float() for d in (self.weighting, self.score_weighting))
        everywhere = exponential(None)
        of_item = 1 + self.idf * inverse_frequency(sessions)
        return torch.ones(len(sessions)), of_item, Decays(own, back, everywhere, everywhere)


class VSTAN(SessionKNN):
    """STAN with two weights of V-SKNN: the place of the latest shared item, and the rarity of an item.

    The defaults were chosen on the last sessions of Diginetica's training part. None, for ``own``, ``back``, ``near``
    and ``recency``: no decay.

    Args:
        k, sample: see ``SessionKNN``.
        own: an item ``d`` events from the session's end weighs ``exp(-d / own)``.
        back: a neighbour whose latest shared item is ``d`` events from that end weighs ``exp(-d / back)``.
        near: a neighbour's item ``d`` events from the shared one weighs ``exp(-d / near)``.
        before: factor of items before the shared one.
        recency: a neighbour weighs ``exp(-age / recency)``, its age in shares of the log's span; ``'held-out'``: the
            best of six values on the last tenth of the sessions.
        idf: an item's score is multiplied by ``1 + idf · log(sessions / sessions with it)``.

    Source: Ludewig, Mauro, Latifi, Jannach 2021, "Empirical analysis of session-based recommendation algorithms".
    """

    def __init__(
        self,
        *,
        k: int = 300,
        sample: int = 10_000,
        own: float | None = 6.0,
        back: float | None = 1.5,
        near: float | None = 4.0,
        before: float = 0.5,
        recency: Recency = 1.0,
        idf: float = 1.0,
    ) -> None:
        super().__init__(k=k, sample=sample, recency=recency)
        self.own, self.back, self.near, self.before, self.idf = own, back, near, before, idf

    def _weights(self, sessions: SessionFrame) -> tuple[torch.Tensor, torch.Tensor, Decays]:
        near = exponential(self.near)
        decays = Decays(exponential(self.own), exponential(self.back), near, near * self.before)
        of_session = sessions.lengths.clamp_min(1).double().rsqrt()  # the neighbour's part of the cosine
        of_item = 1 + self.idf * inverse_frequency(sessions) if self.idf else torch.ones(len(sessions.items))
        return of_session, of_item, decays


class STAN(VSTAN):
    """Sequence and time aware neighbourhood: three exponential decays on the cosine of sessions.

    Args:
        k, sample: see ``SessionKNN``.
        own, recency, near: the decays λ1, λ2 and λ3, see ``VSTAN``.

    Source: Garg, Gupta, Malhotra, Vig, Shroff 2019, "Sequence and time aware neighborhood for session-based
    recommendations: STAN".
    """

    def __init__(
        self,
        *,
        k: int = 500,
        sample: int = 5000,
        own: float | None = 3.0,
        recency: Recency = 0.7,
        near: float | None = 3.0,
    ) -> None:
        decays = {"own": own, "back": None, "near": near, "before": 1.0, "recency": recency}
        super().__init__(k=k, sample=sample, idf=0.0, **decays)
