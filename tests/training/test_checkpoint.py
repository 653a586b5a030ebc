from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import EarlyStoppingCallback, ReduceLROnPlateau
from fastai.callback.training import GradientAccumulation
from fastai.data.block import CategoryBlock
from fastai.metrics import accuracy
from fastai.optimizer import Adam, OptimWrapper, ranger
from fastai.tabular.core import Categorify as StockCategorify
from fastai.tabular.core import TabularPandas
from fastai.tabular.learner import tabular_learner
from fastai.torch_core import set_seed
from torch import nn
from torch.optim import SGD, RMSprop

from fastrec.errors import DataError, MissingFileError
from fastrec.losses import BCE
from fastrec.models import TabularNet
from fastrec.optim import adamw, lamb
from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame, TabularFrame, TabularLoader
from fastrec.training import Checkpoint, load_checkpoint, rec_learner
from tests.training.helpers import Kill, Killed, clicks, quiet_fit

ROWS, TRAIN, BS, EPOCHS = 420, 330, 50, 3
BATCHES = TRAIN // BS  # 6 in an epoch; the last, smaller one is dropped


frame = partial(clicks, ROWS)


def learner(tmp_path, opt_func=adamw, df=None, bs=BS, model=TabularNet, layers=(12,), ps=0.3, grouped=False, **options):
    procs, splits = [Categorify, FillMissing, Normalize], (range(TRAIN), range(TRAIN, ROWS))
    groups = {"groups": "session"} if grouped else {}
    to = TabularFrame(frame() if df is None else df, procs, ["c", "d"], ["x"], "y", splits=splits, **groups)
    dls = to.dataloaders(bs=bs, path=tmp_path, **({"groups": True} if grouped else {}))
    if model is TabularNet:
        options |= {"layers": list(layers), "ps": ps, "embed_p": 0.1}
    return rec_learner(dls, model, opt_func=opt_func, loss_func=BCE(), **options)


def fit(learn, cbs=(), epochs=EPOCHS, lr=1e-2, plain=False):
    return quiet_fit(learn, epochs, lr, cbs=[*cbs], by="fit" if plain else "fit_one_cycle")


def state(learn):
    recorder = learn.recorder
    return {
        "weights": {k: v.clone() for k, v in learn.model.state_dict().items()},
        "losses": torch.stack(recorder.losses).tolist(),
        "lrs": [float(v) for v in recorder.lrs],
        "values": [list(v) for v in recorder.values],
        "iters": recorder.iters,
        "hps": {k: [float(x) for x in v] for k, v in getattr(recorder, "hps", {}).items()},
        "random": (torch.rand(3).tolist(), random.random(), np.random.rand()),  # noqa: NPY002
    }


def assert_same(a, b):
    if all(weight.device.type == "cpu" for weight in a["weights"].values()):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        return
    # a GPU adds up in no fixed order; a state that is lost moves by the rate
    torch.testing.assert_close(a["weights"], b["weights"], rtol=1e-3, atol=1e-4)
    for name in ("losses", "values"):
        assert np.array(a[name]) == pytest.approx(np.array(b[name]), rel=1e-4)
    rest = a.keys() - {"losses", "values", "weights"}
    assert {k: a[k] for k in rest} == {k: b[k] for k in rest}


def check_resumes(make, folder, kills, every=2, cbs=list, **options):
    """Training that is killed at each of some places, one after the other, ends as one that is not."""
    set_seed(1)
    whole = state(fit(make(), cbs(), **options))
    set_seed(1)
    for kill in kills:
        with pytest.raises(Killed):
            fit(make(), [*cbs(), Checkpoint(folder, every=every), kill], **options)
        set_seed(77)  # another process: other weights, other random numbers
    learn = fit(make(), [*cbs(), Checkpoint(folder, every=every)], **options)
    assert_same(whole, state(learn))
    return learn


PLACES = [
    (1, "after_batch"),  # the first batch
    (0, "before_batch"),
    (3, "before_step"),  # within a batch
    (BATCHES, "after_train"),
    (BATCHES, "after_batch"),  # the epoch's last, and once more in validation
    (BATCHES, "after_epoch"),
    (BATCHES, "before_epoch"),  # right after an epoch
    (3 * BATCHES, "after_batch"),  # the last of all
]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[1]}-{p[0]}")
def test_killed_anywhere_it_ends_with_the_same_weights(tmp_path, place):
    check_resumes(partial(learner, tmp_path), tmp_path / "ck", [Kill(*place)])


class Counting(SGD):
    """Its state has whole numbers that float32 does not hold."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    begin = torch.full((len(p),), 2**24, dtype=torch.int64, device=p.device)
                    seen = self.state[p].setdefault("seen", begin)
                    seen += 1
                    p.data += 1e-3 * (seen % 5).view(-1, *[1] * (p.ndim - 1))
        return super().step(closure)


@pytest.mark.parametrize(
    "opt_func",
    [lamb, Adam, ranger, partial(OptimWrapper, opt=SGD), RMSprop, partial(adamw, wd=0.1), Counting],
    ids=["lamb", "fastai Adam", "ranger", "wrapped SGD", "RMSprop", "adamw", "whole numbers"],
)
def test_with_every_kind_of_optimizer(tmp_path, opt_func):
    make = partial(learner, tmp_path, opt_func)
    check_resumes(make, tmp_path / "ck", [Kill(4), Kill(9), Kill(16, "before_batch")], every=1)


@pytest.mark.parametrize("opt_func", [adamw, lamb])
def test_with_row_sparse_gradients(tmp_path, opt_func):
    make = partial(learner, tmp_path, opt_func, emb_szs=[(25_000, 4), (10, 4)], grads="rows")
    assert any(k.endswith("_rows") for k in make().model.embeds.weights)
    check_resumes(make, tmp_path / "ck", [Kill(5)], epochs=2)


def test_a_constant_rate_and_a_whole_epoch_between_saves(tmp_path):
    check_resumes(partial(learner, tmp_path), tmp_path / "ck", [Kill(2), Kill(8)], every=None, plain=True)


def test_groups_and_metrics_of_training_batches(tmp_path):
    def make():
        learn = learner(tmp_path, grouped=True, metrics=[lambda p, y: (p - y).abs().mean()])
        learn.metrics[0].func.__name__ = "distance"
        learn.recorder.train_metrics = True
        return learn

    learn = check_resumes(make, tmp_path / "ck", [Kill(4), Kill(11)])
    assert len(learn.recorder.values[0]) == 4


def test_gradients_that_are_being_added_up(tmp_path):
    make = partial(learner, tmp_path, bs=20)
    # a step in three batches: after four and after eight of them, one and two are added up
    check_resumes(make, tmp_path / "ck", [Kill(5), Kill(9)], every=1, cbs=lambda: [GradientAccumulation(60)])


def test_a_rate_that_was_lowered_and_an_early_stop(tmp_path):
    def cbs():
        return [ReduceLROnPlateau(patience=1, min_delta=9), EarlyStoppingCallback(patience=3, min_delta=9)]

    make = partial(learner, tmp_path, Adam)
    learn = check_resumes(make, tmp_path / "ck", [Kill(7), Kill(20)], cbs=cbs, epochs=9, plain=True)
    assert len(learn.recorder.values) == 4
    assert learn.opt.hypers[0]["lr"] < 1e-4
    before = state(learn)["weights"]
    with pytest.warns(UserWarning, match="is complete"):
        again = fit(learner(tmp_path, Adam), [*cbs(), Checkpoint(tmp_path / "ck")], epochs=9, plain=True)
    assert all(torch.equal(v, before[k]) for k, v in again.model.state_dict().items())


def stock(tmp_path, **options):
    df = frame().rename(columns={"c": "city"})  # fastai would take a column c for the number of classes
    df["y"] = df.y.astype(int).astype(str)
    splits = (list(range(TRAIN)), list(range(TRAIN, ROWS)))
    to = TabularPandas(df, [StockCategorify], ["city", "d"], ["x"], "y", y_block=CategoryBlock(), splits=splits)
    return tabular_learner(to.dataloaders(bs=BS, path=tmp_path, **options), layers=[8], metrics=accuracy)


def test_a_stock_learner_with_its_own_loader_and_a_stream(tmp_path):
    wgts = np.linspace(0.1, 1, TRAIN)
    check_resumes(partial(stock, tmp_path, wgts=wgts), tmp_path / "ck", [Kill(3), Kill(10)])
    check_resumes(partial(streamed, tmp_path / "a"), tmp_path / "stream's", [Kill(4), Kill(10)])


def streamed(folder, df=None, *, buffer_rows=100, cols=("c", "d"), cache=None, group=40, procs=(Categorify, Normalize)):
    """A learner of a stream; the files are written anew."""
    df = frame() if df is None else df
    folder.mkdir(exist_ok=True)
    df[:TRAIN].to_parquet(folder / "train.parquet", row_group_size=group)
    rows = ParquetFrame(folder / "train.parquet", list(procs), list(cols), ["x"], "y", valid=df[TRAIN:], cache=cache)
    loaders = rows.dataloaders(bs=BS, buffer_rows=buffer_rows, path=folder)
    return rec_learner(loaders, layers=[8], ps=0.2, loss_func=BCE())


def test_a_stream_of_other_rows_or_settings_is_refused(tmp_path):
    folder = tmp_path / "ck"
    set_seed(1)
    with pytest.raises(Killed):
        fit(streamed(tmp_path / "a"), [Checkpoint(folder, every=1), Kill(4)])
    kept = sorted(p.name for p in folder.iterdir())
    df = frame()
    cases = [
        (streamed(tmp_path / "c", df.assign(x=df.x + 1)), "data: files was 1 of"),
        (streamed(tmp_path / "d", df.iloc[::-1]), "data: files was 1 of"),  # as many rows, and the same columns
        (streamed(tmp_path / "e", group=39), "data: files was 1 of"),
        (streamed(tmp_path / "f", procs=(Categorify,)), "data: procs was"),
        (streamed(tmp_path / "g", buffer_rows=90), "data: buffer_rows was 100 and is 90"),
        (streamed(tmp_path / "b", cache=tmp_path / "cache"), "data: cached was False and is True"),
    ]
    for learn, message in cases:
        with pytest.raises(DataError, match=message):
            fit(learn, [Checkpoint(folder, every=1)])
    assert sorted(p.name for p in folder.iterdir()) == kept
    resumed = state(fit(streamed(tmp_path / "elsewhere"), [Checkpoint(folder, every=1)]))  # the same file, elsewhere
    set_seed(1)
    assert_same(resumed, state(fit(streamed(tmp_path / "whole"))))


def test_skipped_batches_are_not_gathered(tmp_path, monkeypatch):
    folder, asked = tmp_path / "ck", []
    with pytest.raises(Killed):
        fit(learner(tmp_path), [Checkpoint(folder, every=2), Kill(5)])
    plain = TabularLoader.batches_from
    monkeypatch.setattr(TabularLoader, "batches_from", lambda self, first: asked.append(first) or plain(self, first))

    seen = []
    note = Callback(after_batch=lambda self: seen.append((self.learn.epoch, self.learn.iter, self.learn.training)))
    fit(learner(tmp_path), [Checkpoint(folder, every=2), note])
    assert asked[0] == 4
    assert [n[:2] for n in seen if n[2]][:3] == [(0, 4), (0, 5), (1, 0)]


def test_a_batch_from_within_an_epoch_is_the_same_batch():
    to = TabularFrame(frame(), [Categorify], ["c"], ["x"], "y", groups="session")
    for options in ({}, {"groups": True}, {"drop_last": True}, {"rank": 1, "world_size": 2}):
        whole = list(TabularLoader(to, bs=32, shuffle=True, seed=3, **options))
        for first in (0, 1, 5, len(whole), len(whole) + 2):
            part = list(TabularLoader(to, bs=32, shuffle=True, seed=3, **options).batches_from(first))
            assert len(part) == max(len(whole) - first, 0)
            for a, b in zip(part, whole[first:], strict=True):
                assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_best_weights_are_kept(tmp_path):
    seen, folder, options = [], tmp_path / "ck", {"epochs": 6, "plain": True}

    class Watch(Callback):
        order = 90

        def after_epoch(self):
            weights = {k: v.cpu().clone() for k, v in self.learn.model.state_dict().items()}
            seen.append((self.learn.recorder.values[-1][1], weights))

    def cbs():
        return [Checkpoint(folder, keep_best="valid_loss", lower=False), Watch()]

    with pytest.raises(Killed):  # the largest loss is an early one: the best has to be remembered over the kill
        fit(learner(tmp_path), [*cbs(), Kill(26)], **options)
    fit(learner(tmp_path), cbs(), **options)
    assert len(seen) == 6
    best = max(range(6), key=lambda i: seen[i][0])
    assert best < 4
    net = learner(tmp_path).model
    assert load_checkpoint(folder, net) == {"name": "valid_loss", "value": seen[best][0], "epoch": best}
    assert all(torch.equal(v, seen[best][1][k]) for k, v in net.state_dict().items())
    assert load_checkpoint(folder, net, best=False) == {"epoch": 6, "batch": 0}
    assert all(torch.equal(v, seen[5][1][k]) for k, v in net.state_dict().items())
    assert len(list(folder.iterdir())) == 2
    assert not list(folder.rglob("*.pkl"))


@pytest.mark.parametrize(("name", "lower"), [("valid_loss", True), ("auc", False), ("rmse", True)])
def test_which_way_is_better(tmp_path, name, lower):
    assert Checkpoint(tmp_path, keep_best=name).lower is lower
    assert Checkpoint(tmp_path, keep_best=name, lower=not lower).lower is not lower


def test_another_training_is_refused(tmp_path):
    folder = tmp_path / "ck"
    with pytest.raises(Killed):
        fit(learner(tmp_path), [Checkpoint(folder, every=1), Kill(3)])
    kept = sorted(p.name for p in folder.iterdir())

    cases = [
        (learner(tmp_path, layers=(13,)), {}, r"parameters: layers\.0\.0\.weight was torch\.float32 \[12, "),
        (learner(tmp_path, lamb), {}, r"optimizer was \['AdamW'\] and is \['Lamb'\]"),
        (learner(tmp_path, bs=30), {}, "batches was 6 and is 11"),
        (learner(tmp_path, df=frame().assign(x=lambda d: d.x.round(1))), {}, "data was"),
        (learner(tmp_path), {"epochs": 4}, "epochs was 3 and is 4"),
        (learner(tmp_path), {"lr": 2e-2}, "schedule: lr was"),
        (learner(tmp_path), {"plain": True}, "schedule: lr was"),
    ]
    for learn, options, message in cases:
        with pytest.raises(DataError, match=message):
            fit(learn, [Checkpoint(folder, every=1)], **options)
    assert sorted(p.name for p in folder.iterdir()) == kept
    with pytest.raises(DataError, match="callbacks were"):
        fit(learner(tmp_path), [Checkpoint(folder), GradientAccumulation(60)])


def test_wrong_settings_are_refused(tmp_path):
    with pytest.raises(DataError, match="every is 0"):
        Checkpoint(tmp_path, every=0)
    with pytest.raises(DataError, match="no 'auc' to keep the best of"):
        fit(learner(tmp_path), [Checkpoint(tmp_path / "ck", keep_best="auc")])
    with pytest.raises(MissingFileError, match="best state"):
        load_checkpoint(tmp_path, nn.Linear(1, 1))
    fit(learner(tmp_path), [Checkpoint(tmp_path / "ck")], 1)
    with pytest.raises(DataError, match="Missing key"):
        load_checkpoint(tmp_path / "ck", nn.Linear(1, 1), best=False)


def test_neither_prediction_nor_a_search_of_rates_touches_it(tmp_path):
    learn = learner(tmp_path)
    learn.add_cb(Checkpoint(tmp_path / "ck", every=1))
    with learn.no_bar(), learn.no_logging():
        learn.lr_find(show_plot=False, num_it=20)
        learn.get_preds()
        learn.validate()
        assert not (tmp_path / "ck").exists()
        learn.fit(1)
        files = sorted((tmp_path / "ck").iterdir())
        wanted = learn.get_preds()[0]
        learn.validate()
        assert sorted((tmp_path / "ck").iterdir()) == files
        assert torch.equal(learn.get_preds()[0], wanted)


def test_a_callback_of_ones_own_names_what_changes(tmp_path):
    class Drift(Callback):
        checkpointed = ("total",)

        def before_fit(self):
            self.total = 0.0

        def before_backward(self):
            self.total = self.total * 0.5 + self.learn.loss.item()
            self.learn.loss_grad = self.learn.loss_grad * (1 + self.total)

    check_resumes(partial(learner, tmp_path), tmp_path / "ck", [Kill(5)], cbs=lambda: [Drift()])
