from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, FastrecError
from fastrec.features import FeatureSet, History, TargetEncode

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


def frame_of(rows):
    u, i, t, s, k, w = zip(*rows, strict=True) if rows else ((),) * 6
    return pd.DataFrame(
        {
            "u": pd.array(u, dtype="Int64"),
            "i": pd.Series(i, dtype=object),
            "t": pd.Series(t, dtype="int64"),
            "s": pd.Series(s, dtype="int64"),
            "k": pd.Series(k, dtype=object),
            "w": pd.Series(w, dtype="float64"),
        }
    )


def plain(values):
    return [None if pd.isna(v) else v for v in values]


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
    history = History(
        ["u", "i"],
        order=["t", "s"],
        table="log",
        event="k",
        kinds=kinds,
        by_kind=kinds is not None,
        stats=STATS,
        values=["w", "k"],
        sums="w",
        name="h",
    )
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


@pytest.mark.parametrize(
    "options", [{"stats": "median"}, {"kinds": ["x"]}, {"by_kind": True, "event": "k"}, {"by": "u", "stats": "is_last"}]
)
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="History"):
        History(**({"by": ["u", "i"], "order": "t"} | options))


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
