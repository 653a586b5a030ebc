"""fastai's GradientAccumulation over this library's loader, optimizers and losses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.training import GradientAccumulation
from fastai.torch_core import set_seed

from fastrec._core.device import resolve_device
from fastrec.losses import BCE
from fastrec.optim import adamw, lamb
from fastrec.tabular import Categorify, TabularFrame
from fastrec.training import rec_learner
from tests.training.helpers import quiet_fit

TRAIN, BIG = 480, 120
ROWS = TRAIN + 40


def trained(tmp_path, bs, opt_func, cbs=(), shuffle=True, amp=None, **options):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 40, ROWS), "x": rng.normal(size=ROWS)})
    df["y"] = (df.x + df.c % 2 > 0.5).astype(np.float32)
    to = TabularFrame(df, [Categorify], ["c"], ["x"], "y", splits=(range(TRAIN), range(TRAIN, ROWS)))
    dls = to.dataloaders(bs=bs, path=tmp_path, seed=5, shuffle=shuffle)
    set_seed(0)
    net = {"layers": [8], "use_bn": False, "bn_cont": False}
    learn = rec_learner(dls, opt_func=opt_func, loss_func=BCE(), cbs=[*cbs], amp=amp, **net, **options)
    return quiet_fit(learn, 3, 1e-2, by="fit")


@pytest.mark.parametrize("parts", [2, 3, 8])
@pytest.mark.parametrize(
    ("opt_func", "options"),
    [(adamw, {}), (partial(adamw, wd=0.1), {}), (lamb, {}), (adamw, {"grads": "rows", "emb_szs": [(20_000, 4)]})],
    ids=["adamw", "decay", "lamb", "rows"],
)
def test_small_batches_added_up_are_the_large_batch(tmp_path, parts, opt_func, options):
    one = trained(tmp_path, BIG, opt_func, **options)
    many = trained(tmp_path, BIG // parts, opt_func, [GradientAccumulation(BIG)], **options)
    alone = trained(tmp_path, BIG // parts, opt_func, **options)
    for name, weight in one.model.state_dict().items():
        assert torch.allclose(many.model.state_dict()[name], weight, atol=1e-6, rtol=1e-5), name
    assert any(not torch.allclose(alone.model.state_dict()[k], v, atol=1e-3) for k, v in one.model.state_dict().items())


def test_with_autocast(tmp_path, monkeypatch):
    monkeypatch.setattr("fastrec.training.acceleration._cpu_is_fast", lambda: True)  # whatever else the machine does
    one = trained(tmp_path, BIG, adamw, amp="bf16")
    many = trained(tmp_path, BIG // 4, adamw, [GradientAccumulation(BIG)], amp="bf16")
    for name, weight in one.model.state_dict().items():
        assert torch.allclose(many.model.state_dict()[name], weight, atol=5e-3), name
    assert not torch.is_autocast_enabled(resolve_device().type)
