"""Collaborative filters."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import svds

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.retrieval.base import CollaborativeFilter, largest_of_rows, row_sums, without_diagonal
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.table.column import rows_of
from fastrec.table.state import saved_name


class EASE(CollaborativeFilter):
    """Ridge regression of every item on all others, over users.

    ``B = I - P / diag(P)`` with ``P = (XᵀX + reg I)⁻¹``; a user's scores are ``x B``. It takes 8 bytes per pair of
    items.

    Args:
        reg: the ridge, in interactions.
        max_items: learn from this many items, those with the most interactions; others score 0.

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


class ImplicitALS(CollaborativeFilter):
    """Weighted least squares over all pairs: 1 with confidence ``1 + alpha w`` for an interaction, else 0 with 1.

    Args:
        factors: length of a vector.
        reg: ridge of every vector, times ``(sum of its pairs' confidences) ** power``.
        alpha: extra confidence of an interaction of weight 1.
        iterations: rounds of solving for users, then items.
        power: 0 is Hu's ridge, 1 Zhou's.
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
        self.factors, self.reg, self.alpha, self.iterations = factors, reg, alpha, iterations
        self.power, self.seed = power, seed

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        random = torch.Generator().manual_seed(self.seed)
        shape = (matrix.shape[1], self.factors)
        items = torch.randn(shape, generator=random, dtype=torch.float64) / self.factors**0.5
        of_users, of_items = _Histories(matrix), _Histories(csr_matrix(matrix.T))
        for _ in range(self.iterations):
            users = self._solve(of_users, items)
            items = self._solve(of_items, users)
        users = self._solve(of_users, items)
        return {"users": users.numpy(), "items": items.numpy()}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return self._learned["users"][users] @ self._learned["items"].T

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Score histories, see ``CollaborativeFilter.score_rows``: solve for their vectors with fixed item vectors."""
        items = torch.from_numpy(self._learned["items"])
        return (self._solve(_Histories(matrix), items) @ items.T).numpy()

    def _solve(self, histories: _Histories, other: torch.Tensor) -> torch.Tensor:
        """Return the best vectors, given those of the other side.

        Let ``YᵀY`` be the diagonal ``D`` (after a rotation), ``Z`` a history's vectors and ``C`` its extra confidences.
        Then ``(D + reg + ZᵀCZ)⁻¹ Zᵀ(1 + C) = (D + reg)⁻¹ Zᵀ (1 + C K)⁻¹ (1 + C)`` with ``K = Z (D + reg)⁻¹ Zᵀ``: as
        many equations as interactions, usually few.
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
    """Rows of a matrix in blocks of similar length, padded with weight 0."""

    def __init__(self, matrix: csr_matrix) -> None:
        self.count = matrix.shape[0]
        self.starts = torch.from_numpy(matrix.indptr[:-1].astype(np.int64))
        self.lengths = torch.from_numpy(np.diff(matrix.indptr).astype(np.int64))
        self.ids, self.weights = torch.from_numpy(matrix.indices.astype(np.int64)), torch.from_numpy(matrix.data)

    def padded(self, factors: int) -> Any:
        """Yield blocks: row numbers ``[b]``, ids and weights ``[b, longest]``."""
        order = torch.argsort(self.lengths, stable=True)
        at = 0
        while at < self.count:
            # as many rows as fit at the last one's length; lengths ascend
            ahead = self.lengths[order[at : at + 4096]]
            fits = (torch.arange(1, len(ahead) + 1) * (ahead + factors) * factors <= limits.BLOCK).sum()
            rows = order[at : at + max(1, int(fits))]
            at += len(rows)
            place = torch.arange(int(self.lengths[rows[-1]]))
            inside = place < self.lengths[rows][:, None]
            source = torch.where(inside, self.starts[rows][:, None] + place, 0)
            yield rows, self.ids[source], torch.where(inside, self.weights[source], 0.0)


class ItemKNN(CollaborativeFilter):
    """Sum of an item's similarities with the items of the user's history.

    Similarity is ``x_i·x_j / (|x_i|^(2a) |x_j|^(2 - 2a) + shrink)`` for ``i`` in the history: the cosine at ``a =
    0.5``; at 0 the probability of j given i, at 1 of i given j.

    Args:
        k: most similar neighbours kept per item of a history; None: all.
        shrink: added to the denominator, against similarities from few users.
        asymmetry: ``a``, from 0 to 1.
        user_power: an interaction of a user with n weighs ``n ** -user_power``.

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
        used = csr_matrix(diags(counts**-self.user_power) @ matrix) if self.user_power else matrix
        shared = without_diagonal(used.T @ used).tocoo()
        squares = row_sums(used.multiply(used).T)
        norms = squares[shared.row] ** (1 - self.asymmetry) * squares[shared.col] ** self.asymmetry
        similar = csr_matrix((shared.data / (norms + self.shrink), (shared.row, shared.col)), shape=shared.shape)
        return {"similar": largest_of_rows(similar, self.k)}

    def nearest(self, users: Any, items: Any, k: int = 1) -> torch.Tensor:
        """Return the largest similarities of an item with the user's history.

        Args:
            users, items: ``[n]`` ids.
            k: how many.

        Returns:
            Similarities times the interaction's weight, float64 ``[n, k]`` on the CPU, largest first; 0 where there are
            fewer.

        Raises:
            DataError: the lengths differ.
        """
        who, what = self._codes(users, items)
        known = np.flatnonzero((who >= 0) & (what >= 0))
        result = np.zeros((len(who), k))
        to_items = csr_matrix(self._learned["similar"].T) if len(known) else None
        for at in range(0, len(known), limits.ITEM_KNN_AT_ONCE):
            rows = known[at : at + limits.ITEM_KNN_AT_ONCE]
            found = largest_of_rows(csr_matrix(self._matrix[who[rows]].multiply(to_items[what[rows]])), k).tocoo()
            order = np.lexsort((-found.data, found.row))
            counts = np.bincount(found.row, minlength=len(rows))
            place = np.arange(len(order)) - (np.cumsum(counts) - counts)[found.row[order]]
            result[rows[found.row[order]], place] = found.data[order]
        return torch.from_numpy(result)

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._matrix[users] @ self._learned["similar"]).toarray()


class UserKNN(CollaborativeFilter):
    """Sum of a user's cosines with the users that had the item.

    Args:
        k: most similar neighbours kept per user; None: all.
        shrink: added to the denominator, against similarities from few items.
        item_power: an interaction of an item with n weighs ``n ** -item_power``.

    Source: Herlocker, Konstan, Borchers, Riedl 1999, "An Algorithmic Framework for Performing Collaborative Filtering".
    """

    def __init__(self, *, k: int | None = None, shrink: float = 0.0, item_power: float = 0.0) -> None:
        super().__init__()
        self.k, self.shrink, self.item_power = k, shrink, item_power

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        counts = np.diff(matrix.tocsc().indptr).astype(float)
        used = csr_matrix(matrix @ diags(counts**-self.item_power)) if self.item_power else matrix
        shared = without_diagonal(csr_matrix(used @ used.T)).tocoo()
        norms = np.sqrt(row_sums(used.multiply(used)))
        similar = shared.data / (norms[shared.row] * norms[shared.col] + self.shrink)
        return {"similar": largest_of_rows(csr_matrix((similar, (shared.row, shared.col)), shape=shared.shape), self.k)}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._learned["similar"][users] @ self._matrix).toarray()


class RP3Beta(CollaborativeFilter):
    """Probability of the walk user → item → user → item, over the item's popularity to a power.

    Args:
        alpha: exponent of every step's probability.
        beta: exponent of popularity.
        k: targets kept per item of a history; None: all.

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
        to_user = csr_matrix(diags(1 / popularity) @ matrix.T).power(self.alpha)
        walk = csr_matrix(without_diagonal(to_user @ to_item) @ diags(popularity**-self.beta))
        return {"first": csr_matrix(to_item), "walk": largest_of_rows(walk, self.k)}

    def _rows(self, users: np.ndarray) -> np.ndarray:
        return (self._learned["first"][users] @ self._learned["walk"]).toarray()

    def _to_items(self, matrix: csr_matrix) -> csr_matrix:
        sums = row_sums(matrix)
        return csr_matrix(diags(1 / np.where(sums > 0, sums, 1)) @ matrix).power(self.alpha)

    def score_rows(self, matrix: csr_matrix) -> np.ndarray:
        """Score histories, see ``CollaborativeFilter.score_rows``."""
        return (self._to_items(matrix) @ self._learned["walk"]).toarray()


class SpectralFilter(CollaborativeFilter):
    """A linear and an ideal low-pass filter of the item graph, applied to a user's row.

    With ``R = D_u^-1/2 X D_i^-1/2`` and its first right singular vectors ``V``, scores are ``x (RᵀR + alpha D_i^-1/2 V
    Vᵀ D_i^1/2)``.

    Args:
        factors: number of singular vectors, at most.
        alpha: weight of the low-pass filter.

    Source: Shen et al. 2021, "How Powerful is Graph Convolution for Recommendation?" (GF-CF).
    """

    scores_rows = True

    def __init__(self, *, factors: int = 128, alpha: float = 0.3) -> None:
        super().__init__()
        self.factors, self.alpha = factors, alpha

    def _learn(self, matrix: csr_matrix) -> dict[str, np.ndarray | csr_matrix]:
        degree = row_sums(csr_matrix(matrix.T))
        normal = csr_matrix(diags(row_sums(matrix) ** -0.5) @ matrix @ diags(degree**-0.5))
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


class HistoryFilter(SessionModel):
    """A filter as a session model: it learns from sessions as users, and scores other sessions by their items.

    A session without a known item gets the items by popularity.

    Args:
        filter: one that scores rows (``EASE``, ``ItemKNN``, ``RP3Beta``, ``SpectralFilter``, ``Popularity``,
            ``ImplicitALS``).
        decay: when scoring, an item ``d`` events from the session's end weighs ``exp(-d / decay)``; None: 1.

    Raises:
        DataError: the filter scores only the users of ``fit``.
    """

    learned = ("filter", "_popular", "_columns")

    def __init__(self, filter: CollaborativeFilter, *, decay: float | None = None) -> None:
        filter.check_scores_rows()
        self.filter, self.decay = copy.copy(filter), decay

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {"class": saved_name(type(self.filter)), "settings": self.filter.settings()}
        return {**super().settings(), "filter": own}

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        there = sessions.values > 0
        self.filter.fit(rows_of(sessions.offsets)[there], sessions.values[there])
        self._popular = torch.bincount(sessions.values[there], minlength=len(self._known())).float()
        self._columns = torch.from_numpy(self.filter.encode_items(torch.arange(len(self._known()))))  # -1: none

    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        columns, (rows, steps) = self._columns[sessions.values], sessions.steps()
        weight = torch.exp(-steps.double() / (self.decay or torch.inf))
        kept = columns >= 0
        width = int(self._columns.max()) + 1
        pair, which = torch.unique(rows[kept] * width + columns[kept], return_inverse=True)
        latest = torch.zeros(len(pair), dtype=torch.float64).scatter_reduce_(0, which, weight[kept], "amax")
        given = (latest.numpy(), ((pair // width).numpy(), (pair % width).numpy()))
        scores = self.filter.score_rows(csr_matrix(given, shape=(len(sessions), width)))
        found = torch.from_numpy(scores).float()
        known = self._columns >= 0
        out = found.amin(1, keepdim=True).repeat(1, len(self._columns))  # what the filter does not know comes last
        out[:, known] = found[:, self._columns[known]]
        out[torch.bincount(rows[kept], minlength=len(sessions)) == 0] = self._popular
        return out
