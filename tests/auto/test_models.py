"""Which models a table gets, and how large its trees are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import ensemble

from fastrec.auto.columns import ColumnInfo, Files, look_at
from fastrec.auto.features import Chosen
from fastrec.auto.models import SIZES, choose_models, choose_trees
from fastrec.auto.problem import Problem
from fastrec.auto.trial import Family
from fastrec.estimators import SKModel
from fastrec.estimators._net_training import default_model
from fastrec.table import Table
from fastrec.validate import Rows

pytest.importorskip("lightgbm")


def texts(rows, columns=5, task="binary", classes=(), values=None, **chosen):
    names = [f"v{i}" for i in range(columns)]
    train = pa.table(dict.fromkeys(names, np.arange(rows) * 1.0 if values is None else values))
    infos = [ColumnInfo(n, "number", 9, 0.0) for n in names]
    problem = Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc", classes=list(classes))
    return [m.text for m in choose_models(problem, Chosen(**chosen))]


PAID = [Family("counts", [], gain=0.1, error=0.01, kept=True)]


def test_many_rows_get_larger_trees_and_none_that_learn_slowly():
    few, many = texts(1_000), texts(40_000)
    assert few[0] == 'LGBMModel("lgbm")'
    assert "num_leaves=127" in many[0]
    assert any("max_depth=9" in t for t in many)
    assert not any("max_depth=9" in t for t in few)
    for slow in ("ExtraTrees", "RealMLP"):
        assert any(slow in t for t in few)
        assert not any(slow in t for t in many)


@pytest.mark.parametrize(("task", "linear"), [("binary", "LogisticRegression"), ("regression", "Ridge")])
def test_tables_of_ids_begin_with_catboost_and_a_linear_model_with_a_weight_for_every_value(task, linear):
    names = ["shop", "item", "x"]
    infos = [ColumnInfo("shop", "category", 400, 0.0), ColumnInfo("item", "category", 900, 0.0)]
    infos.append(ColumnInfo("x", "number", 9, 0.0))
    train = pa.table(dict.fromkeys(names, np.arange(5_000) * 1.0))
    problem = Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc")
    first, second, *rest = choose_models(problem, Chosen())
    assert first.cls == "CatBoostModel"
    assert linear in second.text
    assert linear in second.imports
    assert 'cats="every"' in second.text
    assert not any(m.cls == "CatBoostModel" or "every" in m.text for m in rest)
    problem.task, problem.classes = "multiclass", [0, 1, 2]
    assert not any("every" in m.text for m in choose_models(problem, Chosen()))


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_forest_works_in_as_many_threads_as_torch(task):
    line = next(t for t in texts(1_000, task=task) if "ExtraTrees" in t)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 3))
    y = torch.from_numpy(values[:, 0] + rng.normal(size=200))
    rows = Rows(
        Table(dict(zip("abc", values.T, strict=True))), task, conts=list("abc"), label=y > 0 if task == "binary" else y
    )
    model = eval(line, {"SKModel": SKModel, **vars(ensemble)}).fit(rows)
    part = model._parts[0]
    assert part.n_jobs == torch.get_num_threads()


def test_wide_tables_and_many_classes_keep_small_trees():
    for made in (texts(40_000, columns=200), texts(40_000, task="multiclass")):
        assert not any("num_leaves" in t for t in made)


def test_the_models_without_features_come_first_where_the_trials_were_hurried():
    slow, quick = texts(1_000, families=PAID), texts(1_000, families=PAID, hurried=True)
    assert [t.split('"')[1] for t in slow[:3]] == ["lgbm", "plain", "xgb"]
    assert [t.split('"')[1] for t in quick[:3]] == ["plain", "lgbm", "xgb"]
    assert "columns=OWN" not in slow[2]
    assert "columns=OWN" in quick[2]


def test_features_that_were_not_kept_change_nothing():
    left = [Family("counts", [], gain=-0.1, error=0.01, kept=False)]
    assert texts(1_000, families=left, hurried=True) == texts(1_000)


def test_what_is_text_in_the_files_is_a_category_of_catboost_though_it_became_a_number():
    pytest.importorskip("catboost")
    train = pa.table({"Month": [3.0, 4.0] * 50, "price": [1.5, 2.5] * 50})
    month = ColumnInfo("Month", "number", 12, 0.0, whole=True, key=True, numeric_text=True)
    price = ColumnInfo("price", "number", 90, 0.0, numeric_text=True)
    problem = Problem(Files(Path(), {}, {"train": train}), [month, price], ["y"], "binary", "auc")
    made = [m.text for m in choose_models(problem, Chosen()) if m.cls == "CatBoostModel"]
    assert made == ["CatBoostModel(\"catboost\", keys=['Month'])"]
    assert 'CatBoostModel("catboost")' in texts(100)


TAILS = np.exp(np.random.default_rng(0).normal(size=11_000) * 2)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_numbers_with_long_tails_get_a_net_of_logarithms_beside_the_other(task):
    made = [t for t in texts(11_000, task=task, values=TAILS) if t.startswith("NetModel")]
    assert len(made) == 2
    assert "logs" not in made[0]
    assert '"log_net"' in made[1]
    assert "logs=True" in made[1]
    assert made[0].split(", ")[1:-1] == made[1].split(", ")[1:-2]  # the same model otherwise
    place = [t.split('"')[1] for t in texts(11_000, task=task, values=TAILS)].index
    assert (place("log_net") == place("net") + 1) is (task == "multiclass")
    assert place("log_net") > place("net")
    assert not any("logs=True" in t for t in texts(11_000, task=task))


def test_nets_that_take_numbers_by_their_ranks_get_none():
    for made in (texts(11_000, values=TAILS), texts(11_000, columns=200, task="multiclass", values=TAILS)):
        assert sum(t.startswith("NetModel") for t in made) == 1


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_few_rows_get_a_net_of_each_kind_the_usual_one_first(task):
    usual, last = ("RealMLP", "TabM") if task == "regression" else ("TabM", "RealMLP")
    few = [t for t in texts(10_000, task=task) if t.startswith("NetModel")]
    (net,) = [t for t in texts(10_001, task=task) if t.startswith("NetModel")]
    assert few[0] == 'NetModel("net", bs=bs)'
    assert default_model(rows_of(task)) == usual
    assert few[1:] == [f'NetModel("other_net", model="{last}", bs=bs)'] == [texts(10_000, task=task)[-1]]
    # of many rows RealMLP does more with several classes
    assert ("RealMLP" in net) is (task == "multiclass")


def rows_of(task):
    return Rows(
        Table({"a": np.zeros(2)}), task, conts=["a"], label=torch.zeros(2), n_outputs=2 if task == "multiclass" else 1
    )


def test_no_catboost_where_classes_make_it_too_slow():
    pytest.importorskip("catboost")
    for rows, there in ((3_000, True), (30_000, False)):  # 100 numbers, 9 classes
        made = texts(rows, columns=100, task="multiclass", classes=range(9))
        assert any("CatBoost" in t for t in made) is there
    assert any("CatBoost" in t for t in texts(30_000, columns=100, task="regression"))


# The size of trees goes by what a trial on the table says.

pytest.importorskip("lightgbm")


def problem(train, task="binary", classes=("N", "Y")):
    infos = look_at(train, skip=["y"])
    return Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc", classes=list(classes))


def checkered():
    """Each of 1,600 squares has a label of its own."""
    rng, n = np.random.default_rng(0), 12_000
    a, b = rng.random(n), rng.random(n)
    square = (a * 40).astype(int) * 40 + (b * 40).astype(int)
    return pa.table({"a": a, "b": b, "y": np.where(rng.random(1_600) < 0.5, "N", "Y")[square]})


def noise():
    """One of forty numbers tells a little."""
    rng, n = np.random.default_rng(3), 4_000
    x = rng.normal(size=(n, 40))
    y = np.where(x[:, 0] + rng.normal(size=n) * 3 > 0, "Y", "N")
    return pa.table({f"v{i}": x[:, i] for i in range(40)} | {"y": y})


def test_what_hangs_on_several_columns_at_once_gets_very_large_trees():
    told = []
    found = problem(checkered())
    chosen = choose_trees(found, Chosen(), seconds=300, say=told.append)
    assert chosen.trees == "very large"
    assert "a trial's auc is usual" in chosen.trees_why
    assert told[-1].startswith("sizes of trees: very large (auc usual ")
    models = [m.text for m in choose_models(found, chosen)]
    assert "num_leaves=511" in models[0]
    assert any('"finer"' in m and "num_leaves=1023" in m for m in models)


def test_chance_among_few_rows_decides_nothing():
    assert choose_trees(problem(noise()), Chosen(), seconds=300).trees == "usual"


@pytest.mark.parametrize("how", ["few rows", "no time", "multilabel", "many classes"])
def test_where_nothing_can_be_tried_nothing_is_said(how):
    train = checkered()
    made = {
        "few rows": problem(train.slice(0, 500)),
        "no time": problem(train),
        "multilabel": problem(train, "multilabel"),
        "many classes": problem(train, "multiclass", classes=range(30)),
    }[how]
    chosen = choose_trees(made, Chosen(), seconds=0 if how == "no time" else 40)
    assert (chosen.trees, chosen.trees_why) == ("", "")


def test_every_size_is_one_that_the_libraries_take():
    from fastrec.estimators import LGBMModel, XGBModel
    from fastrec.table import Table
    from fastrec.validate import Rows

    x = np.random.default_rng(0).normal(size=400)
    rows = Rows(Table.read({"x": x}), "binary", conts=["x"], label=torch.from_numpy(x > 0).double())
    for size in SIZES.values():
        for model in (LGBMModel(rounds=5, **size["lgbm"]), XGBModel(rounds=5, **size["xgb"])):
            assert model.fit(rows, None, seed=0).predict(rows).shape == (400,)
