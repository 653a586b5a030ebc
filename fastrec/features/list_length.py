"""``ListLength``: how long a row's list is."""

from __future__ import annotations

from fastrec.features._engine.lists import list_of
from fastrec.features._inputs import as_list, masked, name_of
from fastrec.features.base import Cols, RowWise, Tensors
from fastrec.table import Column, Table
from fastrec.table.offsets import lengths_of


class ListLength(RowWise):
    """How many elements a row's list has, missing ones too, as int64; a missing list has no length: it is missing.

    Args:
        cols: columns of lists or vectors, or generators of one such column each.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import ListLength
        >>> df = pd.DataFrame({"tags": [["a", "b"], [], None]})
        >>> ListLength("tags").fit_transform(df)["length_tags"].tolist()
        [2, 0, <NA>]
    """

    def __init__(self, cols: Cols) -> None:
        self.cols = cols

    @property
    def outputs(self) -> list[str]:
        return [f"length_{name_of(c)}" for c in as_list(self.cols)]

    def prepare(self, table: Table) -> Tensors:
        names = [name_of(c) for c in as_list(self.cols)]
        return {name: list_of(table, name, wanted_by=self).values for name in names}

    def apply(self, tensors: Tensors) -> Tensors:
        return {f"length_{name}": lengths_of(offsets) for name, offsets in tensors.items()}

    def compute(self, table: Table) -> dict[str, Column]:
        lengths = self.apply(self.prepare(table))
        columns = {f"length_{name_of(c)}": table[name_of(c)] for c in as_list(self.cols)}
        return {n: masked(n, lengths[n], c.is_missing().to(lengths[n].device)) for n, c in columns.items()}
