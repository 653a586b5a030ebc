"""Lists and what rankers share, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate import Lists, whole_lists


def make(groups: list[int], **columns) -> Lists:
    label, weight = columns.pop("label", None), columns.pop("weight", None)
    table = Table(columns or {"x": torch.arange(len(groups), dtype=torch.float64)})
    label = None if label is None else torch.tensor(label, dtype=torch.float64)
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    return Lists(table, torch.tensor(groups, dtype=torch.int64), conts=table.names, label=label, weight=weight)


def test_lists_out_of_order_name_the_first_row():
    with pytest.raises(DataError, match="ascending") as caught:
        make([1, 1, 3, 2, 4, 0])
    assert caught.value.row == 3


@pytest.mark.parametrize("weight", [[1, -1, 1], [1, math.nan, 1], [1, math.inf, 1]])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(DataError, match="weight") as caught:
        make([0, 0, 1], weight=weight)
    assert caught.value.row == 1


def test_parts_of_unequal_lengths_are_refused():
    with pytest.raises(DataError, match="unequal"):
        make([0, 0, 1], label=[1, 0])
    with pytest.raises(DataError, match="unequal"):
        make([0, 0], x=[1.0, 2.0, 3.0])


def test_take_by_mask_and_by_row_agree():
    lists = make([0, 0, 2, 2, 5], label=[0, 1, 0, 1, 1], weight=[1, 1, 2, 2, 3])
    mask = torch.tensor([True, False, True, True, False])
    for rows in (mask, torch.tensor([0, 2, 3])):
        got = lists.take(rows)
        assert got.groups.tolist() == [0, 2, 2]
        assert got.label.tolist() == [0, 0, 1]
        assert got.weight.tolist() == [1, 2, 2]
        assert got.table["x"].number().tolist() == [0, 2, 3]
    assert len(lists.take(torch.zeros(5, dtype=torch.bool))) == 0
    with pytest.raises(DataError, match="ascending"):
        lists.take(torch.tensor([3, 0]))


rows = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.0, 1.0, 2.0, math.nan]), st.sampled_from([0.0, 0.5, 2.0])),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(rows=rows, weighted=st.booleans())
def test_lists_that_teach(rows, weighted):
    rows = sorted(rows, key=lambda r: r[0])
    groups, label = [r[0] for r in rows], [r[1] for r in rows]
    weight = [dict((r[0], r[2]) for r in rows)[g] for g in groups]  # noqa: C402 - the last weight of a list, for all of it
    expected = []
    for i, g in enumerate(groups):
        own = [label[j] for j in range(len(rows)) if groups[j] == g]
        good = len(own) > 1 and any(v > 0 for v in own) and not any(math.isnan(v) for v in own)
        if good and (not weighted or weight[i] > 0):
            expected.append(i)
    lists = make(
        groups, label=label, x=[float(i) for i in range(len(rows))], **({"weight": weight} if weighted else {})
    )
    if not expected:
        with pytest.raises(DataError, match="no list to learn from"):
            whole_lists(lists)
        return
    assert whole_lists(lists).table["x"].number().tolist() == expected


def test_nothing_is_learnt_without_labels():
    with pytest.raises(DataError, match=r"tree.*without labels"):
        whole_lists(make([0, 0]), name="tree")
