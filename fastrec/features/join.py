"""``JoinTable``: columns of another table, looked up by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features.base import Col, Cols, Context, Grouped, Names
from fastrec.features.columns import as_list, name_of
from fastrec.segments import segment_max, segment_min
from fastrec.table import Column, Table
from fastrec.table.table import concat_columns


class JoinTable(Grouped):
    """Left join: columns ``{name}_{column}`` of another table with the same key; rows and their order do not change.

    A missing or absent key gives missing values. Columns of all kinds keep their types. Rows of the other table are
    taken whatever their time: ``History`` takes the values before a row.

    Args:
        table: the name of the other table in ``tables``.
        on: the key columns of both tables, or the frame's column → the other table's. A generator's output must have
            the name of the other table's column.
        columns: the columns to fetch.
        duplicates: for a key in several rows of the other table: ``'error'``, or the ``'first'`` or ``'last'`` row.
        name: the outputs' first word; None: the table's name.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import JoinTable
        >>> items = pd.DataFrame({"id": ["a", "b"], "stars": [4, 5]})
        >>> rows = pd.DataFrame({"item": ["b", None, "b"]})
        >>> made = JoinTable("items", {"item": "id"}, "stars").fit_transform(rows, tables={"items": items})
        >>> made["items_stars"].fillna(0).tolist()
        [5, 0, 5]
    """

    def __init__(
        self,
        table: str,
        on: Cols | Mapping[str, str],
        columns: Names,
        *,
        duplicates: Literal["error", "first", "last"] = "error",
        name: str | None = None,
    ) -> None:
        if not self.sources or not as_list(columns):
            raise DataError("JoinTable needs a key and columns to fetch", remedy="Name at least one of each")

    @property
    def within(self) -> None:
        return None

    @property
    def sources(self) -> list[Col]:
        return list(self.on) if isinstance(self.on, Mapping) else as_list(self.on)

    @property
    def _keys(self) -> list[str]:
        return list(self.on.values()) if isinstance(self.on, Mapping) else [name_of(s) for s in self.sources]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {self.table: list(dict.fromkeys([*self._keys, *as_list(self.columns)]))}

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name or self.table}_{c}" for c in as_list(self.columns)]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        other = context.table(self.table, wanted_by="JoinTable")
        known = other.coded(self._keys)
        rows = torch.arange(len(other), device=known.codes.device)
        if self.duplicates == "error":
            self._check(known.codes, known.size)
        row_of = (segment_min if self.duplicates == "first" else segment_max)(rows, known.codes, known.size)
        # The last row, of missing values, is for missing keys and for categories without a row.
        row_of = torch.where((row_of < 0) | (row_of > len(other)), len(other), row_of)
        row_of[0] = len(other)
        place = row_of[table.coded([name_of(s) for s in self.sources]).recode(known.keys).to(row_of.device)]
        made = {}
        for column, output in zip(as_list(self.columns), self.outputs, strict=True):
            source = other[column]
            device = torch.device("cpu") if source.kind == "opaque" else source.values.device
            missing = torch.full((1,), torch.nan, dtype=torch.float64, device=device)
            nothing = Column("number", missing, name=source.name)
            made[output] = replace(concat_columns([source, nothing], device).take(place), name=output)
        return made

    def _check(self, codes: torch.Tensor, size: int) -> None:
        places = torch.arange(len(codes), device=codes.device)
        first = segment_min(places, codes, size)
        again = ((codes > 0) & (first[codes] != places)).nonzero()
        if not len(again):
            return
        row = int(again[0])
        problem = f"JoinTable: table {self.table!r} has the key of row {int(first[codes[row]])} again"
        remedy = "Drop the repeated rows, or choose duplicates='first' or 'last'"
        raise DataError(problem, column=self._keys[0], row=row, remedy=remedy)
