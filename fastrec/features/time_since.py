"""``TimeSince``: how long ago something last (or first) happened in the row's group."""

from __future__ import annotations

import torch

from fastrec.features._engine.look_back import KeepsRows, in_order
from fastrec.features._engine.order import Timeline, difference, one_order, ordered_groups
from fastrec.features._inputs import as_list, names_of, number_of
from fastrec.features.base import Col, Cols, Context, Names
from fastrec.segments import Groups
from fastrec.segments.windows import count_before
from fastrec.table import Column, Table


class TimeSince(KeepsRows):
    """The time since the last strictly earlier row of the row's group with an event; NaN without one.

    float64, in seconds if the order is a time, else in its own unit.

    Args:
        event: columns, or generators, that are true or above 0 in rows with the event; None: every row is an event.
        by: the columns of the group; None: all rows are one group.
        order: the column of times, or of numbers that time is counted in.
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

    own_row = False

    def __init__(self, event: Cols | None = None, *, by: Names | None = None, order: str, first: bool = False) -> None:
        self.event, self.by, self.order, self.first = event, by, order, first
        one_order(self, "a time")

    @property
    def sources(self) -> list[Col]:
        return [*as_list(self.event), *as_list(self.by), *as_list(self.order)]

    @property
    def _events(self) -> list[str | None]:
        return [None] if self.event is None else [n for e in as_list(self.event) for n in names_of(e)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(e) for e in self._events]

    def _name(self, event: str | None) -> str:
        word = f"since_{'first_' if self.first else ''}{'row' if event is None else event}"
        return word + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        timeline = Timeline.of(table, groups, one_order(self, "a time"))
        result = {}
        for event in self._events:
            known = self._marks(table, event) & ~outside
            since = groups.unsort(self._since(groups.sort(known), timeline, groups))
            result[self._name(event)] = Column("number", since, name=self._name(event))
        return result

    def last_rows(self, table: Table) -> torch.Tensor:
        rows = in_order(table, as_list(self.order), 0)
        places = [marks.nonzero().squeeze(1) for marks in (self._marks(table, e)[rows] for e in self._events)]
        return rows[torch.unique(torch.cat([p[:1] if self.first else p[-1:] for p in places]))]

    def _marks(self, table: Table, event: str | None) -> torch.Tensor:
        if event is None:
            return torch.ones(len(table), dtype=torch.bool, device=table.device)
        return number_of(table, event, wanted_by=self) > 0

    def _since(self, marks: torch.Tensor, timeline: Timeline, groups: Groups) -> torch.Tensor:
        """Return each sorted row's time less that of the last, or first, marked row before: float64 ``[n]``."""
        places, counts = marks.nonzero().squeeze(1), count_before(marks)
        begin, end = counts[groups.start], counts[timeline.tied]
        if not len(places):
            return torch.full(marks.shape, torch.nan, dtype=torch.float64, device=marks.device)
        there = places[(begin if self.first else end - 1).clamp(0, len(places) - 1)]
        gap = difference(timeline.keys, timeline.keys[there]) / timeline.per_second
        return torch.where(end > begin, gap, torch.nan)
