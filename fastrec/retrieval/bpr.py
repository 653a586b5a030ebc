"""``BPRFactors``: matrix factorisation that orders the items a user had before those the user had not."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec.retrieval.factors import FactorModel


class BPRFactors(FactorModel):
    """Maximises ``log sigmoid(score of an item had - score of one not had)`` by AdaGrad on sampled triples.

    Weights of interactions say how often they are drawn.

    Args:
        factors: length of a vector.
        epochs: passes over as many triples as there are interactions.
        lr: the step.
        reg: ridge on the vectors of every triple.
        bs: triples a step.
        seed: of first vectors and triples.

    Source: Rendle, Freudenthaler, Gantner, Schmidt-Thieme 2009, "BPR: Bayesian Personalized Ranking from Implicit
    Feedback"; steps: Duchi, Hazan, Singer 2011 (AdaGrad).
    """

    def __init__(
        self,
        *,
        factors: int = 64,
        epochs: int = 40,
        lr: float = 0.05,
        reg: float = 0.01,
        bs: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.factors, self.epochs, self.lr, self.reg, self.bs, self.seed = factors, epochs, lr, reg, bs, seed

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        random = torch.Generator().manual_seed(self.seed)
        count, n_items = matrix.nnz, matrix.shape[1]
        owner = torch.from_numpy(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)))
        had = torch.from_numpy(matrix.indices.astype(np.int64))
        keys = owner * n_items + had  # ascending: rows are sorted
        ends = torch.from_numpy(matrix.data).double().cumsum(0)  # torch.multinomial takes 2^24 at most
        # an item vector's last number is its bias: the users' last number is 1 and stays so
        users, items = (torch.randn((n, self.factors + 1), generator=random) * 0.1 for n in matrix.shape)
        users[:, -1], items[:, -1] = 1.0, 0.0
        sums = [torch.full_like(users, 1e-8), torch.full_like(items, 1e-8)]
        for _ in range(self.epochs):
            places = torch.rand(count, dtype=torch.float64, generator=random) * ends[-1]
            drawn = torch.searchsorted(ends, places, right=True).clamp_max(count - 1)
            other = torch.randint(n_items, (count,), generator=random)
            for rows, j in zip(drawn.split(self.bs), other.split(self.bs)):
                u = owner[rows]
                fresh = ~_among(u * n_items + j, keys)  # a triple whose second item the user had teaches nothing
                self._step(users, items, sums, u[fresh], had[rows][fresh], j[fresh])
        vectors = (users[:, :-1].double().numpy(), items[:, :-1].double().numpy())
        return {"users": vectors[0], "items": vectors[1], "bias": items[:, -1].double().numpy()}

    def _step(
        self,
        users: torch.Tensor,
        items: torch.Tensor,
        sums: list[torch.Tensor],
        u: torch.Tensor,
        i: torch.Tensor,
        j: torch.Tensor,
    ) -> None:
        p, q, r = users[u], items[i], items[j]
        pull = torch.sigmoid(-(p * (q - r)).sum(1, keepdim=True))
        at_user = pull * (q - r) - self.reg * p
        at_user[:, -1] = 0.0
        at_item = torch.cat([pull * p - self.reg * q, -pull * p - self.reg * r])
        for table, total, ids, grad in ((users, sums[0], u, at_user), (items, sums[1], torch.cat([i, j]), at_item)):
            total.index_add_(0, ids, grad.square())
            table.index_add_(0, ids, self.lr * grad / total[ids].sqrt())


def _among(values: torch.Tensor, ascending: torch.Tensor) -> torch.Tensor:
    at = torch.searchsorted(ascending, values).clamp_max(len(ascending) - 1)
    return ascending[at] == values
