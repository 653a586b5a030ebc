from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.collab import EmbeddingDotBias
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.tabular.core import Categorify, Normalize, TabularPandas
from fastai.torch_core import set_seed
from torch import nn

from fastrec.errors import DataError, MissingColumnError
from fastrec.losses import InBatchSoftmax
from fastrec.models import MatrixFactorization, TwoTower, item_log_q
from fastrec.table import ListBatch
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner
from tests.models.plain import DEVICE, NAMES, assert_gradients, count, dense_of, run, stirred, to_device, vectors_of
from tests.training.helpers import predictions, quiet_fit

SIZES = [(7, 8), (6, 3), (5, 4)]
COLUMNS = {
    "cat_names": NAMES,
    "cont_names": ["age", "price"],
    "list_szs": [(6, 3)],
    "list_names": ["seen"],
    "vector_szs": [3],
    "vector_names": ["picture"],
    "bn_cont": False,
    "pad": False,
    "query": ["city", "user", "age", "seen"],
    "item": ["price", "item", "picture"],
}


def batch(b=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in SIZES], 1)
    seen = ListBatch.of([list(range(i % 4)) for i in range(b)])
    return to_device(cats, torch.randn(b, 2, generator=g), seen, torch.randn(b, 3, generator=g))


def plain_vectors(net, cats, conts, seen, picture, normalize):
    """Both towers' vectors, row by row, from the model's own weights."""
    out = [], []
    for b in range(len(cats)):
        city, item, user, history = vectors_of(net.embeds, b, cats, [seen])
        (age, price), normed = dense_of(net, b, conts, [picture])
        query, other = [city, user, history, [age]], [item, [price], normed]
        for side, tower, parts in zip(out, (net.query_tower, net.item_tower), (query, other), strict=True):
            vector = run(tower, np.concatenate(parts))
            side.append(vector / np.linalg.norm(vector) if normalize else vector)
    return to_device(*(torch.from_numpy(np.stack(side)).float() for side in out))


@pytest.mark.parametrize(("normalize", "temperature"), [(True, None), (False, None), (True, 0.3)])
def test_vectors_and_scores_equal_plain_ones(normalize, temperature):
    net = TwoTower(SIZES, 2, 1, **COLUMNS, dim=4, layers=[5], normalize=normalize, temperature=temperature)
    net, b = stirred(net), batch()
    queries, items = plain_vectors(net, *b, normalize)
    assert torch.allclose(net.query_vectors(*b), queries, atol=1e-5)
    assert torch.allclose(net.item_vectors(*b), items, atol=1e-5)
    divisor = temperature or (0.05 if normalize else 1.0)
    scores = net(*b)
    assert scores.shape == (6, 1)
    assert torch.allclose(scores[:, 0], (queries * items).sum(1) / divisor, atol=1e-4)
    ids = b[0][:, 1]
    same = (ids[:, None] == ids) & ~torch.eye(6, dtype=torch.bool, device=DEVICE)  # no rivals: the same item
    every = (queries @ items.T / divisor).masked_fill(same, -math.inf)
    wanted = nn.functional.cross_entropy(every, torch.arange(6, device=DEVICE)).item()
    found = InBatchSoftmax()(scores, torch.ones(6, device=DEVICE)).item()
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_gradients_are_right():
    net = stirred(TwoTower(SIZES, 2, 1, **COLUMNS, dim=3, layers=[4], temperature=1.0, act_cls=nn.Softplus))
    cats, conts, seen, picture = batch(5)
    loss = InBatchSoftmax(torch.linspace(-3, -1, 6, device=DEVICE).double())
    assert_gradients(net, cats, conts, seen, picture.double(), of=loss)


def test_which_column_tells_items_apart():
    assert TwoTower(SIZES, 2, 1, **COLUMNS).item_column == 1
    assert TwoTower(SIZES, 2, 1, **COLUMNS, item_id="city").item_column == 0
    net = TwoTower(SIZES, 2, 1, **{**COLUMNS, "item": ["price"]})
    assert net.item_column is None
    assert net.to(DEVICE)(*batch()).ids is None


# ---- trained


@pytest.fixture(scope="module")
def clicks():
    """Users of 8 tastes, each of whom clicks items of their own taste; item 0 is shown very often."""
    rng = np.random.default_rng(0)
    n = 4000
    df = pd.DataFrame({"user": rng.integers(0, 60, n), "age": rng.normal(size=n)})
    df["item"] = np.where(rng.random(n) < 0.1, 0, df.user % 8 + 8 * rng.integers(0, 6, n))
    df["weight"] = 1
    df["click"] = (df.item % 8 == df.user % 8).astype(int)
    return df


def loaders(df, tmp_path, target="weight", frame=TabularFrame):
    n = len(df)
    splits = (list(range(n * 4 // 5)), list(range(n * 4 // 5, n)))
    names = (["user", "item"], ["age"], target)
    to = frame(df, [Categorify, Normalize], *names, y_block=RegressionBlock(), splits=splits)
    return to.dataloaders(bs=128, path=tmp_path)


TOWERS = {"query": ["user", "age"], "item": ["item"], "dim": 16, "layers": [32]}


def scores_of_all(net, items):
    """The score of every item's code by each of the sixty users."""
    codes, users = torch.arange(items), torch.arange(1, 61)
    with torch.no_grad():
        net = net.cpu().eval()
        items = net.item_vectors(torch.stack([torch.zeros_like(codes), codes], 1), torch.zeros(len(codes), 1))
        return net.query_vectors(torch.stack([users, torch.zeros_like(users)], 1), torch.zeros(60, 1)) @ items.T


def test_in_batch_softmax_finds_each_users_items(clicks, tmp_path):
    set_seed(0)
    dls = loaders(clicks, tmp_path)
    log_q = item_log_q(dls, "item")
    learn = quiet_fit(rec_learner(dls, TwoTower, **TOWERS, loss_func=InBatchSoftmax(log_q)), 6)
    with learn.no_bar():
        loss, scores = learn.validate()[0], learn.get_preds()[0]
    assert loss < 0.75 * math.log(128)
    assert scores.shape == (800, 1)
    assert type(scores) is torch.Tensor
    found = scores_of_all(learn.model, len(dls.classes["item"]))
    names = [int(v) if v != "#na#" else -1 for v in dls.classes["item"]]
    top = [[names[i] for i in row.topk(5).indices] for row in found]
    right = np.mean([[i % 8 == (u - 1) % 8 for i in row] for u, row in enumerate(top, 1)])
    assert right > 0.9


def test_log_q_is_the_share_of_training_rows(clicks, tmp_path):
    for frame in (TabularFrame, TabularPandas):
        dls = loaders(clicks, tmp_path, frame=frame)
        log_q = item_log_q(dls, "item")
        counts = clicks.item[:3200].value_counts()
        for code, name in enumerate(dls.classes["item"]):
            assert log_q[code].item() == pytest.approx(math.log(counts.get(name, 1) / 3200), rel=1e-5)
    with pytest.raises(MissingColumnError, match="'age'"):
        item_log_q(dls, "age")


def test_bad_options_are_refused():
    for options, error, words in [
        ({"query": []}, DataError, "of 0 and 3 columns"),
        ({"item": ["prize"]}, MissingColumnError, "'prize'"),
        ({"item_id": "price"}, MissingColumnError, "'price'"),
        ({"out_sz": 2}, DataError, "2 outputs"),
        ({"temperature": 0.0}, DataError, "temperature 0"),
        ({"cont_names": ["age"]}, DataError, "one each"),
        ({"vector_names": ["user"]}, DataError, "all different"),
    ]:
        with pytest.raises(error, match=words):
            TwoTower(SIZES, 2, **{"out_sz": 1, **COLUMNS, **options})


# Matrix factorization


MF_SIZES = [(7, 16), (11, 3)]


def ids(b=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in MF_SIZES], 1).to(DEVICE)


@pytest.mark.parametrize("y_range", [None, (0.5, 5.5)])
def test_same_numbers_as_fastai(y_range):
    theirs = EmbeddingDotBias(6, 7, 11, y_range=y_range).to(DEVICE)
    ours = stirred(MatrixFactorization(MF_SIZES, dim=6, pad=False, y_range=y_range), 1.0)
    with torch.no_grad():
        for i, (vectors, biases) in enumerate([(theirs.u_weight, theirs.u_bias), (theirs.i_weight, theirs.i_bias)]):
            vectors.weight.copy_(ours.embeds.table(str(i)))
            biases.weight.copy_(ours.biases.table(str(i)))
    x = ids()
    assert ours(x).shape == (13, 1)
    assert torch.allclose(theirs(x), ours(x)[:, 0], rtol=1e-6, atol=1e-6)
    for net in (theirs, ours):
        net(x).flatten().mul(torch.linspace(-1, 1, 13, device=DEVICE)).sum().backward()
    pairs = (ours.embeds, (theirs.u_weight, theirs.i_weight)), (ours.biases, (theirs.u_bias, theirs.i_bias))
    for tables, those in pairs:
        for s, table in zip(tables.slices, those, strict=True):
            assert torch.allclose(table.weight.grad, tables.weights[s.group].grad[s.start : s.stop], atol=1e-6)
    assert count(theirs) == count(ours) == 18 * 7


@pytest.mark.parametrize("bias", [False, True])
def test_vectors_of_users_and_items_give_the_scores(bias):
    net = MatrixFactorization([(5, 3), (7, 3)], dim=6, bias=bias, mean=2.0, std=0.5).to(DEVICE)
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(7)).to(DEVICE)
    scores = net.user_vectors() @ net.item_vectors().T
    assert scores.shape == (5, 7)
    torch.testing.assert_close(scores + 2.0, net(pairs).view(5, 7))


def test_the_mean_is_the_score_of_nothing_known():
    net = MatrixFactorization(MF_SIZES, mean=3.5, y_range=(0.5, 5.5), std=1e-9).to(DEVICE)
    assert net(ids())[:, 0].tolist() == pytest.approx([3.5] * 13, abs=1e-5)
    assert net.mean.item() == pytest.approx(math.log(3 / 2))
    other = MatrixFactorization(MF_SIZES, std=1e-9).to(DEVICE)
    other.load_state_dict(MatrixFactorization(MF_SIZES, mean=2.0, std=1e-9).state_dict())
    assert other(ids())[0].item() == pytest.approx(2)


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    u, i = rng.normal(size=(2, 40, 3))
    df = pd.DataFrame({"user": rng.integers(0, 40, 3000), "item": rng.integers(0, 40, 3000)})
    df["rating"] = (3 + (u[df.user] * i[df.item]).sum(1) + 0.3 * rng.normal(size=3000)).clip(0, 6).astype(np.float32)
    return df


def mf_loaders(df, tmp_path, target="rating", block=RegressionBlock):
    splits = (range(2400), range(2400, 3000))
    to = TabularFrame(df, [Categorify], ["user", "item"], y_names=target, y_block=block(), splits=splits)
    return to.dataloaders(bs=64, path=tmp_path)


def test_rec_learner_starts_from_the_mean_and_finds_factors(ratings, tmp_path):
    set_seed(0)
    learn = rec_learner(mf_loaders(ratings, tmp_path), MatrixFactorization, dim=8, y_range=(-0.5, 6.5), wd=0.01)
    share = (ratings.rating[:2400].mean() + 0.5) / 7
    assert learn.model.mean.item() == pytest.approx(math.log(share / (1 - share)), rel=1e-4)
    preds, targets = predictions(quiet_fit(learn, 8, 2e-2))
    assert ((preds - targets.view_as(preds)) ** 2).mean() < 0.35 * ratings.rating.var()
    free = rec_learner(mf_loaders(ratings, tmp_path), MatrixFactorization)
    assert free.model.mean.item() == pytest.approx(ratings.rating[:2400].mean(), rel=1e-5)
    assert free.model.embeds.table("user").shape == (41, 52)
    given = rec_learner(mf_loaders(ratings, tmp_path), MatrixFactorization, mean=None)
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
            MatrixFactorization(**{"emb_szs": MF_SIZES, **options})
    dls = mf_loaders(ratings.assign(rating=ratings.rating.round().astype(int)), tmp_path, block=CategoryBlock)
    with pytest.raises(DataError, match=r"outputs.*RegressionBlock"):
        rec_learner(dls, MatrixFactorization)
