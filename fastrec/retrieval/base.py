"""``CollaborativeFilter``: something that learns who took what and scores other pairs of users and items."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError
from fastrec.retrieval._matrix import interactions, pack, unpack
from fastrec.table import Column, Table, Vocab, as_column, save_state
from fastrec.table.saved_class import class_named, load_as, saved_name, settings_of


class CollaborativeFilter(ABC):
    """Learns from pairs of users and items, then scores any pair: the higher, the likelier that the user takes it.

    A score is a function of the pairs given to ``fit`` alone, and such a pair's own score has seen its answer: score
    other pairs than those (``seen`` tells which they are). A user or an item that was in no such pair scores 0.

    A class of your own defines ``_learn`` and ``_rows``; ``scores_rows`` says whether its scores are a function
    of a user's row alone, so that rows of users that were not in ``fit`` can be scored.
    """

    scores_rows = False

    def __init__(self) -> None:
        self._users: Vocab | None = None
        self._items: Vocab | None = None
        self._matrix = csr_matrix((0, 0))
        self._learned: dict[str, Any] = {}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values: by default the attributes of the same names."""
        return settings_of(self)

    @abstractmethod
    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        """Return what is to be known of the interactions: float64 ``[users, items]``, rows and columns all in use."""

    @abstractmethod
    def _rows(self, users: np.ndarray) -> np.ndarray:
        """Return scores of all items for users by number: float64 ``[u, items]``."""

    def fit(self, users: Any, items: Any, weight: Any = None) -> Self:
        """Learn.

        Args:
            users, items: ``[n]`` ids of any key type, one interaction a row; none missing.
            weight: ``[n]`` above 0: how much an interaction counts; None: all 1. Of a repeated pair the largest counts.

        Raises:
            DataError: there is no row, an id is missing, a weight is 0 or below, or lengths differ.
        """
        who, what = as_column(users, name="users"), as_column(items, name="items")
        weights = None if weight is None else as_column(weight, name="weight").number().cpu()
        self._users, self._items, self._matrix = interactions(who, what, weights)
        self._learned = self._learn(self._matrix)
        return self

    def score(self, users: Any, items: Any) -> torch.Tensor:
        """Return scores of pairs.

        Args:
            users, items: ``[n]`` ids.

        Returns:
            float64 ``[n]`` on the CPU; 0 where the user or the item was not in ``fit``.

        Raises:
            NotFittedError: nothing was learned.
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
            k: how many items, at most.
            exclude_seen: leave out the items that the user had in ``fit``.

        Returns:
            Columns ``user``, ``item``, ``score`` and ``place`` (from 0), users in the order given, best items first; of
            equal scores the item with more interactions comes first.

        Raises:
            NotFittedError: nothing was learned.
            DataError: ``k`` is below 1.
        """
        if k < 1:
            raise DataError(f"k={k} items were asked for", remedy="Ask for one or more")
        column = as_column(users, name="users")
        codes = self._user_codes(column)
        assert self._items is not None
        usual = np.argsort(-np.diff(self._matrix.tocsc().indptr), kind="stable")  # most interactions first
        parts: list[tuple[np.ndarray, ...]] = []
        for a, b in self._blocks(len(codes)):
            scores = self._all_scores(codes[a:b], exclude_seen)[:, usual]
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(scores, order, 1)
            row, place = np.nonzero(best > -np.inf)
            parts.append((row + a, usual[order[row, place]], best[row, place], place))
        row, item, score, place = (np.concatenate(p) for p in zip(*parts)) if parts else [np.zeros(0, int)] * 4
        ids = self._items.decode(torch.from_numpy(item) + len(self._items.reserved))
        taken = column.take(torch.from_numpy(row))
        return Table({"user": taken, "item": ids, "score": score.astype(float), "place": place})

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Return scores of all items for histories of anybody.

        Args:
            matrix: weights of the items that each has, ``[n, items]``; the columns as ``encode_items`` counts.

        Returns:
            float64 ``[n, items]``.

        Raises:
            DataError: the filter's scores need users that were in ``fit``.
        """
        if not self.scores_rows:
            raise DataError(
                f"{type(self).__name__} scores only the users that it was fitted to",
                remedy="Use EASE, ItemKNN, RP3Beta, SpectralFilter, Popularity or ImplicitALS",
            )
        other = copy.copy(self)
        other._matrix = matrix
        return other._rows(np.arange(matrix.shape[0]))

    def encode_items(self, items: Any) -> np.ndarray:
        """Return numbers of items from 0, int64 ``[n]``; -1: it was not in ``fit``."""
        return self._vocabs()[1].encode(as_column(items, name="items")).cpu().numpy() - 1

    def seen(self, users: Any, items: Any) -> torch.Tensor:
        """Return whether pairs were in ``fit``: bool ``[n]``. Their scores have seen their answers."""
        who, what = self._codes(users, items)
        known = (who >= 0) & (what >= 0)
        result = np.zeros(len(who), dtype=bool)
        if known.any():
            result[known] = np.asarray(self._matrix[who[known], what[known]]).ravel() > 0
        return torch.from_numpy(result)

    def save(self, folder: str | Path) -> None:
        """Write settings and the learned state, without pickle; an earlier save at ``folder`` is replaced in one step.

        Raises:
            NotFittedError: nothing was learned.
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        save_state(folder, self.to_state())

    def to_state(self) -> dict[str, Any]:
        """Return settings and the learned state, as ``save_state`` takes them.

        Raises:
            NotFittedError: nothing was learned.
        """
        users, items = self._vocabs()
        return {
            "class": saved_name(type(self)),
            "settings": self.settings(),
            "users": users.to_state(),
            "items": items.to_state(),
            "matrix": pack(self._matrix),
            "learned": {name: pack(value) for name, value in self._learned.items()},
        }

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
            DataError: it holds a filter of another class, or of one that is not known.
        """
        return load_as(cls, CollaborativeFilter, folder, CollaborativeFilter.from_state)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned, for whichever class it names."""
        made = class_named(CollaborativeFilter, state["class"])(**state["settings"])
        made._users, made._items = Vocab.from_state(state["users"]), Vocab.from_state(state["items"])
        made._matrix = unpack(state["matrix"])
        made._learned = {name: unpack(value) for name, value in state["learned"].items()}
        return made

    def _vocabs(self) -> tuple[Vocab, Vocab]:
        if self._users is None or self._items is None:
            raise NotFittedError(f"{type(self).__name__} has not been trained", remedy="Call fit first")
        return self._users, self._items

    def _user_codes(self, column: Column) -> np.ndarray:
        return self._vocabs()[0].encode(column).cpu().numpy() - 1

    def _codes(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers of users and items from 0; -1: not in ``fit``."""
        who = self._user_codes(as_column(users, name="users"))
        what = self._vocabs()[1].encode(as_column(items, name="items")).cpu().numpy() - 1
        if len(who) != len(what):
            raise DataError(f"{len(who)} users and {len(what)} items", remedy="Give one user and one item a pair")
        return who, what

    def _blocks(self, count: int) -> Iterator[tuple[int, int]]:
        step = max(1, limits.BLOCK // max(1, self._matrix.shape[1]))
        return ((a, min(a + step, count)) for a in range(0, count, step))

    def _all_scores(self, codes: np.ndarray, exclude_seen: bool) -> np.ndarray:
        """Return scores of all items for users by number, -1 among them; those seen -inf."""
        result = np.zeros((len(codes), self._matrix.shape[1]))
        known = np.flatnonzero(codes >= 0)
        if len(known):
            result[known] = self._rows(codes[known])
            if exclude_seen:
                row, item = self._matrix[codes[known]].nonzero()
                result[known[row], item] = -np.inf
        return result
