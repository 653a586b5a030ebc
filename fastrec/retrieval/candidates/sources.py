"""Sources of candidates: models, near vectors, a session's own items, popularity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from fastrec.errors import DataError, NotFittedError, check_whole
from fastrec.retrieval.base import Saved, best_first
from fastrec.retrieval.index import Index
from fastrec.sequences import CoVisitation, SessionFrame, SessionModel
from fastrec.sequences.neighbours import by_age
from fastrec.table import Table, Vocab, as_column
from fastrec.table.column import rows_of


class CandidateSource(Saved, ABC):
    """Learns from sessions, then finds some items for each session.

    Your own class defines ``_fit`` and ``_best``, and to be saved ``learned`` (see ``Saved``).
    """

    items: Vocab | None = None
    fitted_to = ("items",)

    @abstractmethod
    def _fit(self, sessions: SessionFrame) -> None:
        """Learn; what is needed of them only."""

    @abstractmethod
    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        """Return the result of ``best``."""

    def fit(self, sessions: SessionFrame) -> Self:
        """Learn from the sessions before those to ask for (see ``cut_at``)."""
        self.items = sessions.items
        self._fit(sessions)
        return self

    def best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        """Return each session's ``k`` best items.

        Returns:
            Codes int64 ``[n, k]``, best first, and scores float32 ``[n, k]``; 0 and -inf where there are fewer.

        Raises:
            NotFittedError: ``fit`` was not called.
            DataError: ``k`` is below 1.
        """
        if self.items is None:
            raise NotFittedError(f"{type(self).__name__} has not been fitted", remedy="Call fit first")
        check_whole("find", k=k)
        return self._best(sessions.recode(self.items), k)

    def find(self, sessions: SessionFrame, k: int) -> Table:
        """Return the best items of each session as rows.

        Returns:
            ``session`` (number, int64), ``item`` (code, int64), ``score`` (float32) and ``rank`` (from 1), by session
            and rank.
        """
        items, scores = self.best(sessions, k)
        session, place = (items > 0).nonzero(as_tuple=True)
        found = {"session": session, "item": items[session, place], "score": scores[session, place], "rank": place + 1}
        return Table(found)


def best_of_pairs(session: Tensor, item: Tensor, score: Tensor, count: int, k: int) -> tuple[Tensor, Tensor]:
    """Return each session's ``k`` best items (ties: the lower code) from rows in any order, each pair once."""
    order = torch.argsort(item, stable=True)
    order = order[best_first(session[order], score[order])]
    session, item, score = session[order], item[order], score[order]
    place = torch.arange(len(session)) - torch.searchsorted(session, session)
    kept = place < k
    items = torch.zeros((count, k), dtype=torch.int64)
    scores = torch.full((count, k), -torch.inf)
    items[session[kept], place[kept]] = item[kept]
    scores[session[kept], place[kept]] = score[kept].float()
    return items, scores


class ModelSource(CandidateSource):
    """The recommendations of a session model.

    Args:
        model: such as ``CoVisitation``, ``VSTAN``, ``PopularItems`` or a net.
        fitted: the model is fitted, and ``fit`` leaves it unchanged.
        exclude_seen: leave out the session's own items.
    """

    learned = ()

    def __init__(self, model: SessionModel, *, fitted: bool = False, exclude_seen: bool = False) -> None:
        self.model, self.fitted, self.exclude_seen = model, fitted, exclude_seen
        self.items = model.items if fitted else None

    def _fit(self, sessions: SessionFrame) -> None:
        if not self.fitted:
            self.model.fit(sessions)
        self.items = self.model.items

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        if not isinstance(self.model, CoVisitation):
            return self.model.recommend(sessions, k, self.exclude_seen)
        if not self.exclude_seen or not len(sessions):  # there is no need to score every item
            return self.model.candidates(sessions, k)
        items, scores = self.model.candidates(sessions, k + int(sessions.lengths.max()))
        rows = torch.arange(len(sessions))[:, None].expand_as(items)
        codes = len(sessions.items)
        own = torch.unique(rows_of(sessions.offsets) * codes + sessions.values)
        kept = (items > 0) & ~torch.isin(rows * codes + items, own)
        return best_of_pairs(rows[kept], items[kept], scores[kept], len(sessions), k)


class NearestVectors(CandidateSource):
    """The items nearest to the weighted mean of a session's vectors.

    Args:
        vectors: float ``[n, d]``, such as a net's item vectors.
        ids: of their items, ``[n]``.
        decay: an event ``d`` events from the session's end weighs ``exp(-d / decay)``.
        metric: ``"cosine"`` or ``"dot"``.
    """

    constructed, learned = False, ("index", "decay", "_code", "_place")

    def __init__(self, vectors: Tensor, ids: Any, *, decay: float = 2.0, metric: Any = "cosine") -> None:
        if not decay > 0:
            raise DataError(f"decay={decay} is not above 0", remedy="Give a number of events")
        self.index, self.decay = Index(vectors, ids, metric=metric, verbose=False), decay

    def _fit(self, sessions: SessionFrame) -> None:
        """Find the place of every code (-1: none), and the code of every place (0: none)."""
        self._code = sessions.items.encode(as_column(self.index.ids.values, name="item"))
        self._place = torch.full((len(sessions.items),), -1, dtype=torch.int64)
        known = self._code > 0
        self._place[self._code[known]] = torch.arange(len(self._code))[known]

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        rows, steps = sessions.steps()
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
        allowed = self._code > 0 if bool((self._code == 0).any()) else None
        found, best = self.index.search(query[some], k, allowed=allowed)
        items[some] = torch.where(found < 0, 0, self._code[found.clamp_min(0)])
        scores[some] = best
        return items, scores


class RepeatedItems(CandidateSource):
    """The session's own items, the latest and most frequent first.

    Args:
        decay: an event ``d`` events from the session's end weighs ``exp(-d / decay)``.
    """

    learned = ()

    def __init__(self, *, decay: float = 5.0) -> None:
        if not decay > 0:
            raise DataError(f"decay={decay} is not above 0", remedy="Give a number of events")
        self.decay = decay

    def _fit(self, sessions: SessionFrame) -> None:
        pass

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        (rows, steps), codes = sessions.steps(), len(sessions.items)
        there = sessions.values > 0
        pair, which = torch.unique((rows * codes + sessions.values)[there], return_inverse=True)
        score = torch.zeros(len(pair), dtype=torch.float64)
        score.index_add_(0, which, torch.exp(-steps[there].double() / self.decay))
        return best_of_pairs(pair // codes, pair % codes, score, len(sessions), k)


class SegmentPopularity(CandidateSource):
    """The items with the most events in the session's segment.

    Args:
        segment: side feature of codes (``SessionFrame(features=…)``): a country, a device; the session's last event
            counts. None: one segment.
        recency: an event weighs ``exp(-age / recency)``, its session's age in shares of the log's span; None: 1.
        most: number of items stored per segment.
    """

    learned = ("_items", "_scores")

    def __init__(self, segment: str | None = None, *, recency: float | None = 0.1, most: int = 200) -> None:
        if (recency is not None and not recency > 0) or most < 1:
            raise DataError(f"recency={recency}, most={most}", remedy="Give numbers above 0")
        self.segment, self.recency, self.most = segment, recency, most

    def _fit(self, sessions: SessionFrame) -> None:
        sessions, age = by_age(sessions)
        weight = torch.ones_like(age) if self.recency is None else torch.exp(-age / self.recency)
        there = sessions.values > 0
        segment, codes = self._of_events(sessions)[there], len(sessions.items)
        pair, which = torch.unique(segment * codes + sessions.values[there], return_inverse=True)
        score = torch.zeros(len(pair), dtype=torch.float64)
        score.index_add_(0, which, weight[rows_of(sessions.offsets)][there])
        count = int(segment.max()) + 1 if len(segment) else 1
        self._items, self._scores = best_of_pairs(pair // codes, pair % codes, score, count, self.most)

    def _of_events(self, sessions: SessionFrame) -> Tensor:
        if self.segment is None:
            return torch.zeros_like(sessions.values)
        sessions.kinds(self.segment)  # refuses what is no segment
        return sessions.sides[self.segment]

    def _best(self, sessions: SessionFrame, k: int) -> tuple[Tensor, Tensor]:
        segment = sessions.at_ends(self._of_events(sessions))  # code 0: not known
        segment = segment.masked_fill(segment >= len(self._items), 0)
        items, scores = self._items[segment][:, :k], self._scores[segment][:, :k]
        short = (0, k - items.shape[1])
        return F.pad(items, short), F.pad(scores, short, value=-torch.inf)


def sessions_of(table: Table, sessions: SessionFrame) -> tuple[SessionFrame, Tensor, Tensor]:
    """Return the sessions that occur in a table of candidates, and each row's place among them and its item."""
    present, session = torch.unique(table["session"].values, return_inverse=True)
    return sessions.take(present), session, table["item"].values
