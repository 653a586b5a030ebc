"""Embedded columns joined by compiled loops against the pieces side by side, which torch looks up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import kernels, limits
from fastrec._core.kernels import compiled
from fastrec.errors import DataError
from fastrec.models import EmbeddingTables
from fastrec.models.embedding import side_by_side
from fastrec.models.joined_lookup import can_join, join

pytestmark = pytest.mark.skipif(not compiled(1 << 30), reason="numba is not installed")


@pytest.fixture(autouse=True)
def few_numbers_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOOP_NUMBERS", 0)
        yield


def grads_of(out, pull, params):
    return [g.to_dense() if g.is_sparse else g for g in torch.autograd.grad((out * pull).sum(), params)]


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 20), min_size=1, max_size=7),
    others=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(0, 40),
    id_type=st.sampled_from([torch.int64, torch.int32]),
    grads=st.sampled_from(["dense", "rows"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_the_pieces(widths, others, rows, id_type, grads, threads, seed):
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SPARSE_FROM", 6)
        patch.setattr(kernels, "threads_for", lambda numbers: threads)
        sizes = [(3 + i, w) for i, w in enumerate(widths)]
        tables = EmbeddingTables(sizes, pad=False, std=1.0, grads=grads)
        x_cat = torch.stack([torch.randint(0, n, (rows,)) for n, _ in sizes], 1).to(id_type)
        values = [torch.randn(rows, w, requires_grad=True) for w in others]
        params = [*tables.parameters(), *values]
        assert can_join(tables, x_cat)
        out, plain = join(tables, x_cat, values), side_by_side([*tables.pieces(x_cat), *values])
        assert torch.equal(out, plain)
        pull = torch.randn(plain.shape)
        for a, b in zip(grads_of(out, pull, params), grads_of(plain, pull, params), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_frozen_table_gets_no_gradient():
    tables = EmbeddingTables([(5, 4), (6, 2)], pad=False)
    tables.weights["w4"].requires_grad_(False)
    join(tables, torch.tensor([[1, 2]]), []).sum().backward()
    assert tables.weights["w4"].grad is None
    assert tables.weights["w2"].grad.sum() == 2


@pytest.mark.parametrize("bad", [-1, 6, 2**31 - 1])
def test_an_id_out_of_range_is_named_before_anything_is_read(bad):
    tables = EmbeddingTables([(5, 4), (6, 4)], names=["shop", "item"])
    with pytest.raises(DataError, match=f"item.*id {bad} is outside"):
        join(tables, torch.tensor([[4, 5], [0, bad]]), [])


def test_it_is_for_narrow_tables_on_the_host_in_float32():
    ids = torch.tensor([[1]])
    tables = EmbeddingTables([(5, 4)])
    assert can_join(tables, ids)
    assert not can_join(None, ids)
    assert not can_join(tables, ids.double())
    assert not can_join(EmbeddingTables([(5, 40)]), ids)  # wide rows are gathered faster otherwise
    assert not can_join(EmbeddingTables([(5, 4)]).double(), ids)
    # tables without memory on this side, as on a GPU: an address of theirs must not be read
    assert not can_join(EmbeddingTables([(5, 4)]).to("meta"), ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_join(tables, ids)
