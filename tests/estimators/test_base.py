"""Lists, what rankers share, and what estimators hold out to stop by, against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.estimators.base import held_out
from fastrec.table import Table
from fastrec.validate import Lists, Rows, whole_lists


def make(groups: list[int], **columns) -> Lists:
    conts, given = columns.pop("conts", None), {name: columns.pop(name, None) for name in ("label", "weight")}
    given = {name: None if v is None else torch.tensor(v, dtype=torch.float64) for name, v in given.items()}
    table = Table(columns or {"x": torch.arange(len(groups), dtype=torch.float64)})
    return Lists(table, torch.tensor(groups, dtype=torch.int64), conts=conts or table.names, **given)


@pytest.mark.parametrize(
    ("groups", "given", "match", "row"),
    [
        ([1, 1, 3, 2, 4, 0], {}, "ascending", 3),
        ([0, 0, 1], {"weight": [1, -1, 1]}, "weight", 1),
        ([0, 0, 1], {"weight": [1, math.nan, 1]}, "weight", 1),
        ([0, 0, 1], {"weight": [1, math.inf, 1]}, "weight", 1),
        ([0, 0, 1], {"label": [1, 0]}, "unequal", None),
        ([0, 0], {"conts": ["x", "x"]}, "'x': the column stands twice", None),
        ([0, 0], {"x": [1.0, 2.0, 3.0]}, "unequal", None),
    ],
)
def test_lists_that_cannot_be_are_refused(groups, given, match, row):
    with pytest.raises(DataError, match=match) as caught:
        make(groups, **given)
    assert caught.value.row == row


rows_of_lists = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.0, 1.0, 2.0, math.nan]), st.sampled_from([0.0, 0.5, 2.0])),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(rows_of_lists=rows_of_lists, weighted=st.booleans())
def test_lists_that_teach(rows_of_lists, weighted):
    frame = pd.DataFrame(sorted(rows_of_lists, key=lambda r: r[0]), columns=["group", "label", "weight"])
    frame["weight"] = frame.groupby("group").weight.transform("last")
    good = frame.groupby("group").label.transform(lambda v: len(v) > 1 and v.notna().all() and v.max() > 0)
    expected = frame.index[good.astype(bool) & ((frame.weight > 0) | (not weighted))].tolist()
    given = frame[["label", "weight"] if weighted else ["label"]].to_dict("list")
    lists = make(frame.group.tolist(), x=frame.index.to_numpy(dtype=float), **given)
    if not expected:
        with pytest.raises(DataError, match="no list to learn from"):
            whole_lists(lists)
        return
    assert whole_lists(lists).table["x"].number().tolist() == expected
    with pytest.raises(DataError, match=r"tree.*without labels"):
        whole_lists(replace(lists, label=None), name="tree")


# What estimators hold out to stop by.


def rows(n: int, task: str = "regression", **given) -> Rows:
    label = given.pop("label", torch.zeros(n, dtype=torch.float64))
    return Rows(Table({"x": torch.arange(n, dtype=torch.float64)}), task, conts=["x"], label=label, **given)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=2, max_size=4), seed=st.integers(0, 5))
def test_of_every_class_the_same_share_and_one_at_least_to_train_on(sizes, seed):
    label = torch.cat([torch.full((s,), c) for c, s in enumerate(sizes)])
    label = label[torch.randperm(len(label), generator=torch.Generator().manual_seed(seed))]
    held = held_out(rows(len(label), "multiclass", label=label, n_outputs=len(sizes)), 1 / 8, seed)
    assert held.dtype == torch.bool
    if len(label) < 2:
        assert not held.any()
        return
    for c, size in enumerate(sizes):
        assert int(held[label == c].sum()) == min(round(size / 8), max(size - 1, 0))


def test_seeds_draw_other_rows_and_the_same_seed_the_same():
    a, b, c = (held_out(rows(4_000), seed=s) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert int(a.sum()) == 500
    assert int((a & c).sum()) == pytest.approx(500 / 8, abs=35)  # as if independent
    place = torch.arange(4_000)[a].double()
    assert place.mean().item() == pytest.approx(2_000, abs=200)


@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.integers(0, 9), min_size=2, max_size=60))
def test_the_last_rows_are_held_out_those_of_one_time_together(times):
    order = torch.tensor(times)
    held = held_out(rows(len(times), order=order), 1 / 4)
    if len(set(times)) == 1:
        assert int(held.sum()) == round(len(times) / 4)  # an order that tells nothing: drawn
        return
    assert not set(order[held].tolist()) & set(order[~held].tolist())
    assert order[held].min() > order[~held].max()
    wanted = len(times) / 4
    possible = [sum(t >= cut for t in times) for cut in sorted(set(times))[1:]]
    assert abs(int(held.sum()) - wanted) == min(abs(p - wanted) for p in possible)


@settings(max_examples=50, deadline=None)
@given(groups=st.lists(st.integers(-3, 12), min_size=2, max_size=80), timed=st.booleans())
def test_groups_stay_whole(groups, timed):
    ids = torch.tensor(groups)
    order = torch.arange(len(groups)) if timed else None
    held = held_out(rows(len(groups), groups=ids, order=order), 1 / 8)
    assert not set(ids[held].tolist()) & set(ids[~held].tolist())
    if len(set(groups)) > 1:
        assert bool(held.any())
        assert not bool(held.all())
    else:
        assert not bool(held.any())
    if timed and bool(held.any()):
        last = {g: max(i for i, other in enumerate(groups) if other == g) for g in set(groups)}
        assert min(last[g] for g in ids[held].tolist()) > max(last[g] for g in ids[~held].tolist())


@pytest.mark.parametrize("n", [0, 1, 3_000])
def test_many_groups_come_to_about_the_share_and_one_row_to_nothing(n):
    ids = torch.arange(n) // 3
    held, other = (held_out(rows(n, groups=ids), 1 / 8, seed=seed) for seed in (0, 1))
    assert int(held.sum()) == n // 8
    assert torch.equal(held, other) == (n < 2)
    assert held_out(rows(n)).sum() == n // 8
