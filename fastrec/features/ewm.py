"""``Ewm``: the exponentially weighted mean of the earlier rows of the row's group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.features._engine.durations import positive, seconds_in, short
from fastrec.features._engine.look_back import LooksBack
from fastrec.features._engine.options import OfGroups
from fastrec.features._engine.order import Timeline, one_order, ordered_groups
from fastrec.features._engine.running import Clock, decay
from fastrec.features._inputs import as_list, number_of
from fastrec.features.base import Cols, Context, Names, State
from fastrec.segments.windows import count_before, decayed_sums
from fastrec.table import Column, Table


class Ewm(OfGroups, LooksBack):
    """Exponentially weighted mean of the earlier rows of the row's group; NaN where none has a value.

    ``Σ w_j x_j / Σ w_j`` with ``w_j = 2^(-age_j / half_life)``: pandas' ``ewm(halflife=…, adjust=True).mean()`` of the
    group, one row later. A missing value has no weight but ages those before it (pandas' ``ignore_na=False``).

    Args:
        cols: number columns, or generators.
        half_life: the age of half a weight, in rows or time (``'7D'``, ``'12h'``, ``'90s'``; an order of numbers is in
            seconds); or several.
        by: the columns of the group; None: all rows are one group.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order. With a half-life in
            time, rows at the same time do not see each other.

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
        cols: Cols,
        *,
        half_life: float | str | Sequence[float | str],
        by: Names | None = None,
        order: Names | None = None,
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
        return self._made(table, None)

    def keep(self, table: Table) -> State:
        end = torch.tensor([len(table)], device=table.device)
        kept = {n: found for n, _, found in self._found(table, end, clocked=True)}
        return {"rows": len(table), "sums": kept if len(table) else {}}

    def keep_both(self, a: State, b: State) -> State:
        sums = dict(a["sums"])
        for half_life in as_list(self.half_life):
            for name in (self._name(c, half_life) for c in self.columns):
                if name in b["sums"]:
                    later = self._placed(b["sums"][name], a["rows"], half_life)
                    sums[name] = later.after(sums[name], _seconds(half_life)) if name in sums else later
        return {"rows": a["rows"] + b["rows"], "sums": sums}

    def compute_after(self, table: Table, context: Context, past: State) -> dict[str, Column]:
        return self._made(table, past)

    def _made(self, table: Table, past: State | None) -> dict[str, Column]:
        groups, _ = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for name, half_life, found in self._found(table, clocked=past is not None):
            before = None if past is None else past["sums"].get(name)
            if before is not None:
                found = self._placed(found, past["rows"], half_life).after(before.to(table.device), _seconds(half_life))
            result[name] = Column("number", groups.unsort(found.mean()), name=name)
        return {n: result[n] for n in self.outputs}

    def _found(
        self, table: Table, end: torch.Tensor | None = None, *, clocked: bool
    ) -> Iterator[tuple[str, float | str, _Decayed]]:
        """Yield each output's name, half-life and sums before each sorted row, or before the places ``end``."""
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        places = torch.arange(len(groups.codes), device=groups.codes.device)
        start = groups.start if end is None else torch.zeros_like(end)
        for half_life in as_list(self.half_life):
            at, limit, unit = places, places, 1
            if isinstance(half_life, str):
                timeline = Timeline.of(table, groups, one_order(self, "a half-life in time"))
                at, limit, unit = timeline.keys, timeline.tied, timeline.per_second
            clock = Clock.at(at, unit) if clocked else None
            limit = limit if end is None else end
            for col in self.columns:
                values = number_of(table, col, wanted_by=self)
                known, values = groups.sort(~values.isnan() & ~outside), groups.sort(values)
                made = _before(values, known, start, (at, clock), limit, float(_seconds(half_life) * unit))
                yield self._name(col, half_life), half_life, made

    def _placed(self, found: _Decayed, rows: int, half_life: float | str) -> _Decayed:
        """Move the clock by the ``rows`` rows before, if age is counted in rows."""
        if isinstance(half_life, str):
            return found
        return replace(found, last=Clock(found.last.whole + rows, found.last.part))


def _seconds(half_life: float | str) -> Fraction:
    if isinstance(half_life, str):
        return seconds_in(half_life, wanted_by="Ewm", what="half_life")
    return positive(half_life, wanted_by="Ewm", what="half_life")


@dataclass(frozen=True, eq=False)
class _Decayed:
    """Sums over known values, weighted by their age at the last of them; tensors ``[n]``.

    Args:
        total, weight: float64, of the finite values and of their weights.
        last: the last one's time; None: not needed.
        found: bool, whether there is a value.
        up, down: bool, whether one is infinite, or minus infinite.
    """

    total: torch.Tensor
    weight: torch.Tensor
    last: Clock | None
    found: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def after(self, past: _Decayed, half_life: Fraction) -> _Decayed:
        """Add the sums of earlier values (``[1]``)."""
        age = self.last.since(past.last)
        left = torch.where(self.found, decay(age, float(half_life)), 1) * past.found
        own = self.found.double()
        when = [torch.where(self.found, getattr(self.last, n), getattr(past.last, n)) for n in ("whole", "part")]
        # The last known value sets the clock, of this table or of the earlier ones.
        return _Decayed(
            own * self.total + left * past.total,
            own * self.weight + left * past.weight,
            Clock(*when),
            self.found | past.found,
            self.up | past.up,
            self.down | past.down,
        )

    def mean(self) -> torch.Tensor:
        """Return float64 ``[n]``, NaN without a value, or with both infinities."""
        made = torch.where(self.up, torch.inf, torch.where(self.down, -torch.inf, self.total / self.weight))
        return torch.where(self.found & ~(self.up & self.down), made, torch.nan)

    def to(self, device: Any) -> _Decayed:
        """Move to a device."""
        last = Clock(self.last.whole.to(device), self.last.part.to(device))
        sums = [v.to(device) for v in (self.total, self.weight, self.found, self.up, self.down)]
        return _Decayed(*sums[:2], last, *sums[2:])


def _before(
    values: torch.Tensor,
    known: torch.Tensor,
    start: torch.Tensor,
    when: tuple[torch.Tensor, Clock | None],
    limit: torch.Tensor,
    half_life: float,
) -> _Decayed:
    """Return the decayed sums of the known rows from ``start`` to before ``limit`` (sorted places, int64 ``[m]``).

    Args:
        values, known: ``[n]``, of sorted rows.
        start, limit: int64 ``[m]``.
        when: each sorted row's time in units, and as a clock or None.
        half_life: in the units.
    """
    # Sums change only at known rows, so they are computed there alone; the last value weighs 1, however old it is.
    counts = count_before(known)
    begin, end = counts[start], counts[limit]
    found = end > begin
    if not bool(known.any()):
        zero = torch.zeros(len(limit), dtype=torch.float64, device=values.device)
        return _Decayed(zero, zero, Clock(zero.long(), zero), found, found, found)
    group = counts[start] if len(start) == len(values) else begin.new_zeros(len(values))
    at, clock = when[0][known], when[1]
    values, place = values[known], torch.arange(int(counts[-1]), device=values.device) - group[known]
    total, weight = decayed_sums(torch.where(values.isfinite(), values, 0), at, place, half_life)
    last = (end - 1).clamp_min(0)
    up = down = torch.zeros_like(found)
    if not bool(values.isfinite().all()):
        high, low = (count_before(values == x) for x in (torch.inf, -torch.inf))
        up, down = high[end] > high[begin], low[end] > low[begin]
    clock = None if clock is None else clock[known][last]
    return _Decayed(total[last], weight[last], clock, found, up, down)
