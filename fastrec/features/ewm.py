"""``Ewm``: the exponentially weighted mean of the earlier rows of the row's group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.durations import positive, seconds_in, short
from fastrec.features._engine.options import OfGroups
from fastrec.features._engine.order import Timeline, one_order, ordered_groups
from fastrec.features._inputs import as_list, number_of
from fastrec.features.base import Context, Feature, Grouped
from fastrec.segments import Groups
from fastrec.segments.windows import count_before, decayed_mean
from fastrec.table import Column, Table


class Ewm(OfGroups, Grouped):
    """Exponentially weighted mean of the earlier rows of the row's group; NaN where none has a value.

    ``Σ w_j x_j / Σ w_j`` with ``w_j = 2^(-age_j / half_life)``: pandas' ``ewm(halflife=…, adjust=True).mean()`` of the
    group, one row later. A missing value has no weight but still ages those before it (pandas' ``ignore_na=False``).
    After an infinite value the mean is infinite.

    Args:
        cols: number columns, or generators.
        half_life: after how many rows, or how long (``'7D'``, ``'12h'``, ``'90s'`` … of the one ``order`` column; an
            order of numbers is taken as seconds) a value's weight is half; or several of them.
        by: the columns of the group; None: all rows are one group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order. With a half-life
            that is a time, rows at the same time do not see each other.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Ewm
        >>> df = pd.DataFrame({"shop": [1, 1, 1], "day": [1, 2, 3], "sold": [3.0, 6.0, 0.0]})
        >>> Ewm("sold", half_life=1, by="shop", order="day").fit_transform(df)["ewm1_sold__shop"].tolist()
        [nan, 3.0, 5.0]
    """

    own_row = False

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        half_life: float | str | Sequence[float | str],
        by: str | Sequence[str] | None = None,
        order: str | Sequence[str] | None = None,
    ) -> None:
        self.cols, self.half_life, self.by, self.order = cols, half_life, by, order
        if not as_list(half_life):
            raise DataError("Ewm: there is no half_life", remedy="Give a number of rows, or a time such as '7D'")
        for length in as_list(half_life):
            if isinstance(length, str):
                seconds_in(length, wanted_by="Ewm", what="half_life")
                one_order(self, "a half-life in time")
            else:
                positive(length, wanted_by="Ewm", what="half_life")

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, h) for c in self.columns for h in as_list(self.half_life)]

    def _name(self, col: str, half_life: float | str) -> str:
        return f"ewm{short(half_life)}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for half_life in as_list(self.half_life):
            at = limit = torch.arange(len(groups.codes), device=groups.codes.device)
            length = positive(half_life, wanted_by="Ewm", what="half_life") if not isinstance(half_life, str) else None
            if length is None:
                timeline = Timeline.of(table, groups, one_order(self, "a half-life in time"))
                at, limit = timeline.keys, timeline.tied
                length = seconds_in(half_life, wanted_by="Ewm", what="half_life") * timeline.per_second
            for col in self.columns:
                values = number_of(table, col, wanted_by=self)
                known = ~values.isnan() & ~outside
                made = _mean_before(groups.sort(values), groups.sort(known), groups, at, limit, float(length))
                name = self._name(col, half_life)
                result[name] = Column("number", groups.unsort(made), name=name)
        return {n: result[n] for n in self.outputs}


def _mean_before(
    values: torch.Tensor,
    known: torch.Tensor,
    groups: Groups,
    at: torch.Tensor,
    limit: torch.Tensor,
    half_life: float,
) -> torch.Tensor:
    """The decayed mean of the known rows before ``limit`` in each sorted row's group: float64 ``[n]``.

    The mean does not change while no value comes, so that it is computed at the known rows alone, and the last of them
    has a weight of 1 however long ago it was.
    """
    if not bool(known.any()):
        return torch.full(values.shape, torch.nan, dtype=torch.float64, device=values.device)
    counts = count_before(known)
    begin, end = counts[groups.start], counts[limit]
    values, at = values[known], at[known]
    place = torch.arange(len(values), device=values.device) - begin[known]
    mean = decayed_mean(torch.where(values.isfinite(), values, 0), at, place, half_life)
    found = end > begin
    last = (end - 1).clamp_min(0)
    made = mean[last]
    if not bool(values.isfinite().all()):
        high, low = (count_before(values == x) for x in (torch.inf, -torch.inf))
        up, down = high[end] > high[begin], low[end] > low[begin]
        made = torch.where(up, torch.inf, torch.where(down, -torch.inf, made))
        found = found & ~(up & down)
    return torch.where(found, made, torch.nan)
