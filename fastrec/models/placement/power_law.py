"""What a cache of the hottest rows finds, if the k-th most frequent id of n is looked up in proportion to ``k^-s``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastrec._core import limits

__all__ = ["cached_rows", "found", "rows_missed"]


def harmonic(n: int, skew: float) -> float:
    """Return the sum of ``k^-s`` for k = 1 … n: some terms, then their integral (Euler and Maclaurin's first term)."""
    near = float((np.arange(1, min(n, limits.HARMONIC_TERMS) + 1, dtype=np.float64) ** -skew).sum())
    if n <= limits.HARMONIC_TERMS:
        return near
    low, high = limits.HARMONIC_TERMS + 0.5, n + 0.5
    far = np.log(high / low) if skew == 1 else (high ** (1 - skew) - low ** (1 - skew)) / (1 - skew)
    return near + float(far)


def found(rows: int, cached: int, skew: float) -> float:
    """Return the share of lookups in a table of ``rows`` rows that hit its ``cached`` most frequent ones."""
    return harmonic(min(cached, rows), skew) / harmonic(rows, skew) if cached else 0.0


def cached_rows(rows: Sequence[int], slots: int, skew: float) -> list[int]:
    """Count how many rows of each of some tables, looked up equally often, are among the ``slots`` hottest of all."""
    rows = np.asarray(rows, dtype=np.int64)
    if slots >= rows.sum():
        return rows.tolist()
    if skew == 0:
        return (rows * (slots / rows.sum())).astype(np.int64).tolist()
    whole = np.array([harmonic(int(n), skew) for n in rows])

    def above(log_p: float) -> np.ndarray:  # rows that are looked up at least so often
        return np.minimum(rows, np.exp(-(log_p + np.log(whole)) / skew)).astype(np.int64)

    low, high = -60.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle).sum() <= slots else (middle, high)
    return above(high).tolist()


def rows_missed(rows: int, cached: int, skew: float, batch: int) -> float:
    """Estimate how many different rows outside the cache a batch looks up in one table."""
    if cached >= rows:
        return 0.0
    edges = np.unique(np.geomspace(cached + 1, rows + 1, 2000).astype(np.int64))
    middle = (edges[:-1] + edges[1:] - 1) / 2
    often = batch * middle**-skew / harmonic(rows, skew)
    return float((np.diff(edges) * -np.expm1(-often)).sum())
