from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import CumCount

key = st.one_of(st.none(), st.sampled_from(["a", "b"]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(key, key, st.integers(0, 3)), min_size=1, max_size=15))
def test_it_equals_a_loop(rows):
    frame = pd.DataFrame(rows, columns=["x", "y", "t"]).astype({"x": object, "y": object})
    for by, order in ((["x"], "t"), (["x", "y"], "t"), (["y"], None)):
        made = CumCount(by, order=order).fit_transform(frame)["cumcount_" + "_x_".join(by)]
        place = [(r[2] if order else 0, i) for i, r in enumerate(rows)]
        keys = [tuple(r["xyt".index(b)] for b in by) for r in rows]
        for i in range(len(rows)):
            before = sum(k == keys[i] and p < place[i] for k, p in zip(keys, place, strict=True))
            assert made[i] == (0 if None in keys[i] else before)


def test_it_equals_pandas_and_sees_the_tail_of_training_rows():
    frame = pd.DataFrame({"u": [1, 2, 1, 1, 2], "t": [5, 1, 2, 3, 9]})
    made = CumCount("u", order="t").fit_transform(frame)["cumcount_u"]
    assert made.tolist() == frame.sort_values("t").groupby("u").cumcount().reindex(frame.index).tolist()
    later = pd.DataFrame({"u": [1, 3], "t": [10, 10]})
    assert CumCount("u", order="t").transform(later, history=frame)["cumcount_u"].tolist() == [3, 0]


def test_a_group_without_a_column():
    with pytest.raises(FastrecError, match="CumCount"):
        CumCount([])
