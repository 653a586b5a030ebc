"""The registry's metrics against scikit-learn, plain loops and hand-worked cases."""

import math
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fastrec import metrics as m
from fastrec.errors import DataError
from fastrec.metrics.registry import TASKS, WANTS
from tests._core.refusals import refused

NAN = math.nan
quick = settings(max_examples=40, deadline=None)
few = st.sampled_from([0.0, 0.1, 0.5, 0.5, 0.7, 1.0])  # ties, and a half on the edge
weights = st.sampled_from([0.5, 1.0, 2.0, 3.25])


def column(draw, values, n):
    return np.array(draw(st.lists(values, min_size=n, max_size=n)))


@st.composite
def binary(draw):
    n = draw(st.integers(2, 20))
    return column(draw, st.integers(0, 1), n), column(draw, few, n), column(draw, weights, n)


@st.composite
def several(draw, k=3):
    n = draw(st.integers(2, 20))
    raw = column(draw, st.sampled_from([0.1, 0.2, 0.3, 1.0]), n * k).reshape(n, k)
    return column(draw, st.integers(0, k - 1), n), raw / raw.sum(1, keepdims=True), column(draw, weights, n)


@st.composite
def labels(draw, k=3):
    n = draw(st.integers(2, 20))
    y = column(draw, st.integers(0, 1), n * k).reshape(n, k)
    return y, column(draw, few, n * k).reshape(n, k), column(draw, weights, n)


@st.composite
def numbers(draw, t=1):
    n = draw(st.integers(2, 20))
    value = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 7.5])
    y, p = (column(draw, value, n * t).reshape(n if t == 1 else (n, t)) for _ in range(2))
    return y, p, column(draw, weights, n)


def score(name, y, p, w=None, **options):
    return m.get_metric(name)(y, p, weight=w, **options)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-10) or (math.isnan(a) and math.isnan(b))


def one_class(y):
    return len(set(y.tolist())) == 1


def clipped(p):
    return np.clip(p, np.finfo(float).eps, 1 - np.finfo(float).eps)


BINARY = {
    "auc": lambda y, p, w: NAN if one_class(y) else sk.roc_auc_score(y, p, sample_weight=w),
    "gini": lambda y, p, w: NAN if one_class(y) else 2 * sk.roc_auc_score(y, p, sample_weight=w) - 1,
    "average_precision": lambda y, p, w: NAN if not y.any() else sk.average_precision_score(y, p, sample_weight=w),
    "logloss": lambda y, p, w: sk.log_loss(y, clipped(p), sample_weight=w, labels=[0, 1]),
    "brier": lambda y, p, w: np.average((y - p) ** 2, weights=w),
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p > 0.5, sample_weight=w),
    "f1": lambda y, p, w: sk.f1_score(y, p > 0.5, sample_weight=w, zero_division=0),
    "f1_macro": lambda y, p, w: sk.f1_score(y, p > 0.5, average="macro", sample_weight=w, zero_division=0),
    "f1_micro": lambda y, p, w: sk.f1_score(y, p > 0.5, average="micro", sample_weight=w, zero_division=0),
    "mcc": lambda y, p, w: correlation(y, (p > 0.5).astype(int), w),
    "balanced_accuracy": lambda y, p, w: mean_recall(y, (p > 0.5).astype(int), w),
    "quadratic_kappa": lambda y, p, w: kappa(y, (p > 0.5).astype(int), w),
}


def correlation(y, p, w):
    return 0.0 if one_class(y) or one_class(p) else sk.matthews_corrcoef(y, p, sample_weight=w)


def mean_recall(y, p, w):
    return np.mean([w[(y == c) & (p == c)].sum() / w[y == c].sum() for c in sorted(set(y.tolist()))])


def kappa(y, p, w, k=2):
    """From the table of classes, as its definition goes."""
    table, far = np.zeros((k, k)), np.square(np.subtract.outer(np.arange(k), np.arange(k)))
    np.add.at(table, (y, p), w)
    by_chance = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return NAN if not (far * by_chance).sum() else 1 - (far * table).sum() / (far * by_chance).sum()


def each(one, y, p, w):
    found = [one((y == j) if y.ndim == 1 else y[:, j], p[:, j], w) for j in range(p.shape[1])]
    found = [f for f in found if not math.isnan(f)]
    return np.mean(found) if found else NAN


MULTICLASS = {
    **{n: partial(each, BINARY[n]) for n in ("auc", "average_precision")},
    "logloss": lambda y, p, w: sk.log_loss(y, p, sample_weight=w, labels=range(p.shape[1])),
    "brier": lambda y, p, w: np.average(((np.eye(p.shape[1])[y] - p) ** 2).sum(1), weights=w),
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(1), sample_weight=w),
    "balanced_accuracy": lambda y, p, w: mean_recall(y, p.argmax(1), w),
    "f1_macro": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="macro", sample_weight=w, zero_division=0),
    "f1_micro": lambda y, p, w: sk.f1_score(y, p.argmax(1), average="micro", sample_weight=w),
    "mcc": lambda y, p, w: correlation(y, p.argmax(1), w),
    "quadratic_kappa": lambda y, p, w: kappa(y, p.argmax(1), w, p.shape[1]),
}


MULTILABEL = {n: partial(each, BINARY[n]) for n in ("auc", "average_precision", "logloss", "brier")}
MULTILABEL |= {n: BINARY[n] for n in ("accuracy", "f1_macro", "f1_micro")}
EXPECTED = {"binary": BINARY, "multiclass": MULTICLASS, "multilabel": MULTILABEL}
ROWS = {"binary": binary(), "multiclass": several(), "multilabel": labels(), "regression": numbers()}


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, known in EXPECTED.items() for name in known])
@given(data=st.data())
@quick
def test_classes_as_scikit_learn(task, name, data):
    (y, p, w), expected = data.draw(ROWS[task]), EXPECTED[task][name]
    with np.errstate(all="ignore"):
        found = score(name, y, p, w)
        assert close(found, expected(y, p, w))
        if task == "binary":
            assert close(score(name, y, p), expected(y, p, np.ones(len(y))))
            assert close(score(name, y, np.column_stack([1 - p, p]), w), found)  # two columns say the same as one
        if task == "multiclass" and m.get_metric(name).wants == "classes":
            assert close(score(name, y, p.argmax(1), w), found)


def loop_gini(y, p, w):
    """Every pair of rows, the one with the higher prediction first: as an order of its own, equal ones half."""

    def gained(by):
        pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if i != j]
        return sum(w[i] * w[j] * (y[i] - y[j]) * ((by[i] > by[j]) + (by[i] == by[j]) / 2) for i, j in pairs)

    return NAN if one_class(y) else gained(p) / gained(y)


REGRESSION = {
    "rmse": lambda y, p, w: sk.mean_squared_error(y, p, sample_weight=w) ** 0.5,
    "mae": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
    "rmsle": lambda y, p, w: sk.mean_squared_log_error(y, p, sample_weight=w) ** 0.5,
    "rmspe": lambda y, p, w: np.average(((y - p) / y) ** 2, weights=w) ** 0.5,
    "mape": lambda y, p, w: sk.mean_absolute_percentage_error(y, p, sample_weight=w),
    "smape": lambda y, p, w: np.average(2 * abs(y - p) / (abs(y) + abs(p)), weights=w),
    "r2": lambda y, p, w: NAN if one_class(y) else sk.r2_score(y, p, sample_weight=w),
    "pinball@0.9": lambda y, p, w: sk.mean_pinball_loss(y, p, sample_weight=w, alpha=0.9),
    "pinball@0.25": lambda y, p, w: sk.mean_pinball_loss(y, p, sample_weight=w, alpha=0.25),
    "poisson_deviance": lambda y, p, w: sk.mean_poisson_deviance(y, p, sample_weight=w),
    "gamma_deviance": lambda y, p, w: sk.mean_gamma_deviance(y, p, sample_weight=w),
    "gini": loop_gini,
}


@pytest.mark.parametrize("name", REGRESSION)
@given(rows=numbers(), two=numbers(t=2))
@quick
def test_regression_as_scikit_learn(name, rows, two):
    y, p, w = rows
    assert close(score(name, y, p, w), REGRESSION[name](y, p, w))
    y, p, w = two
    expected = np.mean([REGRESSION[name](y[:, j], p[:, j], w) for j in range(2)])
    assert close(score(name, y, p, w), expected)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression", "multilabel"])
@given(data=st.data())
@quick
def test_a_row_of_weight_0_is_as_good_as_gone(task, data):
    y, p, w = data.draw(ROWS[task])
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y))))
    w = np.where(gone, 0, w)
    for name in m.metrics_for(task):
        if m.get_metric(name).needs_groups or (name, task) == ("quadratic_kappa", "regression"):
            continue
        without = NAN if gone.all() else score(name, y[~gone], p[~gone], w[~gone])
        assert close(score(name, y, p, w), without), name


@pytest.mark.parametrize(
    ("name", "y", "p", "options", "expected"),
    [
        ("rmspe", [0.0, 2.0, 4.0], [5.0, 1.0, 5.0], {}, math.sqrt((0.25 + 0.0625) / 2)),
        ("mape", [0.0, 2.0, 4.0], [5.0, 1.0, 5.0], {"w": [9.0, 1.0, 3.0]}, (0.5 + 3 * 0.25) / 4),
        ("smape", [0.0, 1.0], [0.0, 3.0], {}, (0 + 1) / 2),
        ("rmspe", [0.0, 0.0], [1.0, 2.0], {}, NAN),
        ("poisson_deviance", [0.0, 2.0], [1.0, 2.0], {}, 1.0),
        ("gauc", [0, 1, 1, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.1], {"groups": [0, 0, 1, 1, 1]}, (2 * 1 + 3 * 0) / 5),
        # probabilities are scaled to 1
        ("logloss", [1], [[0.333, 0.333, 0.333]], {}, math.log(3)),
        ("logloss", [2], [[0.25, 0.5, 0.255]], {}, -math.log(0.255 / 1.005)),
        ("accuracy", [0, 1, 1], [0.5, 0.51, 0.5], {}, 2 / 3),  # .5 is class 0
        ("accuracy", [0, 1], [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], {}, 1),  # the first among equals
        ("quadratic_kappa", [0, 1, 3], [0.2, 1.4, 2.6], {}, 1),  # values of an ordinal target are rounded
        ("accuracy", [10**12, -5, 3], [10**12, -5, 4], {}, 2 / 3),  # any whole numbers
        ("rmse", pd.DataFrame({"a": [0, 1], "b": [0, 1]}), torch.tensor([[0.0, 0.0], [2.0, 2.0]]), {}, math.sqrt(0.5)),
    ],
)
def test_cases_by_hand(name, y, p, options, expected):
    assert close(score(name, y, p, **options), expected)


def test_outside_the_domain():
    # a prediction there is infinitely bad, a target there is a mistake
    for name, y, wrong in (("rmsle", -1.0, -1.0), ("poisson_deviance", -0.5, 0.0), ("gamma_deviance", 0.0, -0.1)):
        assert score(name, [1.0, 2.0], [1.0, wrong]) == math.inf
        with pytest.raises(DataError, match=r"column 'y', row 1: a value is"):
            score(name, [1.0, y], [1.0, 1.0])


@pytest.mark.parametrize(
    "name", ["mrr", "mrr@2", "ndcg@3", "ndcg", "map@2", "map", "hit_rate@1", "hit_rate@2", "recall@2"]
)
def test_metrics_of_lists_are_the_functions(name):
    rng = np.random.default_rng(0)
    y, p, groups, w = rng.integers(0, 3, 60), rng.integers(0, 4, 60) / 4, rng.integers(0, 9, 60), rng.random(60)
    base, _, k = name.partition("@")
    function = getattr(m, {"map": "mean_average_precision"}.get(base, base))
    for weight in (w, None):
        wanted = function(p, y, groups, k=int(k) if k else None, sample_weight=weight)
        assert score(name, y, p, weight, groups=groups) == pytest.approx(wanted, rel=1e-14, abs=0)


@pytest.mark.parametrize(
    ("name", "y", "p", "options", "match"),
    [
        ("auc", [0, 1], [0.1, NAN], {}, r"column 'prediction', row 1: a value is NaN"),
        ("mrr", [0, 1], [0.1, NAN], {"groups": [0, 0]}, r"column 'prediction', row 1: a value is NaN"),
        ("rmse", [NAN, 1], [0.1, 1], {}, r"column 'y', row 0: a value is missing"),
        ("rmse", [0, 1], [0.1, math.inf], {}, r"column 'prediction', row 1: a value is infinite"),
        ("accuracy", [0, 1], [0.1, math.inf], {}, r"column 'prediction', row 1: a value is infinite"),
        ("rmse", [0, 1], [0.1], {}, r"y has 2 rows, prediction has 1"),
        ("rmse", [], [], {}, r"no rows"),
        ("rmse", [0, 1], [0.1, 1], {"w": [1]}, r"weight has 1 rows, prediction has 2"),
        ("rmse", [0, 1], [0.1, 1], {"w": [1, -1]}, r"column 'weight', row 1"),
        ("rmse", [0, 1], [[0, 1], [0, 1]], {}, r"rmse is for regression, but there are 2 numbers a row"),
        ("rmse", [[0, 1]], [[0, 1, 2]], {}, r"y is \(1, 2\), prediction is \(1, 3\)"),
        ("rmse", [[0, 1], [0, 1]], [0, 1], {}, r"y is \(2, 2\), prediction is \(2,\)"),
        ("mrr", [0, 1], [0.1, 1], {}, r"mrr is a metric of lists"),
        ("mrr", [[0, 1]], [[0, 1]], {"groups": [0]}, r"mrr is for ranking, but there are 2 targets a row"),
        ("logloss", [0, 1], [0.1, 1.5], {}, r"row 1: a value is no probability.*sigmoid"),
        ("logloss", [0, 1, 2], [[0.1, 0.2, 0.3]] * 3, {}, r"row 0: a value is of a row whose classes do not sum to 1"),
        ("logloss", [0, 1, 3], [[0.2, 0.5, 0.3]] * 3, {}, r"column 'y', row 2: a value is not among the 3 classes"),
        ("logloss", [0, 2], [0.1, 0.5], {}, r"column 'y', row 1: a value is neither 0 nor 1"),
        ("average_precision", [0, 2], [0.1, 0.5], {}, r"column 'y', row 1: a value is neither 0 nor 1"),
        ("f1", [0, 1, 2], [0, 1, 2], {}, r"column 'y', row 2: a value is neither 0 nor 1"),
        ("f1", [0, 1, 1], [[0.2, 0.5, 0.3]] * 3, {}, r"f1 is for binary, but there are 3 numbers a row"),
        ("accuracy", [0, 1, 2], [0.1, 1.2, 2], {}, r"row 0: a value is no class code.*best_rounding"),
        ("accuracy", [0.5, 1], [0, 1], {}, r"column 'y', row 0: a value is not a class code"),
    ],
)
def test_bad_inputs_are_named(name, y, p, options, match):
    refused(DataError, match, lambda: score(name, y, p, **options))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rsme", r"no metric 'rsme'. Near it: rmse, rmspe, smape"),
        ("ndgc@5", r"Near it: .*ndcg@10"),
        ("zzz", r"There are auc, average_precision"),
        ("rmse@3", r"no metric 'rmse@3'. Near it: rmse"),
        ("pinball", r"Write pinball@0.5"),
        ("recall", r"Write recall@10"),
        ("ndcg@0", r"k of 'ndcg@0' is not a whole number above 0"),
        ("ndcg@x", r"k of 'ndcg@x'"),
        ("pinball@1", r"q of 'pinball@1' is not between 0 and 1"),
        (abs, r"as_metric\(function"),
    ],
)
def test_unknown_names(name, match):
    refused(DataError, match, lambda: m.get_metric(name))


LOSSES = {"logloss", "brier", "rmse", "mae", "rmsle", "rmspe", "mape", "smape", "pinball@0.5", "poisson_deviance"}
LOSSES |= {"gamma_deviance"}


def test_names_and_directions():
    for task in TASKS:
        names = m.metrics_for(task)
        assert m.default_metric(task) in names
        assert ("gauc" in names) == (task == "ranking")  # elsewhere there are no lists
        for name in names:
            metric = m.get_metric(name)
            assert metric.name == m.get_metric(name.upper()).name == name
            assert task in metric.tasks
            assert metric.wants in WANTS
            assert metric.greater_is_better == (name not in LOSSES)
            assert m.get_metric(metric) is metric
            again = pickle.loads(pickle.dumps(metric))
            assert (again.name, again.wants, again.tasks) == (metric.name, metric.wants, metric.tasks)
    for asked in (m.metrics_for, m.default_metric):
        refused(DataError, "task='rank'", lambda asked=asked: asked("rank"))
    better = {("auc", 0.7, 0.6): True, ("rmse", 0.6, 0.7): True, ("auc", 0.6, 0.6): False}
    better |= {("rmse", 9.0, NAN): True, ("rmse", NAN, 9.0): False, ("rmse", NAN, NAN): False}
    assert {(name, a, b): m.get_metric(name).better(a, b) for name, a, b in better} == better


def test_a_function_of_ones_own():
    def plain(y, prediction):
        assert isinstance(y, np.ndarray)
        assert isinstance(prediction, np.ndarray)
        return np.abs(y - prediction).max()

    metric = m.as_metric(plain, greater_is_better=False, wants="values", tasks=["regression"])
    assert (metric.name, metric.tasks, metric.needs_groups) == ("plain", ("regression",), False)
    assert metric(torch.tensor([1.0, 2.0]), [1.0, 5.0], groups=[0, 0]) == 3
    refused(DataError, r"plain takes no weights.*weight=None", lambda: metric([1.0], [1.0], weight=[1.0]))
    refused(DataError, r"row 0: a value is NaN", lambda: metric([1.0], [NAN]))

    @m.as_metric(greater_is_better=True, wants="classes", name="weighted hits")
    def hits(y, prediction, *, weight=None):
        return np.average(y == prediction, weights=weight)

    assert hits.name == "weighted hits"
    assert hits([0, 1], [0.2, 0.4], weight=[3, 1]) == 0.75
    assert hits([0, 2], [[0.2, 0.7, 0.1], [0, 0, 1]]) == 0.5

    @m.as_metric(greater_is_better=True)
    def of_lists(y, prediction, groups):
        return len(set(groups))

    assert of_lists.needs_groups
    assert of_lists([0, 1], [3, 4], groups=[5, 6]) == 2
    refused(DataError, "of_lists is a metric of lists", lambda: of_lists([0, 1], [3, 4]))
    refused(DataError, "has no name", lambda: m.as_metric(lambda y, p: 0, greater_is_better=True))
    refused(DataError, "wants='logits'", lambda: m.as_metric(plain, greater_is_better=True, wants="logits"))
    refused(DataError, "task='rank'", lambda: m.as_metric(plain, greater_is_better=True, tasks=["rank"]))
    refused(DataError, "called .*'k'", lambda: m.as_metric(lambda y, p, k: 0, greater_is_better=True, name="k"))


# The registry's metrics while XGBoost, LightGBM and CatBoost train: their last value is that of their predictions


BOOSTING_METRICS_ROWS, VALID = 240, 90
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BOOSTING_METRICS_ROWS, 4))
SIGNAL = X[:, 0] + RNG.normal(0, 0.7, BOOSTING_METRICS_ROWS)
WEIGHT = RNG.choice([0.5, 1.0, 4.0], BOOSTING_METRICS_ROWS)
SIZES = {"train": np.array([10, 20] * 5), "valid": np.array([9, 21] * 3)}
TARGETS = {
    "binary": (SIGNAL > 0).astype(int),
    "multiclass": np.digitize(SIGNAL, [-0.7, 0.7]),
    "regression": np.exp(SIGNAL / 2),
    "ranking": (SIGNAL > 0.8).astype(int),
    "multilabel": np.column_stack([SIGNAL > 0, X[:, 1] > 0.3]).astype(int),
}
CASES = [
    *[("binary", name) for name in ("auc", "logloss", "f1")],
    *[("multiclass", name) for name in ("logloss", "quadratic_kappa", "auc")],
    *[("regression", "rmsle"), ("ranking", "mrr"), ("ranking", "ndcg@3")],
]


def parts(task):
    """Training and validation rows: columns, target, weights, sizes of lists."""
    cut = {"train": slice(VALID, None), "valid": slice(VALID)}
    return {part: (X[c], TARGETS[task][c], WEIGHT[c], SIZES[part]) for part, c in cut.items()}


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
    for part, (x, y, w, sizes) in parts(task).items():
        # XGBoost weighs lists, not rows
        sets[part] = xgb.DMatrix(x, y, weight=w[: len(sizes)] if task == "ranking" else w)
        if task == "ranking":
            sets[part].set_group(sizes)
    history = {}
    params = {**XGB[task], "nthread": 1, "max_depth": 3, "disable_default_eval_metric": 1}
    options = {"evals": [(d, part) for part, d in sets.items()], "evals_result": history, "verbose_eval": False}
    booster = xgb.train(params, sets["train"], 5, custom_metric=m.xgboost_metric(name), **options)
    for part, (x, y, w, sizes) in parts(task).items():
        w = np.repeat(w[: len(sizes)], sizes) if task == "ranking" else w
        value = expected(task, name, y, booster.predict(xgb.DMatrix(x)), w, sizes)
        assert history[part][name][-1] == pytest.approx(value, abs=2e-6)


def test_xgboost_with_its_own_objective_groups_and_weights():
    xgb = pytest.importorskip("xgboost")
    x, y, w, sizes = parts("binary")["valid"]

    def objective(margin, data):
        p = 1 / (1 + np.exp(-margin))
        return p - data.get_label(), p * (1 - p)

    data, history = xgb.DMatrix(x, y), {}
    options = {"evals": [(data, "set")], "evals_result": history, "verbose_eval": False, "obj": objective}
    params = {"nthread": 1, "base_score": 0, "disable_default_eval_metric": 1}
    metric = m.xgboost_metric("logloss", weight=w, transform=lambda margin: 1 / (1 + np.exp(-margin)))
    booster = xgb.train(params, data, 5, custom_metric=metric, **options)
    margin = booster.predict(data, output_margin=True)
    wanted = m.get_metric("logloss")(y, 1 / (1 + np.exp(-margin)), weight=w)
    assert history["set"]["logloss"][-1] == pytest.approx(wanted)
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
    (x, y, w, sizes), (vx, vy, vw, vsizes) = parts(task).values()
    lists = task == "ranking"
    train = lgb.Dataset(x, y, weight=w, group=sizes if lists else None)
    valid = train.create_valid(vx, vy, weight=vw, group=vsizes if lists else None)
    options = {"valid_sets": [train, valid], "valid_names": ["train", "valid"], "feval": m.lightgbm_metric(name)}
    params = {**LGB[task], "metric": "None", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    history = {}
    callbacks = [lgb.record_evaluation(history), lgb.early_stopping(3, verbose=False)]
    booster = lgb.train(params, train, 5, callbacks=callbacks, **options)
    at = booster.best_iteration - 1
    for part, (px, py, pw, psizes) in parts(task).items():
        value = expected(task, name, py, booster.predict(px), pw, psizes)
        assert history[part][name][at] == pytest.approx(value, abs=1e-6)
    best = max if m.get_metric(name).greater_is_better else min
    assert history["valid"][name][at] == best(history["valid"][name])


CAT = {"binary": "Logloss", "multiclass": "MultiClass", "regression": "RMSE", "ranking": "YetiRank"}


def catboost_history(loss, metric, learn, valid, lists=False):
    cb = pytest.importorskip("catboost")
    pools = [cb.Pool(x, y, weight=w, group_id=rows_of(s) if lists else None) for x, y, w, s in (learn, valid)]
    options = {"iterations": 5, "verbose": False, "thread_count": 1, "allow_writing_files": False, "depth": 3}
    model = cb.CatBoost({"loss_function": loss, "eval_metric": metric, "use_best_model": False, **options})
    model.fit(pools[0], eval_set=pools[1])
    return model, {k: v[type(metric).__name__][-1] for k, v in model.get_evals_result().items()}


@pytest.mark.parametrize(("task", "name"), [c for c in CASES if c[1] != "rmsle"] + [("regression", "mae")])
def test_catboost(task, name):
    learn, valid = parts(task).values()
    lists = task == "ranking"
    metric = m.catboost_metric(name, groups=[rows_of(s) for s in SIZES.values()] if lists else ())
    assert metric.is_max_optimal() == m.get_metric(name).greater_is_better
    if lists:
        learn, valid = ((x, y, None, sizes) for x, y, _, sizes in (learn, valid))
    model, last = catboost_history(CAT[task], metric, learn, valid, lists)
    kind = "Probability" if task in ("binary", "multiclass") else "RawFormulaVal"
    for part, (px, py, pw, s) in (("learn", learn), ("validation", valid)):
        value = expected(task, name, py, model.predict(px, prediction_type=kind), pw, s)
        assert last[part] == pytest.approx(value, abs=1e-6)


GRADES = np.digitize(SIGNAL, [-0.7, 0.7])


@pytest.mark.parametrize(
    ("name", "loss", "options", "kind"),
    [
        *[(n, "MultiLogloss", {"several_targets": True}, "Probability") for n in ("f1_macro", "logloss", "auc")],
        ("quadratic_kappa", "RMSE", {"transform": None}, "RawFormulaVal"),
        ("poisson_deviance", "Poisson", {"transform": np.exp}, "Exponent"),
    ],
)
def test_catboost_with_several_targets_or_a_transform(name, loss, options, kind):
    pytest.importorskip("catboost")
    learn, valid = parts("multilabel").values()
    if "transform" in options:
        learn, valid = (X[VALID:], GRADES[VALID:], *learn[2:]), (X[:VALID], GRADES[:VALID], *valid[2:])
    model, last = catboost_history(loss, m.catboost_metric(name, **options), learn, valid)
    value = m.get_metric(name)(valid[1], model.predict(valid[0], prediction_type=kind), weight=valid[2])
    assert last["validation"] == pytest.approx(value, abs=1e-6)


def test_catboost_metric_without_catboost():
    # its rules can be asked without the library
    metric = m.catboost_metric("mrr", groups=[[0, 0, 1], [4, 4]])
    assert metric.evaluate((np.array([0.3, 0.2]),), np.array([0.0, 1.0]), None) == (0.5, 1.0)
    assert metric.get_final_error(0.5, 1.0) == 0.5
    with pytest.raises(DataError, match="evaluates 1 rows, and there are groups for 3, 2"):
        metric.evaluate((np.array([0.3]),), np.array([0.0]), None)
    refused(DataError, "no groups were given", lambda: m.catboost_metric("mrr"))
    refused(DataError, "two sets have 2 rows", lambda: m.catboost_metric("mrr", groups=[[0, 0], [0, 1]]))
    refused(DataError, "one list of rows", lambda: m.catboost_metric("mrr", groups=[0, 0, 1]))
