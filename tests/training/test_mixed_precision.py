from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.learner import Learner
from fastai.torch_core import set_seed
from torch import nn

from fastrec.errors import DataError, DeviceError
from fastrec.losses import BCE
from fastrec.optim import lamb
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import BF16Autocast, rec_learner
from fastrec.training import acceleration as amp
from fastrec.training.acceleration import mixed_precision
from tests.training.helpers import Kill, Killed, clicks, quiet_fit

N = 900


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    """bfloat16 whatever the CPU that runs the tests."""
    monkeypatch.setattr(amp, "_cpu_is_fast", lambda: True)


@pytest.fixture
def dls(tmp_path):
    splits = (range(700), range(700, N))
    to = TabularFrame(clicks(N), [Categorify, Normalize], ["c"], ["x", "z"], "y", splits=splits)
    return to.dataloaders(bs=64, path=tmp_path, seed=3)


def make(dls, seed=0, **options):
    set_seed(seed)
    return rec_learner(dls, layers=[16, 8], loss_func=BCE(), **options)


fit = partial(quiet_fit, lr=2e-2)


class Dtypes(Callback):
    """What the layers' outputs and the loss's inputs are."""

    order = 50

    def before_fit(self):
        self.seen, self.preds = {}, set()
        for name, m in self.learn.model.named_modules():
            if isinstance(m, nn.Linear | nn.BatchNorm1d):
                m.register_forward_hook(lambda m, x, y, name=name: self.seen.setdefault(name, set()).add(y.dtype))

    def after_pred(self):
        self.preds.add((self.learn.pred.dtype, torch.is_autocast_enabled(self.learn.pred.device.type)))


def test_products_are_bfloat16_and_all_that_stays_is_float32(dls):
    learn = make(dls, amp="bf16", cbs=Dtypes)
    before = [p.detach().cpu().clone() for p in learn.model.parameters()]
    fit(learn)
    assert learn.dtypes.seen["layers.0.0"] == {torch.bfloat16}
    assert learn.dtypes.preds == {(torch.float32, False)}  # the loss is outside
    assert all(v.dtype == torch.float32 for v in learn.model.state_dict().values() if v.is_floating_point())
    states = learn.opt.opt.state.values()
    assert all(t.dtype == torch.float32 for s in states for t in s.values() if isinstance(t, torch.Tensor))
    assert all(not torch.equal(a, b.cpu()) for a, b in zip(before, learn.model.parameters(), strict=True))
    assert learn.recorder.losses[-1] < learn.recorder.losses[0]


def test_it_computes_what_autocast_computes(dls):
    learn = make(dls, amp="bf16")
    with learn.no_bar():
        found, targets = learn.get_preds()
    x_cat, x_cont, y = (torch.cat(parts) for parts in zip(*dls.valid, strict=True))
    learn.model.eval()
    with torch.no_grad():
        exact = learn.model(x_cat, x_cont).sigmoid().cpu()
        with torch.autocast(x_cat.device.type, dtype=torch.bfloat16):
            wanted = learn.model(x_cat, x_cont).float().sigmoid().cpu()
    assert found.dtype == torch.float32
    assert torch.equal(targets, y.cpu())
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.equal(found, exact)
    assert torch.allclose(found, exact, atol=0.02)


def test_to_bf16_and_back(dls):
    learn = make(dls)
    with learn.no_bar():
        exact = learn.get_preds()[0]
        assert learn.to_bf16() is learn
        rough = learn.get_preds()[0]
        assert learn.to_fp32() is learn
        again = learn.get_preds()[0]
    assert torch.equal(exact, again)
    assert not torch.equal(exact, rough)
    assert not [cb for cb in learn.cbs if isinstance(cb, BF16Autocast)]


def test_a_stock_learner_takes_it(dls):
    net = make(dls).model
    learn = Learner(dls, net, loss_func=BCE(), opt_func=lamb, cbs=[BF16Autocast(), Dtypes()])
    fit(learn)
    assert learn.dtypes.seen["layers.0.0"] == {torch.bfloat16}


@pytest.mark.parametrize("event", ["before_batch", "after_pred", "before_step", "in the model"])
def test_autocast_is_off_after_an_interruption(dls, event):
    learn = make(dls, amp="bf16", cbs=[] if event == "in the model" else Kill(0, event))
    if event == "in the model":
        learn.model.layers[0][0] = nn.Linear(3, 16)
    with pytest.raises((Killed, RuntimeError)):
        fit(learn)
    assert not torch.is_autocast_enabled(dls.device.type)


def test_kinds_and_devices():
    assert mixed_precision(None, "cpu") is None
    assert isinstance(mixed_precision("bf16", "cpu"), BF16Autocast)
    assert isinstance(mixed_precision("fp16", "cuda"), MixedPrecision)
    with pytest.raises(DeviceError, match="fp16 needs CUDA"):
        mixed_precision("fp16", torch.device("cpu"))
    with pytest.raises(DataError, match="no precision 'int8'"):
        mixed_precision("int8", "cpu")


OLD_CPU = """
import warnings
import torch
from fastrec.training.acceleration import BF16Autocast, _cpu_is_fast
from types import SimpleNamespace as Of

def used(cb):
    cb.learn = Of(model=torch.nn.Linear(1, 1))
    cb.before_fit()
    return cb._used

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(used(BF16Autocast()), used(BF16Autocast()), used(BF16Autocast(force=True)), len(told), told[0].message)
"""


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AVX2"), reason="no x86 CPU")
def test_a_cpu_that_is_slow_at_it_goes_on_in_float32(request):
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(request.config.rootpath), env.get("PYTHONPATH")) if p)
    done = subprocess.run([sys.executable, "-c", OLD_CPU], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False False True 1 bfloat16 takes this CPU")
    assert "goes on in float32" in done.stdout
