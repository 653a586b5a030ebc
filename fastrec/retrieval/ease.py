"""``EASE``: the linear model of items by the other items of the same user, in closed form."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec.errors import DataError
from fastrec.retrieval.base import CollaborativeFilter


class EASE(CollaborativeFilter):
    """Ridge regression of every item on all others, over users; an item does not explain itself.

    ``B = I - P / diag(P)`` with ``P = (XᵀX + reg I)⁻¹``; a user's scores are ``x B``. Dense: 8 bytes for every pair of
    items, so the items of few interactions are left out where there are too many.

    Args:
        reg: the ridge, in interactions.
        max_items: learn from the items with the most interactions, this many; others score 0.

    Raises:
        DataError: ``reg`` is not above 0.

    Source: Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data".
    """

    scores_rows = True

    def __init__(self, *, reg: float = 100.0, max_items: int = 10_000) -> None:
        super().__init__()
        if not reg > 0:
            raise DataError(f"reg={reg} is not above 0", remedy="Give the ridge in interactions: 100, say")
        self.reg, self.max_items = reg, max_items

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        counts = np.diff(matrix.tocsc().indptr)
        items = np.sort(np.argsort(-counts, kind="stable")[: self.max_items])
        used = matrix[:, items]
        gram = torch.from_numpy((used.T @ used).toarray())
        gram.diagonal().add_(self.reg)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        weights = inverse.div_(-inverse.diagonal().clone())
        weights.fill_diagonal_(0.0)
        return {"items": items, "weights": weights.numpy()}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        items = self._learned["items"]
        scores = self._matrix[users][:, items] @ self._learned["weights"]
        if len(items) == self._matrix.shape[1]:
            return scores
        result = np.zeros((len(users), self._matrix.shape[1]))
        result[:, items] = scores
        return result
