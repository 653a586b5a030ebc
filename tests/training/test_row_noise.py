"""SwapNoise, RowMixUp, denoising pretraining: training rows alone change, as they are said to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.data.block import RegressionBlock
from fastai.torch_core import set_seed
from torch import nn

from fastrec.errors import DataError
from fastrec.models import DeepFM, TabularNet, embedding_sizes
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import RowMixUp, SwapNoise, pretrain_denoising, rec_learner
from fastrec.training.noise import swapped
from tests.training.helpers import quiet_fit


def loaders(n: int = 400, bs: int = 100):
    rng = np.random.default_rng(0)
    kind, x = rng.integers(0, 5, n), rng.normal(size=n)
    frame = pd.DataFrame({"kind": kind, "same": kind, "x": x, "twice": 2 * x, "y": np.float32(x + kind)})
    procs = [Categorify, Normalize]
    splits = (range(n * 3 // 4), range(n * 3 // 4, n))
    to = TabularFrame(frame, procs, ["kind", "same"], ["x", "twice"], "y", y_block=RegressionBlock(), splits=splits)
    return to.dataloaders(bs=bs, seed=0)


class Seen(Callback):
    """What the net was given: training rows, and validation rows."""

    order = 50

    def before_fit(self):
        self.taught, self.held = [], []

    def before_batch(self):
        (self.taught if self.training else self.held).append((*self.learn.xb, *self.learn.yb))


def trained(*cbs):
    set_seed(0)
    dls, seen = loaders(), Seen()
    learn = rec_learner(dls, TabularNet, n_out=1, layers=[8], cbs=[seen, *cbs], loss_func=nn.MSELoss())
    quiet_fit(learn, 1, 1e-3, by="fit")
    return learn, seen


def rows(batches):
    return torch.cat([torch.cat([x.double() for x in b], 1) for b in batches])


@pytest.mark.parametrize("callback", [SwapNoise(0.9), RowMixUp(1.0)])
def test_validation_rows_never_change(callback):
    learn, seen = trained(callback)
    expected = rows([tuple(x for x in b) for b in learn.dls.valid])
    assert torch.equal(rows(seen.held), expected)
    assert not torch.equal(rows(seen.taught).sort(0).values, rows(list(learn.dls.train)).sort(0).values)
    own = learn.loss_func
    assert isinstance(own, nn.MSELoss)
    with learn.no_bar():  # nor do predictions
        assert torch.equal(learn.get_preds(ds_idx=0)[0], learn.get_preds(ds_idx=0)[0])


def test_swapped_cells_are_those_of_other_rows():
    torch.manual_seed(0)
    values = torch.arange(8000).view(2000, 4)
    got = swapped(values, 0.3)
    assert torch.equal(got % 4, values % 4)  # of the same column
    changed = got != values
    assert changed.double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert float((changed[:, 0] & changed[:, 1]).double().mean()) == pytest.approx(0.09, abs=0.02)
    assert torch.equal(swapped(values, 0.0), values)
    assert swapped(values[:, :0], 0.5).shape == (2000, 0)


def test_swap_noise_leaves_targets():
    learn, seen = trained(SwapNoise(0.5))
    known = {round(float(y), 5) for b in learn.dls.train for y in b[-1].flatten()}
    assert {round(float(y), 5) for b in seen.taught for y in b[-1].flatten()} == known
    x = torch.cat([b[1] for b in seen.taught])
    together = (
        torch.isclose(x[:, 0], x[:, 1], atol=1e-5).double().mean()
    )  # the two columns hold the same, but for noise
    assert 0.15 < together < 0.35  # a quarter: neither cell was swapped


def test_mixed_rows_lie_between_two_and_so_does_the_loss():
    set_seed(3)
    learn, seen = trained(RowMixUp(1.0))
    x = torch.cat([b[1] for b in seen.taught])
    torch.testing.assert_close(x[:, 0], x[:, 1], atol=1e-5, rtol=1e-5)  # a row's numbers are mixed alike
    names = {round(float(v), 5) for b in learn.dls.train for v in b[1][:, 0]}
    assert sum(round(float(v), 5) not in names for v in x[:, 0]) > 250
    cats = torch.cat([b[0] for b in seen.taught])
    assert set(cats.flatten().tolist()) <= set(range(1, 6))
    assert 0.0 < (cats[:, 0] != cats[:, 1]).double().mean() < 0.5  # each is drawn for itself
    # the loss, worked out from what the net said and the pairs that its weight and its numbers tell of
    batch, callback = next(iter(learn.dls.train)), RowMixUp(0.7)
    callback.learn, learn.xb, learn.yb = learn, batch[:2], batch[2:]
    set_seed(5)
    callback.before_batch()
    pred = learn.model(*learn.xb)
    got = learn.loss_func(pred, *learn.yb)
    set_seed(5)
    weight = float(torch.distributions.Beta(0.7, 0.7).sample())
    weight, other = max(weight, 1 - weight), torch.randperm(len(batch[1]), device=batch[1].device)
    assert torch.equal(learn.xb[1], weight * batch[1] + (1 - weight) * batch[1][other])
    y = batch[2]
    torch.testing.assert_close(
        got, weight * (pred - y).square().mean() + (1 - weight) * (pred - y[other]).square().mean()
    )


def test_an_interrupted_batch_leaves_no_loss_behind(monkeypatch):
    learn, _ = trained(RowMixUp(1.0))
    own, forward = learn.loss_func, learn.model.forward
    with learn.no_bar(), learn.no_logging():
        expected = float(learn.validate()[0])
        for go_on in (learn.validate, lambda: learn.fit(1, 0.0)):

            def stop(*args):
                raise KeyboardInterrupt

            monkeypatch.setattr(learn.model, "forward", stop)
            with pytest.raises(KeyboardInterrupt):
                learn.fit(1, 0.0)
            monkeypatch.setattr(learn.model, "forward", forward)
            go_on()
            assert learn.loss_func is own
        assert float(learn.validate()[0]) == pytest.approx(expected, rel=0.1)


def test_denoising_trains_the_hidden_layers_by_training_rows_alone():
    dls = loaders()
    set_seed(0)
    net = TabularNet(embedding_sizes(dls.train_ds.classes, ["kind", "same"]), 2, 1, [16])
    before = {n: p.detach().cpu().clone() for n, p in net.named_parameters()}
    moments = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    losses = pretrain_denoising(dls, net, 30, lr=1e-2)
    assert np.mean(losses[-3:]) < 0.6 * np.mean(losses[:3])  # what one column lost another one tells
    still = {n for n, p in net.named_parameters() if torch.equal(p.cpu(), before[n])}
    assert still == {n for n in before if n.startswith("layers.1.")}
    assert len(moments) > 0
    # other validation rows, and other targets: the same net
    set_seed(0)
    other = TabularNet(embedding_sizes(dls.train_ds.classes, ["kind", "same"]), 2, 1, [16])
    changed = loaders()
    changed.valid_ds.packed.buffer.zero_()
    changed.train_ds.packed.views[2].zero_()
    assert pretrain_denoising(changed, other, 30, lr=1e-2) == losses


def test_errors():
    with pytest.raises(DataError, match=r"share of 1\.5"):
        SwapNoise(1.5)
    with pytest.raises(DataError, match="alpha=0"):
        RowMixUp(0)
    dls = loaders()
    with pytest.raises(DataError, match="DeepFM has no hidden layers"):
        pretrain_denoising(dls, DeepFM(embedding_sizes(dls.train_ds.classes, ["kind", "same"]), 2, 1))
    with pytest.raises(DataError, match="no hidden layers"):
        pretrain_denoising(dls, TabularNet(embedding_sizes(dls.train_ds.classes, ["kind", "same"]), 2, 1, []))
