"""Running statistics over the rows before a row in its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns, named
from fastrec.features._engine.order import ordered_groups, run_begins, take_or_missing
from fastrec.features.base import Cols, Context, Grouped, Names
from fastrec.features.columns import as_columns, as_list, number_of
from fastrec.segments import Groups, cumsum_in_group, last_in_group
from fastrec.segments.groups import run_starts
from fastrec.table import Column, Table

Stat = Literal["count", "sum", "mean", "min", "max", "smaller"]


class CumStat(OfColumns, Grouped):
    """A statistic of the values in the rows before the row in its group; missing values do not count.

    Args:
        cols: number columns, or generators.
        by: the columns of the group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        stats: any of ``count``, ``sum``, ``mean``, ``min``, ``max`` (without a value before: 0, 0 and NaN), and
            ``smaller``: the number of values before that are below the row's own (NaN if it has none).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CumStat
        >>> df = pd.DataFrame({"list": [1, 1, 1], "price": [30, 10, 20]})
        >>> CumStat("price", by="list", stats="min").fit_transform(df)["cummin_price__list"].tolist()
        [nan, 30.0, 10.0]
    """

    def __init__(
        self, cols: Cols, *, by: Names, order: Names | None = None, stats: Stat | Sequence[Stat] = ("mean",)
    ) -> None: ...

    sees_ties = True

    @property
    def own_row(self) -> bool:  # type: ignore[override]
        return "smaller" in as_list(self.stats)

    @property
    def outputs(self) -> list[str]:
        return [self._name(n, s) for n in self.columns for s in as_list(self.stats)]

    def _name(self, col: str, stat: Stat) -> str:
        return named(self, f"cum{stat}", col)

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for col in self.columns:
            values = number_of(table, col, wanted_by=self)
            known = ~(values.isnan() | outside)
            wanted, every = set(as_list(self.stats)), bool(known.all())
            count = total = None
            # Copies for missing values are left out where there are none.
            if wanted & {"sum", "mean"}:
                total = cumsum_in_group(values if every else torch.where(known, values, 0), groups)
            if wanted & {"count", "mean"}:
                count = groups.unsort(groups.place) if every else cumsum_in_group(known, groups)
            for stat in as_list(self.stats):
                if stat in ("min", "max"):
                    made = _running_extreme(values, known, groups, largest=stat == "max")
                elif stat == "smaller":
                    made = torch.where(known, _smaller_before(values, known, groups).double(), torch.nan)
                else:
                    made = count if stat == "count" else total if stat == "sum" else total / count  # 0 / 0 is NaN
                result[self._name(col, stat)] = made
        return as_columns(result)


def _running_extreme(values: torch.Tensor, known: torch.Tensor, groups: Groups, *, largest: bool) -> torch.Tensor:
    """Return the largest or smallest known value before each row in its group: float64 ``[n]``, NaN without one."""
    if not len(values):
        return values
    # Values become ranks, in a block per group above those of the groups before: one running maximum over all rows
    # then restarts in every group.
    signed = torch.where(known, values if largest else -values, 0)
    distinct, rank = torch.unique(signed, return_inverse=True)
    ordered = torch.where(groups.sort(known), groups.sort(rank) + 1, 0)
    block = groups.codes - groups.codes[0]
    running = torch.cummax(ordered + block * (len(distinct) + 1), 0).values
    before = torch.cat([running.new_zeros(1), running[:-1]]) - block * (len(distinct) + 1)
    found = (groups.place > 0) & (before > 0)
    extreme = distinct[(before - 1).clamp(0, len(distinct) - 1)]
    return groups.unsort(torch.where(found, extreme if largest else -extreme, torch.nan))


def _smaller_before(values: torch.Tensor, known: torch.Tensor, groups: Groups) -> torch.Tensor:
    # Count the known values before each row in its group that are below its own: int64 ``[n]``.
    # Groups are halved repeatedly: at each level a row of a right half counts the smaller ones of its left half, which
    # a sort by block and value puts before it. That takes log2(largest group) sorts.
    place, count = groups.place, torch.zeros_like(groups.codes)
    if not len(count):
        return count
    if len(count) <= limits.PAIRED_ROWS:
        rank, known = groups.sort(torch.where(known, values, torch.inf)), groups.sort(known)
        before = (groups.codes[:, None] == groups.codes) & known & (rank < rank[:, None])
        return groups.unsort(before.tril_(-1).sum(1))
    _, rank = torch.unique(torch.where(known, values, torch.inf), return_inverse=True)
    rank, known = groups.sort(rank), groups.sort(known)
    for level in range(int(place.max()).bit_length()):
        is_right = (place >> level) & 1
        # Of equal values those of the right half come first, so that they do not count each other.
        block = place >> (level + 1)
        ordered = Groups.of(groups.codes, block, rank, 1 - is_right)
        left = ordered.sort((known & (is_right == 0)).long())
        passed = torch.cumsum(left, 0) - left
        begin = run_starts(run_begins(groups.codes, block))
        count += ordered.unsort(passed - passed[begin]) * is_right
    return groups.unsort(count)


class LastKnown(OfColumns, Grouped):
    """The last value that is not missing in the rows before the row in its group (after it, with ``ahead``).

    Args:
        cols: columns, or generators.
        by: the columns of the group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        ahead: take the nearest known value after the row instead (the future, if the order is one of time).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import LastKnown
        >>> df = pd.DataFrame({"list": [1, 1, 1], "price": [30.0, None, 20.0]})
        >>> LastKnown("price", by="list").fit_transform(df)["known_price__list"].tolist()
        [nan, 30.0, 30.0]
    """

    def __init__(self, cols: Cols, *, by: Names, order: Names | None = None, ahead: bool = False) -> None: ...

    own_row, sees_ties = False, True

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return self.ahead

    @property
    def _word(self) -> str:
        return "next_known" if self.ahead else "known"

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for col in self.columns:
            column = table[col]
            known = ~column.is_missing().to(table.device) & ~outside
            rows = _next_in_group(known, groups) if self.ahead else last_in_group(known, groups)
            result[self._name(col)] = take_or_missing(column, torch.where(outside, -1, rows))
        return result


def _next_in_group(marks: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return the nearest marked row after each row in its group: int64 ``[n]`` row numbers, -1 without one."""
    n = len(marks)
    order = torch.arange(n, device=marks.device) if groups.order is None else groups.order
    turned = Groups.of(-groups.codes.flip(0))  # the sorted rows from the last to the first: groups stay whole
    places = last_in_group(marks[order].flip(0), turned)
    rows = torch.where(places >= 0, order[(n - 1 - places).clamp(0, max(n - 1, 0))] if n else places, -1).flip(0)
    return groups.unsort(rows)


class CumCount(Grouped):
    """How many rows of the row's group come before it; 0 for the first one, and where the group is missing.

    Args:
        by: the columns of the group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CumCount
        >>> df = pd.DataFrame({"user": [1, 2, 1, 1], "day": [3, 1, 1, 2]})
        >>> CumCount(by="user", order="day").fit_transform(df)["cumcount_user"].tolist()
        [2, 0, 0, 1]
    """

    _reads = ("by", "order")

    def __init__(self, by: Names, *, order: Names | None = None) -> None:
        if not as_list(by):
            raise DataError("CumCount: no column says which rows are a group", remedy="Name one: CumCount(by='user')")

    @property
    def outputs(self) -> list[str]:
        return ["cumcount_" + "_x_".join(as_list(self.by))]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        count = torch.where(outside, 0, groups.unsort(groups.place))
        return {self.outputs[0]: Column("number", count, name=self.outputs[0])}
