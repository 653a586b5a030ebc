from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from fastrec.errors import FastrecError
from fastrec.features import ListLength, Tokens
from fastrec.table import Column, Table

LISTS = [["a", None], [], None, [None], ["b", "c", "d"]]
LENGTHS = [2, 0, None, 1, 3]


def lengths(frame, feature=None):
    made = Table.read((feature or ListLength("x")).fit_transform(frame))
    return made[made.names[-1]].to_arrow()


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.large_string())])
def test_lists_of_any_kind(kind):
    found = lengths(pa.table({"x": pa.array(LISTS, kind)}))
    assert (found.type, found.to_pylist()) == (pa.int64(), LENGTHS)


def test_every_library_and_a_part_of_a_frame():
    arrow = pa.table({"x": pa.array([["no"], *LISTS, ["no"]])})
    assert lengths(arrow.slice(1, 5)).to_pylist() == LENGTHS
    assert lengths(pl.from_arrow(arrow.slice(1, 5))).to_pylist() == LENGTHS
    assert lengths(pd.DataFrame({"x": pd.Series(LISTS, dtype=object)})).to_pylist() == LENGTHS
    assert lengths({"x": [np.array([1.0, 2.0]), np.array([]), None]}).to_pylist() == [2, 0, None]


def test_lists_that_begin_and_end_inside_their_elements():
    elements = Column("number", torch.arange(9))
    column = Column("list", torch.tensor([2, 5, 5, 7]), elements=elements)
    assert lengths(Table({"x": column})).to_pylist() == [3, 0, 2]


def test_vectors_are_as_long_as_they_are_wide():
    frame = pa.table({"x": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
    assert lengths(frame).to_pylist() == [2, None]
    assert lengths(pl.from_arrow(frame)).to_pylist() == [2, None]


def test_the_length_of_what_another_makes_and_several_columns():
    frame = pd.DataFrame({"t": ["one two", "", None], "x": [[1], [2, 3], []]})
    made = ListLength(["x", Tokens("t", "words")]).fit_transform(frame)
    assert made["length_x"].tolist() == [1, 2, 0]
    assert made["length_words_t"].tolist() == [2, 0, pd.NA]


def test_a_column_of_missing_values_has_missing_lengths():
    found = lengths(pd.DataFrame({"x": [None, None]}))
    assert (found.type, found.to_pylist()) == (pa.int64(), [None, None])


@pytest.mark.parametrize("values", [[None, "a|b"], [None, 1.0], [None, pd.Timestamp("2024-01-01")]])
def test_what_is_no_list_is_named(values):
    with pytest.raises(FastrecError) as caught:
        ListLength("x").fit_transform(pd.DataFrame({"x": values}))
    assert "ListLength" in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("x", 1)
    assert caught.value.remedy
