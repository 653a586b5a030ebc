from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, FastrecError
from fastrec.features import CumCount, Diff, Ewm, FeatureSet, Lag, PctChange, Rolling, TimeSince
from fastrec.features.lagged import positive, seconds_in
from fastrec.table import Table
from tests.features.frames import of_rows, plain


@pytest.mark.parametrize(
    "text", ["42D", "1W", "12h", "30min", "90s", "5ms", "7us", "3ns", "1.5h", " 2 D ", "1D 2h30min"]
)
def test_lengths_of_time_equal_pandas(text):
    assert seconds_in(text, wanted_by="Lag", what="horizon") * 10**9 == pd.Timedelta(text.strip()).value


def test_lengths_of_time_and_numbers_of_every_kind_are_exact():
    assert seconds_in("0.1s", wanted_by="Lag", what="horizon") == Fraction(1, 10)
    assert seconds_in("100000000000000001ns", wanted_by="Lag", what="horizon") == Fraction(10**17 + 1, 10**9)
    for value in (3, np.int64(3), 3.0, np.float32(3), Fraction(3)):
        assert positive(value, wanted_by="Ewm", what="half_life") == 3
    assert positive(2**60 + 1, wanted_by="Ewm", what="half_life") == 2**60 + 1


@pytest.mark.parametrize("text", ["", " ", "7", "D", "7 days", "-7D", "7D!", "1M", "0s", "0D 0h", "1e3s", "٣s", "1.s"])
def test_what_is_no_length_of_time_is_named(text):
    with pytest.raises(DataError, match=r"Lag: horizon=.* is not a length of time") as caught:
        seconds_in(text, wanted_by="Lag", what="horizon")
    assert "42D" in caught.value.remedy


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


def test_differences_and_shares_of_wide_integers_times_and_infinities():
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
    frame = pd.DataFrame({"i": [2**53, 2**53 + 1, 0, 5], "f": [0.0, 1.0, math.inf, 2.0], "g": [1e-300, 1e300, -2, 1]})
    made = PctChange(["i", "f", "g"]).fit_transform(frame)
    assert plain(made["pct1_i"]) == [None, 2.0**-53, -1.0, None]
    assert plain(made["pct1_f"]) == [None, None, None, None]
    assert plain(made["pct1_g"]) == [None, None, -1.0, -1.5]


def test_an_order_of_mixed_kinds_and_negative_times():
    frame = pd.DataFrame({"t": [-1.5, math.inf, -math.inf, 0.0, -0.0], "x": [1, 2, 3, 4, 5]})
    assert plain(Lag("x", order="t").fit_transform(frame)["lag1_x"]) == [3, 5, None, 1, 4]


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


number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1]))
group = st.one_of(st.none(), st.sampled_from(["u", "v"]))
short_rows = st.lists(st.tuples(group, st.integers(0, 20), number), max_size=18)
frame_of_x = partial(of_rows, g=object, t="int64", x="float64")
STATS = ["mean", "sum", "count", "std", "min", "max", "median"]
CLOSED = ["left", "right", "both", "neither"]


def by_pandas(frame, of_group, *, timed=False):
    """What pandas makes of every group's values, in the frame's own order; ``timed``: with times as their index."""
    result = pd.Series(math.nan, index=frame.index)
    for _, group in frame.sort_values("t", kind="stable").groupby("g"):
        values = group["x"].set_axis(pd.to_datetime(group["t"].to_numpy(), unit="s")) if timed else group["x"]
        result[group.index] = of_group(values).to_numpy()
    return result


def check(frame, window, closed, min_count, *, timed):
    rolling = Rolling("x", STATS, by="g", order="t", window=window, min_count=min_count, closed=closed)
    made = rolling.fit_transform(frame)
    for stat, name in zip(STATS, rolling.outputs, strict=True):
        least = 0 if stat == "count" else min_count
        expected = by_pandas(frame, lambda v, s=stat, n=least: v.rolling(window, n, closed=closed).agg(s), timed=timed)
        if stat == "count":  # pandas leaves windows without rows out
            expected = expected.fillna(0)
        if stat == "std":  # pandas' own rounding: it adds and takes away
            assert made[name].isna().tolist() == expected.isna().tolist()
            assert made[name].dropna().tolist() == pytest.approx(expected.dropna().tolist(), rel=1e-5, abs=1e-3)
        else:
            assert made[name].tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-6, nan_ok=True), stat


@given(short_rows, st.sampled_from([1, 2, 3, 7, "1s", "4s", "300s"]), st.sampled_from(CLOSED), st.integers(0, 3))
def test_windows_of_rows_and_of_time_equal_pandas(data, window, closed, min_count):
    timed = isinstance(window, str)
    check(frame_of_x(data), window, closed, min_count if timed else min(min_count, window), timed=timed)


def test_longer_groups_equal_pandas():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": rng.choice(list("abc"), 600), "t": rng.integers(0, 500, 600), "x": rng.normal(size=600)})
    frame.loc[rng.random(600) < 0.2, "x"] = math.nan
    for closed in CLOSED:
        check(frame, 25, closed, 3, timed=False)
        check(frame, "60s", closed, 3, timed=True)


def test_an_infinite_value_spoils_its_own_windows_only():
    frame = pd.DataFrame({"x": [1.0, math.inf, 2.0, 3.0, 5.0, -math.inf, math.inf, 1.0]})
    made = Rolling("x", STATS, window=2).fit_transform(frame)
    assert made["rollmean2_x"].tolist()[2:7] == [math.inf, math.inf, 2.5, 4.0, -math.inf]
    assert math.isnan(made["rollsum2_x"][7])
    assert made["rollmax2_x"].tolist()[2:7] == [math.inf, math.inf, 3, 5, 5]
    assert made["rollmedian2_x"].tolist()[4:6] == [2.5, 4.0]
    assert made["rollstd2_x"].tolist()[4:6] == pytest.approx([math.sqrt(0.5), math.sqrt(2)])
    assert np.isnan(made["rollstd2_x"][[2, 3, 6, 7]]).all()


PLACE = {"by": "g", "order": "t"}
LOOKING_BACK = [
    *(cls("x", **PLACE, horizon=horizon) for cls in (Lag, Diff, PctChange) for horizon in (None, 40)),
    *(Rolling("x", STATS, **PLACE, window=window, closed=closed) for window in (3, "40s") for closed in CLOSED),
    Ewm("x", half_life=[2, "9s"], **PLACE),
    CumCount(**PLACE),
    *(TimeSince("x", **PLACE, first=first) for first in (False, True)),
]


@pytest.mark.parametrize("feature", LOOKING_BACK, ids=repr)
def test_test_rows_see_the_tail_of_the_past(feature):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.integers(0, 4, 80), "t": rng.integers(0, 200, 80), "x": rng.normal(size=80)})
    frame = frame.sort_values("t", kind="stable")
    past, new = frame.iloc[:50], frame.iloc[50:].sample(frac=1, random_state=0).sort_index(kind="stable")
    fs = FeatureSet([feature])
    whole = fs.fit_transform(pd.concat([past, new]))
    made = fs.fit(past).transform(new, history=past)
    pd.testing.assert_frame_equal(made, whole.iloc[50:])
    pd.testing.assert_frame_equal(fs.transform(new), fs.fit_transform(new))


def test_names_and_several_windows():
    rolling = Rolling(["x", "y"], ["mean", "max"], by=["a", "b"], order="t", window=[2, "1h 30min"], closed="both")
    assert rolling.outputs[1:3] == ["rollmax2both_x__a__b", "rollmean1h30minboth_x__a__b"]
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


ewm_rows = st.lists(st.tuples(group, st.integers(0, 30), number), max_size=18)


def ewm_by_pandas(frame, half_life):
    timed = isinstance(half_life, str)

    def of_group(values):
        return values.ewm(halflife=half_life, times=values.index if timed else None).mean().shift()

    return by_pandas(frame, of_group, timed=timed).tolist()


@given(ewm_rows, st.sampled_from([0.5, 1, 3, 40]))
def test_half_lives_in_rows_equal_pandas(data, half_life):
    frame = frame_of_x(data)
    feature = Ewm("x", half_life=half_life, by="g", order="t")
    made = feature.fit_transform(frame)[feature.outputs[0]]
    assert made.tolist() == pytest.approx(ewm_by_pandas(frame, half_life), rel=1e-9, abs=1e-6, nan_ok=True)


@given(ewm_rows, st.sampled_from([("1s", 1), ("2s", 2), ("2500ms", 2.5), ("1min", 60)]))
def test_half_lives_in_time_equal_a_loop_and_rows_at_the_same_time_do_not_see_each_other(data, length):
    half_life, seconds = length
    made = Ewm("x", half_life=half_life, by="g", order="t").fit_transform(frame_of_x(data))[f"ewm{half_life}_x__g"]
    for i, (g, t, _) in enumerate(data):
        before = [(s, x) for h, s, x in data if g is not None and h == g and s < t and x is not None]
        weights = [2.0 ** (-(t - s) / seconds) for s, _ in before]
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


def test_ages_overflow_nothing_and_infinite_values_stay_infinite():
    times = pd.to_datetime(["1700-01-01", "1950-01-01", "2200-01-01", "2200-01-02"]).as_unit("ns")
    frame = pd.DataFrame({"t": times, "x": [3.0, None, 5.0, None]})
    made = Ewm("x", half_life=["1s", "1ns"], order="t").fit_transform(frame)
    assert made["ewm1s_x"].tolist()[1:] == [3, 3, 5]
    assert made["ewm1ns_x"].tolist()[1:] == [3, 3, 5]
    rows = pd.DataFrame({"x": [7.0, *[None] * 5000, 1.0]})
    assert Ewm("x", half_life=1).fit_transform(rows)["ewm1_x"].iloc[-1] == 7
    frame = pd.DataFrame({"g": [1, 1, 1, 1, 2, 2], "x": [1.0, math.inf, 2.0, -math.inf, 4.0, 6.0]})
    frame = pd.concat([frame, pd.DataFrame({"g": [1, 2], "x": [0.0, 0.0]})])
    made = Ewm("x", half_life=1, by="g").fit_transform(frame)["ewm1_x__g"].tolist()
    assert made[1:4] == [1, math.inf, math.inf]
    assert made[5] == 4
    assert math.isnan(made[6])
    assert made[7] == pytest.approx(16 / 3)
