"""``History``: what a log of events says about a row's key strictly before the row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features.base import Context, Grouped, as_list, order_keys
from fastrec.segments import Groups, as_of
from fastrec.table import Column, Table

Stat = Literal["count", "since", "steps", "is_last"]


class History(Grouped):
    """What is known strictly before each row from a log of events: how many, how long ago, of which kind, and whether it was the last.

    An event counts for a row when their ``by`` columns agree and it is earlier in ``order``; an event at the row's own place in the
    order does not count. Later events never change a value.

    Args:
        by: key columns that rows and events share, the widest first: ``['session_id', 'item_id']``.
        order: the columns that order events and rows, both having them: ``['timestamp', 'step']``.
        table: the name of the log among the ``tables`` given; None: the frame's own rows are the events.
        event: the log's column that says what kind of event a row is.
        kinds: the kinds that count, given before any data is seen; None: all.
        stats: of ``count``; ``since`` (difference to the last event in the first order column, in seconds for times); ``steps`` (the
            same in the last order column); ``is_last`` (1 where the last event of ``by[:-1]``, of those that count, was on this key).
        by_kind: make ``count`` for each of ``kinds`` too.
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
        name: str = "history",
    ) -> None:
        self.by, self.order, self.table, self.event, self.kinds = by, order, table, event, kinds
        self.stats, self.by_kind, self.name = stats, by_kind, name
        unknown = set(as_list(stats)) - {"count", "since", "steps", "is_last"}
        if unknown:
            raise DataError(f"History has no statistic {unknown.pop()!r}", remedy="Use count, since, steps or is_last")
        if (kinds is not None or by_kind) and event is None:
            raise DataError("History: kinds were given without the column that holds them", remedy="Name it with event=")
        if by_kind and kinds is None:
            raise DataError("History: by_kind needs the kinds by name", remedy="List them with kinds=")
        if "is_last" in as_list(stats) and len(as_list(by)) < 2:
            raise DataError("History: is_last needs two columns in by", remedy="Give the wider group first: by=['session', 'item']")

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        own = as_list(self.event) if self.table is None else []
        return [*as_list(self.by), *as_list(self.order), *own]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {} if self.table is None else {self.table: [*as_list(self.by), *as_list(self.order), *as_list(self.event)]}

    @property
    def outputs(self) -> list[str]:
        kinds = [f"{self.name}_count_{slug(k)}" for k in as_list(self.kinds)] if self.by_kind else []
        return [f"{self.name}_{s}" for s in as_list(self.stats)] + kinds

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = table if self.table is None else context.table(self.table, wanted_by="History")
        log, kind = self._counted(log)
        by, order = as_list(self.by), as_list(self.order)
        rows, codes, order_here, order_log = _aligned(table, log, by, order)
        last, events = as_of(rows, order_here, codes, order_log)
        found = last >= 0
        place = last.clamp_min(0)
        result: dict[str, torch.Tensor] = {}
        stats = as_list(self.stats)
        if "count" in stats:
            result["count"] = self._count(events, place, found, None)
        for stat, i in (("since", 0), ("steps", -1)):
            if stat in stats:
                result[stat] = self._since(table, log, order[i], order_here[i], order_log[i], events, place, found)
        if "is_last" in stats:
            result["is_last"] = self._is_last(table, log, order_here, order_log)
        made = {f"{self.name}_{s}": result[s] for s in stats}
        for i, word in enumerate(as_list(self.kinds) if self.by_kind else []):
            made[f"{self.name}_count_{slug(word)}"] = self._count(events, place, found, (kind == i).long())
        return {n: Column("number", v, name=n) for n, v in made.items()}

    def _counted(self, log: Table) -> tuple[Table, torch.Tensor | None]:
        """The events that count, and which of ``kinds`` each is."""
        if self.kinds is None:
            return log, None
        coded = log[self.event].coded()
        known = [str(v) for v in coded.keys.columns[0].to_pylist()]
        table = torch.full((coded.size,), -1, dtype=torch.int64)
        for i, word in enumerate(as_list(self.kinds)):
            if str(word) in known:
                table[known.index(str(word)) + 1] = i
        kind = table.to(coded.codes.device)[coded.codes]
        keep = (kind >= 0).nonzero().squeeze(1)
        needed = [*as_list(self.by), *as_list(self.order)]
        return log.select(dict.fromkeys(needed)).take(keep), kind[keep]

    @staticmethod
    def _count(events: Groups, place: torch.Tensor, found: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        if not len(events.codes):
            return torch.zeros_like(place)
        if marks is None:
            return torch.where(found, place - events.start[place] + 1, 0)
        total = torch.cumsum(events.sort(marks), 0)
        start = events.start[place]
        before = torch.where(start > 0, total[(start - 1).clamp_min(0)], 0)
        return torch.where(found, total[place] - before, 0)

    @staticmethod
    def _since(
        table: Table,
        log: Table,
        name: str,
        here: torch.Tensor,
        there: torch.Tensor,
        events: Groups,
        place: torch.Tensor,
        found: torch.Tensor,
    ) -> torch.Tensor:
        if not len(there):
            return torch.full((len(table),), torch.nan, dtype=torch.float64, device=table.device)
        gap = (here - events.sort(there)[place]).double()
        unit = {None: 1, "s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[table[name].unit]
        return torch.where(found, gap / unit, torch.nan)

    def _is_last(self, table: Table, log: Table, order_here: list[torch.Tensor], order_log: list[torch.Tensor]) -> torch.Tensor:
        by = as_list(self.by)
        keys = table.coded(by[:-1])
        last, events = as_of(keys.codes, order_here, log.coded(by[:-1]).recode(keys.keys), order_log)
        item = table[by[-1]].coded()
        if not len(events.codes):
            return torch.zeros(len(table), dtype=torch.int64, device=table.device)
        touched = events.sort(log[by[-1]].coded().recode(item.keys))[last.clamp_min(0)]
        return ((last >= 0) & (item.codes > 0) & (touched == item.codes)).long()


def _aligned(
    table: Table, log: Table, by: list[str], order: list[str]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Row and event codes of the same keys, and their order columns in the same unit."""
    keys = table.coded(by)
    for name in order:
        if table[name].unit != log[name].unit:
            raise DataError(
                f"has unit {table[name].unit!r} in the frame and {log[name].unit!r} in the log",
                column=name,
                remedy="Give both the same time unit, for example with .dt.as_unit('s')",
            )
    return keys.codes, log.coded(by).recode(keys.keys), order_keys(table, order), order_keys(log, order)


def slug(text: object) -> str:
    """A kind's name as part of a column name: ``'clickout item'`` → ``'clickout_item'``."""
    return re.sub(r"[^0-9A-Za-z]+", "_", str(text)).strip("_")
