"""``GroupRank``: where a row stands in its group."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.features._engine.options import OfGroups
from fastrec.features._inputs import as_list, check_choices, comparable
from fastrec.features.base import Cols, Context, Grouped, Names
from fastrec.segments import rank_in_group
from fastrec.table import Column, Table


class GroupRank(OfGroups, Grouped):
    """Rank of the row's value in its group, smallest first; NaN where the value or the group is missing.

    Args:
        cols: number columns, or generators.
        by: the columns of the group.
        method: how ties are ranked: ``min``, ``max``, ``average``, ``dense`` or ``ordinal`` (by row number).
        descending: largest value first.
        normalise: ``(rank - 1) / (values - 1)`` in [0, 1] instead; 0 for a group of one.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupRank
        >>> df = pd.DataFrame({"list": [1, 1, 1], "price": [30, 10, 20]})
        >>> GroupRank("price", by="list").fit_transform(df)["rank_price__list"].tolist()
        [3.0, 1.0, 2.0]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        method: Literal["min", "max", "average", "dense", "ordinal"] = "min",
        descending: bool = False,
        normalise: bool = False,
    ) -> None:
        self.cols, self.by, self.method = cols, by, method
        self.descending, self.normalise = descending, normalise
        check_choices(self, "method", method, ("min", "max", "average", "dense", "ordinal"))

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in self.columns]

    def _name(self, col: str) -> str:
        word = ("n" if self.normalise else "") + ("desc" if self.descending else "") + "rank"
        return f"{word}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        codes = coded.codes
        result = {}
        for col in self.columns:
            values, missing = comparable(table, col)
            if self.descending:  # turning the bits round, unlike a minus, cannot overflow
                values = -values if values.is_floating_point() else ~values
            missing = missing | (codes == 0)
            rank = rank_in_group(values, codes, method=self.method, missing=missing)
            if self.normalise:
                size = torch.bincount(codes[~missing], minlength=coded.size)[codes]
                rank = torch.where(size > 1, (rank - 1) / (size - 1).clamp_min(1), rank * 0)
            result[self._name(col)] = Column("number", rank, name=self._name(col))
        return result
