from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import LastAction

some = settings(max_examples=25, deadline=None)
rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 4), st.sampled_from(["see", "buy", None])),
    min_size=1,
    max_size=12,
)


def frame_of(data):
    user, t, kind = zip(*data, strict=True)
    user, kind = pd.Series(user, dtype="Int64"), pd.Series(kind, dtype=object)
    return pd.DataFrame({"user": user, "t": t, "kind": kind})


def by_loop(row, events, n):
    """The n-th last event before a row and its age, by looking at every event."""
    before = [(t, i, k) for i, (u, t, k) in enumerate(events) if u == row[0] and t < row[1] and k is not None]
    before = sorted(before) if row[0] is not None else []
    return (before[-n][2], float(row[1] - before[-n][0])) if len(before) >= n else (None, math.nan)


def check(made, names, expected):
    kinds, ages = zip(*expected, strict=True)
    assert [None if pd.isna(k) else k for k in made[names[0]]] == list(kinds)
    assert made[names[1]].tolist() == pytest.approx(list(ages), nan_ok=True)


@some
@given(rows)
def test_the_last_events_of_the_rows_themselves_equal_a_loop(data):
    feature = LastAction("user", order="t", action="kind", n=[1, 2])
    made = feature.fit_transform(frame_of(data))
    for n in (1, 2):
        names = [f"last{n}_kind__user", f"since_last{n}_kind__user"]
        assert set(names) <= set(feature.outputs)
        check(made, names, [by_loop(row, data, n) for row in data])


@some
@given(rows, rows)
def test_the_last_events_of_a_log_equal_a_loop(data, log):
    feature = LastAction("user", order="t", action="kind", table="log", n=2, name="seen")
    made = feature.fit_transform(frame_of(data)[["user", "t"]], tables={"log": frame_of(log)})
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


@pytest.mark.parametrize(
    "options", [{"n": 0}, {"order": None}, {"order": None, "since": False, "table": "log"}, {"n": [1, -1]}]
)
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="LastAction"):
        LastAction("user", action="kind", **({"order": "t"} | options))


def test_a_log_of_another_unit_is_refused():
    frame = pd.DataFrame({"user": [1], "t": [5]})
    log = pd.DataFrame({"user": [1], "t": pd.to_datetime(["2024-01-01"]), "kind": ["a"]})
    with pytest.raises(FastrecError, match="LastAction"):
        LastAction("user", order="t", action="kind", table="log").fit_transform(frame, tables={"log": log})
