"""Rows of 32-bit values → packed rows: codes of categories, logarithms of numbers, the label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec._core import kernels
from fastrec._core.threads import run_parallel
from fastrec.tabular.click_log.tally import tables_of

MISSING, OTHER = 0, 1  # codes: of a missing value, and of any that has no code of its own


class LogEncoder:
    """What makes packed rows of parsed ones.

    Args:
        values: the values of each category that have codes of their own, uint32, sorted: from 2 on.
        lows: what is taken from each number before ``log(1 + x)``; a lower one is taken for it.
    """

    def __init__(self, values: Sequence[np.ndarray], lows: Sequence[int]) -> None:
        self.values, self.lows = list(values), np.asarray(lows, dtype=np.int64)
        # most numbers of a log are small: their logarithms are looked up
        self._logs = torch.arange(1 << 16, dtype=torch.float64).log1p_().float().numpy()
        self._tables: tuple[np.ndarray, np.ndarray] | None = None

    def encode(self, rows: np.ndarray) -> None:
        """Make packed rows of parsed rows, int32 ``[n, words]``, in place."""
        if not kernels.compiled(rows.size):
            self._plain(rows)
            return
        if self._tables is None:
            self._tables = tables_of(self.values)
        starts, tables = self._tables
        loop, n_cat = kernels.click_logs().encode_rows, len(self.values)
        shares = np.array_split(rows, torch.get_num_threads())
        run_parallel(lambda part: loop(part, n_cat, starts, tables, self.lows, self._logs), shares, rows=2 * rows.size)

    def _plain(self, rows: np.ndarray) -> None:
        state, n_cat = rows[:, -1].view(np.uint32).copy(), len(self.values)
        for j, own in enumerate(self.values):
            values = np.ascontiguousarray(rows[:, j]).view(np.uint32)
            codes = np.full(len(rows), OTHER, dtype=np.int32)
            if len(own):
                place = np.minimum(np.searchsorted(own, values), len(own) - 1)
                codes = np.where(own[place] == values, place + 2, OTHER).astype(np.int32)
            rows[:, j] = np.where((state >> np.uint32(j + 1)) & np.uint32(1), MISSING, codes)
        numbers = rows.view(np.float32)
        for j, low in enumerate(self.lows):
            shifted = np.maximum(rows[:, n_cat + j].astype(np.int64) - low, 0)
            numbers[:, n_cat + j] = np.log1p(shifted.astype(np.float64)).astype(np.float32)
        numbers[:, -1] = (state & np.uint32(1)).astype(np.float32)


def as_text(values: np.ndarray) -> np.ndarray:
    """Format 32-bit values as 8 hex digits each: bytes ``[n]``, sorted as the values are."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    shifts = np.arange(28, -1, -4, dtype=np.uint32)
    nibbles = (values[:, None] >> shifts) & np.uint32(15)
    return np.ascontiguousarray(digits[nibbles]).view("S8")[:, 0]
