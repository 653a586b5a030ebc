from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, FillMissing, Normalize, TargetEncode, number
from fastrec.table import Table


def test_it_equals_scikit_learn():
    rng = np.random.default_rng(0)
    train, new = (pd.DataFrame(rng.normal(size=(200, 2)) * [3, 1e6] + [5, -1e6], columns=["a", "b"]) for _ in "ab")
    scaler = StandardScaler().fit(train.to_numpy())
    feature = Normalize(["a", "b"]).fit(train)
    for frame in (train, new):
        made = feature.transform(frame)[["norm_a", "norm_b"]].to_numpy()
        np.testing.assert_allclose(made, scaler.transform(frame.to_numpy()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("base", [1e8, 1.7e18, -1e15])
def test_digits_survive_a_large_mean(base):
    step = max(1.0, abs(base) * 2**-50)
    frame = pd.DataFrame({"x": [base - step, base + step] * 5000})
    made = Normalize("x").fit_transform(frame)["norm_x"]
    assert made.to_numpy() == pytest.approx(np.array([-1.0, 1.0] * 5000), abs=1e-6)


def test_the_mean_has_no_rounding_of_a_long_sum():
    made = Normalize("x").fit_transform(pd.DataFrame({"x": [1e8 - 1, 1e8, 1e8 + 1] * 3001}))["norm_x"]
    assert made.to_numpy() == pytest.approx(np.array([-(1.5**0.5), 0.0, 1.5**0.5] * 3001), rel=1e-13, abs=1e-13)


def test_partitions_of_a_large_mean_merge_without_loss():
    feature = Normalize("x")
    parts = [pd.DataFrame({"x": [1e8 - 1]}), pd.DataFrame({"x": [1e8 + 1]}), pd.DataFrame({"x": [None]}, dtype=float)]
    states = [feature.collect(Table.read(p)) for p in parts]
    feature.learn(feature.merge(states[2], feature.merge(states[0], states[1])))
    assert feature.transform(pd.DataFrame({"x": [1e8 - 1, 1e8, 1e8 + 2]}))["norm_x"].tolist() == [-1, 0, 2]


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


def test_numbers_that_overflow_a_sum():
    made = Normalize("x").fit_transform(pd.DataFrame({"x": [1e308, 1.1e308, 1.2e308]}))["norm_x"]
    assert not made.isna().any()


def test_selectors_and_generators():
    frame = pd.DataFrame({"id": range(20), "k": ["a", "b"] * 10, "x": range(20), "y": [0, 1] * 10})
    made = FeatureSet([Normalize(number()), Normalize(TargetEncode("k", "y"))], key="id").fit_transform(frame)
    assert list(made)[4:] == ["norm_x", "norm_te_k__y"]


def test_a_scope_that_is_none():
    with pytest.raises(FastrecError, match="Normalize"):
        Normalize("x", scope="test")


def test_of_filled_columns_the_values_are_scaled_and_not_the_flags():
    frame = pd.DataFrame({"v": [1.0, np.nan, 3.0, 5.0]})
    filled = FillMissing("v")
    made = FeatureSet([Normalize(filled), filled]).fit_transform(frame)
    assert made["v_na"].tolist() == [False, True, False, False]
    assert "norm_v_na" not in made
    np.testing.assert_allclose(made["norm_filled_v"], StandardScaler().fit_transform(made[["filled_v"]]).ravel())
