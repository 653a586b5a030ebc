"""``Coldest``: which rows leave the device: those that fewest batches have looked up."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits

__all__ = ["Coldest"]


class Coldest:
    """Counts of every row's batches, and rows to go.

    The coldest of all slots are looked for once for many batches; until then rows that have come since are left alone.
    """

    def __init__(self, rows: int) -> None:
        self.counts = torch.zeros(rows, dtype=torch.int32)
        self._batches = 0
        self._queue = torch.empty(0, dtype=torch.int64)  # slots, the coldest first
        self._queued_row = torch.empty(0, dtype=torch.int64)  # what was in each

    def count(self, ids: Tensor) -> None:
        """Count the rows of a batch, each once: ``ids`` int64 ``[n]``."""
        self.counts.index_copy_(0, ids, self.counts.index_select(0, ids) + 1)  # of equal ids all write the same
        self._batches += 1
        if self._batches % limits.HALVE_COUNTS == 0:
            self.counts >>= 1

    def add(self, ids: Tensor) -> None:
        """Count lookups: ``ids`` int64 ``[n]``, each as often as it is there."""
        self.counts.index_add_(0, ids, torch.ones(len(ids), dtype=torch.int32))

    def hottest(self, wanted: int) -> Tensor:
        """Return the rows that were counted most: int64 ``[wanted]`` or fewer, in order of their numbers."""
        rows = self.counts.nonzero().squeeze(1)
        if len(rows) <= wanted:
            return rows
        counts = self.counts.index_select(0, rows).numpy()
        return torch.sort(rows[torch.from_numpy(np.argpartition(-counts, wanted)[:wanted])]).values

    def take(self, wanted: int, row_at: Tensor, held: Tensor) -> Tensor:
        """Return slots to be emptied.

        Args:
            row_at: the row in each slot, int64 ``[slots]``, -1 where there is none.
            held: slots that stay, int64, in any number.

        Returns:
            ``wanted`` slots, int64, or all that may go.
        """
        stays = torch.zeros(len(row_at), dtype=torch.bool)
        stays.index_fill_(0, held[held < len(row_at)], True)
        found = self._from_queue(wanted, row_at, stays)
        if len(found) < wanted:
            stays.index_fill_(0, found, True)
            self._look(wanted - len(found), row_at, stays)
            found = torch.cat([found, self._from_queue(wanted - len(found), row_at, stays)])
        return found

    def _from_queue(self, wanted: int, row_at: Tensor, stays: Tensor) -> Tensor:
        fits = ~stays.index_select(0, self._queue) & (row_at.index_select(0, self._queue) == self._queued_row)
        places = fits.nonzero().squeeze(1)[:wanted]
        if not len(places):
            return self._queue[:0]
        found, end = self._queue.index_select(0, places), int(places[-1]) + 1
        self._queue, self._queued_row = self._queue[end:], self._queued_row[end:]
        return found

    def _look(self, wanted: int, row_at: Tensor, stays: Tensor) -> None:
        free = (~stays & (row_at >= 0)).nonzero().squeeze(1)
        counts = self.counts.index_select(0, row_at.index_select(0, free)).numpy()
        many = min(len(free), max(2 * wanted, len(row_at) // 32))
        chosen = np.argpartition(counts, many - 1)[:many] if many < len(free) else np.arange(many)
        chosen = chosen[np.argsort(counts[chosen], kind="stable")]
        self._queue = free.index_select(0, torch.from_numpy(chosen))
        self._queued_row = row_at.index_select(0, self._queue)
