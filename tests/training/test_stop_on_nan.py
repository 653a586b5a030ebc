from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.data.block import RegressionBlock
from fastai.tabular.core import TabularPandas
from fastai.tabular.learner import tabular_learner
from fastai.torch_core import set_seed

from fastrec.errors import TrainingError
from fastrec.losses import BCE, ListwiseSoftmax
from fastrec.tabular import Categorify, TabularFrame
from fastrec.training import Checkpoint, StopOnNaN, rec_learner
from tests.training.helpers import quiet_fit as fit

N, TRAIN, BS = 300, 240, 40
BATCHES = TRAIN // BS


def frame():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 9, N), "x": rng.normal(size=N), "z": rng.normal(size=N)})
    df["y"] = (df.x > 0).astype(np.float32)
    df["session"] = np.arange(N) // 5
    return df


def loaders(df, tmp_path, y="y", **options):
    splits = (range(N - TRAIN, N), range(N - TRAIN))  # so that a row's number here is not its number there
    to = TabularFrame(df, [Categorify], ["c"], ["x", "z"], y, splits=splits, y_block=RegressionBlock(), **options)
    return to.dataloaders(bs=BS, path=tmp_path, seed=1)


def make(df, tmp_path, y="y", loss=None, **options):
    set_seed(0)
    return rec_learner(loaders(df, tmp_path, y), layers=[8], loss_func=loss or BCE(), n_out=1, bn_cont=False, **options)


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
    plain, learn.loss_func = learn.loss_func, lambda p, y: learn.loss_once(p, y) * float("inf")
    learn.loss_once = plain


def weights(learn):
    return torch.cat([p.detach().cpu().flatten() for p in learn.model.parameters()])


@pytest.mark.parametrize("every", [1, 4, 50])
@pytest.mark.parametrize("number", [0, 2, BATCHES - 1, BATCHES + 1])
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
    assert len([cb for cb in learn.cbs if isinstance(cb, StopOnNaN)]) == 1
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
    found = [fit(make(frame(), tmp_path, **o)) for o in ({}, {"stop_on_nan": False}, {"cbs": StopOnNaN(every=4)})]
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert torch.equal(weights(found[0]), weights(found[2]))


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


def test_an_export_holds_nothing_of_it(tmp_path):
    learn = fit(make(frame(), tmp_path))
    cb = next(cb for cb in learn.cbs if isinstance(cb, StopOnNaN))
    assert cb._losses is None
    learn.export()
