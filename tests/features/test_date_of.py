from __future__ import annotations

import datetime as dt
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.features import DateOf

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
