"""Every estimator in a graph: what it predicts of rows that it has not seen."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import calibration, ensemble, linear_model, neighbors, svm

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import (
    CatBoostModel,
    CentredModel,
    ColumnRanker,
    ConstantModel,
    LGBMModel,
    NetModel,
    NetRanker,
    OffsetModel,
    SKModel,
    XGBModel,
    XGBRanker,
)
from fastrec.models import TabularNet, emb_sz_rule
from fastrec.serve.forest.libraries import forests_of
from fastrec.serve.graph.estimators import GraphRows, blended, prediction
from fastrec.serve.graph.features import GraphGroups
from fastrec.serve.graph.nets import folded, onnx_of
from fastrec.serve.onnx_builder import Graph, GraphTensor, value_of
from fastrec.stacking import StackModel, blends
from fastrec.stacking.hill_climb import HillClimb
from fastrec.stacking.stack import level_two_of
from fastrec.table import Table
from fastrec.validate import Lists, Rows
from tests.models.test_contract import CASES, SIZES, make, parts_of
from tests.serve.graph.run_graph import columns_of, graph_feeds, ort, session_of

pytest.importorskip("onnxscript")

CATS, CONTS = ["city", "code"], ["price", "size", "flag"]
TASKS = ["binary", "multiclass", "regression", "several", "multilabel", "ranking"]


def frame(n, seed, *, odd=False, plain=False):
    """Rows with missing values unless ``plain``; ``odd``: with values that no others have."""
    rng = np.random.default_rng(seed)
    values = {
        "city": rng.choice(["Köln", "東京", "a", "b"] + (["new"] if odd else []), n),
        "code": pd.array(rng.integers(0, 9 + 3 * odd, n) + 2**53, dtype="Int64"),
        "price": np.where(rng.random(n) < 0.15 * (not plain), np.nan, rng.normal(size=n) * 100),
        "size": rng.integers(0, 50, n),
        "flag": rng.random(n) < 0.5,
    }
    data = pd.DataFrame(values)
    data.loc[rng.random(n) < 0.1, "city"] = None
    data.loc[rng.random(n) < 0.1, "code"] = pd.NA
    return data


def rows_of(task, n, seed, *, label=True, odd=False, plain=False, far=False):
    data = frame(n, seed, odd=odd, plain=plain)
    if far:
        data.loc[:1, "price"] = [np.inf, -np.inf]
    table, rng, names = Table.read(data), np.random.default_rng(seed), ([] if plain else CATS, CONTS)
    signal = np.nan_to_num(table["price"].number().cpu().numpy(), posinf=0, neginf=0) / 100
    signal += table["size"].number().cpu().numpy() > 20
    if task == "ranking":
        groups, y = np.repeat(np.arange(n // 5) * 7, 5), np.zeros(n)
        y[np.arange(0, n, 5) + (signal.reshape(-1, 5) + rng.normal(size=(n // 5, 5))).argmax(1)] = 1
        given = {"label": torch.from_numpy(y)} if label else {}
        return Lists(table, torch.from_numpy(groups), cats=names[0], conts=names[1], **given)
    noisy = signal + rng.normal(size=n) * 0.5
    amount = np.exp(noisy.clip(-2, 3))
    y, k = {
        "binary": (noisy > 0.5, 1),
        "multiclass": (np.digitize(noisy, [0, 1]), 3),
        "regression": (amount, 1),
        "several": (np.stack([amount, np.full(n, 2.5), amount**0.5], 1), 3),
        "multilabel": (np.stack([noisy > 0, noisy > -99, noisy > 1], 1), 3),
    }[task]
    y = torch.from_numpy(np.asarray(y, dtype=np.int64 if task == "multiclass" else np.float64))
    task = "regression" if task == "several" else task
    return Rows(table, task, cats=names[0], conts=names[1], label=y if label else None, n_outputs=k)


def served(make, rows):
    """What a graph predicts of rows, at batches of 1, 7 and all; ``make``: graph rows → prediction."""
    graph, lists = Graph(), None
    columns, read = columns_of(graph, rows.table)
    if rows.task == "ranking":
        name = graph.input("lists", np.int64)
        lists = GraphGroups(GraphTensor(graph, name, torch.empty(1009, dtype=torch.int64, device="meta")))
    made = make(GraphRows(columns, rows.task, rows.cats, rows.conts, rows.n_outputs, lists))
    graph.output("score", value_of(graph, made, torch.float64), np.float64, None if made.ndim == 1 else made.shape[1])
    session = session_of(graph)
    names = [i.name for i in session.get_inputs()]
    feeds = graph_feeds({n: c for n, c in read.items() if n in names}, rows.table)
    feeds |= {"lists": rows.groups.numpy()} if "lists" in names else {}
    whole = session.run(None, feeds)[0]
    for a, b in ((0, 5), (5, 15)) if rows.task == "ranking" else ((0, 1), (1, 8)):
        part = session.run(None, {n: v[a:b] for n, v in feeds.items()})[0]
        np.testing.assert_allclose(part, whole[a:b], atol=1e-5, rtol=1e-5)
    return whole


def same(model, rows, tolerance):
    found = served(lambda r: prediction(model, r), rows)
    np.testing.assert_allclose(found, model.predict(rows).numpy(), atol=tolerance, rtol=tolerance)
    return found


def check(model, task, tolerance, **how):
    for start, module in (("LGBM", "lightgbm"), ("CatBoost", "catboost")):
        if type(model).__name__.startswith(start):
            pytest.importorskip(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps are enough here
        model.fit(rows_of(task, 400, 0, **how), seed=0)
    same(model, rows_of(task, 200, 1, label=False, odd=True, **how), tolerance)


def few_trees(**params):
    return XGBModel("xgb", early_stopping_rounds=None, **{"rounds": 8, **params})


NETS = ["TabularNet", "DCNv2", "RealMLP"]  # what differs is the way into a net; ``test_every_model`` has all of them
TREES = {
    "xgb": lambda **p: XGBModel("xgb", rounds=12, early_stopping_rounds=3, max_depth=3, **p),
    "xgb sets": lambda **p: XGBModel("xgb sets", rounds=8, native_cats=True, max_cat_to_onehot=1, **p),
    "lgbm": lambda **p: LGBMModel("lgbm", rounds=8, num_leaves=6, min_data_in_leaf=3, **p),
    "lgbm codes": lambda **p: LGBMModel("lgbm codes", rounds=6, native_cats=False, min_data_in_leaf=3, **p),
    "catboost": lambda **p: CatBoostModel("catboost", rounds=8, depth=3, max_ctr_complexity=3, **p),
}
AVERAGED = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "early_stopping_rounds": None}
CHECKED = [
    *((NetModel("net", model=net, epochs=1), "binary", 1e-5) for net in NETS),
    *((NetModel("net", model="TabularNet", epochs=1), task, 1e-5) for task in ("multiclass", "regression")),
    (NetModel("net", model="TabularNet", epochs=1, seeds=2), "multilabel", 1e-5),
    (NetRanker("net", layers=[16], epochs=1), "ranking", 1e-5),
    (ConstantModel(), "binary", 1e-6),
    (ConstantModel(), "multiclass", 1e-6),
    (OffsetModel(few_trees(), "price"), "regression", 1e-5),
    (OffsetModel(CentredModel(few_trees(), "price"), "price"), "regression", 1e-5),
]
GROWN = [
    *((m(), t) for m in TREES.values() for t in TASKS if ("regression" if t == "several" else t) in m().tasks),
    (TREES["xgb"](objective="binary:logistic"), "ranking"),
    (TREES["xgb"](objective="count:poisson"), "regression"),
    (TREES["lgbm"](objective="poisson"), "regression"),
    (TREES["lgbm"](objective="binary"), "ranking"),
    (TREES["lgbm"](**AVERAGED), "ranking"),
    (TREES["catboost"](objective="Tweedie:variance_power=1.5"), "regression"),
    *((XGBRanker("ranker", rounds=8, objective=o), "ranking") for o in ("rank:ndcg", "binary:logistic")),
    *((XGBRanker("starts", rounds=8, margin="size", objective=o), "ranking") for o in ("rank:ndcg", "binary:logistic")),
]
SMALL = {
    "RandomForest": {"n_estimators": 5},
    "ExtraTrees": {"n_estimators": 5},
    "HistGradientBoosting": {"max_iter": 5},
}
BY_SKLEARN = [
    (SKModel(kind, getattr(ensemble, kind + ending)(random_state=0, **few), prepare=prepare, cats="code"), task)
    for kind, few in SMALL.items()
    for task, ending in zip(TASKS[:5], ["Classifier", "Classifier", "Regressor", "Regressor", "Classifier"])
    for prepare in (True, False)
]
LOGISTIC, SGD = linear_model.LogisticRegression, linear_model.SGDClassifier
CLASSIFIERS = [
    LOGISTIC(max_iter=50, tol=1e-2),
    linear_model.LogisticRegressionCV(
        Cs=2, cv=2, max_iter=50, tol=1e-2, l1_ratios=(0.0,), use_legacy_attributes=False, scoring="neg_log_loss"
    ),
    SGD(loss="log_loss"),
    SGD(loss="modified_huber", alpha=0.1),
    SGD(loss="log_loss", learning_rate="constant", eta0=30.0),
    SGD(loss="modified_huber", learning_rate="constant", eta0=5.0),
]
REGRESSORS = [
    linear_model.LinearRegression(), linear_model.Ridge(), linear_model.RidgeCV(), linear_model.Lasso(alpha=0.1),
    linear_model.ElasticNet(alpha=0.1), linear_model.Ridge(fit_intercept=False), linear_model.SGDRegressor(),
    linear_model.BayesianRidge(), linear_model.HuberRegressor(max_iter=1000), svm.LinearSVR(max_iter=10_000),
    linear_model.PoissonRegressor(), linear_model.TweedieRegressor(power=1.5), linear_model.TweedieRegressor(power=0),
]  # fmt: skip
LINEAR = [
    *((SKModel("linear", e), task) for e in CLASSIFIERS for task in ("binary", "multiclass", "multilabel")),
    *((SKModel("linear", e), task) for e in REGRESSORS for task in ("regression", "several")),
    (SKModel("every", LOGISTIC(solver="liblinear"), cats="every"), "binary"),
    *((SKModel("every", LOGISTIC(max_iter=50, tol=1e-2), cats="every"), task) for task in ("multilabel", "multiclass")),
    *((SKModel("every", linear_model.Ridge(), cats="every"), task) for task in ("regression", "several")),
]


@pytest.mark.parametrize(("model", "task", "tolerance"), CHECKED, ids=lambda v: getattr(v, "name", str(v)))
def test_every_estimator(model, task, tolerance):
    check(model, task, tolerance)


@pytest.mark.parametrize(("model", "task"), [*GROWN, *BY_SKLEARN], ids=lambda v: getattr(v, "name", str(v)))
def test_trees(model, task):
    tolerance = 1e-9 if isinstance(model, SKModel) else 1e-5 if model.name == "starts" else 2e-6
    check(model, task, tolerance, far=not isinstance(model, SKModel))


@pytest.mark.parametrize(("model", "task"), LINEAR, ids=lambda v: str(getattr(v, "estimator", v)))
def test_linear_estimators(model, task):
    check(model, task, 1e-10)


@pytest.mark.parametrize(
    ("estimator", "task"),
    [*((e, "regression") for e in REGRESSORS[:2]), (CLASSIFIERS[0], "multiclass"), (CLASSIFIERS[2], "binary")],
    ids=str,
)
def test_plain_columns_that_scikit_learn_adds_up_in_single_precision(estimator, task):
    check(SKModel("m", estimator, prepare=False), task, 1e-6, plain=True)


FORESTS = [getattr(ensemble, f"{n}Classifier")() for n in ("RandomForest", "HistGradientBoosting", "GradientBoosting")]


@pytest.mark.parametrize("seen", [[0, 2], [0, 1, 3]])
@pytest.mark.parametrize("estimator", [*FORESTS, CLASSIFIERS[0], CLASSIFIERS[2]], ids=str)
def test_a_class_without_rows_has_no_probability(estimator, seen):
    train = rows_of("multiclass", 300, 0)
    train = replace(train, label=torch.tensor(seen)[train.label % len(seen)], n_outputs=5)
    model = SKModel("t", estimator).fit(train, seed=3)
    found = same(model, replace(rows_of("multiclass", 100, 1, label=False), n_outputs=5), 1e-9)
    assert found.shape == (100, 5)
    assert (found.sum(0) > 0).nonzero()[0].tolist() == seen


def test_a_net_of_logarithms():
    def skewed(n, seed, **options):
        rows = rows_of("binary", n, seed, **options)
        tails = np.round(np.exp(np.random.default_rng(seed).normal(size=n) * 2.5)) - seed
        return replace(rows, table=rows.table.with_columns({"size": tails}))

    model = NetModel("net", model="RealMLP", epochs=1, logs=True).fit(skewed(400, 0), seed=0)
    assert "LogTransform" in [p.name for p in model._nets[0].frame.procs]
    same(model, skewed(200, 1, label=False, odd=True), 1e-5)  # and values below the lowest of training


def test_a_rule_orders_each_list():
    rule, rows = ColumnRanker("rule", ["size", "price"]), rows_of("ranking", 200, 1)
    found = served(lambda r: prediction(rule, r), rows).reshape(-1, 5)
    wanted = rule.predict(rows).numpy().reshape(-1, 5)  # a place among all rows: in each list the same order
    assert (np.argsort(found, 1, kind="stable") == np.argsort(wanted, 1, kind="stable")).all()


@pytest.mark.parametrize("task", [t for t in TASKS if t != "several"])
def test_every_blend(task):
    # of most seeds some row is so near to a split of level two that rounding decides
    train, rows = rows_of(task, 400, 20), rows_of(task, 200, 21, label=False, odd=True)
    if task == "multilabel":  # without the label that all rows have
        train, rows = replace(train, label=train.label[:, ::2], n_outputs=2), replace(rows, n_outputs=2)
    models = {"a": few_trees(max_depth=2), "b": few_trees(columns=["price", "city"])}
    base = {n: m.fit(train, seed=0).predict(train) for n, m in models.items()}
    for blend in blends_of(task, list(models)):
        extra = ["size", "city"] if "trees" in blend.name or "boost" in blend.name else []
        stack = StackModel(list(models), [blend], extra)
        blend.fit(level_two_of(base, train, extra), seed=0)
        wanted = stack.predict({n: m.predict(rows) for n, m in models.items()}, rows)
        found = served(lambda r, s=stack: blended(s, {n: prediction(m, r) for n, m in models.items()}, r), rows)
        np.testing.assert_allclose(found, wanted.numpy(), atol=2e-5, rtol=2e-5, err_msg=blend.name)


def blends_of(task, models):
    if task == "ranking":
        plain = [
            blends.LinearBlend(models),
            blends.MeanBlend(models, of="log_softmax"),
            blends.MeanBlend(models, of="rank"),
        ]
        trees = [XGBRanker("trees", rounds=5), blends.BoostedBlend(models, rounds=5)]
        return [*plain, *trees, HillClimb(models), blends.OneBase("a")]
    linear = {"regression": blends.RidgeBlend, "multiclass": blends.PoolBlend}.get(task, blends.LogisticBlend)
    ranked = [] if task == "multiclass" else [blends.RankMean(models)]
    trees = [blends.TreeBlend(models, task, rounds=5), HillClimb(models)]
    return [blends.OneBase("a"), blends.MeanBlend(models), linear(models), *trees, *ranked]


class Doubled(linear_model.Ridge):
    """A class of one's own, which is not its base."""

    def predict(self, X):
        return 2 * super().predict(X)


def test_others_are_refused_by_name():
    near, calibrated = neighbors.KNeighborsClassifier(), calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2)
    for estimator, task in ((near, "binary"), (calibrated, "binary"), (Doubled(), "regression")):
        model = SKModel("m", estimator).fit(rows_of(task, 100, 0), seed=0)
        with pytest.raises(DataError, match=type(estimator).__name__):
            served(lambda r, m=model: prediction(m, r), rows_of(task, 10, 1))
    for how in ({"estimator": near}, {"estimator": CLASSIFIERS[0], "prepare": False}):
        with pytest.raises(DataError, match="no linear model"):
            SKModel("m", **how, cats="every")
    for model in (
        ConstantModel("ConstantModel"),
        SKModel("Ridge", linear_model.Ridge()).fit(rows_of("regression", 50, 0)),
    ):
        with pytest.raises(DataError, match=model.name):
            forests_of(model)
    for model in (XGBModel("t"), XGBRanker("t"), SKModel("t", FORESTS[0])):
        with pytest.raises(NotFittedError):
            forests_of(model)


# torch's exporter takes seconds for each
@pytest.mark.parametrize(("case", "lacking"), [*((c, None) for c in CASES), ("TabM-0", "cats"), ("TabM-0", "conts")])
def test_every_model(case, lacking):
    parts = parts_of(case, extras=False, **({lacking: False} if lacking else {}))
    net = make(case, parts).cpu().eval()
    inputs = [(len(parts.cats), torch.int64), (len(parts.conts), torch.float32)]
    session = ort.InferenceSession(onnx_of(net, inputs).SerializeToString())
    names = [i.name for i in session.get_inputs()]
    draw = torch.Generator().manual_seed(0)
    for n in (1, 7, 4096):
        codes = [torch.randint(0, rows, (n, 1), generator=draw) for rows, _ in SIZES[: len(parts.cats)]]
        cats = torch.cat(codes, 1) if codes else torch.zeros((n, 0), dtype=torch.int64)
        batch = cats, torch.randn((n, len(parts.conts)), generator=draw)
        with torch.no_grad():
            expected = net(*batch).numpy()
        given = [t.numpy() for t in batch]
        given = given if len(given) == len(names) else [g for g in given if g.shape[1]]
        (said,) = session.run(None, dict(zip(names, given, strict=True)))
        np.testing.assert_allclose(said, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_cont", [0, 3])
@pytest.mark.parametrize("cards", [[5, 40], [3000, 900, 7]])  # a narrow table beside wide ones in the second
@pytest.mark.parametrize("bias", [False, True])
def test_tables_multiplied_by_the_first_layer_give_the_same(n_cont, cards, bias):
    torch.manual_seed(0)
    szs = [(c, emb_sz_rule(c)) for c in cards]
    net = TabularNet(szs, n_cont, 2, layers=(32, 16), use_bn=not bias, pad=False)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3)
    net = net.eval()
    made = folded(net)
    assert made is not net
    ids = torch.stack([torch.randint(c, (50,)) for c in cards], 1)
    given = [ids, torch.randn(50, n_cont)]
    with torch.no_grad():
        torch.testing.assert_close(made(*given), net(*given), rtol=1e-5, atol=1e-5)


def test_only_tables_with_room_are_multiplied(monkeypatch):
    net = TabularNet([(1000, 16), (50, 12), (4, 4)], 1, 1, layers=(32,)).eval()
    monkeypatch.setattr("fastrec._core.limits.FOLD_TABLE_BYTES", 4 * 50 * 20)  # the growth of the second table
    assert folded(net).columns == [1]
    monkeypatch.setattr("fastrec._core.limits.FOLD_TABLE_BYTES", 0)
    assert folded(net) is net
    norm_first = TabularNet([(50, 12)], 1, 1, layers=(32,), lin_first=False).eval()
    assert folded(norm_first) is norm_first
