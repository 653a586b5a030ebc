"""A first layer by ids against the plain one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, TabularNet
from fastrec.models.tabular_net import WideLinear


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
