"""What the nodes of an estimator's trees say against the estimator's own ``predict``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import ensemble, linear_model, tree

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import CatBoostModel, ConstantModel, LGBMModel, SKModel, XGBModel, XGBRanker
from fastrec.serve.forest import EstimatorForests, forest_of_sklearn, forests_of
from fastrec.table import Table
from fastrec.validate import Lists, Rows

N = 240
CITIES = ["bergen", "oslo", "rome", "wien"]
TASKS = ["ranking", "binary", "multiclass", "regression", "several", "multilabel"]
TREES = {
    "xgb": lambda **p: XGBModel("t", rounds=12, early_stopping_rounds=3, max_depth=3, nthread=1, **p),
    "xgb sets": lambda **p: XGBModel("t", rounds=8, native_cats=True, nthread=1, max_cat_to_onehot=1, **p),
    "lgbm": lambda **p: LGBMModel("t", rounds=8, num_leaves=6, min_data_in_leaf=3, n_jobs=1, **p),
    "lgbm codes": lambda **p: LGBMModel("t", rounds=6, native_cats=False, min_data_in_leaf=3, n_jobs=1, **p),
    "catboost": lambda **p: CatBoostModel("t", rounds=8, depth=3, thread_count=1, max_ctr_complexity=3, **p),
}
LIBRARIES = {"lgbm": "lightgbm", "lgbm codes": "lightgbm", "catboost": "catboost"}


def frame_of(seed: int = 0, more: tuple[str, ...] = ()) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=N), "z": rng.normal(size=N), "start": rng.normal(size=N)})
    frame["city"] = rng.choice([*CITIES, *more], N)
    frame["shop"] = rng.choice(list("abcdefghijkl"), N)
    frame["value"] = frame.x + frame.city.map(lambda c: len(c)) + (frame.shop < "e") + rng.normal(size=N)
    frame.loc[rng.random(N) < 0.1, "x"] = np.nan
    frame.loc[rng.random(N) < 0.1, "city"] = None
    frame.loc[:2, "z"] = [np.inf, -np.inf, 0]
    return frame


def rows_of(frame: pd.DataFrame, task: str) -> Rows:
    table = Table.read(frame[["x", "z", "start", "city", "shop"]])
    value = torch.from_numpy(frame.value.to_numpy(copy=True))
    given = {"cats": ["city", "shop"], "conts": ["x", "z", "start"]}
    if task == "ranking":
        return Lists(table, torch.arange(N) // 8, label=(value > 6).double(), **given)
    label = {
        "binary": (value > 5).double(),
        "multiclass": (value > 4).long() + (value > 6),
        "regression": value,
        "several": torch.stack([value, torch.full_like(value, 2.5), value**2], 1),
        "multilabel": torch.stack([value > 5, value > -99], 1).double(),
    }[task]
    wide = label.shape[1] if label.ndim == 2 else 3 if task == "multiclass" else 1
    return Rows(table, "regression" if task == "several" else task, label=label, n_outputs=wide, **given)


def said(run, forests: EstimatorForests, data: Rows) -> np.ndarray:
    """What an exported model of an estimator's trees says of its matrix of rows."""
    from fastrec.serve.onnx_builder import ROWS, Graph

    values = torch.as_tensor(forests.inputs.matrix(data.table)).cpu().numpy().astype(forests.dtype)
    starts = {forests.start: data.table[forests.start].number(torch.float32).cpu().numpy()} if forests.start else {}
    graph = Graph()
    x = graph.input("x", values.dtype, (ROWS, values.shape[1]))
    for name in starts:
        graph.input(name, np.float32)
    predicted, _ = forests.predictions(x, graph, start=forests.start)
    several = len(forests.parts) > 1 or forests.task == "multiclass"
    graph.output("y", predicted, np.float64, "outputs" if several else None)
    return run(graph.model(), x=values, **starts)


def agree(run, model, data: Rows, rtol: float = 1e-6, atol: float = 1e-6) -> EstimatorForests:
    forests = forests_of(model)
    np.testing.assert_allclose(said(run, forests, data), model.predict(data).numpy(), rtol=rtol, atol=atol)
    return forests


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", TREES)
def test_every_task_of_every_library(kind, task, run):
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    model = TREES[kind]()
    if task not in model.tasks and task != "several":
        pytest.skip(f"{kind} has no {task}")
    model.fit(rows_of(frame_of(), task), seed=3)
    for seed, more in ((0, ()), (1, ("paris", "york"))):
        agree(run, model, rows_of(frame_of(seed, more), task))


@pytest.mark.parametrize(("kind", "objective", "task"), [
    ("xgb", "reg:absoluteerror", "regression"), ("xgb", "binary:logistic", "ranking"),
    ("xgb", "count:poisson", "regression"), ("lgbm", "poisson", "regression"), ("lgbm", "binary", "ranking"),
    ("lgbm", "cross_entropy", "multilabel"), ("catboost", "Tweedie:variance_power=1.5", "regression"),
    ("catboost", "MAE", "regression"), ("catboost", "QueryRMSE", "ranking"), ("catboost", "CrossEntropy", "binary"),
])  # fmt: skip
def test_objectives_of_ones_own(kind, objective, task, run):
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    data = rows_of(frame_of(), task)
    if task == "regression":
        data = replace(data, label=data.label.abs())
    agree(run, TREES[kind](objective=objective).fit(data, seed=3), data)


def test_a_forest_of_lightgbm_that_ranks_adds_up(run):
    pytest.importorskip("lightgbm")
    data = rows_of(frame_of(), "ranking")
    model = LGBMModel("t", rounds=5, early_stopping_rounds=None, boosting="rf", bagging_freq=1, bagging_fraction=0.6)
    agree(run, model.fit(data, seed=3), data)


@pytest.mark.parametrize("objective", ["rank:ndcg", "binary:logistic"])
@pytest.mark.parametrize("margin", [None, "start"])
def test_a_ranker_with_and_without_margins_to_start_from(margin, objective, run):
    model = XGBRanker("t", rounds=8, margin=margin, objective=objective, columns=["x", "z", "city", "shop"], nthread=1)
    model.fit(rows_of(frame_of(), "ranking"), seed=3)
    assert agree(run, model, rows_of(frame_of(1), "ranking")).start == margin


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("task", [t for t in TASKS if t != "ranking"])
@pytest.mark.parametrize("kind", ["RandomForest", "HistGradientBoosting"])
def test_trees_of_scikit_learn(kind, task, prepare, run):
    ending = "Regressor" if task in ("regression", "several") else "Classifier"
    few = {"max_iter": 5} if kind.startswith("Hist") else {"n_estimators": 5}
    model = SKModel("t", getattr(ensemble, kind + ending)(**few), prepare=prepare, cats="code")
    agree(run, model.fit(rows_of(frame_of(), task), seed=3), rows_of(frame_of(1), task), 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["RandomForest", "HistGradientBoosting", "GradientBoosting"])
@pytest.mark.parametrize("seen", [[0, 2], [0, 1, 3]])
def test_a_class_without_rows_has_no_probability(kind, seen, run):
    train = rows_of(frame_of(), "multiclass")
    label = torch.tensor(seen)[torch.arange(N) % len(seen)]
    model = SKModel("t", getattr(ensemble, f"{kind}Classifier")())
    data = replace(train, label=label, n_outputs=5)
    model.fit(data, seed=3)
    got = said(run, forests_of(model), data)
    assert got.shape == (N, 5)
    assert (got[:, [c for c in range(5) if c not in seen]] == 0).all()
    np.testing.assert_allclose(got, model.predict(data).numpy(), rtol=1e-9, atol=1e-12)


def test_an_estimator_without_trees_is_named():
    data = rows_of(frame_of(), "regression")
    with pytest.raises(DataError, match="ConstantModel"):
        forests_of(ConstantModel("c"))
    with pytest.raises(DataError, match="Ridge"):
        forests_of(SKModel("r", linear_model.Ridge()).fit(data))
    for model in (XGBModel("t"), XGBRanker("t"), SKModel("t", ensemble.RandomForestRegressor())):
        with pytest.raises(NotFittedError):
            forests_of(model)


# What exported trees say against scikit-learn's own predictions


ONE, FOREST = ("DecisionTree", "ExtraTree"), ("RandomForest", "ExtraTrees", "GradientBoosting")
SMALL = {
    getattr(home, f"{name}{task}"): few
    for names, home, few in (
        (ONE, tree, {}),
        (FOREST, ensemble, {"n_estimators": 9}),
        (("HistGradientBoosting",), ensemble, {"max_iter": 9}),
    )
    for name in names
    for task in ("Classifier", "Regressor")
}
TAKES_NO_NAN = (ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor)


def expected_of(model, rows: np.ndarray, targets: int) -> np.ndarray:
    if not hasattr(model, "classes_"):
        return model.predict(rows)[:, None]
    return model.predict_proba(rows)[:, -targets:]


OF_CLASSES = [(2, False), (2, True), (3, False)]
KINDS = [(k, *how) for k in SMALL for how in (OF_CLASSES if "Classifier" in k.__name__ else [(2, False)])]


@pytest.mark.parametrize(("kind", "n_classes", "every_class"), KINDS)
def test_every_kind(kind, n_classes, every_class, rows, amounts, margins, linked):
    rows = np.nan_to_num(rows) if kind in TAKES_NO_NAN else rows
    label = np.clip(amounts.round(), 0, n_classes - 1) if "Classifier" in kind.__name__ else amounts
    model = kind(random_state=0, **SMALL[kind]).fit(rows, label)
    forest = forest_of_sklearn(model, every_class=every_class)
    got = linked(forest, margins(forest, rows))
    if hasattr(model, "classes_"):
        assert got.shape[1] == (n_classes if every_class or n_classes > 2 else 1)
    np.testing.assert_allclose(got, expected_of(model, rows, forest.targets), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "model",
    [
        ensemble.GradientBoostingClassifier(n_estimators=5, loss="exponential"),
        ensemble.GradientBoostingClassifier(n_estimators=5, init="zero"),
        ensemble.GradientBoostingRegressor(n_estimators=5, loss="huber"),
        ensemble.GradientBoostingRegressor(n_estimators=5, init="zero"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="gamma"),
        ensemble.HistGradientBoostingRegressor(max_iter=5, loss="absolute_error"),
        ensemble.HistGradientBoostingClassifier(max_iter=40, early_stopping=True, n_iter_no_change=2),
        tree.DecisionTreeRegressor(max_depth=None, min_samples_leaf=400),
    ],
    ids=str,
)
def test_losses_and_starts(model, rows, amounts, margins, linked):
    rows = np.nan_to_num(rows)
    label = amounts > 1 if "Classifier" in type(model).__name__ else abs(amounts) + 0.1
    model.fit(rows, label)
    forest = forest_of_sklearn(model)
    got = linked(forest, margins(forest, rows))
    np.testing.assert_allclose(got, expected_of(model, rows, 1), rtol=1e-12, atol=1e-14)


def test_histograms_take_rows_as_wide_as_they_were_trained_on(margins):
    rows = 1 + np.arange(200.0)[:, None] * 1e-12  # one and the same number in float32
    model = ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5).fit(rows, np.arange(200.0))
    forest = forest_of_sklearn(model)
    assert forest.wide
    np.testing.assert_array_equal(margins(forest, rows)[:, 0], model.predict(rows))


def test_what_cannot_be_exported_is_named(rows, amounts):
    filled = np.nan_to_num(rows)
    with pytest.raises(DataError, match="AdaBoostRegressor has no trees"):
        forest_of_sklearn(ensemble.AdaBoostRegressor(n_estimators=2).fit(filled, amounts))
    with pytest.raises(DataError, match="several targets"):
        forest_of_sklearn(tree.DecisionTreeRegressor().fit(filled, np.stack([amounts, amounts], 1)))
    started = ensemble.GradientBoostingRegressor(n_estimators=2, init=linear_model.LinearRegression())
    with pytest.raises(DataError, match="LinearRegression"):
        forest_of_sklearn(started.fit(filled, amounts))
    by_set = ensemble.HistGradientBoostingRegressor(max_iter=2, categorical_features=[2])
    with pytest.raises(DataError, match="categories of its own"):
        forest_of_sklearn(by_set.fit(filled, amounts))
