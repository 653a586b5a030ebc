"""How often each value of some categories comes, counted exactly in memory of a stated size.

All values are counted in one pass while their tables fit. A category whose table does not goes on with a half of its
values (those whose mixed bits begin with 0), then with a quarter, and so on; the other shares are counted afterwards,
one at a time, from the rows that the first pass has written. Only values that come often enough are kept of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastrec._core import kernels, limits
from fastrec._core.threads import run_parallel

Blocks = Callable[[], Iterator[np.ndarray]]
"""All rows again, block by block: int32 ``[n, words]``."""


@dataclass
class _Column:
    number: int
    counter: _HashedCounts
    share: tuple[int, int] = (0, 0)  # how many leading bits, and what they are
    left: list[tuple[int, int]] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    done: bool = False


class Tally:
    """Counts of the values of the rows' first columns, their ``categories``, in tables of ``memory`` bytes at most, or
    as many as they begin with.
    """

    def __init__(self, categories: int, memory: int, min_count: int) -> None:
        self.memory, self.min_count = memory, min_count
        self.columns = [_Column(j, _HashedCounts(j)) for j in range(categories)]
        self.passes = 1

    def add(self, rows: np.ndarray) -> None:
        """Count rows: int32 ``[n, words]``, as ``parse`` gives them."""
        active = [c for c in self.columns if not c.done]
        places = run_parallel(lambda c: c.counter.add(rows, 0, c.share), active, rows=len(rows))
        for column, at in zip(active, places, strict=True):
            while at < len(rows):
                others = sum(c.counter.nbytes for c in self.columns) - column.counter.nbytes
                if not column.counter.grow(self.memory - others):
                    # A half of its share; the other half is counted later.
                    (bits, part), keep = column.share, column.counter.keep
                    column.share = (bits + 1, part << 1)
                    column.left.append((bits + 1, (part << 1) | 1))
                    keep(column.share)
                at = column.counter.add(rows, at, column.share)

    def finish(self, blocks: Blocks) -> list[np.ndarray]:
        """Return the frequent values of each category, uint32, sorted."""
        self._settle()
        while any(not c.done for c in self.columns):
            self.passes += 1
            for rows in blocks():
                self.add(rows)
            self._settle()
        return [np.sort(np.concatenate(c.kept)) for c in self.columns]

    def _settle(self) -> None:
        """Store the counts, and begin the next share of each category that has one."""
        for column in self.columns:
            if column.done:
                continue
            column.kept.append(column.counter.frequent(self.min_count))
            column.counter = _HashedCounts(column.number)
            column.done = not column.left
            if column.left:
                column.share = column.left.pop()


class _HashedCounts:
    """Counts of a share of a category's values in a table with open addressing, see ``table_loops``."""

    def __init__(self, column: int) -> None:
        self.column, self.used = column, 0
        self.table = np.zeros(limits.HASH_SMALLEST, dtype=np.uint64)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def add(self, rows: np.ndarray, start: int, share: tuple[int, int]) -> int:
        """Count rows from ``start`` on; return the first row that was not counted for lack of room."""
        limit = int(len(self.table) * limits.HASH_FULL)
        count = kernels.click_logs().count_values
        at, self.used = count(rows, start, self.column, self.table, self.used, limit, *share)
        self._share = share
        return at

    def grow(self, most: int) -> bool:
        """Make room within so many bytes; return False if they do not suffice."""
        if 3 * self.table.nbytes > most:  # the old one and one of twice its size are there at the same time
            return False
        self._move(2 * len(self.table), self._share)
        return True

    def keep(self, share: tuple[int, int]) -> None:
        self._move(len(self.table), share)

    def _move(self, places: int, share: tuple[int, int]) -> None:
        new = np.zeros(places, dtype=np.uint64)
        self.used = kernels.click_logs().move_values(self.table, new, *share)
        self.table = new

    def frequent(self, least: int) -> np.ndarray:
        """Return the values with at least so many rows, uint32, sorted."""
        counts = self.table & np.uint64(0xFFFFFFFF)
        return np.sort((self.table[counts >= max(least, 1)] >> np.uint64(32)).astype(np.uint32))


def tables_of(values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Build lookup tables of distinct uint32 values: value ``i`` of a category has the code ``i + 2``.

    Returns where each begins, int64 ``[categories + 1]``, and all tables one after the other, uint64 (see
    ``table_loops``).
    """
    sizes = [max(4, 1 << int(2 * len(v)).bit_length()) for v in values]
    starts = np.cumsum([0, *sizes])
    tables = np.zeros(int(starts[-1]), dtype=np.uint64)
    for j, own in enumerate(values):
        words = (own.astype(np.uint64) << np.uint64(32)) | (np.arange(len(own), dtype=np.uint64) + np.uint64(2))
        kernels.click_logs().move_values(words, tables[starts[j] : starts[j + 1]], 0, 0)
    return starts, tables
