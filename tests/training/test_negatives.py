"""Uniform and hard negatives of two towers: what is added to a batch, and the loss with it, against plain loops."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastai.data.block import RegressionBlock
from fastai.torch_core import set_seed

from fastrec.errors import DataError
from fastrec.losses import InBatchSoftmax
from fastrec.models import TabularNet, TwoTower, item_log_q
from fastrec.tabular import Categorify, TabularFrame
from fastrec.training import MoreNegatives, rec_learner
from tests.training.helpers import quiet_fit

TOWERS = {"query": ["user"], "item": ["item", "price"], "dim": 4, "layers": [6]}


class Seen(Callback):
    """Keeps what the net read and the loss of each training batch, and the net's vectors before it learned from it."""

    order = 5

    def __init__(self, rows):
        self.rows, self.batches = rows, []

    def before_batch(self):
        net = self.learn.model.eval()
        with torch.no_grad():
            users = torch.tensor([[u, 0] for u in range(10)])
            tops = net.query_vectors(users, torch.zeros(10, 1)) @ net.item_vectors(*self.rows).T
        net.train()
        self.batches.append([*(x.clone() for x in self.learn.xb), self.learn.yb[0].clone(), tops])

    def after_loss(self):
        self.batches[-1] += [self.learn.pred.queries.detach(), self.learn.pred.items.detach(), self.learn.loss.item()]


def learner(n_uniform, n_hard, log_q=False, **options):
    rng = np.random.default_rng(0)
    item = np.where(rng.random(400) < 0.5, 0, rng.integers(0, 16, 400))
    frame = pd.DataFrame({"user": rng.integers(0, 9, 400), "item": item, "price": item * 1.0, "weight": 1.0})
    made = TabularFrame(frame, [Categorify], ["user", "item"], ["price"], y_names="weight", y_block=RegressionBlock())
    dls = made.dataloaders(bs=40, seed=0)
    set_seed(0)
    share = n_uniform / (40 + n_uniform)
    loss = InBatchSoftmax(item_log_q(dls, "item", uniform=share) if log_q else None)
    negatives = MoreNegatives(n_uniform, n_hard, query="user", every=1, **options)
    rows = torch.tensor([[0, i] for i in range(1, 17)]), torch.arange(16.0)[:, None]
    seen = Seen(rows)
    return rec_learner(dls, TwoTower, **TOWERS, loss_func=loss, cbs=[negatives, seen]), seen, frame


def test_uniform_negatives_are_drawn_from_all_items_alike_and_the_loss_knows():
    learn, seen, frame = learner(60, 0, log_q=True)
    quiet_fit(learn, 2)
    counts, drawn = frame["item"].value_counts(), Counter()
    for cats, conts, y, _, queries, items, loss in seen.batches:
        assert y.view(-1).tolist() == [1.0] * 40 + [0.0] * 60
        assert conts[:, 0].tolist() == [c - 1.0 for c in cats[:, 1].tolist()]  # the item's other columns come with it
        drawn.update(cats[40:, 1].tolist())
        q = {i: 0.4 * counts[i - 1] / 400 + 0.6 / 16 for i in range(1, 17)}
        total = 0.0
        for i in range(40):
            scores = [float(queries[i] @ items[j]) - math.log(q[int(cats[j, 1])]) for j in range(100)]
            rest = [s for j, s in enumerate(scores) if j == i or cats[j, 1] != cats[i, 1]]
            total += math.log(sum(math.exp(s - scores[i]) for s in rest))
        assert loss == pytest.approx(total / 40, rel=1e-4)
    expected = sum(drawn.values()) / 16
    assert set(drawn) == set(range(1, 17))
    assert sum((n - expected) ** 2 / expected for n in drawn.values()) < 40  # chi-square, 15 degrees: p = .0005


def test_hard_negatives_are_the_net_s_first_but_for_what_a_query_knows():
    learn, seen, frame = learner(0, 25, among=3)
    quiet_fit(learn, 1)
    known = {u: {i + 1 for i in frame["item"][frame["user"] == u - 1]} for u in range(1, 10)}
    for cats, _, y, tops, *_ in seen.batches:
        assert not y[40:].any()
        allowed = set()
        for u in set(cats[:40, 0].tolist()):
            order = [i + 1 for i in tops[u].argsort(descending=True).tolist() if i + 1 not in known[u]]
            allowed |= set(order[:3])
        assert set(cats[40:, 1].tolist()) <= allowed
    assert sum(len(b[0]) for b in seen.batches) > 400


@pytest.mark.parametrize(("call", "match"), [
    (lambda: MoreNegatives(), "uniform or hard"),
    (lambda: MoreNegatives(hard=3), "with hard a query"),
    (lambda: MoreNegatives(3, among=0), "above 0"),
])  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(call, match):
    with pytest.raises(DataError, match=match):
        call()


def test_other_nets_are_refused():
    learn, *_ = learner(3, 0)
    other = rec_learner(learn.dls, TabularNet, cbs=[MoreNegatives(3)])
    with pytest.raises(DataError, match="item column"):
        quiet_fit(other, 1)
