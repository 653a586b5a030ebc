"""``Collect``: the past of a row's group as a list, the inverse of ``Explode``."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.earlier import EarlierEvents, earlier_events
from fastrec.features._inputs import as_list, name_of
from fastrec.features.base import Col, Cols, Context, Feature, Grouped, Names
from fastrec.table import Column, Table


class Collect(Grouped):
    """The values of the events strictly before the row in its group as a list, the latest last.

    Events at one place in the order are in row order. Lists of several columns are equally long: a missing value is a
    missing element. The list is empty without events before, or with a missing group.

    Args:
        cols: the columns to collect, of numbers, times or text; generators only of the frame's own rows.
        by: the columns of the group, in rows and log.
        order: the order columns of events and rows; None (only without ``table``): the rows' own order.
        max_len: the largest length of a list.
        table: the name of the log among the ``tables`` given; None: the frame's own rows are the events.
        name: the outputs' first word.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Collect
        >>> df = pd.DataFrame({"user": [1, 1, 2, 1], "t": [1, 2, 2, 3], "item": ["a", "b", "c", "d"]})
        >>> [list(v) for v in Collect("item", by="user", order="t").fit_transform(df)["past_item__user"]]
        [[], ['a'], [], ['a', 'b']]
    """

    own_row = False

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        order: Names | None = None,
        max_len: int = 20,
        table: str | None = None,
        name: str = "past",
    ) -> None:
        self.cols, self.by, self.order = cols, by, order
        self.max_len, self.table, self.name = max_len, table, name
        if max_len < 1:
            raise DataError(f"Collect: max_len is {max_len}", remedy="Use 1 or more")
        if table is not None and not as_list(order):
            raise DataError(
                "Collect needs an order to compare rows with a log", remedy="Name the columns of both with order="
            )
        if table is not None and any(isinstance(c, Feature) for c in as_list(cols)):
            raise DataError(
                f"Collect: generators make no columns of the table {table!r}", remedy="Name columns of that table"
            )

    @property
    def sources(self) -> list[Col]:
        return [*as_list(self.by), *as_list(self.order), *(as_list(self.cols) if self.table is None else [])]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        if self.table is None:
            return {}
        return {self.table: [*as_list(self.by), *as_list(self.order), *as_list(self.cols)]}

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in as_list(self.cols)]

    def _name(self, col: Col) -> str:
        return f"{self.name}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = None if self.table is None else context.table(self.table, wanted_by="Collect")
        source = table if log is None else log
        for col in as_list(self.cols):
            column = source[name_of(col)]
            if column.kind not in ("number", "datetime", "category"):
                known = (~column.is_missing()).nonzero()
                raise DataError(
                    f"Collect: holds {column.kind} values, which cannot be the elements of a list",
                    column=name_of(col),
                    row=int(known[0]) if len(known) else None,
                    remedy="Choose a column of numbers, times or text",
                )
        offsets, events = self._lists(earlier_events(table, log, as_list(self.by), as_list(self.order)))
        result = {}
        for col in as_list(self.cols):
            name = self._name(col)
            result[name] = Column("list", offsets, name=name, elements=source[name_of(col)].take(events))
        return result

    def _lists(self, found: EarlierEvents) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lists' offsets (int64 ``[n + 1]``) and the row numbers of their events."""
        lengths = torch.where(found.last >= 0, found.last - found.start + 1, 0).clamp_max(self.max_len)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        # The last event of a list stands at ``last``: places grow by one inside a list.
        shift = torch.repeat_interleave(found.last + 1 - offsets[1:], lengths)
        return offsets, found.events[shift + torch.arange(len(shift), device=shift.device)]
