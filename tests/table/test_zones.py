"""Times on the clock of a zone, against the standard library's ``zoneinfo``."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import zoneinfo

import pyarrow as pa
import pytest

from fastrec.errors import DataError
from fastrec.features import Cyclic, DatePart

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PARTS = ["year", "month", "day", "dayofweek", "hour", "minute", "second"]
KNOWN = sorted(zoneinfo.available_timezones() - {"localtime"})
ODD = ["Africa/Casablanca", "Africa/Monrovia", "America/St_Johns", "Asia/Gaza", "Asia/Tehran", "Europe/Berlin"]
ODD += ["Africa/Freetown", "America/Recife", "Antarctica/Troll", "Australia/Lord_Howe", "Europe/Amsterdam", "UTC"]
ODD += ["Europe/Dublin", "Pacific/Apia", "Pacific/Kiritimati", "EST5EDT"]


def second_of(year, month=1, day=1):
    return int((dt.datetime(year, month, day, tzinfo=dt.UTC) - EPOCH).total_seconds())


def there(second, zone):
    return (EPOCH + dt.timedelta(seconds=second)).astimezone(zone)


def instants(name, first=1900, last=2100):
    """Seconds on both sides of every change of a zone's clock that lasts a month, and others."""
    zone, rng = zoneinfo.ZoneInfo(name), random.Random(name)
    found = [rng.randrange(second_of(first), second_of(last + 1)) for _ in range(100)]
    months = [second_of(y, m) for y in range(first, last + 1) for m in range(1, 13)]
    for low, high in itertools.pairwise(months):
        before = there(low, zone).utcoffset()
        if before == there(high, zone).utcoffset():
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if there(middle, zone).utcoffset() == before else (low, middle)
        found += [low, high]
    return found


def parts(seconds, name, unit="s"):
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array([s * scale for s in seconds], pa.int64()).cast(pa.timestamp(unit, name))
    made = DatePart("t", PARTS).fit_transform(pa.table({"t": column}))
    return list(zip(*(made[f"t_{p}"].to_pylist() for p in PARTS), strict=True))


def by_zoneinfo(seconds, name):
    zone = zoneinfo.ZoneInfo(name)
    moments = [there(s, zone) for s in seconds]
    return [(t.year, t.month, t.day, t.weekday(), t.hour, t.minute, t.second) for t in moments]


@pytest.mark.parametrize("name", sorted({*KNOWN[::40], *(z for z in ODD if z in KNOWN)}))
def test_every_change_of_a_clock_from_1900_to_2100(name):
    seconds = instants(name)
    assert parts(seconds, name) == by_zoneinfo(seconds, name)


@pytest.mark.parametrize("name", ["America/New_York", "Australia/Sydney", "Asia/Kathmandu"])
def test_the_oldest_and_farthest_years(name):
    rng = random.Random(0)
    seconds = [rng.randrange(second_of(1, 1, 3), second_of(9999, 12, 30)) for _ in range(500)]
    seconds += instants(name, 2490, 2510)
    assert parts(seconds, name) == by_zoneinfo(seconds, name)
    cycle = (second_of(2400) - second_of(2000)) * 100  # no year past 9999 in datetime, but the calendar goes on
    later = by_zoneinfo(seconds[:200], name)
    far = [s + cycle for s in seconds[:200] if s > second_of(2100)]
    expected = [(y + 40_000, *rest) for s, (y, *rest) in zip(seconds, later, strict=False) if s > second_of(2100)]
    assert parts(far, name) == expected


def test_a_summer_night_of_2054_in_berlin():
    column = pa.array([dt.datetime(2054, 4, 30, 22, 37)], pa.timestamp("us")).cast(pa.timestamp("us", "Europe/Berlin"))
    made = DatePart("t", ["month", "hour", "minute"]).fit_transform(pa.table({"t": column}))
    assert [made[f"t_{p}"].to_pylist() for p in ("month", "hour", "minute")] == [[5], [0], [37]]
    month = Cyclic("t", "month").fit_transform(pa.table({"t": column}))
    assert month["t_month_sin"].to_pylist() == pytest.approx([math.sin(2 * math.pi * 4 / 12)])


@pytest.mark.parametrize("name", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_the_first_and_the_last_time_of_a_unit(name, unit):
    most = (1 << 63) - 1
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array([most, -most, None], pa.int64()).cast(pa.timestamp(unit, name))
    made = DatePart("t", ["year"]).fit_transform(pa.table({"t": column}))["t_year"].to_pylist()
    if unit in ("s", "ms"):  # beyond what a float tells apart: no date
        assert made == [None] * 3
    elif unit == "ns":
        assert made == [by_zoneinfo([most // scale, -most // scale], name)[i][0] for i in range(2)] + [None]
    else:
        assert made == [294_247, -290_308, None]


@pytest.mark.parametrize(("name", "hours"), [("+05:30", 5.5), ("-03:30", -3.5), ("+00:00", 0), ("Etc/GMT+5", -5)])
def test_a_fixed_distance_from_utc(name, hours):
    seconds = [0, -1, second_of(2054, 7, 1), second_of(1850)]
    zone = dt.timezone(dt.timedelta(hours=hours))
    moments = [there(s, zone) for s in seconds]
    expected = [(t.year, t.month, t.day, t.weekday(), t.hour, t.minute, t.second) for t in moments]
    assert parts(seconds, name) == expected


@pytest.mark.parametrize("period", ["hour", "weekday", "month", "dayofyear"])
def test_what_is_no_date_has_no_place_on_a_circle(period):
    far = pa.array([1 << 62, -(1 << 62)], pa.int64())
    numbers = pa.array([2.0**62, -(2.0**62)])
    for column in (far.cast(pa.timestamp("s")), far.cast(pa.timestamp("s", "Asia/Tokyo")), numbers):
        made = Cyclic("t", period).fit_transform(pa.table({"t": column}))
        assert made[f"t_{period}_sin"].to_pylist() == [None, None]


def test_times_before_1970_are_rounded_down_in_the_zone_too():
    zone = "Europe/Berlin"
    column = pa.array([-1, -(10**9) - 1], pa.int64()).cast(pa.timestamp("ns", zone))
    made = DatePart("t", ["second"]).fit_transform(pa.table({"t": column}))
    assert made["t_second"].to_pylist() == [59, 58]


@pytest.mark.parametrize("name", ["Middle/Earth", "+5 o'clock", "../zone"])
def test_a_zone_that_nobody_knows_is_named(name):
    column = pa.array([0], pa.int64()).cast(pa.timestamp("s", name))
    for feature in (DatePart("t", "hour"), Cyclic("t", "hour")):
        with pytest.raises(DataError, match="zone") as error:
            feature.fit_transform(pa.table({"t": column}))
        assert error.value.column == "t"
