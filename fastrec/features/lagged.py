"""Earlier rows of a group: lags, changes, windows, decayed means."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import Any, ClassVar, Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns, named
from fastrec.features._engine.order import (
    Clock,
    KeepsRows,
    LooksBack,
    Timeline,
    decay,
    difference,
    in_order,
    one_order,
    ordered_groups,
    take_or_missing,
)
from fastrec.features.base import Col, Cols, Context, Names, State
from fastrec.features.columns import as_columns, as_list, name_of, number_of
from fastrec.segments import Groups, shift_in_group, windows
from fastrec.segments.groups import running_sum
from fastrec.table import Column, Table
from fastrec.table.keys import UNITS_PER_SECOND

_SECONDS = {
    "W": Fraction(604_800), "D": Fraction(86_400), "h": Fraction(3_600), "min": Fraction(60), "s": Fraction(1),
    "ms": Fraction(1, 1_000), "us": Fraction(1, 1_000_000), "ns": Fraction(1, 1_000_000_000),
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(W|D|h|min|ms|us|ns|s)\s*", re.ASCII)


def seconds_in(text: str, *, wanted_by: str, what: str) -> Fraction:
    """Parse a duration such as ``'42D'``, ``'90s'``, ``'1.5h'`` or ``'1h 30min'`` into seconds."""
    parts, end = [], 0
    stripped = text.strip()
    while (found := _PART.match(stripped, end)) is not None:
        parts.append(Fraction(found[1]) * _SECONDS[found[2]])
        end = found.end()
    if not stripped or end < len(stripped) or sum(parts) <= 0:
        remedy = "Write a number above 0 and a unit (W, D, h, min, s, ms, us or ns), as in '42D' or '1h 30min'"
        raise DataError(f"{wanted_by}: {what}={text!r} is not a length of time", remedy=remedy)
    return sum(parts, Fraction(0))


def positive(value: object, *, wanted_by: str, what: str) -> Fraction:
    """Check that a number is above 0 and return it as an exact fraction."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise DataError(f"{wanted_by}: {what}={value!r} is not a number above 0", remedy="Give a number above 0")
    return Fraction(float(value)) if not isinstance(value, int | Fraction) else Fraction(value)


def length_of(value: object, *, wanted_by: str, what: str) -> Fraction:
    """Return the seconds of a text, or a number above 0 unchanged."""
    check = seconds_in if isinstance(value, str) else positive
    return check(value, wanted_by=wanted_by, what=what)  # type: ignore[arg-type]


def short(value: object) -> str:
    """Shorten a duration for a column's name: ``'1h 30min'`` → ``'1h30min'``, ``7.0`` → ``'7'``."""
    if isinstance(value, str):
        return "".join(value.split())
    number = float(value)  # type: ignore[arg-type]
    return str(int(number)) if number.is_integer() else repr(number)


class Lag(OfColumns, KeepsRows):
    """Value ``n`` rows earlier in the row's group, missing if there is none. The rows need not be sorted.

    Args:
        cols: columns of numbers, times, text or categories, or generators.
        by: group columns; None: all rows are one group.
        order: columns that sort a group, ties by row number; None: row order.
        n: the number of rows back, or several; negative: ahead (the future).
        horizon: count back from the last row at least this much earlier: ``'42D'``, ``'30min'``, or a number in the
            unit of ``order`` (seconds for times; with a text, numbers are seconds too). None: from the preceding row.

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
        name = type(self).__name__
        if 0 in as_list(n):
            raise DataError(f"{name}: n is 0", remedy="Use 1 for the row before, -1 for the row after")
        if horizon is not None:
            if any(k < 0 for k in as_list(n)):
                raise DataError(f"{name}: a horizon looks back, n is below 0", remedy="Use n above 0, or no horizon")
            length_of(horizon, wanted_by=name, what="horizon")
            one_order(self, "a horizon")

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return any(n < 0 for n in as_list(self.n))

    @property
    def sees_ties(self) -> bool:  # type: ignore[override]
        return self.horizon is None

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, n) for c in self.columns for n in as_list(self.n)]

    def _name(self, col: Col, n: int) -> str:  # the graph export passes generators too
        word = f"lead{-n}" if n < 0 and self._word == "lag" else f"{self._word}{n}"
        known = "" if self.horizon is None else f"_{short(self.horizon)}"
        return named(self, word + known, name_of(col))

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
            for col in self.columns:
                result[self._name(col, n)] = replace(self._value(table, col, rows), name=self._name(col, n))
        return {n: result[n] for n in self.outputs}

    def last_rows(self, table: Table) -> torch.Tensor:
        groups, _ = ordered_groups(table, [], as_list(self.order))
        end = len(table) if self.horizon is None else int(self._known(table, groups)[-1])
        return in_order(table, as_list(self.order), max(end - max(as_list(self.n)), 0))

    def _known(self, table: Table, groups: Groups) -> torch.Tensor:
        """Return the end of each sorted row's history: the place after its group's last row a horizon earlier."""
        timeline = Timeline.of(table, groups, one_order(self, "a horizon"))
        span = length_of(self.horizon, wanted_by=type(self).__name__, what="horizon") * timeline.per_second
        bounds = windows.keys_before(timeline.keys, span, beyond=True)
        return windows.first_at_least(timeline.keys, bounds, groups.start, timeline.tied)

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        return take_or_missing(table[col], rows)


class Diff(Lag):
    """Difference from the value ``n`` rows earlier in the group, float64; NaN if there is none. Arguments as ``Lag``.

    Differences of times are in seconds, regardless of the zone.

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


class PctChange(Lag):
    """``(x - x_before) / x_before`` as float64; ``x_before`` is the value ``n`` rows earlier in the row's group.

    Missing if either value is missing, ``x_before`` is 0 or the result is not finite. Integers are subtracted exactly.
    Arguments as ``Lag``, but ``cols`` must be numbers.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import PctChange
        >>> df = pd.DataFrame({"item": [1, 1, 1, 2], "day": [1, 2, 3, 1], "price": [10.0, 15.0, 0.0, 8.0]})
        >>> PctChange("price", by="item", order="day").fit_transform(df)["pct1_price__item"].tolist()
        [nan, 0.5, -1.0, nan]
    """

    own_row = True
    _word = "pct"

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        column = table[col].plain()
        if column.kind == "datetime":
            known = (~column.is_missing()).nonzero()
            row = int(known[0]) if len(known) else None
            raise DataError("PctChange: times do not change by a share", column=col, row=row, remedy="Use Diff")
        here = number_of(table, col, wanted_by=self)
        there = here[rows.clamp_min(0)] if len(here) else here
        change = here - there
        if column.kind == "number" and not column.values.is_floating_point():
            change = difference(column.integer(), take_or_missing(column, rows).integer())
            change = torch.where(here.isnan(), torch.nan, change)
        share = change / there
        return Column("number", torch.where((rows >= 0) & share.isfinite(), share, torch.nan), name=col)


Stat = Literal["mean", "sum", "count", "std", "min", "max", "median"]


class Rolling(OfColumns, KeepsRows):
    """Statistics of a column over a window of the group that ends at the row; missing values do not count.

    Equals pandas' ``rolling(window, min_periods=min_count, closed=closed)`` per group, as float64, except that infinite
    values count and ``count`` is never missing. Each window is computed independently of the others.

    Args:
        stats: ``mean``, ``sum``, ``count``, ``std`` (sample), ``min``, ``max`` or ``median`` (exact).
        by, order: as in ``Lag``.
        window: the length in rows, or a duration (``'7D'``, ``'90s'``; a numeric order is in seconds); or several.
        min_count: with fewer values in the window, all statistics but ``count`` are NaN.
        closed: the ends that belong to the window: ``'left'`` (excludes the row and, with a duration, rows at its
            time), ``'right'`` (includes the row, excludes rows exactly one window ago), ``'both'`` or ``'neither'``.
        name: the prefix of the outputs' names; None: ``roll``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Rolling
        >>> df = pd.DataFrame({"shop": [1, 1, 1, 1], "day": [1, 2, 3, 4], "sold": [1.0, 3.0, None, 5.0]})
        >>> Rolling("sold", by="shop", order="day", window=2).fit_transform(df)["rollmean2_sold__shop"].tolist()
        [nan, 1.0, 2.0, 3.0]
    """

    _least: ClassVar = {"min_count": 0}

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
        if not as_list(window):
            raise DataError("Rolling: there is no window", remedy="Give a number of rows, or a time such as '7D'")
        for length in as_list(window):
            exact = length_of(length, wanted_by="Rolling", what="window")
            if isinstance(length, str):
                one_order(self, "a window of time")
            elif exact.denominator != 1:
                raise DataError(f"Rolling: window={length} is not whole", remedy="Count rows, or write a time ('7D')")

    @property
    def own_row(self) -> bool:  # type: ignore[override]
        return self.closed in ("right", "both")

    @property
    def sees_ties(self) -> bool:  # type: ignore[override]
        return not all(isinstance(w, str) for w in as_list(self.window))

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, s, w) for c in self.columns for w in as_list(self.window) for s in as_list(self.stats)]

    def _name(self, col: str, stat: Stat, window: int | str) -> str:
        word = f"{self.name or 'roll'}{stat}{short(window)}{'' if self.closed == 'left' else self.closed}"
        return named(self, word, col)

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for window in as_list(self.window):
            first, end = self._bounds(table, groups, window)
            for col in self.columns:
                values = number_of(table, col, wanted_by=self)
                made = self._statistics(values, ~values.isnan() & ~outside, groups, first, end)
                if not self.min_count and "sum" in made:  # the sum of no values is 0, but without a group it is missing
                    made["sum"] = torch.where(groups.sort(outside), torch.nan, made["sum"])
                for stat in as_list(self.stats):
                    result[self._name(col, stat, window)] = groups.unsort(made[stat])
        return as_columns({n: result[n] for n in self.outputs})

    def last_rows(self, table: Table) -> torch.Tensor:
        groups, _ = ordered_groups(table, [], as_list(self.order))
        # Windows of later rows begin no earlier than the last row's.
        first = min(int(self._bounds(table, groups, w)[0][-1]) for w in as_list(self.window))
        return in_order(table, as_list(self.order), first)

    def _bounds(self, table: Table, groups: Groups, window: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first place of each sorted row's window and the place after its last."""
        places = torch.arange(len(groups.codes), device=groups.codes.device)
        from_left, to_right = self.closed in ("left", "both"), self.closed in ("right", "both")
        if not isinstance(window, str):
            first = torch.maximum(places - int(window) + (not from_left), groups.start)
            return first, torch.maximum(places + to_right, first)
        timeline = Timeline.of(table, groups, one_order(self, "a window of time"))
        span = seconds_in(window, wanted_by="Rolling", what="window") * timeline.per_second
        bounds = windows.keys_before(timeline.keys, span, beyond=not from_left)
        first = windows.first_at_least(timeline.keys, bounds, groups.start, timeline.tied)
        return first, places + 1 if to_right else timeline.tied

    def _statistics(
        self, values: torch.Tensor, known: torch.Tensor, groups: Groups, first: torch.Tensor, end: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        values, known, codes = groups.sort(values), groups.sort(known), groups.codes
        if not bool(known.all()):  # windows over places become windows over known values
            counts = windows.count_before(known)
            values, codes, first, end = values[known], codes[known], counts[first], counts[end]
        count, wanted = end - first, set(as_list(self.stats))
        made = {"count": count.double()}
        if wanted & {"sum", "mean"}:
            made["sum"] = windows.fold_windows((values,), first, end, lambda a, b, *_: (a[0] + b[0],))[0]
            made["mean"] = made["sum"] / count
        if "std" in wanted:
            spread = windows.window_squares(values, first, end) / (count - 1).clamp_min(1)
            made["std"] = torch.where(count > 1, spread.sqrt(), torch.nan)
        for stat in wanted & {"min", "max"}:
            extreme = windows.window_extreme(values, first, end, largest=stat == "max")
            made[stat] = torch.where(count > 0, extreme, torch.nan)
        if "median" in wanted:
            made["median"] = windows.window_median(values, codes, first, end)
        few = count < self.min_count
        return {n: v if n == "count" else torch.where(few, torch.nan, v) for n, v in made.items()}


class Ewm(OfColumns, LooksBack):
    """Exponentially weighted mean of the earlier rows of the group; NaN if none has a value.

    ``Σ w_j x_j / Σ w_j`` with ``w_j = 2^(-age_j / half_life)``: pandas' ``ewm(halflife=…, adjust=True).mean()`` of the
    group, one row later. A missing value has no weight but ages those before it (pandas' ``ignore_na=False``).

    Args:
        half_life: in rows, or a duration (``'7D'``, ``'90s'``; a numeric order is in seconds); or several.
        by, order: as in ``Lag``. If ``half_life`` is a duration, rows at the same time do not see each other.

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
        if not as_list(half_life):
            raise DataError("Ewm: there is no half_life", remedy="Give a number of rows, or a time such as '7D'")
        for length in as_list(half_life):
            _seconds(length)
            if isinstance(length, str):
                one_order(self, "a half-life in time")

    @property
    def sees_ties(self) -> bool:  # type: ignore[override]
        return not all(isinstance(h, str) for h in as_list(self.half_life))

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, h) for c in self.columns for h in as_list(self.half_life)]

    def _name(self, col: str, half_life: float | str) -> str:
        return named(self, f"ewm{short(half_life)}", col)

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        return self.compute_after(table, context, None)

    def keep(self, table: Table) -> State:
        end = torch.tensor([len(table)], device=table.device)
        sums = {n: found for n, _, found in self._found(table, end, clocked=True)} if len(table) else {}
        return {"rows": len(table), "sums": sums}

    def keep_both(self, a: State, b: State) -> State:
        sums = dict(a["sums"])
        for name, half_life in ((self._name(c, h), h) for h in as_list(self.half_life) for c in self.columns):
            if name in b["sums"]:
                later = self._placed(b["sums"][name], a["rows"], half_life)
                sums[name] = later.after(sums[name], _seconds(half_life)) if name in sums else later
        return {"rows": a["rows"] + b["rows"], "sums": sums}

    def compute_after(self, table: Table, context: Context, past: State | None) -> dict[str, Column]:
        groups, _ = ordered_groups(table, as_list(self.by), as_list(self.order))
        result = {}
        for name, half_life, found in self._found(table, clocked=past is not None):
            before = None if past is None else past["sums"].get(name)
            if before is not None:
                found = self._placed(found, past["rows"], half_life).after(before.to(table.device), _seconds(half_life))
            result[name] = groups.unsort(found.mean())
        return as_columns({n: result[n] for n in self.outputs})

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
        """Shift the clock by the number of preceding rows if age is counted in rows."""
        if isinstance(half_life, str):
            return found
        return replace(found, last=Clock(found.last.whole + rows, found.last.part))


def _seconds(half_life: float | str) -> Fraction:
    return length_of(half_life, wanted_by="Ewm", what="half_life")


@dataclass(frozen=True, eq=False)
class _Decayed:
    """Sums over known values, weighted by their age relative to the last one; tensors ``[n]``."""

    total: torch.Tensor  # float64, finite values only
    weight: torch.Tensor  # float64, sum of their weights
    last: Clock | None  # time of the last known value; None: not needed
    found: torch.Tensor  # bool, any known value
    up: torch.Tensor  # bool, any +inf
    down: torch.Tensor  # bool, any -inf

    def after(self, past: _Decayed, half_life: Fraction) -> _Decayed:
        """Add the sums of earlier tables (``[1]``)."""
        left = torch.where(self.found, decay(self.last.since(past.last), float(half_life)), 1) * past.found
        own = self.found.double()
        when = [torch.where(self.found, getattr(self.last, n), getattr(past.last, n)) for n in ("whole", "part")]
        # The clock is that of the last known value, in this table or an earlier one.
        return _Decayed(
            own * self.total + left * past.total, own * self.weight + left * past.weight, Clock(*when),
            self.found | past.found, self.up | past.up, self.down | past.down,
        )  # fmt: skip

    def mean(self) -> torch.Tensor:
        """Return float64 ``[n]``, NaN without a value or if both infinities occur."""
        made = torch.where(self.up, torch.inf, torch.where(self.down, -torch.inf, self.total / self.weight))
        return torch.where(self.found & ~(self.up & self.down), made, torch.nan)

    def to(self, device: Any) -> _Decayed:
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

    ``when``: each sorted row's time, in the units of ``half_life`` and as a clock or None.
    """
    # Sums change only at known rows, so they are computed only there; the last value always weighs 1.
    counts = windows.count_before(known)
    begin, end = counts[start], counts[limit]
    found = end > begin
    if not bool(known.any()):
        zero = torch.zeros(len(limit), dtype=torch.float64, device=values.device)
        return _Decayed(zero, zero, Clock(zero.long(), zero), found, found, found)
    group = counts[start] if len(start) == len(values) else begin.new_zeros(len(values))
    at, clock = when[0][known], when[1]
    values, place = values[known], torch.arange(int(counts[-1]), device=values.device) - group[known]
    age = torch.zeros_like(values)
    age[1:] = difference(at[1:], at[:-1]).nan_to_num(0)  # between two times that are both infinite
    finite = torch.where(values.isfinite(), values, 0)
    total, weight = running_sum(torch.stack([finite, torch.ones_like(values)]), place, decay(age, half_life))
    last = (end - 1).clamp_min(0)
    up = down = torch.zeros_like(found)
    if not bool(values.isfinite().all()):
        high, low = (windows.count_before(values == x) for x in (torch.inf, -torch.inf))
        up, down = high[end] > high[begin], low[end] > low[begin]
    clock = None if clock is None else clock[known][last]
    return _Decayed(total[last], weight[last], clock, found, up, down)
