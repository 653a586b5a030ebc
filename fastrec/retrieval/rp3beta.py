"""``RP3Beta``: where a random walk of three steps from the user ends, popular items held back."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fastrec.retrieval._matrix import largest_of_rows, row_sums, scaled, without_diagonal
from fastrec.retrieval.base import CollaborativeFilter


class RP3Beta(CollaborativeFilter):
    """Probability of reaching an item by user → item → user → item, over the item's popularity to a power.

    Args:
        alpha: every step's probability is raised to this power.
        beta: the power of popularity that the result is divided by.
        k: targets kept for each item of a history; None: all.

    Source: Paudel, Christoffel, Newell, Bernstein 2017, "Updatable, Accurate, Diverse, and Scalable Recommendations for
    Interactive Applications".
    """

    scores_rows = True

    def __init__(self, *, alpha: float = 1.0, beta: float = 0.5, k: int | None = None) -> None:
        super().__init__()
        self.alpha, self.beta, self.k = alpha, beta, k

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        popularity = row_sums(matrix.T)
        to_item = self._to_items(matrix)
        to_user = scaled(csr_matrix(matrix.T), rows=1 / popularity).power(self.alpha)
        walk = scaled(without_diagonal(to_user @ to_item), columns=popularity**-self.beta)
        return {"first": csr_matrix(to_item), "walk": largest_of_rows(walk, self.k)}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._learned["first"][users] @ self._learned["walk"]).toarray()

    def _to_items(self, matrix: csr_matrix) -> csr_matrix:
        sums = row_sums(matrix)
        return csr_matrix(scaled(matrix, rows=1 / np.where(sums > 0, sums, 1)).power(self.alpha))

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Return scores of all items for histories of anybody, see ``CollaborativeFilter.score_rows``."""
        return (self._to_items(matrix) @ self._learned["walk"]).toarray()
