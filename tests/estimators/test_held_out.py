"""Which training rows say when to stop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.estimators._held_out import held_out
from fastrec.table import Table
from fastrec.validate import Rows, group_folds


def rows_of(n: int, task: str = "regression", **more) -> Rows:
    label = more.pop("label", torch.zeros(n))
    return Rows(Table({"x": torch.zeros(n)}), task, conts=["x"], label=label, **more)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=60))
def test_the_last_rows_are_held_out_and_moments_are_not_parted(times):
    order = torch.tensor(times)
    rows = rows_of(len(times), order=order)
    if len(set(times)) == 1:
        with pytest.raises(DataError, match="me has too few moments"):
            held_out(rows, name="me")
        return
    newest = sorted(times, reverse=True)[: max(len(times) // 8, 1)]  # an eighth, and all of its first moment
    if min(newest) == min(times):
        with pytest.raises(DataError, match="too few moments"):
            held_out(rows, name="me")
        return
    assert held_out(rows, name="me").tolist() == [t >= min(newest) for t in times]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=2, max_size=60))
def test_groups_in_time_count_by_their_last_row_and_are_not_parted(pairs):
    groups, order = (torch.tensor(v) for v in zip(*pairs, strict=True))
    last = [max(t for g, t in pairs if g == group) for group, _ in pairs]
    first_held = sorted(last, reverse=True)[: max(len(pairs) // 8, 1)][-1]
    expected = [t >= first_held for t in last]
    rows = rows_of(len(pairs), order=order, groups=groups)
    if all(expected):
        with pytest.raises(DataError, match="too few moments"):
            held_out(rows, name="me")
    else:
        assert held_out(rows, name="me").tolist() == expected


def test_whole_groups_are_held_out_by_their_hash():
    groups = torch.arange(400) % 90 * 7
    held = held_out(rows_of(400, groups=groups), name="me")
    assert torch.equal(held, group_folds(Table({"g": groups}), "g", 8) == 0)
    assert not set(groups[held].tolist()) & set(groups[~held].tolist())
    with pytest.raises(DataError, match="me has too few groups"):
        held_out(rows_of(9, groups=torch.arange(9) // 3), name="me")


@given(st.lists(st.integers(0, 2), min_size=24, max_size=120))
def test_every_class_gives_an_eighth_and_keeps_the_rest(labels):
    label = torch.tensor(labels)
    rows = rows_of(len(labels), "multiclass", label=label, n_outputs=3)
    held = held_out(rows, name="me")
    for c in range(3):
        assert int(held[label == c].sum()) == labels.count(c) // 8


def test_rows_of_no_class_are_held_out_at_random_and_always_the_same():
    held = held_out(rows_of(8000), name="me")
    assert int(held.sum()) == 1000
    assert torch.equal(held, held_out(rows_of(8000), name="me"))
    runs = held.nonzero().squeeze(1).diff()
    assert len(set(runs.tolist())) > 10  # neither a block nor every eighth row
    with pytest.raises(DataError, match="me has too few rows"):
        held_out(rows_of(7), name="me")
