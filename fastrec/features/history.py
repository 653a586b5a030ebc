"""Statistics of a log's events strictly before each row."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import key_text
from fastrec.features._engine.options import named
from fastrec.features._engine.order import (
    Aligned,
    KeepsRows,
    Timeline,
    difference,
    earlier_events,
    in_order,
    is_request,
    one_order,
    ordered_groups,
    take_or_missing,
    time_since,
)
from fastrec.features.base import Cols, Context, Grouped, Names
from fastrec.features.columns import as_columns, as_list, names_of, number_of
from fastrec.segments import Groups
from fastrec.segments.groups import running_sum
from fastrec.segments.windows import count_before
from fastrec.table import Column, Table
from fastrec.table.keys import UNITS_PER_SECOND

Stat = Literal["count", "since", "steps", "since_first", "is_last"]


class History(Grouped):
    """Statistics of events with the row's ``by`` columns and strictly earlier in ``order``.

    Args:
        by: the key columns, in rows and log, the widest first: ``['session_id', 'item_id']``.
        order: the order columns of events and rows: ``['timestamp', 'step']``.
        event: the column of the events' kind.
        kinds: the kinds that count; None: all.
        stats: any of ``count``; ``since`` (difference to the last event in the first order column, in seconds for
            times, NaN without an event); ``steps`` (the same in the last order column); ``since_first`` (as ``since``,
            to the first event); ``is_last`` (1 if the last counted event of ``by[:-1]`` has the row's last key; events
            without a key do not count).
        by_kind: return ``count`` for each of ``kinds`` too.
        values: columns whose value at the last event is returned.
        sums: number columns to sum over the events.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import History
        >>> log = pd.DataFrame({"user": [1, 1, 1], "item": ["a", "b", "a"], "t": [1, 2, 3]})
        >>> rows = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "t": [3, 9]})
        >>> h = History(["user", "item"], order="t", table="log", stats=["count", "since", "is_last"], name="seen")
        >>> h.fit_transform(rows, tables={"log": log})[["seen_count", "seen_since", "seen_is_last"]].values.tolist()
        [[1.0, 2.0, 0.0], [1.0, 7.0, 0.0]]
    """

    own_row, _reads, _of_log = False, ("by", "order"), ("event", "values", "sums")

    def __init__(
        self,
        by: Names,
        *,
        order: Names,
        table: str | None = None,
        event: str | None = None,
        kinds: Sequence[str] | None = None,
        stats: Stat | Sequence[Stat] = ("count", "since"),
        by_kind: bool = False,
        values: Names = (),
        sums: Names = (),
        name: str = "history",
    ) -> None:
        if not as_list(order):
            raise DataError("History looks back in time and has no order", remedy="Name its columns with order=")
        if (kinds is not None or by_kind) and event is None:
            raise DataError("History: kinds were given without their column", remedy="Name it with event=")
        if by_kind and kinds is None:
            raise DataError("History: by_kind needs the kinds by name", remedy="List them with kinds=")
        if "is_last" in as_list(stats) and len(as_list(by)) < 2:
            raise DataError("History: is_last needs two columns in by", remedy="Name the wider group first")

    @property
    def within(self) -> list[str]:
        return as_list(self.by)[:-1] if "is_last" in as_list(self.stats) else as_list(self.by)

    @property
    def outputs(self) -> list[str]:
        kinds = [f"{self.name}_count_{slug(k)}" for k in as_list(self.kinds)] if self.by_kind else []
        stats = [f"{self.name}_{s}" for s in as_list(self.stats)]
        values = [f"{self.name}_last_{v}" for v in as_list(self.values)]
        return [*stats, *kinds, *values, *(f"{self.name}_sum_{v}" for v in as_list(self.sums))]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = table if self.table is None else context.table(self.table, wanted_by="History")
        log, kind, counted = self._counted(table, log)
        by, order = as_list(self.by), as_list(self.order)
        both = Aligned.of(table, log, by, order)
        last, events = both.before(counted)
        found, place = last >= 0, last.clamp_min(0)
        first = events.start[place] if len(events.codes) else place
        at = place if events.order is None else _at(events.order, place)  # the last event's row in the log
        result: dict[str, torch.Tensor] = {}
        stats = as_list(self.stats)
        if "count" in stats:
            result["count"] = torch.where(found, place - first + 1, 0) if len(events.codes) else torch.zeros_like(place)
        for stat, i in (("since", 0), ("steps", -1), ("since_first", 0)):
            if stat in stats:
                event = at if stat != "since_first" else first if events.order is None else _at(events.order, first)
                gap = torch.full(event.shape, torch.nan, dtype=torch.float64, device=event.device)
                if len(events.codes):
                    gap = difference(both.here[i], both.there[i][event]) / UNITS_PER_SECOND[table[order[i]].unit or "s"]
                result[stat] = torch.where(found, gap, torch.nan)
        if "is_last" in stats:
            result["is_last"] = self._is_last(table, log, counted)
        made = {f"{self.name}_{s}": result[s] for s in stats}
        for i, word in enumerate(as_list(self.kinds) if self.by_kind else []):
            made[f"{self.name}_count_{slug(word)}"] = _sum((kind == i).long(), events, first, place, found)
        columns = {n: Column("number", v, name=n) for n, v in made.items()}
        rows = torch.where(found, at, -1)
        columns |= {f"{self.name}_last_{v}": take_or_missing(log[v], rows) for v in as_list(self.values)}
        for v in as_list(self.sums):
            marks = number_of(log, v, wanted_by=self).nan_to_num(0, math.inf, -math.inf)
            columns[f"{self.name}_sum_{v}"] = Column("number", _sum(marks, events, first, place, found))
        return columns

    def _counted(self, table: Table, log: Table) -> tuple[Table, torch.Tensor | None, torch.Tensor | None]:
        # Return the events, the place of each in ``kinds``, and a mask of those that count (None: all).
        # Events that do not count are dropped, except for a request of few rows: there generators of several kinds
        # share the sorted log.
        if self.kinds is None:
            return log, None, None
        order = [log[n] for n in as_list(self.order)]
        whole = all(c.kind != "category" and c.missing is None and not c.values.is_floating_point() for c in order)
        if whole and is_request(table, log):  # an event that does not count may lack a place in the order
            kind = log.remember(("kinds", self.event, tuple(self.kinds)), [self.event], partial(self._kinds, log))
            return log, kind, kind >= 0
        kind = self._kinds(log)
        keep = (kind >= 0).nonzero().squeeze(1)
        needed = [*as_list(self.by), *as_list(self.order), *as_list(self.values), *as_list(self.sums)]
        return log.select(dict.fromkeys(needed)).take(keep), kind[keep], None

    def _kinds(self, log: Table) -> torch.Tensor:
        """Return each event's place in ``kinds``: int64 ``[e]``, -1 if absent."""
        coded = log[self.event].coded()
        place = {str(word): i for i, word in enumerate(as_list(self.kinds))}
        known = key_text(coded.keys.columns[0]).to_pylist()
        table = torch.tensor([-1, *(place.get(word, -1) for word in known)], dtype=torch.int64)
        return table.to(coded.codes.device).index_select(0, coded.codes)

    def _is_last(self, table: Table, log: Table, counted: torch.Tensor | None) -> torch.Tensor:
        by = as_list(self.by)
        known = ~log[by[-1]].is_missing().to(log.device)
        counted = known if counted is None else counted & known
        last = earlier_events(table, log, by[:-1], as_list(self.order), counted=counted).back(1)
        item = table[by[-1]].coded()
        if not len(log):
            return torch.zeros(len(table), dtype=torch.int64, device=table.device)
        touched = log[by[-1]].coded().recode(item.keys)[last.clamp_min(0)]
        return ((last >= 0) & (item.codes > 0) & (touched == item.codes)).long()


def _sum(
    marks: torch.Tensor, events: Groups, first: torch.Tensor, place: torch.Tensor, found: torch.Tensor
) -> torch.Tensor:
    """Sum ``marks`` (``[e]``, in the log's order) over sorted places ``first`` to ``place``; 0 if not ``found``."""
    if not len(events.codes):
        return marks.new_zeros(len(place))
    ordered = events.sort(marks)
    # Differences of float sums over all rows would round, so sums run within groups.
    if marks.is_floating_point():
        return torch.where(found, running_sum(ordered[None].double(), events.place)[0][place], 0)
    total = torch.cumsum(ordered, 0)  # differences of integers are exact, even after an overflow
    return torch.where(found, total[place] - total[first] + ordered[first], 0)


def _at(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return values[places] if len(values) else places


def slug(text: object) -> str:
    """Turn a kind into a part of a column name: ``'clickout item'`` → ``'clickout_item'``."""
    return re.sub(r"[^0-9A-Za-z]+", "_", str(text)).strip("_")


class LastAction(Grouped):
    """Kind of the last event strictly before the row in its group, and the time since.

    Events without a kind do not count; ties are in row order. Missing without an earlier event or without a group.

    Args:
        by: the columns of the group, in rows and log.
        order: the order columns of events and rows: ``['timestamp', 'step']``; None (only without ``table`` and
            ``since``): the order of the frame.
        action: the column of the events' kind: text, numbers or times.
        n: 1 for the last event, 2 for the one before it, or several.
        since: return the time since the event in the first order column too, in seconds for times, else in its unit.
        name: a prefix of the outputs' names.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import LastAction
        >>> df = pd.DataFrame({"user": [1, 1, 1], "t": [1, 4, 9], "kind": ["search", "click", "buy"]})
        >>> made = LastAction("user", order="t", action="kind").fit_transform(df)
        >>> made[["last1_kind__user", "since_last1_kind__user"]].values.tolist()[1:]
        [['search', 3.0], ['click', 5.0]]
    """

    own_row, _reads, _of_log = False, ("by", "order"), ("action",)
    _least: ClassVar = {"n": 1}

    def __init__(
        self,
        by: Names,
        *,
        order: Names | None,
        action: str,
        table: str | None = None,
        n: int | Sequence[int] = 1,
        since: bool = True,
        name: str | None = None,
    ) -> None:
        if not as_list(order) and (since or table is not None):
            remedy = "Name its columns with order=, or leave table out and set since=False"
            raise DataError("LastAction needs an order: rows are compared with a log, or have ages", remedy=remedy)

    @property
    def outputs(self) -> list[str]:
        return [name for n in as_list(self.n) for name in self._names(n)]

    def _names(self, n: int) -> list[str]:
        end = named(self, f"last{n}", self.action)
        names = [end, f"since_{end}"] if self.since else [end]
        return [f"{self.name}_{x}" if self.name else x for x in names]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = None if self.table is None else context.table(self.table, wanted_by="LastAction")
        events = table if log is None else log
        kinds = events[self.action]
        known = ~kinds.is_missing().to(events.device)
        order = as_list(self.order)
        found = earlier_events(table, log, as_list(self.by), order, counted=None if bool(known.all()) else known)
        result = {}
        for n in as_list(self.n):
            rows, names = found.back(n), self._names(n)
            result[names[0]] = replace(take_or_missing(kinds, rows), name=names[0])
            if self.since:
                gap = time_since(table, log, order[0], rows)
                result[names[1]] = Column("number", gap.to(torch.float64), name=names[1])
        return result


class TimeSince(KeepsRows):
    """Time since the last strictly earlier row of the group with an event (float64); NaN without one.

    Args:
        event: columns, or generators, that are true or above 0 in rows with the event; None: every row is an event.
        by: the columns of the group; None: all rows are one group.
        order: the column of times (the output is in seconds) or numbers (in their unit).
        first: take the first such row instead.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TimeSince
        >>> df = pd.DataFrame({"user": [1, 1, 1, 2], "t": [10, 15, 22, 11], "bought": [True, False, False, True]})
        >>> TimeSince("bought", by="user", order="t").fit_transform(df)["since_bought__user"].tolist()
        [nan, 5.0, 12.0, nan]
        >>> TimeSince(by="user", order="t").fit_transform(df)["since_row__user"].tolist()
        [nan, 5.0, 7.0, nan]
    """

    own_row, _reads = False, ("event", "by", "order")

    def __init__(self, event: Cols | None = None, *, by: Names | None = None, order: str, first: bool = False) -> None:
        one_order(self, "a time")

    @property
    def _events(self) -> list[str | None]:
        return [None] if self.event is None else [n for e in as_list(self.event) for n in names_of(e)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(e) for e in self._events]

    def _name(self, event: str | None) -> str:
        return named(self, "since_first" if self.first else "since", "row" if event is None else event)

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        timeline = Timeline.of(table, groups, one_order(self, "a time"))
        result = {}
        for event in self._events:
            known = self._marks(table, event) & ~outside
            result[self._name(event)] = groups.unsort(self._since(groups.sort(known), timeline, groups))
        return as_columns(result)

    def last_rows(self, table: Table) -> torch.Tensor:
        rows = in_order(table, as_list(self.order), 0)
        places = [marks.nonzero().squeeze(1) for marks in (self._marks(table, e)[rows] for e in self._events)]
        return rows[torch.unique(torch.cat([p[:1] if self.first else p[-1:] for p in places]))]

    def _marks(self, table: Table, event: str | None) -> torch.Tensor:
        if event is None:
            return torch.ones(len(table), dtype=torch.bool, device=table.device)
        return number_of(table, event, wanted_by=self) > 0

    def _since(self, marks: torch.Tensor, timeline: Timeline, groups: Groups) -> torch.Tensor:
        """Return the time since the last, or first, earlier marked row, for sorted rows: float64 ``[n]``."""
        places, counts = marks.nonzero().squeeze(1), count_before(marks)
        begin, end = counts[groups.start], counts[timeline.tied]
        if not len(places):
            return torch.full(marks.shape, torch.nan, dtype=torch.float64, device=marks.device)
        there = places[(begin if self.first else end - 1).clamp(0, len(places) - 1)]
        gap = difference(timeline.keys, timeline.keys[there]) / timeline.per_second
        return torch.where(end > begin, gap, torch.nan)
