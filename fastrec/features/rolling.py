"""``Rolling``: what the last few rows of the row's group, or those of the last few days, come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.durations import positive, seconds_in, short
from fastrec.features._engine.look_back import KeepsRows, in_order
from fastrec.features._engine.options import OfGroups
from fastrec.features._engine.order import Timeline, one_order, ordered_groups
from fastrec.features._inputs import as_list, check_choices, number_of
from fastrec.features.base import Cols, Context, Names
from fastrec.segments import Groups
from fastrec.segments.windows import (
    count_before,
    first_at_least,
    keys_before,
    window_extreme,
    window_median,
    window_squares,
    window_sum,
)
from fastrec.table import Column, Table

Stat = Literal["mean", "sum", "count", "std", "min", "max", "median"]
_STATS = ("mean", "sum", "count", "std", "min", "max", "median")


class Rolling(OfGroups, KeepsRows):
    """Statistics of a column over a window of the row's group that ends at the row; missing values do not count.

    As pandas' ``rolling(window, min_periods=min_count, closed=closed)`` of each group in order, as float64, but an
    infinite value is a value, and ``count`` is never missing. Every window is computed from its own rows alone.

    Args:
        cols: number columns, or generators.
        stats: of ``mean``, ``sum``, ``count``, ``std`` (sample), ``min``, ``max`` and ``median`` (exact).
        by: the columns of the group; None: all rows are one group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        window: the length in rows, or in time: ``'7D'``, ``'12h'``, ``'30min'``, ``'90s'`` (an order of numbers is in
            seconds); or several.
        min_count: with fewer values in the window all but ``count`` are NaN.
        closed: the ends that belong to the window: ``'left'`` (without the row itself or, in a window of time, others
            at its time), ``'right'`` (with the row, without rows exactly a window ago), ``'both'`` or ``'neither'``.
        name: a word for the outputs' names instead of ``roll``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Rolling
        >>> df = pd.DataFrame({"shop": [1, 1, 1, 1], "day": [1, 2, 3, 4], "sold": [1.0, 3.0, None, 5.0]})
        >>> Rolling("sold", by="shop", order="day", window=2).fit_transform(df)["rollmean2_sold__shop"].tolist()
        [nan, 1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        cols: Cols,
        stats: Stat | Sequence[Stat] = ("mean",),
        *,
        by: Names | None = None,
        order: Names | None = None,
        window: int | str | Sequence[int | str],
        min_count: int = 1,
        closed: Literal["left", "right", "both", "neither"] = "left",
        name: str | None = None,
    ) -> None:
        self.cols, self.stats, self.by, self.order = cols, stats, by, order
        self.window, self.min_count, self.closed, self.name = window, min_count, closed, name
        check_choices(self, "statistic", stats, _STATS)
        check_choices(self, "window closed", closed, ("left", "right", "both", "neither"))
        if min_count < 0:
            raise DataError(f"Rolling: min_count is {min_count}", remedy="Use 0 or more")
        if not as_list(window):
            raise DataError("Rolling: there is no window", remedy="Give a number of rows, or a time such as '7D'")
        for length in as_list(window):
            if isinstance(length, str):
                seconds_in(length, wanted_by="Rolling", what="window")
                one_order(self, "a window of time")
            elif positive(length, wanted_by="Rolling", what="window").denominator != 1:
                raise DataError(f"Rolling: window={length} is not whole", remedy="Count rows, or write a time ('7D')")

    @property
    def own_row(self) -> bool:  # type: ignore[override]
        return self.closed in ("right", "both")

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, s, w) for c in self.columns for w in as_list(self.window) for s in as_list(self.stats)]

    def _name(self, col: str, stat: Stat, window: int | str) -> str:
        word = f"{self.name or 'roll'}{stat}{short(window)}{'' if self.closed == 'left' else self.closed}"
        return f"{word}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for window in as_list(self.window):
            first, end = self._bounds(table, groups, window)
            for col in self.columns:
                values = number_of(table, col, wanted_by=self)
                made = self._statistics(values, ~values.isnan() & ~outside, groups, first, end)
                if not self.min_count and "sum" in made:  # of no values it is 0, but of no group nothing
                    made["sum"] = torch.where(groups.sort(outside), torch.nan, made["sum"])
                for stat in as_list(self.stats):
                    name = self._name(col, stat, window)
                    result[name] = Column("number", groups.unsort(made[stat]), name=name)
        return {n: result[n] for n in self.outputs}

    def last_rows(self, table: Table) -> torch.Tensor:
        groups, _ = ordered_groups(table, [], as_list(self.order))
        # No later row's window begins before that of the last row.
        first = min(int(self._bounds(table, groups, w)[0][-1]) for w in as_list(self.window))
        return in_order(table, as_list(self.order), first)

    def _bounds(self, table: Table, groups: Groups, window: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each sorted row's window: its first place and the place after its last."""
        places = torch.arange(len(groups.codes), device=groups.codes.device)
        from_left, to_right = self.closed in ("left", "both"), self.closed in ("right", "both")
        if not isinstance(window, str):
            first = torch.maximum(places - int(window) + (not from_left), groups.start)
            return first, torch.maximum(places + to_right, first)
        timeline = Timeline.of(table, groups, one_order(self, "a window of time"))
        span = seconds_in(window, wanted_by="Rolling", what="window") * timeline.per_second
        bounds = keys_before(timeline.keys, span, beyond=not from_left)
        first = first_at_least(timeline.keys, bounds, groups.start, timeline.tied)
        return first, places + 1 if to_right else timeline.tied

    def _statistics(
        self, values: torch.Tensor, known: torch.Tensor, groups: Groups, first: torch.Tensor, end: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        values, known, codes = groups.sort(values), groups.sort(known), groups.codes
        if not bool(known.all()):  # windows of places become windows of the known values alone
            counts = count_before(known)
            values, codes, first, end = values[known], codes[known], counts[first], counts[end]
        count, wanted = end - first, set(as_list(self.stats))
        made = {"count": count.double()}
        if wanted & {"sum", "mean"}:
            made["sum"] = window_sum(values, first, end)
            made["mean"] = made["sum"] / count
        if "std" in wanted:
            spread = window_squares(values, first, end) / (count - 1).clamp_min(1)
            made["std"] = torch.where(count > 1, spread.sqrt(), torch.nan)
        for stat in wanted & {"min", "max"}:
            extreme = window_extreme(values, first, end, largest=stat == "max")
            made[stat] = torch.where(count > 0, extreme, torch.nan)
        if "median" in wanted:
            made["median"] = window_median(values, codes, first, end)
        few = count < self.min_count
        return {n: v if n == "count" else torch.where(few, torch.nan, v) for n, v in made.items()}
