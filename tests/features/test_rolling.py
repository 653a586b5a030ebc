"""``Rolling`` against pandas and hand-worked windows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, Lag, Rolling
from fastrec.table import Table

some = settings(max_examples=40, deadline=None)
STATS = ["mean", "sum", "count", "std", "min", "max", "median"]
CLOSED = ["left", "right", "both", "neither"]


@st.composite
def frames(draw, times):
    n = draw(st.integers(0, 18))
    number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1]))
    rows = st.tuples(st.one_of(st.none(), st.sampled_from(["u", "v"])), times, number)
    g, t, x = zip(*draw(st.lists(rows, min_size=n, max_size=n)), strict=True) if n else ((), (), ())
    return pd.DataFrame(
        {"g": pd.Series(g, dtype=object), "t": pd.Series(t, dtype="int64"), "x": pd.Series(x, dtype="float64")}
    )


def by_pandas(frame, stat, window, closed, min_count, *, timed):
    """The statistic of every group by pandas, in the frame's own order."""
    result = pd.Series(math.nan, index=frame.index)
    ordered = frame.sort_values("t", kind="stable")
    for key in ordered["g"].dropna().unique():
        group = ordered[ordered["g"] == key]
        values = group["x"].copy()
        if timed:
            values.index = pd.to_datetime(group["t"].to_numpy(), unit="s")
        made = getattr(values.rolling(window, min_periods=min_count, closed=closed), stat)()
        result[group.index] = made.to_numpy()
    return result


def check(frame, window, closed, min_count, *, timed):
    rolling = Rolling("x", STATS, by="g", order="t", window=window, min_count=min_count, closed=closed)
    made = rolling.fit_transform(frame)
    for stat, name in zip(STATS, rolling.outputs, strict=True):
        expected = by_pandas(frame, stat, window, closed, 0 if stat == "count" else min_count, timed=timed)
        if stat == "count":  # pandas leaves windows without rows out
            expected = expected.fillna(0)
        if stat == "std":  # pandas' own rounding: it adds and takes away
            assert made[name].isna().tolist() == expected.isna().tolist()
            assert made[name].dropna().tolist() == pytest.approx(expected.dropna().tolist(), rel=1e-5, abs=1e-3)
        else:
            assert made[name].tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-6, nan_ok=True), stat


@some
@given(frames(st.integers(0, 20)), st.sampled_from([1, 2, 3, 7]), st.sampled_from(CLOSED), st.integers(0, 3))
def test_windows_of_rows_equal_pandas(frame, window, closed, min_count):
    check(frame, window, closed, min(min_count, window), timed=False)


@some
@given(frames(st.integers(0, 20)), st.sampled_from(["1s", "4s", "300s"]), st.sampled_from(CLOSED), st.integers(0, 3))
def test_windows_of_time_equal_pandas(frame, window, closed, min_count):
    check(frame, window, closed, min_count, timed=True)


def test_longer_groups_equal_pandas():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"g": rng.choice(["a", "b", "c"], 600), "t": rng.integers(0, 500, 600), "x": rng.normal(size=600)}
    )
    frame.loc[rng.random(600) < 0.2, "x"] = math.nan
    for closed in CLOSED:
        check(frame, 25, closed, 3, timed=False)
        check(frame, "60s", closed, 3, timed=True)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_times_of_every_unit_and_zone(unit, zone):
    day = pd.to_datetime(["2024-01-01", "2024-01-03", "2024-01-08", "2024-01-08", "2024-01-15"])
    frame = pd.DataFrame({"t": day.as_unit(unit).tz_localize(zone), "x": [1.0, 2, 4, 8, 16]})
    made = Rolling("x", "sum", order="t", window=["7D", "36h", "1s"]).fit_transform(frame)
    assert made["rollsum7D_x"].fillna(0).tolist() == [0, 1, 3, 3, 12]
    assert made["rollsum36h_x"].isna().all()
    assert made["rollsum1s_x"].isna().all()


def test_an_order_of_numbers_is_in_seconds_and_rows_at_the_same_time_do_not_see_each_other():
    frame = pd.DataFrame({"t": [10.0, 10.0, 10.5, 11.0], "x": [1.0, 2.0, 4.0, 8.0]})
    made = Rolling("x", ["sum", "count"], order="t", window="500ms").fit_transform(frame)
    assert made["rollsum500ms_x"].fillna(-1).tolist() == [-1, -1, 3, 4]
    assert made["rollcount500ms_x"].tolist() == [0, 0, 2, 1]


def test_one_around_1e8_keeps_its_digits():
    x = np.tile([1e8 - 1, 1e8, 1e8 + 1], 200)
    made = Rolling(["x"], ["mean", "std"], window=300).fit_transform(pd.DataFrame({"x": x}))
    assert made["rollmean300_x"].iloc[-1] == pytest.approx(1e8, abs=1e-6)
    assert made["rollstd300_x"].iloc[-1] == pytest.approx(np.std([-1, 0, 1] * 100, ddof=1), rel=1e-12)
    same = Rolling("x", "std", window=9).fit_transform(pd.DataFrame({"x": [0.1] * 20}))
    assert set(same["rollstd9_x"].dropna()) == {0.0}


def test_an_infinite_value_spoils_its_own_windows_only():
    frame = pd.DataFrame({"x": [1.0, math.inf, 2.0, 3.0, 5.0, -math.inf, math.inf, 1.0]})
    made = Rolling("x", STATS, window=2).fit_transform(frame)
    assert made["rollmean2_x"].tolist()[2:7] == [math.inf, math.inf, 2.5, 4.0, -math.inf]
    assert math.isnan(made["rollsum2_x"][7])
    assert made["rollmax2_x"].tolist()[2:7] == [math.inf, math.inf, 3, 5, 5]
    assert made["rollmedian2_x"].tolist()[4:6] == [2.5, 4.0]
    assert made["rollstd2_x"].tolist()[4:6] == pytest.approx([math.sqrt(0.5), math.sqrt(2)])
    assert np.isnan(made["rollstd2_x"][[2, 3, 6, 7]]).all()


def test_rows_without_a_group_have_no_past():
    frame = pd.DataFrame({"g": [None, None, "a", "a"], "x": [1.0, 2.0, 3.0, 4.0]})
    made = Rolling("x", ["mean", "count", "sum"], by="g", window=2).fit_transform(frame)
    assert made["rollmean2_x__g"].fillna(-1).tolist() == [-1, -1, -1, 3]
    assert made["rollcount2_x__g"].tolist() == [0, 0, 0, 1]
    zero = Rolling("x", "sum", by="g", window=2, min_count=0).fit_transform(frame)
    assert zero["rollsum2_x__g"].fillna(-1).tolist() == [-1, -1, 0, 3]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("min_count", [0, 1, 2])
def test_missing_groups_are_missing_as_in_pandas(closed, min_count):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": rng.choice(["a", "b", None], 60), "x": rng.normal(size=60)})
    frame.loc[rng.random(60) < 0.3, "x"] = np.nan
    stats = ["mean", "sum", "std", "min", "max", "median"]
    made = Rolling("x", stats, by="g", window=3, min_count=min_count, closed=closed).fit_transform(frame)
    for stat, name in zip(stats, Rolling("x", stats, by="g", window=3, closed=closed).outputs, strict=True):
        windows = frame.groupby("g")["x"].rolling(3, min_periods=min_count, closed=closed)
        expected = getattr(windows, stat)().droplevel(0).reindex(frame.index)
        assert made[name].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


@pytest.mark.parametrize("window", [3, "40s"])
@pytest.mark.parametrize("closed", CLOSED)
def test_test_rows_see_the_tail_of_the_past(window, closed):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.integers(0, 4, 80), "t": rng.integers(0, 200, 80), "x": rng.normal(size=80)})
    frame = frame.sort_values("t", kind="stable")
    past, new = frame.iloc[:50], frame.iloc[50:].sample(frac=1, random_state=0).sort_index(kind="stable")
    fs = FeatureSet([Rolling("x", STATS, by="g", order="t", window=window, closed=closed)])
    whole = fs.fit_transform(pd.concat([past, new]))
    made = fs.fit(past).transform(new, history=past)
    pd.testing.assert_frame_equal(made, whole.iloc[50:])


def test_names_and_several_windows():
    rolling = Rolling(["x", "y"], ["mean", "max"], by=["a", "b"], order="t", window=[2, "1h 30min"], closed="both")
    assert rolling.outputs[:4] == [
        "rollmean2both_x__a__b",
        "rollmax2both_x__a__b",
        "rollmean1h30minboth_x__a__b",
        "rollmax1h30minboth_x__a__b",
    ]
    assert len(rolling.outputs) == 8
    assert Rolling("x", window=2, name="last").outputs == ["lastmean2_x"]


def test_a_window_that_holds_the_row_itself_says_so():
    assert [Rolling("x", window=2, closed=c).own_row for c in CLOSED] == [False, True, True, False]
    frame = pd.DataFrame({"y": [0.0, 1.0, 1.0]})
    with pytest.raises(FastrecError, match="Rolling"):
        FeatureSet([Rolling("y", window=2, closed="both")], target="y").fit_transform(frame)
    made = FeatureSet([Rolling("y", window=2)], target="y").fit_transform(frame)
    assert made["rollmean2_y"].fillna(-1).tolist() == [-1, 0, 0.5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 2, "stats": "mode"}, "no statistic 'mode'"),
        ({"window": 2, "closed": "middle"}, "closed 'middle'"),
        ({"window": 0}, "window=0"),
        ({"window": -3}, "window=-3"),
        ({"window": 1.5}, "not whole"),
        ({"window": True}, "window=True"),
        ({"window": []}, "no window"),
        ({"window": "7 days", "order": "t"}, "7 days"),
        ({"window": "7D"}, "one order column"),
        ({"window": "7D", "order": ["s", "t"]}, "one order column"),
        ({"window": 2, "min_count": -1}, "min_count"),
    ],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(FastrecError, match=words) as caught:
        Rolling("x", **options)
    assert "Rolling" in str(caught.value)
    assert caught.value.remedy


def test_generators_of_one_order_sort_once(monkeypatch):
    from fastrec.features import lagged as lag

    calls = []
    of = lag.Groups.of
    monkeypatch.setattr(lag.Groups, "of", lambda *a: calls.append(1) or of(*a))
    frame = pd.DataFrame({"g": [1, 2, 1], "t": [3, 2, 1], "x": [1.0, 2.0, 3.0]})
    fs = FeatureSet([Rolling("x", by="g", order="t", window=2), Lag("x", by="g", order="t")])
    fs.fit_transform(Table.read(frame))
    assert len(calls) == 1
    FeatureSet([Lag("x", by="g", order="t"), Lag("x", by=["g", "t"], n=2)]).fit_transform(Table.read(frame))
    assert len(calls) == 3
