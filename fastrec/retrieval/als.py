"""``ImplicitALS``: matrix factorisation of who took what, by alternating least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec._core import limits
from fastrec.retrieval.factors import FactorModel


class ImplicitALS(FactorModel):
    """Weighted least squares over all pairs: 1 with confidence ``1 + alpha w`` for an interaction, else 0 with 1.

    Args:
        factors: length of a vector.
        reg: ridge on every vector; with ``power`` it grows with the user's or the item's confidence.
        alpha: how much more an interaction of weight 1 counts than a pair without one.
        iterations: rounds of solving for users, then items.
        power: the ridge of a vector is ``reg * (sum of its pairs' confidences) ** power``: 0 is Hu's, 1 Zhou's.
        seed: of the first item vectors.

    Source: Hu, Koren, Volinsky 2008, "Collaborative Filtering for Implicit Feedback Datasets"; the ridge's power:
    Rendle, Krichene, Zhang, Koren 2022, "Revisiting the Performance of iALS on Item Recommendation Benchmarks".
    """

    scores_rows = True

    def __init__(
        self,
        *,
        factors: int = 64,
        reg: float = 1.0,
        alpha: float = 10.0,
        iterations: int = 15,
        power: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.factors, self.reg, self.alpha = factors, reg, alpha
        self.iterations, self.power, self.seed = iterations, power, seed

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        random = torch.Generator().manual_seed(self.seed)
        shape = (matrix.shape[1], self.factors)
        items = torch.randn(shape, generator=random, dtype=torch.float64) / self.factors**0.5
        of_users, of_items = _Histories(matrix), _Histories(csr_matrix(matrix.T))
        for _ in range(self.iterations):
            users = self._solve(of_users, items)
            items = self._solve(of_items, users)
        users = self._solve(of_users, items)
        return {"users": users.numpy(), "items": items.numpy(), "bias": np.zeros(len(items))}

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Return scores of all items for histories of anybody: vectors are solved for, the items' being held.

        Args, returns: see ``CollaborativeFilter.score_rows``.
        """
        items = torch.from_numpy(self._learned["items"])
        return (self._solve(_Histories(matrix), items) @ items.T).numpy()

    def _solve(self, histories: _Histories, other: torch.Tensor) -> torch.Tensor:
        """Return the vectors that fit best, given those of the other side.

        Where ``YᵀY`` is the diagonal ``D`` (a turn of the basis), with a history's vectors ``Z`` and extra confidences
        ``C``, the solution ``(D + reg + ZᵀCZ)⁻¹ Zᵀ(1 + C)`` is also ``(D + reg)⁻¹ Zᵀ (1 + C K)⁻¹ (1 + C)``, where
        ``K = Z (D + reg)⁻¹ Zᵀ``: as many equations as the history has interactions, most often few.
        """
        spread, basis = torch.linalg.eigh(other.T @ other)
        turned = other @ basis
        result = torch.empty((histories.count, self.factors), dtype=torch.float64)
        for rows, ids, weights in histories.padded(self.factors):
            theirs, extra = turned[ids], self.alpha * weights
            wanted = extra + (weights > 0)
            total = wanted.sum(1, keepdim=True) if self.power else torch.ones((len(rows), 1), dtype=torch.float64)
            divisor = spread.clamp_min(0) + self.reg * total**self.power  # [b, factors]
            if ids.shape[1] < self.factors:
                near = theirs / divisor[:, None]
                left = extra[:, :, None] * (near @ theirs.mT) + torch.eye(ids.shape[1], dtype=torch.float64)
                result[rows] = (near * torch.linalg.solve(left, wanted)[:, :, None]).sum(1)
            else:
                left = (theirs * extra[:, :, None]).mT @ theirs + torch.diag_embed(divisor)
                result[rows] = torch.linalg.solve(left, (theirs * wanted[:, :, None]).sum(1))
        return result @ basis.T


class _Histories:
    """The rows of a matrix in blocks of similar length, each row padded with weight 0 to its block's longest."""

    def __init__(self, matrix: csr_matrix) -> None:
        self.count = matrix.shape[0]
        self.starts = torch.from_numpy(matrix.indptr[:-1].astype(np.int64))
        self.lengths = torch.from_numpy(np.diff(matrix.indptr).astype(np.int64))
        self.ids, self.weights = torch.from_numpy(matrix.indices.astype(np.int64)), torch.from_numpy(matrix.data)

    def padded(self, factors: int) -> Any:
        """Return blocks of: row numbers ``[b]``, ids and weights ``[b, longest]``."""
        order = torch.argsort(self.lengths, stable=True)
        at = 0
        while at < self.count:
            # so many rows as fit at the length of the last of them; lengths ascend
            ahead = self.lengths[order[at : at + 4096]]
            fits = (torch.arange(1, len(ahead) + 1) * (ahead + factors) * factors <= limits.BLOCK).sum()
            rows = order[at : at + max(1, int(fits))]
            at += len(rows)
            place = torch.arange(int(self.lengths[rows[-1]]))
            inside = place < self.lengths[rows][:, None]
            source = torch.where(inside, self.starts[rows][:, None] + place, 0)
            yield rows, self.ids[source], torch.where(inside, self.weights[source], 0.0)
