"""Linear estimators of scikit-learn in a graph against their own ``predict``."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import calibration, linear_model, neighbors, svm

from fastrec.errors import DataError
from fastrec.estimators import SKModel
from fastrec.serve.graph.columns import OTHER_NO_TEXT, GraphTable, input_column
from fastrec.serve.graph.estimators import GraphRows, prediction
from fastrec.serve.onnx_builder import Graph, value_of
from fastrec.table import Table
from fastrec.validate import Rows
from tests.serve.graph.run_graph import graph_feeds

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

CLASSIFIERS = {
    "logistic": linear_model.LogisticRegression(max_iter=50, tol=1e-2),
    "logistic cv": linear_model.LogisticRegressionCV(
        Cs=2, cv=2, max_iter=50, tol=1e-2, l1_ratios=(0.0,), use_legacy_attributes=False, scoring="neg_log_loss"
    ),
    "sgd": linear_model.SGDClassifier(loss="log_loss"),
    "sgd huber": linear_model.SGDClassifier(loss="modified_huber", alpha=0.1),
    "sgd far": linear_model.SGDClassifier(loss="log_loss", learning_rate="constant", eta0=30.0),
    "huber far": linear_model.SGDClassifier(loss="modified_huber", learning_rate="constant", eta0=5.0),
}
REGRESSORS = {
    "least squares": linear_model.LinearRegression(),
    "ridge": linear_model.Ridge(),
    "ridge cv": linear_model.RidgeCV(),
    "lasso": linear_model.Lasso(alpha=0.1),
    "elastic": linear_model.ElasticNet(alpha=0.1),
    "no intercept": linear_model.Ridge(fit_intercept=False),
    "sgd values": linear_model.SGDRegressor(),
    "bayes": linear_model.BayesianRidge(),
    "huber": linear_model.HuberRegressor(max_iter=1000),
    "svr": svm.LinearSVR(max_iter=10_000),
    "poisson": linear_model.PoissonRegressor(),
    "tweedie": linear_model.TweedieRegressor(power=1.5),
    "normal": linear_model.TweedieRegressor(power=0),
}


EVERY = {
    "binary": linear_model.LogisticRegression(solver="liblinear"),
    "multilabel": linear_model.LogisticRegression(),
    "multiclass": linear_model.LogisticRegression(max_iter=50, tol=1e-2),
    "regression": linear_model.Ridge(),
    "several": linear_model.Ridge(),
}


def rows_of(task: str, seed: int, *, unseen: bool = False, holes: bool = True, classes=(0, 1, 2)) -> Rows:
    rng, n = np.random.default_rng(seed), 300
    frame = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n) * 40 + 7})
    frame["city"] = rng.choice(["a", "b", "c", *(["new"] if unseen else [])], n)
    value = frame.x + frame.z / 40 + (frame.city == "b") + 0.3 * rng.normal(size=n)
    if holes:
        frame.loc[rng.random(n) < 0.1, ["x", "city"]] = None
    y = {
        "binary": (value > 0.5).astype(float),
        "multiclass": np.take(classes, np.digitize(value, [0, 1] if len(classes) == 3 else [0])),
        "regression": np.exp(value.clip(-2, 3)),
        "several": np.stack([np.exp(value.clip(-2, 3)), np.full(n, 2.5)], 1),
        "multilabel": np.stack([value > 0, value > -99, value > 1], 1).astype(float),
    }[task]
    k = y.shape[1] if y.ndim == 2 else 4 if task == "multiclass" else 1
    columns = {"cats": ["city"], "conts": ["x", "z"]} if holes else {"cats": [], "conts": ["x", "z"]}
    task = "regression" if task == "several" else task
    return Rows(Table.read(frame), task, label=torch.from_numpy(np.array(y)), n_outputs=k, **columns)


def served(model: SKModel, rows: Rows) -> np.ndarray:
    """What a graph of a model says of rows."""
    graph = Graph()
    names = [*rows.cats, *rows.conts]
    columns = {n: input_column(graph, n, rows.table[n], no_text=OTHER_NO_TEXT) for n in names}
    said = prediction(model, GraphRows(GraphTable(columns), rows.task, rows.cats, rows.conts, rows.n_outputs))
    graph.output("y", value_of(graph, said, torch.float64), np.float64, None if said.ndim == 1 else said.shape[1])
    feeds = graph_feeds({n: rows.table[n] for n in names}, rows.table)
    return ort.InferenceSession(graph.model().SerializeToString()).run(None, feeds)[0]


def check(model: SKModel, train: Rows, rows: Rows, tolerance: float = 1e-10) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps are enough here
        model.fit(train, seed=1)
    expected = model.predict(rows).numpy()
    np.testing.assert_allclose(served(model, rows), expected, rtol=tolerance, atol=tolerance)
    return expected


@pytest.mark.parametrize("task", EVERY)
def test_a_column_for_every_value_is_looked_up(task):
    check(SKModel("m", EVERY[task], cats="every"), rows_of(task, 0), rows_of(task, 1, unseen=True))


def test_other_models_of_a_column_for_every_value_are_refused():
    for how in ({"estimator": neighbors.KNeighborsClassifier()}, {"estimator": EVERY["binary"], "prepare": False}):
        with pytest.raises(DataError, match="no linear model"):
            SKModel("m", **how, cats="every")


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers(kind, task):
    check(SKModel("m", CLASSIFIERS[kind]), rows_of(task, 0), rows_of(task, 1, unseen=True))


@pytest.mark.parametrize("task", ["regression", "several"])
@pytest.mark.parametrize("kind", REGRESSORS)
def test_regressors(kind, task):
    check(SKModel("m", REGRESSORS[kind]), rows_of(task, 0), rows_of(task, 1, unseen=True))


@pytest.mark.parametrize("kind", ["logistic", "sgd"])
@pytest.mark.parametrize("classes", [(0, 2, 3), (1, 3)])
def test_classes_without_rows_have_no_probability(kind, classes):
    said = check(SKModel("m", CLASSIFIERS[kind]), rows_of("multiclass", 0, classes=classes), rows_of("multiclass", 1))
    assert (said.sum(0) > 0).nonzero()[0].tolist() == list(classes)


@pytest.mark.parametrize(
    ("kind", "task"),
    [("ridge", "regression"), ("least squares", "regression"), ("logistic", "multiclass"), ("sgd", "binary")],
)
def test_plain_columns_that_scikit_learn_adds_up_in_single_precision(kind, task):
    made = {**CLASSIFIERS, **REGRESSORS}[kind]
    train, rows = rows_of(task, 0, holes=False), rows_of(task, 1, holes=False)
    check(SKModel("m", made, prepare=False), train, rows, 1e-6)


@pytest.mark.parametrize("made", [calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2),
                                  neighbors.KNeighborsClassifier()], ids=["calibrated", "neighbours"])  # fmt: skip
def test_others_are_refused_by_name(made):
    model = SKModel("m", made).fit(rows_of("binary", 0), seed=0)
    with pytest.raises(DataError, match=type(made).__name__):
        served(model, rows_of("binary", 1))


def test_a_class_of_ones_own_is_not_taken_for_its_base():
    class Doubled(linear_model.Ridge):
        def predict(self, X):
            return 2 * super().predict(X)

    model = SKModel("m", Doubled()).fit(rows_of("regression", 0), seed=0)
    with pytest.raises(DataError, match="Doubled"):
        served(model, rows_of("regression", 1))
