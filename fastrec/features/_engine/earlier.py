"""The events of a row's group that are strictly earlier than the row: its own frame's rows, or those of a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastrec.features._engine.order import aligned, difference, ordered_groups
from fastrec.features._inputs import order_keys
from fastrec.segments import Groups, as_of
from fastrec.segments.order import run_starts
from fastrec.table import Table
from fastrec.table.key_types import UNITS_PER_SECOND


@dataclass(frozen=True, eq=False)
class EarlierEvents:
    """For each row the earlier events of its group, a run among the sorted events.

    Args:
        events: int64 ``[e]``, the event's row number in its table, by group and in order.
        start: int64 ``[n]``, the place of the first event of the row's group.
        last: int64 ``[n]``, the place of the last one before the row, -1 where there is none.
    """

    events: torch.Tensor
    start: torch.Tensor
    last: torch.Tensor

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
    """Find the events before each row.

    Args:
        table: the rows.
        log: the events; None: the rows themselves.
        by: the columns of the group; a row or an event with a missing one is in none.
        order: the columns that order rows and events, the first one deciding first; of the events at one place the one
            with the larger row number is later. Empty: the rows' own order.
        counted: bool ``[e]``, False = an event is passed over; None: all count.
        tie: int64 ``[e]``, decides which of the events at one place is later before the row number does.
    """
    if log is None:
        return _among_rows(table, by, order, counted, tie)
    rows, codes, order_here, order_log = aligned(table, log, list(by), list(order))
    kept = None if counted is None else counted.nonzero().squeeze(1)
    if kept is not None:
        codes, order_log = codes[kept], [o[kept] for o in order_log]
    if tie is not None:
        order_log = [*order_log, tie if kept is None else tie[kept]]
        order_here = [*order_here, torch.full_like(rows, torch.iinfo(torch.int64).min)]
    last, events = as_of(rows, order_here, codes, order_log)
    numbers = torch.arange(len(codes), device=codes.device) if events.order is None else events.order
    start = events.start[last.clamp_min(0)] if len(numbers) else torch.zeros_like(last)
    return EarlierEvents(numbers if kept is None else kept[numbers], start, last)


def _among_rows(
    table: Table, by: Sequence[str], order: Sequence[str], counted: torch.Tensor | None, tie: torch.Tensor | None
) -> EarlierEvents:
    groups, outside = ordered_groups(table, by, order)
    keys = [groups.sort(k) for k in order_keys(table, order)]
    n = len(groups.codes)
    places = torch.arange(n, device=groups.codes.device)
    if tie is not None:
        groups = Groups.of(table.coded(list(by)).codes, *order_keys(table, order), tie)
    rows = places if groups.order is None else groups.order
    # Rows at one place in the order are not before each other: all have the events before the first of them.
    new = torch.full((n,), not keys, dtype=torch.bool, device=rows.device)
    new[:1] = True
    for key in (groups.codes, *keys):
        new[1:] |= key[1:] != key[:-1]
    first = run_starts(new)
    kept = groups.sort(~outside if counted is None else ~outside & counted)
    before = torch.cumsum(kept, 0) - kept.long()  # counted events before each place
    last, start = before[first] - 1, before[groups.start]
    last = torch.where(last >= start, last, -1)
    return EarlierEvents(rows[kept], groups.unsort(start), groups.unsort(last))


def time_since(table: Table, log: Table | None, order: str, events: torch.Tensor) -> torch.Tensor:
    """Subtract an event's order value from each row's.

    Args:
        table: the rows.
        log: the events; None: the rows themselves.
        order: the order column.
        events: int64 ``[n]`` row numbers of events, -1 = none.

    Returns:
        float64 ``[n]``: seconds for times, else the order's unit; NaN where there is no event.
    """
    here = order_keys(table, [order])[0]
    there = here if log is None else order_keys(log, [order])[0]
    if not len(there):
        return torch.full(here.shape, torch.nan, dtype=torch.float64, device=here.device)
    gap = difference(here, there[events.clamp_min(0)]) / UNITS_PER_SECOND[table[order].unit or "s"]
    return torch.where(events >= 0, gap, torch.nan)
