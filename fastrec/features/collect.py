"""``Collect``: the past of a row's group as a list, the inverse of ``Explode``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.earlier import EarlierEvents, earlier_events
from fastrec.features._inputs import as_list, name_of
from fastrec.features.base import Context, Feature, Grouped
from fastrec.table import Column, Table


class Collect(Grouped):
    """The values of the events strictly before the row in its group as a list, the latest last.

    An event at the row's own place in the order is not in the list; of several events at one place the one with the
    larger row number comes later. Lists of several columns are equally long: a missing value is a missing element.

    Args:
        cols: the columns to collect, of numbers, times or text; generators only of the frame's own rows.
        by: the columns of the group, in rows and log.
        order: the columns that order events and rows, both having them; None, without ``table``: the rows' own order.
        max_len: how many events back a list reaches.
        table: the name of the log among the ``tables`` given; None: the frame's own rows are the events.
        name: the outputs' first word.

    The list is empty where nothing happened before, or the group is missing.

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
        cols: str | Feature | Sequence[str | Feature],
        *,
        by: str | Sequence[str],
        order: str | Sequence[str] | None = None,
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
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.by), *as_list(self.order), *(as_list(self.cols) if self.table is None else [])]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        if self.table is None:
            return {}
        return {self.table: [*as_list(self.by), *as_list(self.order), *as_list(self.cols)]}

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in as_list(self.cols)]

    def _name(self, col: str | Feature) -> str:
        return f"{self.name}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = None if self.table is None else context.table(self.table, wanted_by="Collect")
        source = table if log is None else log
        for col in as_list(self.cols):
            _check_elements(source[name_of(col)], name_of(col))
        offsets, events = self._lists(earlier_events(table, log, as_list(self.by), as_list(self.order)))
        result = {}
        for col in as_list(self.cols):
            name = self._name(col)
            result[name] = Column("list", offsets, name=name, elements=source[name_of(col)].take(events))
        return result

    def _lists(self, found: EarlierEvents) -> tuple[torch.Tensor, torch.Tensor]:
        """The lists' offsets (int64 ``[n + 1]``) and the row numbers of their events, one list after the other."""
        lengths = torch.where(found.last >= 0, found.last - found.start + 1, 0).clamp_max(self.max_len)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        # The last event of a list stands at ``last``: places grow by one inside a list.
        shift = torch.repeat_interleave(found.last + 1 - offsets[1:], lengths)
        return offsets, found.events[shift + torch.arange(len(shift), device=shift.device)]


def _check_elements(column: Column, name: str) -> None:
    if column.kind not in ("number", "datetime", "category"):
        known = (~column.is_missing()).nonzero()
        raise DataError(
            f"Collect: holds {column.kind} values, which cannot be the elements of a list",
            column=name,
            row=int(known[0]) if len(known) else None,
            remedy="Choose a column of numbers, times or text",
        )
