"""Numbers filled, bounded and scaled: ``Clip``, ``FillMissing``, ``Log1p``, ``Normalize``."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from fastrec.features import Clip, FeatureSet, FillMissing, Log1p, Normalize, TargetEncode, number

clipped = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=20)


@given(clipped, st.integers(-9, 0), st.integers(0, 9))
def test_clips_given_bounds_equal_numpy(numbers, low, high):
    frame = pd.DataFrame({"x": numbers})
    for bounds in ((low, high), (low, None), (None, high)):
        made = Clip("x", *bounds).fit_transform(frame)["clip_x"]
        np.testing.assert_array_equal(made.to_numpy(), frame["x"].clip(*bounds).to_numpy())


@given(clipped, clipped)
def test_learned_bounds_are_training_quantiles(train, new):
    known = [v for v in train if not math.isnan(v)]
    feature = Clip("x", quantiles=(0.2, 0.7)).fit(pd.DataFrame({"x": train}))
    made = feature.transform(pd.DataFrame({"x": new}))["clip_x"].to_numpy()
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(known, [0.2, 0.7]) if known else (-math.inf, math.inf)
        lower = np.quantile(known, [0.2, 0.7], method="lower") if known else (low, high)
    # Between a number and infinity numpy's answer is infinity or none, ours the number.
    low, high = (q if math.isfinite(q) else below for q, below in zip((low, high), lower, strict=True))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(made, np.clip(new, low, high), rtol=1e-12, atol=1e-300)


def test_clipped_whole_numbers_stay_exact_and_each_column_has_its_own_bounds():
    big = 2**53 + 1
    frame = pd.DataFrame({"x": pd.array([big, None, -big, 7], dtype="Int64")})
    made = Clip("x", 0).fit_transform(frame)["clip_x"]
    assert str(made.dtype) == "Int64"
    assert made.tolist() == [big, pd.NA, 0, 7]
    assert Clip("x", high=big - 2).transform(frame)["clip_x"].tolist()[0] == big - 2
    assert Clip("x", high=1e30).transform(frame)["clip_x"].tolist()[0] == big
    half = Clip("x", high=1.5).transform(frame)["clip_x"]
    assert half.dtype == "float64"
    assert half.tolist()[2:] == [-float(big), 1.5]
    tables = [pa.table({"x": pa.array([1, other], pa.int32())}) for other in (None, 2)]
    assert {Clip("x", 0, 1).fit_transform(t).schema.field("clip_x").type for t in tables} == {pa.int64()}
    made = Clip(["a", "b"], quantiles=(0, 0.5)).fit_transform({"a": [0.0, 1.0, 100.0], "b": [-5.0, 0.0, 5.0]})
    assert (made["clip_a"].tolist(), made["clip_b"].tolist()) == ([0, 1, 1], [-5, 0, 0])


filled = st.lists(st.one_of(st.just(math.nan), st.integers(-5, 5).map(float), st.floats(-1e6, 1e6)), max_size=20)


@given(filled.filter(lambda v: any(x == x for x in v)), filled, st.sampled_from(["median", "mean", "mode"]))
def test_filled_numbers_equal_scikit_learn(train, new, strategy):
    frames = [pd.DataFrame({"x": pd.Series(v, dtype="float64")}) for v in (train, new)]
    word = {"mode": "most_frequent"}.get(strategy, strategy)
    imputer = SimpleImputer(strategy=word).fit(frames[0].to_numpy())
    feature = FillMissing("x", strategy).fit(frames[0])
    for frame in frames:
        made = feature.transform(frame)
        expected = imputer.transform(frame.to_numpy())[:, 0] if len(frame) else []
        assert made["filled_x"].to_numpy() == pytest.approx(expected, rel=1e-12, abs=1e-9)
        assert made["x_na"].tolist() == frame["x"].isna().tolist()


def test_constants_and_columns_without_a_value():
    frame = pd.DataFrame({"a": [None, 1.0], "b": [math.nan, math.nan]})
    made = FillMissing(["a", "b"], "constant", value={"a": -1}, add_col=False).fit_transform(frame)
    assert list(made) == ["a", "b", "filled_a", "filled_b"]
    assert (made["filled_a"].tolist(), made["filled_b"].tolist()) == ([-1, 1], [0, 0])
    for strategy in ("median", "mean", "mode"):
        assert FillMissing("b", strategy, value=7).fit_transform(frame)["filled_b"].tolist() == [7, 7]
    feature = FillMissing("x").fit(pd.DataFrame({"x": [1, 2, 9]}))  # first missing when it is transformed
    made = feature.transform(pd.DataFrame({"x": pd.array([None, 4], dtype="Int64")}))
    assert (made["filled_x"].tolist(), made["x_na"].tolist()) == ([2, 4], [True, False])


def test_infinite_values_are_filled_and_count():
    frame = pd.DataFrame({"x": [math.inf, 1.0, 3.0, None, -math.inf, math.inf]})
    assert FillMissing("x", "mean").fit_transform(frame)["filled_x"][3] == 2
    assert FillMissing("x", "mode").fit_transform(frame)["filled_x"][3] == math.inf
    assert FillMissing("x").fit_transform(frame)["filled_x"].tolist()[3:] == [3, -math.inf, math.inf]


def test_among_equally_frequent_values_the_smallest_whatever_the_order():
    for order in ([3.0, 1.0, 1.0, 3.0, None], [1.0, 3.0, 3.0, 1.0, None]):
        assert FillMissing("x", "mode").fit_transform(pd.DataFrame({"x": order}))["filled_x"][4] == 1


@given(st.lists(st.one_of(st.floats(-0.999, 1e300), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=20))
def test_logarithms_equal_numpy(numbers):
    made = Log1p("x").fit_transform(pd.DataFrame({"x": numbers}))["log1p_x"].to_numpy()
    np.testing.assert_allclose(made, np.log1p(numbers), rtol=1e-14)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_the_signed_form_is_odd_and_keeps_the_order(numbers):
    made = Log1p(["x"], signed=True).fit_transform(pd.DataFrame({"x": numbers}))["signed_log1p_x"].to_numpy()
    for x, y in zip(numbers, made, strict=True):
        assert math.isnan(y) if math.isnan(x) else y == pytest.approx(math.copysign(math.log1p(abs(x)), x))


@pytest.mark.parametrize("base", [1e8, 1.7e18, -1e15])
def test_digits_survive_a_large_mean(base):
    step = max(1.0, abs(base) * 2**-50)
    frame = pd.DataFrame({"x": [base - step, base + step] * 5000})
    made = Normalize("x").fit_transform(frame)["norm_x"]
    assert made.to_numpy() == pytest.approx(np.array([-1.0, 1.0] * 5000), abs=1e-6)


def test_the_mean_of_numbers_near_the_largest_is_finite():
    made = FillMissing("x", "mean").fit_transform(pd.DataFrame({"x": [1e308, 1.2e308, -1.5e308, 1.1e308, None]}))
    assert made["filled_x"].tolist()[-1] == pytest.approx(4.5e307, rel=1e-12)
    made = Normalize("x").fit_transform(pd.DataFrame({"x": [1e308, 1.1e308, 1.2e308]}))["norm_x"]
    assert not made.isna().any()


@pytest.mark.parametrize("value", [0.1, 1e8 + 0.3, -7.0])
def test_a_constant_column_becomes_zero(value):
    feature = Normalize("x").fit(pd.DataFrame({"x": [value] * 7}))
    made = feature.transform(pd.DataFrame({"x": [value, value + 0.5]}))["norm_x"].tolist()
    assert made == [0, pytest.approx(0.5)]


def test_missing_and_infinite_values_do_not_count():
    frame = pd.DataFrame({"x": [1.0, 3.0, math.nan, math.inf, -math.inf]})
    made = Normalize("x").fit_transform(frame)["norm_x"].tolist()
    assert made[:2] == [-1, 1]
    assert math.isnan(made[2])
    assert made[3:] == [math.inf, -math.inf]
    blank = Normalize("x").fit(pd.DataFrame({"x": [math.nan]}))
    assert blank.transform(pd.DataFrame({"x": [2.5]}))["norm_x"].tolist() == [2.5]


def test_selectors_generators_and_of_filled_columns_the_values_not_the_flags_are_scaled():
    frame = pd.DataFrame({"id": range(20), "k": ["a", "b"] * 10, "x": range(20), "y": [0, 1] * 10})
    made = FeatureSet([Normalize(number()), Normalize(TargetEncode("k", "y"))], key="id").fit_transform(frame)
    assert list(made)[4:] == ["norm_x", "norm_te_k__y"]
    frame = pd.DataFrame({"v": [1.0, np.nan, 3.0, 5.0]})
    filled = FillMissing("v")
    made = FeatureSet([Normalize(filled), filled]).fit_transform(frame)
    assert made["v_na"].tolist() == [False, True, False, False]
    assert "norm_v_na" not in made
    np.testing.assert_allclose(made["norm_filled_v"], StandardScaler().fit_transform(made[["filled_v"]]).ravel())
