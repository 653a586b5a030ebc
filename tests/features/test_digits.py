from __future__ import annotations

import math
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Digits, RoundTo

cents = st.integers(-10_000_000, 10_000_000)


def last(text, digits, decimals):
    """The last digits of a number's decimal text."""
    cut = abs(Decimal(text)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN)
    return int(f"{cut:f}".replace(".", "")[-digits:])


@settings(max_examples=80, deadline=None)
@given(st.lists(cents, min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 3))
def test_prices_read_as_they_are_written(prices, digits, decimals):
    written = [str(Decimal(p).scaleb(-2)) for p in prices]
    for dtype in ("float64", "float32") if max(map(abs, prices)) < 100_000 else ("float64",):
        frame = pd.DataFrame({"x": pd.Series([float(w) for w in written], dtype=dtype)})
        feature = Digits("x", digits, decimals=decimals)
        made = feature.fit_transform(frame)[feature.outputs[0]].tolist()
        assert made == [last(w, digits, decimals) for w in written]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(1, 18), st.integers(0, 9))
def test_integers_are_exact(numbers, digits, decimals):
    feature = Digits("x", digits, decimals=decimals)
    made = feature.fit_transform(pd.DataFrame({"x": pd.Series(numbers, dtype="int64")}))[feature.outputs[0]]
    assert made.tolist() == [abs(n) * 10**decimals % 10**digits for n in numbers]


def test_what_has_no_digits_is_missing():
    frame = pd.DataFrame({"x": [math.nan, math.inf, -math.inf, 7.0], "i": pd.array([None, 12, -34, 5], dtype="Int64")})
    made = Digits(["x", "i"]).fit_transform(frame)
    assert made["last1_x"].isna().tolist() == [True, True, True, False]
    assert made["last1_i"].tolist() == [pd.NA, 2, 4, 5]


def test_numbers_beyond_the_decimals_are_cut_not_rounded():
    frame = pd.DataFrame({"x": [19.99, 0.999, 1.05, 2.675]})
    assert Digits("x").fit_transform(frame)["last1_x"].tolist() == [9, 0, 1, 2]
    assert Digits("x", 3, decimals=2).fit_transform(frame)["last3dp2_x"].tolist() == [999, 99, 105, 267]


@pytest.mark.parametrize(("digits", "decimals"), [(0, 0), (19, 0), (1, -1), (1, 10)])
def test_digits_that_cannot_be(digits, decimals):
    with pytest.raises(FastrecError, match="Digits"):
        Digits("x", digits, decimals=decimals)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20), st.integers(1, 10**6))
def test_integers_round_exactly(numbers, to):
    feature = RoundTo("x", to, stats=["value", "gap", "is_round"])
    made = feature.fit_transform(pd.DataFrame({"x": numbers}))
    for number, value, gap, is_round in made.itertuples(index=False):
        expected = round(Fraction(number, to)) * to  # halves to even
        assert (value, gap, is_round) == (expected, float(number - expected), number % to == 0)
    assert made[feature.outputs[0]].dtype == "int64"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(cents, min_size=1, max_size=20), st.sampled_from(["0.01", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "10"])
)
def test_prices_round_as_they_are_written(prices, to):
    feature = RoundTo("x", float(to), stats=["value", "is_round"])
    frame = pd.DataFrame({"x": [float(Decimal(p).scaleb(-2)) for p in prices]})
    made = feature.fit_transform(frame)
    for price, (_, value, is_round) in zip(prices, made.itertuples(index=False), strict=True):
        steps = Fraction(price, 100) / Fraction(to)
        assert is_round == (steps.denominator == 1)
        if (2 * steps).denominator != 1 or is_round:  # not a half: those fall as the float does
            assert value == pytest.approx(float(round(steps) * Fraction(to)), rel=1e-15)


def test_short_steps_make_short_numbers():
    made = RoundTo("x", 0.1, stats=["value", "gap"]).fit_transform(pd.DataFrame({"x": [0.3, 0.31]}))
    assert made["round0.1_x"].tolist() == [0.3, 0.3]
    assert made["roundgap0.1_x"].tolist() == pytest.approx([0, 0.01])
    assert made["roundgap0.1_x"].tolist()[0] == 0


def test_the_largest_numbers_are_their_own_multiples():
    frame = pd.DataFrame({"x": [1.7e308, -1.7e308, 2.0**60]})
    made = RoundTo("x", 0.05, stats=["value", "gap", "is_round"]).fit_transform(frame)
    assert made.iloc[:, 1:].values.tolist() == [[x, 0.0, True] for x in frame["x"]]


def test_several_steps_and_what_has_no_multiple():
    frame = pd.DataFrame({"x": [math.inf, math.nan, 12.0], "i": pd.array([None, 7, -7], dtype="Int64")})
    made = RoundTo(["x", "i"], [5, 0.5], stats=["value", "gap", "is_round"]).fit_transform(frame)
    assert list(made)[2:5] == ["round5_x", "roundgap5_x", "isround5_x"]
    assert made["round5_x"].tolist()[::2] == [math.inf, 10]
    assert made["roundgap5_x"].isna().tolist() == made["isround5_x"].isna().tolist() == [True, True, False]
    assert made["round5_i"].tolist() == [pd.NA, 5, -5]
    assert made["round0.5_i"].tolist()[1:] == [7.0, -7.0]
    assert made["isround0.5_i"].tolist() == [pd.NA, True, True]
    edge = pd.DataFrame({"i": [2**63 - 1, -(2**63)]})
    assert RoundTo("i", 10).fit_transform(edge)["round10_i"].tolist() == [(2**63 - 1) // 10 * 10, -(2**63) + 8]


@pytest.mark.parametrize(
    "options", [{"to": 0}, {"to": -5}, {"to": math.nan}, {"to": math.inf}, {"to": []}, {"to": 1, "stats": "x"}]
)
def test_steps_that_cannot_be(options):
    with pytest.raises(FastrecError, match="RoundTo"):
        RoundTo("x", **options)


def test_numpy_rounds_the_same():
    numbers = np.random.default_rng(0).normal(size=500) * 50
    made = RoundTo("x", 1).fit_transform(pd.DataFrame({"x": numbers}))["round1_x"]
    np.testing.assert_array_equal(made, np.round(numbers))
