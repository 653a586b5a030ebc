"""``GroupPick``: the value in the first or last row of the row's group."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfGroups
from fastrec.features._inputs import as_list, comparable, name_of, names_of, number_of
from fastrec.features.base import Col, Cols, Context, Grouped, Names
from fastrec.segments import Groups, lexical_order
from fastrec.table import Column, Table


class GroupPick(OfGroups, Grouped):
    """The value of a column in the first (or last) row of the row's group, ordered by another column.

    Rows without an order or a value are skipped; ties are in row order. NaN for a missing group, or without a row.

    Args:
        cols: number columns, or generators, to take the value of.
        by: the columns of the group.
        order: the column, or generator, that says which row is first.
        nth: take the n-th row in that order, from 1.
        last: count from the last row backwards instead.
        name: a word for the outputs' names.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupPick
        >>> df = pd.DataFrame({"list": [1, 1, 1], "position": [1, 2, 3], "age": [None, 40.0, 7.0]})
        >>> GroupPick("position", by="list", order="age").fit_transform(df)["first_position__list"].tolist()
        [3.0, 3.0, 3.0]
    """

    def __init__(
        self, cols: Cols, *, by: Names, order: Col, nth: int = 1, last: bool = False, name: str | None = None
    ) -> None:
        self.cols, self.by, self.order, self.nth, self.last, self.name = cols, by, order, nth, last, name
        if nth < 1:
            raise DataError(f"GroupPick: nth is {nth}", remedy="Count from 1")

    @property
    def outputs(self) -> list[str]:
        return [self._name(n) for c in as_list(self.cols) for n in names_of(c)]

    def _name(self, col: str) -> str:
        word = self.name or ("last" if self.last else "first") + (str(self.nth) if self.nth > 1 else "")
        return f"{word}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        order, unordered = comparable(table, name_of(self.order))
        result = {}
        for col in self.columns:
            values = number_of(table, col, wanted_by=self)
            rows = (~(unordered | values.isnan()) & (coded.codes > 0)).nonzero().squeeze(1)
            sort = lexical_order([coded.codes[rows], order[rows]])
            rows = rows if sort is None else rows[sort]
            of_group = torch.full((coded.size,), torch.nan, dtype=torch.float64, device=table.device)
            codes = coded.codes[rows]
            groups = Groups.arranged(codes, None)  # they are sorted
            place = torch.bincount(codes, minlength=coded.size)[codes] - 1 - groups.place if self.last else groups.place
            chosen = place == self.nth - 1
            of_group[codes[chosen]] = values[rows[chosen]]
            result[self._name(col)] = Column("number", of_group[coded.codes], name=self._name(col))
        return result
