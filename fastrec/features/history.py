"""``History``: what a log of events says about a row's key strictly before the row."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import key_text, shared_codes
from fastrec.features._engine.order import aligned, difference, take_or_missing
from fastrec.features._inputs import as_list, number_of
from fastrec.features.base import Context, Grouped
from fastrec.segments import Groups, as_of, cumsum_in_group
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND

Stat = Literal["count", "since", "steps", "since_first", "is_last"]


_STATS = ("count", "since", "steps", "since_first", "is_last")


class History(Grouped):
    """What a log of events says strictly before each row: how many, how long ago, of which kind, was it the last.

    An event counts for a row when their ``by`` columns agree and it is earlier in ``order``; an event at the row's own
    place in the order does not count. Later events never change a value.

    Args:
        by: key columns that rows and events share, the widest first: ``['session_id', 'item_id']``.
        order: the columns that order events and rows, both having them: ``['timestamp', 'step']``.
        table: the name of the log among the ``tables`` given; None: the frame's own rows are the events.
        event: the log's column that says what kind of event a row is.
        kinds: the kinds that count, given before any data is seen; None: all.
        stats: of ``count``; ``since`` (difference to the last event in the first order column, in seconds for times);
            ``steps`` (the same in the last order column); ``since_first`` (as ``since``, to the first event);
            ``is_last`` (1 where the last event of ``by[:-1]``, of those that count, was on this key; an event whose
            ``by`` is missing does not count).
        by_kind: make ``count`` for each of ``kinds`` too.
        values: log columns whose value at the last event is wanted.
        sums: number columns of the log whose total over the events before is wanted.
        name: the outputs' first word.

    ``since`` and ``steps`` are NaN where nothing happened before.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import History
        >>> log = pd.DataFrame({"user": [1, 1, 1], "item": ["a", "b", "a"], "t": [1, 2, 3]})
        >>> rows = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "t": [3, 9]})
        >>> h = History(["user", "item"], order="t", table="log", stats=["count", "since", "is_last"], name="seen")
        >>> h.fit_transform(rows, tables={"log": log})[["seen_count", "seen_since", "seen_is_last"]].values.tolist()
        [[1.0, 2.0, 0.0], [1.0, 7.0, 0.0]]
    """

    def __init__(
        self,
        by: str | Sequence[str],
        *,
        order: str | Sequence[str],
        table: str | None = None,
        event: str | None = None,
        kinds: Sequence[str] | None = None,
        stats: Stat | Sequence[Stat] = ("count", "since"),
        by_kind: bool = False,
        values: str | Sequence[str] = (),
        sums: str | Sequence[str] = (),
        name: str = "history",
    ) -> None:
        self.by, self.order, self.table, self.event, self.kinds = by, order, table, event, kinds
        self.stats, self.by_kind, self.values, self.sums, self.name = stats, by_kind, values, sums, name
        if not as_list(order):
            raise DataError("History looks back in time and has no order", remedy="Name its columns with order=")
        unknown = set(as_list(stats)) - set(_STATS)
        if unknown:
            raise DataError(f"History has no statistic {unknown.pop()!r}", remedy=f"Use one of {', '.join(_STATS)}")
        if (kinds is not None or by_kind) and event is None:
            raise DataError(
                "History: kinds were given without the column that holds them", remedy="Name it with event="
            )
        if by_kind and kinds is None:
            raise DataError("History: by_kind needs the kinds by name", remedy="List them with kinds=")
        if "is_last" in as_list(stats) and len(as_list(by)) < 2:
            raise DataError(
                "History: is_last needs two columns in by", remedy="Give the wider group first: by=['session', 'item']"
            )

    own_row = False

    @property
    def within(self) -> list[str]:
        return as_list(self.by)[:-1] if "is_last" in as_list(self.stats) else as_list(self.by)

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        own = self._log_columns if self.table is None else []
        return [*as_list(self.by), *as_list(self.order), *own]

    @property
    def _log_columns(self) -> list[str]:
        return [*as_list(self.event), *as_list(self.values), *as_list(self.sums)]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {} if self.table is None else {self.table: [*as_list(self.by), *as_list(self.order), *self._log_columns]}

    @property
    def outputs(self) -> list[str]:
        kinds = [f"{self.name}_count_{slug(k)}" for k in as_list(self.kinds)] if self.by_kind else []
        stats = [f"{self.name}_{s}" for s in as_list(self.stats)]
        values = [f"{self.name}_last_{v}" for v in as_list(self.values)]
        return [*stats, *kinds, *values, *(f"{self.name}_sum_{v}" for v in as_list(self.sums))]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = table if self.table is None else context.table(self.table, wanted_by="History")
        log, kind = self._counted(log)
        by, order = as_list(self.by), as_list(self.order)
        rows, codes, order_here, order_log = aligned(table, log, by, order)
        last, events = as_of(rows, order_here, codes, order_log)
        found = last >= 0
        place = last.clamp_min(0)
        result: dict[str, torch.Tensor] = {}
        stats = as_list(self.stats)
        if "count" in stats:
            result["count"] = self._count(events, place, found, None)
        first = events.start[place] if len(events.codes) else place
        for stat, i, at in (("since", 0, place), ("steps", -1, place), ("since_first", 0, first)):
            if stat in stats:
                gap = _gap(table[order[i]].unit, order_here[i], order_log[i], events, at)
                result[stat] = torch.where(found, gap, torch.nan)
        if "is_last" in stats:
            result["is_last"] = self._is_last(table, log, order_here, order_log)
        made = {f"{self.name}_{s}": result[s] for s in stats}
        for i, word in enumerate(as_list(self.kinds) if self.by_kind else []):
            made[f"{self.name}_count_{slug(word)}"] = self._count(events, place, found, (kind == i).long())
        columns = {n: Column("number", v, name=n) for n, v in made.items()}
        rows = torch.where(found, place if events.order is None else _at(events.order, place), -1)
        columns |= {f"{self.name}_last_{v}": take_or_missing(log[v], rows) for v in as_list(self.values)}
        for v in as_list(self.sums):
            marks = number_of(log, v, wanted_by=self).nan_to_num(0, math.inf, -math.inf)
            columns[f"{self.name}_sum_{v}"] = Column("number", self._count(events, place, found, marks))
        return columns

    def _counted(self, log: Table) -> tuple[Table, torch.Tensor | None]:
        """The events that count, and which of ``kinds`` each is."""
        if self.kinds is None:
            return log, None
        coded = log[self.event].coded()
        place = {str(word): i for i, word in enumerate(as_list(self.kinds))}
        known = key_text(coded.keys.columns[0]).to_pylist()
        table = torch.tensor([-1, *(place.get(word, -1) for word in known)], dtype=torch.int64)
        kind = table.to(coded.codes.device).index_select(0, coded.codes)
        keep = (kind >= 0).nonzero().squeeze(1)
        needed = [*as_list(self.by), *as_list(self.order), *as_list(self.values), *as_list(self.sums)]
        return log.select(dict.fromkeys(needed)).take(keep), kind[keep]

    @staticmethod
    def _count(events: Groups, place: torch.Tensor, found: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        if not len(events.codes):
            return torch.zeros_like(place) if marks is None else marks.new_zeros(len(place))
        if marks is None:
            return torch.where(found, place - events.start[place] + 1, 0)
        total = events.sort(cumsum_in_group(marks, events, inclusive=True))
        return torch.where(found, total[place], 0)

    def _is_last(
        self, table: Table, log: Table, order_here: list[torch.Tensor], order_log: list[torch.Tensor]
    ) -> torch.Tensor:
        by = as_list(self.by)
        rows, codes = shared_codes(table, log, by[:-1])
        codes = torch.where(log[by[-1]].is_missing(), 0, codes)
        last, events = as_of(rows, order_here, codes, order_log)
        item = table[by[-1]].coded()
        if not len(events.codes):
            return torch.zeros(len(table), dtype=torch.int64, device=table.device)
        touched = events.sort(log[by[-1]].coded().recode(item.keys))[last.clamp_min(0)]
        return ((last >= 0) & (item.codes > 0) & (touched == item.codes)).long()


def _at(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return values[places] if len(values) else places


def _gap(
    unit: str | None, here: torch.Tensor, there: torch.Tensor, events: Groups, place: torch.Tensor
) -> torch.Tensor:
    """Each row's order value less that of the event at ``place``, in seconds for times: float64 ``[n]``."""
    if not len(there):
        return torch.full(here.shape, torch.nan, dtype=torch.float64, device=here.device)
    return difference(here, events.sort(there)[place]) / UNITS_PER_SECOND[unit or "s"]


def slug(text: object) -> str:
    """A kind's name as part of a column name: ``'clickout item'`` → ``'clickout_item'``."""
    return re.sub(r"[^0-9A-Za-z]+", "_", str(text)).strip("_")
