"""``JaccardToHistory``: the similarity of the row's item with the items of its past, by shared properties."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.order import Aligned
from fastrec.features._inputs import as_list
from fastrec.features.base import Context, Grouped, Names
from fastrec.segments import segment_max
from fastrec.table import Column, Table


class JaccardToHistory(Grouped):
    """Jaccard similarity of the row's item with the last items of its group's log: mean and maximum.

    Only events strictly before the row count. An event on the row's own item counts with similarity 1. NaN where there
    is no event before, or no item in the table; with no properties at all, 0.

    Args:
        by: the columns of the group, in rows and log: ``'session_id'``.
        item: the item's column, in rows, log and item table.
        properties: the item table's list column with each item's properties.
        order: the columns that order events and rows.
        table: the name of the log among the ``tables`` given.
        items: the name of the item table among them; without it all values are missing. Of an item's rows the last
            one counts.
        last: the number of events to look back.
        name: the outputs' first word.

    Source: Jaccard 1912, "The distribution of the flora in the alpine zone".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import JaccardToHistory
        >>> log = pd.DataFrame({"user": [1], "item": ["a"], "t": [1]})
        >>> items = pd.DataFrame({"item": ["a", "b"], "tags": [["x", "y"], ["y", "z"]]})
        >>> j = JaccardToHistory("user", item="item", properties="tags", order="t", table="log", items="items")
        >>> rows = pd.DataFrame({"user": [1], "item": ["b"], "t": [2]})
        >>> round(float(j.fit_transform(rows, tables={"log": log, "items": items})["jaccard_mean"][0]), 4)
        0.3333
    """

    def __init__(
        self,
        by: Names,
        *,
        item: str,
        properties: str,
        order: Names,
        table: str,
        items: str,
        last: int = 3,
        name: str = "jaccard",
    ) -> None:
        self.by, self.item, self.properties, self.order = by, item, properties, order
        self.table, self.items, self.last, self.name = table, items, last, name
        if last < 1:
            raise DataError(f"JaccardToHistory: last is {last}", remedy="Look back at least 1 event")

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        return [*as_list(self.by), self.item, *as_list(self.order)]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {self.table: self.sources, self.items: [self.item, self.properties]}

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_mean", f"{self.name}_max"]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        if self.items not in context.tables:
            unknown = torch.full((len(table),), torch.nan, dtype=torch.float64, device=table.device)
            return {n: Column("number", unknown, name=n) for n in self.outputs}
        log = context.table(self.table, wanted_by="JaccardToHistory")
        catalogue = context.table(self.items, wanted_by="JaccardToHistory")
        sets = self._sets(catalogue)
        keys = catalogue[self.item].coded()
        # Row of each item in the catalogue, from 1; 0 = not there.
        rows = torch.arange(1, len(catalogue) + 1, device=table.device)
        place = segment_max(rows, keys.codes, keys.size).clamp_min(0)
        place[0] = 0
        mine = place[table[self.item].coded().recode(keys.keys)]
        last, events = Aligned.of(table, log, as_list(self.by), as_list(self.order)).before()
        touched = events.sort(place[log[self.item].coded().recode(keys.keys)])
        total, most, count = self._compare(sets, mine, last, events.start, touched)
        mean = torch.where(count > 0, total / count.clamp_min(1), torch.nan)
        best = torch.where(count > 0, most, torch.nan)
        return {n: Column("number", v, name=n) for n, v in zip(self.outputs, (mean, best), strict=True)}

    def _sets(self, catalogue: Table) -> _Sets:
        column = catalogue[self.properties]
        if column.kind != "list":
            raise DataError(
                "JaccardToHistory needs lists of properties", column=self.properties, remedy="Split the text first"
            )
        coded = column.elements.coded()
        sizes = column.values[1:] - column.values[:-1]
        rows = torch.repeat_interleave(torch.arange(1, len(catalogue) + 1, device=sizes.device), sizes)
        first = int(column.values[0])
        codes = coded.codes[first : first + len(rows)]
        known = codes > 0  # a missing property is none
        return _Sets.of(rows[known], codes[known], len(catalogue) + 1, coded.size)

    def _compare(
        self, sets: _Sets, mine: torch.Tensor, last: torch.Tensor, start: torch.Tensor, touched: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sum, maximum (float64 ``[n]``) and number (int64 ``[n]``) of similarities."""
        total = torch.zeros(len(mine), dtype=torch.float64, device=mine.device)
        most, count = torch.zeros_like(total), torch.zeros_like(mine)
        if not len(touched):
            return total, most, count
        floor = start[last.clamp_min(0)]
        for back in range(self.last):
            place = last - back
            there = touched[place.clamp_min(0)]
            rows = ((last >= 0) & (place >= floor) & (mine > 0) & (there > 0)).nonzero().squeeze(1)
            like = sets.likeness(mine[rows], there[rows])
            total[rows] += like
            most[rows] = torch.maximum(most[rows], like)
            count[rows] += 1
        return total, most, count


@dataclass(frozen=True, eq=False)
class _Sets:
    """Sets of properties, concatenated.

    Args:
        start: int64 ``[sets + 1]``, the place of each set's first property.
        properties: int64 ``[elements]`` in ``0 … size - 1``, every property of a set once.
        size: the number of properties.
    """

    start: torch.Tensor
    properties: torch.Tensor
    size: int

    @classmethod
    def of(cls, sets: torch.Tensor, properties: torch.Tensor, count: int, size: int) -> _Sets:
        """Build ``count`` sets from pairs of set and property (int64 ``[m]`` each), which may repeat."""
        once = torch.unique(sets * size + properties)
        start = torch.zeros(count + 1, dtype=torch.int64, device=sets.device)
        torch.cumsum(torch.bincount(once // size, minlength=count), 0, out=start[1:])
        return cls(start, once % size, size)

    def likeness(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the Jaccard similarity of pairs of sets (int64 ``[n]`` each): float64 ``[n]``, 0 of two empty ones."""
        block = max(min(limits.JACCARD_CELLS // max(self.size, 1), len(a)), 1)
        marks = torch.zeros(block * self.size, dtype=torch.bool, device=a.device)
        both = torch.zeros_like(a)
        for i in range(0, len(a), block):
            place = self._places(a[i : i + block])
            marks[place] = True
            other = self._places(b[i : i + block])
            both[i : i + block] = torch.bincount(other[marks[other]] // self.size, minlength=len(a[i : i + block]))
            marks[place] = False
        length = self.start[1:] - self.start[:-1]
        either = length[a] + length[b] - both
        # Divided as float32: the golden values were.
        return (both.float() / either.clamp_min(1).float()).double()

    def _places(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the places of some sets' properties in a flat matrix ``[sets, size]``: int64 ``[m]``."""
        lengths = self.start[sets + 1] - self.start[sets]
        rows = torch.repeat_interleave(torch.arange(len(sets), device=sets.device), lengths)
        before = torch.cumsum(lengths, 0) - lengths
        elements = torch.arange(len(rows), device=sets.device) + (self.start[sets] - before)[rows]
        return rows * self.size + self.properties[elements]
