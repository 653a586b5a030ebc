"""Trees that are grown on others: as each library does it by itself, and only where the columns are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xgboost as xgb
from sklearn.metrics import log_loss

from fastrec import estimators
from fastrec.estimators import ConstantModel, Estimator, LGBMModel, NetModel, OffsetModel, XGBModel, XGBRanker
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.base import held_out
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, Rows

SMALL = {"rounds": 8, "early_stopping_rounds": None}


def rows(cities="ab", n=300, seed=0, task="binary", more=(), cats=("city",)):
    rng = np.random.default_rng(seed)
    city, x = rng.choice(list(cities), n), rng.normal(size=n)
    score = x + (city == "a") + rng.normal(size=n)
    label = {"binary": score > 0.5, "regression": score, "multiclass": np.digitize(score, [0, 1])}[task]
    label = torch.from_numpy(label.astype(np.int64 if task == "multiclass" else np.float64))
    extra = {name: rng.normal(size=n) for name in more}
    table = Table({"city": city.tolist(), "x": x, "z": rng.normal(size=n), **extra})
    outputs = 3 if task == "multiclass" else 1
    return Rows(table, task, cats=list(cats), conts=["x", "z", *more], label=label, n_outputs=outputs)


def grown_on(first, data, **options):
    made = type(first)(**{**SMALL, **options})
    assert made.start_from(first)
    return made.fresh().fit(data, seed=1)


@pytest.mark.parametrize("kind", ["XGBModel", "LGBMModel", "CatBoostModel"])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_trees_stop_by_what_all_of_them_say_of_the_held_out_rows(kind, task):
    """The curve that training stops by is of old and new trees together, and the saved model says the same."""
    pytest.importorskip({"LGBMModel": "lightgbm", "CatBoostModel": "catboost"}.get(kind, "xgboost"))
    kind, given = getattr(estimators, kind), {"cats": ()} if kind == "CatBoostModel" else {}
    first = kind(**SMALL).fit(rows(task=task, **given))
    more = rows(seed=1, task=task, **given)
    held = held_out(more)
    made = grown_on(first, more, rounds=60, early_stopping_rounds=3)
    assert made.trace.began == "grown on the trees that were there"
    part = more.take(held)
    said = made.predict(part).numpy()
    best = min(record["held_out"] for record in made.trace.curves)
    assert log_loss(part.label.numpy(), said, labels=range(2 if task == "binary" else 3)) == pytest.approx(
        best, rel=1e-5
    )
    assert len(made.trace.curves) <= 30  # half of 60 at most


def test_xgboost_goes_on_as_it_does_by_itself():
    first = XGBModel(**SMALL).fit(rows())
    data = rows(seed=1)
    made = grown_on(first, data)
    inputs = TreeInputs.fit(rows())
    params = made._params(data, 1, None)
    matrix = xgb.DMatrix(inputs.matrix(data.table).numpy(), data.label.numpy(), feature_names=["city", "x", "z"])
    by_hand = xgb.train(params, matrix, 4, xgb_model=first._parts[0])
    assert np.allclose(made.predict(data).numpy(), by_hand.predict(matrix), atol=1e-6)
    assert made._parts[0].num_boosted_rounds() == 8 + 4
    asked = xgb.DMatrix(inputs.matrix(rows().table).numpy(), feature_names=["city", "x", "z"])
    assert np.allclose(made._parts[0][:8].predict(asked), first.predict(rows()).numpy(), atol=1e-6)


def test_a_ranker_goes_on_too(tmp_path):
    def lists(cities, seed):
        data = rows(cities, seed=seed)
        return Lists(data.table, torch.arange(300) // 5, cats=["city"], conts=["x", "z"], label=data.label)

    first = XGBRanker("r", rounds=6).fit(lists("ab", 0))
    made = XGBRanker("r", rounds=6)
    assert made.start_from(first)
    assert made.fresh().fit(lists("abc", 1)).trace.began == "grown anew: city has new values (c)"
    made = made.fresh().fit(lists("ab", 1))
    assert made._parts[0].num_boosted_rounds() == 6 + 3
    asked = xgb.DMatrix(first._inputs.matrix(rows().table).numpy(), feature_names=["city", "x", "z"])
    assert np.allclose(made._parts[0][:6].predict(asked), first._parts[0].predict(asked))
    made.save(tmp_path / "m")
    assert Estimator.load(tmp_path / "m").trace.began == "grown on the trees that were there"
    assert not XGBRanker("r", margin="x").start_from(first)


def test_other_columns_values_or_outputs_are_grown_anew_and_it_is_said():
    first = XGBModel(**SMALL).fit(rows())
    anew = XGBModel(**SMALL).fit(rows("abc"), seed=1)
    made = grown_on(first, rows("abc"))
    assert made.trace.began == "grown anew: city has new values (c)"
    assert torch.equal(made.predict(rows("abc")), anew.predict(rows("abc")))
    assert grown_on(first, rows(more=["w"])).trace.began == "grown anew: the columns are others (w)"
    assert grown_on(first, rows(task="regression")).trace.began == "grown anew: the classes or targets are others"
    # a value that does not come any more is no obstacle: the others keep their codes
    fewer = grown_on(first, rows("b", seed=1))
    assert fewer.trace.began == "grown on the trees that were there"
    assert fewer._inputs.vocabs["city"].classes == first._inputs.vocabs["city"].classes


def test_catboost_goes_on_without_categories_alone():
    pytest.importorskip("catboost")
    from fastrec.estimators import CatBoostModel

    first = CatBoostModel(**SMALL).fit(rows())
    made = grown_on(first, rows(seed=1))
    assert made.trace.began == "grown anew: CatBoost goes on without categories only, and city is one"


def test_what_cannot_begin_with_another_says_so():
    first = XGBModel(**SMALL).fit(rows())
    assert not XGBModel().start_from(XGBModel())  # untrained
    assert not XGBModel(native_cats=True).start_from(first)
    assert not LGBMModel().start_from(first)
    assert not NetModel().start_from(first)
    assert not ConstantModel("c").start_from(first)
    offset = OffsetModel(XGBModel(**SMALL), "x").fit(rows(task="regression"))
    other = OffsetModel(XGBModel(**SMALL), "x")
    assert other.start_from(offset)
    assert other.fresh().fit(rows(task="regression", seed=1)).trace.began == "grown on the trees that were there"
    other.start_anew()
    assert other.fresh().fit(rows(task="regression", seed=1)).trace.began == ""


def test_two_starts_have_two_names():
    """What is kept of a run goes by it."""
    made = XGBModel(**SMALL)
    names = {made.began_with}
    for seed in (0, 1):
        made.start_from(XGBModel(**SMALL).fit(rows(seed=seed)))
        names.add(made.began_with)
    assert len(names) == 3


def test_a_cold_fold_begins_from_nothing():
    first = XGBModel(**SMALL).fit(rows())
    made = XGBModel(**SMALL)
    made.start_from(first)
    cross = CrossFit([made], 300, 0)
    cross.cold_folds = (0,)
    every, data = torch.arange(300), rows(seed=1)
    for k in (0, 1):
        cross.fold(data.take(every % 2 != k), data.take(every % 2 == k), every[every % 2 == k])
    began = [model.trace.began for model in cross.finish()["xgb"].models]
    assert began == ["", "grown on the trees that were there"]
