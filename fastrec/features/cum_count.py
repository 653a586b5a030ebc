"""``CumCount``: how many rows of the row's group come before it."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.order import ordered_groups
from fastrec.features._inputs import as_list
from fastrec.features.base import Col, Context, Grouped, Names
from fastrec.table import Column, Table


class CumCount(Grouped):
    """How many rows of the row's group come before it; 0 for the first one, and where the group is missing.

    Args:
        by: the columns of the group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CumCount
        >>> df = pd.DataFrame({"user": [1, 2, 1, 1], "day": [3, 1, 1, 2]})
        >>> CumCount(by="user", order="day").fit_transform(df)["cumcount_user"].tolist()
        [2, 0, 0, 1]
    """

    def __init__(self, by: Names, *, order: Names | None = None) -> None:
        self.by, self.order = by, order
        if not as_list(by):
            raise DataError("CumCount: no column says which rows are a group", remedy="Name one: CumCount(by='user')")

    @property
    def sources(self) -> list[Col]:
        return [*as_list(self.by), *as_list(self.order)]

    @property
    def outputs(self) -> list[str]:
        return ["cumcount_" + "_x_".join(as_list(self.by))]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        count = torch.where(outside, 0, groups.unsort(groups.place))
        return {self.outputs[0]: Column("number", count, name=self.outputs[0])}
