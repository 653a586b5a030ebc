"""CowClip against a loop over ids."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.data.block import CategoryBlock
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, TabularNet
from fastrec.optim import scale_lr, split_embeddings
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import CowClip, rec_learner
from fastrec.training.rows import clipped
from tests.training.helpers import quiet_fit


def by_loop(grad, weight, ids, r, zeta):
    made = grad.clone()
    for row in range(len(weight)):
        count = sum(int(i) == row for i in ids)
        limit = count * max(r * float(weight[row].norm()), zeta)
        norm = float(grad[row].norm())
        if count and norm > limit:
            made[row] = grad[row] * (limit / norm)
    return made


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
    torch.testing.assert_close(made.to_dense() if as_rows else made, by_loop(dense, weight, ids, r, zeta))


@pytest.fixture
def small_dls():
    """Two columns of ids, one number, forty rows in batches of ten."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"a": rng.integers(0, 12, 40), "b": rng.integers(0, 5, 40), "x": rng.normal(size=40)})
    df["y"] = rng.integers(0, 2, 40)
    splits = (range(30), range(30, 40))
    return TabularFrame(df, [Categorify, Normalize], ["a", "b"], ["x"], "y", CategoryBlock(), splits).dataloaders(10)


class Look(Callback):
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
    clip, before, after = CowClip(r=0.01, zeta=1e-4), Look(CowClip.order - 1), Look(CowClip.order + 1)
    learn = rec_learner(
        small_dls,
        layers=[8],
        emb_szs={"a": 4, "b": 4},
        grads=grads,
        splitter=split_embeddings,
        cbs=[clip, before, after],
    )
    quiet_fit(learn, 2, scale_lr(1e-2, 4, 1, rule="cowclip"))
    assert len(before.seen) == 6
    for (grad, weight, ids), (made, _, _) in zip(before.seen, after.seen, strict=True):
        torch.testing.assert_close(made, by_loop(grad, weight, ids, 0.01, 1e-4))
        assert not torch.equal(made, grad)
    rates = [h["lr"] for h in learn.opt.hypers]
    assert rates[1] == pytest.approx(2 * rates[0])


def test_added_up_batches_count_together():
    table = EmbeddingTables([(4, 4)])
    head = nn.Linear(4, 1)
    clip = CowClip(r=0.0, zeta=1.0)

    class Learn:
        model = nn.Sequential(table, head)
        xb = (torch.tensor([[1], [1]]),)

    clip.learn = Learn()
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
    clip.learn = type("Learn", (), {"model": nn.Linear(2, 1)})()
    with pytest.raises(DataError, match="Linear has no EmbeddingTables"):
        clip.before_fit()


def test_rates_and_groups_of_the_recipe():
    assert scale_lr(1e-3, 64_000, 1_000, rule="cowclip") == pytest.approx([1e-3, 8e-3])
    net = TabularNet([(12, 4), (5, 8)], 2, 1, [8])
    tables, rest = split_embeddings(net)
    assert {id(p) for p in tables} == {id(p) for p in net.embeds.parameters()}
    assert len(tables) + len(rest) == len(list(net.parameters()))
    with pytest.raises(DataError, match="no embedding tables"):
        split_embeddings(nn.Linear(2, 1))
    with pytest.raises(DataError, match="nothing but embedding tables"):
        split_embeddings(EmbeddingTables([(3, 4)]))
