from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import CountEncode, FeatureSet, NaNPattern, matching

cell = st.tuples(
    st.one_of(st.none(), st.floats(-1, 1)),
    st.one_of(st.none(), st.text(max_size=2)),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.just(pd.Timestamp("2024-01-01"))),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=2)),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(cell, min_size=1, max_size=12))
def test_bits_equal_a_plain_loop(rows):
    kinds = ["float64", object, "boolean", "datetime64[ns]", object]
    frame = pd.DataFrame({f"c{i}": pd.Series([r[i] for r in rows], dtype=k) for i, k in enumerate(kinds)})
    made = NaNPattern(list(frame)).fit_transform(frame)["nan_pattern"].tolist()
    assert made == [sum((value is None) << i for i, value in enumerate(row)) for row in rows]


def test_generators_and_selectors_have_bits_too():
    frame = pd.DataFrame({"a": ["x", None], "b1": [None, 1.0], "b2": [1.0, None]})
    assert NaNPattern([CountEncode("a"), "b1"]).fit_transform(frame)["nan_pattern"].tolist() == [2, 0]
    fs = FeatureSet([NaNPattern(matching("^b"), name="gaps")])
    assert fs.fit_transform(frame)["gaps"].tolist() == [1, 2]


def test_the_widest_pattern_and_one_too_wide():
    names = [f"c{i}" for i in range(62)]
    frame = pd.DataFrame([[None] * 62, [1.0] * 62], columns=names, dtype="float64")
    assert NaNPattern(names).fit_transform(frame)["nan_pattern"].tolist() == [2**62 - 1, 0]
    for wrong in ([], [*names, "more"]):
        with pytest.raises(FastrecError, match="NaNPattern"):
            NaNPattern(wrong)
    with pytest.raises(FastrecError, match="NaNPattern"):
        NaNPattern(matching("c")).fit_transform(pd.DataFrame(1.0, index=[0], columns=[f"c{i}" for i in range(63)]))
