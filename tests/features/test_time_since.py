"""``TimeSince`` against a loop, and the published differences of a lag."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, TimeSince

rows = st.lists(
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
@given(rows, st.booleans(), st.booleans())
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


@pytest.mark.parametrize("order", [None, [], ["a", "b"]])
def test_it_needs_one_order(order):
    with pytest.raises(FastrecError, match="TimeSince: a time needs one order column"):
        TimeSince("e", order=order)
