from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, ListLength, ListSlice, MultiHot, Tokens, VectorColumns
from fastrec.table import Column, Table

LISTS = [["a", None], [], None, [None], ["b", "c", "d"]]


def lengths(frame, feature=None):
    made = Table.read((feature or ListLength("x")).fit_transform(frame))
    return made[made.names[-1]].to_arrow()


WITHIN = Column("list", torch.tensor([2, 5, 5, 7]), elements=Column("number", torch.arange(9)))
ARROW = pa.table({"x": pa.array([["no"], *LISTS, ["no"]])}).slice(1, 5)
VECTORS = pa.table({"x": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
FRAMES = {
    "lists": pa.table({"x": pa.array(LISTS, pa.list_(pa.string()))}),
    "a part of a frame": ARROW,
    "polars": pl.from_arrow(ARROW),
    "pandas": pd.DataFrame({"x": pd.Series(LISTS, dtype=object)}),
    "arrays": {"x": [np.array([1.0, 2.0]), np.array([]), None]},
    "lists that begin and end inside their elements": Table({"x": WITHIN}),
    "vectors": VECTORS,
    "missing values alone": pd.DataFrame({"x": [None, None]}),
}
LENGTHS = {
    "arrays": [2, 0, None],
    "lists that begin and end inside their elements": [3, 0, 2],
    "vectors": [2, None],
    "missing values alone": [None, None],
}


@pytest.mark.parametrize("name", FRAMES)
def test_lengths_of_lists_of_any_kind(name):
    found = lengths(FRAMES[name])
    assert (found.type, found.to_pylist()) == (pa.int64(), LENGTHS.get(name, [2, 0, None, 1, 3]))


def test_lists_that_another_makes_and_padded_ones_as_vectors():
    frame = pd.DataFrame({"t": ["one two", "", None], "x": [[1], [2, 3], []]})
    made = ListLength(["x", Tokens("t", "words")]).fit_transform(frame)
    assert made["length_x"].tolist() == [1, 2, 0]
    assert made["length_words_t"].tolist() == [2, 0, pd.NA]
    frame = pd.DataFrame({"x": [[3, 4, 9], [5], None]})
    made = VectorColumns(ListSlice("x", 0, 2, pad=0), name="v").fit_transform(frame)["v"]
    np.testing.assert_allclose(np.stack(made), [[0.6, 0.8], [1, 0], [0, 0]])


words = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=6)), max_size=7)
numbers = st.lists(st.one_of(st.none(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)), max_size=7)
bound = st.integers(-7, 7)


def sliced(values, kind, *args, **options):
    made = ListSlice("x", *args, **options).fit_transform(pa.table({"x": pa.array(values, pa.list_(kind))}))
    return made.column(made.num_columns - 1).combine_chunks()


@pytest.mark.parametrize(("lists", "kind"), [(words, pa.string()), (numbers, pa.int64())], ids=["text", "64 bits"])
@given(data=st.data(), start=bound, end=st.one_of(st.none(), bound))
def test_slices_are_pythons(lists, kind, data, start, end):
    values = data.draw(lists)
    found = sliced(values, kind, start, end)
    assert found.to_pylist() == [None if v is None else v[start:end] for v in values]
    assert found.type.value_type in (kind, pa.large_string())


@given(words, bound, st.one_of(st.none(), bound), st.sampled_from(["left", "right"]), st.sampled_from(["a", "zz"]))
@example([["a", "b"], ["c"]], -3, None, "left", "zz")
@example([["a", "b"], ["c"]], 1, 4, "right", "zz")
def test_padded_lists_have_the_whole_length(values, start, end, side, pad):
    from_one_end = (start < 0) == (end is None or end < 0)
    width = (0 if end is None else end) - start
    if not from_one_end or width <= 0:
        with pytest.raises(FastrecError, match="no length"):
            ListSlice("x", start, end, pad=pad)
        return
    found = sliced(values, pa.string(), start, end, pad=pad, pad_side=side).to_pylist()
    for value, row in zip(values, found, strict=True):
        rest = (value or [])[start:end]
        fill = [pad] * (width - len(rest))
        assert row == (rest + fill if side == "right" else fill + rest)
        assert len(row) == width


def test_list_slice_lists_that_begin_and_end_inside_their_elements():
    table = Table({"x": WITHIN})
    assert ListSlice("x", 1).fit_transform(table)["slice_1_end_x"].to_arrow().to_pylist() == [[3, 4], [], [6]]
    padded = ListSlice("x", 0, 2, pad=-1).fit_transform(table)["slice_0_2_x"]
    assert padded.to_arrow().to_pylist() == [[2, 3], [-1, -1], [5, 6]]


@pytest.mark.parametrize(
    ("kind", "values", "pad"),
    [
        (pa.int8(), [1, None], -128),
        (pa.uint8(), [1, None], 255),
        (pa.int64(), [2**53 + 1], -(2**63)),
        (pa.float32(), [0.5, None], 1),
        (pa.float64(), [0.1], 0.1),
        (pa.bool_(), [True, None], False),
        (pa.bool_(), [True], 1),
        (pa.int16(), [3], 4.0),
        (pa.string(), ["a", None], "a\x00🎉"),
        (pa.string(), [None], "a"),
        (pa.float64(), [None], 2.5),
        (pa.uint64(), [2**64 - 1], 0),
    ],
)
def test_a_pad_takes_the_elements_type(kind, values, pad):
    found = sliced([values, None], kind, 0, 3, pad=pad)
    assert found.to_pylist() == [values + [pad] * (3 - len(values)), [pad] * 3]
    wide = {pa.string(): pa.large_string()}
    assert found.type.value_type == wide.get(kind, kind)


def test_a_pad_that_is_not_a_number():
    assert sliced([[1.0], [2.0, 3.0]], pa.float64(), 0, 2, pad=math.nan).to_pylist() == [[1.0, None], [2.0, 3.0]]


@pytest.mark.parametrize(("kind", "values"), [(pa.timestamp("us", "Asia/Tokyo"), [0, None, 5]), (pa.date32(), [1, 2])])
def test_times_and_nested_lists_are_sliced(kind, values):
    array = pa.array([[None if v is None else v for v in values], None]).cast(pa.list_(pa.int64()))
    if pa.types.is_date(kind):
        array = array.cast(pa.list_(pa.int32()))
    frame = pa.table({"x": array.cast(pa.list_(kind))})
    made = ListSlice("x", 1).fit_transform(frame)["slice_1_end_x"].to_pylist()
    back = [None if v is None else v[1:] for v in frame["x"].to_pylist()]
    made, back = ([None if v is None else list(map(pd.Timestamp, v)) for v in lists] for lists in (made, back))
    assert made == back
    nested = sliced([[[1], [2, 3], None], [[]]], pa.list_(pa.int64()), 1).to_pylist()
    assert nested == [[[2, 3], None], []]


def test_history_brings_lists_from_two_frames_together():
    fs = FeatureSet([ListSlice("x", 1)]).fit(pa.table({"x": pa.array([["a", "b"]])}))
    now, past = pa.table({"x": pa.array([["c", "d"], None])}), pa.table({"x": pa.array([["e"], ["f", "g"]])})
    assert fs.transform(now, history=past)["slice_1_end_x"].to_pylist() == [["d"], None]


tag = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "é", "🎉"]))
lists = st.lists(st.one_of(st.none(), st.lists(tag, max_size=5)), max_size=9)


def frame(values, kind=None):
    return pa.table({"x": pa.array(values, pa.list_(kind or pa.string()))})


def vectors(made, name="x_multihot"):
    return made[name].to_pylist()


@given(lists, lists)
def test_given_values(train, new):
    values = ["🎉", "a", "never"]
    feature = MultiHot("x", values=values).fit(frame(train))
    made = feature.transform(frame(new))
    assert feature.outputs == ["x_has_🎉", "x_has_a", "x_has_never"]
    for value, name in zip(values, feature.outputs, strict=True):
        assert made.schema.field(name).type == pa.int8()
        assert made[name].to_pylist() == [int(value in (row or [])) for row in new]


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
