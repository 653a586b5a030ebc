"""The registry's metrics while XGBoost, LightGBM and CatBoost train: their last value is that of their predictions."""

from __future__ import annotations

import numpy as np
import pytest

from fastrec import metrics as m
from fastrec.errors import DataError

ROWS, VALID = 240, 90
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4))
SIGNAL = X[:, 0] + RNG.normal(0, 0.7, ROWS)
WEIGHT = RNG.choice([0.5, 1.0, 4.0], ROWS)
SIZES = {"train": np.array([10, 20] * 5), "valid": np.array([9, 21] * 3)}
TARGETS = {
    "binary": (SIGNAL > 0).astype(int),
    "multiclass": np.digitize(SIGNAL, [-0.7, 0.7]),
    "regression": np.exp(SIGNAL / 2),
    "ranking": (SIGNAL > 0.8).astype(int),
    "multilabel": np.column_stack([SIGNAL > 0, X[:, 1] > 0.3]).astype(int),
}
CASES = [
    ("binary", "auc"),
    ("binary", "logloss"),
    ("binary", "f1"),
    ("multiclass", "logloss"),
    ("multiclass", "quadratic_kappa"),
    ("multiclass", "auc"),
    ("regression", "rmsle"),
    ("ranking", "mrr"),
    ("ranking", "ndcg@3"),
]


def parts(task):
    y = TARGETS[task]
    return (X[VALID:], y[VALID:], WEIGHT[VALID:], SIZES["train"]), (
        X[:VALID],
        y[:VALID],
        WEIGHT[:VALID],
        SIZES["valid"],
    )


def rows_of(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def expected(task, name, y, p, w, sizes):
    return m.get_metric(name)(y, p, weight=w, groups=rows_of(sizes) if task == "ranking" else None)


XGB = {
    "binary": {"objective": "binary:logistic"},
    "multiclass": {"objective": "multi:softprob", "num_class": 3},
    "regression": {"objective": "reg:squarederror"},
    "ranking": {"objective": "rank:ndcg"},
    "multilabel": {"objective": "binary:logistic"},
}


@pytest.mark.parametrize(("task", "name"), [*CASES, ("multilabel", "f1_macro"), ("multilabel", "logloss")])
def test_xgboost(task, name):
    xgb = pytest.importorskip("xgboost")
    sets = {}
    for part, (x, y, w, sizes) in zip(("train", "valid"), parts(task)):
        # XGBoost weighs lists, not rows
        sets[part] = xgb.DMatrix(x, y, weight=w[: len(sizes)] if task == "ranking" else w)
        if task == "ranking":
            sets[part].set_group(sizes)
    history = {}
    params = {**XGB[task], "nthread": 1, "max_depth": 3, "disable_default_eval_metric": 1}
    evals = [(d, part) for part, d in sets.items()]
    booster = xgb.train(
        params,
        sets["train"],
        5,
        evals=evals,
        custom_metric=m.xgboost_metric(name),
        evals_result=history,
        verbose_eval=False,
    )
    for part, (x, y, w, sizes) in zip(sets, parts(task)):
        w = np.repeat(w[: len(sizes)], sizes) if task == "ranking" else w
        value = expected(task, name, y, booster.predict(xgb.DMatrix(x)), w, sizes)
        assert history[part][name][-1] == pytest.approx(value, abs=2e-6)


def test_xgboost_with_its_own_objective_groups_and_weights():
    xgb = pytest.importorskip("xgboost")
    _, (x, y, w, sizes) = parts("binary")

    def objective(margin, data):
        p = 1 / (1 + np.exp(-margin))
        return p - data.get_label(), p * (1 - p)

    data, history = xgb.DMatrix(x, y), {}
    options = {"evals": [(data, "set")], "evals_result": history, "verbose_eval": False, "obj": objective}
    params = {"nthread": 1, "base_score": 0, "disable_default_eval_metric": 1}
    metric = m.xgboost_metric("logloss", weight=w, transform=lambda margin: 1 / (1 + np.exp(-margin)))
    booster = xgb.train(params, data, 5, custom_metric=metric, **options)
    margin = booster.predict(data, output_margin=True)
    assert history["set"]["logloss"][-1] == pytest.approx(
        m.get_metric("logloss")(y, 1 / (1 + np.exp(-margin)), weight=w)
    )
    with pytest.raises(DataError, match="no probability"):
        xgb.train(params, data, 5, custom_metric=m.xgboost_metric("logloss"), **options)
    xgb.train(params, data, 5, custom_metric=m.xgboost_metric("mrr", groups=rows_of(sizes)), **options)
    assert history["set"]["mrr"][-1] == pytest.approx(m.get_metric("mrr")(y, margin, groups=rows_of(sizes)))
    with pytest.raises(DataError, match="no groups were given"):
        xgb.train(params, data, 5, custom_metric=m.xgboost_metric("mrr"), **options)


LGB = {
    "binary": {"objective": "binary"},
    "multiclass": {"objective": "multiclass", "num_class": 3},
    "regression": {"objective": "regression"},
    "ranking": {"objective": "lambdarank"},
}


@pytest.mark.parametrize(("task", "name"), CASES)
def test_lightgbm(task, name):
    lgb = pytest.importorskip("lightgbm")
    (x, y, w, sizes), (vx, vy, vw, vsizes) = parts(task)
    lists = task == "ranking"
    train = lgb.Dataset(x, y, weight=w, group=sizes if lists else None)
    valid = train.create_valid(vx, vy, weight=vw, group=vsizes if lists else None)
    history = {}
    params = {**LGB[task], "metric": "None", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    booster = lgb.train(
        params,
        train,
        5,
        valid_sets=[train, valid],
        valid_names=["train", "valid"],
        feval=m.lightgbm_metric(name),
        callbacks=[lgb.record_evaluation(history), lgb.early_stopping(3, verbose=False)],
    )
    at = booster.best_iteration - 1
    for part, (px, py, pw, psizes) in zip(("train", "valid"), parts(task)):
        value = expected(task, name, py, booster.predict(px), pw, psizes)
        assert history[part][name][at] == pytest.approx(value, abs=1e-6)
    best = max if m.get_metric(name).greater_is_better else min
    assert history["valid"][name][at] == best(history["valid"][name])


CAT = {"binary": "Logloss", "multiclass": "MultiClass", "regression": "RMSE", "ranking": "YetiRank"}


def catboost_history(loss, metric, x, y, w, valid, lists=False):
    cb = pytest.importorskip("catboost")
    vx, vy, vw, vsizes = valid
    sizes = SIZES["train"]
    pools = [
        cb.Pool(px, py, weight=pw, group_id=rows_of(s) if lists else None)
        for px, py, pw, s in ((x, y, w, sizes), (vx, vy, vw, vsizes))
    ]
    options = {"iterations": 5, "verbose": False, "thread_count": 1, "allow_writing_files": False, "depth": 3}
    model = cb.CatBoost({"loss_function": loss, "eval_metric": metric, "use_best_model": False, **options})
    model.fit(pools[0], eval_set=pools[1])
    return model, model.get_evals_result()


@pytest.mark.parametrize(("task", "name"), [c for c in CASES if c[1] != "rmsle"] + [("regression", "mae")])
def test_catboost(task, name):
    (x, y, w, sizes), valid = parts(task)
    lists = task == "ranking"
    groups = [rows_of(s) for s in SIZES.values()] if lists else ()
    metric = m.catboost_metric(name, groups=groups)
    assert metric.is_max_optimal() == m.get_metric(name).greater_is_better
    if lists:
        w, valid = None, (*valid[:2], None, valid[3])
    model, history = catboost_history(CAT[task], metric, x, y, w, valid, lists)
    kind = "Probability" if task in ("binary", "multiclass") else "RawFormulaVal"
    for part, (px, py, pw, s) in (("learn", (x, y, w, sizes)), ("validation", valid)):
        p = model.predict(px, prediction_type=kind)
        value = expected(task, name, py, p, pw, s)
        assert history[part][type(metric).__name__][-1] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", ["f1_macro", "logloss", "auc"])
def test_catboost_with_several_targets(name):
    pytest.importorskip("catboost")
    (x, y, w, _), valid = parts("multilabel")
    metric = m.catboost_metric(name, several_targets=True)
    model, history = catboost_history("MultiLogloss", metric, x, y, w, valid)
    value = m.get_metric(name)(valid[1], model.predict(valid[0], prediction_type="Probability"), weight=valid[2])
    assert history["validation"][type(metric).__name__][-1] == pytest.approx(value, abs=1e-6)


def test_catboost_values_and_a_transform():
    pytest.importorskip("catboost")
    (x, _, w, _), valid = parts("regression")
    grade = np.digitize(SIGNAL, [-0.7, 0.7])
    valid = (valid[0], grade[:VALID], *valid[2:])
    for name, loss, transform, kind in (
        ("quadratic_kappa", "RMSE", None, "RawFormulaVal"),
        ("poisson_deviance", "Poisson", np.exp, "Exponent"),
    ):
        metric = m.catboost_metric(name, transform=transform)
        model, history = catboost_history(loss, metric, x, grade[VALID:], w, valid)
        value = m.get_metric(name)(valid[1], model.predict(valid[0], prediction_type=kind), weight=valid[2])
        assert history["validation"][type(metric).__name__][-1] == pytest.approx(value, abs=1e-6)


def test_catboost_metric_without_catboost():
    # its rules can be asked without the library
    metric = m.catboost_metric("mrr", groups=[[0, 0, 1], [4, 4]])
    assert metric.evaluate((np.array([0.3, 0.2]),), np.array([0.0, 1.0]), None) == (0.5, 1.0)
    assert metric.get_final_error(0.5, 1.0) == 0.5
    with pytest.raises(DataError, match="evaluates 1 rows, and there are groups for 3, 2"):
        metric.evaluate((np.array([0.3]),), np.array([0.0]), None)
    with pytest.raises(DataError, match="no groups were given"):
        m.catboost_metric("mrr")
    with pytest.raises(DataError, match="two sets have 2 rows"):
        m.catboost_metric("mrr", groups=[[0, 0], [0, 1]])
    with pytest.raises(DataError, match="one list of rows"):
        m.catboost_metric("mrr", groups=[0, 0, 1])
