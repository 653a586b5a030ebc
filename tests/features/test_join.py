from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, FastrecError
from fastrec.features import CountEncode, CoVisit, Cross, FeatureSet, History, JaccardToHistory, JoinTable, LastAction
from fastrec.table import Table

key = st.one_of(st.none(), st.sampled_from(["a", "b", "", "🎉"]))


@given(
    st.lists(st.tuples(key, st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.tuples(key, st.integers(0, 2), st.integers(-9, 9)), max_size=12),
    st.sampled_from(["first", "last", "error"]),
)
def test_it_equals_a_dictionary(rows, known, duplicates):
    lookup, place, repeated = {}, {}, None
    for i, (*own, value) in enumerate(known):
        own = tuple(own)
        if own[0] is None:
            continue
        if own in lookup and repeated is None:
            repeated = i, place[own]
        if own not in lookup or duplicates == "last":
            lookup[own], place[own] = value, i
    frame = pa.table({"k": pa.array([r[0] for r in rows], pa.string()), "n": [r[1] for r in rows]})
    other = pa.table(
        {
            "k": pa.array([r[0] for r in known], pa.string()),
            "n": pa.array([r[1] for r in known], pa.int64()),
            "v": pa.array([r[2] for r in known], pa.int64()),
        }
    )
    feature = JoinTable("t", ["k", "n"], "v", duplicates=duplicates)
    if duplicates == "error" and repeated is not None:
        with pytest.raises(FastrecError, match=f"'t' has the key of row {repeated[1]} again") as caught:
            feature.fit_transform(frame, tables={"t": other})
        assert (caught.value.row, caught.value.column) == (repeated[0], "k")
        return
    made = feature.fit_transform(frame, tables={"t": other})["t_v"].to_pylist()
    assert made == [lookup.get(r) for r in rows]


def test_every_type_is_kept():
    other = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "text": pa.array(["naïve\x00", None]),
            "small": pa.array([5, 6], pa.int8()),
            "big": pa.array([2**53 + 1, None], pa.int64()),
            "real": pa.array([0.5, 1.5], pa.float32()),
            "flag": pa.array([True, False]),
            "time": pa.array([0, 1], pa.timestamp("ms", "Europe/Berlin")),
            "list": pa.array([["x", None], []], pa.large_list(pa.large_string())),
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "struct": pa.array([{"a": 1}, {"a": 2}]),
            "same": pa.array([1, 1]),
        }
    )
    names = [n for n in other.column_names if n != "id"]
    frame = pa.table({"id": [2, 1, 9, None, 1]})
    made = JoinTable("o", "id", names).fit_transform(frame, tables={"o": other})
    for name in names:
        values = other[name].to_pylist()
        assert made[f"o_{name}"].to_pylist() == [values[1], values[0], None, None, values[0]], name
        if name not in ("text", "same"):
            assert made[f"o_{name}"].type == other[name].type, name


def test_types_of_the_key_may_differ_but_not_what_they_mean():
    other = pd.DataFrame({"id": [2**53 + 1, 7], "v": ["big", "seven"]})
    frame = pd.DataFrame({"id": pd.array([2**53, 2**53 + 1, None], dtype="Int64"), "f": [7.0, 7.5, None]})
    made = JoinTable("o", "id", "v").fit_transform(frame, tables={"o": other})["o_v"]
    assert [None if pd.isna(v) else v for v in made] == [None, "big", None]
    made = JoinTable("o", {"f": "id"}, "v").fit_transform(frame, tables={"o": other})["o_v"]
    assert [None if pd.isna(v) else v for v in made] == ["seven", None, None]


def test_a_generator_as_key_and_what_is_joined_read_by_others():
    items = pd.DataFrame({"item": ["a", "b", "c"], "brand": ["x", "x", "y"]})
    join = JoinTable("items", "item", "brand")
    fs = FeatureSet([CountEncode(join), CountEncode(Cross(join, "item"))])
    rows = pd.DataFrame({"item": ["a", "b", "c", "zzz", None, "a"]})
    made = fs.fit_transform(rows, tables={"items": items})
    assert made["count_items_brand"].tolist() == [3, 3, 1, 0, 0, 3]
    assert made["count_items_brand_x_item"].tolist() == [2, 1, 1, 0, 0, 2]
    counts = pd.DataFrame({"count_item": [1, 2], "word": ["once", "twice"]})
    join = JoinTable("words", CountEncode("item"), "word")
    made = join.fit_transform(pd.DataFrame({"item": ["a", "b", "a"]}), tables={"words": counts})
    assert made["words_word"].tolist() == ["twice", "once", "twice"]


def test_an_empty_table_joins_nothing():
    other = pa.table(
        {"id": pa.array([], pa.int64()), "v": pa.array([], pa.int16()), "l": pa.array([], pa.list_(pa.int8()))}
    )
    made = JoinTable("o", "id", ["v", "l"]).fit_transform(pa.table({"id": [1, None]}), tables={"o": other})
    assert made["o_v"].to_pylist() == made["o_l"].to_pylist() == [None, None]
    assert made["o_v"].type == pa.int16()


def test_a_category_that_no_row_has_is_missing() -> None:
    items = pd.DataFrame({"item": pd.Categorical(["a"], categories=["a", "b"]), "stars": [4]})
    rows = pd.DataFrame({"item": ["b", "a"]})
    for duplicates in ("error", "first", "last"):
        made = JoinTable("items", "item", "stars", duplicates=duplicates).fit_transform(rows, tables={"items": items})
        assert made["items_stars"].fillna(-1).tolist() == [-1, 4]


# Rows beside a log of events: whatever holds their times, a later event is never a past one


START = 1_700_000_000
ROWS = {"user": [1, 1, 2, 2, 3], "item": ["a", "b", "c", "a", "b"], "t": [0, 50, 100, 200, 300]}
LOG = {"user": [1, 1, 2, 2, 2], "item": ["b", "a", "a", "b", "c"], "t": [10, 60, 90, 150, 31_536_000]}
ITEMS = pd.DataFrame({"item": ["a", "b", "c"], "tags": [["x", "y"], ["y", "z"], ["x"]]})

MAKERS = {
    "History": lambda: History("user", order="t", table="log", stats=["count", "since"], values="item", name="made"),
    "LastAction": lambda: LastAction("user", order="t", table="log", action="item"),
    "CoVisit": lambda: CoVisit("item", by="user", order="t", table="log", stats=["sum", "mean"]),
    "JaccardToHistory": lambda: JaccardToHistory(
        "user", item="item", properties="tags", order="t", table="log", items="items"
    ),
}


def frame(data, times):
    return pa.table({n: times(v) if n == "t" else pa.array(v) for n, v in data.items()})


def whole(values):
    return pa.array(values, pa.int64())


def times_of(unit, zone=None):
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return lambda v: pa.array([(START + x) * scale for x in v], pa.int64()).cast(pa.timestamp(unit, zone))


def made(make, rows, log):
    feature = make()
    found = feature.fit_transform(rows, tables={"log": log, "items": ITEMS})
    return {n: Table.read(found, [n])[n].to_arrow().to_pylist() for n in feature.outputs}


def plain(name):
    return made(MAKERS[name], frame(ROWS, whole), frame(LOG, whole))


def test_an_event_a_year_later_is_not_past():
    rows, log = frame(ROWS, whole), frame(LOG, whole)
    found = made(MAKERS["JaccardToHistory"], rows, log)["jaccard_mean"]
    # user 1 at 50: b then, and b is the row's item; user 2: a before 100; a and b before 200
    assert found == [None, 1.0, 0.5, pytest.approx((1 + 1 / 3) / 2), None]


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zones", [(None, None), ("UTC", "Europe/Berlin"), ("Asia/Tokyo", "America/New_York")])
def test_times_of_one_unit_in_any_zones_are_as_numbers(name, unit, zones):
    here, there = (times_of(unit, z) for z in zones)
    assert made(MAKERS[name], frame(ROWS, here), frame(LOG, there)) == plain(name)


def dates(kind):
    return lambda v: pa.array([dt.date(2024, 1, 1) + dt.timedelta(days=x // 50) for x in v], kind)


DIFFERENT = {
    "nanoseconds and seconds": (times_of("ns"), times_of("s")),
    "seconds and microseconds": (times_of("s"), times_of("us")),
    "milliseconds and nanoseconds": (times_of("ms", "UTC"), times_of("ns", "UTC")),
    "a zone and none": (times_of("us", "Europe/Berlin"), times_of("us")),
    "none and a zone": (times_of("us"), times_of("us", "UTC")),
    "times and numbers": (times_of("ns"), whole),
    "numbers and times": (whole, times_of("ns")),
    "dates and times": (dates(pa.date32()), times_of("us")),
    "dates of 32 and of 64 bits": (dates(pa.date32()), dates(pa.date64())),
    "text and times": (lambda v: pa.array([f"2024-01-{x % 28:02}" for x in v]), times_of("us")),
}


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("case", sorted(DIFFERENT))
def test_times_that_are_held_differently_are_refused(name, case):
    here, there = DIFFERENT[case]
    with pytest.raises(DataError, match=name) as error:
        made(MAKERS[name], frame(ROWS, here), frame(LOG, there))
    assert error.value.column == "t"
    assert error.value.remedy


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int16(), pa.uint64(), pa.decimal128(22, 2)])
def test_numbers_of_two_types_compare_by_their_value(name, kind):
    log = {**LOG, "t": [10, 60, 90, 150, 30_000]}
    rows = frame(ROWS, whole)
    expected = made(MAKERS[name], rows, frame(log, whole))
    assert made(MAKERS[name], rows, frame(log, lambda v: whole(v).cast(kind))) == expected
    assert made(MAKERS[name], frame(ROWS, lambda v: whole(v).cast(kind)), frame(log, whole)) == expected


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_no_rows_and_no_events_need_no_type(name):
    rows, log = frame(ROWS, times_of("us")), frame(LOG, times_of("us"))
    nothing = pd.DataFrame({n: [] for n in LOG})
    after = made(MAKERS[name], rows, nothing)
    assert all(len(v) == 5 for v in after.values())
    assert all(v == [] for v in made(MAKERS[name], nothing, log).values())


def test_jaccard_needs_no_matrix_of_items_by_properties():
    n = 100_000  # as float32 that matrix would take 40 GB
    tags = pa.array([[f"p{i}", f"p{i + 1}"] for i in range(n)])
    items = pa.table({"item": np.arange(n), "tags": tags})
    log = pa.table({"user": np.arange(50), "item": np.arange(50) * 2000, "t": np.zeros(50)})
    rows = pa.table({"user": np.arange(50), "item": np.arange(50) * 2000 + np.arange(50) % 3, "t": np.ones(50)})
    j = JaccardToHistory("user", item="item", properties="tags", order="t", table="log", items="items")
    found = j.fit_transform(rows, tables={"log": log, "items": items})["jaccard_mean"].to_pylist()
    assert found == pytest.approx([[1, 1 / 3, 0][i % 3] for i in range(50)])
