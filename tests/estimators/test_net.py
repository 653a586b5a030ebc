"""NetRanker: a net over candidates, trained on whole lists; nets that begin with another's weights."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.estimators import ConstantModel, NetModel, NetRanker, XGBModel
from fastrec.estimators import _net_training as _one_cycle
from fastrec.estimators import net as module
from fastrec.estimators._net_training import fit_options
from fastrec.estimators.net import WeightedListLoss
from fastrec.losses import ListwiseSoftmax
from fastrec.metrics import mrr
from fastrec.models import EmbeddingTables, TabularNet
from fastrec.optim import AdamW, adamw
from fastrec.table import Table
from fastrec.validate import Lists
from tests.estimators.made import start_rows

KINDS = ["gym", "pool", "spa"]


def clicks(lists: int = 40, size: int = 5, seed: int = 0) -> Lists:
    """Clicks by a number within its list, the list's level being noise, and by a kind; display order says a little."""
    rng = np.random.default_rng(seed)
    taste, level = rng.normal(size=(lists, size)), 20 * rng.normal(size=(lists, 1))
    kind = rng.integers(0, 3, (lists, size))
    position = np.tile(np.arange(size), (lists, 1))
    utility = 2.5 * taste + np.array([1.5, 0.0, -1.5])[kind] - 0.15 * position + rng.gumbel(size=taste.shape)
    label = np.zeros(taste.shape)
    label[np.arange(lists), utility.argmax(1)] = 1
    price = (taste + level).ravel()
    table = Table(
        {
            "position": position.ravel(),
            "gap": price - np.repeat(price.reshape(lists, size).mean(1), size),
            "price": np.where(rng.random(price.size) < 0.1, np.nan, price),
            "kind": [KINDS[k] for k in kind.ravel()],
        }
    )
    groups = torch.arange(lists).repeat_interleave(size) * 10
    conts = ["position", "gap", "price"]
    return Lists(table, groups, cats=["kind"], conts=conts, label=torch.from_numpy(label.ravel()))


def small(**options) -> NetRanker:
    return NetRanker("net", **{"layers": [8], "epochs": 1, "bs": 60, **options})


def hidden(data: Lists) -> Lists:
    return replace(data, label=None, weight=None)


def score(model, data: Lists) -> float:
    return mrr(model.predict(hidden(data)), data.label, data.groups)


def test_reporting_on_other_lists_changes_no_score():
    data, valid = clicks(), clicks(seed=1)
    alone, with_valid = small(epochs=2).fit(data, seed=1), small(epochs=2).fit(data, valid, seed=1)
    assert torch.equal(alone.predict(valid), with_valid.predict(valid))
    assert [set(c) for c in alone.trace.curves] == [{"epoch", "train_loss"}] * 2
    first, last = with_valid.trace.curves
    assert set(first) == {"epoch", "train_loss", "valid_loss", "mrr"}
    assert last["mrr"] == pytest.approx(score(with_valid, valid))
    scores, clicked = with_valid.predict(valid).reshape(-1, 5), valid.label.reshape(-1, 5).argmax(1)
    # the mean over lists: all are of one length, and so are its batches
    assert last["valid_loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, clicked)), abs=1e-4)
    assert last["epoch"] == 1
    with pytest.raises(DataError, match="labels"):
        small().fit(data, hidden(valid))
    nobody = valid.take(torch.zeros(len(valid), dtype=torch.bool))
    assert set(small().fit(data, nobody).trace.curves[0]) == {"epoch", "train_loss"}


@pytest.fixture
def learners(monkeypatch) -> list:
    """The Learners that are made from now on."""
    seen, make = [], _one_cycle.rec_learner
    monkeypatch.setattr(_one_cycle, "rec_learner", lambda *a, **k: seen.append(make(*a, **k)) or seen[-1])
    return seen


def test_large_batches_are_trained_by_adamw_without_momentum_of_embeddings(learners):
    data = clicks(32_768 // 5 + 1)
    model = small(bs=32_768, lr=2e-3, epochs=4).fit(data, seed=1)
    (learn,) = learners
    assert isinstance(learn.opt.opt, AdamW)
    embeddings, others = learn.opt.hypers
    assert [embeddings["mom"], others["mom"]] == [0.0, 0.5]
    assert [embeddings["sqr_mom"], others["sqr_mom"]] == [0.9, 0.9]
    tables = {id(p) for p in model._trained.net.embeds.parameters()}
    assert {id(p) for p in learn.opt.param_lists[0]} == tables
    losses = [c["train_loss"] for c in model.trace.curves]
    assert losses[-1] < losses[0]
    assert model.predict(data).isfinite().all()
    numbers = replace(data, cats=())  # nothing to split off
    assert small(bs=32_768, epochs=1).fit(numbers).predict(numbers).isfinite().all()
    assert [h["sqr_mom"] for h in learners[1].opt.hypers] == [0.9]


@pytest.mark.parametrize("bs", [32_768, 65_536, 819_200])
def test_the_rule_of_large_batches_is_the_one_that_was_measured(bs):
    net = TabularNet([(4, 4)], 1, 1, [4])
    rule, schedule = fit_options(net, 2e-3, bs, 3_000)
    times = bs / 3_000  # rule "scaled" of bench_extreme
    sqr_mom, moms = max(0.9, 1 - 0.01 * times), [[0.0, max(0.5, 1 - times * (1 - m))] for m in (0.95, 0.85, 0.95)]
    assert schedule["lr_max"] == pytest.approx([2e-3 * ((1 - sqr_mom) / 0.01) ** 0.5, 2e-3 * times**0.5])
    np.testing.assert_allclose(schedule["moms"], moms)
    assert rule["opt_func"].keywords == pytest.approx({"sqr_mom": sqr_mom, "eps": 1e-5 / times})


def test_smaller_batches_are_trained_as_ever():
    rule, schedule = fit_options(TabularNet([(4, 4)], 1, 1, [4]), 2e-3, 12_000, 3_000)
    assert (rule, schedule) == ({"opt_func": adamw}, {"lr_max": 4e-3})


def test_missing_values_get_one_flag_per_pattern():
    data = clicks(20)
    gone = torch.arange(len(data)) % 3 == 0
    number = torch.arange(len(data), dtype=torch.float64)
    columns = {
        "a": torch.where(gone, torch.nan, number),
        "b": torch.where(gone, torch.nan, -number),
        "c": torch.where(~gone, torch.nan, number),
        "whole": number,
        "never": torch.full_like(number, torch.nan),
        "a_is_missing": number,  # a name that a flag would have
    }
    model = small().fit(replace(data, table=Table(columns), cats=(), conts=list(columns)), seed=1)
    assert model._trained.flags == {"a_is_missing_": "a", "c_is_missing": "c"}
    assert model.predict(replace(data, table=Table(columns), cats=(), conts=list(columns))).isfinite().all()


def test_features_may_have_any_name_and_list_ids_be_any_integers():
    data = replace(clicks(), cats=())
    data = replace(data, weight=torch.where(data.groups % 20 == 0, 1.0, 0.5))
    names = dict(zip(data.conts, ("weight", "list", "label"), strict=True))
    renamed = replace(data, table=data.table.rename(names), conts=list(names.values()))
    big = replace(data, groups=data.groups // 10 + (1 << 62))  # neighbours that no float tells apart
    plain, *others = (small().fit(d, seed=1).predict(d) for d in (data, renamed, big))
    assert all(torch.equal(plain, other) for other in others)


def loss_by_loops(scores, label, groups, weight) -> float:
    top = bottom = 0.0
    for g in sorted(set(groups)):
        rows = [i for i, other in enumerate(groups) if other == g]
        if not any(label[i] for i in rows):
            continue
        z = math.log(sum(math.exp(scores[i]) for i in rows))
        total = sum(label[i] for i in rows)
        top += weight[rows[0]] * sum(label[i] / total * (z - scores[i]) for i in rows)
        bottom += weight[rows[0]]
    return top / bottom if bottom else 0.0


@pytest.mark.parametrize("weight", [[1, 1, 1, 2, 2, 0, 0, 5], [0] * 8, [1e-9] * 8])
def test_loss_is_the_weighted_mean_over_lists(weight):
    scores, groups = [0.3, -1.0, 2.0, 0.0, 0.5, 1.0, 3.0, 0.7], [4, 4, 4, 5, 5, 6, 6, 9]
    label = [1, 0, 1, 0, 1, 0, 1, 0]  # two clicks in the first list, none in the last
    weights = torch.tensor(weight, dtype=torch.float64)
    data = Lists(Table({"x": scores}), torch.tensor(groups), label=torch.tensor(label), weight=weights)
    targets = torch.stack([t.double() for t in module._targets_of(data)], 1)
    got = WeightedListLoss()(torch.tensor(scores, dtype=torch.float64)[:, None], targets)
    assert float(got) == pytest.approx(loss_by_loops(scores, label, groups, weight))


def test_the_training_rows_are_not_kept(learners):
    model = small().fit(clicks(), clicks(seed=1), seed=1)
    (learn,) = learners
    kept = [weakref.ref(thing) for thing in (learn, learn.opt, learn.dls.train_ds.packed.buffer)]
    del learn
    learners.clear()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert len(model._trained.frame) == 0


# A net that begins with another's weights: embeddings by value, all else by name.

OLD, GROWN = "abd", "aAbcd"
PLAIN = {"model": "TabularNet", "options": {"layers": [8]}, "epochs": 2, "bs": 64, "keep_best": False}


def embedding(net, values):
    """value → its row, of the one table of a trained net."""
    tables = next(m for m in net.net.modules() if isinstance(m, EmbeddingTables))
    s = tables.slice_of("city")
    weight = tables.weights[s.group][s.start : s.stop].detach()
    return {v: weight[1 + i] for i, v in enumerate(sorted(values))}


@pytest.mark.parametrize("task", ["binary", "ranking"])
def test_known_values_keep_their_rows_and_new_ones_get_rows(task, monkeypatch):
    ranking = task == "ranking"
    make = (lambda: NetRanker(layers=[8], epochs=2, bs=64)) if ranking else (lambda: NetModel(**PLAIN))

    def net_of(model):
        return model._trained if ranking else model._nets[0]

    first = make().fit(start_rows(OLD, task=task))
    second = make()
    assert second.start_from(first)
    # without a step of training what it begins with is seen
    module = "fastrec.estimators.net" if ranking else "fastrec.estimators.net_model"
    monkeypatch.setattr(f"{module}.train_one_cycle", lambda *a, **k: None)
    second = second.fresh().fit(start_rows(GROWN, seed=1, task=task))
    old, new = embedding(net_of(first), OLD), embedding(net_of(second), GROWN)
    for value in OLD:
        assert torch.equal(old[value], new[value])
    assert not any(torch.equal(new["c"], v) for v in old.values())
    for name, weight in net_of(first).net.state_dict().items():
        if "weights." not in name:
            assert torch.equal(weight, net_of(second).net.state_dict()[name]), name


def test_training_goes_on_from_there_for_half_the_epochs():
    data, longest = start_rows(OLD, 400), {**PLAIN, "epochs": 6}
    first = NetModel(**longest).fit(data)
    cold, warm = (NetModel(**{**PLAIN, "epochs": 1}) for _ in range(2))
    warm.start_from(first)
    losses = [nn.functional.binary_cross_entropy(m.fit(data).predict(data), data.label) for m in (warm, cold)]
    assert losses[0] < losses[1]
    assert repr(warm._starts[0]) == repr(NetModel.fresh(warm)._starts[0])
    again, longer = NetModel(**PLAIN), NetModel(**longest)
    again.start_from(warm)
    assert repr(again._starts[0]) != repr(warm._starts[0])
    longer.start_from(first)
    assert longer._starts[0].epochs(6) == 3


def test_another_number_of_columns_keeps_its_first_weights_where_shapes_differ():
    first = NetModel(**PLAIN).fit(start_rows(OLD))
    data = start_rows(OLD, seed=2)
    wider = replace(data, table=data.table.with_columns({"more": torch.randn(300)}), conts=["x", "z", "more"])
    model = NetModel(**PLAIN)
    model.start_from(first)
    assert model.fit(wider).predict(wider).isfinite().all()
    net = model._nets[0]
    kept = model._starts[0].give_to(net.net, net.frame)
    assert kept
    assert all("weights." not in name for name in kept)


def test_who_always_begins_from_nothing_says_so():
    for one, other in ((XGBModel(), XGBModel()), (ConstantModel("c"), ConstantModel("c")), (NetModel(), NetModel())):
        assert not one.start_from(other)
    assert not NetRanker().start_from(NetModel())


@pytest.mark.parametrize(("loss", "weighted"), [(ListwiseSoftmax(), False), (WeightedListLoss(), True)])
@pytest.mark.parametrize("cut", [4, 12, 28, 48])
def test_the_means_of_two_parts_make_the_whole_batchs(loss, weighted, cut):
    torch.manual_seed(0)
    lists = torch.arange(60) // 4
    label = torch.nn.functional.one_hot(torch.randint(0, 4, (15,)), 4).flatten().double()
    label[lists % 5 == 2] = 0  # lists without a click count nothing
    y = torch.stack([label, lists.double(), (1 + lists % 3).double()][: 3 if weighted else 2], 1)
    scores = torch.randn(60, 1, generator=torch.Generator().manual_seed(1))
    parts = [(scores[:cut], y[:cut]), (scores[cut:], y[cut:])]
    shares = torch.stack([loss.denominator(b) for _, b in parts]).double()
    means = torch.stack([loss(a, b) for a, b in parts]).double()
    assert float((means * shares).sum() / shares.sum()) == pytest.approx(float(loss(scores, y)), rel=1e-6)
