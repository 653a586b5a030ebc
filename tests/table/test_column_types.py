from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import zoneinfo
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, DataWarning
from fastrec.features import Cyclic, DatePart
from fastrec.table import Table
from fastrec.table.column_types import as_type, as_types, differing, shared_types, times_in_text, types_of
from fastrec.table.read import read_file

NOON = dt.datetime(2024, 1, 31, 12)
IN_UTC = pa.array([NOON], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("values", "wanted", "made"),
    [
        (pa.array([10115, None]), "text", ["10115", None]),
        (pa.array([10115.0, math.nan, 1.5]), "text", ["10115", None, "1.5"]),
        (pa.array([2**53 + 1]), "text", ["9007199254740993"]),
        (pa.array([True, None]), "text", ["True", None]),
        (pa.array([Decimal("1.50"), None]), "text", ["1.5", None]),
        (pa.array(["10", "", None, " 12 ", "NA"]), "number", [10, None, None, 12, None]),
        (pa.array(["1.5", "2", "-1e3"]), "number", [1.5, 2, -1000]),
        (pa.array(["9007199254740993"]), "number", [2**53 + 1]),
        (
            pa.array(["0 days 07:04:27", "-1 days +23:59:59.5", "3 days 00:00:00", None]),
            "number",
            [25467, -0.5, 259200, None],
        ),
        (pa.array([Decimal("5.25"), None]), "number", [5.25, None]),
        (pa.array(["true", "False", None, "1"]), "bool", [True, False, None, True]),
        (pa.array([0, 1, None]), "bool", [False, True, None]),
        (pa.array(["2024-01-31", "2024-01-31T12:00:00"]), "time", [NOON.replace(hour=0), NOON]),
        (pa.array(["7:30", "07:30:15", None]), "clock", [dt.time(7, 30), dt.time(7, 30, 15), None]),
        (pa.array([[1], [2, None], None, []]), "list of text", [["1"], ["2", None], None, []]),
        (pa.nulls(2), "text", [None, None]),
        (pa.array([math.nan, None]), "time in Europe/Berlin", [None, None]),
        (pa.nulls(1), "list of number", [None]),
    ],
)
def test_values_of_another_type(values, wanted, made):
    found = as_type(values, wanted, column="c")
    assert found.to_pylist() == made
    assert as_type(found, wanted, column="c") is found
    if not wanted.startswith("list"):
        coded = as_type(values.dictionary_encode(), wanted, column="c")
        assert coded.to_pylist() == made


@pytest.mark.parametrize(
    ("values", "wanted", "row", "words"),
    [
        (pa.array(["1", "x"]), "number", 1, r"'x' is no number.*Reading\(texts="),
        (pa.array(["1", "3 days"]), "number", 1, "'3 days' is no number"),
        (pa.array(["200000 days 00:00:00"]), "number", 0, "'200000 days 00:00:00' is no number"),
        (pa.array([1, 2]), "bool", 1, "2 is no bool"),
        (pa.array([None, 5]), "time", 1, r"holds numbers.*pd.to_datetime"),
        (pa.array([NOON]), "number", 0, "times without a zone"),
        (pa.array([NOON]), "time in Europe/Berlin", 0, r"without a zone.*tz_localize\('Europe/Berlin'\)"),
        (IN_UTC, "time", 0, r"in a zone \(UTC\).*tz_localize\(None\)"),
        (pa.array(["2024-01-31T12:00:00Z", "2024-01-31T12:00:00"]), "time in UTC", 1, "an offset or Z"),
        (pa.array(["2024-01-31", "2024-01-31T12:00:00Z"]), "time", 1, "is no time"),
        (pa.array(["24:00"]), "clock", 0, "is no clock"),
        (pa.array([[1]]), "text", 0, "values of type|list"),
    ],
)
def test_what_is_none_is_named(values, wanted, row, words):
    with pytest.raises(DataError, match=words) as error:
        as_type(values, wanted, column="c", file="f.csv")
    assert (error.value.column, error.value.row, error.value.file) == ("c", row, "f.csv")


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=6))
def test_integers_are_themselves_by_way_of_text(values):
    text = as_type(pa.array(values, pa.int64()), "text", column="c")
    assert text.to_pylist() == [None if v is None else str(v) for v in values]
    if all(v is None or abs(v) < 10**18 for v in values):
        assert as_type(text, "number", column="c").to_pylist() == values


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "+02:00"])
def test_a_moment_in_another_zone_is_the_same_moment(zone):
    table = Table({"t": IN_UTC})
    made = as_types(table, {"t": f"time in {zone}"})["t"]
    assert made.zone == zone
    assert made.integer().tolist() == table["t"].integer().tolist()
    text = Table({"t": pa.array(["2024-01-31T13:00:00+01:00"])})
    assert as_types(text, {"t": f"time in {zone}"})["t"].integer().tolist() == table["t"].integer().tolist()


def test_times_of_a_form_or_in_iso():
    made = times_in_text(pa.array(["31/01/2024", "2024-01-31", "13/13/2024", None]), "%d/%m/%Y")
    assert made.to_pylist() == [NOON.replace(hour=0)] * 2 + [None, None]


def test_types_of_several_tables():
    train = pa.table(
        {"zip": ["00715", "K1"], "n": [1, 2], "b": [True, False], "e": pa.nulls(2), "t": IN_UTC.take([0, 0])}
    )
    test = pa.table({"zip": [10115, 20095], "n": [1.5, None], "b": [0, 1], "e": ["x", "y"], "t": pa.nulls(2)})
    assert differing(train, test) == ["zip"]
    wanted = {"zip": "text", "n": "number", "b": "number", "e": "text", "t": "time in UTC"}
    assert shared_types(train, test) == wanted
    assert shared_types(Table.read(train), Table.read(test)) == wanted
    assert types_of(Table.read(train)) == types_of(train)


def test_decimals_are_numbers_unless_no_number_holds_them():
    table = pa.table({"d": [Decimal("1.5")], "i": [Decimal(7)], "long": [Decimal(10**25 + 1)]})
    with pytest.warns(DataWarning, match="'long': whole numbers beyond 64 bits are read as text"):
        types, made = types_of(table), Table.read(table)
    assert types == types_of(made) == {"d": "number", "i": "number", "long": "text"}
    made = as_types(made, types)
    assert made.to_arrow().to_pylist() == [{"d": 1.5, "i": 7, "long": str(10**25 + 1)}]


@pytest.mark.parametrize("first", [10**25, -(10**20), 2**64])
def test_integers_of_more_digits_than_a_number_holds_are_text_and_what_is_not_utf8_is_named(tmp_path, first):
    path = tmp_path / "a.csv"
    pd.DataFrame({"a": [str(first), "", str(first + 1)], "x": [1e30, np.nan, 2.5]}).to_csv(path, index=False)
    made = read_file(path)
    assert made["a"].to_pylist() == [str(first), None, str(first + 1)]
    assert made["x"].to_pylist() == [1e30, None, 2.5]
    path.write_bytes(b"a,b\nx,1\n\xff,2\n")
    with pytest.raises(OSError, match="column 'a', row 1: holds text that is not UTF-8"):
        read_file(tmp_path / "a.csv", types={"a": pa.string(), "gone": pa.string()})


# Times on the clock of a zone, against the standard library's ``zoneinfo``
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PARTS = ["year", "month", "day", "dayofweek", "hour", "minute", "second"]
KNOWN = sorted(zoneinfo.available_timezones() - {"localtime"})
ODD = ["Africa/Casablanca", "Africa/Monrovia", "America/St_Johns", "Asia/Gaza", "Asia/Tehran", "Europe/Berlin"]
ODD += ["Africa/Freetown", "America/Recife", "Antarctica/Troll", "Australia/Lord_Howe", "Europe/Amsterdam", "UTC"]
ODD += ["Europe/Dublin", "Pacific/Apia", "Pacific/Kiritimati", "EST5EDT"]


def second_of(year, month=1, day=1):
    return int(dt.datetime(year, month, day, tzinfo=dt.UTC).timestamp())


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


def parts(seconds, name):
    column = pa.array(seconds, pa.int64()).cast(pa.timestamp("s", name))
    made = DatePart("t", PARTS).fit_transform(pa.table({"t": column}))
    return list(zip(*(made[f"t_{p}"].to_pylist() for p in PARTS), strict=True))


def clocks(seconds, zone):
    moments = [there(s, zone) for s in seconds]
    return [(t.year, t.month, t.day, t.weekday(), t.hour, t.minute, t.second) for t in moments]


@pytest.mark.parametrize("name", sorted({*KNOWN[::40], *(z for z in ODD if z in KNOWN)}))
def test_every_change_of_a_clock_from_1900_to_2100(name):
    seconds = instants(name)
    assert parts(seconds, name) == clocks(seconds, zoneinfo.ZoneInfo(name))


@pytest.mark.parametrize(("name", "hours"), [("+05:30", 5.5), ("-03:30", -3.5), ("+00:00", 0), ("Etc/GMT+5", -5)])
def test_a_fixed_distance_from_utc(name, hours):
    seconds = [0, -1, second_of(2054, 7, 1), second_of(1850)]
    assert parts(seconds, name) == clocks(seconds, dt.timezone(dt.timedelta(hours=hours)))


@pytest.mark.parametrize("name", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(("unit", "years"), [("ns", [2262, 1677]), ("us", [294_247, -290_308]), ("ms", [None] * 2)])
def test_the_first_and_the_last_time_of_a_unit(name, unit, years):  # of ms: beyond what a float tells apart
    most = (1 << 63) - 1
    column = pa.array([most, -most, None], pa.int64()).cast(pa.timestamp(unit, name))
    made = DatePart("t", ["year"]).fit_transform(pa.table({"t": column}))["t_year"].to_pylist()
    assert made == [*years, None]


@pytest.mark.parametrize("period", ["hour", "dayofyear"])
def test_what_is_no_date_has_no_place_on_a_circle(period):
    far = pa.array([1 << 62, -(1 << 62)], pa.int64())
    for kind in (pa.timestamp("s"), pa.timestamp("s", "Asia/Tokyo"), pa.float64()):
        column = far.cast(kind, safe=False)
        made = Cyclic("t", period).fit_transform(pa.table({"t": column}))
        assert made[f"t_{period}_sin"].to_pylist() == [None, None]


@pytest.mark.parametrize("name", ["Middle/Earth", "+5 o'clock", "../zone"])
def test_a_zone_that_nobody_knows_is_named(name):
    column = pa.array([0], pa.int64()).cast(pa.timestamp("s", name))
    for feature in (DatePart("t", "hour"), Cyclic("t", "hour")):
        with pytest.raises(DataError, match="zone") as error:
            feature.fit_transform(pa.table({"t": column}))
        assert error.value.column == "t"
