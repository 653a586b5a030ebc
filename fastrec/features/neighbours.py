"""``Neighbours``: a row's value beside those next to it in its list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfGroups
from fastrec.features._engine.order import difference, ordered_groups, take_or_missing
from fastrec.features._inputs import as_list, check_choices, comparable, name_of, number_of
from fastrec.features.base import Cols, Context, Grouped, Names
from fastrec.segments import Groups, shift_in_group
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND

What = Literal["previous", "next", "diff_previous", "diff_next", "above", "below"]
_WHAT = ("previous", "next", "diff_previous", "diff_next", "above", "below")


class Neighbours(OfGroups, Grouped):
    """Values next to a row in its list: of the rows before and after it, and the next ones by size.

    A list is shown at once. If the order is one of time, the row after is the future (``uses_future``). Missing without
    such a row, where a value is missing, and in a missing list.

    Args:
        cols: columns, or generators of one column each; of numbers or times for all but ``previous`` and ``next``.
        by: the columns of the list.
        order: the columns that order a list's rows (the position shown), ties by row number; None: the rows' own order.
        n: the number of rows away, or several.
        what: any of ``previous`` and ``next`` (the value of the row ``n`` before and after), ``diff_previous`` and
            ``diff_next`` (the row's value less that one), ``above`` and ``below`` (the distance to the next larger and
            smaller value in the list, whatever ``n``). Times differ in seconds.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Neighbours
        >>> df = pd.DataFrame({"list": [1, 1, 1], "place": [1, 2, 3], "price": [30.0, 10.0, 25.0]})
        >>> made = Neighbours("price", by="list", order="place", what=["next", "above"]).fit_transform(df)
        >>> made[["next1_price__list", "above_price__list"]].values.tolist()
        [[10.0, nan], [25.0, 15.0], [nan, 5.0]]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        order: Names | None = None,
        n: int | Sequence[int] = 1,
        what: What | Sequence[What] = ("previous", "next"),
    ) -> None:
        self.cols, self.by, self.order, self.n, self.what = cols, by, order, n, what
        check_choices(self, "part", what, _WHAT)
        if any(i < 1 for i in as_list(n)):
            raise DataError(
                f"Neighbours: n is {n}", remedy="Use 1 for the rows next to a row; what= says on which side"
            )

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return bool({"next", "diff_next"} & set(as_list(self.what)))

    @property
    def outputs(self) -> list[str]:
        return [name for c in as_list(self.cols) for _, _, name in self._parts(name_of(c))]

    def _parts(self, col: str) -> list[tuple[str, int, str]]:
        """Return a column's parts: the word, the number of rows away, the output's name."""
        end = col + "".join(f"__{b}" for b in as_list(self.by))
        made = []
        for word in as_list(self.what):
            steps = [0] if word in ("above", "below") else as_list(self.n)
            made += [(word, n, f"{word}{n or ''}_{end}") for n in steps]
        return made

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result: dict[str, Column] = {}
        shifted: dict[int, torch.Tensor] = {}
        for col in (name_of(c) for c in as_list(self.cols)):
            gaps: dict[str, torch.Tensor] = {}
            for word, n, name in self._parts(col):
                if word in ("above", "below"):
                    gaps = gaps or self._gaps(table, col)
                    result[name] = Column("number", gaps[word], name=name)
                    continue
                n = n if word.endswith("previous") else -n
                if n not in shifted:
                    shifted[n] = torch.where(outside, -1, shift_in_group(groups, n))
                there = take_or_missing(table[col], shifted[n])
                if word.startswith("diff"):
                    there = Column("number", self._difference(table, col, there, shifted[n]), name=name)
                result[name] = there
        return result

    def _values(self, table: Table, col: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return values to compare, a mask of the missing ones, and units per second."""
        number_of(table, col, wanted_by=self)  # an error if they are neither numbers nor times
        return *comparable(table, col), UNITS_PER_SECOND[table[col].unit or "s"]

    def _difference(self, table: Table, col: str, there: Column, rows: torch.Tensor) -> torch.Tensor:
        values, missing, unit = self._values(table, col)
        if not len(values):
            return values.double()
        gone = missing | (rows < 0) | missing[rows.clamp_min(0)]
        return torch.where(gone, torch.nan, difference(values, values[rows.clamp_min(0)]) / unit)

    def _gaps(self, table: Table, col: str) -> dict[str, torch.Tensor]:
        """Return the distance to the next larger and smaller value of the list: float64 ``[n]`` each."""
        values, missing, unit = self._values(table, col)
        codes = table.coded(as_list(self.by)).codes
        rows = (~missing & (codes > 0)).nonzero().squeeze(1)
        made = {w: torch.full((len(codes),), torch.nan, dtype=torch.float64, device=codes.device) for w in _WHAT[-2:]}
        if not len(rows):
            return made
        values = values[rows]
        groups = Groups.of(codes[rows], values)
        ordered = groups.sort(values)
        new = torch.ones(len(ordered), dtype=torch.bool, device=codes.device)
        new[1:] = (ordered[1:] != ordered[:-1]) | (groups.codes[1:] != groups.codes[:-1])
        # Equal values of a list are one step; the steps before and after hold the next values by size.
        step = torch.cumsum(new, 0) - 1
        level, of = ordered[new], groups.codes[new]
        gap = difference(level[1:], level[:-1]) / unit
        gap = torch.where(of[1:] == of[:-1], gap, torch.nan)
        none = gap.new_full((1,), torch.nan)
        for word, found in (("above", torch.cat([gap, none])), ("below", torch.cat([none, gap]))):
            made[word][rows] = groups.unsort(found[step])
        return made
