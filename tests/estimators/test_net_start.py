"""A net that begins with another's weights: embeddings by value, all else by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.estimators import ConstantModel, NetModel, NetRanker, XGBModel
from fastrec.models import EmbeddingTables
from fastrec.table import Table
from fastrec.validate import Lists, Rows

OLD, GROWN = ["a", "b", "d"], ["a", "aa", "b", "c", "d"]
PLAIN = {"model": "TabularNet", "options": {"layers": [8]}, "epochs": 2, "bs": 64, "keep_best": False}


def rows(values, n=200, seed=0, ranking=False):
    rng = np.random.default_rng(seed)
    cat = rng.choice(values, n)
    x = rng.normal(size=n)
    y = (x + np.isin(cat, ["a", "d"]) + rng.normal(size=n) > 0.5).astype(np.float64)
    table = Table({"cat": cat.tolist(), "x": x})
    if ranking:
        groups = torch.arange(n) // 5
        return Lists(table, groups, cats=["cat"], conts=["x"], label=torch.from_numpy(y))
    return Rows(table, "binary", cats=["cat"], conts=["x"], label=torch.from_numpy(y))


def embedding(net, values):
    """value → its row, of the one table of a trained net."""
    tables = next(m for m in net.net.modules() if isinstance(m, EmbeddingTables))
    s = tables.slice_of("cat")
    weight = tables.weights[s.group][s.start : s.stop].detach()
    return {v: weight[1 + i] for i, v in enumerate(sorted(values))}


@pytest.mark.parametrize("ranking", [False, True])
def test_known_values_keep_their_rows_and_new_ones_get_rows(ranking, monkeypatch):
    make = (lambda: NetRanker(layers=[8], epochs=2, bs=64)) if ranking else (lambda: NetModel(**PLAIN))

    def net_of(model):
        return model._trained if ranking else model._nets[0]

    first = make().fit(rows(OLD, ranking=ranking))
    second = make()
    assert second.start_from(first)
    # without a step of training what it begins with is seen
    module = "fastrec.estimators.net" if ranking else "fastrec.estimators.net_model"
    monkeypatch.setattr(f"{module}.train_one_cycle", lambda *a, **k: None)
    second = second.fresh().fit(rows(GROWN, seed=1, ranking=ranking))
    old, new = embedding(net_of(first), OLD), embedding(net_of(second), GROWN)
    for value in OLD:
        assert torch.equal(old[value], new[value])
    assert not any(torch.equal(new["c"], v) for v in old.values())
    for name, weight in net_of(first).net.state_dict().items():
        if "weights." not in name:
            assert torch.equal(weight, net_of(second).net.state_dict()[name]), name


def test_training_goes_on_from_there_for_half_the_epochs():
    data = rows(OLD, 400)
    first = NetModel(**{**PLAIN, "epochs": 6}).fit(data)
    cold = NetModel(**{**PLAIN, "epochs": 1}).fit(data)
    warm = NetModel(**{**PLAIN, "epochs": 1})
    warm.start_from(first)
    warm.fit(data)

    def loss(model):
        p = model.predict(data)
        return float(torch.nn.functional.binary_cross_entropy(p, data.label))

    assert loss(warm) < loss(cold)
    assert repr(warm._starts[0]) == repr(NetModel.fresh(warm)._starts[0])
    again = NetModel(**PLAIN)
    again.start_from(warm)
    assert repr(again._starts[0]) != repr(warm._starts[0])
    longer = NetModel(**{**PLAIN, "epochs": 6})
    longer.start_from(first)
    assert longer._starts[0].epochs(6) == 3


def test_another_number_of_columns_keeps_its_first_weights_where_shapes_differ():
    first = NetModel(**PLAIN).fit(rows(OLD))
    data = rows(OLD, seed=2)
    wider = Rows(
        data.table.with_columns({"more": torch.randn(200)}), "binary", cats=["cat"], conts=["x", "more"],
        label=data.label,
    )  # fmt: skip
    model = NetModel(**PLAIN)
    model.start_from(first)
    assert model.fit(wider).predict(wider).isfinite().all()
    net = model._nets[0]
    kept = model._starts[0].give_to(net.net, net.frame)
    assert kept
    assert all("weights." not in name for name in kept)


def test_who_always_begins_from_nothing_says_so():
    assert not XGBModel().start_from(XGBModel())
    assert not ConstantModel("c").start_from(ConstantModel("c"))
    assert not NetModel().start_from(NetModel())
    assert not NetRanker().start_from(NetModel())
