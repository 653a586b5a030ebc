"""``Lag`` and ``Diff``: the value some rows earlier in the row's group, and the change since then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from fastrec.errors import DataError
from fastrec.features._engine.durations import positive, seconds_in, short
from fastrec.features._engine.look_back import KeepsRows, in_order
from fastrec.features._engine.options import OfGroups
from fastrec.features._engine.order import Timeline, difference, one_order, ordered_groups, take_or_missing
from fastrec.features._inputs import as_list, name_of, number_of
from fastrec.features.base import Col, Cols, Context, Names
from fastrec.segments import Groups, shift_in_group
from fastrec.segments.windows import first_at_least, keys_before
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND


class Lag(OfGroups, KeepsRows):
    """The value ``n`` rows earlier in the row's group; missing where there is none. The input need not be sorted.

    Args:
        cols: columns of numbers, times, text or categories, or generators of one column each.
        by: the columns of the group; None: all rows are one group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        n: the number of rows back, or several; below 0: ahead (the future).
        horizon: count back from the last row at least this much earlier: ``'42D'``, ``'12h'``, ``'30min'``, or a number
            in the unit of ``order`` (seconds for times; with a text an order of numbers is in seconds). None: from the
            row before.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Lag
        >>> df = pd.DataFrame({"user": [1, 2, 1], "day": [2, 1, 1], "price": [30, 20, 10]})
        >>> Lag("price", by="user", order="day").fit_transform(df)["lag1_price__user"].tolist()
        [10, <NA>, <NA>]
        >>> df = pd.DataFrame({"t": pd.to_datetime(["2024-01-01", "2024-01-06", "2024-01-09"]), "sold": [5, 6, 7]})
        >>> Lag("sold", order="t", horizon="7D").fit_transform(df)["lag1_7D_sold"].tolist()
        [<NA>, <NA>, 5]
    """

    own_row = False
    _word = "lag"

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names | None = None,
        order: Names | None = None,
        n: int | Sequence[int] = 1,
        horizon: str | float | None = None,
    ) -> None:
        self.cols, self.by, self.order, self.n, self.horizon = cols, by, order, n, horizon
        name = type(self).__name__
        if 0 in as_list(n):
            raise DataError(f"{name}: n is 0", remedy="Use 1 for the row before, -1 for the row after")
        if horizon is not None:
            if any(k < 0 for k in as_list(n)):
                raise DataError(
                    f"{name}: a horizon looks back, and n is below 0", remedy="Use n above 0, or no horizon"
                )
            self._span(1)
            one_order(self, "a horizon")

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return any(n < 0 for n in as_list(self.n))

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, n) for c in as_list(self.cols) for n in as_list(self.n)]

    def _name(self, col: Col, n: int) -> str:
        word = f"lead{-n}" if n < 0 and self._word == "lag" else f"{self._word}{n}"
        known = "" if self.horizon is None else f"_{short(self.horizon)}"
        return f"{word}{known}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        end = None if self.horizon is None else self._known(table, groups)
        result = {}
        for n in as_list(self.n):
            if end is None:
                rows = shift_in_group(groups, n)
            else:
                place = end - n
                at = place.clamp_min(0)
                at = at if groups.order is None else groups.order[at]
                rows = groups.unsort(torch.where(place >= groups.start, at, -1))
            rows = torch.where(outside, -1, rows)
            for col in as_list(self.cols):
                made = self._value(table, name_of(col), rows)
                result[self._name(col, n)] = replace(made, name=self._name(col, n))
        return {n: result[n] for n in self.outputs}

    def last_rows(self, table: Table) -> torch.Tensor:
        groups, _ = ordered_groups(table, [], as_list(self.order))
        end = len(table) if self.horizon is None else int(self._known(table, groups)[-1])
        return in_order(table, as_list(self.order), max(end - max(as_list(self.n)), 0))

    def _span(self, per_second: int) -> Fraction:
        name = type(self).__name__
        if isinstance(self.horizon, str):
            return seconds_in(self.horizon, wanted_by=name, what="horizon") * per_second
        return positive(self.horizon, wanted_by=name, what="horizon") * per_second

    def _known(self, table: Table, groups: Groups) -> torch.Tensor:
        """Return, for each sorted row, the place after the last one of its group a horizon before it."""
        timeline = Timeline.of(table, groups, one_order(self, "a horizon"))
        bounds = keys_before(timeline.keys, self._span(timeline.per_second), beyond=True)
        return first_at_least(timeline.keys, bounds, groups.start, timeline.tied)

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

    own_row = True
    _word = "diff"

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        column = table[col].plain()
        if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
            there = take_or_missing(column, rows)
            change = difference(column.integer(), there.integer()) / UNITS_PER_SECOND[column.unit or "s"]
            gone = column.is_missing() | there.is_missing()
            return Column("number", torch.where(gone, torch.nan, change), name=col)
        values = number_of(table, col, wanted_by=self)
        if not len(values):
            return Column("number", values, name=col)
        there = values.index_select(0, rows.clamp_min(0)).masked_fill_(rows < 0, torch.nan)
        return Column("number", torch.sub(values, there, out=there), name=col)
