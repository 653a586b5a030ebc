"""LAMB's and AdamW's steps, dense and row-sparse, against plain loops and torch_optimizer's LAMB."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastrec._core.device import on_host, resolve_device
from fastrec._core.kernels import compiled
from fastrec.errors import DataError
from fastrec.optim import AdamW, Lamb
from fastrec.optim.torch_optimizers import BatchPlaces, SparseRows

DEVICE = resolve_device()
DEVICES = ["cpu", *([] if on_host(DEVICE) else [DEVICE.type])]


@pytest.mark.parametrize("debias", ["paper", True, False])
@pytest.mark.parametrize("clamp", [None, 1.5])
@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("adapt_1d", [True, False])
def test_lamb_equals_the_plain_loop_step_for_step(debias, clamp, wd, adapt_1d):
    torch.manual_seed(0)
    shapes = [(4, 3), (7,), (2, 2, 2), (3,), ()]
    params = [nn.Parameter(torch.randn(s, dtype=torch.double, device=DEVICE)) for s in shapes]
    params[3].data.zero_()  # a bias that starts at zero has no trust ratio yet
    config = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "clamp": clamp, "debias": debias}
    opt = Lamb(params, weight_decay=wd, adapt_1d=adapt_1d, **config)
    layers = [PlainTable(p.detach().view(-1, 1), (0, p.numel()), adapt=adapt_1d or p.ndim > 1) for p in params]
    for _ in range(6):
        for p, layer in zip(params, layers, strict=True):
            p.grad = torch.randn_like(p)
            layer.step(dict(enumerate(p.grad.view(-1, 1).tolist())), wd=wd, **config)
        opt.step()
        for p, layer in zip(params, layers, strict=True):
            assert p.flatten().tolist() == pytest.approx([w for (w,) in layer.w], rel=1e-9, abs=1e-12)


class PlainTable:
    """A table whose rows take LAMB's step in float64, a number at a time; rows without a gradient wait.

    A row's running means fade by the steps that it missed. Without a trust ratio its weights decay by those too
    (AdamW's decay); with one they decay in its own steps alone.
    """

    def __init__(self, start, bounds, *, adapt):
        self.w, self.bounds, self.adapt = start.double().tolist(), bounds, adapt
        self.m, self.v = ([[0.0] * len(row) for row in self.w] for _ in range(2))
        self.last, self.rates = [0] * len(self.w), []

    def step(self, grads, *, lr, betas, eps, wd, clamp, debias):
        """One step; grads: row → its gradient."""
        (b1, b2), t = betas, len(self.rates) + 1
        rate = lr * math.sqrt(1 - b2**t) / (1 - b1**t) if debias is True else lr
        fix1, fix2 = (1 / (1 - b1**t), 1 / (1 - b2**t)) if debias == "paper" else (1.0, 1.0)
        self.rates.append(rate)
        for start, stop in zip(self.bounds, self.bounds[1:], strict=False):
            rows, moves = [r for r in sorted(grads) if start <= r < stop], {}
            for r in rows:
                missed, move = t - 1 - self.last[r], []
                if not self.adapt:
                    for left_out in self.rates[self.last[r] : t]:
                        self.w[r] = [x * (1 - left_out * wd) for x in self.w[r]]
                for i, g in enumerate(grads[r]):
                    self.m[r][i] = b1 * b1**missed * self.m[r][i] + (1 - b1) * g
                    self.v[r][i] = b2 * b2**missed * self.v[r][i] + (1 - b2) * g * g
                    adam = self.m[r][i] * fix1 / (math.sqrt(self.v[r][i] * fix2) + eps)
                    move.append(adam + wd * self.w[r][i] if self.adapt else adam)
                moves[r], self.last[r] = move, t
            weight = math.sqrt(sum(x * x for r in rows for x in self.w[r]))
            size = math.sqrt(sum(x * x for move in moves.values() for x in move))
            weight = weight if clamp is None else min(weight, clamp)
            trust = weight / size if self.adapt and weight > 0 and size > 0 else 1.0
            for r in rows:
                self.w[r] = [x - rate * trust * u for x, u in zip(self.w[r], moves[r], strict=True)]


@pytest.mark.parametrize("way", ["calls", "loops"])
@pytest.mark.parametrize("gradients", ["dense", "rows"])
@pytest.mark.parametrize("device", DEVICES)
@given(
    batches=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8), min_size=1, max_size=5),
    debias=st.sampled_from(["paper", True, False]),
    clamp=st.sampled_from([None, 0.8]),
    adapt=st.booleans(),
    beta1=st.sampled_from([0.0, 0.8]),
    wd=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
def test_a_table_takes_the_plain_loops_steps(way, gradients, device, batches, debias, clamp, adapt, beta1, wd, seed):
    if way == "loops" and (device != "cpu" or not compiled(1 << 30)):
        pytest.skip("loops are for CPUs where numba is installed")
    torch.manual_seed(seed)
    table = nn.Parameter(torch.randn(7, 3, device=device))
    table.segments = (0, 2, 7)
    config = {"betas": (beta1, 0.95), "eps": 1e-3, "clamp": clamp, "debias": debias}
    opt = Lamb([table], weight_decay=wd, adapt_tables=adapt, **config)
    plain = PlainTable(table.detach(), table.segments, adapt=adapt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec.optim.torch_optimizers.compiled", lambda numbers: way == "loops")
        for t, ids in enumerate(batches, 1):
            opt.param_groups[0]["lr"] = 0.1 / t
            values = torch.randn(len(ids), 3, device=device)
            grad = sparse(ids, values, table)
            table.grad = grad if gradients == "rows" else grad.to_dense()
            dense = grad.to_dense().double().tolist()
            opt.step()
            plain.step({r: dense[r] for r in (ids if gradients == "rows" else range(7))}, lr=0.1 / t, wd=wd, **config)
            wanted = torch.tensor(plain.w).double()
            torch.testing.assert_close(table.detach().double().cpu(), wanted, rtol=2e-5, atol=4e-6)


def test_weights_of_another_layout_take_the_same_steps():
    torch.manual_seed(0)
    start, ends = torch.randn(5, 3, device=DEVICE), []
    grads = [torch.randn(3, 5, device=DEVICE) for _ in range(3)]
    for turned in (False, True):
        p = nn.Parameter(start.clone().t() if turned else start.t().contiguous())
        q = nn.Parameter(torch.ones(3, 5, device=DEVICE))
        opt = Lamb([p, q], lr=0.1, weight_decay=0.1)
        for grad in grads:
            p.grad = torch.empty_like(p).copy_(grad)
            q.grad = grad.clone() if turned else grad.t().contiguous().t()
            opt.step()
        ends.append((p.detach(), q.detach()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)


def test_a_state_of_other_shapes_is_refused():
    small, large = (nn.Parameter(torch.ones(rows, 64, device=DEVICE)) for rows in (3, 600))
    first, opt = Lamb([small]), Lamb([large])
    small.grad, large.grad = torch.ones_like(small), torch.ones_like(large)
    first.step()
    opt.load_state_dict(first.state_dict())
    with pytest.raises(DataError, match=r"\[600, 64\] and its running means, which were loaded, are \[3, 64\]"):
        opt.step()


# ---- row-sparse gradients


def sparse(ids, values, like):
    """A row-sparse gradient."""
    ids = torch.as_tensor(ids, dtype=torch.int64, device=like.device)
    return torch.sparse_coo_tensor(ids[None], values, like.shape, check_invariants=True)


@pytest.mark.parametrize("parts", [0, 1, 2])
@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=25), min_size=1, max_size=6),
    width=st.sampled_from([1, 3, 16, 20]),
    wd=st.sampled_from([0.0, 0.3]),
    beta1=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 9),
)
def test_adamw_of_rows_equals_a_loop_by_calls_and_by_loops_in_any_number_of_parts(
    parts, batches, width, wd, beta1, seed
):
    if parts and not (on_host(DEVICE) and compiled(1 << 30)):
        pytest.skip("loops are for CPUs where numba is installed")
    torch.manual_seed(seed)
    table = nn.Parameter(torch.randn(31, width, device=DEVICE))
    config = {"betas": (beta1, 0.95), "eps": 1e-6}
    opt, plain = AdamW([table], weight_decay=wd, **config), PlainTable(table.detach(), (0, 31), adapt=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.kernels.threads_for", lambda numbers: parts)
        patch.setattr("fastrec.optim.torch_optimizers.compiled", lambda numbers: parts > 0)
        for t, ids in enumerate(batches, 1):
            opt.param_groups[0]["lr"] = 0.1 / t
            values = torch.randn(len(ids), width, device=DEVICE)
            table.grad = sparse(ids, values.clone(), table)
            dense = table.grad.to_dense().double().tolist()
            opt.step()
            assert torch.equal(table.grad._values(), values)  # a step reads gradients only
            plain.step({r: dense[r] for r in ids}, lr=0.1 / t, wd=wd, clamp=None, debias="paper", **config)
            np.testing.assert_allclose(table.detach().cpu().numpy(), plain.w, rtol=2e-5, atol=2e-6)
    opt.settle()
    left = [math.prod(1 - rate * wd for rate in plain.rates[last:]) for last in plain.last]
    np.testing.assert_allclose(table.detach().cpu().numpy(), np.multiply(plain.w, np.c_[left]), rtol=2e-5, atol=2e-6)


PLACES = BatchPlaces()  # one for all examples, so that numbers of earlier batches and other tables stand in it


@given(ids=st.lists(st.integers(0, 6), max_size=12), size=st.integers(7, 20), places=st.sampled_from([None, PLACES]))
def test_rows_of_a_gradient_each_once(ids, size, places):
    grad = sparse(ids, torch.arange(2.0 * len(ids)).view(-1, 2), torch.empty(size, 2))
    rows = SparseRows.of(grad, places)
    assert sorted(rows.ids.tolist()) == sorted(set(ids))
    torch.testing.assert_close(torch.zeros(size, 2).index_add(0, rows.ids, rows.grads), grad.to_dense())
