"""``UserKNN``: what the users like this one had."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fastrec.retrieval._matrix import largest_of_rows, row_sums, scaled, without_diagonal
from fastrec.retrieval.base import CollaborativeFilter


class UserKNN(CollaborativeFilter):
    """Sum of the cosines of a user with those others that had the item.

    Args:
        k: neighbours kept for each user, the most similar; None: all.
        shrink: added to the denominator: similarities that few items stand for are made smaller.
        item_power: an item of n interactions counts ``n ** -item_power``: what everybody has tells less of taste.

    Source: Herlocker, Konstan, Borchers, Riedl 1999, "An Algorithmic Framework for Performing Collaborative Filtering".
    """

    def __init__(self, *, k: int | None = None, shrink: float = 0.0, item_power: float = 0.0) -> None:
        super().__init__()
        self.k, self.shrink, self.item_power = k, shrink, item_power

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        counts = np.diff(matrix.tocsc().indptr).astype(float)
        used = scaled(matrix, columns=counts**-self.item_power) if self.item_power else matrix
        shared = without_diagonal(csr_matrix(used @ used.T)).tocoo()
        norms = np.sqrt(row_sums(used.multiply(used)))
        similar = shared.data / (norms[shared.row] * norms[shared.col] + self.shrink)
        return {"similar": largest_of_rows(csr_matrix((similar, (shared.row, shared.col)), shape=shared.shape), self.k)}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._learned["similar"][users] @ self._matrix).toarray()
