"""``SpectralFilter`` (GF-CF): light graph convolution without training, as a filter on the graph of items."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from fastrec.retrieval._matrix import row_sums, scaled
from fastrec.retrieval.base import CollaborativeFilter


class SpectralFilter(CollaborativeFilter):
    """A user's row passed through the item graph's linear filter and its ideal low-pass filter.

    With ``R = D_u^-1/2 X D_i^-1/2`` and its first right singular vectors ``V``, scores are
    ``x (RᵀR + alpha D_i^-1/2 V Vᵀ D_i^1/2)``.

    Args:
        factors: how many singular vectors; fewer where the matrix has fewer.
        alpha: the share of the low-pass filter; 0: the linear filter alone.

    Source: Shen et al. 2021, "How Powerful is Graph Convolution for Recommendation?" (GF-CF).
    """

    scores_rows = True

    def __init__(self, *, factors: int = 128, alpha: float = 0.3) -> None:
        super().__init__()
        self.factors, self.alpha = factors, alpha

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        degree = row_sums(csr_matrix(matrix.T))
        normal = scaled(matrix, rows=row_sums(matrix) ** -0.5, columns=degree**-0.5)
        k = min(self.factors, min(matrix.shape) - 1)
        vectors = np.zeros((0, matrix.shape[1]))
        if k > 0 and self.alpha:  # v0 makes the iteration start from the same place every time
            vectors = svds(normal, k=k, v0=np.full(min(matrix.shape), min(matrix.shape) ** -0.5))[2]
        return {"normal": normal, "vectors": vectors, "root": degree**0.5}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        row, normal = self._matrix[users], self._learned["normal"]
        linear = (row @ normal.T @ normal).toarray()
        vectors, root = self._learned["vectors"], self._learned["root"]
        return linear + self.alpha * ((row @ (vectors / root).T) @ vectors) * root
