"""The cell of each row of a partition, and the rows that a fold hides; recomputed wherever the rows are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.folds import INNER_SEED, _number_folds, fold_numbers, row_folds
from fastrec.features._engine.keyed import sort_keys
from fastrec.features.base import Cells
from fastrec.table import Keys, Table

ROW, OUTER = "\x00row", "\x00outer"  # columns of ours: the row's number in the whole frame, its outer fold


class Folding:
    """Folds of rows by their key, or by their number in the whole frame.

    Args:
        key: the columns; empty: the number.
        count: how many folds.
    """

    def __init__(self, key: Sequence[str], count: int) -> None:
        self.key, self.count = list(key), count

    @property
    def columns(self) -> list[str]:
        return self.key or [ROW]

    def of(self, table: Table) -> torch.Tensor:
        if self.key:
            return row_folds(table, self.key, self.count, seed=INNER_SEED)
        return _number_folds(table[ROW].values, self.count, INNER_SEED)


class Hidden:
    """Rows whose targets must not be seen: those of an outer fold, of an inner one, or of both.

    Args:
        outer: the outer fold's number; None: none.
        inner: the inner folds, and the number of one; None: none.
    """

    def __init__(self, outer: int | None = None, inner: tuple[Folding, int] | None = None) -> None:
        self.outer, self.inner = outer, inner

    @property
    def columns(self) -> list[str]:
        return [*([] if self.outer is None else [OUTER]), *([] if self.inner is None else self.inner[0].columns)]

    def of(self, table: Table) -> torch.Tensor:
        rows = torch.zeros(len(table), dtype=torch.bool, device=table.device)
        if self.outer is not None:
            rows |= table[OUTER].values == self.outer
        if self.inner is not None:
            rows |= self.inner[0].of(table) == self.inner[1]
        return rows


class CellRule:
    """The rule by which a generator's training rows are split into cells.

    Args:
        folding: its folds where rows get their values from other folds; None: all rows are in one cell.
        column: instead of ``folding``, the column that holds folds, and all of its values.
        hidden: rows in a cell of their own, the first, which no row sees; None: none.
    """

    def __init__(
        self, folding: Folding | None, column: tuple[str, Keys] | None = None, hidden: Hidden | None = None
    ) -> None:
        self.folding, self.column, self.hidden = folding, column, hidden

    @property
    def by_fold(self) -> bool:
        return self.folding is not None or self.column is not None

    @property
    def columns(self) -> list[str]:
        own = [self.column[0]] if self.column else self.folding.columns if self.folding else []
        return [*own, *(self.hidden.columns if self.hidden else [])]

    @property
    def count(self) -> int:
        inner = max(len(self.column[1]), 1) if self.column else self.folding.count if self.folding else 1
        return inner + (self.hidden is not None)

    def of(self, table: Table) -> Cells:
        if self.column is not None:
            codes = table.coded(self.column[0]).recode(self.column[1]) - 1
        else:
            one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
            codes = one if self.folding is None else self.folding.of(table)
        if self.hidden is not None:
            codes = torch.where(self.hidden.of(table), 0, codes + 1)
        return Cells(codes, self.count)

    def excluded(self) -> torch.Tensor:
        """Return bool ``[cells, cells]``: row ``c`` tells which cells rows of cell ``c`` must not see."""
        found = torch.eye(self.count, dtype=torch.bool) & self.by_fold
        if self.hidden is not None:
            found[:, 0] = True
        return found


def given_keys(table: Table, column: str) -> Keys:
    """Return the values of a column of folds in one partition, in order."""
    keys, codes = sort_keys(table.coded(column))
    if bool((codes == 0).any()):
        row = int((codes == 0).nonzero()[0])
        raise DataError("a row has no fold", column=column, row=row, remedy="Give every training row a fold")
    return keys


def outer_numbers(table: Table, column: str) -> Table:
    return Table({OUTER: fold_numbers(table[column], column)})
