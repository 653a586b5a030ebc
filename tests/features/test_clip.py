from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Clip

values = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(-9, 0), st.integers(0, 9))
def test_given_bounds_equal_numpy(numbers, low, high):
    frame = pd.DataFrame({"x": numbers})
    for bounds in ((low, high), (low, None), (None, high)):
        made = Clip("x", *bounds).fit_transform(frame)["clip_x"]
        np.testing.assert_array_equal(made.to_numpy(), frame["x"].clip(*bounds).to_numpy())


@settings(max_examples=40, deadline=None)
@given(values, values)
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


def test_whole_numbers_stay_exact():
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


def test_each_column_has_its_own_bounds():
    frame = pd.DataFrame({"a": [0.0, 1.0, 100.0], "b": [-5.0, 0.0, 5.0]})
    made = Clip(["a", "b"], quantiles=(0, 0.5)).fit_transform(frame)
    assert made["clip_a"].tolist() == [0, 1, 1]
    assert made["clip_b"].tolist() == [-5, 0, 0]


def test_types_do_not_depend_on_missing_values():
    with_, without = pa.table({"x": pa.array([1, None], pa.int32())}), pa.table({"x": pa.array([1, 2], pa.int32())})
    kinds = {Clip("x", 0, 1).fit_transform(t).schema.field("clip_x").type for t in (with_, without)}
    assert kinds == {pa.int64()}


@pytest.mark.parametrize(
    "options",
    [
        {"low": 2, "high": 1},
        {"low": math.nan},
        {"quantiles": (0.5,)},
        {"quantiles": (0.9, 0.1)},
        {"quantiles": (-1, 0.5)},
        {"quantiles": (0.5, 1.5)},
        {"scope": "test"},
    ],
)
def test_what_cannot_be(options):
    with pytest.raises(FastrecError, match="Clip"):
        Clip("x", **options)
