from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, VectorColumns, number
from fastrec.features.vectors import unit
from fastrec.table import Table

part = st.one_of(st.none(), st.floats(-1e300, 1e300), st.sampled_from([0.0, 1e8, 1e8 + 1, 5e-324, -1e-200]))
vectors = st.lists(st.lists(part, min_size=3, max_size=3), max_size=6)


def by_loop(row):
    """The unit vector, through exactly rounded hypotenuses of scaled parts; None where a part is missing."""
    if any(v is None for v in row):
        return None
    largest = max(abs(v) for v in row)
    scaled = [v / largest for v in row] if largest else row
    length = math.hypot(*scaled)
    return [v / length for v in scaled] if length else row


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert b is None or a == pytest.approx(b, rel=1e-14, abs=1e-300)


@settings(max_examples=60, deadline=None)
@given(vectors)
def test_columns_lists_and_vectors_give_the_same(rows):
    expected = [by_loop(r) for r in rows]
    apart = pa.table({n: pa.array([r[i] for r in rows], pa.float64()) for i, n in enumerate("abc")})
    made = VectorColumns(["a", "b", "c"], name="v").fit_transform(apart)
    assert made.schema.field("v").type == pa.list_(pa.float64(), 3)
    same(made["v"].to_pylist(), expected)
    lists = pa.table({"x": pa.array(rows, pa.list_(pa.float64()))})
    same(VectorColumns("x", dims=3).fit_transform(lists)["vector_x"].to_pylist(), expected)
    whole = pa.table({"x": pa.array([r if None not in r else None for r in rows], pa.list_(pa.float64(), 3))})
    same(VectorColumns("x").fit_transform(whole)["vector_x"].to_pylist(), expected)


def test_without_normalising_only_the_form_changes():
    frame = pd.DataFrame({"a": [1, 2], "b": pd.array([3, None], dtype="Int64"), "c": [True, False]})
    made = VectorColumns(["a", "b", "c"], name="v", normalise=False).fit_transform(frame)["v"]
    assert made[0].tolist() == [1.0, 3.0, 1.0]
    assert made[1] is None


def test_infinite_parts_point_the_way():
    rows = [[math.inf, 5.0], [-math.inf, math.inf], [1e308, 1e308], [0.0, 0.0], [5e-324, 0.0]]
    made = unit(torch.tensor(rows, dtype=torch.float64))
    half = math.sqrt(0.5)
    np.testing.assert_allclose(made, [[1, 0], [-half, half], [half, half], [0, 0], [1, 0]])


@pytest.mark.parametrize(
    ("kind", "wanted"), [(pa.float32(), pa.float32()), (pa.int8(), pa.float64()), (pa.float64(), pa.float64())]
)
def test_float32_stays_and_all_else_becomes_float64(kind, wanted):
    for holder in (pa.list_(kind), pa.list_(kind, 2)):
        frame = pa.table({"x": pa.array([[3, 4], None], pa.list_(pa.int8())).cast(pa.list_(kind)).cast(holder)})
        made = VectorColumns("x").fit_transform(frame)
        assert made.schema.field("vector_x").type == pa.list_(wanted, 2)
        assert made["vector_x"].to_pylist() == [pytest.approx([0.6, 0.8]), None]


def test_every_library_gets_its_own_vectors_back(tmp_path):
    values = [[3.0, 4.0], None, [0.0, 0.0]]
    expected = [[0.6, 0.8], None, [0.0, 0.0]]
    fs = FeatureSet([VectorColumns("x")])
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)}).set_axis([2, 2, 0])
    made = fs.fit_transform(frame)
    assert made.index.tolist() == [2, 2, 0]
    assert [v if v is None else v.tolist() for v in made["vector_x"]] == expected
    fs.save(tmp_path / "fs")
    again = FeatureSet.load(tmp_path / "fs")
    polars = again.transform(pl.DataFrame({"x": pl.Series(values, dtype=pl.List(pl.Float64))}))
    assert polars["vector_x"].dtype == pl.Array(pl.Float64, 2)
    assert polars["vector_x"].to_list() == expected
    table = again.transform(Table.read(pa.table({"x": pa.array(values)})))["vector_x"]
    assert table.values.tolist() == [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]
    assert table.is_missing().tolist() == [False, True, False]
    assert VectorColumns("vector_x", name="y").fit_transform(made)["y"].iloc[0].tolist() == pytest.approx([0.6, 0.8])
    array = again.transform({"x": np.array([[3.0, 4.0]])})["vector_x"]
    assert array[0].tolist() == [0.6, 0.8]
    past = again.transform(frame, history=frame.iloc[:1])  # rows of two frames, put together
    assert [v if v is None else v.tolist() for v in past["vector_x"]] == expected


def test_the_width_is_learned():
    train = pa.table({"x": pa.array([None, [1.0, 2.0]])})
    feature = VectorColumns("x").fit(train)
    kind = pa.list_(pa.float64(), 2)
    for n, frame in enumerate([train.slice(0, 0), train.slice(0, 1), pa.table({"x": pa.nulls(2)})]):
        made = feature.transform(frame)
        assert (made.schema.field("vector_x").type, made["vector_x"].to_pylist()) == (kind, [None] * n)
    blank = VectorColumns("x").fit(train.slice(0, 1))
    assert blank.transform(train)["vector_x"].to_pylist() == [None, pytest.approx([5**-0.5, 2 * 5**-0.5])]


def test_parts_of_the_rows_agree_on_the_width():
    feature = VectorColumns("x")
    two, three, none = (
        feature.collect(Table.read(pa.table({"x": pa.array(v, pa.list_(pa.float64()))})))
        for v in ([[1, 2]], [[1, 2, 3]], [None])
    )
    for a, b in ((two, none), (none, two), (two, two)):
        assert int(feature.merge(a, b)["dims"]) == 2
    with pytest.raises(FastrecError, match="VectorColumns"):
        feature.merge(two, three)


@pytest.mark.parametrize("kind", ["lists", "vectors"])
def test_ragged_vectors_are_named(kind):
    fitted = VectorColumns("x").fit(pa.table({"x": pa.array([[1.0, 2.0]])}))
    if kind == "lists":
        bad, row, length = pa.array([None, [1.0, 2.0], [1.0, 2.0, 3.0], [1.0]]), 2, 3
    else:
        bad, row, length = pa.array([None, [1.0], [1.0]], pa.list_(pa.float64(), 1)), 1, 1
    with pytest.raises(FastrecError, match="VectorColumns") as caught:
        fitted.transform(pa.table({"x": bad}))
    assert (caught.value.column, caught.value.row) == ("x", row)
    assert f"{length} numbers where 2" in str(caught.value)
    with pytest.raises(FastrecError, match="VectorColumns") as caught:
        VectorColumns("x", dims=4).fit_transform(pa.table({"x": pa.array([None, [1.0]])}))
    assert caught.value.row == 1


def test_lists_of_text_are_named():
    with pytest.raises(FastrecError, match="VectorColumns") as caught:
        VectorColumns("x").fit_transform(pa.table({"x": pa.array([None, ["a", "b"]])}))
    assert (caught.value.column, caught.value.row) == ("x", 1)


def test_selected_columns():
    frame = pd.DataFrame({"a": [3.0], "t": ["x"], "b": [4]})
    made = VectorColumns(number(), name="v").fit_transform(frame)
    assert made["v"][0].tolist() == [0.6, 0.8]


@pytest.mark.parametrize(
    ("cols", "options"), [(["a", "b"], {}), ([], {}), (["a", "b"], {"name": "v", "dims": 3}), ("a", {"dims": 0})]
)
def test_bad_options_are_refused(cols, options):
    with pytest.raises(FastrecError, match="VectorColumns"):
        VectorColumns(cols, **options)
