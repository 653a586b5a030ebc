from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Log1p


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.floats(-0.999, 1e300), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=20))
def test_it_equals_numpy(numbers):
    made = Log1p("x").fit_transform(pd.DataFrame({"x": numbers}))["log1p_x"].to_numpy()
    np.testing.assert_allclose(made, np.log1p(numbers), rtol=1e-14)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_the_signed_form_is_odd_and_keeps_the_order(numbers):
    made = Log1p(["x"], signed=True).fit_transform(pd.DataFrame({"x": numbers}))["signed_log1p_x"].to_numpy()
    for x, y in zip(numbers, made, strict=True):
        assert math.isnan(y) if math.isnan(x) else y == pytest.approx(math.copysign(math.log1p(abs(x)), x))


@pytest.mark.parametrize("bad", [-1.0, -2.5, -math.inf])
def test_a_value_without_a_logarithm_is_named(bad):
    with pytest.raises(FastrecError, match="Log1p") as caught:
        Log1p(["a", "x"]).fit_transform(pd.DataFrame({"a": [1, 2, 3], "x": [0.0, None, bad]}))
    assert (caught.value.column, caught.value.row) == ("x", 2)
    assert "signed=True" in caught.value.remedy
