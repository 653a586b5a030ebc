"""``Lag`` and ``Diff``: the value some rows earlier in the row's group, and the change since then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fastrec.errors import DataError
from fastrec.features.base import Context, Feature, Grouped, as_list, name_of, number_of, order_keys
from fastrec.key_types import UNITS_PER_SECOND
from fastrec.segments import Groups, shift_in_group
from fastrec.table import Column, Table


def ordered_groups(table: Table, by: Sequence[str], order: Sequence[str]) -> tuple[Groups, torch.Tensor]:
    """The table's rows by group and in order, and which rows are in no group (a missing key), bool ``[n]``."""
    keys = order_keys(table, order)
    if not by:
        zeros = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        return Groups.of(zeros, *keys), zeros.bool()
    codes = table.coded(list(by)).codes
    return Groups.of(codes, *keys), codes == 0


class Lag(Grouped):
    """The value ``n`` rows earlier in the row's group; missing where there is none. The input need not be sorted.

    Args:
        cols: columns of numbers, times, text or categories, or generators of one column each.
        by: the columns of the group; None: all rows are one group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        n: how many rows back, or several; below 0: ahead (the future).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Lag
        >>> df = pd.DataFrame({"user": [1, 2, 1], "day": [2, 1, 1], "price": [30, 20, 10]})
        >>> Lag("price", by="user", order="day").fit_transform(df)["lag1_price__user"].tolist()
        [10, <NA>, <NA>]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        by: str | Sequence[str] | None = None,
        order: str | Sequence[str] | None = None,
        n: int | Sequence[int] = 1,
    ) -> None:
        self.cols, self.by, self.order, self.n = cols, by, order, n
        if 0 in as_list(n):
            raise DataError(f"{type(self).__name__}: n is 0", remedy="Use 1 for the row before, -1 for the row after")

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return any(n < 0 for n in as_list(self.n))

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *as_list(self.by), *as_list(self.order)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, n) for c in as_list(self.cols) for n in as_list(self.n)]

    def _name(self, col: str | Feature, n: int) -> str:
        word = f"lag{n}" if n > 0 else f"lead{-n}"
        return f"{word}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for n in as_list(self.n):
            rows = torch.where(outside, -1, shift_in_group(groups, n))
            for col in as_list(self.cols):
                result[self._name(col, n)] = self._value(table, name_of(col), rows)
        return {n: result[n] for n in self.outputs}

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        return take_or_missing(table[col], rows)


class Diff(Lag):
    """The row's value less the value ``n`` rows earlier in its group, as float64; NaN where there is none.

    Arguments as ``Lag``. Times differ in seconds, whatever the zone.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Diff
        >>> df = pd.DataFrame({"user": [0, 0, 0, 1, 1, 2], "t": [1000, 1005, 1100, 2000, 2001, 3000]})
        >>> Diff("t", by="user", order="t").fit_transform(df)["diff1_t__user"].tolist()
        [nan, 5.0, 95.0, nan, 1.0, nan]
    """

    def _name(self, col: str | Feature, n: int) -> str:
        return f"diff{n}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        column = table[col]
        if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
            there = take_or_missing(column, rows)
            change = difference(column.integer(), there.integer()) / UNITS_PER_SECOND[column.unit or "s"]
            gone = column.is_missing() | there.is_missing()
            return Column("number", torch.where(gone, torch.nan, change), name=col)
        values = number_of(table, col, wanted_by=self)
        there = torch.where(rows >= 0, values[rows.clamp_min(0)] if len(values) else values, torch.nan)
        return Column("number", values - there, name=col)


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a - b`` as float64 ``[n]``; of integers exact before it is rounded, even where it is too large for 64 bits."""
    rough = a.double() - b.double()
    if a.is_floating_point() or b.is_floating_point():
        return rough
    return torch.where(rough.abs() < 2.0**62, (a - b).double(), rough)


def take_or_missing(column: Column, rows: torch.Tensor) -> Column:
    """The column's values at ``rows`` (int64 ``[m]``), missing where a row is below 0."""
    absent = rows < 0
    if column.kind not in ("number", "datetime", "category"):
        raise DataError(
            f"holds {column.kind} values, which cannot be shifted", column=column.name, remedy="Choose another column"
        )
    if not len(column):  # every row is missing then: one row stands for it
        column = replace(column, values=column.values.new_zeros(1), missing=None, _cache={})
    taken = column.take(rows.clamp_min(0))
    if column.kind == "category":
        return replace(taken, values=torch.where(absent, 0, taken.values), _cache={})
    if column.kind == "number" and column.values.is_floating_point():
        return replace(taken, values=torch.where(absent | taken.is_missing(), torch.nan, taken.values), missing=None)
    missing = taken.is_missing() | absent
    return replace(taken, missing=missing if bool(missing.any()) else None, _cache={})
