"""``ItemKNN``: items like those that the user had, by the users they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec._core import limits
from fastrec.retrieval._matrix import largest_of_rows, row_sums, scaled, without_diagonal
from fastrec.retrieval.base import CollaborativeFilter


class ItemKNN(CollaborativeFilter):
    """Sum of an item's similarities with the items of the user's history.

    Similarity is ``x_i·x_j / (|x_i|^(2a) |x_j|^(2 - 2a) + shrink)``: the cosine at ``asymmetry=0.5``; at 0 the
    probability of j given i, at 1 that of i given j, where i is the item of the history.

    Args:
        k: neighbours kept for each item of a history, the most similar; None: all.
        shrink: added to the denominator: similarities that few users stand for are made smaller.
        asymmetry: ``a``, from 0 to 1.
        user_power: a user's interactions count ``(number of them) ** -user_power`` each: those of a user with many say
            less about each other.

    Source: Sarwar, Karypis, Konstan, Riedl 2001, "Item-Based Collaborative Filtering Recommendation Algorithms";
    asymmetric cosine: Aiolli 2013, "Efficient Top-N Recommendation for Very Large Scale Binary Rated Datasets".
    """

    scores_rows = True

    def __init__(
        self, *, k: int | None = None, shrink: float = 0.0, asymmetry: float = 0.5, user_power: float = 0.0
    ) -> None:
        super().__init__()
        self.k, self.shrink, self.asymmetry, self.user_power = k, shrink, asymmetry, user_power

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        counts = np.diff(matrix.indptr).astype(float)
        used = scaled(matrix, rows=counts**-self.user_power) if self.user_power else matrix
        shared = without_diagonal(used.T @ used).tocoo()
        squares = row_sums(used.multiply(used).T)
        norms = squares[shared.row] ** (1 - self.asymmetry) * squares[shared.col] ** self.asymmetry
        similar = csr_matrix((shared.data / (norms + self.shrink), (shared.row, shared.col)), shape=shared.shape)
        return {"similar": largest_of_rows(similar, self.k)}

    def nearest(self, users: Any, items: Any, k: int = 1) -> torch.Tensor:
        """Return how like the item is to the items of the user's history that are most like it.

        Args:
            users, items: ``[n]`` ids.
            k: how many items of the history.

        Returns:
            float64 ``[n, k]`` on the CPU: the largest similarities times the interaction's weight, largest first; 0
            where there are no more.

        Raises:
            NotFittedError: nothing was learned.
            DataError: the lengths differ.
        """
        who, what = self._codes(users, items)
        known = np.flatnonzero((who >= 0) & (what >= 0))
        result = np.zeros((len(who), k))
        to_items = csr_matrix(self._learned["similar"].T) if len(known) else None
        for rows in (
            np.split(known, range(limits.ITEM_KNN_AT_ONCE, len(known), limits.ITEM_KNN_AT_ONCE)) if len(known) else []
        ):
            found = largest_of_rows(csr_matrix(self._matrix[who[rows]].multiply(to_items[what[rows]])), k).tocoo()
            order = np.lexsort((-found.data, found.row))
            counts = np.bincount(found.row, minlength=len(rows))
            place = np.arange(len(order)) - (np.cumsum(counts) - counts)[found.row[order]]
            result[rows[found.row[order]], place] = found.data[order]
        return torch.from_numpy(result)

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._matrix[users] @ self._learned["similar"]).toarray()
