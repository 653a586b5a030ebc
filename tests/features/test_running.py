from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features._engine.order import Clock, EarlierRows, TimeRanks, running_sum
from fastrec.table import Table


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 150), max_size=4), st.booleans(), st.integers(0, 9))
def test_running_sums_equal_a_loop_in_groups_of_any_length(sizes, with_factor, seed):
    torch.manual_seed(seed)
    n = sum(sizes)
    place = torch.cat([torch.arange(s) for s in sizes]) if sizes else torch.zeros(0, dtype=torch.int64)
    values, factor = torch.randn(2, n, dtype=torch.float64), torch.rand(n, dtype=torch.float64)
    made = running_sum(values, place, factor if with_factor else None)
    expected, total = torch.zeros_like(values), torch.zeros(2, dtype=torch.float64)
    for i in range(n):
        total = values[:, i] + (total * (factor[i] if with_factor else 1) if place[i] else 0)
        expected[:, i] = total
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)


def test_a_running_sum_of_thousands_of_rows():
    values = torch.ones(1, 70_000, dtype=torch.float64)
    place = torch.arange(70_000) % 50_000
    assert torch.equal(running_sum(values, place)[0], (place + 1).double())
    half = running_sum(values, place, torch.full((70_000,), 0.5, dtype=torch.float64))[0]
    assert half[[0, 1, 49_999, 50_000, 50_001]].tolist() == [1.0, 1.5, 2.0, 1.0, 1.5]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 120), st.integers(0, 60), st.integers(0, 9))
def test_neither_later_rows_nor_other_groups_touch_the_rounding_of_a_sum(size, more, seed):
    torch.manual_seed(seed)
    values, factor = torch.randn(1, size + more, dtype=torch.float64), torch.rand(size + more, dtype=torch.float64)
    place = torch.arange(size + more)
    alone = running_sum(values[:, :size], place[:size], factor[:size])
    assert torch.equal(running_sum(values, place, factor)[:, :size], alone)
    other = torch.randn(1, 7, dtype=torch.float64)
    beside = running_sum(
        torch.cat([other, values], 1), torch.cat([torch.arange(7), place]), torch.cat([factor[:1].repeat(7), factor])
    )
    assert torch.equal(beside[:, 7 : 7 + size], alone)


def test_rows_at_one_point_in_time_do_not_see_each_other():
    table = Table({"t": [3, 1, 3, 2, 1], "u": [0, 5, 0, 5, 5]})
    ranks = TimeRanks.of(table, ["t"])
    assert ranks.rank.tolist() == [2, 0, 2, 1, 0]
    ones = torch.ones(1, 5, dtype=torch.float64)
    every = torch.ones(5, dtype=torch.bool)
    total, age = EarlierRows.of(ranks).sums(ones, every)
    assert total[0].tolist() == [3, 0, 3, 2, 0]
    assert age.tolist() == [0] * 5  # no clock: nothing grows old
    clock = Clock.of(table, "t")
    seen = torch.tensor([False, True, True, False, True])
    faded, age = EarlierRows.of(ranks).sums(ones * seen, seen, clock, half_life=1.0)
    assert faded[0].tolist() == [2, 0, 2, 2, 0]  # as they were at t = 1, the last time that counts
    assert age[[0, 2, 3]].tolist() == [2, 2, 1]
    grouped, _ = EarlierRows.of(ranks, table["u"].integer()).sums(ones, every)
    assert grouped[0].tolist() == [0, 0, 0, 2, 0]
    assert TimeRanks.of(table, ["u", "t"]).rank.tolist() == [0, 1, 0, 2, 1]


def test_a_clock_is_exact():
    big = 2**62
    clock = Clock.of(Table({"t": [big, big + 1, -big]}), "t")
    assert clock.since(clock[torch.tensor([1, 0, 2])]).tolist() == [-1, 1, 0]
    assert clock.since(clock[torch.tensor([2, 2, 2])]).tolist() == [2.0**63, 2.0**63, 0]
    fine = Clock.of(Table({"t": torch.tensor([0.25, -0.25, 1e300, -torch.inf], dtype=torch.float64)}), "t")
    assert fine.since(fine[torch.tensor([1, 0, 2, 3])]).tolist() == [0.5, -0.5, 0, 0]
    assert fine.after(fine[torch.tensor([1, 0, 2, 0])]).tolist() == [True, False, False, False]
    with pytest.raises(FastrecError, match="missing"):
        Clock.of(Table({"t": [1.0, None]}), "t")
