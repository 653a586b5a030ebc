"""The order in which a stream reads its pieces, and each rank's share of it.

A plain permutation of pieces leaves stretches of a sorted file together: of ten pieces that are drawn at random, seven
from one half of the file are no rarity. Here the places in the file follow a sequence of low discrepancy (multiples of
a badly approximable number modulo 1, from a random start; Kuipers, Niederreiter, Uniform Distribution of Sequences,
1974, chapter 2.3), so that any few pieces in a row come from all over the file; a random shift of each, as far as its
neighbours in the buffer are apart, keeps the same pieces from always meeting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastrec.errors import DataError
from fastrec.stream_files import Unit

_STEPS = ((5**0.5 - 1) / 2, 2**0.5 - 1, (13**0.5 - 3) / 2, 5**0.5 - 2)  # continued fractions of 1, 2, 3 and 4 alone


@dataclass(frozen=True)
class Piece:
    """Rows ``skip`` up to ``stop`` of a unit."""

    unit: Unit
    skip: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.skip


def shuffled_units(units: Sequence[Unit], window: int, rng: np.random.Generator) -> list[Unit]:
    """Units in random order, so that any few in a row come from all over the file.

    Args:
        units: in file order.
        window: rows that are mixed with one another.
        rng: where the order comes from.
    """
    if not units:
        return []
    mean = sum(u.rows for u in units) / len(units)
    together = np.clip(window / mean, 1, len(units))  # pieces that are in the buffer at a time
    place = (np.arange(len(units)) * rng.choice(_STEPS) + rng.random()) % 1
    place += (rng.random(len(units)) - 0.5) / together
    turn = np.empty(len(units), dtype=np.int64)
    turn[np.argsort(place, kind="stable")] = np.arange(len(units))
    return [units[i] for i in (turn if rng.random() < 0.5 else turn[::-1])]


def share(units: Sequence[Unit], rank: int, world_size: int) -> list[Piece]:
    """A rank's rows of an epoch: as many in a row as every other rank has, give or take one."""
    total = sum(u.rows for u in units)
    low, high = total * rank // world_size, total * (rank + 1) // world_size
    found, at = [], 0
    for unit in units:
        skip, stop = max(low - at, 0), min(high - at, unit.rows)
        if skip < stop:
            found.append(Piece(unit, skip, stop))
        at += unit.rows
    return found


def batch_sizes(rows: int, bs: int, *, drop_last: bool = False, rank: int = 0, world_size: int = 1) -> np.ndarray:
    """Rows of each of a rank's batches, int64 ``[batches]``: as many batches on every rank.

    Alone, all batches but the last have ``bs`` rows. Of several ranks, the one with a row more may need a batch that
    another has no rows for: then batches are as even as they can be, and none is empty.

    Args:
        rows: of all ranks together.
        bs: rows asked for.
        drop_last: leave out rows that do not fill a batch on every rank.
        rank, world_size: which of how many.

    Raises:
        DataError: there are fewer rows than ranks.
    """
    if world_size > 1 and 0 < rows < world_size:
        raise DataError(f"{rows} rows for {world_size} ranks", remedy="Train on fewer ranks, or on more rows")
    mine = rows * (rank + 1) // world_size - rows * rank // world_size
    fewest, most = rows // world_size, -(-rows // world_size)
    if drop_last:
        return np.full(fewest // bs, bs, dtype=np.int64)
    batches = min(-(-most // bs), fewest) if world_size > 1 else -(-rows // bs)
    if batches == -(-mine // bs):
        sizes = np.full(batches, bs, dtype=np.int64)
        if batches:
            sizes[-1] = mine - bs * (batches - 1)
        return sizes
    return np.diff(np.arange(batches + 1) * mine // batches)


def check_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which rank of how many: as given, else as torch's process group says, else the only one.

    Raises:
        DataError: only one of them was given, or there is no such rank.
    """
    if rank is None and world_size is None:
        import torch.distributed as group

        on = group.is_available() and group.is_initialized()
        return (group.get_rank(), group.get_world_size()) if on else (0, 1)
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise DataError(f"rank={rank} of world_size={world_size}", remedy="Give both, ranks counted from 0")
    return rank, world_size
