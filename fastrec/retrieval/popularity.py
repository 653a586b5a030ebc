"""``Popularity``: how often an item was taken, by anybody."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fastrec.retrieval._matrix import row_sums
from fastrec.retrieval.base import CollaborativeFilter


class Popularity(CollaborativeFilter):
    """Sum of an item's weights, the same for every user: what any other filter must beat."""

    scores_rows = True

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        return {"sums": row_sums(csr_matrix(matrix.T))}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return np.repeat(self._learned["sums"][None], len(users), axis=0)
