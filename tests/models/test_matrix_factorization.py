from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback import schedule  # noqa: F401  (gives Learner its fit_one_cycle)
from fastai.collab import EmbeddingDotBias
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.tabular.core import Categorify
from fastai.torch_core import set_seed

from fastrec.errors import DataError
from fastrec.models import MatrixFactorization
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner
from tests.models.plain import assert_gradients, count, stirred

SIZES = [(7, 16), (11, 3)]


def ids(b=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in SIZES], 1)


@pytest.mark.parametrize("y_range", [None, (0.5, 5.5)])
def test_same_numbers_as_fastai(y_range):
    theirs = EmbeddingDotBias(6, 7, 11, y_range=y_range)
    ours = stirred(MatrixFactorization(SIZES, dim=6, pad=False, y_range=y_range), 1.0)
    with torch.no_grad():
        for i, (vectors, biases) in enumerate([(theirs.u_weight, theirs.u_bias), (theirs.i_weight, theirs.i_bias)]):
            vectors.weight.copy_(ours.embeds.table(str(i)))
            biases.weight.copy_(ours.biases.table(str(i)))
    x = ids()
    assert ours(x).shape == (13, 1)
    assert torch.allclose(theirs(x), ours(x)[:, 0], rtol=1e-6, atol=1e-6)
    for net in (theirs, ours):
        net(x).flatten().mul(torch.linspace(-1, 1, 13)).sum().backward()
    s = ours.embeds.slices[1]
    assert torch.allclose(theirs.i_weight.weight.grad, ours.embeds.weights[s.group].grad[s.start : s.stop], atol=1e-6)
    assert torch.allclose(theirs.u_bias.weight.grad, ours.biases.weights["w1"].grad[:7], atol=1e-6)
    assert count(theirs) == count(ours) == 18 * 7


@pytest.mark.parametrize("bias", [False, True])
def test_scores_equal_a_loop(bias):
    net = stirred(MatrixFactorization(SIZES, dim=5, bias=bias, mean=3.5, cat_names=["user", "item"]), 1.0)
    x, users, items = ids(), net.embeds.table("user"), net.embeds.table("item")
    assert users.shape == (7, 8)  # widths are rounded up
    assert count(net) == 18 * (8 + bias)
    for row, score in zip(x.tolist(), net(x)[:, 0].tolist(), strict=True):
        wanted = 3.5 + sum(a * b for a, b in zip(users[row[0]].tolist(), items[row[1]].tolist(), strict=True))
        if bias:
            wanted += net.biases.table("user")[row[0]].item() + net.biases.table("item")[row[1]].item()
        assert score == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_vectors_of_users_and_items_give_the_scores(bias):
    net = MatrixFactorization([(5, 3), (7, 3)], dim=6, bias=bias, mean=2.0, std=0.5)
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(7))
    scores = net.user_vectors() @ net.item_vectors().T
    assert scores.shape == (5, 7)
    torch.testing.assert_close(scores + 2.0, net(pairs).view(5, 7))


def test_the_mean_is_the_score_of_nothing_known():
    net = MatrixFactorization(SIZES, mean=3.5, y_range=(0.5, 5.5), std=1e-9)
    assert net(ids())[:, 0].tolist() == pytest.approx([3.5] * 13, abs=1e-5)
    assert net.mean.item() == pytest.approx(math.log(3 / 2))
    other = MatrixFactorization(SIZES, std=1e-9)
    other.load_state_dict(MatrixFactorization(SIZES, mean=2.0, std=1e-9).state_dict())
    assert other(ids())[0].item() == pytest.approx(2)


def test_gradients_are_right():
    assert_gradients(stirred(MatrixFactorization(SIZES, dim=3, y_range=(0, 1)), 1.0), ids(5))


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    u, i = rng.normal(size=(2, 40, 3))
    df = pd.DataFrame({"user": rng.integers(0, 40, 3000), "item": rng.integers(0, 40, 3000)})
    df["rating"] = (3 + (u[df.user] * i[df.item]).sum(1) + 0.3 * rng.normal(size=3000)).clip(0, 6).astype(np.float32)
    return df


def loaders(df, tmp_path, target="rating", block=RegressionBlock):
    splits = (range(2400), range(2400, 3000))
    to = TabularFrame(df, [Categorify], ["user", "item"], y_names=target, y_block=block(), splits=splits)
    return to.dataloaders(bs=64, path=tmp_path)


def test_rec_learner_starts_from_the_mean_and_finds_factors(ratings, tmp_path):
    set_seed(0)
    learn = rec_learner(loaders(ratings, tmp_path), MatrixFactorization, dim=8, y_range=(-0.5, 6.5), wd=0.01)
    share = (ratings.rating[:2400].mean() + 0.5) / 7
    assert learn.model.mean.item() == pytest.approx(math.log(share / (1 - share)), rel=1e-4)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(8, 2e-2)
        preds, targets = learn.get_preds()
    assert ((preds - targets.view_as(preds)) ** 2).mean() < 0.35 * ratings.rating.var()
    free = rec_learner(loaders(ratings, tmp_path), MatrixFactorization)
    assert free.model.mean.item() == pytest.approx(ratings.rating[:2400].mean(), rel=1e-5)
    assert free.model.embeds.table("user").shape == (41, 52)
    given = rec_learner(loaders(ratings, tmp_path), MatrixFactorization, mean=None)
    assert given.model.mean.item() == 0


def test_what_it_cannot_be_made_for(ratings, tmp_path):
    for options, words in [
        ({"emb_szs": [(3, 3)]}, "of 1 categorical columns"),
        ({"n_cont": 2}, "2 others"),
        ({"list_szs": [(4, 4)]}, "1 others"),
        ({"out_sz": 5}, "5 outputs"),
        ({"mean": 7.0, "y_range": (0, 5)}, "outside y_range"),
    ]:
        with pytest.raises(DataError, match=words):
            MatrixFactorization(**{"emb_szs": SIZES, **options})
    dls = loaders(ratings.assign(rating=ratings.rating.round().astype(int)), tmp_path, block=CategoryBlock)
    with pytest.raises(DataError, match=r"outputs.*RegressionBlock"):
        rec_learner(dls, MatrixFactorization)
