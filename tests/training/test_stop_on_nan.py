from __future__ import annotations

import math
import re
from functools import partial
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.data.block import RegressionBlock
from fastai.tabular.core import TabularPandas
from fastai.tabular.learner import tabular_learner
from fastai.torch_core import set_seed
from torch import nn

from fastrec.errors import DataError, TrainingError
from fastrec.losses import BCE, ListwiseSoftmax
from fastrec.models import DeepFM, TabularNet, embedding_sizes
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import Checkpoint, RowMixUp, StopOnNaN, SwapNoise, pretrain_denoising, rec_learner
from fastrec.training.noise import swapped
from tests.training.helpers import clicks
from tests.training.helpers import quiet_fit as fit

N, TRAIN, BS = 300, 240, 40
BATCHES = TRAIN // BS


frame = partial(clicks, N)


def make(df, tmp_path, y="y", loss=None, **options):
    set_seed(0)
    splits = (range(N - TRAIN, N), range(N - TRAIN))  # so that a row's number here is not its number there
    to = TabularFrame(df, [Categorify], ["c"], ["x", "z"], y, splits=splits, y_block=RegressionBlock())
    dls = to.dataloaders(bs=BS, path=tmp_path, seed=1)
    return rec_learner(dls, layers=[8], loss_func=loss or BCE(), n_out=1, bn_cont=False, **options)


class At(Callback):
    """Does something before a batch of training, by number."""

    order = -5

    def __init__(self, number, change):
        self.number, self.change, self.rows = number, change, None

    def before_batch(self):
        if self.learn.training and self.learn.train_iter == self.number:
            self.change(self.learn)
            self.rows = self.learn.dl.batch_rows


def spoil_loss(learn):
    plain, learn.loss_func = learn.loss_func, lambda p, y: plain(p, y) * float("inf")


def weights(learn):
    return torch.cat([p.detach().cpu().flatten() for p in learn.model.parameters()])


@pytest.mark.parametrize(
    ("every", "number"), [(1, 0), (1, BATCHES + 1), (4, 2), (4, BATCHES - 1), (50, BATCHES - 1), (50, BATCHES + 1)]
)
def test_the_first_batch_that_went_wrong_is_named(tmp_path, every, number):
    learn = make(frame(), tmp_path, cbs=[StopOnNaN(every=every), At(number, spoil_loss)])
    with pytest.raises(TrainingError) as caught:
        fit(learn)
    epoch, batch = divmod(number, BATCHES)
    rate = learn.recorder.lrs[number] if number < len(learn.recorder.lrs) else learn.opt.hypers[-1]["lr"]
    text = str(caught.value)
    assert f"the loss is no finite number in batch {batch} of epoch {epoch} (learning rate {rate:.3g}, loss inf" in text
    assert "are finite" in text
    assert "Lower the learning rate" in caught.value.remedy
    waited = learn.train_iter - number
    assert waited == 0 if every == 1 else 0 <= waited <= BATCHES  # never later than the epoch's end


@pytest.mark.host_only(reason="only there is every loss looked at before its step, unless asked for")
def test_the_weights_are_still_sound_on_a_cpu(tmp_path):
    learn = make(frame(), tmp_path, cbs=At(3, spoil_loss))
    with pytest.raises(TrainingError):
        fit(learn)
    assert weights(learn).isfinite().all()
    assert len(learn.recorder.losses) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_input_is_named_by_column_and_row(tmp_path, value):
    df = frame()
    df.loc[N - 7, "z"] = value
    with pytest.raises(TrainingError) as caught:
        fit(learn := make(df, tmp_path, cbs=StopOnNaN(every=1)))
    error = caught.value
    assert (error.column, error.row) == ("z", N - 7)
    row = int(re.search(r"an input is (\S+) in row (\d+) of batch", str(error)).group(2))
    dl = learn.dls.train
    assert int(dl.dataset.rows[dl.batch_rows[row]]) == N - 7
    with pytest.raises(TrainingError, match=r"the first of those since the last look") as caught:
        fit(make(df, tmp_path, cbs=StopOnNaN(every=3)))
    assert (caught.value.column, caught.value.row) == ("z", N - 7)


@pytest.mark.parametrize("every", [1, 3])
def test_a_target_is_named_before_anything_is_trained(tmp_path, every):
    df = frame()
    df.loc[N - 4, "y"] = np.nan
    for loss, y in ((BCE(), "y"), (ListwiseSoftmax(), ["y", "session"])):  # the second one would not notice
        learn = make(df.astype({"y": "float64"}), tmp_path, y, loss, cbs=StopOnNaN(every=every))
        before = weights(learn)
        with pytest.raises(TrainingError, match="a target is nan") as caught:
            fit(learn)
        assert (caught.value.column, caught.value.row) == ("y", N - 4)
        assert torch.equal(weights(learn), before)


@pytest.mark.parametrize("every", [1, 3])
def test_targets_that_are_not_in_a_frame_of_ours(tmp_path, every):
    df = frame()
    df.loc[N - 4, "y"] = np.nan
    splits = (list(range(TRAIN // 2, N)), list(range(TRAIN // 2)))
    to = TabularPandas(df, [], [], ["x", "z"], "y", y_block=RegressionBlock(), splits=splits)
    dls = to.dataloaders(bs=BS, path=tmp_path)
    for passes_over in (False, True):

        def loss(p, y, passes_over=passes_over):
            error = (p - y) ** 2
            return error.nansum() if passes_over else error.mean()

        learn = tabular_learner(dls, layers=[4], loss_func=loss, n_out=1, cbs=StopOnNaN(every=every))
        with pytest.raises(TrainingError, match="a target is nan in") as caught:
            fit(learn)
        assert caught.value.column == ("y" if every == 1 else None)
        if passes_over:
            fit(tabular_learner(dls, layers=[4], loss_func=loss, n_out=1, cbs=StopOnNaN(every=every, targets=False)))


def test_losses_that_leave_missing_targets_out(tmp_path):
    df = frame()
    df.loc[N - 4, "y"] = np.nan

    def masked(p, y):
        return torch.where(y.isnan(), 0.0, (p - y.nan_to_num()) ** 2).sum() / y.isfinite().sum()

    learn = fit(make(df, tmp_path, loss=masked, cbs=StopOnNaN(targets=False)))
    (cb,) = (cb for cb in learn.cbs if isinstance(cb, StopOnNaN))
    assert cb._losses is None  # an export holds nothing of it
    fit(make(frame(), tmp_path)).export()
    assert weights(learn).isfinite().all()


def test_a_weight_is_named(tmp_path):
    def spoil(learn):
        with torch.no_grad():
            learn.model.layers[0][0].weight[1, 2] = float("nan")

    with pytest.raises(TrainingError, match=r"the weights layers\.0\.0\.weight hold NaN .* in batch 1 of epoch 1"):
        fit(make(frame(), tmp_path, cbs=[StopOnNaN(every=1), At(BATCHES + 1, spoil)]))


def test_it_can_be_left_out(tmp_path):
    learn = make(frame(), tmp_path, stop_on_nan=False, cbs=At(1, spoil_loss))
    assert not math.isfinite(fit(learn).recorder.losses[-1])


def test_training_is_not_changed_by_it(tmp_path):
    options = ({}, {"stop_on_nan": False}, {"cbs": StopOnNaN(every=4)})
    with_it, *others = (weights(fit(make(frame(), tmp_path, **o))) for o in options)
    assert all(torch.equal(with_it, other) for other in others)


def test_a_search_of_rates_may_explode(tmp_path):
    def explodes(p, y):
        return (p - y).pow(2).mean() / (1.0 if p.abs().max() < 1e3 else 0.0)

    learn = make(frame(), tmp_path, loss=explodes)
    with learn.no_bar():
        learn.lr_find(start_lr=1, end_lr=1e12, num_it=40, stop_div=False, show_plot=False, suggest_funcs=())
    assert not all(math.isfinite(v) for v in learn.recorder.losses)
    with learn.no_bar():  # validation of what is no number is for the metrics to show
        learn.model.layers[0][0].weight.data[:] = float("nan")
        assert math.isnan(learn.validate()[0])


def test_a_checkpoint_is_not_replaced_by_a_spoilt_one(tmp_path):
    cbs = [StopOnNaN(every=50), Checkpoint(tmp_path / "ck", every=2), At(3, spoil_loss)]
    with pytest.raises(TrainingError, match="batch 3 of epoch 0"):
        fit(make(frame(), tmp_path, cbs=cbs))
    learn = fit(make(frame(), tmp_path), cbs=Checkpoint(tmp_path / "ck", every=2))
    assert weights(learn).isfinite().all()
    assert torch.equal(weights(learn), weights(fit(make(frame(), tmp_path))))


# SwapNoise, RowMixUp, denoising pretraining: training rows alone change, as they are said to


def row_noise_loaders(n: int = 400, bs: int = 100):
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
    dls, seen = row_noise_loaders(), Seen()
    learn = rec_learner(dls, TabularNet, n_out=1, layers=[8], cbs=[seen, *cbs], loss_func=nn.MSELoss())
    return fit(learn, 1, 1e-3, by="fit"), seen


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
    together = torch.isclose(x[:, 0], x[:, 1], atol=1e-5).double().mean()  # the two columns are the same, but for noise
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
    wanted = weight * (pred - batch[2]).square() + (1 - weight) * (pred - batch[2][other]).square()
    torch.testing.assert_close(got, wanted.mean())


def test_an_interrupted_batch_leaves_no_loss_behind(monkeypatch):
    learn, _ = trained(RowMixUp(1.0))
    own, forward = learn.loss_func, learn.model.forward
    with learn.no_bar(), learn.no_logging():
        expected = float(learn.validate()[0])
        for go_on in (learn.validate, lambda: learn.fit(1, 0.0)):
            monkeypatch.setattr(learn.model, "forward", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                learn.fit(1, 0.0)
            monkeypatch.setattr(learn.model, "forward", forward)
            go_on()
            assert learn.loss_func is own
        assert float(learn.validate()[0]) == pytest.approx(expected, rel=0.1)


def denoised_net(dls, layers=(16,), model=TabularNet):
    set_seed(0)
    more = [list(layers)] if model is TabularNet else []
    return model(embedding_sizes(dls.train_ds.classes, ["kind", "same"]), 2, 1, *more)


def test_denoising_trains_the_hidden_layers_by_training_rows_alone():
    dls = row_noise_loaders()
    net = denoised_net(dls)
    before = {n: p.detach().cpu().clone() for n, p in net.named_parameters()}
    assert any(isinstance(m, nn.BatchNorm1d) for m in net.modules())
    losses = pretrain_denoising(dls, net, 30, lr=1e-2)
    assert np.mean(losses[-3:]) < 0.6 * np.mean(losses[:3])  # what one column lost another one tells
    still = {n for n, p in net.named_parameters() if torch.equal(p.cpu(), before[n])}
    assert still == {n for n in before if n.startswith("layers.1.")}
    # other validation rows, and other targets: the same net
    changed = row_noise_loaders()
    changed.valid_ds.packed.buffer.zero_()
    changed.train_ds.packed.views[2].zero_()
    assert pretrain_denoising(changed, denoised_net(dls), 30, lr=1e-2) == losses


def test_settings_and_nets_that_cannot_be_are_refused():
    dls = row_noise_loaders()
    for call, match in (
        (lambda: SwapNoise(1.5), r"share of 1\.5"),
        (lambda: RowMixUp(0), "alpha=0"),
        (lambda: pretrain_denoising(dls, denoised_net(dls, model=DeepFM)), "DeepFM has no hidden layers"),
        (lambda: pretrain_denoising(dls, denoised_net(dls, [])), "no hidden layers"),
    ):
        with pytest.raises(DataError, match=match):
            call()
