from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Cross, NUnique

key = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
rows = st.lists(st.tuples(key, key, st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=15)


@settings(max_examples=40, deadline=None)
@given(rows, rows)
def test_it_equals_a_loop(train, new):
    first, second = (pd.DataFrame(r, columns=["g", "h", "v"]).astype({"g": object, "h": object}) for r in (train, new))
    first["v"], second["v"] = first["v"].astype("Int64"), second["v"].astype("Int64")
    one, two = NUnique(["h", "v"], by="g").fit(first), NUnique("v", by=["g", "h"]).fit(first)
    for frame, given_rows in ((first, train), (second, new)):
        made = two.transform(one.transform(frame))
        for i, (g, h, _) in enumerate(given_rows):
            values = [{r[c] for r in train if r[0] == g and g is not None} - {None} for c in (1, 2)]
            both = {r[2] for r in train if r[:2] == (g, h) and None not in (g, h)} - {None}
            found = made.loc[i, ["nunique_h__g", "nunique_v__g", "nunique_v__g__h"]].tolist()
            assert found == [len(values[0]), len(values[1]), len(both)]


def test_values_of_any_kind():
    frame = pd.DataFrame(
        {
            "g": ["x"] * 4,
            "big": pd.array([2**53, 2**53 + 1, 2**53 + 1, None], dtype="Int64"),
            "zero": [0.0, -0.0, float("nan"), float("inf")],
            "time": pd.to_datetime(["2024-01-01", "2024-01-02", None, "2024-01-01"]),
            "flag": [True, True, False, True],
        }
    )
    made = NUnique(["big", "zero", "time", "flag", Cross("flag", "zero")], by="g").fit_transform(frame)
    assert made.iloc[0, 5:].tolist() == [2, 2, 2, 2, 2]


def test_unlabeled_rows_count_where_asked():
    train, test = pd.DataFrame({"g": [1, 1], "v": [1, 1]}), pd.DataFrame({"g": [1, 2], "v": [5, 5]})
    both = NUnique("v", by="g", scope="all")
    assert both.fit_transform(train, unlabeled=test)["nunique_v__g"].tolist() == [2, 2]
    assert both.transform(test)["nunique_v__g"].tolist() == [2, 1]
    assert NUnique("v", by="g").fit(train, unlabeled=test).transform(test)["nunique_v__g"].tolist() == [1, 0]


@pytest.mark.parametrize("options", [{"by": []}, {"by": "g", "scope": "test"}])
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="NUnique"):
        NUnique("v", **options)
