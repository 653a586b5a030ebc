"""State that generators that look back over all rows keep for later rows."""

from __future__ import annotations

from abc import abstractmethod

import torch

from fastrec.features._engine.order import ordered_groups
from fastrec.features._inputs import as_list
from fastrec.features.base import Context, Grouped, State
from fastrec.table import Column, Table, concat


class LooksBack(Grouped):
    """Generator whose rows look at earlier rows, which may be in earlier tables if there is no ``by``.

    Tables follow one another in the generator's ``order``: rows at one point of its first column are in one table.
    Without an order they follow one another as they are.
    """

    @property
    def looks_back(self) -> bool:
        """Whether rows need nothing of earlier tables but what ``keep`` returns."""
        return not as_list(getattr(self, "by", None)) and not self.uses_future

    @abstractmethod
    def keep(self, table: Table) -> State:
        """Return what rows of later tables need of this one."""

    @abstractmethod
    def keep_both(self, a: State, b: State) -> State:
        """Merge what they need of two tables, the second of which follows the first."""

    @abstractmethod
    def compute_after(self, table: Table, context: Context, past: State) -> dict[str, Column]:
        """Compute as ``compute`` does, after tables of which ``past`` was kept."""


class KeepsRows(LooksBack):
    """Generator that needs the last few rows of the tables before."""

    @abstractmethod
    def last_rows(self, table: Table) -> torch.Tensor:
        """Return the rows that later rows look at: int64 ``[m]``, in order."""

    def keep(self, table: Table) -> State:
        table = table.select(self.inputs)
        return {"rows": table.take(self.last_rows(table)) if len(table) else table}

    def keep_both(self, a: State, b: State) -> State:
        return self.keep(concat([a["rows"], b["rows"]]))

    def compute_after(self, table: Table, context: Context, past: State) -> dict[str, Column]:
        before = past["rows"]
        whole = concat([before.to(table.device), table.select(self.inputs)])
        made = self.compute(whole, context)
        own = torch.arange(len(before), len(whole), device=table.device)
        return {n: column.take(own) for n, column in made.items()}


def in_order(table: Table, order: list[str], start: int) -> torch.Tensor:
    """Return the rows from the sorted place ``start`` on: int64 ``[m]``, in order."""
    sorted_rows = ordered_groups(table, [], order)[0].order
    if sorted_rows is None:
        return torch.arange(start, len(table), device=table.device)
    return sorted_rows[start:]
