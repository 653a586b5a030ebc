"""Filters of candidates, and orders beside the scores: boosts, quotas, variety.

An order is called with the candidates of all sessions, best first within a session (session and item: int64 ``[n]``,
score: float32 ``[n]``), the items' ``Vocab`` and the number shown. It returns the rows in their new order, and scores.
A filter is called with the table of candidates (``session`` and ``item``: numbers and codes) and the sessions; it
returns a bool per row: whether it stays. Your own may be any such functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.retrieval.base import Saved, best_first
from fastrec.sequences import SessionFrame
from fastrec.table import Column, Table, Vocab, as_column
from fastrec.table.column import rows_of


class Seen(Saved):
    """Filters out the session's own items."""

    learned = ()

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``."""
        codes = len(sessions.items)
        own = torch.unique(rows_of(sessions.offsets) * codes + sessions.values)
        return ~torch.isin(table["session"].values * codes + table["item"].values, own)


class Available(Saved):
    """Keeps only available items; ``set`` changes them between requests."""

    learned = ()

    def __init__(self, ids: Any) -> None:
        self.set(ids)

    def set(self, ids: Any) -> None:
        """Make only these items available from now on."""
        self.ids, self._vocab = as_column(ids, name="item"), None

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``."""
        if self._vocab is not sessions.items:
            self._mask, self._vocab = _mask(self.ids, sessions.items), sessions.items
        return self._mask[table["item"].values]


class InSegment(Saved):
    """Keeps only items of the session's segment.

    Args:
        segment: side feature of events (``SessionFrame(features=…)``); the session's last event counts.
        allowed: segment → ids of its items; sessions of other segments keep all.
    """

    learned = ()

    def __init__(self, segment: str, allowed: Mapping[str, Any]) -> None:
        self.segment, self.allowed = segment, {n: as_column(v, name="item") for n, v in allowed.items()}

    def __call__(self, table: Table, sessions: SessionFrame) -> Tensor:
        """Return bool ``[rows]``, True for rows that stay; refuse sessions without the side feature ``segment``."""
        sessions.kinds(self.segment)  # refuses what is no side feature of codes
        of_session = sessions.at_ends(sessions.sides[self.segment])
        segment, item = of_session[table["session"].values], table["item"].values
        stays = torch.ones(len(table), dtype=torch.bool)
        for code, name in enumerate(map(str, sessions.codings[self.segment].vocab.classes)):
            if name in self.allowed:
                rows = segment == code
                stays[rows] = _mask(self.allowed[name], sessions.items)[item[rows]]
        return stays


def _mask(ids: Column, items: Vocab) -> Tensor:
    """Return bool ``[codes]``: whether the item is among the ids; unknown ids are ignored."""
    mask = torch.zeros(len(items), dtype=torch.bool)
    if len(ids):  # no ids have no type
        mask[items.encode(ids)] = True
    mask[: len(items.reserved)] = False
    return mask


Ordered = tuple[Tensor, Tensor]


class Boost(Saved):
    """Raises some items' scores by a share of the range of the session's scores.

    Args:
        ids: of the items.
        amount: such as 0.1 for a tenth of the range; negative: lower.
    """

    learned = ()

    def __init__(self, ids: Any, amount: float) -> None:
        self.ids, self.amount = as_column(ids, name="item"), amount

    def __call__(self, session: Tensor, item: Tensor, score: Tensor, items: Vocab, k: int) -> Ordered:
        """Return rows int64 ``[n]`` in their new order, and their scores float32 ``[n]``."""
        boosted = _mask(self.ids, items)
        low, high = _bounds(session, score)
        score = score + self.amount * (high - low)[session] * boosted[item]
        order = best_first(session, score)
        return order, score[order]


class Quota(Saved):
    """Limits the items of a group shown first; the others come after all other items.

    Args:
        ids: of the items.
        groups: of each item, of any key type, such as brands.
        most: items per group.

    Raises:
        DataError: lengths differ, or ``most`` is below 1.
    """

    learned = ()

    def __init__(self, ids: Any, groups: Any, most: int) -> None:
        self.ids, self.groups = as_column(ids, name="item"), as_column(groups, name="group")
        if len(self.ids) != len(self.groups) or most < 1:
            remedy = "Give each item a group, and 1 or more"
            raise DataError(f"{len(self.ids)} items, {len(self.groups)} groups, at most {most} of each", remedy=remedy)
        self.most = most

    def __call__(self, session: Tensor, item: Tensor, score: Tensor, items: Vocab, k: int) -> Ordered:
        """Return rows in their new order, and their scores; items without a group are not limited."""
        of_item = torch.zeros(len(items), dtype=torch.int64)
        of_item[items.encode(self.ids)] = self.groups.coded().codes.cpu()
        of_item[: len(items.reserved)] = 0
        group = of_item[item]
        key = session * (int(of_item.max()) + 1) + group
        order = torch.argsort(key, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order)) - torch.searchsorted(key[order], key[order])
        over = (place >= self.most) & (group > 0)
        order = torch.argsort(session * 2 + over, stable=True)
        return order, score[order]


class MMR(Saved):
    """Maximal marginal relevance: each next item is good and unlike those before it.

    It maximises ``share · relevance − (1 − share) · similarity``: the score, scaled to 0 to 1 within the session, and
    the highest cosine with an item before it.

    Args:
        vectors: float ``[n, d]``; items without one are unlike all others.
        ids: of their items.
        share: of relevance; 1 keeps the order.
        depth: the best ``depth * k`` candidates of a session are ordered.

    Raises:
        DataError: shapes do not fit, or ``share`` is not between 0 and 1.

    Source: Carbonell, Goldstein 1998, "The use of MMR, diversity-based reranking for reordering documents and producing
    summaries".
    """

    learned = ("vectors",)  # as they were: a length of 1 divided by itself is rounded

    def __init__(self, vectors: Tensor, ids: Any, *, share: float = 0.7, depth: int = 5) -> None:
        self.vectors, self.ids = torch.nn.functional.normalize(vectors.float(), dim=1), as_column(ids, name="item")
        if len(self.ids) != len(self.vectors) or not 0 <= share <= 1 or depth < 1:
            problem = f"{len(self.vectors)} vectors, {len(self.ids)} ids, share={share}, depth={depth}"
            raise DataError(problem, remedy="Give each vector an id, a share from 0 to 1, and a depth of 1 or more")
        self.share, self.depth = share, depth

    def __call__(self, session: Tensor, item: Tensor, score: Tensor, items: Vocab, k: int) -> Ordered:
        """Return rows in their new order, and their scores; candidates beyond the depth keep their order behind."""
        table = torch.zeros(len(items), self.vectors.shape[1])
        table[items.encode(self.ids)] = self.vectors
        table[: len(items.reserved)] = 0.0
        place = torch.arange(len(session)) - torch.searchsorted(session, session)
        low, high = _bounds(session, score)
        spread = (high - low)[session]
        relevance = (score - low[session]) / torch.where(spread > 0, spread, 1)
        rank = place + k + 1  # behind all that are chosen
        width = k * self.depth
        for sessions in torch.unique(session).split(1 << 9):
            rows = (torch.isin(session, sessions) & (place < width)).nonzero().squeeze(1)
            at = torch.searchsorted(sessions, session[rows]), place[rows]
            self._choose(rows, at, relevance[rows], table[item[rows]], k, rank)
        order = best_first(session, -rank)
        return order, score[order]

    def _choose(
        self, rows: Tensor, at: tuple[Tensor, Tensor], relevance: Tensor, vectors: Tensor, k: int, rank: Tensor
    ) -> None:
        """Write the ranks of the first ``k`` choices of some sessions into ``rank``."""
        if not len(rows):
            return
        shape = int(at[0].max()) + 1, int(at[1].max()) + 1
        row = torch.full(shape, -1)
        row[at] = rows
        value = torch.zeros(shape)
        value[at] = relevance
        left = row >= 0
        found = torch.zeros(*shape, vectors.shape[1])
        found[at] = vectors
        alike = torch.zeros(shape)  # the highest cosine so far; nothing is worse than unlike
        every = torch.arange(shape[0])
        for i in range(min(k, shape[1])):
            worth = self.share * value - (1 - self.share) * alike
            best = worth.masked_fill(~left, -torch.inf).argmax(1)
            chosen = left[every, best]
            rank[row[every, best][chosen]] = i
            left[every, best] = False
            alike = torch.maximum(alike, (found @ found[every, best][:, :, None]).squeeze(2))


def _bounds(session: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    count = int(session.max()) + 1 if len(session) else 0
    low = torch.full((count,), torch.inf).scatter_reduce_(0, session, score, "amin")
    high = torch.full((count,), -torch.inf).scatter_reduce_(0, session, score, "amax")
    return low, high
