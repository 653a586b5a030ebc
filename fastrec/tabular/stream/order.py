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

from fastrec.tabular.stream.files import Unit

_STEPS = ((5**0.5 - 1) / 2, 2**0.5 - 1, (13**0.5 - 3) / 2, 5**0.5 - 2)  # continued fractions of 1, 2, 3 and 4 alone


@dataclass(frozen=True)
class Piece:
    """Rows ``skip`` up to ``stop`` of a unit."""

    unit: Unit
    skip: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.skip


def shuffled_units(units: Sequence[Unit], window: int, rng: np.random.Generator) -> list[Unit]:
    """Shuffle units so that any few in a row come from all over the file."""
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
    """Return a rank's rows of an epoch: as many as every other rank has, give or take one."""
    total = sum(u.rows for u in units)
    low, high = total * rank // world_size, total * (rank + 1) // world_size
    found, at = [], 0
    for unit in units:
        skip, stop = max(low - at, 0), min(high - at, unit.rows)
        if skip < stop:
            found.append(Piece(unit, skip, stop))
        at += unit.rows
    return found
