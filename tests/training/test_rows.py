"""Rows of tables in training: fetched from the host, the same as a plain net's; and CowClip against a loop over ids."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback, CancelBatchException, CancelEpochException
from fastai.callback.training import GradientAccumulation
from fastai.data.block import CategoryBlock
from fastai.learner import load_learner
from fastai.optimizer import Adam
from fastai.torch_core import set_seed
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastrec._core import limits
from fastrec._core.device import on_host, resolve_device
from fastrec.errors import DataError, TrainingError
from fastrec.losses import BCE
from fastrec.models import Embeddings, EmbeddingTables, TabularNet
from fastrec.optim import adamw, lamb, scale_lr, split_embeddings
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import Checkpoint, CowClip, load_checkpoint, rec_learner
from fastrec.training.rows import FetchRows, clipped
from tests.training.helpers import Kill, Killed, clicks, predictions, quiet_fit

ROWS, TRAIN, BS = 640, 500, 50
CACHED = Embeddings("cached", device_bytes=20_000)  # room for some 190 of 1,200 rows


@pytest.fixture(autouse=True)
def small_tables_count_as_large(monkeypatch):
    monkeypatch.setattr(limits, "SPARSE_FROM", 50)


def frame(bad_row=None):
    rng = np.random.default_rng(0)
    user, item = rng.zipf(1.3, ROWS) % 900, rng.zipf(1.3, ROWS) % 300
    df = pd.DataFrame({"user": user, "item": item, "shop": rng.integers(0, 5, ROWS), "x": rng.normal(size=ROWS)})
    df["y"] = (df.x + user % 3 + rng.normal(size=ROWS) > 1).astype(np.float32)
    if bad_row is not None:
        df.loc[bad_row, "x"] = np.inf
    return df


def learner(path, placement=None, model=TabularNet, df=None, **options):
    """A learner; by the same seed of the same weights and batches."""
    set_seed(3)
    names, splits = (["user", "item", "shop"], ["x"], "y"), (range(TRAIN), range(TRAIN, ROWS))
    procs = [Categorify, Normalize] if df is None else [Categorify]
    dls = TabularFrame(frame() if df is None else df, procs, *names, splits=splits).dataloaders(bs=BS, path=path)
    options |= {"layers": [8], "emb_szs": [(900, 8), (300, 8), (7, 4)]} if model is TabularNet else {}
    return rec_learner(dls, model, loss_func=BCE(), grads="rows", placement=placement, **options)


def fit(learn, epochs=2, cbs=()):
    return quiet_fit(learn, epochs, 2e-2, cbs=[*cbs])


def outcome(learn):
    """Losses of every batch, what the recorder shows of every epoch but the time, and predictions."""
    losses, shown = [float(v) for v in learn.recorder.losses], [list(map(float, v)) for v in learn.recorder.values]
    return losses, shown, predictions(learn)[0].tolist()


def assert_same(one, other):
    """To the bit on the host; a GPU adds a row's gradients up in no fixed order."""
    if on_host(resolve_device()):
        assert one == other
        return
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


class Look(Callback):
    """How many rows are on the device when the first epoch begins."""

    def before_train(self):
        caches = [c for m in self.learn.model.modules() for c in getattr(m, "placed", {}).values()]
        self.filled = getattr(self, "filled", [int((c.row_at >= 0).sum()) for c in caches])


@pytest.mark.parametrize("opt_func", [adamw, lamb])
def test_it_trains_as_a_plain_learner_to_the_bit(tmp_path, opt_func):
    look, opt_func = Look(), partial(opt_func, wd=0.1)
    plain = fit(learner(tmp_path, opt_func=opt_func))
    placed = fit(learner(tmp_path, CACHED, opt_func=opt_func), 2, [look])
    assert any(isinstance(cb, FetchRows) for cb in placed.cbs)
    assert not any(isinstance(cb, FetchRows) for cb in plain.cbs)
    (cache,) = placed.model.embeds.placed.values()
    assert 0.5 < cache.found / cache.looked_up < 1
    assert look.filled == [cache.slots]  # the hottest of the training rows
    assert cache.looked_up == 2 * 10 * BS * 2  # each lookup of the training batches once
    assert_same(outcome(plain), outcome(placed))


class Interrupt(Callback):
    """Leaves batches and epochs out at several places."""

    order = 50

    def after_pred(self):
        if self.training and self.iter == 2:
            raise CancelBatchException

    def before_step(self):
        if self.iter == 6:
            raise CancelEpochException


@pytest.mark.parametrize("cb", [Interrupt, lambda: GradientAccumulation(120), CowClip], ids=["cut", "sum", "clip"])
def test_interrupted_added_up_and_clipped(tmp_path, cb):
    one, other = (outcome(fit(learner(tmp_path, p), 3, [cb()])) for p in (None, CACHED))
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    np.testing.assert_allclose(one[2], other[2], rtol=1e-4)


def test_an_exported_learner_predicts_the_same(tmp_path):
    learn = fit(learner(tmp_path, CACHED), 1)
    before = outcome(learn)[2]
    learn.export(tmp_path / "learn.pkl")
    assert outcome(learn)[2] == before
    loaded = load_learner(tmp_path / "learn.pkl")
    loaded.dls = learn.dls
    assert predictions(loaded)[0].tolist() == before


@pytest.mark.parametrize("summed", [False, True], ids=["plain", "summed"])
def test_a_killed_training_goes_on(tmp_path, summed):
    cbs = [partial(GradientAccumulation, 120)] if summed else []
    whole = outcome(fit(learner(tmp_path, CACHED), 2, [cb() for cb in cbs]))
    with pytest.raises(Killed):
        fit(learner(tmp_path, CACHED), 2, [*(cb() for cb in cbs), Checkpoint(tmp_path / "ck", every=1), Kill(8)])
    again = learner(tmp_path, CACHED)
    set_seed(9)
    fit(again, 2, [*(cb() for cb in cbs), Checkpoint(tmp_path / "ck", every=1)])
    near = 1e-5 if summed else 0 if on_host(resolve_device()) else 1e-4
    assert whole[0] == pytest.approx(outcome(again)[0], rel=near)
    plain = learner(tmp_path)  # the weights go to a net without a placement
    load_checkpoint(tmp_path / "ck", plain.model, best=False)
    np.testing.assert_allclose(predictions(plain)[0], predictions(again)[0], rtol=1e-6)


def test_a_row_that_spoils_the_loss_is_named_though_the_loader_is_one_batch_ahead(tmp_path):
    with pytest.raises(TrainingError) as found:
        fit(learner(tmp_path, CACHED, df=frame(bad_row=123)), 1)
    assert found.value.row == 123 or "123" in str(found.value)


@pytest.mark.parametrize("opt_func", [Adam, torch.optim.SparseAdam], ids=["fastai", "torch"])
def test_an_optimizer_that_does_not_know_of_rows_is_refused(tmp_path, opt_func):
    with pytest.raises(DataError, match=r"cannot train embedding tables whose rows come and go.*adamw or lamb"):
        fit(learner(tmp_path, CACHED, opt_func=opt_func), 1)


# ---- CowClip


def clipped_plainly(grad, weight, ids, r, zeta):
    counts = torch.bincount(torch.as_tensor(ids), minlength=len(weight))
    limits = counts * (r * weight.norm(dim=1)).clamp_min(zeta)
    shrunk = (counts > 0) & (grad.norm(dim=1) > limits)
    return torch.where(shrunk[:, None], grad * (limits / grad.norm(dim=1))[:, None], grad)


@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=15),
    r=st.sampled_from([0.0, 0.1, 1.0]),
    zeta=st.sampled_from([0.0, 1e-3]),
    as_rows=st.booleans(),
    seed=st.integers(0, 9),
)
def test_clips_every_id_as_a_loop_does(ids, r, zeta, as_rows, seed):
    torch.manual_seed(seed)
    weight, values = torch.randn(6, 3) * 0.5, torch.randn(len(ids), 3)
    weight[2] = 0
    sparse = torch.sparse_coo_tensor(torch.tensor([ids]), values, (6, 3), check_invariants=True)
    dense = sparse.to_dense()
    made = clipped(sparse if as_rows else dense.clone(), weight, torch.tensor(ids), r=r, zeta=zeta)
    assert made.is_sparse == as_rows
    torch.testing.assert_close(made.to_dense() if as_rows else made, clipped_plainly(dense, weight, ids, r, zeta))


@pytest.fixture
def small_dls():
    """Two columns of ids, one number, forty rows in batches of ten."""
    names, splits = (["c", "d"], ["x"], "y"), (range(30), range(30, 40))
    return TabularFrame(clicks(40), [Categorify, Normalize], *names, CategoryBlock(), splits).dataloaders(10)


class Watch(Callback):
    """Keeps the tables' gradients, the weights and the ids as they are before or after clipping."""

    def __init__(self, order):
        super().__init__()
        self.order, self.seen = order, []

    def before_step(self):
        embeds = self.learn.model.embeds
        ids = torch.cat([i.flatten() for i in embeds.ids(self.learn.xb[0]).values()])
        (weight,) = embeds.weights.values()
        grad = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
        self.seen.append((grad.clone(), weight.detach().clone(), ids))


@pytest.mark.parametrize("grads", ["dense", "rows"])
def test_as_a_callback_it_clips_before_the_step(small_dls, grads, monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.SPARSE_FROM", 1)
    clip, before, after = CowClip(r=0.01, zeta=1e-4), Watch(CowClip.order - 1), Watch(CowClip.order + 1)
    options = {"layers": [8], "emb_szs": {"c": 4, "d": 4}, "grads": grads, "splitter": split_embeddings}
    learn = rec_learner(small_dls, cbs=[clip, before, after], **options)
    quiet_fit(learn, 2, scale_lr(1e-2, 4, 1, rule="cowclip"))
    assert len(before.seen) == 6
    for (grad, weight, ids), (made, _, _) in zip(before.seen, after.seen, strict=True):
        torch.testing.assert_close(made, clipped_plainly(grad, weight, ids, 0.01, 1e-4))
        assert not torch.equal(made, grad)
    rates = [h["lr"] for h in learn.opt.hypers]
    assert rates[1] == pytest.approx(2 * rates[0])


def test_added_up_batches_count_together():
    table, clip = EmbeddingTables([(4, 4)]), CowClip(r=0.0, zeta=1.0)
    clip.learn = SimpleNamespace(model=nn.Sequential(table, nn.Linear(4, 1)), xb=(torch.tensor([[1], [1]]),))
    clip.before_fit()
    for _ in range(3):
        clip.after_backward()
    table.weights["w4"].grad = torch.full((4, 4), 100.0)
    clip.before_step()
    assert float(table.weights["w4"].grad[1].norm()) == pytest.approx(6.0)
    assert float(table.weights["w4"].grad[0].norm()) == pytest.approx(200.0)  # not of the batch


def test_needs_tables_and_sensible_settings():
    with pytest.raises(DataError, match="r -1"):
        CowClip(r=-1)
    clip = CowClip()
    clip.learn = SimpleNamespace(model=nn.Linear(2, 1))
    with pytest.raises(DataError, match="Linear has no EmbeddingTables"):
        clip.before_fit()


def test_rates_and_groups_of_the_recipe():
    assert scale_lr(1e-3, 64_000, 1_000, rule="cowclip") == pytest.approx([1e-3, 8e-3])
    net = TabularNet([(12, 4), (5, 8)], 2, 1, [8])
    tables, rest = split_embeddings(net)
    assert {id(p) for p in tables} == {id(p) for p in net.embeds.parameters()}
    assert len(tables) + len(rest) == len(list(net.parameters()))
    for part, match in ((nn.Linear(2, 1), "no embedding tables"), (EmbeddingTables([(3, 4)]), "nothing but embedding")):
        with pytest.raises(DataError, match=match):
            split_embeddings(part)
