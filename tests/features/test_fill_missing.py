from __future__ import annotations

import math
from statistics import median

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer

from fastrec.errors import FastrecError
from fastrec.features import FillMissing
from fastrec.table import Table

values = st.lists(st.one_of(st.just(math.nan), st.integers(-5, 5).map(float), st.floats(-1e6, 1e6)), max_size=20)


@settings(max_examples=50, deadline=None)
@given(values.filter(lambda v: any(x == x for x in v)), values, st.sampled_from(["median", "mean", "mode"]))
def test_it_equals_scikit_learn(train, new, strategy):
    frames = [pd.DataFrame({"x": pd.Series(v, dtype="float64")}) for v in (train, new)]
    word = {"mode": "most_frequent"}.get(strategy, strategy)
    imputer = SimpleImputer(strategy=word).fit(frames[0].to_numpy())
    feature = FillMissing("x", strategy).fit(frames[0])
    for frame in frames:
        made = feature.transform(frame)
        expected = imputer.transform(frame.to_numpy())[:, 0] if len(frame) else []
        assert made["filled_x"].to_numpy() == pytest.approx(expected, rel=1e-12, abs=1e-9)
        assert made["x_na"].tolist() == frame["x"].isna().tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(values, min_size=2, max_size=4))
def test_the_median_is_exact_whatever_the_partitions(parts):
    feature = FillMissing("x")
    states = [feature.collect(Table.read(pd.DataFrame({"x": pd.Series(p, dtype="float64")}))) for p in parts]
    merged = states[0]
    for state in states[1:]:
        merged = feature.merge(merged, state)
    feature.learn(merged)
    known = [v for p in parts for v in p if v == v]
    filled = feature.transform(pd.DataFrame({"x": [math.nan]}))["filled_x"].item()
    assert filled == pytest.approx(median(known) if known else 0, rel=1e-12)


def test_it_equals_fastai():
    from fastai.tabular.core import FillMissing as Fastai
    from fastai.tabular.core import TabularPandas

    frame = pd.DataFrame({"a": [1.0, None, 2.0, 8.0, None], "b": [None, 5.0, 5.0, 1.0, 2.0]})
    to = TabularPandas(frame.copy(), procs=[Fastai], cont_names=["a", "b"])
    made = FillMissing(["a", "b"]).fit_transform(frame)
    for name in "ab":
        assert made[f"filled_{name}"].tolist() == to.items[name].tolist()
        assert made[f"{name}_na"].tolist() == [bool(v) for v in to.items[f"{name}_na"]]


def test_constants_and_columns_without_a_value():
    frame = pd.DataFrame({"a": [None, 1.0], "b": [math.nan, math.nan]})
    made = FillMissing(["a", "b"], "constant", value={"a": -1}, add_col=False).fit_transform(frame)
    assert list(made) == ["a", "b", "filled_a", "filled_b"]
    assert (made["filled_a"].tolist(), made["filled_b"].tolist()) == ([-1, 1], [0, 0])
    for strategy in ("median", "mean", "mode"):
        assert FillMissing("b", strategy, value=7).fit_transform(frame)["filled_b"].tolist() == [7, 7]


def test_a_column_first_missing_when_it_is_transformed():
    feature = FillMissing("x").fit(pd.DataFrame({"x": [1, 2, 9]}))
    made = feature.transform(pd.DataFrame({"x": pd.array([None, 4], dtype="Int64")}))
    assert made["filled_x"].tolist() == [2, 4]
    assert made["x_na"].tolist() == [True, False]


def test_infinite_values():
    frame = pd.DataFrame({"x": [math.inf, 1.0, 3.0, None, -math.inf, math.inf]})
    assert FillMissing("x", "mean").fit_transform(frame)["filled_x"][3] == 2
    assert FillMissing("x", "mode").fit_transform(frame)["filled_x"][3] == math.inf
    assert FillMissing("x").fit_transform(frame)["filled_x"].tolist()[3:] == [3, -math.inf, math.inf]


def test_among_equally_frequent_values_the_smallest_whatever_the_order():
    for order in ([3.0, 1.0, 1.0, 3.0, None], [1.0, 3.0, 3.0, 1.0, None]):
        assert FillMissing("x", "mode").fit_transform(pd.DataFrame({"x": order}))["filled_x"][4] == 1


@pytest.mark.parametrize("options", [{"strategy": "max"}, {"value": {"other": 1}}, {"scope": "test"}])
def test_what_cannot_be(options):
    with pytest.raises(FastrecError, match="FillMissing"):
        FillMissing("x", **options)
