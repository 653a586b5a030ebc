from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Neighbours

some = settings(max_examples=25, deadline=None)
number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([0.5, 1e8, 1e8 + 1]))
rows = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), number, st.integers(0, 3)), min_size=1, max_size=12
)
WHAT = ["previous", "next", "diff_previous", "diff_next", "above", "below"]


def frame_of(data):
    g, x, t = zip(*data, strict=True)
    return pd.DataFrame({"g": pd.Series(g, dtype=object), "x": pd.Series(x, dtype="float64"), "t": t})


def by_loop(data, i, n):
    """Row ``i``'s neighbours, by looking at every row of its list."""
    g, x, _ = data[i]
    none = dict.fromkeys(WHAT, math.nan)
    if g is None:
        return none
    row = sorted((j for j, r in enumerate(data) if r[0] == g), key=lambda j: (data[j][2], j))
    at, own = row.index(i), math.nan if x is None else x
    before = data[row[at - n]][1] if at - n >= 0 else None
    after = data[row[at + n]][1] if at + n < len(row) else None
    known = [data[j][1] for j in row if data[j][1] is not None]
    before, after = (math.nan if v is None else v for v in (before, after))
    return {
        "previous": before,
        "next": after,
        "diff_previous": own - before,
        "diff_next": own - after,
        "above": min((v - own for v in known if v > own), default=math.nan),
        "below": min((own - v for v in known if v < own), default=math.nan),
    }


@some
@given(rows, st.integers(1, 3))
def test_neighbours_equal_a_loop(data, n):
    made = Neighbours("x", by="g", order="t", n=n, what=WHAT).fit_transform(frame_of(data))
    for i in range(len(data)):
        expected = by_loop(data, i, n)
        for what in WHAT:
            name = f"{what}_x__g" if what in ("above", "below") else f"{what}{n}_x__g"
            assert made[name][i] == pytest.approx(expected[what], rel=1e-12, nan_ok=True), what


def test_wide_integers_times_and_text():
    frame = pd.DataFrame(
        {
            "g": 1,
            "i": pd.array([2**53 + 1, 2**53, None, 2**62], dtype="Int64"),
            "t": pd.to_datetime(["2024-01-01 00:00:02", None, "2024-01-01 00:00:00", "2024-01-01 00:00:02"]),
            "w": ["a", "b", None, "c"],
        }
    )
    made = Neighbours(["i", "t"], by="g", what=["diff_previous", "above", "below"]).fit_transform(frame)
    assert made["diff_previous1_i__g"].tolist()[1] == -1.0
    assert made["above_i__g"].tolist()[:2] == [2.0**62 - (2**53 + 1), 1.0]
    assert made["below_i__g"].tolist()[0] == 1.0
    assert made["above_t__g"].tolist() == pytest.approx([math.nan, math.nan, 2.0, math.nan], nan_ok=True)
    assert made["below_t__g"].tolist() == pytest.approx([2.0, math.nan, math.nan, 2.0], nan_ok=True)
    words = Neighbours("w", by="g", n=[1, 2]).fit_transform(frame)
    assert [None if pd.isna(v) else v for v in words["next1_w__g"]] == ["b", None, "c", None]
    assert [None if pd.isna(v) else v for v in words["previous2_w__g"]] == [None, None, "a", "b"]


def test_looking_ahead_is_declared():
    assert Neighbours("x", by="g").uses_future
    assert Neighbours("x", by="g", what="diff_next").uses_future
    assert not Neighbours("x", by="g", what=["previous", "diff_previous", "above", "below"]).uses_future


@pytest.mark.parametrize("options", [{"what": "left"}, {"n": 0}, {"n": [1, -1]}])
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="Neighbours"):
        Neighbours("x", by="g", **options)
