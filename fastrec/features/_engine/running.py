"""Sums over the earlier rows of a group, with or without decay, and the clock that decay goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastrec._core import limits
from fastrec.features._engine.constants import float64
from fastrec.features._engine.order import difference
from fastrec.features._inputs import order_keys
from fastrec.segments import Groups, lexical_order
from fastrec.segments.order import run_starts
from fastrec.table import Table
from fastrec.table.key_types import UNITS_PER_SECOND


def running_sum(values: torch.Tensor, place: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``y[i] = factor[i] · y[i - 1] + values[i]`` inside each group, ``y = values`` in its first row.

    A row's sum is formed from blocks of its group's rows (Blelloch 1990, "Prefix sums and their applications"), in a
    way that depends on its place in the group alone: neither later rows nor other groups touch its rounding.

    Args:
        values: float64 ``[c, n]``, the rows of a group together and in order.
        place: int64 ``[n]``, each row's place in its group, from 0.
        factor: float64 ``[n]`` in [0, 1]; None: 1.

    Returns:
        float64 ``[c, n]``.
    """
    if not len(place):
        return values
    longest = int(place.max()) + 1
    inside = place % limits.RUNNING_BLOCK
    total, product = _short_sum(values, inside, factor, min(longest, limits.RUNNING_BLOCK))
    if longest <= limits.RUNNING_BLOCK:
        return total
    goes_on = torch.zeros_like(place, dtype=torch.bool)
    goes_on[:-1] = (inside[:-1] == limits.RUNNING_BLOCK - 1) & (place[1:] > 0)
    ends = goes_on.nonzero().squeeze(1)
    blocks = running_sum(
        total.index_select(1, ends),
        place[ends] // limits.RUNNING_BLOCK,
        None if product is None else product.index_select(0, ends),
    )
    block = (torch.cumsum(goes_on, 0) - goes_on.long() - 1).clamp_min(0)  # the last one that ends before the row
    carried = blocks.index_select(1, block).masked_fill_(place < limits.RUNNING_BLOCK, 0)
    return total.add_(carried) if product is None else total.addcmul_(carried, product.expand_as(carried))


def _short_sum(
    values: torch.Tensor, inside: torch.Tensor, factor: torch.Tensor | None, longest: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum blocks of at most ``longest`` rows by doubling steps; also multiply the factors."""
    total, product = values.clone(), None if factor is None else factor.clone()
    step = 1
    while step < longest:
        reaches = inside[step:] >= step
        before = torch.where(reaches, total[:, :-step], 0)
        if product is None:
            total[:, step:] += before
        else:
            total[:, step:] += before * product[step:]
            product[step:] = product[step:] * torch.where(reaches, product[:-step], 1)
        step *= 2
    return total, product


@dataclass(frozen=True, eq=False)
class Clock:
    """Times whose differences are exact in any unit or type: ``whole + part``.

    Args:
        whole: int64 ``[n]``, full seconds of a time, or the number rounded down.
        part: float64 ``[n]`` in [0, 1), the rest.
    """

    whole: torch.Tensor
    part: torch.Tensor

    @classmethod
    def of(cls, table: Table, name: str) -> Clock:
        """Return the clock of an order column."""
        (values,) = order_keys(table, [name])
        column = table[name]
        return cls.at(values, UNITS_PER_SECOND[column.unit] if column.kind == "datetime" else 1)

    @classmethod
    def at(cls, values: torch.Tensor, unit: int) -> Clock:
        """Return the clock of order values: int64 ``[n]`` of which ``unit`` are a second, or float64 seconds."""
        if values.is_floating_point():
            values = values.clamp(-(2.0**62), 2.0**62)
            whole = torch.floor(values)
            return cls(whole.long(), values - whole)
        whole = torch.div(values, unit, rounding_mode="floor")
        return cls(whole, (values - whole * unit).double() / unit)

    def __getitem__(self, rows: torch.Tensor) -> Clock:
        return Clock(self.whole[rows], self.part[rows])

    def since(self, earlier: Clock) -> torch.Tensor:
        """Return the time from ``earlier``, in seconds or the numbers' unit: float64 ``[n]``."""
        return difference(self.whole, earlier.whole) + (self.part - earlier.part)

    def after(self, other: Clock) -> torch.Tensor:
        """Return bool ``[n]``: True if it is later than ``other``."""
        return (self.whole > other.whole) | ((self.whole == other.whole) & (self.part > other.part))


def decay(age: torch.Tensor, half_life: float) -> torch.Tensor:
    """Return ``2 ** (-age / half_life)``, 1 for the future."""
    return torch.exp2(age.clamp_min(0) / float64(-half_life))


@dataclass(frozen=True, eq=False)
class TimeRanks:
    """All rows in order, and each row's place in time.

    Args:
        order: int64 ``[n]``, the rows in order; None: as they stand.
        rank: int64 ``[n]``, the number of earlier points in time; rows at one point have the same.
    """

    order: torch.Tensor | None
    rank: torch.Tensor

    @classmethod
    def of(cls, table: Table, names: Sequence[str]) -> TimeRanks:
        """Sort a table's rows by one column or several."""
        keys = order_keys(table, names)
        order = lexical_order(keys)
        moved = torch.zeros(max(len(table) - 1, 0), dtype=torch.bool, device=table.device)
        for key in keys:
            key = key if order is None else key[order]
            moved |= key[1:] != key[:-1]
        rank = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        rank[1:] = torch.cumsum(moved, 0)
        if order is None:
            return cls(None, rank)
        back = torch.empty_like(rank)
        back[order] = rank
        return cls(order, back)


@dataclass(frozen=True, eq=False)
class EarlierRows:
    """Each row's earlier rows of its group; rows at the same time do not see each other.

    Args:
        groups: the rows by group and time.
        last: int64 ``[n]``, for each sorted row the sorted place of the last earlier one of its group; -1: none.
    """

    groups: Groups
    last: torch.Tensor

    @classmethod
    def of(cls, ranks: TimeRanks, codes: torch.Tensor | None = None) -> EarlierRows:
        """Return earlier rows with equal ``codes`` (int64 ``[n]``); None: all earlier rows."""
        if codes is None:
            groups = Groups.arranged(torch.zeros_like(ranks.rank), ranks.order)
        else:
            groups = Groups.of(codes, ranks.rank)
        if not len(ranks.rank):
            return cls(groups, groups.start)
        rank = groups.sort(ranks.rank)
        first = groups.place == 0
        first[1:] |= rank[1:] != rank[:-1]
        begin = run_starts(first)
        return cls(groups, torch.where(begin > groups.start, begin - 1, -1))

    def sums(
        self, values: torch.Tensor, counts: torch.Tensor, clock: Clock | None = None, half_life: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the earlier rows.

        Args:
            values: float64 ``[c, n]`` in row order, 0 in rows that do not count.
            counts: bool ``[n]``, the rows that count.
            clock: None: nothing decays.
            half_life: the age at which a row counts half.

        Returns:
            float64 ``[c, n]``, as they were at the last earlier row that counts, and ``[n]``, how long ago that was
            (0 without a clock; where no earlier row counts any number).
        """
        groups, place = self.groups, self.groups.place
        ordered = values if groups.order is None else values.index_select(1, groups.order)
        last = self.last.clamp_min(0)
        if clock is None or not len(counts):
            return self._found(running_sum(ordered, place)), torch.zeros_like(counts, dtype=torch.float64)
        clock, counting = Clock(groups.sort(clock.whole), groups.sort(clock.part)), groups.sort(counts)
        # Time goes on in rows that count only, so that a long wait cannot wear the sums down to nothing.
        places = torch.arange(len(counting), device=counting.device)
        latest = torch.cummax(torch.where(counting, places, -1), 0).values  # another group's, where sums are still 0
        before = torch.cat([latest.new_full((1,), -1), latest[:-1]]).clamp_min(0)
        factor = torch.where(counting & (place > 0), decay(clock.since(clock[before]), half_life), 1)
        seen = latest.index_select(0, last).clamp_min(0)
        return self._found(running_sum(ordered, place, factor)), groups.unsort(clock.since(clock[seen]))

    def count(self) -> torch.Tensor:
        """Return the number of earlier rows: float64 ``[n]``."""
        count = (self.last + 1 - self.groups.start).clamp_min(0)
        return self.groups.unsort(count.double())

    def _found(self, totals: torch.Tensor) -> torch.Tensor:
        """Take running sums (``[c, n]`` in sorted order) at each row's last earlier row, in row order."""
        if not totals.shape[1]:
            return totals
        made = totals.index_select(1, self.last.clamp_min(0)).masked_fill_(self.last < 0, 0)
        return made if self.groups.order is None else torch.empty_like(made).index_copy_(1, self.groups.order, made)
