"""Interactions as a sparse matrix, and what the collaborative filters do with such matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags

from fastrec.errors import DataError
from fastrec.table import Column, Vocab


def interactions(users: Column, items: Column, weight: torch.Tensor | None) -> tuple[Vocab, Vocab, csr_matrix]:
    """Return vocabularies and the float64 ``[users, items]`` matrix of weights; of a repeated pair the largest."""
    sizes = {"users": len(users), "items": len(items), "weight": len(users) if weight is None else len(weight)}
    if len(set(sizes.values())) > 1:
        raise DataError(f"interactions of unequal lengths: {sizes}", remedy="Give one of each for every interaction")
    if not len(users):
        raise DataError("there is no interaction to learn from", remedy="Give one or more")
    for column in (users, items):
        missing = column.is_missing()
        if bool(missing.any()):
            row = int(missing.nonzero()[0])
            raise DataError("an id is missing", column=column.name, row=row, remedy="Drop such rows first")
    values = np.ones(len(users)) if weight is None else weight.double().numpy()
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if len(bad):
        raise DataError(
            "a weight is not above 0, or infinite", column="weight", row=int(bad[0]), remedy="Drop such rows first"
        )
    known = Vocab.fit(users), Vocab.fit(items)
    who, what = (v.encode(c).cpu().numpy() - 1 for v, c in zip(known, (users, items)))
    shape = len(known[0]) - 1, len(known[1]) - 1
    pairs, inverse = np.unique(who * shape[1] + what, return_inverse=True)
    largest = np.zeros(len(pairs))
    np.maximum.at(largest, inverse, values)
    return *known, csr_matrix((largest, (pairs // shape[1], pairs % shape[1])), shape=shape)


def binary(matrix: csr_matrix) -> csr_matrix:
    """Return the same pairs, each of weight 1."""
    return csr_matrix((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)


def row_sums(matrix: csr_matrix) -> np.ndarray:
    """Return float64 ``[rows]``."""
    return np.asarray(matrix.sum(axis=1)).ravel()


def scaled(matrix: csr_matrix, *, rows: np.ndarray | None = None, columns: np.ndarray | None = None) -> csr_matrix:
    """Return rows and columns multiplied by numbers of their own."""
    if rows is not None:
        matrix = diags(rows) @ matrix
    if columns is not None:
        matrix = matrix @ diags(columns)
    return csr_matrix(matrix)


def without_diagonal(matrix: csr_matrix) -> csr_matrix:
    """Return a square matrix without what stands on its diagonal."""
    coo = matrix.tocoo()
    off = coo.row != coo.col
    return csr_matrix((coo.data[off], (coo.row[off], coo.col[off])), shape=matrix.shape)


def largest_of_rows(matrix: csr_matrix, k: int | None) -> csr_matrix:
    """Return each row's ``k`` largest values (of equal ones those further left); None: all."""
    if k is None:
        return matrix
    coo = matrix.tocoo()
    order = np.lexsort((coo.col, -coo.data, coo.row))
    counts = np.bincount(coo.row, minlength=matrix.shape[0])
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = order[place < k]
    return csr_matrix((coo.data[kept], (coo.row[kept], coo.col[kept])), shape=matrix.shape)


def pack(value: np.ndarray | csr_matrix) -> dict[str, Any]:
    """Return an array or a sparse matrix as ``save_state`` takes it."""
    if isinstance(value, np.ndarray):
        return {"dense": torch.from_numpy(np.ascontiguousarray(value))}
    parts = {n: torch.from_numpy(getattr(value, n).copy()) for n in ("data", "indices", "indptr")}
    return {**parts, "shape": list(value.shape)}


def unpack(state: dict[str, Any]) -> np.ndarray | csr_matrix:
    """Undo ``pack``."""
    if "dense" in state:
        return state["dense"].numpy()
    parts = tuple(state[n].numpy() for n in ("data", "indices", "indptr"))
    return csr_matrix(parts, shape=tuple(state["shape"]))
