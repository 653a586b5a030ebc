"""``ColumnRanker``: candidates in the order of a column, the yardstick that every model must beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.estimators.base import Ranker, Trace
from fastrec.segments import lexical_order
from fastrec.table import Column
from fastrec.validate import Lists


class ColumnRanker(Ranker):
    """Ranks by columns: the smallest value of the first comes first, ties by the next; missing comes last.

    Args:
        name: the ranker's name.
        columns: the columns, the most important first.
    """

    learns = False

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name, self.columns, self.trace = name, list(columns), Trace()

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> ColumnRanker:
        """Return the ranker as it is: there is nothing to learn."""
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """Return minus the place of each candidate in the columns' order: float64 ``[n]``."""
        order = lexical_order([key.cpu() for name in self.columns for key in _sort_keys(data.table[name])])
        place = torch.arange(len(data), dtype=torch.float64)
        if order is not None:
            place[order] = torch.arange(len(data), dtype=torch.float64)
        return -place


def _sort_keys(column: Column) -> list[torch.Tensor]:
    """Return keys that put a column's values in order, missing ones last; integers and times keep all 64 bits."""
    column = column.plain()
    whole = column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point())
    if not whole:
        return [column.number()]  # NaN sorts last
    missing = column.is_missing()
    return [missing.long(), torch.where(missing, 0, column.integer())]
