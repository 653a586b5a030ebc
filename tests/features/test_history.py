from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.features import FeatureSet, History, LastAction, TimeSince
from tests.features.frames import of_rows, plain

STATS = ["count", "since", "steps", "since_first", "is_last"]
user = st.one_of(st.none(), st.integers(0, 2))
item = st.one_of(st.none(), st.sampled_from(["a", "b", "🎉"]))
events = st.lists(
    st.tuples(
        user, item, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["x", "y z", None]), st.integers(-4, 4)
    ),
    max_size=15,
)

pytestmark = pytest.mark.usefixtures("few_or_many")
frame_of = partial(of_rows, u="Int64", i=object, t="int64", s="int64", k=object, w="float64")


def loop(row, log, kinds):
    """All statistics of one row from the events strictly before it in (t, s), ties by place in the log."""
    here = (row[2], row[3])
    usable = [e for e in log if e[4] in kinds] if kinds else log
    before = sorted((e for e in usable if (e[2], e[3]) < here), key=lambda e: (e[2], e[3]))
    own = [e for e in before if None not in (row[0], row[1]) and (e[0], e[1]) == (row[0], row[1])]
    wider = [e for e in before if row[0] is not None and e[0] == row[0] and e[1] is not None]
    last = own[-1] if own else None
    result = {
        "count": len(own),
        "since": row[2] - last[2] if last else None,
        "steps": row[3] - last[3] if last else None,
        "since_first": row[2] - own[0][2] if own else None,
        "is_last": int(bool(wider) and row[1] is not None and wider[-1][1] == row[1]),
        "last_w": last[5] if last else None,
        "last_k": last[4] if last else None,
        "sum_w": sum(e[5] for e in own),
    }
    return result | {f"count_{k.replace(' ', '_')}": sum(e[4] == k for e in own) for k in kinds or ()}


@given(events, events, st.sampled_from([None, ["x"], ["y z", "x"]]))
def test_it_equals_a_loop_over_a_log_and_over_its_own_rows(rows, log, kinds):
    reads = {"table": "log", "event": "k", "values": ["w", "k"], "sums": "w", "kinds": kinds}
    of_log = History(["u", "i"], order=["t", "s"], stats=STATS, name="h", by_kind=kinds is not None, **reads)
    of_rows = History(["u", "i"], order=["t", "s"], stats=STATS, name="h")
    made = of_log.fit_transform(frame_of(rows), tables={"log": frame_of(log)})
    own = of_rows.fit_transform(frame_of(rows))
    for n, row in enumerate(rows):
        for word, expected in loop(row, log, kinds).items():
            assert plain(made[f"h_{word}"])[n] == expected, (word, row)
        expected = loop(row, rows, None)
        assert [plain(own[f"h_{s}"])[n] for s in STATS] == [expected[s] for s in STATS]


LOW, HIGH = -(2**63), 2**63 - 1
ODD = {  # rows, events, options, and a column of the outcome
    "keys beyond the floats and of other width": (
        {"u": pd.Series([2**53, 2**53 + 1], dtype="int64"), "i": ["a", "a"], "t": [9, 9]},
        {"u": pd.array([2**53 + 1, 2**53, None], dtype="Int64"), "i": ["a", "a", "a"], "t": [1, 2, 3]},
        {},
        {"since": [7, 8]},
    ),
    "orders too wide for one sort key": (
        {"u": [1] * 4, "i": ["a"] * 4, "t": [LOW, LOW + 1, HIGH, HIGH], "s": [0, 0, LOW, HIGH]},
        {"u": [1, 1, 1], "i": ["a"] * 3, "t": [LOW, 0, HIGH], "s": [HIGH, 0, LOW]},
        {"order": ["t", "s"]},
        {"count": [0, 1, 2, 3]},
    ),
    "a large sum of another group": (
        {"u": [1, 2], "i": ["a", "a"], "t": [9, 9]},
        {"u": [1, 2, 2], "i": ["a"] * 3, "t": [1, 1, 2], "w": [1e20, 0.25, 0.5]},
        {"sums": "w"},
        {"sum_w": [1e20, 0.75]},
    ),
    "an infinite sum of another group": (
        {"u": [1, 2], "i": ["a", "a"], "t": [9, 9]},
        {"u": [1, 2, 2], "i": ["a"] * 3, "t": [1, 1, 2], "w": [math.inf, 0.25, 0.5]},
        {"sums": "w"},
        {"sum_w": [math.inf, 0.75]},
    ),
    "a log without events, of no types": (
        {"u": [1, 2], "i": ["a", None], "t": [1, 2]},
        {"u": pd.Series([], dtype=object), "i": pd.Series([], dtype=object), "t": pd.Series([], dtype="int64")},
        {},
        {"count": [0, 0], "is_last": [0, 0]},
    ),
    "one event without keys": (
        {"u": [1, 2], "i": ["a", None], "t": [1, 2]},
        {"u": pd.Series([None], dtype=object), "i": pd.Series([None], dtype=object), "t": [1], "w": [1.0]},
        {"sums": "w"},
        {"count": [0, 0], "is_last": [0, 0], "sum_w": [0, 0]},
    ),
    "kinds that are numbers with holes": (
        {"u": [1], "i": ["a"], "t": [9]},
        {"u": [1, 1, 1], "i": ["a"] * 3, "t": [1, 2, 3], "k": [1.0, np.nan, 2.0]},
        {"event": "k", "kinds": [1, 2], "by_kind": True},
        {"count": [2], "count_1": [1], "count_2": [1]},
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_keys_orders_and_values(case):
    rows, log, options, expected = ODD[case]
    made = one(rows, log, **options)
    assert {n: made[f"history_{n}"].tolist() for n in expected} == expected


def one(rows, log, **options):
    options = {"order": "t", "stats": STATS} | options
    return History(["u", "i"], table="log", **options).fit_transform(
        pd.DataFrame(rows), tables={"log": pd.DataFrame(log)}
    )


@pytest.mark.parametrize(("last", "expected"), [(3, [[1, 0], [0, 0], [0, 0]]), (1, [[2, 1], [0, 0], [0, 0]])])
def test_more_key_columns_than_fit_one_number(last, expected):
    names = [f"k{i}" for i in range(64)]
    rows = pd.DataFrame({n: [1, 1, 2] for n in names} | {"t": [9, 0, 9]})
    log = pd.DataFrame({n: [1, 1] for n in names} | {"t": [5, 6], "k63": [1, last]})
    made = History(names, order="t", table="log", stats=["count", "is_last"]).fit_transform(rows, tables={"log": log})
    assert made[["history_count", "history_is_last"]].values.tolist() == expected


def test_generators_of_several_kinds_and_orders_share_a_log():
    """What one has made of a request's log is not what another, of other kinds or rows, is given."""
    log = pd.DataFrame({"u": [1, 1, 2, 1], "t": [1, 2, 2, 4], "k": ["x", "y z", "x", "x"], "w": [1.0, 2.0, 4.0, 8.0]})
    generators = [
        History("u", order="t", table="log", event="k", kinds=kinds, stats=["count", "since"], sums="w", name=name)
        for name, kinds in (("x", ["x"]), ("y", ["y z"]), ("all", None), ("again", ["x"]))
    ]
    features = FeatureSet(generators)
    for times in ([3, 9], [2, 2]):
        rows = pd.DataFrame({"u": [1, 2], "t": times})
        together = features.fit_transform(rows, tables={"log": log})
        for one in generators:
            alone = FeatureSet([one]).fit_transform(rows, tables={"log": log})
            for name in one.outputs:
                assert plain(together[name]) == plain(alone[name]), name
    assert together["x_count"].tolist() == [1, 0]
    assert together["all_sum_w"].tolist() == [1, 0]


rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 4), st.sampled_from(["see", "buy", None])),
    min_size=1,
    max_size=12,
)


last_action_frame_of = partial(of_rows, user="Int64", t="int64", kind=object)


def by_loop(row, events, n):
    """The n-th last event before a row and its age, by looking at every event."""
    before = [(t, i, k) for i, (u, t, k) in enumerate(events) if u == row[0] and t < row[1] and k is not None]
    before = sorted(before) if row[0] is not None else []
    return (before[-n][2], float(row[1] - before[-n][0])) if len(before) >= n else (None, math.nan)


def check(made, names, expected):
    kinds, ages = zip(*expected, strict=True)
    assert [None if pd.isna(k) else k for k in made[names[0]]] == list(kinds)
    assert made[names[1]].tolist() == pytest.approx(list(ages), nan_ok=True)


@given(rows, rows)
def test_the_last_events_of_a_log_and_of_the_rows_themselves_equal_a_loop(data, log):
    frame = last_action_frame_of(data)
    own = LastAction("user", order="t", action="kind", n=[1, 2])
    made = own.fit_transform(frame)
    for n in (1, 2):
        names = [f"last{n}_kind__user", f"since_last{n}_kind__user"]
        assert set(names) <= set(own.outputs)
        check(made, names, [by_loop(row, data, n) for row in data])
    of_log = LastAction("user", order="t", action="kind", table="log", n=2, name="seen")
    made = of_log.fit_transform(frame[["user", "t"]], tables={"log": last_action_frame_of(log)})
    check(made, of_log.outputs, [by_loop(row, log, 2) for row in data])


def test_the_rows_own_order():
    frame = pd.DataFrame({"user": [1, 2, 1, 1], "kind": ["a", "b", None, "c"]})
    made = LastAction("user", order=None, action="kind", since=False).fit_transform(frame)
    assert [None if pd.isna(k) else k for k in made["last1_kind__user"]] == [None, None, "a", "a"]


time_since_rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["u", "v"])),
        st.integers(-5, 9),
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.sampled_from([-1.0, 0.0, 0.5, math.inf])),
    ),
    max_size=14,
)


def since(data, field, *, grouped, first):
    result = []
    for g, t, *_ in data:
        before = [r for r in data if (not grouped or (g is not None and r[0] == g)) and r[1] < t]
        times = [r[1] for r in before if field is None or (r[field] is not None and r[field] > 0)]
        result.append(float(t - (min(times) if first else max(times))) if times else math.nan)
    return result


@given(time_since_rows, st.booleans(), st.booleans())
def test_times_since_equal_a_loop(data, grouped, first):
    frame = of_rows(data, g=object, t="int64", flag="boolean", x="float64")
    by = "g" if grouped else None
    for event, field in ((["flag", "x"], (2, 3)), (None, (None,))):
        feature = TimeSince(event, by=by, order="t", first=first)
        made = feature.fit_transform(frame)
        for name, f in zip(feature.outputs, field, strict=True):
            expected = since(data, f, grouped=grouped, first=first)
            assert made[name].tolist() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_in_seconds_and_exact(unit):
    t = pd.to_datetime(["2024-03-31 03:00", "2024-03-31 01:30", "2024-03-30 00:00"]).tz_localize("Europe/Paris")
    frame = pd.DataFrame({"t": t.as_unit(unit), "e": [1, 0, 1]})
    made = TimeSince(["e"], order="t").fit_transform(frame)["since_e"]
    assert made.fillna(-1).tolist() == [26 * 3600, 25.5 * 3600, -1]  # the clocks were put forward by an hour
    wide = pd.DataFrame({"t": [2**53 + 1, 2**53 + 2, -(2**63), 2**63 - 1]})
    made = TimeSince(order="t").fit_transform(wide)["since_row"]
    assert made.tolist()[:2] == [2.0**63 + 2.0**53, 1.0]
