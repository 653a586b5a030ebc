from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import GroupPick

some = settings(max_examples=40, deadline=None)
value = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), value, value), max_size=15)


def frame_of(rows):
    g, x, t = zip(*rows, strict=True) if rows else ((), (), ())
    return pd.DataFrame(
        {"g": pd.Series(g, dtype=object), "x": pd.Series(x, dtype="float64"), "t": pd.Series(t, dtype="float64")}
    )


def close(a, b):
    assert list(a) == pytest.approx(list(b), rel=1e-9, abs=1e-9, nan_ok=True)


@some
@given(rows, st.integers(1, 3), st.booleans())
def test_picked_values_equal_a_loop(data, nth, last):
    frame = frame_of(data)
    pick = GroupPick("x", by="g", order="t", nth=nth, last=last)
    expected = []
    for g, _, _ in data:
        usable = [i for i, r in enumerate(data) if g is not None and r[0] == g and None not in (r[1], r[2])]
        usable.sort(key=lambda i: (data[i][2], i), reverse=last)
        expected.append(data[usable[nth - 1]][1] if len(usable) >= nth else math.nan)
    close(pick.fit_transform(frame)[pick.outputs[0]], expected)


def test_names_say_which_row_is_picked():
    names = [GroupPick("x", by="g", order="t", **o).outputs[0] for o in ({}, {"nth": 2}, {"last": True}, {"name": "w"})]
    assert names == ["first_x__g", "first2_x__g", "last_x__g", "w_x__g"]


def test_a_place_that_cannot_be():
    with pytest.raises(FastrecError, match="GroupPick"):
        GroupPick("x", by="g", order="t", nth=0)
