"""``LastAction``: the last event before a row in its group, and its age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fastrec.errors import DataError
from fastrec.features._engine.earlier import earlier_events, time_since
from fastrec.features._engine.order import take_or_missing
from fastrec.features._inputs import as_list
from fastrec.features.base import Context, Grouped, Names
from fastrec.table import Column, Table


class LastAction(Grouped):
    """The kind of the last event strictly before the row in its group, and the time since then.

    Events without a kind do not count; of several at one place in the order the one with the larger row number is the
    last. Missing without an event before, or with a missing group. Later events never change a value.

    Args:
        by: the columns of the group, in rows and log.
        order: the order columns of events and rows: ``['timestamp', 'step']``; None: the rows' own order, without
            ``table`` and ``since``.
        action: the column of the events' kinds: text, numbers or times.
        table: the name of the log among the ``tables`` given; None: the frame's own rows are the events.
        n: 1 for the last event, 2 for the one before it, or several.
        since: make the time since the event too, in the first order column: seconds for times, else the order's unit.
        name: a first word for the outputs' names.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import LastAction
        >>> df = pd.DataFrame({"user": [1, 1, 1], "t": [1, 4, 9], "kind": ["search", "click", "buy"]})
        >>> made = LastAction("user", order="t", action="kind").fit_transform(df)
        >>> made[["last1_kind__user", "since_last1_kind__user"]].values.tolist()[1:]
        [['search', 3.0], ['click', 5.0]]
    """

    own_row = False

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
        self.by, self.order, self.action, self.table = by, order, action, table
        self.n, self.since, self.name = n, since, name
        if any(i < 1 for i in as_list(n)):
            raise DataError(f"LastAction: n is {n}", remedy="Use 1 for the last event, 2 for the one before it")
        if not as_list(order) and (since or table is not None):
            raise DataError(
                "LastAction needs an order to compare rows with a log, or to say how long ago an event was",
                remedy="Name its columns with order=, or leave table out and set since=False",
            )

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        return [*as_list(self.by), *as_list(self.order), *([self.action] if self.table is None else [])]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {} if self.table is None else {self.table: [*as_list(self.by), *as_list(self.order), self.action]}

    @property
    def outputs(self) -> list[str]:
        return [name for n in as_list(self.n) for name in self._names(n)]

    def _names(self, n: int) -> list[str]:
        end = f"last{n}_{self.action}" + "".join(f"__{b}" for b in as_list(self.by))
        names = [end, f"since_{end}"] if self.since else [end]
        return [f"{self.name}_{x}" if self.name else x for x in names]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = None if self.table is None else context.table(self.table, wanted_by="LastAction")
        kinds = (table if log is None else log)[self.action]
        known = ~kinds.is_missing()
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
