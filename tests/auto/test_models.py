"""Which models a table gets, and how large its trees are."""

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
from fastrec.estimators import LGBMModel, SKModel, XGBModel
from fastrec.estimators._net_training import default_model
from fastrec.table import Table
from fastrec.validate import Rows

pytest.importorskip("lightgbm")


def problem_of(train, infos, task="binary", classes=()):
    return Problem(Files(Path(), {}, {"train": pa.table(train)}), infos, ["y"], task, "auc", classes=list(classes))


def texts(rows, columns=5, task="binary", classes=(), values=None, **chosen):
    names = [f"v{i}" for i in range(columns)]
    infos = [ColumnInfo(n, "number", 9, 0.0) for n in names]
    values = np.arange(rows) * 1.0 if values is None else values
    found = problem_of(dict.fromkeys(names, values), infos, task, classes)
    return [m.text for m in choose_models(found, Chosen(**chosen))]


def name_of(text):
    return text.split('"')[1]


def nets(rows, **more):
    return [t for t in texts(rows, **more) if t.startswith("NetModel")]


PAID = [Family("counts", [], gain=0.1, error=0.01, kept=True)]


CLASSES = {"task": "multiclass", "classes": range(3)}
MANY = {"columns": 100, "task": "multiclass", "classes": range(9)}


@pytest.mark.parametrize(
    ("rows", "more", "there", "absent"),
    [
        (1_000, {}, ['LGBMModel("lgbm")', "ExtraTrees", "RealMLP", "LogisticRegression", "CatBoost"], ["max_depth=9"]),
        (40_000, {}, ["num_leaves=127", "max_depth=9"], ["ExtraTrees", "RealMLP"]),  # none that learns slowly
        (1_000, CLASSES, ["LogisticRegression"], []),
        (20_000, {}, [], ["LogisticRegression"]),
        (1_000, {"task": "regression"}, [], ["LogisticRegression"]),
        (40_000, {"columns": 200}, [], ["num_leaves"]),
        (40_000, CLASSES, [], ["num_leaves"]),
        (3_000, MANY, ["CatBoost"], []),
        (30_000, MANY, [], ["CatBoost"]),  # it would be too slow
        (30_000, {"columns": 100, "task": "regression"}, ["CatBoost"], []),
    ],
)
def test_models_and_sizes_of_trees_go_by_rows_columns_and_classes(rows, more, there, absent):
    pytest.importorskip("catboost")
    made = "\n".join(texts(rows, **more))
    assert ([t for t in there if t not in made], [t for t in absent if t in made]) == ([], [])


@pytest.mark.parametrize(("task", "linear"), [("binary", "LogisticRegression"), ("regression", "Ridge")])
def test_tables_of_ids_begin_with_catboost_and_a_linear_model_with_a_weight_for_every_value(task, linear):
    pytest.importorskip("catboost")
    infos = [ColumnInfo(*c, 0.0) for c in (("shop", "category", 400), ("item", "category", 900), ("x", "number", 9))]
    problem = problem_of(dict.fromkeys(("shop", "item", "x"), np.arange(5_000) * 1.0), infos, task)
    first, second, *rest = choose_models(problem, Chosen())
    assert first.cls == "CatBoostModel"
    assert linear in second.text
    assert linear in second.imports
    assert 'cats="every"' in second.text
    assert not any(m.cls == "CatBoostModel" or "every" in m.text for m in rest)
    problem.task, problem.classes = "multiclass", [0, 1, 2]
    assert not any("every" in m.text for m in choose_models(problem, Chosen()))


def rows_of(task, x=(0.0, 0.0), label=(0.0, 0.0)):
    n_outputs = 2 if task == "multiclass" else 1
    return Rows(Table({"a": np.array(x)}), task, conts=["a"], label=torch.tensor(label), n_outputs=n_outputs)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_forest_works_in_as_many_threads_as_torch(task):
    line = next(t for t in texts(1_000, task=task) if "ExtraTrees" in t)
    x = np.random.default_rng(0).normal(size=200)
    rows = rows_of(task, x, 1.0 * (x > 0) if task == "binary" else x)
    model = eval(line, {"SKModel": SKModel, **vars(ensemble)}).fit(rows)
    assert model._parts[0].n_jobs == torch.get_num_threads()


def test_the_models_without_features_come_first_where_the_trials_were_hurried():
    # a gain of ten errors is believed however hurried the trial was
    assert texts(1_000, families=PAID, hurried=True) == texts(1_000, families=PAID)
    some = [Family("counts", [], gain=0.049, error=0.01, kept=True)]
    slow, quick = texts(1_000, families=some), texts(1_000, families=some, hurried=True)
    assert [name_of(t) for t in slow[:3]] == ["lgbm", "plain", "xgb"]
    assert [name_of(t) for t in quick[:3]] == ["plain", "lgbm", "xgb"]
    assert "columns=OWN" not in slow[2]
    assert "columns=OWN" in quick[2]
    # features that were not kept change nothing
    left = [Family("counts", [], gain=-0.1, error=0.01, kept=False)]
    assert texts(1_000, families=left, hurried=True) == texts(1_000)


def test_what_is_text_in_the_files_is_a_category_of_catboost_though_it_became_a_number():
    pytest.importorskip("catboost")
    month = ColumnInfo("Month", "number", 12, 0.0, whole=True, key=True, numeric_text=True)
    price = ColumnInfo("price", "number", 90, 0.0, numeric_text=True)
    problem = problem_of({"Month": [3.0, 4.0] * 50, "price": [1.5, 2.5] * 50}, [month, price])
    made = [m.text for m in choose_models(problem, Chosen()) if m.cls == "CatBoostModel"]
    assert made == ["CatBoostModel(\"catboost\", keys=['Month'])"]
    assert 'CatBoostModel("catboost")' in texts(100)


TAILS = np.exp(np.random.default_rng(0).normal(size=11_000) * 2)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_numbers_with_long_tails_get_a_net_of_logarithms_beside_the_other(task):
    made = nets(11_000, task=task, values=TAILS)
    assert len(made) == 2
    assert "logs" not in made[0]
    assert '"log_net"' in made[1]
    assert "logs=True" in made[1]
    assert made[0].split(", ")[1:-1] == made[1].split(", ")[1:-2]  # the same model otherwise
    place = [name_of(t) for t in texts(11_000, task=task, values=TAILS)].index
    assert (place("log_net") == place("net") + 1) is (task == "multiclass")
    assert place("log_net") > place("net")
    assert not any("logs=True" in t for t in texts(11_000, task=task))
    # nets that take numbers by their ranks get none
    assert len(nets(11_000, values=TAILS)) == len(nets(11_000, columns=200, task="multiclass", values=TAILS)) == 1


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_few_rows_get_a_net_of_each_kind_the_usual_one_first(task):
    usual, last = ("RealMLP", "TabM") if task == "regression" else ("TabM", "RealMLP")
    few, (net,) = nets(10_000, task=task), nets(10_001, task=task)
    near = [t for t in few if "ModernNCA" in t]  # neighbours of classes alone
    assert near == (['NetModel("neighbours", model="ModernNCA", bs=bs)'] if task != "regression" else [])
    few = [t for t in few if t not in near]
    assert few[0] == 'NetModel("net", bs=bs)'
    assert default_model(rows_of(task)) == usual
    assert few[1:] == [f'NetModel("other_net", model="{last}", bs=bs)'] == [texts(10_000, task=task)[-1]]
    # of many rows RealMLP does more with several classes
    assert ("RealMLP" in net) is (task == "multiclass")


# The size of trees goes by what a trial on the table says.


def problem(train, task="binary", classes=("N", "Y")):
    return problem_of(train, look_at(train, skip=["y"]), task, classes)


def checkered():
    """Each of 1,600 squares has a label of its own."""
    rng, n = np.random.default_rng(0), 12_000
    a, b = rng.random(n), rng.random(n)
    square = (a * 40).astype(int) * 40 + (b * 40).astype(int)
    return pa.table({"a": a, "b": b, "y": np.where(rng.random(1_600) < 0.5, "N", "Y")[square]})


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
    """One of forty numbers tells a little."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4_000, 40))
    y = np.where(x[:, 0] + rng.normal(size=4_000) * 3 > 0, "Y", "N")
    noise = pa.table({f"v{i}": x[:, i] for i in range(40)} | {"y": y})
    assert choose_trees(problem(noise), Chosen(), seconds=300).trees == "usual"


@pytest.mark.parametrize(
    ("rows", "task", "classes", "seconds"),
    [
        (500, "binary", "NY", 40), (12_000, "binary", "NY", 0), (12_000, "multilabel", "NY", 40),
        (12_000, "multiclass", range(30), 40),
    ],
)  # fmt: skip
def test_where_nothing_can_be_tried_nothing_is_said(rows, task, classes, seconds):
    chosen = choose_trees(problem(checkered().slice(0, rows), task, classes), Chosen(), seconds=seconds)
    assert (chosen.trees, chosen.trees_why) == ("", "")


def test_every_size_is_one_that_the_libraries_take():
    x = np.random.default_rng(0).normal(size=400)
    rows = rows_of("binary", x, 1.0 * (x > 0))
    for size in SIZES.values():
        for model in (LGBMModel(rounds=5, **size["lgbm"]), XGBModel(rounds=5, **size["xgb"])):
            assert model.fit(rows, None, seed=0).predict(rows).shape == (400,)
