"""Compiled loops over groups of rows, against plain loops and against torch's own calls."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import kernels, limits
from fastrec._core.kernels import compiled, without_compiled
from fastrec.features import GroupRank, History
from fastrec.segments import as_of, rank_in_group
from fastrec.segments.groups import rank_small_groups
from fastrec.table import Table
from tests.segments.test_segments import HIGH, LOW, plain_ranks

pytestmark = [
    pytest.mark.skipif(not compiled(1 << 30), reason="numba is not installed"),
    pytest.mark.host_only(reason="the loops are compiled for the host"),
]
some = settings(max_examples=80, deadline=None)
whole = st.one_of(st.integers(-2, 2), st.sampled_from([LOW, LOW + 1, 2**53, 2**53 + 1, HIGH]))
real = st.one_of(st.integers(-2, 2).map(float), st.sampled_from([-0.0, 5e-324, math.inf, -math.inf, math.nan]))


@pytest.fixture(scope="module", params=[1, 2, 3], autouse=True)
def parts(request):
    """Loops for few numbers too, cut into so many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOOP_NUMBERS", 0)
        patch.setattr(limits, "COMPILED_ROWS", 0)
        patch.setattr(kernels, "threads_for", lambda numbers: request.param)
        yield request.param


def ints(values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("kind", ["int64", "float64"])
@some
@given(st.data(), st.sampled_from(["min", "max", "average", "ordinal"]))
def test_ranks_in_groups_that_stand_together(kind, data, method):
    column = whole if kind == "int64" else real
    rows = data.draw(st.lists(st.tuples(st.sampled_from([0, 1, 5]), column, st.booleans()), max_size=14))
    rows.sort(key=lambda row: row[0])
    codes, values, absent = ([row[k] for row in rows] for k in range(3))
    absent = [a or v != v for a, v in zip(absent, values, strict=True)]
    given = torch.tensor(values, dtype=getattr(torch, kind)), ints(codes), torch.tensor(absent, dtype=torch.bool)
    found = rank_small_groups(*given, method=method)
    np.testing.assert_array_equal(found.numpy(), plain_ranks(codes, values, absent, method))
    np.testing.assert_array_equal(rank_in_group(*given[:2], method=method, missing=given[2]).numpy(), found.numpy())


@pytest.mark.parametrize(
    ("codes", "kind", "method"),
    [
        *((codes, "int64", "min") for codes in ([1, 0], [2, 2, 1, 2], [1] * 129, [0] + [1] * 200 + [2])),
        *(([0] * 4 + [1] * 9, kind, "min") for kind in ("float32", "int32")),
        ([0] * 4 + [1] * 9, "int64", "dense"),
    ],
)
def test_other_groups_types_and_methods_are_sorted_instead(codes, kind, method):
    values = (torch.arange(len(codes)) % 7).to(getattr(torch, kind))
    absent = torch.zeros(len(codes), dtype=torch.bool)
    assert rank_small_groups(values, ints(codes), absent, method=method) is None
    expected = plain_ranks(codes, values.tolist(), absent.tolist(), method)
    assert rank_in_group(values, ints(codes), method=method).tolist() == expected


def test_a_group_of_the_greatest_length_is_ranked_at_once():
    codes, values = ints([0] + [1] * 128 + [2]), torch.arange(130).flip(0)
    found = rank_small_groups(values, codes, torch.zeros(130, dtype=torch.bool), method="min")
    assert found.tolist() == [1.0, *range(128, 0, -1), 1.0]


def test_few_rows_do_not_wait_for_the_compiler(monkeypatch):
    monkeypatch.setattr(limits, "COMPILED_ROWS", 4)
    for n in (3, 4):
        absent = torch.zeros(n, dtype=torch.bool)
        assert (rank_small_groups(torch.arange(n), absent.long(), absent, method="min") is None) == (n < 4)


def test_rows_are_not_changed():
    codes, order = ints([2, 1, 2]), [ints([3, 2, 1])]
    kept = [codes.clone(), order[0].clone()]
    as_of(codes, order, codes, order)
    rank_in_group(order[0], codes)
    assert torch.equal(codes, kept[0])
    assert torch.equal(order[0], kept[1])


def test_features_take_the_loops_and_are_the_same_without(monkeypatch):
    taken = []
    for name in ("groups.rank_small_groups", "as_of_join.last_before"):
        module, _, function = name.rpartition(".")
        inner = getattr(importlib.import_module(f"fastrec.segments.{module}"), function)

        def noting(*args, inner=inner, name=name, **options):
            found = inner(*args, **options)
            taken.extend([name] if found is not None else [])
            return found

        monkeypatch.setattr(f"fastrec.segments.{name}", noting)
    torch.manual_seed(0)
    lists, of = 60, torch.arange(60).repeat_interleave(25)
    frame = Table({"list": of, "user": of // 3, "item": torch.randint(0, 40, (lists * 25,)), "t": of * 10})
    frame = frame.with_columns({"price": torch.randint(5, 30, (lists * 25,)).double()})
    log = Table({"user": torch.randint(0, 20, (900,)), "item": torch.randint(0, 40, (900,)), "t": torch.arange(900)})
    steps = [
        GroupRank("price", by="list", descending=True, method="average"),
        History(["user", "item"], order="t", table="log", stats=["count", "since", "steps"], name="seen"),
    ]
    for step in steps:
        tables = {"log": log} if isinstance(step, History) else None
        made = step.fit_transform(frame, tables=tables)
        with without_compiled():
            other = step.fit_transform(frame, tables=tables)
        for name in step.outputs:
            np.testing.assert_array_equal(made[name].values.numpy(), other[name].values.numpy())
    assert "groups.rank_small_groups" in taken
    assert ("as_of_join.last_before" in taken) == (limits.REQUEST_ROWS < 0)  # a request's few rows go another way
