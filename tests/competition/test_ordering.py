"""Ranked lists against sorting in plain Python."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.competition import rank_lists, ranked_strings
from fastrec.errors import DataError

row = st.tuples(
    st.sampled_from([0.0, -0.0, 1.0, 2.5, -1.0, math.inf, -math.inf, math.nan]),
    st.sampled_from([5, -2, 2**60, 2**60 + 1]),
    st.integers(-(2**62), 2**62),
)


def loop_lists(scores, groups, k):
    lists = {}
    for i, group in enumerate(groups):
        lists.setdefault(group, []).append(i)
    key = lambda i: (math.isnan(scores[i]), 0 if math.isnan(scores[i]) else -scores[i], i)  # noqa: E731
    return [sorted(rows, key=key)[:k] for rows in lists.values()]


@settings(max_examples=150, deadline=None)
@given(st.lists(row, min_size=1, max_size=30), st.sampled_from([None, 1, 2, 50]))
def test_lists_against_a_loop(rows, k):
    scores, groups, items = (list(column) for column in zip(*rows))
    expected = loop_lists(scores, groups, k)
    order, offsets = rank_lists(np.array(scores), np.array(groups), k=k)
    assert [order[a:b].tolist() for a, b in pairwise(offsets.tolist())] == expected
    strings = ranked_strings(np.array(items), np.array(scores), np.array(groups), k=k)
    assert strings.to_pylist() == [" ".join(str(items[i]) for i in members) for members in expected]


def test_hand_worked_lists_stand_in_order_of_first_appearance():
    groups = ["b", "a", "b", "a", "b"]
    scores = [1.0, math.nan, 3.0, 0.0, 1.0]
    items = ["v", "w", "x", "y", "z"]
    assert ranked_strings(items, scores, groups).to_pylist() == ["x v z", "y w"]
    assert ranked_strings(items, scores, groups, sep="|", k=2).to_pylist() == ["x|v", "y|w"]


def test_25_are_kept_unless_told():
    items, scores, groups = np.arange(30), -np.arange(30.0), np.zeros(30, int)
    assert ranked_strings(items, scores, groups)[0].as_py() == " ".join(map(str, range(25)))
    assert ranked_strings(items, scores, groups, k=None)[0].as_py() == " ".join(map(str, range(30)))


def test_every_kind_of_column_gives_the_same_lists():
    items, scores, groups = [2**53 + 1, 7, 8, 9], [0.1, 0.2, 0.3, 0.4], [4, 4, 1, 1]
    kinds = [
        np.array,
        torch.tensor,
        pd.Series,
        pl.Series,
        pa.array,
        lambda x: pa.chunked_array([x[:1], x[1:]]),
        lambda x: pd.Series(x, index=[3, 2, 1, 0]),
    ]
    for kind in kinds:
        strings = ranked_strings(kind(items), np.array(scores), kind(groups))
        assert strings.to_pylist() == ["7 9007199254740993", "9 8"]
    categories = pd.Categorical(["a", "b", "c", "d"], categories=["d", "c", "b", "a"])
    assert ranked_strings(categories, scores, pd.Categorical(["y", "y", "x", "x"])).to_pylist() == ["b a", "d c"]
    nullable = pd.Series(items, dtype="Int64")
    assert ranked_strings(nullable, pd.Series(scores), groups).to_pylist() == ["7 9007199254740993", "9 8"]


def test_no_rows_give_no_lists():
    order, offsets = rank_lists(np.zeros(0), np.zeros(0, int))
    assert order.tolist() == []
    assert offsets.tolist() == [0]
    assert ranked_strings(np.zeros(0, int), np.zeros(0), np.zeros(0, int)).to_pylist() == []


@pytest.mark.parametrize(
    ("items", "scores", "groups", "words"),
    [
        ([1, 2], [1.0, 2.0], [0], "groups has 1 rows, scores has 2"),
        ([1], [1.0, 2.0], [0, 0], "items has 1 rows, scores has 2"),
        ([1.0, 2.0], [1.0, 2.0], [0, 0], "items are double, which has no exact text"),
        ([1, None], [1.0, 2.0], [0, 0], "column 'items', row 1: an item is missing"),
        ([1, 2], [1.0, 2.0], [None, 0], "column 'groups', row 0: a group is missing"),
        (["a", "b c"], [1.0, 2.0], [0, 0], "row 1: an item holds the separator ' '"),
        ([1, "a"], [1.0, 2.0], [0, 0], "column 'items': the values cannot be read as one column"),
        ([1, 2], ["a", "b"], [0, 0], "column 'scores': <U1 values are not numbers"),
    ],
)
def test_bad_input_is_named(items, scores, groups, words):
    with pytest.raises(DataError, match=words):
        ranked_strings(items, scores, groups)


def test_bad_k_is_named():
    with pytest.raises(DataError, match="k=0 is not a whole number above 0"):
        rank_lists([1.0], [0], k=0)
