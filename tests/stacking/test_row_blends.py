"""Blends of rows against scikit-learn, SciPy and plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_absolute_error, roc_auc_score

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import Estimator
from fastrec.metrics import as_metric, auc, get_metric
from fastrec.stacking import HillClimb, LogisticBlend, MeanBlend, OneBase, PoolBlend, RankMean, RidgeBlend, TreeBlend
from fastrec.stacking.blends import by_row, predicted_by
from fastrec.table import Table
from fastrec.validate import Rows
from tests.stacking.stack_cases import make

ROW_TASKS = ["binary", "multiclass", "regression", "several targets", "multilabel"]


def level(case: str, n: int = 300, models: int = 3, seed: int = 0, noise: float = 0.7) -> tuple[Rows, np.ndarray]:
    """Rows with level-2 inputs, every other row of weight 2, and the inputs as ``[n, models, k]``."""
    data, scores = make(case, n, models, seed, noise)
    data = replace(data, weight=torch.arange(n) % 2 + 1.0)
    two = by_row(scores, data, ["city"])
    x = np.stack([s.numpy().reshape(n, -1) for s in scores.values()], 1)
    np.testing.assert_array_equal(predicted_by(list(scores), two), x)
    return two, x


def sklearn_weight(data: Rows) -> np.ndarray:
    return (data.weight / data.weight.mean()).numpy()


@pytest.mark.parametrize("case", ["regression", "several targets"])
@pytest.mark.parametrize("ridge", [0.0, 1.0, 50.0])
def test_ridge_is_that_of_scikit_learn(case, ridge):
    data, x = level(case)
    y, w = data.label.numpy().reshape(len(data), -1), sklearn_weight(data)
    got = RidgeBlend(["m0", "m1", "m2"], ridge=ridge).fit(data)
    for j in range(y.shape[1]):
        unit = np.sqrt(np.average((y[:, j] - np.average(y[:, j], weights=w)) ** 2, weights=w))
        model = Ridge(alpha=ridge).fit(x[:, :, j] / unit, y[:, j] / unit, sample_weight=w)
        np.testing.assert_allclose(got.weights[:, j], model.coef_, rtol=1e-6)
        predicted = model.predict(x[:, :, j] / unit) * unit
        np.testing.assert_allclose(got.predict(data).reshape(len(data), -1)[:, j], predicted, rtol=1e-6)


def test_ridge_shares_the_weight_of_equal_models_even_without_a_penalty():
    data, scores = make("regression", 200, 1, 0, 0.5)
    two = by_row({"a": scores["m0"], "b": scores["m0"]}, data)
    weights = RidgeBlend(["a", "b"], ridge=0.0).fit(two).weights
    assert float(weights[0]) == pytest.approx(float(weights[1]), rel=1e-6)


@pytest.mark.parametrize("case", ["binary", "multilabel"])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_logistic_is_that_of_scikit_learn(case, ridge):
    data, x = level(case)
    y, logits = data.label.numpy().reshape(len(data), -1), np.log(x / (1 - x))
    got = LogisticBlend(["m0", "m1", "m2"], ridge=ridge).fit(data)
    for j in range(y.shape[1]):
        model = LogisticRegression(C=1 / (2 * ridge), tol=1e-10, max_iter=10_000)
        kept, w = got.weights[:, j].numpy() > 0, sklearn_weight(data)
        model.fit(logits[:, kept, j], y[:, j], sample_weight=w)
        np.testing.assert_allclose(got.weights[kept, j], model.coef_[0], atol=1e-5)
        expected = model.predict_proba(logits[:, kept, j])[:, 1]
        assert (logits[:, ~kept, j].T @ (w * (y[:, j] - expected)) <= 1e-6).all()  # more weight would not help
        np.testing.assert_allclose(got.predict(data).reshape(len(data), -1)[:, j], expected, atol=1e-5)


@pytest.mark.parametrize("kind", [LogisticBlend, RankMean, TreeBlend])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_and_certain_models_give_numbers(kind, label):
    p = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0] * 8, dtype=torch.float64)
    rows = Rows(Table({"x": torch.zeros(40)}), "binary", label=torch.full((40,), label))
    data = by_row({"a": p, "b": p}, rows)
    got = (kind(["a", "b"], "binary") if kind is TreeBlend else kind(["a", "b"])).fit(data).predict(data)
    assert got.isfinite().all()
    assert ((got - label).abs() < 0.1).all()


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_pool_is_that_of_scipy(ridge):
    data, x = level("multiclass", 90)
    logs, y, w = np.log(x), data.label.numpy(), sklearn_weight(data)

    def loss(found):
        weights, constant = found[:3], found[3:]
        value = ridge * float(found @ found)
        for i in range(len(y)):
            z = [sum(weights[m] * logs[i, m, c] for m in range(3)) + constant[c] for c in range(3)]
            value -= w[i] * (z[y[i]] - np.logaddexp.reduce(z))
        return value / len(y)

    best = minimize(loss, np.full(6, 0.1), method="BFGS", options={"gtol": 1e-8})
    got = PoolBlend(["m0", "m1", "m2"], ridge=ridge).fit(data)
    np.testing.assert_allclose(np.r_[got.weights[:, 0], got.constant], best.x, atol=2e-4)
    z = np.einsum("nmk,m->nk", logs, best.x[:3]) + best.x[3:]
    np.testing.assert_allclose(got.predict(data), np.exp(z) / np.exp(z).sum(1, keepdims=True), atol=1e-4)


def test_mean_and_one_base_are_what_they_say():
    for case in ROW_TASKS:
        data, x = level(case, 40)
        np.testing.assert_allclose(MeanBlend(["m2", "m0"]).predict(data).reshape(40, -1), (x[:, 2] + x[:, 0]) / 2)
        np.testing.assert_array_equal(OneBase("m1").predict(data).reshape(40, -1), x[:, 1])


def climbed_by_loops(x, y, score, steps):
    """Caruana's selection as the paper has it: a list of models that grows by the best addition."""
    chosen, best, best_score = [], [], -math.inf
    since = 0
    while len(chosen) < steps and since < 5:
        tries = [score(y, x[:, [*chosen, m]].mean(1)) for m in range(x.shape[1])]
        winner = max(range(len(tries)), key=lambda m: tries[m])  # the first of equal ones
        chosen.append(winner)
        since += 1
        if tries[winner] > best_score:
            best, best_score, since = list(chosen), tries[winner], 0
    return [best.count(m) / len(best) for m in range(x.shape[1])]


CLIMBS = {
    "auc": ("binary", lambda y, p: roc_auc_score(y, p[:, 0])),
    "logloss": ("multiclass", lambda y, p: -log_loss(y, p / p.sum(1, keepdims=True), labels=[0, 1, 2])),
    "mae": ("several targets", lambda y, p: -mean_absolute_error(y, p)),
}


@pytest.mark.parametrize("name", CLIMBS)
@pytest.mark.parametrize("seed", range(3))
def test_hill_climbing_is_that_of_plain_loops(name, seed):
    case, score = CLIMBS[name]
    data, x = level(case, 120, 4, seed)
    models = [f"m{i}" for i in range(4)]
    got = HillClimb(models, metric=name, steps=12).fit(data)
    weights = climbed_by_loops(x, data.label.numpy(), score, 12)
    np.testing.assert_allclose(got.weights, weights, atol=1e-12)
    assert got.trace.importance == dict(zip(models, got.weights.tolist(), strict=True))
    predicted = np.einsum("nmk,m->nk", x, weights)
    np.testing.assert_allclose(got.predict(data).reshape(predicted.shape), predicted)
    # never below the best model on the rows it climbed on
    metric = get_metric(name)
    alone = [metric(data.label, OneBase(m).predict(data)) for m in models]
    assert all(not metric.better(a, metric(data.label, got.predict(data))) for a in alone)


def test_hill_climbing_looks_at_some_of_the_rows():
    data, scores = make("binary", 3000, 2, 0, 0.5)
    sizes = []

    def watched(y, p):
        sizes.append(len(y))
        return float(auc(p, y))

    metric = as_metric(watched, greater_is_better=True, name="watched")
    blend = HillClimb(list(scores), metric=metric, steps=3, rows=500).fit(by_row(scores, data), seed=1)
    assert set(sizes) == {500}
    assert blend.settings()["metric"] is None  # of one's own: not saved
    assert HillClimb(["a"], metric=get_metric("f1")).settings()["metric"] == "f1"
    lists, scores = make("ranking", 3000, 2, 0, 0.5)
    some = HillClimb(["m0"], rows=500)._some(lists, 0)
    assert len(some) == 500
    assert set(torch.unique(some.groups, return_counts=True)[1].tolist()) == {5}
    grouped = replace(data, groups=torch.arange(3000) // 30)
    assert len(HillClimb(["m0"], rows=500)._some(grouped, 0)) == 480


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 3)), min_size=2, max_size=30))
def test_mean_ranks_are_those_of_plain_loops(rows):
    a, b = (torch.tensor([float(r[i]) for r in rows], dtype=torch.float64) for i in (0, 1))
    label = a * 2 + b
    data = by_row({"a": a, "b": b}, Rows(Table({"x": torch.zeros(len(rows))}), "regression", label=label))
    blend = RankMean(["a", "b"]).fit(data)

    def share(values, v):
        n = len(values)
        if len(set(values)) == 1:
            return 0.5
        return (sum(o < v for o in values) + sum(o == v for o in values) / 2) / n

    expected = [(share(a.tolist(), i) + share(b.tolist(), j)) / 2 for i, j in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(blend._shares(predicted_by(["a", "b"], data))[:, 0], expected, atol=1e-12)


def test_mean_rank_keeps_the_order_of_many_rows_and_ignores_scales():
    data, scores = make("binary", 5000, 2, 0, 0.5)
    blend = RankMean(["m0", "m1"]).fit(two := by_row(scores, data))
    got = blend.predict(two)
    ranks = sum(torch.argsort(torch.argsort(s)).double() for s in scores.values())
    assert float(auc(got, data.label)) == pytest.approx(float(auc(ranks, data.label)), abs=1e-4)
    assert float(got.mean()) == pytest.approx(float(data.label.mean()), abs=0.01)  # probabilities, by and large
    squeezed = by_row({"m0": scores["m0"] / 100, "m1": scores["m1"] ** 3}, data)
    torch.testing.assert_close(RankMean(["m0", "m1"]).fit(squeezed).predict(squeezed), got, rtol=0, atol=2e-3)
    alone = torch.cat([blend.predict(two.take(torch.tensor([i]))) for i in range(20)])
    torch.testing.assert_close(alone, got[:20], rtol=0, atol=1e-12)  # whatever rows stand beside


def test_mean_rank_is_calibrated_where_a_line_does_not_fit(tmp_path):
    rng = np.random.default_rng(0)
    place = rng.permutation(2000)
    chance = np.where(place > 1700, 0.9, 0.02)  # a step that no line through the logit of ranks has
    label = torch.from_numpy((rng.random(2000) < chance).astype(float))
    data = Rows(Table({"x": torch.zeros(2000)}), "binary", label=label)
    two = by_row({"a": torch.from_numpy(place / 2000.0), "b": torch.from_numpy(place / 2000.0)}, data)
    blend = RankMean(["a", "b"]).fit(two)
    got, (x, y) = blend.predict(two).numpy(), (v.numpy() for v in blend._curves[0])
    shares = (place + 0.5) / 2000
    by_line = 1 / (1 + np.exp(-(float(blend._line[0]) * np.log(shares / (1 - shares)) + float(blend._line[1]))))
    steps = isotonic_regression(label.numpy()[np.argsort(by_line)]).x
    np.testing.assert_allclose(y, (x + np.interp(x, np.sort(by_line), steps)) / 2, atol=1e-9)
    np.testing.assert_allclose(got, np.interp(by_line, x, y), atol=1e-6)
    assert (np.diff(got[np.argsort(place)]) > 0).all()  # no order changes
    assert log_loss(label, got) < 0.9 * log_loss(label, by_line)
    blend.save(tmp_path / "b")
    kept = Estimator.load(tmp_path / "b")
    torch.testing.assert_close(kept.predict(two), blend.predict(two), rtol=0, atol=0)
    straight = torch.from_numpy((rng.random(2000) < shares).astype(float))  # the line is right
    same, rows = torch.from_numpy(shares), Rows(data.table, "binary", label=straight)
    assert RankMean(["a", "b"]).fit(by_row({"a": same, "b": same}, rows))._curves == [[]]
    few = Rows(Table({"x": torch.zeros(1)}), "binary", label=torch.ones(1))
    assert RankMean(["a"]).fit(by_row({"a": torch.ones(1).double()}, few))._curves == [[]]


def test_trees_find_where_a_model_is_to_be_trusted():
    rng = np.random.default_rng(0)
    n = 4000
    label, oslo = rng.normal(size=n), rng.random(n) < 0.5
    scores = {"a": torch.from_numpy(np.where(oslo, label, 0.0)), "b": torch.from_numpy(np.where(oslo, 0.0, label + 3))}
    table = Table({"city": np.where(oslo, "oslo", "rome")})
    rows = Rows(table, "regression", cats=["city"], label=torch.from_numpy(label))
    two = by_row(scores, rows, ["city"])
    rmse = get_metric("rmse")
    sums = rmse(rows.label, RidgeBlend(["a", "b"]).fit(two).predict(two))
    trees = TreeBlend(["a", "b"], "regression", rounds=100, eta=0.2).fit(two)
    assert rmse(rows.label, trees.predict(two)) < 0.6 * sums
    assert trees.trace.importance["city"] > 0
    start = TreeBlend(["a", "b"], "regression", rounds=1, eta=1e-7).fit(two)
    torch.testing.assert_close(start.predict(two), RidgeBlend(["a", "b"]).fit(two).predict(two), rtol=0, atol=1e-4)


BLENDS = {
    "RidgeBlend": ("several targets", lambda m: RidgeBlend(m, ridge=2.0)),
    "LogisticBlend": ("multilabel", lambda m: LogisticBlend(m)),
    "PoolBlend": ("multiclass", lambda m: PoolBlend(m, name="own")),
    "MeanBlend": ("binary", lambda m: MeanBlend(m)),
    "RankMean": ("multilabel", lambda m: RankMean(m)),
    "HillClimb": ("multiclass", lambda m: HillClimb(m, metric="brier")),
    "OneBase": ("multiclass", lambda m: OneBase(m[1], name="alone")),
    "TreeBlend": ("multiclass", lambda m: TreeBlend(m, "multiclass", rounds=3)),
    "TreeBlend-2": ("multilabel", lambda m: TreeBlend(m, "multilabel", rounds=3, max_depth=2)),
}


@pytest.mark.parametrize("kind", BLENDS)
def test_blends_load_as_they_were_saved(kind, tmp_path):
    case, made = BLENDS[kind]
    data, _ = level(case, 120)
    blend = made(["m0", "m1", "m2"])
    if blend.learns:
        with pytest.raises(NotFittedError):
            blend.predict(data)
        with pytest.raises(NotFittedError):
            blend.save(tmp_path / "not")
    blend.fit(data, seed=1)
    blend.save(tmp_path / "b")
    again = Estimator.load(tmp_path / "b")
    assert again.settings() == blend.settings()
    assert again.name == blend.name
    assert torch.equal(again.predict(data), blend.predict(data))
    assert again.trace.importance == blend.trace.importance
    assert torch.equal(again.fresh().fit(data, seed=1).predict(data), blend.predict(data))


def test_blends_refuse_tasks_that_are_not_theirs():
    data, _ = level("regression", 30)
    with pytest.raises(DataError, match=r"logistic .LogisticBlend. cannot learn a regression task"):
        LogisticBlend(["m0"]).fit(data)
    with pytest.raises(DataError, match="without labels"):
        RidgeBlend(["m0"]).fit(replace(data, label=None))
    with pytest.raises(DataError, match="no row has a weight above 0"):
        RidgeBlend(["m0"]).fit(replace(data, weight=torch.zeros(30)))
    assert MeanBlend(np.array(["a", "b"])).models == ["a", "b"]
    for kind in (MeanBlend, RidgeBlend, RankMean, HillClimb):
        for models in ([], "xgb"):  # not the models x, g and b
            with pytest.raises(DataError, match="a blend of the models"):
                kind(models)
    with pytest.raises(DataError, match="of='rnk' is not one of log_softmax, rank"):
        MeanBlend(["m0"], of="rnk")
