"""``Ewm`` against pandas' ``ewm(halflife=…, adjust=True)`` one row later, and a loop."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Ewm, FeatureSet

some = settings(max_examples=50, deadline=None)
number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["u", "v"])), st.integers(0, 30), number), max_size=18)


def frame_of(rows):
    g, t, x = zip(*rows, strict=True) if rows else ((), (), ())
    return pd.DataFrame(
        {"g": pd.Series(g, dtype=object), "t": pd.Series(t, dtype="int64"), "x": pd.Series(x, dtype="float64")}
    )


def by_pandas(frame, half_life):
    result = pd.Series(math.nan, index=frame.index)
    ordered = frame.sort_values("t", kind="stable")
    for key in ordered["g"].dropna().unique():
        group = ordered[ordered["g"] == key]
        timed = {"times": pd.to_datetime(group["t"], unit="s")} if isinstance(half_life, str) else {}
        result[group.index] = group["x"].ewm(halflife=half_life, adjust=True, **timed).mean().shift().to_numpy()
    return result.tolist()


@some
@given(rows, st.sampled_from([0.5, 1, 3, 40]))
def test_half_lives_in_rows_equal_pandas(data, half_life):
    frame = frame_of(data)
    feature = Ewm("x", half_life=half_life, by="g", order="t")
    made = feature.fit_transform(frame)[feature.outputs[0]]
    assert made.tolist() == pytest.approx(by_pandas(frame, half_life), rel=1e-9, abs=1e-6, nan_ok=True)


@some
@given(rows, st.sampled_from(["1s", "2500ms", "1min"]))
def test_half_lives_in_time_equal_pandas_where_no_times_are_equal(data, half_life):
    frame = frame_of(data).drop_duplicates(["g", "t"], ignore_index=True)
    feature = Ewm("x", half_life=half_life, by="g", order="t")
    made = feature.fit_transform(frame)[feature.outputs[0]]
    assert made.tolist() == pytest.approx(by_pandas(frame, half_life), rel=1e-9, abs=1e-6, nan_ok=True)


@some
@given(rows)
def test_rows_at_the_same_time_do_not_see_each_other(data):
    frame = frame_of(data)
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
        assert made.tolist() == pytest.approx(by_pandas(frame, half_life), rel=1e-13, nan_ok=True)


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


def test_test_rows_see_the_tail_of_the_past():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.integers(0, 4, 80), "t": np.arange(80), "x": rng.normal(size=80)})
    past, new = frame.iloc[:50], frame.iloc[50:].iloc[::-1]
    fs = FeatureSet([Ewm("x", half_life=[2, "9s"], by="g", order="t")])
    made = fs.fit(past).transform(new, history=past)
    pd.testing.assert_frame_equal(made, fs.fit_transform(pd.concat([past, new])).iloc[50:])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"half_life": 0}, "half_life=0"),
        ({"half_life": [1, -2.0]}, "half_life=-2.0"),
        ({"half_life": math.nan}, "half_life=nan"),
        ({"half_life": []}, "no half_life"),
        ({"half_life": "soon", "order": "t"}, "soon"),
        ({"half_life": "7D"}, "one order column"),
    ],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(FastrecError, match=words) as caught:
        Ewm("x", **options)
    assert "Ewm" in str(caught.value)
    assert caught.value.remedy
