from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, SvdEncode, VectorColumns, number
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


def test_selected_columns_and_those_that_are_not_normalised():
    frame = pd.DataFrame({"a": [1, 2], "b": pd.array([3, None], dtype="Int64"), "c": [True, False]})
    made = VectorColumns(["a", "b", "c"], name="v", normalise=False).fit_transform(frame)["v"]
    assert made[0].tolist() == [1.0, 3.0, 1.0]
    assert made[1] is None
    frame = pd.DataFrame({"a": [3.0], "t": ["x"], "b": [4]})
    made = VectorColumns(number(), name="v").fit_transform(frame)
    assert made["v"][0].tolist() == [0.6, 0.8]


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


item = st.one_of(st.none(), st.sampled_from("abcde"))
user = st.one_of(st.none(), st.integers(0, 4))
events = st.lists(st.tuples(item, user, st.integers(0, 3)), max_size=25)


def frame(rows):
    items, users, weights = ([r[i] for r in rows] for i in range(3))
    return pa.table(
        {
            "item": pa.array(items, pa.string()),
            "user": pa.array(users, pa.int64()),
            "w": pa.array(weights, pa.float64()),
        }
    )


def matrix_of(rows, *, weighted=False, log=False):
    """The co-occurrence matrix by a loop: items and their rows."""
    total = Counter()
    for i, u, w in rows:
        if i is not None and u is not None:
            total[i, u] += w if weighted else 1
    items, users = sorted({i for i, _ in total}), sorted({u for _, u in total})
    matrix = np.array([[float(total[i, u]) for u in users] for i in items]).reshape(len(items), len(users))
    return items, np.log1p(matrix) if log else matrix


def vectors_of(feature, items):
    made = feature.transform(pa.table({"item": pa.array(items, pa.string())}))
    return np.stack([made[n].to_numpy() for n in feature.outputs], 1)


@given(events, st.booleans(), st.booleans())
def test_inner_products_are_those_of_the_matrix(rows, weighted, log):
    """With all dimensions U S holds every inner product of the matrix's rows, whatever the basis."""
    feature = SvdEncode("item", "user", dims=6, weight="w" if weighted else None, log=log).fit(frame(rows))
    items, matrix = matrix_of(rows, weighted=weighted, log=log)
    made = vectors_of(feature, items)
    np.testing.assert_allclose(made @ made.T, matrix @ matrix.T, atol=1e-9)
    sizes = np.linalg.norm(made, axis=0)
    expected = np.zeros(6)
    if matrix.size:
        found = np.linalg.svd(matrix, compute_uv=False)
        expected[: len(found)] = found
    np.testing.assert_allclose(sizes, expected, atol=1e-7 * max(1, expected[0]))


def test_signs_by_hand_and_components_past_the_rank():
    # Items a and b are with the same user, 2 and 1 times; c with another, 5 times.
    rows = [("a", 1, 1)] * 2 + [("b", 1, 1)] + [("c", 2, 1)] * 5
    made = vectors_of(SvdEncode("item", "user", dims=3).fit(frame(rows)), ["a", "b", "c", "new", None])
    np.testing.assert_allclose(made, [[0, 2, 0], [0, 1, 0], [5, 0, 0], [0, 0, 0], [0, 0, 0]], atol=1e-9)
    rows = [(i, u, 1) for i in "abc" for u in range(4) for _ in range(u + 1)]
    made = vectors_of(SvdEncode("item", "user", dims=3).fit(frame(rows)), list("abc"))
    np.testing.assert_allclose(made[:, 0], 30**0.5)
    assert not made[:, 1:].any()


def test_lists_of_other_keys_and_their_rows_weight():
    lists = pd.DataFrame({"item": ["a", "b", "a", None], "tags": [["x", "y", "x"], None, [None, "y"], ["z"]]})
    plain = pd.DataFrame({"item": list("aaaa"), "tags": list("xyxy")})
    a, b = (SvdEncode("item", "tags", dims=2).fit(f) for f in (lists, plain))
    assert a.transform(lists[["item"]])["svd0_item__tags"].tolist() == pytest.approx([8**0.5, 0, 8**0.5, 0])
    assert vectors_of(b, ["a"])[0, 0] == pytest.approx(8**0.5)
    rows = pd.DataFrame({"item": ["a", "b", "b"], "tags": [["x", "y"], ["x"], ["y", "y"]], "w": [3, 0, 2]})
    feature = SvdEncode("item", "tags", dims=2, weight="w").fit(rows)
    made = vectors_of(feature, ["a", "b"])
    np.testing.assert_allclose(made @ made.T, [[18, 12], [12, 16]], atol=1e-9)  # a: x 3, y 3; b: y 4


def test_transform_needs_the_row_keys_alone():
    feature = SvdEncode("item", "user", weight="w").fit(frame([("a", 1, 2)]))
    assert FeatureSet([feature]).inputs == ["item"]
    assert feature.fit_only == ["user", "w"]
    assert SvdEncode("item", "user", scope="all").fit_only == []
    assert SvdEncode("item", "item").fit_only == []
