from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, FastrecError
from fastrec.features import FeatureSet, History, LastAction, TargetEncode, TimeSince
from tests.features.frames import of_rows, plain

some = settings(max_examples=40, deadline=None)
STATS = ["count", "since", "steps", "since_first", "is_last"]
user = st.one_of(st.none(), st.integers(0, 2))
item = st.one_of(st.none(), st.sampled_from(["a", "b", "🎉"]))
events = st.lists(
    st.tuples(
        user, item, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["x", "y z", None]), st.integers(-4, 4)
    ),
    max_size=15,
)


@pytest.fixture(autouse=True, scope="module", params=["of a request", "of many rows"])
def way(request):
    """A request's generators share what they sort; events of many rows that do not count are left out first."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "of many rows":
            patch.setattr(limits, "REQUEST_ROWS", -1)
        yield


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


@some
@given(events, events, st.sampled_from([None, ["x"], ["y z", "x"]]))
def test_it_equals_a_loop_over_a_log(rows, log, kinds):
    reads = {"table": "log", "event": "k", "values": ["w", "k"], "sums": "w"}
    kinds_read = {"kinds": kinds, "by_kind": kinds is not None}
    history = History(["u", "i"], order=["t", "s"], stats=STATS, name="h", **reads, **kinds_read)
    made = history.fit_transform(frame_of(rows), tables={"log": frame_of(log)})
    for n, row in enumerate(rows):
        for word, expected in loop(row, log, kinds).items():
            assert plain(made[f"h_{word}"])[n] == expected, (word, row)


@some
@given(events)
def test_it_equals_a_loop_over_its_own_rows(rows):
    made = History(["u", "i"], order=["t", "s"], stats=STATS).fit_transform(frame_of(rows))
    for n, row in enumerate(rows):
        expected = loop(row, rows, None)
        assert [plain(made[f"history_{s}"])[n] for s in STATS] == [expected[s] for s in STATS]


def one(rows, log, **options):
    options = {"order": "t", "stats": STATS} | options
    return History(["u", "i"], table="log", **options).fit_transform(
        pd.DataFrame(rows), tables={"log": pd.DataFrame(log)}
    )


def test_an_event_at_the_rows_own_place_does_not_count():
    log = {"u": [1, 1, 1], "i": ["a", "a", "b"], "t": [5, 6, 6]}
    made = one({"u": [1, 1, 1], "i": ["a", "a", "b"], "t": [5, 6, 7]}, log)
    assert made["history_count"].tolist() == [0, 1, 1]
    assert made["history_is_last"].tolist() == [0, 1, 1]


def test_of_events_at_one_place_the_later_in_the_log_is_the_last():
    log = {"u": [1, 1], "i": ["a", "b"], "t": [5, 5]}
    assert one({"u": [1, 1], "i": ["a", "b"], "t": [6, 6]}, log)["history_is_last"].tolist() == [0, 1]


def test_an_event_without_an_item_is_passed_over():
    log = {"u": [1, 1], "i": ["a", None], "t": [1, 2]}
    assert one({"u": [1], "i": ["a"], "t": [3]}, log)["history_is_last"].tolist() == [1]
    log = {"u": [1, 1], "i": ["a", "elsewhere"], "t": [1, 2]}
    assert one({"u": [1], "i": ["a"], "t": [3]}, log)["history_is_last"].tolist() == [0]


def test_times_are_told_in_seconds():
    times = pd.to_datetime(["2024-01-01 00:00:00.0", "2024-01-01 00:00:01.5"])
    for unit in ("ms", "us", "ns"):
        log = {"u": [1], "i": ["a"], "t": times[:1].as_unit(unit)}
        made = one({"u": [1], "i": ["a"], "t": times[1:].as_unit(unit)}, log)
        assert made["history_since"].tolist() == [1.5]
        assert made["history_steps"].tolist() == [1.5]


@pytest.mark.parametrize("there", ["seconds", "zone", "number"])
def test_times_that_cannot_be_compared_are_named(there):
    times = pd.Series(pd.to_datetime(["2024-01-01"])).dt.as_unit("ns")
    other = {"seconds": times.dt.as_unit("s"), "zone": times.dt.tz_localize("Asia/Tokyo"), "number": pd.Series([5])}
    with pytest.raises(FastrecError) as caught:
        one({"u": [1], "i": ["a"], "t": times}, {"u": [1], "i": ["a"], "t": other[there]})
    assert caught.value.column == "t"
    assert "History" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("blank", [{"u": [], "i": [], "t": []}, {"u": [None], "i": [None], "t": [1]}])
def test_a_log_without_events(blank):
    made = one(
        {"u": [1, 2], "i": ["a", None], "t": [1, 2]},
        {n: pd.Series(v, dtype=object if n != "t" else "int64") for n, v in blank.items()}
        | {"w": pd.Series([], dtype="float64") if not blank["t"] else [1.0]},
        values="w",
        sums="w",
    )
    assert made["history_count"].tolist() == [0, 0]
    assert made["history_is_last"].tolist() == [0, 0]
    assert made["history_sum_w"].tolist() == [0, 0]
    for name in ("since", "steps", "since_first", "last_w"):
        assert plain(made[f"history_{name}"]) == [None, None]


def test_a_log_of_other_keys_and_rows_without_keys():
    log = {"u": [7, 8, 9], "i": ["p", "q", "r"], "t": [0, 0, 0]}
    made = one({"u": pd.array([1, None, 7], dtype="Int64"), "i": ["p", "q", None], "t": [5, 5, 5]}, log)
    assert made["history_count"].tolist() == [0, 0, 0]
    assert made["history_is_last"].tolist() == [0, 0, 0]


def test_keys_beyond_the_floats_and_of_other_width():
    log = {"u": pd.array([2**53 + 1, 2**53, None], dtype="Int64"), "i": ["a", "a", "a"], "t": [1, 2, 3]}
    made = one({"u": pd.Series([2**53, 2**53 + 1], dtype="int64"), "i": ["a", "a"], "t": [9, 9]}, log)
    assert made["history_since"].tolist() == [7, 8]


def test_orders_too_wide_for_one_sort_key():
    low, high = -(2**63), 2**63 - 1
    log = {"u": [1, 1, 1], "i": ["a"] * 3, "t": [low, 0, high], "s": [high, 0, low]}
    rows = {"u": [1] * 4, "i": ["a"] * 4, "t": [low, low + 1, high, high], "s": [0, 0, low, high]}
    assert one(rows, log, order=["t", "s"])["history_count"].tolist() == [0, 1, 2, 3]


def test_sums_do_not_touch_other_groups():
    log = {"u": [1, 2, 2], "i": ["a"] * 3, "t": [1, 1, 2], "w": [1e20, 0.25, 0.5]}
    made = one({"u": [1, 2], "i": ["a", "a"], "t": [9, 9]}, log, sums="w")
    assert made["history_sum_w"].tolist() == [1e20, 0.75]
    log["w"][0] = math.inf
    assert one({"u": [1, 2], "i": ["a", "a"], "t": [9, 9]}, log, sums="w")["history_sum_w"].tolist() == [math.inf, 0.75]


def test_kinds_may_be_numbers_with_holes():
    log = {"u": [1, 1, 1], "i": ["a"] * 3, "t": [1, 2, 3], "k": [1.0, np.nan, 2.0]}
    made = one({"u": [1], "i": ["a"], "t": [9]}, log, event="k", kinds=[1, 2], by_kind=True)
    assert made[["history_count", "history_count_1", "history_count_2"]].values.tolist() == [[2, 1, 1]]


def test_kinds_whose_names_read_the_same():
    with pytest.raises(FastrecError, match="history_count_a_b"):
        FeatureSet([History("u", order="t", event="k", kinds=["a b", "a_b"], by_kind=True)])


def test_a_log_that_was_not_given():
    with pytest.raises(FastrecError, match="log"):
        History("u", order="t", table="log").fit_transform(pd.DataFrame({"u": [1], "t": [1]}))


def test_chained_after_an_encoding_it_still_looks_back_only():
    frame = pd.DataFrame({"u": [1, 1, 2], "t": [1, 2, 3], "y": [0, 1, 1]})
    made = FeatureSet([TargetEncode("u", "y"), History("u", order="t")], key="t").fit_transform(frame)
    assert made["history_count"].tolist() == [0, 1, 0]


def test_more_key_columns_than_fit_one_number():
    names = [f"k{i}" for i in range(64)]
    rows = pd.DataFrame({n: [1, 1, 2] for n in names} | {"t": [9, 0, 9]})
    log = pd.DataFrame({n: [1, 1] for n in names} | {"t": [5, 6]})
    log.loc[1, "k63"] = 3
    made = History(names, order="t", table="log", stats=["count", "is_last"]).fit_transform(rows, tables={"log": log})
    assert made["history_count"].tolist() == [1, 0, 0]
    assert made["history_is_last"].tolist() == [0, 0, 0]
    log["k63"] = 1
    made = History(names, order="t", table="log", stats=["count", "is_last"]).fit_transform(rows, tables={"log": log})
    assert made[["history_count", "history_is_last"]].values.tolist() == [[2, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize(("change", "named"), [(str, "text in the log.*to_datetime"), ("int64", "numbers in the log")])
def test_times_against_another_type_are_named(change, named):
    rows = pd.DataFrame({"user": [1, 1], "t": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    with pytest.raises(DataError, match=named) as caught:
        History("user", order="t", table="log").fit_transform(rows, tables={"log": rows.astype({"t": change})})
    assert caught.value.column == "t"


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


last_action_some = settings(max_examples=25, deadline=None)
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


@last_action_some
@given(rows)
def test_the_last_events_of_the_rows_themselves_equal_a_loop(data):
    feature = LastAction("user", order="t", action="kind", n=[1, 2])
    made = feature.fit_transform(last_action_frame_of(data))
    for n in (1, 2):
        names = [f"last{n}_kind__user", f"since_last{n}_kind__user"]
        assert set(names) <= set(feature.outputs)
        check(made, names, [by_loop(row, data, n) for row in data])


@last_action_some
@given(rows, rows)
def test_the_last_events_of_a_log_equal_a_loop(data, log):
    feature = LastAction("user", order="t", action="kind", table="log", n=2, name="seen")
    made = feature.fit_transform(last_action_frame_of(data)[["user", "t"]], tables={"log": last_action_frame_of(log)})
    check(made, feature.outputs, [by_loop(row, log, 2) for row in data])


def test_times_are_in_seconds_and_kinds_of_every_type():
    frame = pd.DataFrame(
        {
            "user": [1, 1, 1],
            "t": pd.to_datetime(["2024-01-01 00:00:00.0", "2024-01-01 00:01:00.0", "2024-01-01 00:01:30.5"]),
            "code": [2**53 + 1, 5, 7],
        }
    )
    made = LastAction("user", order="t", action="code").fit_transform(frame)
    assert made["since_last1_code__user"].tolist() == pytest.approx([math.nan, 60.0, 30.5], nan_ok=True)
    assert made["last1_code__user"].tolist()[1:] == [2**53 + 1, 5]


def test_the_rows_own_order():
    frame = pd.DataFrame({"user": [1, 2, 1, 1], "kind": ["a", "b", None, "c"]})
    made = LastAction("user", order=None, action="kind", since=False).fit_transform(frame)
    assert [None if pd.isna(k) else k for k in made["last1_kind__user"]] == [None, None, "a", "a"]


def test_a_log_of_another_unit_is_refused():
    frame = pd.DataFrame({"user": [1], "t": [5]})
    log = pd.DataFrame({"user": [1], "t": pd.to_datetime(["2024-01-01"]), "kind": ["a"]})
    with pytest.raises(FastrecError, match="LastAction"):
        LastAction("user", order="t", action="kind", table="log").fit_transform(frame, tables={"log": log})


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


@settings(max_examples=60, deadline=None)
@given(time_since_rows, st.booleans(), st.booleans())
def test_it_equals_a_loop(data, grouped, first):
    g, t, flag, x = zip(*data, strict=True) if data else ((), (), (), ())
    frame = pd.DataFrame(
        {
            "g": pd.Series(g, dtype=object),
            "t": pd.Series(t, dtype="int64"),
            "flag": pd.array(flag, dtype="boolean"),
            "x": pd.Series(x, dtype="float64"),
        }
    )
    by = "g" if grouped else None
    for event, field in ((["flag", "x"], (2, 3)), (None, (None,))):
        feature = TimeSince(event, by=by, order="t", first=first)
        made = feature.fit_transform(frame)
        for name, f in zip(feature.outputs, field, strict=True):
            expected = since(data, f, grouped=grouped, first=first)
            assert made[name].tolist() == pytest.approx(expected, nan_ok=True)


def test_the_published_case_of_differences():
    frame = pd.DataFrame({"user": [0, 0, 0, 1, 1, 2], "ts": [1000, 1005, 1100, 2000, 2001, 3000]})
    made = TimeSince(by="user", order="ts").fit_transform(frame)["since_row__user"]
    assert made.fillna(-1).tolist() == [-1, 5, 95, -1, 1, -1]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_in_seconds_and_exact(unit):
    t = (
        pd.to_datetime(["2024-03-31 03:00", "2024-03-31 01:30", "2024-03-30 00:00"])
        .as_unit(unit)
        .tz_localize("Europe/Paris")
    )
    frame = pd.DataFrame({"t": t, "e": [1, 0, 1]})
    made = TimeSince(["e"], order="t").fit_transform(frame)["since_e"]
    assert made.fillna(-1).tolist() == [26 * 3600, 25.5 * 3600, -1]  # the clocks were put forward by an hour
    wide = pd.DataFrame({"t": [2**53 + 1, 2**53 + 2, -(2**63), 2**63 - 1]})
    made = TimeSince(order="t").fit_transform(wide)["since_row"]
    assert made.tolist()[:2] == [2.0**63 + 2.0**53, 1.0]


def test_a_target_may_be_the_event():
    frame = pd.DataFrame({"t": [1, 2, 4], "y": [1, 0, 1]})
    made = FeatureSet([TimeSince("y", order="t")], target="y").fit_transform(frame)
    assert made["since_y"].fillna(-1).tolist() == [-1, 1, 3]


def test_test_rows_see_the_tail_of_the_past():
    past = pd.DataFrame({"g": [1, 1, 2], "t": [1, 2, 1], "e": [True, False, True]})
    new = pd.DataFrame({"g": [2, 1, 1], "t": [9, 9, 8], "e": [False, False, True]}, index=["p", "q", "r"])
    fs = FeatureSet([TimeSince("e", by="g", order="t"), TimeSince("e", by="g", order="t", first=True)]).fit(past)
    made = fs.transform(new, history=past)
    assert made["since_e__g"].to_dict() == {"p": 8, "q": 1, "r": 7}
    assert made["since_first_e__g"].to_dict() == {"p": 8, "q": 8, "r": 7}
    assert fs.transform(new)["since_e__g"].fillna(-1).tolist() == [-1, 1, -1]
