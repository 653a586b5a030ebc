"""Times on the clock of a time zone, right in any year: by the rules that the standard library's ``zoneinfo`` reads."""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from zoneinfo import ZoneInfo

import torch

from fastrec.errors import DataError
from fastrec.table.column import Column
from fastrec.table.keys import UNITS_PER_SECOND

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
