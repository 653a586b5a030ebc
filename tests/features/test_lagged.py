from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, FastrecError
from fastrec.features import Diff, Ewm, FeatureSet, Lag, PctChange, Rolling
from fastrec.features.lagged import positive, seconds_in, short
from fastrec.table import Table
from tests.features.frames import of_rows, plain


@pytest.mark.parametrize(
    "text", ["42D", "1W", "12h", "30min", "90s", "5ms", "7us", "3ns", "1.5h", " 2 D ", "1D 2h30min"]
)
def test_lengths_of_time_equal_pandas(text):
    assert seconds_in(text, wanted_by="Lag", what="horizon") * 10**9 == pd.Timedelta(text.strip()).value


def test_lengths_of_time_are_exact():
    assert seconds_in("0.1s", wanted_by="Lag", what="horizon") == Fraction(1, 10)
    assert seconds_in("100000000000000001ns", wanted_by="Lag", what="horizon") == Fraction(10**17 + 1, 10**9)


@pytest.mark.parametrize("text", ["", " ", "7", "D", "7 days", "-7D", "7D!", "1M", "0s", "0D 0h", "1e3s", "٣s", "1.s"])
def test_what_is_no_length_of_time_is_named(text):
    with pytest.raises(DataError, match=r"Lag: horizon=.* is not a length of time") as caught:
        seconds_in(text, wanted_by="Lag", what="horizon")
    assert "42D" in caught.value.remedy


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, [1], "1"])
def test_what_is_not_above_0_is_named(value):
    with pytest.raises(DataError, match="Ewm: half_life"):
        positive(value, wanted_by="Ewm", what="half_life")


def test_numbers_of_every_kind():
    for value in (3, np.int64(3), 3.0, np.float32(3), Fraction(3)):
        assert positive(value, wanted_by="Ewm", what="half_life") == 3
    assert positive(2**60 + 1, wanted_by="Ewm", what="half_life") == 2**60 + 1


@pytest.mark.parametrize(
    ("value", "name"), [("1h 30min", "1h30min"), (7, "7"), (7.0, "7"), (0.5, "0.5"), (1e7, "10000000")]
)
def test_names_are_short(value, name):
    assert short(value) == name


rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["u", "v"])),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.sampled_from(["a", "b"])),
    ),
    max_size=15,
)


frame_of = partial(of_rows, g=object, t="int64", v="Int64", s=object)


def lagged(rows, field, n, *, grouped=True, ordered=True):
    """The value ``n`` rows earlier by a loop: groups by the first field, order by the second, ties by place."""
    result = [None] * len(rows)
    for i, here in enumerate(rows):
        if grouped and here[0] is None:
            continue
        group = [j for j, r in enumerate(rows) if not grouped or r[0] == here[0]]
        group.sort(key=lambda j: (rows[j][1], j) if ordered else j)
        place = group.index(i) - n
        result[i] = rows[group[place]][field] if 0 <= place < len(group) else None
    return result


@settings(max_examples=50, deadline=None)
@given(rows, st.sampled_from([1, 2, 5, -1, -2]), st.booleans(), st.booleans())
def test_lags_equal_a_loop(data, n, grouped, ordered):
    frame = frame_of(data)
    made = Lag(["v", "s"], by="g" if grouped else None, order="t" if ordered else None, n=n).fit_transform(frame)
    word = (f"lag{n}" if n > 0 else f"lead{-n}") + "_{}" + ("__g" if grouped else "")
    for field, name in ((2, "v"), (3, "s")):
        assert plain(made[word.format(name)]) == lagged(data, field, n, grouped=grouped, ordered=ordered)


def test_test_rows_see_the_tail_of_the_past():
    past = pd.DataFrame({"g": [1, 1, 2], "t": [1, 2, 1], "x": [10.0, 20.0, 30.0]})
    new = pd.DataFrame({"g": [2, 1, 1], "t": [9, 9, 8], "x": [1.0, 2.0, 3.0]}, index=["p", "q", "r"])
    fs = FeatureSet([Lag("x", by="g", order="t"), Diff("x", by="g", order="t")]).fit(past)
    made = fs.transform(new, history=past)
    assert made.index.tolist() == ["p", "q", "r"]
    assert made["lag1_x__g"].tolist() == [30, 3, 20]
    assert made["diff1_x__g"].tolist() == [-29, -1, -17]
    assert plain(fs.transform(new)["lag1_x__g"]) == [None, 3.0, None]


def test_kinds_and_types_are_kept():
    frame = pd.DataFrame(
        {
            "i": pd.Series([2**53 + 1, 2], dtype="int64"),
            "u": pd.Series([2**64 - 1, 1], dtype="uint64"),
            "f": pd.Series([1.5, 2], dtype="float32"),
            "b": [True, False],
            "c": pd.Categorical(["x", "y"]),
            "d": pd.to_datetime(["2024-01-01", "2024-01-02"]).tz_localize("Asia/Tokyo"),
        }
    )
    made = Lag(list(frame)).fit_transform(frame)
    assert [made[f"lag1_{n}"][1] for n in frame] == [frame[n][0] for n in frame]
    assert all(pd.isna(made[f"lag1_{n}"][0]) for n in frame)
    assert made["lag1_f"].dtype == "float32"
    assert made["lag1_d"].dtype == frame["d"].dtype


def test_differences_of_wide_integers_times_and_infinities():
    frame = pd.DataFrame(
        {
            "i": [2**53 + 1, 2**53 + 2, -(2**63), 2**63 - 1],
            "d": pd.to_datetime(["2024-01-01", "2024-01-02", None, "2024-01-02"]).tz_localize("Europe/Paris"),
            "f": [math.inf, math.inf, 1.0, -math.inf],
        }
    )
    made = Diff(["i", "d", "f"]).fit_transform(frame)
    assert made["diff1_i"].tolist()[1:] == [1.0, float(-(2**63) - 2**53), 2.0**64]
    assert plain(made["diff1_d"]) == [None, 86400.0, None, None]
    assert plain(made["diff1_f"]) == [None, None, -math.inf, -math.inf]


def test_an_order_of_mixed_kinds_and_negative_times():
    frame = pd.DataFrame({"t": [-1.5, math.inf, -math.inf, 0.0, -0.0], "x": [1, 2, 3, 4, 5]})
    assert plain(Lag("x", order="t").fit_transform(frame)["lag1_x"]) == [3, 5, None, 1, 4]


def test_lists_cannot_be_shifted():
    with pytest.raises(FastrecError, match="list") as caught:
        Lag("x").fit_transform(pd.DataFrame({"x": [[1], [2, 3]]}))
    assert caught.value.column == "x"


def test_another_order_is_not_taken_for_the_one_before():
    table = Table.read(pd.DataFrame({"g": [1, 1, 1], "t": [1, 2, 3], "x": [1.0, 2.0, 3.0]}))
    lag = Lag("x", by="g", order="t")
    assert plain(lag.fit_transform(table)["lag1_x__g"].number().tolist()) == [None, 1, 2]
    turned = table.with_columns({"t": [3, 2, 1]})
    assert plain(lag.fit_transform(turned)["lag1_x__g"].number().tolist()) == [2, 3, None]
    assert plain(Lag("x", by="g").fit_transform(turned)["lag1_x__g"].number().tolist()) == [None, 1, 2]


def known_by(rows, field, n, horizon):
    """The ``n``-th last value that is at least a horizon old, by a loop."""
    result = []
    for here in rows:
        group = sorted((r[1], j) for j, r in enumerate(rows) if here[0] is not None and r[0] == here[0])
        old = [j for t, j in group if t <= here[1] - horizon]
        result.append(rows[old[-n]][field] if len(old) >= n else None)
    return result


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 0.5, 1.5, "1s", "1500ms"]))
def test_lags_behind_a_horizon_equal_a_loop(data, n, horizon):
    frame = frame_of(data)
    span = {"1s": 1, "1500ms": 1.5}.get(horizon, horizon)
    feature = Lag(["v", "s"], by="g", order="t", n=n, horizon=horizon)
    made = feature.fit_transform(frame)
    for field, name in zip((2, 3), feature.outputs, strict=True):
        assert plain(made[name]) == known_by(data, field, n, span)
    floats = frame.assign(t=frame["t"] / 4)
    quarter = Lag("v", by="g", order="t", n=n, horizon=0.5).fit_transform(floats)
    assert plain(quarter[f"lag{n}_0.5_v__g"]) == known_by(data, 2, n, 2)


def test_a_horizon_equals_pandas_merge_asof():
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(400), unit="D")
    frame = pd.DataFrame({"store": rng.integers(0, 5, 400), "day": day, "sold": rng.normal(size=400)})
    made = Lag("sold", by="store", order="day", horizon="42D").fit_transform(frame)
    ordered = frame.sort_values("day")
    late = ordered.assign(day=ordered["day"] - pd.Timedelta("42D"))
    expected = pd.merge_asof(late, ordered, on="day", by="store", suffixes=("", "_then"))
    expected = expected.set_index(late.index)["sold_then"].sort_index()
    assert made["lag1_42D_sold__store"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_horizon_of_seconds_in_every_unit(unit):
    t = pd.to_datetime(["2024-01-01 00:00:00", "2024-01-01 00:00:09", "2024-01-01 00:00:10"]).as_unit(unit)
    frame = pd.DataFrame({"t": t, "x": [1, 2, 3]})
    for horizon, name in ((10, "lag1_10_x"), (10.0, "lag1_10_x"), ("10s", "lag1_10s_x"), ("1W", "lag1_1W_x")):
        made = plain(Lag("x", order="t", horizon=horizon).fit_transform(frame)[name])
        assert made == [None, None, None if horizon == "1W" else 1]


def test_rows_closer_than_a_horizon_are_never_seen_at_the_edges_of_numbers():
    wide = pd.DataFrame({"t": [-(2**63), -(2**63) + 1, 0, 2**63 - 1], "x": [1, 2, 3, 4]})
    assert plain(Lag("x", order="t", horizon="1ns").fit_transform(wide)["lag1_1ns_x"]) == [None, 1, 2, 3]
    assert plain(Lag("x", order="t", horizon=2**62).fit_transform(wide)[f"lag1_{2**62}_x"]) == [None, None, 2, 3]
    large = pd.DataFrame({"t": [1e17, 1e17, math.inf, math.inf, -math.inf], "x": [1, 2, 3, 4, 5]})
    assert plain(Lag("x", order="t", horizon=1).fit_transform(large)["lag1_1_x"]) == [5, 5, 2, 2, None]


def test_a_horizon_reaches_into_the_past():
    past = pd.DataFrame({"g": [1, 1, 2], "t": [1, 4, 1], "x": [10.0, 20.0, 30.0]})
    new = pd.DataFrame({"g": [2, 1, 1], "t": [9, 9, 6], "x": [1.0, 2.0, 3.0]})
    fs = FeatureSet([f("x", by="g", order="t", horizon=4) for f in (Lag, Diff, PctChange)]).fit(past)
    made = fs.transform(new, history=past)
    assert made["lag1_4_x__g"].tolist() == [30, 20, 10]
    assert made["diff1_4_x__g"].tolist() == [-29, -18, -7]
    assert made["pct1_4_x__g"].tolist() == pytest.approx([-29 / 30, -0.9, -0.7])


def test_shares_are_exact_and_finite():
    frame = pd.DataFrame({"i": [2**53, 2**53 + 1, 0, 5], "f": [0.0, 1.0, math.inf, 2.0], "g": [1e-300, 1e300, -2, 1]})
    made = PctChange(["i", "f", "g"]).fit_transform(frame)
    assert plain(made["pct1_i"]) == [None, 2.0**-53, -1.0, None]
    assert plain(made["pct1_f"]) == [None, None, None, None]
    assert plain(made["pct1_g"]) == [None, None, -1.0, -1.5]


def test_times_have_no_share():
    frame = pd.DataFrame({"t": pd.to_datetime([None, "2024-01-01", "2024-01-02"])})
    with pytest.raises(FastrecError, match="PctChange") as caught:
        PctChange("t").fit_transform(frame)
    assert (caught.value.column, caught.value.row) == ("t", 1)


some = settings(max_examples=40, deadline=None)
STATS = ["mean", "sum", "count", "std", "min", "max", "median"]
CLOSED = ["left", "right", "both", "neither"]


@st.composite
def frames(draw, times):
    number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1]))
    rows = st.tuples(st.one_of(st.none(), st.sampled_from(["u", "v"])), times, number)
    return of_rows(draw(st.lists(rows, max_size=18)), g=object, t="int64", x="float64")


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


@pytest.mark.parametrize("window", [3, "40s"])
@pytest.mark.parametrize("closed", CLOSED)
def test_rolling_test_rows_see_the_tail_of_the_past(window, closed):
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


ewm_some = settings(max_examples=50, deadline=None)
number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1]))
ewm_rows = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from(["u", "v"])), st.integers(0, 30), number), max_size=18
)


ewm_frame_of = partial(of_rows, g=object, t="int64", x="float64")


def ewm_by_pandas(frame, half_life):
    result = pd.Series(math.nan, index=frame.index)
    ordered = frame.sort_values("t", kind="stable")
    for key in ordered["g"].dropna().unique():
        group = ordered[ordered["g"] == key]
        timed = {"times": pd.to_datetime(group["t"], unit="s")} if isinstance(half_life, str) else {}
        result[group.index] = group["x"].ewm(halflife=half_life, adjust=True, **timed).mean().shift().to_numpy()
    return result.tolist()


@ewm_some
@given(ewm_rows, st.sampled_from([0.5, 1, 3, 40]))
def test_half_lives_in_rows_equal_pandas(data, half_life):
    frame = ewm_frame_of(data)
    feature = Ewm("x", half_life=half_life, by="g", order="t")
    made = feature.fit_transform(frame)[feature.outputs[0]]
    assert made.tolist() == pytest.approx(ewm_by_pandas(frame, half_life), rel=1e-9, abs=1e-6, nan_ok=True)


@ewm_some
@given(ewm_rows, st.sampled_from(["1s", "2500ms", "1min"]))
def test_half_lives_in_time_equal_pandas_where_no_times_are_equal(data, half_life):
    frame = ewm_frame_of(data).drop_duplicates(["g", "t"], ignore_index=True)
    feature = Ewm("x", half_life=half_life, by="g", order="t")
    made = feature.fit_transform(frame)[feature.outputs[0]]
    assert made.tolist() == pytest.approx(ewm_by_pandas(frame, half_life), rel=1e-9, abs=1e-6, nan_ok=True)


@ewm_some
@given(ewm_rows)
def test_rows_at_the_same_time_do_not_see_each_other(data):
    frame = ewm_frame_of(data)
    made = Ewm("x", half_life="2s", by="g", order="t").fit_transform(frame)["ewm2s_x__g"]
    for i, (g, t, _) in enumerate(data):
        before = [(s, x) for h, s, x in data if g is not None and h == g and s < t and x is not None]
        weights = [2.0 ** (-(t - s) / 2) for s, _ in before]
        total = math.fsum(w * x for w, (_, x) in zip(weights, before)) / math.fsum(weights) if before else math.nan
        assert made[i] == pytest.approx(total, rel=1e-9, abs=1e-6, nan_ok=True)


def test_a_longer_group_equals_pandas():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": "a", "t": rng.permutation(3000), "x": rng.normal(size=3000) + 1e8})
    frame.loc[rng.random(3000) < 0.3, "x"] = math.nan
    for half_life in (0.3, 700, "2s", "4000s"):
        feature = Ewm("x", half_life=half_life, by="g", order="t")
        made = feature.fit_transform(frame)[feature.outputs[0]]
        assert made.tolist() == pytest.approx(ewm_by_pandas(frame, half_life), rel=1e-13, nan_ok=True)


def test_nothing_overflows_over_long_times_and_the_last_value_stays():
    frame = pd.DataFrame(
        {
            "t": pd.to_datetime(["1700-01-01", "1950-01-01", "2200-01-01", "2200-01-02"]).as_unit("ns"),
            "x": [3.0, None, 5.0, None],
        }
    )
    made = Ewm("x", half_life=["1s", "1ns"], order="t").fit_transform(frame)
    assert made["ewm1s_x"].tolist()[1:] == [3, 3, 5]
    assert made["ewm1ns_x"].tolist()[1:] == [3, 3, 5]
    rows = pd.DataFrame({"x": [7.0, *[None] * 5000, 1.0]})
    assert Ewm("x", half_life=1).fit_transform(rows)["ewm1_x"].iloc[-1] == 7


def test_infinite_values():
    frame = pd.DataFrame({"g": [1, 1, 1, 1, 2, 2], "x": [1.0, math.inf, 2.0, -math.inf, 4.0, 6.0]})
    frame = pd.concat([frame, pd.DataFrame({"g": [1, 2], "x": [0.0, 0.0]})])
    made = Ewm("x", half_life=1, by="g").fit_transform(frame)["ewm1_x__g"].tolist()
    assert made[1:4] == [1, math.inf, math.inf]
    assert made[5] == 4
    assert math.isnan(made[6])
    assert made[7] == pytest.approx(16 / 3)


def test_ewm_test_rows_see_the_tail_of_the_past():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.integers(0, 4, 80), "t": np.arange(80), "x": rng.normal(size=80)})
    past, new = frame.iloc[:50], frame.iloc[50:].iloc[::-1]
    fs = FeatureSet([Ewm("x", half_life=[2, "9s"], by="g", order="t")])
    made = fs.fit(past).transform(new, history=past)
    pd.testing.assert_frame_equal(made, fs.fit_transform(pd.concat([past, new])).iloc[50:])
