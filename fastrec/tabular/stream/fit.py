"""What procs and targets learn from blocks of rows that are seen once each, in memory that rows do not make grow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec.table import Column, Keys


class ValueCounts:
    """The distinct values of a column and in how many rows each stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: Keys | None = None
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.missing = 0
        self._new: list[tuple[Keys, torch.Tensor]] = []
        self._waiting = 0

    def add(self, column: Column) -> None:
        """Count a block's values."""
        if column.kind == "category":
            codes, keys = column.values.long(), Keys((column.distinct,), (self.name,))
        else:
            coded = column.coded()
            codes, keys = coded.codes, coded.keys
        counts = torch.bincount(codes, minlength=len(keys) + 1).cpu()
        self.missing += int(counts[0])
        used = counts[1:].nonzero().squeeze(1)
        self._new.append((keys if len(used) == len(keys) else keys.take(used), counts[1:][used]))
        self._waiting += len(used)
        # merging when as much again has come keeps the total cost linear
        if self._waiting > max(2 * len(self.counts), 100_000):
            self._merge()

    def _merge(self) -> None:
        parts = ([(self.keys, self.counts)] if self.keys is not None else []) + self._new
        parts = [p for p in parts if len(p[0])] or parts[:1]
        if not parts:
            return
        codes, self.keys = _joined([keys for keys, _ in parts]).distinct()
        counts = torch.cat([c for _, c in parts])
        self.counts = torch.zeros(len(self.keys), dtype=torch.int64).index_add_(0, codes, counts)
        self._new, self._waiting = [], 0

    def result(self) -> tuple[pa.Array, torch.Tensor]:
        """Return the distinct values in order of first appearance, and their counts int64 ``[K]``."""
        if self._new:
            self._merge()
        values = self.keys.columns[0] if self.keys is not None else pa.array([], pa.null())
        return values, self.counts


def _joined(parts: list[Keys]) -> Keys:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _joined(parts[:middle]).concat(_joined(parts[middle:]))


class MedianSearch:
    """The exact median in two looks at the numbers: which bin it is in, then the numbers of that bin.

    Bins are the floats' upper bits, 64 to every power of two, so that the second look keeps few.
    """

    def __init__(self) -> None:
        self._bins = np.zeros((1 << 64 - limits.MEDIAN_BITS), dtype=np.int64)
        self._kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sought: set[int] = set()
        self.count = 0

    def look(self, values: np.ndarray) -> None:
        """Take the first look at float64 ``[m]``, none missing."""
        if not len(values):
            return
        bins = (_ordered_bits(values) >> limits.MEDIAN_BITS) + (1 << 64 - limits.MEDIAN_BITS) // 2
        low = int(bins.min())
        counts = np.bincount(bins - low)
        self._bins[low : low + len(counts)] += counts
        self.count += len(values)

    def _wanted(self) -> list[tuple[int, int]]:
        """Return bin, and place in it, of the one or two middle numbers."""
        if not self.count:
            return []
        ends = np.cumsum(self._bins)
        found = []
        for place in sorted({(self.count - 1) // 2, self.count // 2}):
            i = int(np.searchsorted(ends, place, side="right"))
            found.append((i, place - int(ends[i] - self._bins[i])))
        return found

    def look_again(self, values: np.ndarray) -> None:
        """Take the second look, at the same numbers."""
        bits = _ordered_bits(values)
        bins = (bits >> limits.MEDIAN_BITS) + (1 << 64 - limits.MEDIAN_BITS) // 2
        if not self._sought:
            self._sought = {b for b, _ in self._wanted()}
        for wanted in self._sought:
            new = np.unique(bits[bins == wanted], return_counts=True)
            if wanted in self._kept:
                old = self._kept[wanted]
                both, where = np.unique(np.concatenate([old[0], new[0]]), return_inverse=True)
                counts = np.bincount(where, np.concatenate([old[1], new[1]]), len(both)).astype(np.int64)
                new = (both, counts)
            self._kept[wanted] = new

    def result(self) -> float:
        """Return the median; 0 if there were no numbers."""
        middle = [_of_bits(self._kept[b][0][np.searchsorted(np.cumsum(self._kept[b][1]), place, side="right")])
                  for b, place in self._wanted()]  # fmt: skip
        return sum(middle) / len(middle) if middle else 0.0


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """Convert floats to integers of the same order (-0.0 and 0.0 are one)."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _of_bits(bits: np.int64) -> float:
    bits = np.int64(bits)
    return float((bits ^ np.int64(2**63 - 1) if bits < 0 else bits).view(np.float64))


class FirstMode:
    """The most frequent number; among equals the one seen first."""

    def __init__(self) -> None:
        self._seen: dict[float, int] = {}

    def look(self, values: np.ndarray) -> None:
        """Count float64 ``[m]``, none missing."""
        distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
        for i in np.argsort(first):
            value = float(distinct[i])
            self._seen[value] = self._seen.get(value, 0) + int(counts[i])

    def result(self) -> float:
        """Return the mode; 0 if there were no numbers."""
        return max(self._seen, key=self._seen.__getitem__) if self._seen else 0.0
