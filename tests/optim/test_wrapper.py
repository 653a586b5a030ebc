"""Optimizers as a Learner has them, and their hyper-parameters by fastai's names."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from fastai import optimizer as fastai_optim
from fastai.optimizer import OptimWrapper
from torch import nn

from fastrec._core.device import resolve_device
from fastrec.errors import DataError
from fastrec.models import EmbeddingTables
from fastrec.optim import AdamW, Lamb, TorchOptim, adamw, as_opt_func, lamb, scale_lr, scale_moms
from fastrec.optim.wrapper import GroupHypers

DEVICE = resolve_device()


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE)


def train(net, opt, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(32, 5, generator=g).to(DEVICE)
        opt.zero_grad()
        ((net(x)[:, 0] - x.sum(1)) ** 2).mean().backward()
        opt.step()


def marked(net, opt):
    """What a Learner does to norms and biases before the first step."""
    for p in net.parameters():
        if p.ndim < 2:
            opt.state[p]["do_wd"] = False
    return opt


def test_adamw_takes_the_steps_of_fastais_adam():
    nets = [small_net(), small_net()]
    makers = [partial(fastai_optim.Adam, wd=0.3), partial(adamw, wd=0.3)]
    opts = [marked(net, make(list(net.parameters()), lr=0.01)) for net, make in zip(nets, makers, strict=True)]
    for k in range(6):
        for net, opt in zip(nets, opts, strict=True):
            opt.set_hyper("lr", np.array([0.01 * (k + 1)]))  # as fit_one_cycle does
            opt.set_hyper("mom", 0.95 - 0.02 * k)
            train(net, opt, 1, seed=k)
    for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        if name != "0.bias":  # before a batch norm its gradient is rounding noise, which Adam blows up
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), name
    assert [h["mom"] for h in opts[1].hypers] == pytest.approx([0.85])


@pytest.mark.parametrize("make", [lamb, adamw])
def test_norms_and_biases_are_not_decayed_unless_asked(make):
    for mark, moved in [(marked, False), (lambda net, opt: opt, True)]:
        net = small_net()
        net[0].bias.data.fill_(1.0)
        opt = mark(net, make(list(net.parameters()), lr=0.1, wd=0.5))
        weight = net[0].weight.detach().clone()
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        opt.step()
        assert torch.equal(net[0].bias, torch.ones(8, device=DEVICE)) is not moved
        assert not torch.equal(net[0].weight, weight)


def test_hypers_reach_all_groups_and_parameter_lists_stay_whole():
    net = small_net()
    lists = [list(net[0].parameters()), list(net[1].parameters()) + list(net[3].parameters())]
    opt = marked(net, lamb(lists, 0.1))
    train(net, opt, 1)
    opt.set_hyper("lr", slice(0.01, 0.1))
    opt.set_hyper("mom", 0.7)
    opt.set_hyper("wd", 0.2)
    assert [h["lr"] for h in opt.hypers] == pytest.approx([0.01, 0.1])
    assert {h["mom"] for h in opt.hypers} == {0.7}
    assert [{id(p) for p in ps} for ps in opt.param_lists] == [{id(p) for p in ps} for ps in lists]
    for group in opt.opt.param_groups:
        decayed = {p.ndim > 1 for p in group["params"]}
        assert decayed == {group["weight_decay"] == 0.2}
        assert group["betas"][0] == 0.7
        of_the_first = group["params"][0].data_ptr() in {p.data_ptr() for p in lists[0]}
        assert group["lr"] == pytest.approx(0.01 if of_the_first else 0.1)
    opt.freeze()
    before = [p.detach().clone() for p in lists[0]]
    train(net, opt, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, lists[0], strict=True))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (torch.optim.SGD, torch.optim.SGD),
        (partial(torch.optim.AdamW, fused=True), torch.optim.AdamW),
        (Lamb, Lamb),
        (lamb, Lamb),
        (partial(lamb, clamp=10), Lamb),
        (adamw, AdamW),
        (fastai_optim.RAdam, None),
    ],
)
def test_optimizers_of_both_houses_become_opt_funcs(given, kind):
    net = small_net()
    opt = as_opt_func(given)([list(net.parameters())], lr=0.05)
    assert (type(opt.opt) is kind) if kind else isinstance(opt, fastai_optim.Optimizer)
    assert opt.hypers[0]["lr"] == 0.05
    before = net[0].weight.detach().clone()
    train(net, opt, 1)
    assert not torch.equal(before, net[0].weight)


def test_layerwise_optimizers_that_know_no_segments_are_warned_about():
    fused = EmbeddingTables([(5, 4), (6, 4)])
    with pytest.warns(UserWarning, match="Lamb will take several fused"):
        as_opt_func(fastai_optim.Lamb, model=fused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for quiet in (lamb, Lamb, partial(lamb, clamp=10), adamw, fastai_optim.Adam):
            as_opt_func(quiet, model=fused)
        as_opt_func(fastai_optim.Lamb, model=EmbeddingTables([(5, 4), (6, 8)]))


def test_a_built_optimizer_is_wrapped_and_rubbish_and_bad_settings_are_refused():
    built = torch.optim.SGD(small_net().parameters(), lr=0.1)
    assert isinstance(as_opt_func(built), TorchOptim)
    assert as_opt_func(built).opt is built
    with pytest.raises(DataError, match="no optimizer"):
        as_opt_func("adam")
    for bad in ({"lr": -1}, {"betas": (1.0, 0.9)}, {"weight_decay": -0.1}, {"eps": -1e-8}):
        with pytest.raises(DataError, match="LAMB with lr"):
            Lamb([nn.Parameter(torch.ones(3))], **bad)


def test_a_closure_gives_the_loss():
    p = nn.Parameter(torch.tensor([2.0]))
    opt = Lamb([p], lr=0.1)

    def closure():
        opt.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 4
    assert p.item() < 2


def test_learning_rates_and_momentum_scale_with_the_batch():
    assert scale_lr(0.01, 4096 * 16, 4096) == pytest.approx(0.04)
    assert scale_lr(0.01, 4096 * 16, 4096, rule="linear") == pytest.approx(0.16)
    assert scale_lr(0.01, 1024, 4096) == pytest.approx(0.005)
    for bad in ({"bs": 0}, {"base_bs": 0}, {"rule": "cube"}):
        with pytest.raises(DataError):
            scale_lr(**{"lr": 0.1, "bs": 8, "base_bs": 8, **bad})
    assert scale_moms(0.9, 2048, 1024) == pytest.approx(0.8)
    assert scale_moms((0.95, 0.85, 0.95), 4096, 4096) == pytest.approx((0.95, 0.85, 0.95))
    assert scale_moms([0.99, 0.9], 16, 1) == pytest.approx((0.84, 0.0))  # not below 0
    assert scale_moms([0.99, 0.9], 16, 1, floor=0.5) == pytest.approx((0.84, 0.5))
    assert scale_moms(0.9, 512, 1024) == pytest.approx(0.95)
    with pytest.raises(DataError, match="batch sizes 0 and 4"):
        scale_moms(0.9, 0, 4)


# ---- hyper-parameters by fastai's names write through to the torch optimizer


NAMES = {"weight_decay": "wd", "betas__0": "mom", "betas__1": "sqr_mom"}


def test_a_group_is_read_and_written_by_fastais_names():
    group = {"params": [1], "lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.01}
    own = dict(group)
    hypers = GroupHypers(own, NAMES)
    assert dict(hypers) == {"lr": 0.1, "mom": 0.9, "sqr_mom": 0.99, "wd": 0.01}
    hypers["mom"] = 0.5
    hypers["lr"] = 0.2
    assert own == group | {"lr": 0.2, "betas": (0.5, 0.99)}
    own["weight_decay"] = 0.3  # by torch's name
    assert hypers["wd"] == 0.3
    assert len(hypers) == 4
    assert "mom" in hypers
    assert "params" not in hypers
    with pytest.raises(KeyError, match=r"no 'eps'.*lr, mom, sqr_mom, wd"):
        hypers["eps"] = 1.0
    with pytest.raises(TypeError, match="cannot be removed"):
        del hypers["lr"]


@pytest.mark.parametrize("value", [0.3, [0.3, 0.4], np.array([0.3, 0.4]), slice(0.03, 0.3), slice(0.3)], ids=str)
def test_one_value_several_or_a_slice_are_set_as_fastai_sets_them(value):
    made = []
    for kind in (TorchOptim, OptimWrapper):
        params = [[nn.Parameter(torch.ones(2))] for _ in range(2)]
        opt = kind(params, partial(torch.optim.AdamW, lr=0.1))
        opt.set_hyper("lr", value)
        made.append([g["lr"] for g in opt.opt.param_groups])
    assert made[0] == pytest.approx(made[1])
    assert all(type(lr) is float for lr in made[0])  # a saved state must hold no numpy scalar
    opt = TorchOptim([[nn.Parameter(torch.ones(2))]], partial(torch.optim.AdamW, lr=0.1))
    opt.set_hyper("lr", np.float32(0.5))
    assert type(opt.opt.param_groups[0]["lr"]) is float
