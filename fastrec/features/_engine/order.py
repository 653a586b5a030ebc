"""Rows of groups in time order, gaps between rows, and values of other rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import ref

import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError
from fastrec.features._engine.keyed import shared_codes
from fastrec.features._engine.options import float64
from fastrec.features.base import Context, Grouped, State
from fastrec.features.columns import as_list, order_keys
from fastrec.segments import Groups, as_of, lexical_order
from fastrec.segments.groups import FewMerged, few, run_starts, running_sum
from fastrec.segments.windows import tie_start
from fastrec.table import Column, Table, concat
from fastrec.table.keys import UNITS_PER_SECOND


def ordered_groups(table: Table, by: Sequence[str], order: Sequence[str]) -> tuple[Groups, torch.Tensor]:
    """Sort rows by group and order; also return which rows have no group (a missing key), bool ``[n]``."""
    # Generators with equal by and order sort once, as the table caches the result

    def make() -> tuple[Groups, torch.Tensor]:
        keys = order_keys(table, order)
        if by:
            codes = table.coded(list(by)).codes
            return Groups.of(codes, *keys), codes == 0
        zeros = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        return Groups.of(zeros, *keys), zeros.bool()

    return table.remember(("groups", tuple(by), tuple(order)), (*by, *order), make)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Sorted order values of grouped rows, and distances between them."""

    keys: torch.Tensor  # int64 or float64 [n], sorted like the groups
    # int64 [n], for each sorted place the first one of its group at the same time: places before are strictly earlier
    tied: torch.Tensor
    per_second: int  # key units per second; 1 for a numeric order

    @classmethod
    def of(cls, table: Table, groups: Groups, order: str) -> Timeline:
        keys = groups.sort(order_keys(table, [order])[0])
        return cls(keys, tie_start(groups, keys), UNITS_PER_SECOND[table[order].unit or "s"])


def run_begins(*keys: torch.Tensor) -> torch.Tensor:
    """Mark the first of each run of equal keys (``[n]`` each): bool ``[n]``."""
    new = torch.zeros(len(keys[0]), dtype=torch.bool, device=keys[0].device)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


def one_order(feature: Grouped, why: str) -> str:
    """Return a generator's order column; refuse several or none."""
    order = as_list(feature.order)  # type: ignore[attr-defined]
    if len(order) != 1:
        name = type(feature).__name__
        raise DataError(f"{name}: {why} needs one order column, not {len(order)}", remedy="Give order= one column")
    return order[0]


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a - b`` as float64 ``[n]``: exact before rounding, even if it overflows int64."""
    rough = a.double() - b.double()
    if a.is_floating_point() or b.is_floating_point():
        return rough
    return torch.where(rough.abs() < 2.0**62, (a - b).double(), rough)


def take_or_missing(column: Column, rows: torch.Tensor) -> Column:
    """Take the column's values at ``rows`` (int64 ``[m]``), missing if a row is below 0."""
    absent = rows < 0
    if column.kind not in ("number", "datetime", "category"):
        problem = f"holds {column.kind} values, which cannot be shifted"
        raise DataError(problem, column=column.name, remedy="Choose another column")
    if not len(column):  # all rows are missing: one placeholder row suffices
        column = replace(column, values=column.values.new_zeros(1), missing=None)
    taken = column.take(rows.clamp_min(0))
    if column.kind == "category":
        return taken.changed(values=torch.where(absent, 0, taken.values))
    if column.kind == "number" and column.values.is_floating_point():
        return taken.changed(values=torch.where(absent | taken.is_missing(), torch.nan, taken.values), missing=None)
    missing = taken.is_missing() | absent
    return taken.changed(missing=missing if bool(missing.any()) else None)


class Aligned:
    """Rows and the events of a log: keys (``by``) with shared codes, and order columns in one unit."""

    def __init__(self, table: Table, log: Table, by: list[str], order: list[str]) -> None:
        for name in order:
            here, there = table[name], log[name]
            if len(table) and len(log) and (here.unit != there.unit or (here.zone is None) != (there.zone is None)):
                remedy = "Give both the same unit, and a zone to both or none, for example with .dt.as_unit('s')"
                if here.kind != there.kind:
                    remedy = "Give both the same type, for example with pd.to_datetime"
                problem = f"holds {_times(here)} in the frame and {_times(there)} in the log"
                raise DataError(problem, column=name, remedy=remedy)
        self.rows, self.codes = shared_codes(table, log, by)
        self.here, self.there = order_keys(table, order), order_keys(log, order, " in the log")

    @cached_property
    def _merged(self) -> FewMerged | None:
        return FewMerged(self.rows, self.here, self.codes, self.there) if few(self.rows, self.codes) else None

    @classmethod
    def of(cls, table: Table, log: Table, by: list[str], order: list[str]) -> Aligned:
        """Align rows with a log; a request's rows cache it for other generators with this ``by`` and ``order``."""
        # Not cached on the log, which may outlive many requests
        if not is_request(table, log):
            return cls(table, log, by, order)
        key = ("aligned", ref(log), tuple(by), tuple(order))  # no id: it may be reused for another table
        return table.remember(key, [*by, *order], lambda: cls(table, log, by, order))

    def before(
        self, counted: torch.Tensor | None = None, tie: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Groups]:
        """Return ``as_of`` of these rows and events; ``counted``: bool ``[e]``, False skips an event."""
        if tie is None and self._merged is not None:
            return self._merged.last(None if counted is None else counted.numpy())
        here, events, kept = self.here, [self.codes, *self.there], None
        if tie is not None:
            here, events = [*here, torch.full_like(self.rows, torch.iinfo(torch.int64).min)], [*events, tie]
        if counted is not None and on_host(counted):  # with 2 % of 2 M events, 35 instead of 131 ms
            kept = counted.nonzero().squeeze(1)
            events = [e[kept] for e in events]
        elif counted is not None:  # a device need not wait for their number
            events[0] = torch.where(counted, events[0], 0)
        last, groups = as_of(self.rows, here, events[0], events[1:])
        return last, groups if kept is None else replace(
            groups, order=kept if groups.order is None else kept[groups.order]
        )


def is_request(table: Table, log: Table) -> bool:
    """Tell whether rows and events are few, as in a request, so that sharing the alignment pays."""
    return len(table) + len(log) <= limits.REQUEST_ROWS and on_host(table)


def _times(column: Column) -> str:
    if column.kind != "datetime":
        return "numbers" if column.kind == "number" else "text" if column.kind == "category" else column.kind
    return f"times in {column.unit!r} with{'out a' if column.zone is None else ' a'} zone"


# Sums over the earlier rows of a group, with or without decay, and the clock of the decay.


@dataclass(frozen=True, eq=False)
class Clock:
    """Times ``whole + part``, with exact differences in any unit or type."""

    whole: torch.Tensor  # int64 [n], whole seconds, or the number rounded down
    part: torch.Tensor  # float64 [n] in [0, 1), the rest

    @classmethod
    def of(cls, table: Table, name: str) -> Clock:
        (values,) = order_keys(table, [name])
        column = table[name]
        return cls.at(values, UNITS_PER_SECOND[column.unit] if column.kind == "datetime" else 1)

    @classmethod
    def at(cls, values: torch.Tensor, unit: int) -> Clock:
        """Return the clock of order values: int64 ``[n]`` with ``unit`` per second, or float64 seconds."""
        if values.is_floating_point():
            values = values.clamp(-(2.0**62), 2.0**62)
            whole = torch.floor(values)
            return cls(whole.long(), values - whole)
        whole = torch.div(values, unit, rounding_mode="floor")
        return cls(whole, (values - whole * unit).double() / unit)

    def __getitem__(self, rows: torch.Tensor) -> Clock:
        return Clock(self.whole[rows], self.part[rows])

    def since(self, earlier: Clock) -> torch.Tensor:
        """Return the time since ``earlier``, in seconds or the numbers' unit: float64 ``[n]``."""
        return difference(self.whole, earlier.whole) + (self.part - earlier.part)

    def after(self, other: Clock) -> torch.Tensor:
        """Mark times later than ``other``'s: bool ``[n]``."""
        return (self.whole > other.whole) | ((self.whole == other.whole) & (self.part > other.part))


def decay(age: torch.Tensor, half_life: float) -> torch.Tensor:
    """Return ``2 ** (-age / half_life)``, 1 for the future."""
    return torch.exp2(age.clamp_min(0) / float64(-half_life))


@dataclass(frozen=True, eq=False)
class TimeRanks:
    """Rows in order, and each row's rank in time."""

    order: torch.Tensor | None  # int64 [n], the rows in order; None: row order
    rank: torch.Tensor  # int64 [n], the number of earlier distinct times

    @classmethod
    def of(cls, table: Table, names: Sequence[str]) -> TimeRanks:
        keys = order_keys(table, names)
        order = lexical_order(keys)
        rank = torch.cumsum(run_begins(*(key if order is None else key[order] for key in keys)), 0) - 1
        if order is None:
            return cls(None, rank)
        back = torch.empty_like(rank)
        back[order] = rank
        return cls(order, back)


@dataclass(frozen=True, eq=False)
class EarlierRows:
    """Each row's earlier rows of its group; rows at the same time do not see each other."""

    groups: Groups  # the rows by group and time
    last: torch.Tensor  # int64 [n], per sorted row, the place of the group's last earlier one; -1: none

    @classmethod
    def of(cls, ranks: TimeRanks, codes: torch.Tensor | None = None) -> EarlierRows:
        """Return earlier rows with equal ``codes`` (int64 ``[n]``); None: all earlier rows."""
        if codes is None:
            groups = Groups.arranged(torch.zeros_like(ranks.rank), ranks.order)
        else:
            groups = Groups.of(codes, ranks.rank)
        if not len(ranks.rank):
            return cls(groups, groups.start)
        begin = run_starts(run_begins(groups.codes, groups.sort(ranks.rank)))
        return cls(groups, torch.where(begin > groups.start, begin - 1, -1))

    def sums(
        self, values: torch.Tensor, counts: torch.Tensor, clock: Clock | None = None, half_life: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum values ``[c, n]`` over the earlier rows that count (others hold 0), with decay by a clock.

        Returns the sums at the last such row, and its age ``[n]`` (0 without a clock, undefined without such a row).
        """
        groups, place = self.groups, self.groups.place
        ordered = values if groups.order is None else values.index_select(1, groups.order)
        last = self.last.clamp_min(0)
        if clock is None or not len(counts):
            return self._found(running_sum(ordered, place)), torch.zeros_like(counts, dtype=torch.float64)
        clock, counting = Clock(groups.sort(clock.whole), groups.sort(clock.part)), groups.sort(counts)
        # The clock advances only at rows that count: a long gap must not underflow the sums.
        places = torch.arange(len(counting), device=counting.device)
        latest = torch.cummax(torch.where(counting, places, -1), 0).values  # may be another group's while sums are 0
        before = torch.cat([latest.new_full((1,), -1), latest[:-1]]).clamp_min(0)
        factor = torch.where(counting & (place > 0), decay(clock.since(clock[before]), half_life), 1)
        seen = latest.index_select(0, last).clamp_min(0)
        return self._found(running_sum(ordered, place, factor)), groups.unsort(clock.since(clock[seen]))

    def count(self) -> torch.Tensor:
        """Return the number of earlier rows: float64 ``[n]``."""
        return self.groups.unsort((self.last + 1 - self.groups.start).clamp_min(0).double())

    def _found(self, totals: torch.Tensor) -> torch.Tensor:
        """Take running sums (``[c, n]`` in sorted order) at each row's last earlier row, in row order."""
        if not totals.shape[1]:
            return totals
        made = totals.index_select(1, self.last.clamp_min(0)).masked_fill_(self.last < 0, 0)
        return made if self.groups.order is None else torch.empty_like(made).index_copy_(1, self.groups.order, made)


@dataclass(frozen=True, eq=False)
class EarlierEvents:
    """Earlier events of each row's group, a run of the sorted events."""

    events: torch.Tensor  # int64 [e], row numbers in the events' table, sorted by group and order
    start: torch.Tensor  # int64 [n], the place of the first event of the row's group
    last: torch.Tensor  # int64 [n], the place of the last event before the row, -1 = none

    def back(self, n: int) -> torch.Tensor:
        """Return the ``n``-th last event before each row, from 1: int64 ``[n]``, -1 = none."""
        place = self.last - (n - 1)
        if not len(self.events):
            return torch.full_like(place, -1)
        return torch.where((self.last >= 0) & (place >= self.start), self.events[place.clamp_min(0)], -1)


def earlier_events(
    table: Table,
    log: Table | None,
    by: Sequence[str],
    order: Sequence[str],
    *,
    counted: torch.Tensor | None = None,
    tie: torch.Tensor | None = None,
) -> EarlierEvents:
    """Find the events of the same group before each row: those of a ``log``, or (None) the rows themselves.

    A missing ``by`` is no group. At equal ``order`` the event with the larger ``tie``, then row number, is later;
    without an order the row numbers decide. Events not ``counted`` are skipped.
    """
    if log is not None:
        both = Aligned.of(table, log, list(by), list(order))
        last, events = both.before(counted, tie)
        numbers = torch.arange(len(both.codes), device=last.device) if events.order is None else events.order
        start = events.start[last.clamp_min(0)] if len(numbers) else torch.zeros_like(last)
        return EarlierEvents(numbers, start, last)
    groups, outside = ordered_groups(table, by, order)
    keys = [groups.sort(k) for k in order_keys(table, order)]
    places = torch.arange(len(table), device=groups.codes.device)
    if tie is not None:
        groups = Groups.of(table.coded(list(by)).codes, *order_keys(table, order), tie)
    rows = places if groups.order is None else groups.order
    # Rows with equal order do not precede each other: all see the events before the first of them.
    first = run_starts(run_begins(groups.codes, *keys)) if keys else places
    kept = groups.sort(~outside if counted is None else ~outside & counted)
    before = torch.cumsum(kept, 0) - kept.long()  # counted events before each place
    last, start = before[first] - 1, before[groups.start]
    last = torch.where(last >= start, last, -1)
    return EarlierEvents(rows[kept], groups.unsort(start), groups.unsort(last))


def time_since(table: Table, log: Table | None, order: str, events: torch.Tensor) -> torch.Tensor:
    """Subtract an event's order value from each row's: seconds for times; NaN for event -1. float64 ``[n]``."""
    here = order_keys(table, [order])[0]
    there = here if log is None else order_keys(log, [order])[0]
    if not len(there):
        return torch.full(here.shape, torch.nan, dtype=torch.float64, device=here.device)
    gap = difference(here, there[events.clamp_min(0)]) / UNITS_PER_SECOND[table[order].unit or "s"]
    return torch.where(events >= 0, gap, torch.nan)


class LooksBack(Grouped):
    """Generator whose rows read earlier rows, which may be in earlier tables if there is no ``by``."""

    # Tables follow one another in the generator's order (row order without one). Rows with equal values of its first
    # order column are in one table

    @property
    def looks_back(self) -> bool:
        """Whether ``keep`` returns everything that rows need of earlier tables."""
        return not as_list(getattr(self, "by", None)) and not self.uses_future

    @abstractmethod
    def keep(self, table: Table) -> State:
        """Return what rows of later tables need of this one."""

    @abstractmethod
    def keep_both(self, a: State, b: State) -> State:
        """Merge the ``keep`` of two consecutive tables."""

    @abstractmethod
    def compute_after(self, table: Table, context: Context, past: State) -> dict[str, Column]:
        """Compute as ``compute`` does, after tables whose merged ``keep`` is ``past``."""


class KeepsRows(LooksBack):
    """Generator that needs the last few rows of earlier tables."""

    @abstractmethod
    def last_rows(self, table: Table) -> torch.Tensor:
        """Return the rows that later rows read: int64 ``[m]``, in order."""

    def keep(self, table: Table) -> State:
        table = table.select(self.inputs)
        return {"rows": table.take(self.last_rows(table)) if len(table) else table}

    def keep_both(self, a: State, b: State) -> State:
        return self.keep(concat([a["rows"], b["rows"]]))

    def compute_after(self, table: Table, context: Context, past: State) -> dict[str, Column]:
        before = past["rows"]
        whole = concat([before.to(table.device), table.select(self.inputs)])
        made = self.compute(whole, context)
        own = torch.arange(len(before), len(whole), device=table.device)
        return {n: column.take(own) for n, column in made.items()}


def in_order(table: Table, order: list[str], start: int) -> torch.Tensor:
    """Return the rows from the sorted place ``start`` on: int64 ``[m]``, in order."""
    sorted_rows = ordered_groups(table, [], order)[0].order
    return torch.arange(start, len(table), device=table.device) if sorted_rows is None else sorted_rows[start:]
