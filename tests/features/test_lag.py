from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Diff, FeatureSet, Lag, PctChange
from fastrec.table import Table

rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["u", "v"])),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.sampled_from(["a", "b"])),
    ),
    max_size=15,
)


def frame_of(rows):
    g, t, v, s = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pd.DataFrame(
        {
            "g": pd.Series(g, dtype=object),
            "t": pd.Series(t, dtype="int64"),
            "v": pd.array(v, dtype="Int64"),
            "s": pd.Series(s, dtype=object),
        }
    )


def plain(values):
    return [None if pd.isna(v) else v for v in values]


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


@settings(max_examples=40, deadline=None)
@given(rows, st.sampled_from([1, 2, -1]))
def test_differences_equal_a_loop(data, n):
    made = Diff("v", by="g", order="t", n=n).fit_transform(frame_of(data))
    there = lagged(data, 2, n)
    expected = [r[2] - b if r[2] is not None and b is not None else None for r, b in zip(data, there, strict=True)]
    assert plain(made[f"diff{n}_v__g"]) == expected


def test_the_published_cases_of_differences():
    frame = pd.DataFrame({"user": [0, 0, 0, 1, 1, 2], "ts": [1000, 1005, 1100, 2000, 2001, 3000]})
    made = Diff("ts", by="user", n=[1, -1]).fit_transform(frame)
    assert plain(made["diff1_ts__user"]) == [None, 5, 95, None, 1, None]
    assert plain(made["diff-1_ts__user"]) == [-5, -95, None, -1, None, None]


def test_lags_equal_pandas_over_several_columns_of_group_and_order():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 4, (200, 4)), columns=["a", "b", "t", "u"]).assign(x=rng.normal(size=200))
    made = Lag("x", by=["a", "b"], order=["t", "u"], n=[1, 3]).fit_transform(frame)
    ordered = frame.sort_values(["t", "u"], kind="stable")
    for n in (1, 3):
        expected = ordered.groupby(["a", "b"])["x"].shift(n).sort_index()
        assert made[f"lag{n}_x__a__b"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


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


@pytest.mark.parametrize("n", [0, [1, 0]])
def test_a_lag_of_nothing(n):
    with pytest.raises(FastrecError, match="n is 0"):
        Lag("x", n=n)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"horizon": "42D"}, "one order column"),
        ({"horizon": "42D", "order": ["a", "b"]}, "one order column"),
        ({"horizon": "42D", "order": "t", "n": [1, -1]}, "looks back"),
        ({"horizon": "42 days", "order": "t"}, "42 days"),
        ({"horizon": 0, "order": "t"}, "horizon=0"),
        ({"horizon": -7, "order": "t"}, "horizon=-7"),
    ],
)
@pytest.mark.parametrize("make", [Lag, Diff, PctChange])
def test_a_bad_horizon_is_named(make, options, words):
    with pytest.raises(FastrecError, match=words) as caught:
        make("x", **options)
    assert make.__name__ in str(caught.value)
    assert caught.value.remedy


@settings(max_examples=40, deadline=None)
@given(rows, st.sampled_from([1, 2, -1]))
def test_shares_equal_pandas_where_they_are_finite(data, n):
    frame = frame_of(data)
    made = PctChange("v", by="g", order="t", n=n).fit_transform(frame)[f"pct{n}_v__g"]
    ordered = frame.astype({"v": "float64"}).sort_values("t", kind="stable")
    expected = ordered.groupby("g")["v"].pct_change(n, fill_method=None).replace([math.inf, -math.inf], math.nan)
    expected = expected.where(ordered["g"].notna()).sort_index()
    assert made.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


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
