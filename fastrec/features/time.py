"""Dates and times: their parts, and cyclic encodings."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from functools import cache, cached_property
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import float64
from fastrec.features.base import Col, Names, RowWise, Tensors
from fastrec.features.columns import as_list, name_of, number_of
from fastrec.table import Column, Table
from fastrec.table.keys import UNITS_PER_SECOND


class DatePart(RowWise):
    """Parts of a time as ``{col}_{part}``: fastai's ``add_datepart`` and more; missing if the time is.

    Args:
        col: a column of times or numbers, or a generator. Parts are in the column's time zone (a run converts its
            input to the learned zone); numbers are seconds since 1970 in UTC.
        parts: ``year``, ``month`` (1-12), ``week`` (ISO 8601, 1-53; also ``weekofyear``), ``day`` (1-31),
            ``dayofweek`` (Monday 0; also ``weekday``), ``dayofyear`` (1-366), ``is_month_end``, ``is_month_start``,
            ``is_quarter_end``, ``is_quarter_start``, ``is_year_end``, ``is_year_start`` (booleans), ``elapsed`` (whole
            seconds since 1970 in UTC), ``quarter`` (1-4), ``hour``, ``minute``, ``second``. Integers are int64.
            fastai's spelling (``'Dayofweek'``) works too. None: fastai's parts, which are those up to ``elapsed``.

    Source: days → civil date as in H. Hinnant, "chrono-compatible low-level date algorithms".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DatePart
        >>> df = pd.DataFrame({"t": pd.to_datetime(["2024-02-29 06:30", "1969-12-31 00:00"])})
        >>> made = DatePart("t", ["year", "dayofyear", "is_month_end", "hour"]).fit_transform(df)
        >>> made.drop(columns="t").values.tolist()
        [[2024, 60, True, 6], [1969, 365, True, 0]]
    """

    def __init__(self, col: Col, parts: Names | None = None) -> None:
        known = [*_FASTAI, *_MORE]
        unknown = next((p for p in as_list(parts) if str(p).lower() not in known), None)
        if unknown is not None or (parts is not None and not as_list(parts)):
            raise DataError(f"DatePart has no part {unknown!r}", remedy=f"Use one of {', '.join(known)}")

    @property
    def _parts(self) -> list[str]:
        return list(_FASTAI) if self.parts is None else [str(p).lower() for p in as_list(self.parts)]

    @property
    def outputs(self) -> list[str]:
        return [f"{name_of(self.col)}_{p}" for p in self._parts]

    def prepare(self, table: Table) -> Tensors:
        name = name_of(self.col)
        column = table[name]
        if column.kind == "datetime":
            local = local_seconds(column)
            if not column.zone:
                return {"local": local, "utc": local}
            utc = torch.div(column.integer(), UNITS_PER_SECOND[column.unit], rounding_mode="floor").double()
            return {"local": local, "utc": torch.where(column.is_missing(), torch.nan, utc)}
        seconds = torch.floor(number_of(table, name, wanted_by=self))
        return {"local": seconds, "utc": seconds}

    def apply(self, tensors: Tensors) -> Tensors:
        local, utc = tensors["local"], tensors["utc"]
        missing = no_date(local)
        clock = Calendar(torch.where(missing, 0, local), torch.where(missing, 0, utc))
        made = {o: _MAKERS[p](clock) for o, p in zip(self.outputs, self._parts, strict=True)}
        return {**made, "missing": missing}

    def compute(self, table: Table) -> dict[str, Column]:
        tensors = self.prepare(table)
        missing = no_date(tensors["local"])
        gone = bool(missing.any())
        local, utc = (torch.where(missing, 0, tensors[n]) if gone else tensors[n] for n in ("local", "utc"))
        clock = Calendar(local, utc)
        made = self._by_day(clock) or {o: _MAKERS[p](clock) for o, p in zip(self.outputs, self._parts, strict=True)}
        columns = {}
        for part, (name, values) in zip(self._parts, made.items(), strict=True):
            values = values.to(torch.bool if part.startswith("is_") else torch.int64)
            values = values.masked_fill(missing, 0) if gone else values
            columns[name] = Column("number", values, name=name, missing=missing if gone else None)
        return columns

    def _by_day(self, clock: Calendar) -> Tensors:
        # If the times span few days, parts of the day are computed once per day; {} if they span too many.
        days = clock.days
        low, high = (int(days.min()), int(days.max())) if len(days) else (0, 0)
        if high - low >= len(days) // 4:
            return {}
        whole = torch.arange(low, high + 1, dtype=torch.float64, device=days.device) * 86_400
        calendar, place = Calendar(whole, whole), (days - low).long()
        made = {}
        for output, part in zip(self.outputs, self._parts, strict=True):
            if part in ("elapsed", "hour", "minute", "second"):
                made[output] = _MAKERS[part](clock)
            else:
                of_day = _MAKERS[part](calendar)
                made[output] = (of_day if part.startswith("is_") else of_day.long())[place]
        return made


class Calendar:
    """Parts of times, each computed at first use, from whole seconds since 1970 on a local clock and in UTC."""

    # Integers as float64 [n]: exact up to 2^53, and much faster to divide than int64.

    def __init__(self, local: torch.Tensor, utc: torch.Tensor) -> None:
        self.local, self.utc = local, utc

    @cached_property
    def days(self) -> torch.Tensor:
        return torch.floor(self.local / 86_400)

    @cached_property
    def second_of_day(self) -> torch.Tensor:
        return self.local - self.days * 86_400

    @cached_property
    def weekday(self) -> torch.Tensor:
        return torch.remainder(self.days + 3, 7)  # 1970-01-01 was a Thursday

    @cached_property
    def civil(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # In a year that begins in March the leap day is last: the year, its day from 0, its month (March 0).
        era_day = self.days + 719_468  # days since 0000-03-01
        era = torch.floor(era_day / 146_097)
        day = era_day - era * 146_097
        year = torch.floor((day - torch.floor(day / 1460) + torch.floor(day / 36524) - torch.floor(day / 146096)) / 365)
        day = day - (365 * year + torch.floor(year / 4) - torch.floor(year / 100))
        return year + era * 400, day, torch.floor((5 * day + 2) / 153)

    @cached_property
    def month(self) -> torch.Tensor:
        march = self.civil[2]
        return torch.where(march < 10, march + 3, march - 9)

    @cached_property
    def year(self) -> torch.Tensor:
        return self.civil[0] + (self.civil[2] >= 10)

    @cached_property
    def day(self) -> torch.Tensor:
        _, day, march = self.civil
        return day - torch.floor((153 * march + 2) / 5) + 1

    @cached_property
    def leap(self) -> torch.Tensor:
        fourth, hundredth, fourhundredth = (torch.remainder(self.year, n) == 0 for n in (4, 100, 400))
        return fourth & (~hundredth | fourhundredth)

    @cached_property
    def dayofyear(self) -> torch.Tensor:
        _, day, march = self.civil
        return torch.where(march >= 10, day - 305, day + 60 + self.leap)

    @cached_property
    def week(self) -> torch.Tensor:
        # ISO 8601: the first week is that of the year's first Thursday.
        week = torch.floor((self.dayofyear - self.weekday + 9) / 7)
        before = week < 1
        year = torch.where(before, self.year - 1, self.year)
        # A year has 53 weeks if it ends on a Thursday, or if the previous year ended on a Wednesday.
        ends = [
            torch.remainder(y + torch.floor(y / 4) - torch.floor(y / 100) + torch.floor(y / 400), 7)
            for y in (year, year - 1)
        ]
        long = (ends[0] == 4) | (ends[1] == 3)
        return torch.where(before, 52 + long.double(), torch.where((week == 53) & ~long, 1, week))

    @cached_property
    def month_end(self) -> torch.Tensor:
        short = (self.month == 4) | (self.month == 6) | (self.month == 9) | (self.month == 11)
        return self.day == torch.where(self.month == 2, 28 + self.leap.double(), 31 - short.double())


_FASTAI: dict[str, Callable[[Calendar], torch.Tensor]] = {
    "year": lambda c: c.year,
    "month": lambda c: c.month,
    "week": lambda c: c.week,
    "day": lambda c: c.day,
    "dayofweek": lambda c: c.weekday,
    "dayofyear": lambda c: c.dayofyear,
    "is_month_end": lambda c: c.month_end,
    "is_month_start": lambda c: c.day == 1,
    "is_quarter_end": lambda c: c.month_end & (torch.remainder(c.month, 3) == 0),
    "is_quarter_start": lambda c: (c.day == 1) & (torch.remainder(c.month, 3) == 1),
    "is_year_end": lambda c: c.month_end & (c.month == 12),
    "is_year_start": lambda c: (c.day == 1) & (c.month == 1),
    "elapsed": lambda c: c.utc,
}
_MORE: dict[str, Callable[[Calendar], torch.Tensor]] = {
    "quarter": lambda c: torch.floor((c.month + 2) / 3),
    "hour": lambda c: torch.floor(c.second_of_day / 3600),
    "minute": lambda c: torch.remainder(torch.floor(c.second_of_day / 60), 60),
    "second": lambda c: torch.remainder(c.second_of_day, 60),
    "weekofyear": lambda c: c.week,
    "weekday": lambda c: c.weekday,
}
_MAKERS = {**_FASTAI, **_MORE}


class DateOf(RowWise):
    """Seconds since 1970 of a day, or of its minute, from number columns; input for ``DatePart``.

    Missing if an input is missing, no integer, or no valid month, day (1 to 31) or minute of a day. A day beyond the
    end of its month counts into the next one.

    Args:
        month, day: number columns, or generators: 1 to 12, 1 to 31.
        year: likewise; None: all days are in one leap year (2000).
        clock: likewise: hours and minutes as one number, 1737 for 17:37, 0 to 2400; None: the day begins.
        name: the output's name.

    Source: civil date → days as in H. Hinnant, "chrono-compatible low-level date algorithms".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DateOf, DatePart
        >>> df = pd.DataFrame({"y": [2024, 2023], "m": [2, 3], "d": [29, 1]})
        >>> DatePart(DateOf("m", "d", "y"), "dayofweek").fit_transform(df)["date_dayofweek"].tolist()
        [3, 2]
        >>> df["at"] = [1737, 5]
        >>> DatePart(DateOf("m", "d", "y", clock="at"), "minute").fit_transform(df)["date_minute"].tolist()
        [37, 5]
    """

    _reads = ("month", "day", "year", "clock")

    def __init__(
        self, month: Col, day: Col, year: Col | None = None, *, clock: Col | None = None, name: str = "date"
    ) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [self.name]

    def prepare(self, table: Table) -> Tensors:
        parts = {"month": self.month, "day": self.day, "year": self.year, "clock": self.clock}
        return {n: number_of(table, name_of(s), wanted_by=self) for n, s in parts.items() if s is not None}

    def apply(self, tensors: Tensors) -> Tensors:
        month, day = tensors["month"], tensors["day"]
        # 2000 is a leap year, so that 29 February is valid without a year.
        year = tensors.get("year", torch.full_like(month, 2000.0))
        clock = tensors.get("clock", torch.zeros_like(month))
        hour = torch.floor(clock / 100)
        minute = clock - 100 * hour
        known = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year.abs() < 1e6)
        known = known & (clock >= 0) & (clock <= 2400) & (minute < 60)
        for part in (month, day, year, clock):
            known = known & (part == torch.floor(part))
        month, day, year = (torch.where(known, part, 1.0) for part in (month, day, year))
        year = year - (month <= 2).double()  # a year from March on: the leap day is its last
        era = torch.floor(year / 400)
        year = year - era * 400
        month = torch.where(month > 2, month - 3, month + 9)
        of_year = torch.floor((153 * month + 2) / 5) + day - 1
        days = era * 146_097 + year * 365 + torch.floor(year / 4) - torch.floor(year / 100) + of_year - 719_468
        return {self.name: torch.where(known, days * 86_400 + hour * 3_600 + minute * 60, torch.nan)}


Period = Literal["hour", "weekday", "dayofweek", "month", "dayofyear"]


class Cyclic(RowWise):
    """``sin(2π·x/period)`` and ``cos(2π·x/period)``; a period's end is next to its start. NaN where missing.

    Args:
        col: a column of times or numbers.
        period: the period in the column's unit (seconds for times), or a part of the calendar: ``'hour'`` (0-23 of
            24), ``'weekday'`` or ``'dayofweek'`` (Monday 0 of 7), ``'month'`` (0-11 of 12), ``'dayofyear'`` (from 0, of
            the year's length). Parts are in the column's time zone; numbers are then seconds since 1970 in UTC.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Cyclic
        >>> df = Cyclic("t", "hour").fit_transform(pd.DataFrame({"t": pd.to_datetime(["2024-01-01 06:30"])}))
        >>> df[["t_hour_sin", "t_hour_cos"]].round(6).values.tolist()
        [[1.0, 0.0]]
    """

    def __init__(self, col: str, period: float | Period) -> None:
        known = get_args(Period)
        if period not in known and (isinstance(period, str) or not 0 < period < math.inf):
            remedy = f"Use a finite number above 0, or one of {', '.join(known)}"
            raise DataError(f"Cyclic: the period is {period!r}", remedy=remedy)

    @property
    def outputs(self) -> list[str]:
        word = self.period if isinstance(self.period, str) else f"{self.period:.15g}"
        return [f"{self.col}_{word}_sin", f"{self.col}_{word}_cos"]

    def prepare(self, table: Table) -> Tensors:
        column = table[self.col]
        if isinstance(self.period, str) and column.kind == "datetime":
            return {"value": local_seconds(column)}
        return {"value": number_of(table, self.col, wanted_by=self)}

    def apply(self, tensors: Tensors) -> Tensors:
        if isinstance(self.period, str):
            share = calendar_share(tensors["value"], self.period)
        else:
            period = float64(self.period)
            share = torch.remainder(tensors["value"], period) / period
        return dict(zip(self.outputs, _on_circle(share), strict=True))


def _on_circle(share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sine and cosine of a share of the circle, in steps of 2⁻⁴⁰.

    Source: polynomials of fdlibm's ``__kernel_sin`` and ``__kernel_cos`` (Sun Microsystems 1993), within an ulp.
    """
    # Sums and products have the same bits in every library. Library sines differ in the last bit, and a tree separates
    # 6e-17 from 0.
    quarter = torch.round(4 * share)  # 0 … 4
    angle = (4 * share - quarter) * float64(math.pi / 2)
    square = angle * angle
    sin = angle + angle * square * _polynomial(square, _SIN)
    half = 0.5 * square
    cos = 1 - (half - square * square * _polynomial(square, _COS))
    across = (quarter == 1) | (quarter == 3)
    first, second = torch.where(across, cos, sin), torch.where(across, sin, cos)
    lower = (quarter == 2) | (quarter == 3)
    left = (quarter == 1) | (quarter == 2)
    made = torch.where(lower, 0 - first, first), torch.where(left, 0 - second, second)
    # the sines of 2 and 10 hours are equal, but their last bits differ by device, and ranks depend on them
    return tuple(torch.round(x * 2**40) / 2**40 for x in made)


_SIN = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
    -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COS = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07,
    2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


def _polynomial(x: torch.Tensor, factors: tuple[float, ...]) -> torch.Tensor:
    result = float64(factors[-1]) * x + float64(factors[-2])
    for factor in reversed(factors[:-2]):
        result = result * x + float64(factor)
    return result


def calendar_share(seconds: torch.Tensor, part: Period) -> torch.Tensor:
    """Return the elapsed share of a calendar part's circle, in [0, 1); NaN beyond all dates."""
    seconds = torch.where(no_date(seconds), torch.nan, seconds)
    calendar = Calendar(seconds, seconds)
    if part == "hour":
        return torch.floor(calendar.second_of_day / 3600) / 24
    if part in ("weekday", "dayofweek"):
        return calendar.weekday / 7
    if part == "month":
        return (calendar.month - 1) / 12
    return torch.where(seconds.isnan(), torch.nan, (calendar.dayofyear - 1) / (365 + calendar.leap.double()))


# Times on the clock of a time zone, right in any year: by the rules that the standard library's ``zoneinfo`` reads.

_DAY = 86_400
_CYCLE = 146_097 * _DAY  # 400 years, after which the calendar and the rules of daylight saving repeat
_FIRST, _LAST = 1800, 2499  # no clock was changed before; the rules of any later year are those of one of the last 400
_EPOCH = dt.datetime(1970, 1, 1)
_FIXED = re.compile(r"([+-])(\d\d):?(\d\d)")


def local_seconds(column: Column) -> torch.Tensor:
    """Return whole seconds since 1970 on a time column's clock, rounded down: float64 ``[n]``, NaN if missing."""
    missing = column.is_missing()
    seconds = torch.div(column.integer(), UNITS_PER_SECOND[column.unit], rounding_mode="floor")
    local = seconds.double()  # exact up to 2^53, and nothing overflows
    if column.zone is not None:
        try:
            local = local + utc_offsets(seconds, column.zone)
        except (KeyError, ValueError, OSError) as error:  # zoneinfo's ways to say that there is no such zone
            problem = f"is in the time zone {column.zone!r}, of which there are no rules"
            remedy = "Convert the times to a zone of the tz database, or install its rules with pip install tzdata"
            raise DataError(problem, column=column.name or None, remedy=remedy) from error
    return torch.where(missing, torch.nan, local)


def no_date(seconds: torch.Tensor) -> torch.Tensor:
    """Return bool ``[n]``: whether seconds (float64) are NaN, or too far from 1970 for a float."""
    return ~(seconds.abs() < 1 << 53)


def utc_offsets(seconds: torch.Tensor, zone: str) -> torch.Tensor:
    """Return how many seconds ahead of UTC a zone's clock is, int64 ``[n]``, at seconds since 1970 in UTC.

    ``zone`` is a name of the tz database, or a fixed offset such as ``'+05:30'``.
    """
    if fixed := _FIXED.fullmatch(zone):
        sign, hours, minutes = fixed.groups()
        return torch.full_like(seconds, int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60))
    end = _start_of(_LAST + 1)
    seconds = torch.where(seconds < end, seconds, torch.remainder(seconds - end, _CYCLE) + end - _CYCLE)
    if isinstance(seconds, torch.Tensor):
        ends = [_start_of(_FIRST), *(torch.aminmax(seconds) if len(seconds) else ())]
        first, last = ((_EPOCH + dt.timedelta(seconds=max(int(s), ends[0]))).year for s in (ends[1:] or ends * 2))
    else:  # rows of a graph that is being written, of any year
        first, last = _FIRST, _LAST
    changes = [c for year in range(first, last + 1) for c in _changes(zone, year)]
    at = torch.tensor([second for second, _ in changes], dtype=torch.int64, device=seconds.device)
    ahead = [_ahead(zone, _start_of(first)), *(offset for _, offset in changes)]
    return torch.tensor(ahead, device=seconds.device).index_select(0, torch.searchsorted(at, seconds, right=True))


def _start_of(year: int) -> int:
    return (dt.datetime(year, 1, 1) - _EPOCH).days * _DAY


@cache
def _changes(zone: str, year: int) -> list[tuple[int, int]]:
    """Return the seconds of a year at which a zone's offset from UTC changes, and the offsets.

    A clock is read once a day: in the whole tz database no two changes are less than three days apart.
    """
    found = []
    before = _ahead(zone, _start_of(year))
    for low in range(_start_of(year), _start_of(year + 1), _DAY):
        high = low + _DAY
        after = _ahead(zone, high)
        if after != before:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _ahead(zone, middle) == before else (low, middle)
            found.append((high, after))
        before = after
    return found


def _ahead(zone: str, second: int) -> int:
    rules = ZoneInfo(zone)
    moment = rules.fromutc((_EPOCH + dt.timedelta(seconds=second)).replace(tzinfo=rules))
    return round(moment.utcoffset().total_seconds())  # type: ignore[union-attr]
