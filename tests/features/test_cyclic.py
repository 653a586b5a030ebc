from __future__ import annotations

import calendar
import datetime as dt
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Cyclic

times = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 12, 31))


def share(part, t):
    if part == "hour":
        return t.hour / 24
    if part == "weekday":
        return t.weekday() / 7
    if part == "month":
        return (t.month - 1) / 12
    return (t.timetuple().tm_yday - 1) / (366 if calendar.isleap(t.year) else 365)


def check(made, name, shares):
    expected = [(math.sin(2 * math.pi * s), math.cos(2 * math.pi * s)) for s in shares]
    found = made[[f"{name}_sin", f"{name}_cos"]].to_numpy()
    assert found == pytest.approx(np.array(expected).reshape(-1, 2), abs=1e-9, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(times, min_size=1, max_size=8),
    st.sampled_from(["hour", "weekday", "month", "dayofyear"]),
    st.sampled_from(["us", "ns", "ms", "s"]),
)
def test_parts_of_the_calendar_equal_datetimes(moments, part, unit):
    frame = pd.DataFrame({"t": pd.Series(moments, dtype="datetime64[us]").dt.as_unit(unit)})
    check(Cyclic("t", part).fit_transform(frame), f"t_{part}", [share(part, t) for t in moments])


# Arrow reads no daylight saving after 2037 from the time zone files.
known = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2037, 1, 1))


@settings(max_examples=30, deadline=None)
@given(st.lists(known, min_size=1, max_size=8), st.sampled_from(["Asia/Tokyo", "America/New_York", "Asia/Kathmandu"]))
def test_parts_are_those_of_the_zone(moments, zone):
    there = pd.Series(moments, dtype="datetime64[us]").dt.tz_localize("UTC").dt.tz_convert(zone)
    for part in ("hour", "weekday", "dayofyear"):
        made = Cyclic("t", part).fit_transform(pd.DataFrame({"t": there}))
        check(made, f"t_{part}", [share(part, t.to_pydatetime()) for t in there])


def test_the_last_nanosecond_of_a_day_is_in_that_day():
    frame = pd.DataFrame({"t": pd.to_datetime(["2023-12-31 23:59:59.999999999", None])})
    made = Cyclic("t", "hour").fit_transform(frame)
    check(made, "t_hour", [23 / 24, math.nan])
    check(Cyclic("t", "dayofyear").fit_transform(frame), "t_dayofyear", [364 / 365, math.nan])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.sampled_from([7, 24.0, 365.2425]))
def test_numbers_on_a_circle_of_any_length(numbers, period):
    made = Cyclic("x", period).fit_transform(pd.DataFrame({"x": numbers}))
    check(made, f"x_{period:.15g}", [math.fmod(x, period) / period for x in numbers])


def test_numbers_as_seconds_since_1970():
    made = Cyclic("t", "weekday").fit_transform(pd.DataFrame({"t": [0, 86400.0 * 4, -1.0, math.nan, math.inf]}))
    check(made, "t_weekday", [3 / 7, 0, 2 / 7, math.nan, math.nan])


def test_periods_that_differ_have_names_that_differ():
    assert Cyclic("t", 365.2425).outputs != Cyclic("t", 365.24219).outputs
    assert Cyclic("t", 24).outputs == Cyclic("t", 24.0).outputs == ["t_24_sin", "t_24_cos"]


@pytest.mark.parametrize("period", ["year", 0, -1, math.nan, math.inf])
def test_periods_that_cannot_be(period):
    with pytest.raises(FastrecError, match="period"):
        Cyclic("t", period)
