from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, ListSlice, VectorColumns
from fastrec.table import Column, Table

some = settings(max_examples=60, deadline=None)
words = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=6)), max_size=7)
numbers = st.lists(st.one_of(st.none(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)), max_size=7)
bound = st.integers(-7, 7)


def sliced(values, kind, *args, **options):
    made = ListSlice("x", *args, **options).fit_transform(pa.table({"x": pa.array(values, pa.list_(kind))}))
    return made.column(made.num_columns - 1).combine_chunks()


@some
@given(words, bound, st.one_of(st.none(), bound))
def test_slices_are_pythons(values, start, end):
    assert sliced(values, pa.string(), start, end).to_pylist() == [None if v is None else v[start:end] for v in values]


@some
@given(numbers, bound, st.one_of(st.none(), bound))
def test_slices_of_64_bit_numbers_are_exact(values, start, end):
    found = sliced(values, pa.int64(), start, end)
    assert found.to_pylist() == [None if v is None else v[start:end] for v in values]
    assert found.type.value_type == pa.int64()


@some
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


def test_padding_on_the_left_keeps_the_last_elements_last():
    values = [[1], [1, 2, 3], None, [1, 2]]
    assert sliced(values, pa.int32(), -2, pad=0, pad_side="left").to_pylist() == [[0, 1], [2, 3], [0, 0], [1, 2]]
    assert sliced(values, pa.int32(), 1, 3, pad=0, pad_side="left").to_pylist() == [[0, 0], [2, 3], [0, 0], [0, 2]]


def test_lists_that_begin_and_end_inside_their_elements():
    elements = Column("number", torch.arange(9))
    table = Table({"x": Column("list", torch.tensor([2, 5, 5, 7]), elements=elements)})
    assert ListSlice("x", 1).fit_transform(table)["slice_1_end_x"].to_arrow().to_pylist() == [[3, 4], [], [6]]
    padded = ListSlice("x", 0, 2, pad=-1).fit_transform(table)["slice_0_2_x"]
    assert padded.to_arrow().to_pylist() == [[2, 3], [-1, -1], [5, 6]]


def test_the_peers_padding_that_does_not_pad():
    assert sliced([[1], [1, 2, 3], []], pa.int32(), 0, 2, pad=0).to_pylist() == [[1, 0], [1, 2], [0, 0]]


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


@pytest.mark.parametrize(
    ("kind", "values", "pad"),
    [
        (pa.int8(), [1], 128),
        (pa.int64(), [1], 0.5),
        (pa.int64(), [1], math.nan),
        (pa.int64(), [1], math.inf),
        (pa.int64(), [1], 2**63),
        (pa.int64(), [1], "x"),
        (pa.bool_(), [True], 2),
        (pa.string(), ["a"], 0),
        (pa.timestamp("s"), [pd.Timestamp("2024-01-01")], "x"),
        (pa.list_(pa.int64()), [[1]], 0),
    ],
)
def test_a_pad_of_another_type_is_named(kind, values, pad):
    with pytest.raises(FastrecError) as caught:
        sliced([None, values], kind, 0, 2, pad=pad)
    assert "ListSlice" in str(caught.value)
    assert repr(pad) in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("x", 1)
    assert caught.value.remedy


@pytest.mark.parametrize(("kind", "values"), [(pa.timestamp("us", "Asia/Tokyo"), [0, None, 5]), (pa.date32(), [1, 2])])
def test_times_and_nested_lists_are_sliced(kind, values):
    array = pa.array([[None if v is None else v for v in values], None]).cast(pa.list_(pa.int64()))
    if pa.types.is_date(kind):
        array = array.cast(pa.list_(pa.int32()))
    frame = pa.table({"x": array.cast(pa.list_(kind))})
    made = ListSlice("x", 1).fit_transform(frame)["slice_1_end_x"].to_pylist()
    back = [None if v is None else v[1:] for v in frame["x"].to_pylist()]
    assert [None if v is None else [pd.NaT if x is None else pd.Timestamp(x) for x in v] for v in made] == [
        None if v is None else [pd.NaT if x is None else pd.Timestamp(x) for x in v] for v in back
    ]
    nested = sliced([[[1], [2, 3], None], [[]]], pa.list_(pa.int64()), 1).to_pylist()
    assert nested == [[[2, 3], None], []]


def test_every_library_gets_its_own_lists_back(tmp_path):
    values = [["a", "b", None], [], None]
    fs = FeatureSet([ListSlice("x", -2), ListSlice("x", 0, 2, pad="-")])
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)}).set_axis([5, 5, 7])
    made = fs.fit_transform(frame)
    assert made.index.tolist() == [5, 5, 7]
    assert [v if v is None else list(v) for v in made["slice_-2_end_x"]] == [["b", None], [], None]
    assert [list(v) for v in made["slice_0_2_x"]] == [["a", "b"], ["-", "-"], ["-", "-"]]
    fs.save(tmp_path / "fs")
    again = FeatureSet.load(tmp_path / "fs")
    arrow = again.transform(pa.table({"x": pa.array(values)}))
    assert arrow["slice_-2_end_x"].to_pylist() == [["b", None], [], None]
    polars = again.transform(pl.DataFrame({"x": pl.Series(values, dtype=pl.List(pl.String))}))
    assert polars["slice_0_2_x"].to_list() == [["a", "b"], ["-", "-"], ["-", "-"]]
    table = again.transform(Table.read(arrow.select(["x"])))
    assert table["slice_0_2_x"].kind == "list"
    assert again.transform({"x": values})["slice_0_2_x"][1].tolist() == ["-", "-"]
    twice = again.transform(made)  # lists of arrays, as pandas holds what came out
    assert [list(v) for v in twice["slice_0_2_x"]] == [["a", "b"], ["-", "-"], ["-", "-"]]


def test_history_brings_lists_from_two_frames_together():
    fs = FeatureSet([ListSlice("x", 1)]).fit(pa.table({"x": pa.array([["a", "b"]])}))
    now, past = pa.table({"x": pa.array([["c", "d"], None])}), pa.table({"x": pa.array([["e"], ["f", "g"]])})
    assert fs.transform(now, history=past)["slice_1_end_x"].to_pylist() == [["d"], None]


def test_padded_lists_make_vectors():
    frame = pd.DataFrame({"x": [[3, 4, 9], [5], None]})
    made = VectorColumns(ListSlice("x", 0, 2, pad=0), name="v").fit_transform(frame)["v"]
    np.testing.assert_allclose(np.stack(made), [[0.6, 0.8], [1, 0], [0, 0]])


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (2, 2), (3, 1), (0, -1), (-3, 2), (-1, -1), (-1, -3), (0, 0), (-2, 0)]
)
def test_a_pad_without_a_length_is_refused(start, end):
    with pytest.raises(FastrecError, match="ListSlice"):
        ListSlice("x", start, end, pad=0)
    ListSlice("x", start, end)


def test_another_side_is_refused():
    with pytest.raises(FastrecError, match="'up'"):
        ListSlice("x", 0, 1, pad=0, pad_side="up")
