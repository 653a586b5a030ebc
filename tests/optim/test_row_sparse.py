"""Row-sparse steps of AdamW and LAMB against plain loops over rows."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastrec._core import limits
from fastrec.models import EmbeddingTables
from fastrec.optim import AdamW, Lamb
from fastrec.optim.torch_optimizers import BatchPlaces, SparseRows

WIDTH = 3


def sparse(ids, values, like):
    """A row-sparse gradient."""
    ids = torch.as_tensor(ids, dtype=torch.int64)
    return torch.sparse_coo_tensor(ids[None], values, like.shape, check_invariants=True)


def lazy_adamw(w, last, m, v, grads, t, *, lr, betas, eps, wd, log_decay):
    """One step, row by row in float64; what a row missed is made up for: means fade, weights decay."""
    b1, b2 = betas
    for row, g in grads.items():
        left_out = t - 1 - last[row]
        decay = math.exp(sum(log_decay[last[row] : t]))
        for i in range(WIDTH):
            m[row][i] = m[row][i] * b1**left_out * b1 + (1 - b1) * g[i]
            v[row][i] = v[row][i] * b2**left_out * b2 + (1 - b2) * g[i] ** 2
            w[row][i] *= decay
            w[row][i] -= lr * (m[row][i] / (1 - b1**t)) / (math.sqrt(v[row][i] / (1 - b2**t)) + eps)
        last[row] = t


@given(
    batches=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=6),
    wd=st.sampled_from([0.0, 0.3]),
    beta1=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 9),
)
def test_adamw_of_rows_equals_a_loop(batches, wd, beta1, seed):
    torch.manual_seed(seed)
    table = nn.Parameter(torch.randn(6, WIDTH))
    betas, eps = (beta1, 0.95), 1e-6
    opt = AdamW([table], lr=0.1, betas=betas, eps=eps, weight_decay=wd)
    w, m, v = table.double().tolist(), *(np.zeros((2, 6, WIDTH)).tolist())
    last, log_decay = [0] * 6, []
    for t, ids in enumerate(batches, 1):
        lr = 0.1 / t
        opt.param_groups[0]["lr"] = lr
        values = torch.randn(len(ids), WIDTH)
        table.grad = sparse(ids, values, table)
        opt.step()
        grads = {r: sum(v for i, v in zip(ids, values.double(), strict=True) if i == r).tolist() for r in set(ids)}
        log_decay.append(math.log1p(-lr * wd))
        lazy_adamw(w, last, m, v, grads, t, lr=lr, betas=betas, eps=eps, wd=wd, log_decay=log_decay)
        np.testing.assert_allclose(table.detach().numpy(), w, rtol=2e-5, atol=2e-6)
    opt.settle()
    whole = [[x * math.exp(sum(log_decay[last[r] :])) for x in row] for r, row in enumerate(w)]
    np.testing.assert_allclose(table.detach().numpy(), whole, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_where_every_row_has_a_gradient_it_is_the_dense_step(kind):
    torch.manual_seed(0)
    rows = nn.Parameter(torch.randn(40, 8))
    dense = nn.Parameter(rows.detach().clone())
    rows.segments = dense.segments = (0, 15, 40)
    opts = [kind([p], lr=0.05, weight_decay=0.1) for p in (rows, dense)]
    for _ in range(5):
        values, order = torch.randn(40, 8), torch.randperm(40)
        halves = torch.cat([order, order[:7]]), torch.cat([values[order], values[order[:7]]])
        halves[1][:7] /= 2
        halves[1][40:] /= 2
        rows.grad = sparse(halves[0], halves[1], rows)
        dense.grad = values
        for opt in opts:
            opt.step()
        torch.testing.assert_close(rows, dense, rtol=1e-5, atol=1e-6)


def test_lamb_of_rows_takes_its_norms_over_the_rows_of_the_batch():
    torch.manual_seed(1)
    table = nn.Parameter(torch.randn(9, 4))
    table.segments = (0, 4, 9)
    only = {0: nn.Parameter(table[[1, 3]].detach().clone()), 1: nn.Parameter(table[[4, 8]].detach().clone())}
    opt, others = Lamb([table], lr=0.1, weight_decay=0.2), Lamb(only.values(), lr=0.1, weight_decay=0.2)
    before = table.detach().clone()
    for _ in range(3):
        values = torch.randn(4, 4)
        table.grad = sparse([8, 1, 4, 3], values, table)
        only[0].grad, only[1].grad = values[[1, 3]], values[[2, 0]]
        opt.step()
        others.step()
    torch.testing.assert_close(table[[1, 3]], only[0])
    torch.testing.assert_close(table[[4, 8]], only[1])
    untouched = [0, 2, 5, 6, 7]
    assert torch.equal(table[untouched], before[untouched])


PLACES = BatchPlaces()  # one for all examples, so that numbers of earlier batches and other tables stand in it


@given(ids=st.lists(st.integers(0, 6), max_size=12), size=st.integers(7, 20), places=st.sampled_from([None, PLACES]))
def test_rows_of_a_gradient_each_once(ids, size, places):
    values = torch.arange(2.0 * len(ids)).view(-1, 2)
    rows = SparseRows.of(sparse(ids, values, torch.empty(size, 2)), places)
    dense = torch.zeros(size, 2)
    for i, v in zip(ids, values, strict=True):
        dense[i] += v
    assert sorted(rows.ids.tolist()) == sorted(set(ids))
    torch.testing.assert_close(torch.zeros(size, 2).index_add(0, rows.ids, rows.grads), dense)


@pytest.fixture
def nets(monkeypatch):
    """Twins, one with row-sparse gradients of its largest tables."""
    monkeypatch.setattr(limits, "SPARSE_FROM", 50)
    sizes = [(60, 8), (5, 8), (80, 16), (70, 8)]
    made = {g: EmbeddingTables(sizes, names=list("abcd"), grads=g) for g in ("dense", "rows")}
    for name in "abcd":
        made["rows"].load_table(name, made["dense"].table(name).detach())
    return made


def test_tables_with_row_sparse_gradients_are_the_same_tables(nets):
    ids = torch.stack([torch.randint(0, n, (30,)) for n in (60, 5, 80, 70)], 1)
    found = {g: net(ids) for g, net in nets.items()}
    assert torch.equal(found["dense"], found["rows"])
    for out in found.values():
        out.pow(2).sum().backward()
    assert {g for g, w in nets["rows"].weights.items() if w.grad.is_sparse} == {"w8_rows", "w16_rows"}
    for name in "abcd":
        s, d = (net.slice_of(name) for net in (nets["rows"], nets["dense"]))
        grad = nets["rows"].weights[s.group].grad
        grad = grad.to_dense() if grad.is_sparse else grad
        torch.testing.assert_close(grad[s.start : s.stop], nets["dense"].weights[d.group].grad[d.start : d.stop])


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_state_goes_on_where_it_was_saved(nets, kind):
    torch.manual_seed(0)
    net = nets["rows"]

    def step(net, opt, seed):
        torch.manual_seed(seed)
        opt.zero_grad()
        (net(torch.randint(0, 5, (20, 4))) - 1).pow(2).sum().backward()
        opt.step()

    opt = kind(net.parameters(), lr=0.1, weight_decay=0.1)
    for seed in range(3):
        step(net, opt, seed)
    twin = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    other = kind(twin.parameters(), lr=0.1, weight_decay=0.1)
    other.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(3, 6):
        step(net, opt, seed)
        step(twin, other, seed)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
