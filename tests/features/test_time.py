from __future__ import annotations

import calendar
import datetime as dt
import math
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastrec.features import Cyclic, DateOf, DatePart, LastKnown

FASTAI = ["Year", "Month", "Week", "Day", "Dayofweek", "Dayofyear", "Is_month_end", "Is_month_start"]
FASTAI += ["Is_quarter_end", "Is_quarter_start", "Is_year_end", "Is_year_start", "Elapsed"]
MORE = ["quarter", "hour", "minute", "second", "weekofyear", "weekday"]


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
@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_it_equals_fastai_on_days_of_four_centuries_in_any_order_with_gaps(unit):
    from fastai.tabular.core import add_datepart

    days = pd.date_range("1678-01-01", "2261-12-31", freq="101h").append(pd.date_range("1995-12-25", "2012-01-10"))
    wide = pd.DataFrame({"t": [*days, *[None] * 99]}, dtype="datetime64[ns]").sample(frac=1, random_state=0)
    # nanoseconds are the one unit that its elapsed seconds are right for
    expected = add_datepart(wide.copy(), "t", prefix="t_", time=True, drop=False).drop(columns="t")
    frame, gone = wide.astype(f"datetime64[{unit}]"), wide["t"].isna()
    made = DatePart("t", [*FASTAI, "hour", "minute", "second"]).fit_transform(frame)
    assert len(expected.columns) == len(made.columns) - 1 == 16
    for name in expected:
        found = made[name.lower()]
        assert found.index.equals(frame.index)
        assert found[gone].isna().all(), name  # fastai says False of the missing ones: they start and end nothing
        assert found[~gone].astype("float64").tolist() == expected[name][~gone].astype("float64").tolist(), name
    unasked = [n.lower() for n in expected if n not in ("t_Hour", "t_Minute", "t_Second")]
    pd.testing.assert_frame_equal(DatePart("t").fit_transform(frame), made[["t", *unasked]])


EDGES = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1900, 2, 28), dt.datetime(2000, 2, 29)]
ZONES = ["Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "UTC"]


@given(
    st.lists(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 30)), min_size=1, max_size=8),
    st.sampled_from(["s", "ms", "us"]),
    st.sampled_from([None, None, *ZONES]),
)
@example(EDGES, "us", None)
def test_every_part_is_the_standard_librarys_in_the_zone_and_elapsed_is_utc(moments, unit, zone):
    if zone:  # Python's own zones end a day before its dates do
        moments = [min(max(m, dt.datetime(1, 1, 3)), dt.datetime(9999, 12, 29)) for m in moments]
    times = pa.array(np.array(moments, dtype="datetime64[us]").astype(f"datetime64[{unit}]"))
    parts = [*map(str.lower, FASTAI), *MORE]
    made = DatePart("t", parts).fit_transform(pa.table({"t": times.cast(pa.timestamp(unit, zone))}))
    for i, moment in enumerate(moments):
        expected = by_python(there(moment, zone)) | {"elapsed": by_python(moment)["elapsed"]}
        assert {p: made[f"t_{p}"][i].as_py() for p in parts} == expected


def there(moment, zone):
    """What the clocks of a zone show, at a moment of UTC."""
    local = moment.replace(tzinfo=dt.UTC).astimezone(zoneinfo.ZoneInfo(zone)) if zone else moment
    return local.replace(tzinfo=None)


def test_many_rows_in_few_days_give_what_each_row_gives():
    rng = np.random.default_rng(0)
    seconds = rng.integers(-86_400 * 400, 86_400 * 400, 4000)
    frame = pd.DataFrame({"t": pd.to_datetime(seconds, unit="s").to_series().where(rng.random(4000) < 0.9).to_numpy()})
    feature = DatePart("t", [*FASTAI, *MORE])
    whole = feature.fit_transform(frame)
    parts = pd.concat([feature.transform(frame.iloc[i : i + 40]) for i in range(0, 4000, 40)])
    for name in feature.outputs:
        assert whole[name].tolist() == parts[name].tolist(), name


def test_numbers_are_seconds_and_what_is_no_date_is_missing():
    frame = pd.DataFrame({"t": [0, -0.5, 86_400.0 * 59, math.nan, math.inf, 1e300]})
    made = DatePart("t", ["year", "is_year_end", "dayofyear", "elapsed"]).fit_transform(frame)
    assert made["t_year"].tolist() == [1970, 1969, 1970, pd.NA, pd.NA, pd.NA]
    assert made["t_is_year_end"].tolist() == [False, True, False, pd.NA, pd.NA, pd.NA]
    assert made["t_dayofyear"].tolist()[:3] == [1, 365, 60]
    assert made["t_elapsed"].tolist()[:3] == [0, -1, 86_400 * 59]
    assert (str(made["t_year"].dtype), str(made["t_is_year_end"].dtype)) == ("Int64", "boolean")
    frame = pd.DataFrame({"g": [1, 1], "t": pd.to_datetime(["2024-03-01", None])})
    made = DatePart(LastKnown("t", by="g"), "month").fit_transform(frame)
    assert made[made.columns[-1]].tolist()[1] == 3


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


@given(st.lists(st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2400, 12, 31)), min_size=1, max_size=20))
def test_days_and_moments_equal_pythons(found):
    frame = pd.DataFrame({p: [getattr(d, p) for d in found] for p in ("year", "month", "day")})
    frame["at"] = [100 * d.hour + d.minute for d in found]
    for clock, cut in ((None, {"hour": 0, "minute": 0}), ("at", {})):
        expected = [
            (d.replace(second=0, microsecond=0, **cut) - dt.datetime(1970, 1, 1)).total_seconds() for d in found
        ]
        assert DateOf("month", "day", "year", clock=clock).fit_transform(frame)["date"].tolist() == expected


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


@given(
    st.lists(times, min_size=1, max_size=8),
    st.sampled_from(["hour", "weekday", "month", "dayofyear"]),
    st.sampled_from(["us", "ns", "ms", "s"]),
    st.sampled_from([None, None, *ZONES]),
)
def test_parts_of_the_calendar_equal_datetimes_in_the_zone(moments, part, unit, zone):
    t = pd.Series(moments, dtype="datetime64[us]").dt.as_unit(unit)
    frame = pd.DataFrame({"t": t.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else t})
    check(Cyclic("t", part).fit_transform(frame), f"t_{part}", [share(part, there(m, zone)) for m in moments])


def test_the_last_nanosecond_of_a_day_is_in_that_day_and_numbers_are_seconds_since_1970():
    frame = pd.DataFrame({"t": pd.to_datetime(["2023-12-31 23:59:59.999999999", None])})
    made = Cyclic("t", "hour").fit_transform(frame)
    check(made, "t_hour", [23 / 24, math.nan])
    check(Cyclic("t", "dayofyear").fit_transform(frame), "t_dayofyear", [364 / 365, math.nan])
    days = pd.DataFrame({"t": [0, 86400.0 * 4, -1.0]})
    names = ("weekday", "dayofweek")
    one, other = (
        Cyclic("t", name).fit_transform(days)[[f"t_{name}_sin", f"t_{name}_cos"]].to_numpy() for name in names
    )
    np.testing.assert_array_equal(one, other)
    made = Cyclic("t", "weekday").fit_transform(pd.DataFrame({"t": [0, 86400.0 * 4, -1.0, math.nan, math.inf]}))
    check(made, "t_weekday", [3 / 7, 0, 2 / 7, math.nan, math.nan])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.sampled_from([7, 24.0, 365.2425]))
def test_numbers_on_a_circle_of_any_length(numbers, period):
    made = Cyclic("x", period).fit_transform(pd.DataFrame({"x": numbers}))
    check(made, f"x_{period:.15g}", [math.fmod(x, period) / period for x in numbers])


def test_hours_of_one_sine_have_its_bits():
    frame = pd.DataFrame({"t": pd.date_range("2026-01-01", periods=24, freq="h")})
    made = Cyclic("t", "hour").fit_transform(frame)
    assert made["t_hour_sin"].nunique() == made["t_hour_cos"].nunique() == 13  # 0 and plus and minus of 15°, 30°, … 90°
