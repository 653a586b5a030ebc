"""Item vectors by which items occur together, in seconds: the start of a net's table."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fastrec.sequences.session_frame import SessionFrame

__all__ = ["ppmi_svd"]


def ppmi_svd(
    sessions: SessionFrame, dims: int = 64, *, window: int = 5, shift: float = 1.0, rounds: int = 3, seed: int = 0
) -> torch.Tensor:
    """Return vectors of items from the positive pointwise mutual information of those near each other.

    Two items ``d`` events apart in a session, up to ``window``, count ``1 / d``; the matrix of positive information is
    approximated by its largest singular values, whose roots weigh the vectors (Levy and Goldberg 2014), found by
    subspace iteration from a random start (Halko, Martinsson, Tropp 2011). Its cost grows with events times ``window``,
    however long a session.

    Args:
        sessions: events in order.
        dims: width of the vectors.
        window: how many events apart items are at most.
        shift: information that is taken for none is up to the logarithm of this.
        rounds: of the iteration.
        seed: of its start.

    Returns:
        float32 ``[codes, dims]``, of root mean square length 1; zeros for codes that stand beside none.
    """
    size = len(sessions.items)
    information = _information(_nearness(sessions, window, size), shift)
    width = min(dims + 16, size)
    generator = np.random.default_rng(seed)
    basis = information @ generator.standard_normal((size, width), dtype=np.float32)
    for _ in range(rounds):
        basis = information @ np.linalg.qr(basis)[0]
    basis = np.linalg.qr(basis)[0]
    values, turn = np.linalg.eigh(basis.T @ (information @ basis))
    largest = np.argsort(-np.abs(values))[:dims]
    vectors = (basis @ turn[:, largest]) * np.sqrt(np.abs(values[largest]))
    found = torch.zeros(size, dims)
    found[:, : len(largest)] = torch.from_numpy(vectors.astype(np.float32))
    found[torch.from_numpy(np.diff(information.indptr) == 0)] = 0.0  # but for rounding it is
    return found / found.square().sum(1).mean().sqrt().clamp_min(1e-12)


def _nearness(sessions: SessionFrame, window: int, size: int) -> csr_matrix:
    """Return how much items occur together, symmetric."""
    values = sessions.values.numpy()
    session = np.repeat(np.arange(len(sessions)), sessions.lengths.numpy())
    found = csr_matrix((size, size), dtype=np.float32)
    for apart in range(1, window + 1):
        same = session[apart:] == session[:-apart]
        a, b = values[:-apart][same], values[apart:][same]
        known = (a != b) & (a > 0) & (b > 0)
        if not len(a):
            break
        weight = np.full(int(known.sum()), 1 / apart, dtype=np.float32)
        found = found + csr_matrix((weight, (a[known], b[known])), shape=(size, size))
    return (found + found.T).tocsr()


def _information(near: csr_matrix, shift: float) -> csr_matrix:
    total = np.asarray(near.sum(1)).ravel().astype(np.float64)
    rows = np.repeat(np.arange(near.shape[0]), np.diff(near.indptr))
    expected = total[rows] * total[near.indices] / max(total.sum(), 1e-12)
    data = np.log(near.data / expected) - np.log(shift)
    found = csr_matrix((np.maximum(data, 0).astype(np.float32), near.indices, near.indptr), shape=near.shape)
    found.eliminate_zeros()
    return found
