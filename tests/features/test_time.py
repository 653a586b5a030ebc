from __future__ import annotations

import calendar
import datetime as dt
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec.features import Cyclic, DateOf, DatePart, LastKnown

FASTAI = ["Year", "Month", "Week", "Day", "Dayofweek", "Dayofyear", "Is_month_end", "Is_month_start"]
FASTAI += ["Is_quarter_end", "Is_quarter_start", "Is_year_end", "Is_year_start", "Elapsed"]
MORE = ["quarter", "hour", "minute", "second", "weekofyear", "weekday"]


def columns(made, name="t"):
    return {n.removeprefix(f"{name}_"): made[n].tolist() for n in made.columns if n != name}


def by_python(moment):
    """Every part of a naive moment, by the standard library."""
    tomorrow = moment.date() + dt.timedelta(days=1)
    ends, starts = tomorrow.day == 1, moment.day == 1
    week = moment.isocalendar()[1]
    return {
        "year": moment.year,
        "month": moment.month,
        "week": week,
        "day": moment.day,
        "dayofweek": moment.weekday(),
        "dayofyear": moment.timetuple().tm_yday,
        "is_month_end": ends,
        "is_month_start": starts,
        "is_quarter_end": ends and moment.month % 3 == 0,
        "is_quarter_start": starts and moment.month % 3 == 1,
        "is_year_end": ends and moment.month == 12,
        "is_year_start": starts and moment.month == 1,
        "elapsed": (moment.replace(microsecond=0) - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1),
        "quarter": (moment.month + 2) // 3,
        "hour": moment.hour,
        "minute": moment.minute,
        "second": moment.second,
        "weekofyear": week,
        "weekday": moment.weekday(),
    }


@pytest.mark.filterwarnings("ignore:Series.dt.dayof")  # fastai reads them by their old names
def test_it_equals_fastai_on_days_of_four_centuries():
    from fastai.tabular.core import add_datepart

    days = pd.date_range("1678-01-01", "2261-12-31", freq="101h").as_unit("ns")
    close = pd.date_range("1995-12-25", "2012-01-10", freq="D").as_unit("ns")
    frame = pd.DataFrame({"t": pd.Series([*days, *close], dtype="datetime64[ns]")})
    expected = add_datepart(frame.copy(), "t", prefix="", time=True, drop=False).drop(columns="t")
    made = columns(DatePart("t", [*FASTAI, "hour", "minute", "second"]).fit_transform(frame))
    assert len(expected.columns) == len(made) == 16
    for name in expected:
        assert made[name.lower()] == expected[name].tolist(), name


@pytest.mark.filterwarnings("ignore:Series.dt.dayof")
def test_the_parts_that_are_taken_without_asking_are_fastais():
    from fastai.tabular.core import add_datepart

    frame = pd.DataFrame({"t": pd.Series(["2024-02-29", None], dtype="datetime64[ns]")})
    made = DatePart("t").fit_transform(frame)
    expected = add_datepart(frame.copy(), "t", prefix="t_", drop=False).drop(columns="t")
    assert list(made)[1:] == [n.lower() for n in expected]
    assert made.iloc[0, 1:].tolist() == expected.iloc[0].tolist()
    assert made.iloc[1, 1:].isna().all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 30)), min_size=1, max_size=8),
    st.sampled_from(["s", "ms", "us"]),
)
@example([dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1900, 2, 28), dt.datetime(2000, 2, 29)], "us")
def test_every_part_equals_the_standard_library(moments, unit):
    frame = pd.DataFrame({"t": np.array(moments, dtype="datetime64[us]").astype(f"datetime64[{unit}]")})
    parts = [*map(str.lower, FASTAI), *MORE]
    made = columns(DatePart("t", parts).fit_transform(frame))
    for i, moment in enumerate(moments):
        assert {p: made[p][i] for p in parts} == by_python(moment)


def test_many_rows_in_few_days_give_what_each_row_gives():
    rng = np.random.default_rng(0)
    seconds = rng.integers(-86_400 * 400, 86_400 * 400, 4000)
    frame = pd.DataFrame({"t": pd.to_datetime(seconds, unit="s").to_series().where(rng.random(4000) < 0.9).to_numpy()})
    feature = DatePart("t", [*FASTAI, *MORE])
    whole = feature.fit_transform(frame)
    parts = pd.concat([feature.transform(frame.iloc[i : i + 40]) for i in range(0, 4000, 40)])
    for name in feature.outputs:
        assert whole[name].tolist() == parts[name].tolist(), name


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2037, 1, 1)), min_size=1, max_size=6),
    st.sampled_from(["Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "UTC"]),
)
def test_parts_are_those_of_the_zone_and_elapsed_is_utc(moments, zone):
    there = pd.Series(moments, dtype="datetime64[us]").dt.tz_localize("UTC").dt.tz_convert(zone)
    made = columns(
        DatePart("t", ["day", "dayofyear", "hour", "minute", "elapsed"]).fit_transform(pd.DataFrame({"t": there}))
    )
    for i, (local, utc) in enumerate(zip(there, moments, strict=True)):
        expected = by_python(local.to_pydatetime().replace(tzinfo=None)) | {"elapsed": by_python(utc)["elapsed"]}
        assert {p: made[p][i] for p in made} == {p: expected[p] for p in made}


def test_numbers_are_seconds_and_what_is_no_date_is_missing():
    frame = pd.DataFrame({"t": [0, -0.5, 86_400.0 * 59, math.nan, math.inf, 1e300]})
    made = DatePart("t", ["year", "is_year_end", "dayofyear", "elapsed"]).fit_transform(frame)
    assert made["t_year"].tolist() == [1970, 1969, 1970, pd.NA, pd.NA, pd.NA]
    assert made["t_is_year_end"].tolist() == [False, True, False, pd.NA, pd.NA, pd.NA]
    assert made["t_dayofyear"].tolist()[:3] == [1, 365, 60]
    assert made["t_elapsed"].tolist()[:3] == [0, -1, 86_400 * 59]
    assert (str(made["t_year"].dtype), str(made["t_is_year_end"].dtype)) == ("Int64", "boolean")


def test_a_generator_of_times():
    frame = pd.DataFrame({"g": [1, 1], "t": pd.to_datetime(["2024-03-01", None])})
    made = DatePart(LastKnown("t", by="g"), "month").fit_transform(frame)
    assert made[made.columns[-1]].tolist()[1] == 3


days = st.lists(st.dates(dt.date(1600, 1, 1), dt.date(2400, 12, 31)), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(days)
def test_dates_equal_pythons(found):
    frame = pd.DataFrame({"y": [d.year for d in found], "m": [d.month for d in found], "d": [d.day for d in found]})
    expected = [(d - dt.date(1970, 1, 1)).days * 86_400 for d in found]
    assert DateOf("m", "d", "y").fit_transform(frame)["date"].tolist() == expected


def test_without_a_year_every_day_of_a_leap_year_is_another_one():
    year = [dt.date(2000, 1, 1) + dt.timedelta(days=i) for i in range(366)]
    frame = pd.DataFrame({"m": [d.month for d in year], "d": [d.day for d in year]})
    made = DateOf("m", "d", name="of").fit_transform(frame)["of"]
    assert (made.diff().dropna() == 86_400).all()


@pytest.mark.parametrize(("month", "day"), [(0, 1), (13, 1), (5, 0), (5, 32), (1.5, 2), (None, 3), (4, None)])
def test_what_is_no_date_is_missing(month, day):
    frame = pd.DataFrame({"m": [1.0, month], "d": [1.0, day]})
    made = DateOf("m", "d").fit_transform(frame)["date"].tolist()
    assert math.isnan(made[1])
    assert not math.isnan(made[0])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2400, 12, 31)), min_size=1, max_size=20))
def test_moments_equal_pythons(found):
    found = [d.replace(second=0, microsecond=0) for d in found]
    frame = pd.DataFrame({p: [getattr(d, p) for d in found] for p in ("year", "month", "day")})
    frame["at"] = [100 * d.hour + d.minute for d in found]
    expected = [(d - dt.datetime(1970, 1, 1)).total_seconds() for d in found]
    assert DateOf("month", "day", "year", clock="at").fit_transform(frame)["date"].tolist() == expected


def test_a_clock_shows_minutes_below_sixty_and_a_day_of_24_hours():
    frame = pd.DataFrame({"m": 1.0, "d": 1.0, "at": [0, 59, 60, 2359, 2400, 2401, -1, 12.5, None]})
    made = DateOf("m", "d", clock="at").fit_transform(frame)["date"]
    assert made.isna().tolist() == [False, False, True, False, False, True, True, True, True]
    assert made[4] - made[0] == 86_400


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
