"""Embedded columns in one step against the pieces side by side, and a first layer by ids against the plain one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, TabularNet
from fastrec.models._lookup.joined import WideLinear, can_join, join
from fastrec.models.embedding import side_by_side


@settings(max_examples=40)
@given(
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    others=st.lists(st.integers(1, 3), max_size=3),
    rows=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_the_pieces(widths, others, rows, seed):
    torch.manual_seed(seed)
    sizes = [(3 + i, w) for i, w in enumerate(widths)]
    tables = EmbeddingTables(sizes, pad=False, std=1.0).double()
    x_cat = torch.stack([torch.randint(0, n, (rows,), dtype=torch.int32) for n, _ in sizes], 1)
    values = [torch.randn(rows, w, dtype=torch.float64, requires_grad=True) for w in others]
    weights = list(tables.parameters())
    assert can_join(tables, x_cat)

    plain = side_by_side([*tables.pieces(x_cat), *values])
    joined = join(tables, x_cat, values, torch.float64)
    torch.testing.assert_close(joined, plain, rtol=0, atol=0)
    pull = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * pull).sum(), [*weights, *values])
    found = torch.autograd.grad((joined * pull).sum(), [*weights, *values])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_result_has_the_type_that_is_asked_for_and_gradients_their_weights_own():
    tables = EmbeddingTables([(5, 4), (6, 2), (7, 4)], std=1.0)
    x_cat = torch.tensor([[0, 5, 6], [4, 0, 0]])
    value = torch.randn(2, 3, requires_grad=True)
    joined = join(tables, x_cat, [value], torch.bfloat16)
    assert joined.dtype == torch.bfloat16
    expected = side_by_side([*tables.pieces(x_cat), value]).bfloat16()
    torch.testing.assert_close(joined, expected, rtol=0, atol=0)
    joined.sum().backward()
    assert {p.grad.dtype for p in tables.parameters()} == {value.grad.dtype} == {torch.float32}
    assert tables.weights["w4"].grad.sum() == 2 * 3 * 4  # rows, columns (widths are padded), floats


def test_a_frozen_table_gets_no_gradient():
    tables = EmbeddingTables([(5, 4), (6, 2)], pad=False)
    tables.weights["w4"].requires_grad_(False)
    join(tables, torch.tensor([[1, 2]]), [], torch.float32).sum().backward()
    assert tables.weights["w4"].grad is None
    assert tables.weights["w2"].grad.sum() == 2


def test_ids_out_of_range_are_named():
    tables = EmbeddingTables([(5, 4), (6, 4)], names=["shop", "item"])
    with pytest.raises(DataError, match="item"):
        join(tables, torch.tensor([[4, 5], [0, 6]]), [], torch.float32)


def test_it_is_for_narrow_tables():
    ids = torch.tensor([[1]])
    assert not can_join(None, ids)
    assert not can_join(EmbeddingTables([(5, 40)]), ids)  # wide rows are gathered faster otherwise
    assert can_join(EmbeddingTables([(30_000, 4)], grads="rows"), ids)


def test_tables_with_row_sparse_gradients_are_joined_too(monkeypatch):
    monkeypatch.setattr(limits, "SPARSE_FROM", 10)
    sizes = [(20, 4), (3, 4), (30, 2), (40, 4), (5, 2)]
    tables = EmbeddingTables(sizes, pad=False, grads="rows", std=1.0)
    x_cat = torch.stack([torch.randint(0, n, (9,)) for n, _ in sizes], 1)
    value, pull = torch.randn(9, 3, requires_grad=True), torch.randn(9, 19)
    grads = []
    for out in (side_by_side([*tables.pieces(x_cat), value]), join(tables, x_cat, [value], torch.float32)):
        found = torch.autograd.grad((out * pull).sum(), [*tables.parameters(), value])
        grads.append([out.detach(), *(g.to_dense() if g.is_sparse else g for g in found)])
    assert any(g.is_sparse for g in found)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


# ---- wide tables


@settings(max_examples=40)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([3, 8, 64, 70])), min_size=1, max_size=5),
    rows=st.integers(1, 60),
    others=st.integers(0, 3),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_layer_on_gathered_embeddings(sizes, rows, others, bias, seed):
    torch.manual_seed(seed)
    embeds = EmbeddingTables(sizes, pad=False, std=1.0).double()
    linear = nn.Linear(embeds.embedding_dim + others, 5, bias=bias).double()
    ids = torch.stack([torch.randint(0, n, (rows,)) for n, _ in sizes], 1)
    values = [torch.randn(rows, others, dtype=torch.double)] if others else []
    weight = torch.randn(rows, 5, dtype=torch.double)
    found = []
    for by_id in (True, False):
        out = WideLinear(embeds, linear)(ids, values) if by_id else linear(torch.cat([embeds(ids), *values], 1))
        grads = torch.autograd.grad((out * weight).sum(), [*embeds.parameters(), *linear.parameters()])
        found.append([out, *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("grads", ["dense", "rows"])
def test_a_net_with_wide_tables_is_the_same_net(grads, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("fastrec._core.limits.SPARSE_FROM", 30)
    net = TabularNet([(50, 72), (9, 4), (40, 64)], 2, 1, [16], grads=grads)
    assert net._first_linear() is not None
    ids = torch.stack([torch.randint(0, n, (64,)) for n in (50, 9, 40)], 1)
    x = torch.randn(64, 2)
    outs = []
    for wide in (True, False):
        if not wide:
            monkeypatch.setattr(TabularNet, "_first_linear", lambda self: None)
        net.zero_grad()
        net.train()
        out = net(ids, x)
        out.pow(2).sum().backward()
        outs.append([out, *(p.grad.to_dense() if p.grad.is_sparse else p.grad.clone() for p in net.parameters())])
    for a, b in zip(*outs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_on_embeddings_and_other_orders_go_the_plain_way():
    wide = [(50, 72)]
    assert TabularNet(wide, 1, 1, [8], embed_p=0.1)._first_linear() is None
    assert TabularNet(wide, 1, 1, [8], embed_p=0.1).eval()._first_linear() is not None
    assert TabularNet(wide, 1, 1, [8], lin_first=False)._first_linear() is None
    for width in (8, 56):  # the ids of less than 64 numbers cost more than they save
        assert TabularNet([(50, width)], 1, 1, [8])._first_linear() is None


def test_ids_of_wide_tables_out_of_range_are_named():
    net = TabularNet([(50, 72)], 0, 1, [8], cat_names=["city"])
    with pytest.raises(DataError, match=r"city.*id 50"):
        net(torch.tensor([[50]]))
