"""Hyper-parameters by fastai's names write through to the torch optimizer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import ReduceLROnPlateau
from fastai.optimizer import OptimWrapper
from torch import nn

from fastrec.optim import TorchOptim, adamw
from fastrec.optim.wrapper import GroupHypers
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import rec_learner

NAMES = {"weight_decay": "wd", "betas__0": "mom", "betas__1": "sqr_mom"}


def group():
    return {"params": [1], "lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.01}


def test_a_group_is_read_and_written_by_fastais_names():
    own = group()
    hypers = GroupHypers(own, NAMES)
    assert dict(hypers) == {"lr": 0.1, "mom": 0.9, "sqr_mom": 0.99, "wd": 0.01}
    hypers["mom"] = 0.5
    hypers["lr"] = 0.2
    assert own == group() | {"lr": 0.2, "betas": (0.5, 0.99)}
    own["weight_decay"] = 0.3  # by torch's name
    assert hypers["wd"] == 0.3
    assert len(hypers) == 4
    assert "mom" in hypers
    assert "params" not in hypers


def test_what_is_not_there_cannot_be_set_or_removed():
    hypers = GroupHypers(group(), NAMES)
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


def test_a_numpy_number_is_one_value():
    opt = TorchOptim([[nn.Parameter(torch.ones(2))]], partial(torch.optim.AdamW, lr=0.1))
    opt.set_hyper("lr", np.float32(0.5))
    assert type(opt.opt.param_groups[0]["lr"]) is float


def test_a_callback_that_lowers_the_rate_is_heard():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"x": rng.normal(size=90), "y": rng.normal(size=90)})
    frame = TabularFrame(df, [Categorify, Normalize], [], ["x"], "y", splits=(range(60), range(60, 90)))
    lower = ReduceLROnPlateau(monitor="train_loss", min_delta=1e9, patience=1, factor=10)  # never better
    seen = []
    note = Callback(after_step=lambda self: seen.append({g["lr"] for g in self.opt.opt.param_groups}))
    learn = rec_learner(frame.dataloaders(30), layers=[4], opt_func=adamw, cbs=[lower, note])
    with learn.no_bar(), learn.no_logging():
        learn.fit(4, 1e-2)
    assert seen[0] == {1e-2}
    assert [len(rates) for rates in seen] == [1] * 8  # those that do not decay too
    assert max(seen[-1]) < 2e-3
