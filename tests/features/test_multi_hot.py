from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, MultiHot
from fastrec.table import Table

some = settings(max_examples=50, deadline=None)
tag = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "é", "🎉"]))
lists = st.lists(st.one_of(st.none(), st.lists(tag, max_size=5)), max_size=9)


def frame(values, kind=None):
    return pa.table({"x": pa.array(values, pa.list_(kind or pa.string()))})


def vectors(made, name="x_multihot"):
    return made[name].to_pylist()


@some
@given(lists, lists)
def test_given_values(train, new):
    values = ["🎉", "a", "never"]
    feature = MultiHot("x", values=values).fit(frame(train))
    made = feature.transform(frame(new))
    assert feature.outputs == ["x_has_🎉", "x_has_a", "x_has_never"]
    for value, name in zip(values, feature.outputs, strict=True):
        assert made.schema.field(name).type == pa.int8()
        assert made[name].to_pylist() == [int(value in (row or [])) for row in new]


@some
@given(lists, lists, st.integers(1, 4), st.integers(1, 3))
def test_learned_values_are_the_commonest(train, new, size, least):
    count = Counter(v for row in train for v in set(row or []) if v is not None)
    places = sorted((v for v in count if count[v] >= least), key=lambda v: (-count[v], v.encode()))[:size]
    feature = MultiHot("x", max_size=size, min_count=least).fit(frame(train))
    assert feature.learned == places
    made = feature.transform(frame(new))
    assert made.schema.field("x_multihot").type == pa.list_(pa.int8(), size)
    rows = [[int(v in (row or [])) for v in places] for row in new]
    assert vectors(made) == [row + [0] * (size - len(places)) for row in rows]


@some
@given(lists, lists)
def test_parts_learn_what_the_whole_does(a, b):
    feature = MultiHot("x", max_size=3)
    states = [feature.collect(Table.read(frame(v))) for v in (a, b, a + b)]
    whole = feature.finalize(states[2])
    for merged in (feature.merge(states[0], states[1]), feature.merge(states[1], states[0])):
        assert merged["keys"].columns[0].to_pylist() == states[2]["keys"].columns[0].to_pylist()
        assert merged["count"].tolist() == states[2]["count"].tolist()
        assert feature.finalize(merged)["place"].tolist() == whole["place"].tolist()


@pytest.mark.parametrize(
    ("kind", "rows", "values", "expected"),
    [
        (pa.int64(), [[2**53 + 1], [2**53], None], [2**53 + 1], [[1], [0], [0]]),
        (pa.float64(), [[1.0, None], [-0.0], [float("nan")]], [1, 0], [[1, 0], [0, 1], [0, 0]]),
        (pa.int8(), [[1, 2], [], None], [2.0, 1.0], [[1, 1], [0, 0], [0, 0]]),
        (pa.bool_(), [[True], [False, None], []], [True, False], [[1, 0], [0, 1], [0, 0]]),
        (pa.string(), [["a\x00b"], [""], ["a"]], ["", "a\x00b"], [[0, 1], [1, 0], [0, 0]]),
    ],
)
def test_values_of_any_type(kind, rows, values, expected):
    feature = MultiHot("x", values=values)
    made = feature.fit_transform(frame(rows, kind))
    assert [list(r) for r in zip(*(made[n].to_pylist() for n in feature.outputs))] == expected


def test_vectors_too_and_a_name():
    made = MultiHot("x", max_size=2, name="v").fit_transform({"x": np.array([[1, 2], [2, 3], [2, 2]])})
    assert np.stack(made["v_multihot"]).tolist() == [[1, 1], [1, 0], [1, 0]]


def test_unlabeled_rows_count_where_asked():
    train, test = frame([["a"], ["a"], ["b"]]), frame([["c"], ["c"], ["c"]])
    both = MultiHot("x", max_size=2, scope="all").fit(train, unlabeled=test)
    assert both.learned == ["c", "a"]
    assert MultiHot("x", max_size=2).fit(train, unlabeled=test).learned == ["a", "b"]


def test_every_library_gets_its_own_vectors_back(tmp_path):
    values = [["a", "b"], ["a"], None]
    fs = FeatureSet([MultiHot("x", max_size=3), MultiHot("x", values=["b"])])
    made = fs.fit_transform(pd.DataFrame({"x": pd.Series(values, dtype=object)}).set_axis([1, 1, 0]))
    assert made.index.tolist() == [1, 1, 0]
    assert [v.tolist() for v in made["x_multihot"]] == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert made["x_has_b"].dtype == "int8"
    fs.save(tmp_path / "fs")
    again = FeatureSet.load(tmp_path / "fs")
    polars = again.transform(pl.from_arrow(frame(values)))
    assert polars["x_multihot"].dtype == pl.Array(pl.Int8, 3)
    assert polars["x_multihot"].to_list() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    table = again.transform(Table.read(frame(values)))
    assert (table["x_multihot"].kind, tuple(table["x_multihot"].values.shape)) == ("vector", (3, 3))
    assert again.features[0].learned == ["a", "b"]


@pytest.mark.parametrize(
    "values", [[], ["a", "a"], [1, 1.0], ["a", 1], [None], ["a", None], [1.0, float("nan")], [[1]], [2**64]]
)
def test_bad_values_are_refused(values):
    with pytest.raises(FastrecError, match="MultiHot"):
        MultiHot("x", values=values)


@pytest.mark.parametrize("options", [{"max_size": 0}, {"scope": "test"}])
def test_bad_options_are_refused(options):
    with pytest.raises(FastrecError, match="MultiHot"):
        MultiHot("x", **options)


def test_lists_of_no_plain_values_are_named():
    with pytest.raises(FastrecError) as caught:
        MultiHot("x").fit(pa.table({"x": pa.array([None, [], [[1]]])}))
    assert "MultiHot" in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("x", 2)


def test_values_that_the_lists_cannot_hold_are_named():
    with pytest.raises(FastrecError, match="MultiHot"):
        MultiHot("x", values=["a"]).fit_transform(frame([[1]], pa.int64()))
