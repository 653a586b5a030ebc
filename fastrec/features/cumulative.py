"""Running statistics over earlier rows of a group."""

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
    """Statistics of the values in earlier rows of the group; missing values do not count.

    Args:
        stats: any of ``count`` and ``sum`` (0 without an earlier value), ``mean``, ``min`` and ``max`` (NaN), and
            ``smaller``: the number of earlier values below the row's (NaN if it is missing).

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
            # Without missing values no copies are needed.
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
    """Return the largest or smallest earlier known value in the group: float64 ``[n]``, NaN without one."""
    if not len(values):
        return values
    # Ranks of each group lie above those of all earlier groups, so one running maximum over all rows restarts in every
    # group.
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
    # Count the earlier known values in the group that are below the row's: int64 ``[n]``.
    # Groups are halved repeatedly. At each level a row of a right half counts the smaller values of its left half,
    # which precede it after a sort by block and value. That takes log2(largest group) sorts.
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
        # Ties: the right half comes first, so that equal values do not count.
        block = place >> (level + 1)
        ordered = Groups.of(groups.codes, block, rank, 1 - is_right)
        left = ordered.sort((known & (is_right == 0)).long())
        passed = torch.cumsum(left, 0) - left
        count += ordered.unsort(passed - passed[run_starts(run_begins(groups.codes, block))]) * is_right
    return groups.unsort(count)


class LastKnown(OfColumns, Grouped):
    """Last known value in earlier rows of the group.

    Args:
        cols: columns, or generators.
        ahead: take the next known value in later rows instead (the future, if rows are ordered by time).

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
    """Return the number of the next marked row in the group: int64 ``[n]``, -1 without one."""
    n = len(marks)
    order = torch.arange(n, device=marks.device) if groups.order is None else groups.order
    turned = Groups.of(-groups.codes.flip(0))  # the sorted rows in reverse
    places = last_in_group(marks[order].flip(0), turned)
    rows = torch.where(places >= 0, order[(n - 1 - places).clamp(0, max(n - 1, 0))] if n else places, -1).flip(0)
    return groups.unsort(rows)


class CumCount(Grouped):
    """Number of earlier rows in the group; 0 if the group is missing.

    Args:
        by: the columns of the group.
        order: the columns that order a group's rows, ties by row number; None: the order of the frame.

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
