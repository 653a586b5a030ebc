"""Embedded columns joined by compiled loops against the pieces side by side, which torch looks up."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import kernels, limits
from fastrec._core.kernels import compiled
from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, TabularNet, tabular_net
from fastrec.models.embedding import side_by_side
from fastrec.models.tabular_net import can_join, join, linear_by_id

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


ODD = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 3.4e38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8])


@pytest.mark.parametrize("grads", ["dense", "rows"])
def test_for_a_linear_layer_under_autocast_it_is_bfloat16(grads, monkeypatch):
    monkeypatch.setattr(limits, "SPARSE_FROM", 6)
    tables = EmbeddingTables([(4, 8), (9, 3)], pad=False, std=1.0, grads=grads)
    with torch.no_grad():
        tables.weights[tables.slices[0].group][2, :8] = ODD
    x_cat = torch.stack([torch.arange(20) % 4, torch.arange(20) % 9], 1)
    values = [torch.randn(20, 2, requires_grad=True)]
    params = [*tables.parameters(), *values]

    class Residual(torch.nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    hooked = torch.nn.Sequential(torch.nn.Linear(13, 2))
    hooked.register_forward_pre_hook(lambda *_: None)
    readers = [torch.nn.BatchNorm1d(13), Residual(torch.nn.Linear(13, 13)), hooked, torch.nn.Sequential(), None]
    with torch.autocast("cpu", torch.bfloat16):
        assert {join(tables, x_cat, values, reader).dtype for reader in readers} == {torch.float32}
        out = join(tables, x_cat, values, torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(13, 2))))
    plain = side_by_side([*tables.pieces(x_cat), *values]).bfloat16()
    torch.testing.assert_close(out, plain, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit()[:, 1:], plain.signbit()[:, 1:])  # NaN has either sign
    pull = torch.randn(plain.shape)
    for a, b in zip(grads_of(out, pull, params), grads_of(plain, pull, params), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=5).filter(lambda w: max(w) >= 4),
    others=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(0, 40),
    bias=st.booleans(),
    grads=st.sampled_from(["dense", "rows"]),
    seed=st.integers(0, 99),
)
def test_a_layer_by_id_is_the_layer_of_the_pieces(widths, others, rows, bias, grads, seed):
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BY_ID_WIDTH", 4)
        patch.setattr(limits, "SPARSE_FROM", 6)
        sizes = [(3 + 9 * i, w) for i, w in enumerate(widths)]  # some with few ids of many rows, some with many
        tables = EmbeddingTables(sizes, pad=False, std=1.0, grads=grads).double()
        x_cat = torch.stack([torch.randint(0, n, (rows,)) for n, _ in sizes], 1)
        values = [torch.randn(rows, w, dtype=torch.float64, requires_grad=True) for w in others]
        linear = torch.nn.Linear(sum(widths) + sum(others), 3, bias=bias).double()
        out = linear_by_id(tables, x_cat, values, linear)
        plain = linear(side_by_side([*tables.pieces(x_cat), *values]))
        torch.testing.assert_close(out, plain)
        pull, params = torch.randn_like(plain), [*tables.parameters(), *values, *linear.parameters()]
        for a, b in zip(grads_of(out, pull, params), grads_of(plain, pull, params), strict=True):
            torch.testing.assert_close(a, b)


def test_under_autocast_the_net_computes_the_same():
    torch.manual_seed(0)
    net, x = TabularNet([(9, 5), (7, 3)], 2, 1, [4]), (torch.randint(0, 7, (40, 2)), torch.randn(40, 2))
    found = []
    for joins in (True, False):
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
            patch.setattr(tabular_net, "can_join", lambda *given, joins=joins: joins and can_join(*given))
            found.append(net(*x))
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "change", ["none", "hook", "pre-hook of layers", "own class", "few rows", "narrow", "functorch"]
)
def test_a_net_of_wide_tables_multiplies_by_id(monkeypatch, change):
    calls, seen = [], []
    monkeypatch.setattr(tabular_net, "linear_by_id", lambda *given: calls.append(1) or linear_by_id(*given))
    net = TabularNet([(9, 40 if change == "narrow" else 70), (5, 3)], 1, 1, [4], check_ids="never").eval()
    rows = 3 if change == "few rows" else 300
    x = torch.stack([torch.randint(0, 9, (rows,)), torch.randint(0, 5, (rows,))], 1), torch.ones(rows, 1)
    first = net.layers[0][0]
    if change == "hook":
        first.register_forward_hook(lambda *_: seen.append(1))
    elif change == "pre-hook of layers":
        net.layers.register_forward_pre_hook(lambda *_: seen.append(1))
    elif change == "own class":
        first.__class__ = type(
            "Own",
            (torch.nn.Linear,),
            {"forward": lambda self, x: seen.append(1) or F.linear(x, self.weight, self.bias)},
        )
    plain = net.layers(net.all_inputs(*x))
    seen.clear()
    out = torch.func.vmap(net)(x[0].unsqueeze(1), x[1].unsqueeze(1)).squeeze(1) if change == "functorch" else net(*x)
    torch.testing.assert_close(out, plain)
    assert len(calls) == (change == "none")
    assert len(seen) == (change in ("hook", "pre-hook of layers", "own class"))


def test_layers_of_another_form_are_called():
    net = TabularNet([(9, 70)], 1, 1, [4])
    net.layers = torch.nn.Identity()
    assert net(torch.zeros(300, 1, dtype=torch.int64), torch.ones(300, 1)).shape == (300, 73)  # padded to 72


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
