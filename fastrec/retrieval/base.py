"""``CollaborativeFilter``: learns from pairs of users and items and scores other pairs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError, check_whole, refuse_rows
from fastrec.table import Column, Table, Vocab, as_column
from fastrec.table.state import Saved


def interactions(users: Column, items: Column, weight: torch.Tensor | None) -> tuple[Vocab, Vocab, csr_matrix]:
    """Return both vocabularies and the float64 ``[users, items]`` matrix of weights, the largest of repeated pairs."""
    sizes = {"users": len(users), "items": len(items), "weight": len(users) if weight is None else len(weight)}
    if len(set(sizes.values())) > 1:
        raise DataError(f"interactions of unequal lengths: {sizes}", remedy="Give one of each for every interaction")
    if not len(users):
        raise DataError("there is no interaction to learn from", remedy="Give one or more")
    remedy = "Drop such rows first"
    for column in (users, items):
        column.refuse_missing("an id is missing", remedy)
    values = np.ones(len(users)) if weight is None else weight.double().numpy()
    bad = ~((values > 0) & np.isfinite(values))
    refuse_rows(bad, "a weight is not above 0, or infinite", column="weight", remedy=remedy)
    known = Vocab.fit(users), Vocab.fit(items)
    who, what = (v.encode(c).cpu().numpy() - 1 for v, c in zip(known, (users, items)))
    shape = len(known[0]) - 1, len(known[1]) - 1
    pairs, inverse = np.unique(who * shape[1] + what, return_inverse=True)
    largest = np.zeros(len(pairs))
    np.maximum.at(largest, inverse, values)
    return *known, csr_matrix((largest, (pairs // shape[1], pairs % shape[1])), shape=shape)


def row_sums(matrix: csr_matrix) -> np.ndarray:
    """Return float64 ``[rows]``."""
    return np.asarray(matrix.sum(axis=1)).ravel()


def without_diagonal(matrix: csr_matrix) -> csr_matrix:
    """Drop the diagonal of a square matrix."""
    return csr_matrix(matrix - diags(matrix.diagonal()))


def largest_of_rows(matrix: csr_matrix, k: int | None) -> csr_matrix:
    """Keep each row's ``k`` largest values (ties: further left); None: all."""
    if k is None:
        return matrix
    coo = matrix.tocoo()
    order = np.lexsort((coo.col, -coo.data, coo.row))
    counts = np.bincount(coo.row, minlength=matrix.shape[0])
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = order[place < k]
    return csr_matrix((coo.data[kept], (coo.row[kept], coo.col[kept])), shape=matrix.shape)


class CollaborativeFilter(Saved, ABC):
    """Learns from pairs of users and items, then scores any pair: higher is likelier.

    A pair given to ``fit`` has seen its own answer (``seen`` tells which): score other pairs. An unknown user or item
    scores 0. Before ``fit``, methods raise ``NotFittedError``.

    Your own class defines ``_learn`` and ``_rows``. ``scores_rows``: whether scores depend on a user's row alone, so
    that unknown users' rows can be scored.
    """

    scores_rows = False
    fitted_to, learned = ("_users", "_items"), ("_matrix", "_learned")

    def __init__(self) -> None:
        self._users: Vocab | None = None
        self._items: Vocab | None = None
        self._matrix = csr_matrix((0, 0))
        self._learned: dict[str, Any] = {}

    @abstractmethod
    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        """Learn from interactions: float64 ``[users, items]``, no row or column empty."""

    @abstractmethod
    def _rows(self, users: np.ndarray) -> np.ndarray:
        """Score all items for users by number: float64 ``[u, items]``."""

    def fit(self, users: Any, items: Any, weight: Any = None) -> Self:
        """Learn from interactions.

        Args:
            users, items: ``[n]`` ids of any key type, one interaction a row; none missing.
            weight: ``[n]`` above 0, the largest of a repeated pair counts; None: all 1.

        Raises:
            DataError: no row, a missing id, a weight of 0 or below, or different lengths.
        """
        who, what = as_column(users, name="users"), as_column(items, name="items")
        weights = None if weight is None else as_column(weight, name="weight").number().cpu()
        self._users, self._items, self._matrix = interactions(who, what, weights)
        self._learned = self._learn(self._matrix)
        return self

    def score(self, users: Any, items: Any) -> torch.Tensor:
        """Score pairs of ids: float64 ``[n]`` on the CPU; 0 for an unknown user or item.

        Raises:
            DataError: the lengths differ.
        """
        who, what = self._codes(users, items)
        result = np.zeros(len(who))
        order = np.argsort(who, kind="stable")
        order = order[np.searchsorted(who[order], 0) :]  # unknown users are -1
        distinct, starts = np.unique(who[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        for a, b in self._blocks(len(distinct)):
            rows = order[starts[a] : ends[b - 1]]
            scores = self._rows(distinct[a:b])
            result[rows] = scores[np.searchsorted(distinct[a:b], who[rows]), what[rows]]
        result[what < 0] = 0.0
        return torch.from_numpy(result)

    def recommend(self, users: Any, k: int, *, exclude_seen: bool = True) -> Table:
        """Return the best items of each user.

        Args:
            users: ``[u]`` ids; an unknown one gets the items with the most interactions.
            k: number of items, at most.
            exclude_seen: leave out the user's items of ``fit``.

        Returns:
            Columns ``user``, ``item``, ``score`` and ``place`` (from 0), users in the order given, best items first
            (ties: more interactions).

        Raises:
            DataError: ``k`` is below 1.
        """
        check_whole("recommend", k=k)
        column = as_column(users, name="users")
        codes = self._user_codes(column)
        usual = np.argsort(-np.diff(self._matrix.tocsc().indptr), kind="stable")  # most interactions first
        parts: list[tuple[np.ndarray, ...]] = []
        for a, b in self._blocks(len(codes)):
            scores = np.zeros((b - a, len(usual)))
            known = np.flatnonzero(codes[a:b] >= 0)
            if len(known):
                scores[known] = self._rows(codes[a:b][known])
                if exclude_seen:
                    row, item = self._matrix[codes[a:b][known]].nonzero()
                    scores[known[row], item] = -np.inf
            scores = scores[:, usual]
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(scores, order, 1)
            row, place = np.nonzero(best > -np.inf)
            parts.append((row + a, usual[order[row, place]], best[row, place], place))
        row, item, score, place = (np.concatenate(p) for p in zip(*parts)) if parts else [np.zeros(0, int)] * 4
        ids = self._items.decode(torch.from_numpy(item) + len(self._items.reserved))
        taken = column.take(torch.from_numpy(row))
        return Table({"user": taken, "item": ids, "score": score.astype(float), "place": place})

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Score all items for histories of anybody: float64 ``[n, items]``.

        Args:
            matrix: weights ``[n, items]``, columns as ``encode_items`` counts.

        Raises:
            DataError: the filter scores only users of ``fit``.
        """
        self.check_scores_rows()
        other = copy.copy(self)
        other._matrix = matrix
        return other._rows(np.arange(matrix.shape[0]))

    def check_scores_rows(self) -> None:
        """Refuse a filter that scores only the users of ``fit``."""
        if not self.scores_rows:
            remedy = "Use EASE, ItemKNN, RP3Beta, SpectralFilter, Popularity or ImplicitALS"
            raise DataError(f"{type(self).__name__} scores only the users that it was fitted to", remedy=remedy)

    def encode_items(self, items: Any) -> np.ndarray:
        """Return numbers of items from 0, int64 ``[n]``; -1: unknown."""
        return self._vocabs()[1].encode(as_column(items, name="items")).cpu().numpy() - 1

    def seen(self, users: Any, items: Any) -> torch.Tensor:
        """Return whether pairs were in ``fit``, so that their scores have seen their answers: bool ``[n]``."""
        who, what = self._codes(users, items)
        known = (who >= 0) & (what >= 0)
        result = np.zeros(len(who), dtype=bool)
        if known.any():
            result[known] = np.asarray(self._matrix[who[known], what[known]]).ravel() > 0
        return torch.from_numpy(result)

    def _vocabs(self) -> tuple[Vocab, Vocab]:
        if self._users is None or self._items is None:
            raise NotFittedError(f"{type(self).__name__} has not been trained", remedy="Call fit first")
        return self._users, self._items

    def _user_codes(self, column: Column) -> np.ndarray:
        return self._vocabs()[0].encode(column).cpu().numpy() - 1

    def _codes(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers of users and items from 0; -1: unknown."""
        who = self._user_codes(as_column(users, name="users"))
        what = self.encode_items(items)
        if len(who) != len(what):
            raise DataError(f"{len(who)} users and {len(what)} items", remedy="Give one user and one item a pair")
        return who, what

    def _blocks(self, count: int) -> Iterator[tuple[int, int]]:
        step = max(1, limits.BLOCK // max(1, self._matrix.shape[1]))
        return ((a, min(a + step, count)) for a in range(0, count, step))


class Popularity(CollaborativeFilter):
    """Sum of an item's weights, the same for every user: the baseline of any other filter."""

    scores_rows = True

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        return {"sums": row_sums(csr_matrix(matrix.T))}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return np.repeat(self._learned["sums"][None], len(users), axis=0)


def best_first(session: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Return rows by session, then by descending score; ties in their order."""
    order = torch.argsort(score, descending=True, stable=True)
    return order[torch.argsort(session[order], stable=True)]
