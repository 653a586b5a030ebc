"""SKModel and CuMLModel against scikit-learn called directly."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import ensemble
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from fastrec._core.atomic import digests_below
from fastrec.errors import DataError, DataWarning, UnreadableFileError
from fastrec.estimators import CuMLModel, Estimator, SKModel
from fastrec.estimators._sklearn_saving import packed, unpacked
from fastrec.table import Table
from fastrec.validate import Rows
from tests.estimators import made

N = 200
frame_of = partial(made.frame_of, n=N)


def rows_of(frame: pd.DataFrame, task: str = "binary", **more) -> Rows:
    return made.rows_of(frame, task, **{"cats": ["city"], **more})


def saved_ridge(folder: Path) -> dict:
    """A saved Ridge's own file, as it stands."""
    SKModel("r", Ridge()).fit(rows_of(frame_of(), "regression")).save(folder)
    return json.loads((folder / "estimator.json").read_text())


@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn_called_directly_says_the_same(weighted):
    frame, test = frame_of(), frame_of(1)
    weight = np.random.default_rng(2).uniform(0.5, 2, N) if weighted else None
    rows = rows_of(frame, "regression", weight=None if weight is None else torch.from_numpy(weight))
    onehot = OneHotEncoder(categories=[made.CITIES], handle_unknown="ignore")
    main = make_column_transformer((onehot, ["city"]), (StandardScaler(), ["x", "z[m]"]))
    middle = frame.x.sort_values().iloc[(frame.x.notna().sum() - 1) // 2]  # the lower of two middle values
    filled = [part.assign(x=part.x.fillna(middle)) for part in (frame, test)]
    a, b = main.fit(filled[0]).transform(filled[0]), main.transform(filled[1])
    a, b = (np.column_stack([m, part.x.isna()]) for m, part in ((a, frame), (b, test)))
    expected = Ridge(alpha=0.5).fit(a, rows.label.numpy(), sample_weight=weight).predict(b)
    got = SKModel("r", Ridge(alpha=0.5)).fit(rows).predict(rows_of(test, "regression"))
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-8)


def test_rare_values_share_a_column_and_infinite_numbers_are_the_largest():
    n = 400
    ids = torch.cat([torch.arange(70).repeat(5), torch.arange(70, 120)])  # 70 often, 50 once
    x = torch.arange(n).double()
    rows = Rows(Table({"id": ids, "x": x}), "regression", cats=["id"], conts=["x"], label=x)
    model = SKModel("r", Ridge()).fit(rows)
    values = model._inputs.matrix(rows.table)
    assert values.shape == (n, 64 + 1 + 1)
    assert (values[:, :65].sum(1) == 1).all()
    assert model._inputs.widths == {"id": 65, "x": 1}
    ends = Rows(Table({"id": [0, 0], "x": [float("inf"), 399.0]}), "regression", cats=["id"], conts=["x"])
    got = model.predict(ends)
    assert got[0] == got[1]


def test_every_value_of_two_rows_or_more_has_a_column():
    rng, n = np.random.default_rng(0), 600
    frame = pd.DataFrame({"id": rng.integers(0, 150, n).astype(str), "x": rng.normal(size=n)})
    frame.loc[::40, "id"], frame.loc[::50, "x"] = None, np.nan
    label = torch.from_numpy((rng.random(n) < 0.4).astype(float))
    rows = Rows(Table(frame), "binary", cats=["id"], conts=["x"], label=label)
    model = SKModel("l", LogisticRegression(solver="liblinear"), cats="every").fit(rows)

    often = frame["id"].value_counts().loc[lambda c: c > 1].index.sort_values()
    once = frame["id"].notna() & ~frame["id"].isin(often)
    wanted = pd.DataFrame({"rare": once * 1.0} | {v: (frame["id"] == v) * 1.0 for v in often})
    filled = frame["x"].fillna(frame["x"].median())
    wanted = wanted.assign(x=(filled - filled.mean()) / filled.std(ddof=0), hole=frame["x"].isna() * 1.0)
    told = LogisticRegression(solver="liblinear").fit(wanted.to_numpy(), label)
    np.testing.assert_allclose(model.predict(rows), told.predict_proba(wanted.to_numpy())[:, 1], atol=1e-4)
    assert set(model.trace.importance) <= {"id", "x"}
    # a table without categories was refused
    alone = replace(rows, cats=[], conts=["x"])
    told.fit(wanted[["x", "hole"]].to_numpy(), label)
    said = SKModel("l", LogisticRegression(solver="liblinear"), cats="every").fit(alone).predict(alone)
    np.testing.assert_allclose(said, told.predict_proba(wanted[["x", "hole"]].to_numpy())[:, 1], atol=1e-4)


def test_without_preparation_a_pipeline_is_given_the_plain_columns():
    rows = rows_of(frame_of())
    model = SKModel("p", make_pipeline(SimpleImputer(), LogisticRegression()), prepare=False).fit(rows)
    frame = frame_of().assign(city=lambda f: f.city.map({c: i for i, c in enumerate(made.CITIES, 1)}))
    plain = frame[["city", "x", "z[m]"]].to_numpy(dtype=np.float32)
    direct = make_pipeline(SimpleImputer(), LogisticRegression()).fit(plain, rows.label.numpy())
    expected = direct.predict_proba(plain)[:, 1]
    np.testing.assert_allclose(model.predict(rows).numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: SKModel("r", Ridge()).fit(rows_of(frame_of())), r"cannot learn a binary task.*regression"),
        (
            lambda: SKModel("l", LogisticRegression()).fit(rows_of(frame_of(), "regression")),
            "cannot learn a regression",
        ),
        (lambda: SKModel("svc", SVC()).fit(rows_of(frame_of())), r"svc .SVC. says no probabilities.*Calibrated"),
        (lambda: SKModel("odd", Ridge), "no estimator"),
        (lambda: SKModel("odd", 5), "no estimator"),
        (lambda: SKModel("odd", "Ridge"), "no estimator"),
        (lambda: CuMLModel("lasso"), r"no kind 'lasso'.*linear, knn"),
        (lambda: CuMLModel("knn", C=1), r"knn has no setting 'C'.*neighbors"),
    ],
)
def test_tasks_kinds_and_settings_that_are_none_are_refused(call, match):
    with pytest.raises(DataError, match=match):
        call()


def test_the_estimator_that_was_given_stays_untrained_and_keeps_its_own_seed():
    own = ensemble.RandomForestClassifier(5, random_state=9)
    rows = rows_of(frame_of())
    a, b = (SKModel("f", own).fit(rows, seed=s).predict(rows) for s in (1, 2))
    assert torch.equal(a, b)
    assert not hasattr(own, "estimators_")
    free = ensemble.RandomForestClassifier(5)
    a, b, c = (SKModel("f", free).fit(rows, seed=s).predict(rows) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    model = SKModel("f", free).fit(rows)
    assert set(model.trace.importance) == {"city", "x", "z[m]"}
    assert sum(model.trace.importance.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "estimator",
    [
        Ridge(alpha=np.float64(2)),
        make_pipeline(StandardScaler(with_mean=False), CalibratedClassifierCV(SVC(C=3), ensemble=False)),
        LogisticRegression(class_weight={0: 1.0, 1: 5.0}),
        SimpleImputer(fill_value=1, strategy="constant"),
    ],
)
def test_an_untrained_estimator_is_written_as_json_and_read_again(estimator):
    made = unpacked(json.loads(json.dumps(packed(estimator, trained=False))))
    assert repr(made) == repr(estimator)


PREPARED = make_column_transformer((StandardScaler(), slice(1, 3)), (MinMaxScaler(), [0]))
SAVED = [
    (ensemble.RandomForestClassifier(7), "multiclass"),
    (ensemble.ExtraTreesRegressor(7, max_leaf_nodes=20), "regression"),
    (DecisionTreeClassifier(ccp_alpha=0.01), "binary"),
    (ensemble.GradientBoostingClassifier(n_estimators=4), "binary"),
    (ensemble.GradientBoostingClassifier(n_estimators=3), "multiclass"),
    (ensemble.GradientBoostingRegressor(n_estimators=4, init="zero"), "regression"),
    (ensemble.HistGradientBoostingClassifier(max_iter=5), "multiclass"),
    (ensemble.HistGradientBoostingRegressor(max_iter=5, loss="poisson"), "regression"),
    (ensemble.AdaBoostClassifier(n_estimators=3), "multiclass"),
    (ensemble.BaggingRegressor(Ridge(), n_estimators=3), "regression"),
    (Ridge(), "regression"),
    (PoissonRegressor(), "regression"),
    (LogisticRegression(), "multiclass"),
    (SGDClassifier(loss="log_loss"), "binary"),
    (LinearDiscriminantAnalysis(), "multiclass"),
    (KNeighborsClassifier(5), "multiclass"),
    (KNeighborsRegressor(5, weights="distance"), "regression"),
    (SVR(), "regression"),
    (CalibratedClassifierCV(SVC(), ensemble=False), "multiclass"),
    (CalibratedClassifierCV(LinearSVC(), method="isotonic", cv=2), "binary"),
    (MLPClassifier([4], max_iter=5, early_stopping=True), "binary"),
    (ensemble.StackingClassifier([("a", GaussianNB())], LogisticRegression(), cv=2), "binary"),
    (make_pipeline(SplineTransformer(5, extrapolation="linear"), Ridge()), "regression"),
    (make_pipeline(PREPARED, ensemble.VotingRegressor([("a", Ridge()), ("b", DummyRegressor())])), "regression"),
]


@pytest.mark.parametrize(("estimator", "task"), SAVED, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_is_loaded_predicts_the_same_to_the_bit(estimator, task, tmp_path):
    rows, test = rows_of(frame_of(), task), rows_of(frame_of(1), task)
    rows = replace(rows, label=rows.label.abs())  # amounts of a Poisson regression
    model = SKModel("m", estimator, cats="code").fit(rows, seed=3)
    said = model.predict(test)
    for folder in (tmp_path / "m", tmp_path / "again"):
        model.save(folder)
        model = Estimator.load(folder)
        assert torch.equal(model.predict(test), said)


class Mine(Ridge):
    """An estimator of one's own, which counts how often it is trained."""

    trained = 0

    def fit(self, X, y, sample_weight=None):
        type(self).trained += 1
        return super().fit(X, y, sample_weight)


def test_ones_own_estimator_is_loaded_where_it_is_known_and_not_trained_again(tmp_path):
    rows = rows_of(frame_of(), "regression")
    model = SKModel("mine", Mine(alpha=3)).fit(rows)
    assert packed(Mine())["class"] == f"{__name__}:Mine"
    model.save(tmp_path / "m")
    before = Mine.trained
    assert torch.equal(Estimator.load(tmp_path / "m").predict(rows), model.predict(rows))
    assert Mine.trained == before
    with pytest.raises(DataError, match="not known here"):
        unpacked({"is": "estimator", "class": "nowhere.at_all:Mine", "params": {}, "learned": {}})


class Run:
    """What a stranger's pickle does when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_splines_of_a_constant_column_and_damaged_ones():
    made = SplineTransformer(5).fit(np.column_stack([np.linspace(0, 1, 20), np.full(20, 3.0)]))
    state, rows = packed(made), np.array([[0.3, 3.0], [2.0, 5.0]])
    np.testing.assert_array_equal(unpacked(state).transform(rows), made.transform(rows))
    first = state["learned"]["bsplines_"][0]
    first["knots"]["of"] = first["knots"]["of"].flip(0)
    with pytest.raises(ValueError, match="a spline's knots are damaged"):
        unpacked(state)


def test_a_strangers_estimator_reads_no_pickle(tmp_path):
    """joblib keeps what a pipeline's steps make in ``memory``, as pickles, and reads them when it is trained."""
    rows, steps = rows_of(frame_of()), [("s", StandardScaler()), ("l", LogisticRegression())]
    model = SKModel("m", Pipeline(steps)).fit(rows)
    model.save(tmp_path / "m")
    values = model._inputs.matrix(rows.table)
    Pipeline(steps, memory=str(tmp_path / "cache")).fit(values, rows.label.long().numpy())
    for cached in (tmp_path / "cache").rglob("output.pkl"):
        cached.write_bytes(pickle.dumps(Run(tmp_path / "ran")))
    about, plain = (json.loads((tmp_path / "m" / "estimator.json").read_text()) for _ in range(2))
    about["settings"]["estimator"]["params"]["memory"] = str(tmp_path / "cache")
    (tmp_path / "m" / "estimator.json").write_text(json.dumps(about))
    with pytest.raises(UnreadableFileError, match="names a folder"):
        Estimator.load(tmp_path / "m").fit(rows)
    learned = tmp_path / "m" / "learned" / "state.json"
    state = json.loads(learned.read_text())
    state["parts"][0]["params"]["memory"] = str(tmp_path / "cache")
    learned.write_text(json.dumps(state))
    plain["digests"] = digests_below(tmp_path / "m", but="estimator.json")
    (tmp_path / "m" / "estimator.json").write_text(json.dumps(plain))
    with pytest.raises(UnreadableFileError, match="names a folder"):
        Estimator.load(tmp_path / "m").predict(rows)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "path",
    [
        "os:system", "antigravity:Ridge", "sklearn.os:system", "builtins:dict", "sklearn:os", "sklearn.tree.os:system",
        "sklearn.feature_extraction.text:CountVectorizer", "sklearn.model_selection:GridSearchCV",
        "fastrec.features:FeatureSet",
    ],
)  # fmt: skip
def test_nothing_is_made_that_is_no_estimator(path, tmp_path):
    with pytest.raises((DataError, ImportError)):
        unpacked({"is": "estimator", "class": path, "params": {}, "learned": {}})
    assert "antigravity" not in sys.modules
    about = saved_ridge(tmp_path / "m")
    about["settings"]["estimator"]["class"] = path
    (tmp_path / "m" / "estimator.json").write_text(json.dumps(about))
    with pytest.raises(UnreadableFileError):
        Estimator.load(tmp_path / "m")


@pytest.fixture(scope="module")
def trained():
    """Estimators whose compiled code walks through arrays without looking at their ends."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    kinds = [DecisionTreeClassifier(), SVC(), ensemble.RandomForestClassifier(2)]
    kinds += [ensemble.GradientBoostingClassifier(n_estimators=2), ensemble.HistGradientBoostingClassifier(max_iter=2)]
    return {type(k).__name__: k.fit(x.astype(np.float32), y) for k in kinds}


def put(state, path, change):
    """A copy of a packed estimator in which a value at ``a.0.b`` is another."""
    made = copy.deepcopy(state)
    *way, last = path.split(".")
    at = made
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = change(at[last])
    return made


def first(value):
    """A change of a tensor's first number."""
    return lambda tensor: torch.cat([torch.full_like(tensor[:1], value), tensor[1:]])


beyond, back = first(1_000_000), first(0)


FOREST, BOOSTED, HISTOGRAM = "learned.estimators_.0", "learned.estimators_.of.0", "learned._predictors.0.0"
DAMAGED = [
    *[("DecisionTreeClassifier", f"learned.tree_.{n}.of", beyond) for n in ("feature", "left_child", "right_child")],
    *[("DecisionTreeClassifier", f"learned.tree_.{n}.of", back) for n in ("left_child", "right_child")],
    ("DecisionTreeClassifier", "learned.tree_.features", lambda n: n + 1),
    ("DecisionTreeClassifier", "learned.tree_.classes", lambda n: n * 2),
    ("DecisionTreeClassifier", "learned.tree_.values.of", lambda t: t[:-1]),
    ("DecisionTreeClassifier", "learned.n_features_in_", lambda n: n - 1),
    ("RandomForestClassifier", "learned.n_features_in_", lambda n: n - 1),
    ("RandomForestClassifier", f"{FOREST}.learned.tree_.feature.of", beyond),
    ("GradientBoostingClassifier", f"{BOOSTED}.learned.tree_.feature.of", beyond),
    ("GradientBoostingClassifier", "learned.estimators_.shape", lambda shape: [1, 6]),
    ("GradientBoostingClassifier", "learned.n_features_in_", lambda n: n - 1),
    ("HistGradientBoostingClassifier", f"{HISTOGRAM}.feature_idx.of", beyond),
    ("HistGradientBoostingClassifier", f"{HISTOGRAM}.left.of", beyond),
    ("HistGradientBoostingClassifier", "learned.n_features_in_", lambda n: 1),
    ("SVC", "learned.support_vectors_.of", lambda t: t[:-1]),
    ("SVC", "learned._n_support.of", beyond),
    ("SVC", "learned._dual_coef_.of", lambda t: t[:1]),
    ("SVC", "learned._intercept_.of", lambda t: t[:1]),
    ("SVC", "learned._probA.of", lambda t: torch.zeros(1, dtype=torch.float64)),
    ("SVC", "params", lambda p: {**p, "kernel": "precomputed"}),
]


@pytest.mark.parametrize(("kind", "path", "change"), DAMAGED, ids=[f"{k}-{p}" for k, p, _ in DAMAGED])
def test_arrays_that_compiled_code_would_leave_are_refused(kind, path, change, trained):
    state = packed(trained[kind])
    unpacked(state)
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpacked(put(state, path, change))


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (GridSearchCV(LogisticRegression(), {"C": [1, 2]}), "GridSearchCV of sklearn.model_selection cannot be saved"),
        (GaussianProcessClassifier(), "GaussianProcessClassifier of sklearn.gaussian_process cannot be saved"),
        (Pipeline([("l", LogisticRegression())], memory="cache"), "Pipeline has memory=, which cannot be saved"),
        (make_pipeline(SimpleImputer(missing_values=pd.NA), GaussianNB()), "SimpleImputer.missing_values is a NAType"),
        (KNeighborsClassifier(metric=lambda a, b: 0), "KNeighborsClassifier.metric is a function"),
        (ensemble.RandomForestClassifier(random_state=np.random.RandomState(0)), "random_state is a RandomState"),
        (
            ensemble.HistGradientBoostingClassifier(categorical_features=[0]),
            "categories of its own, which cannot be saved",
        ),
    ],
)
def test_what_cannot_be_saved_is_named_before_it_is_trained(estimator, said):
    model = SKModel("m", estimator)
    with pytest.raises(DataError, match=said):
        model.fit(rows_of(frame_of()))
    assert model._parts == []


def test_another_version_of_scikit_learn_is_said(tmp_path):
    about = saved_ridge(tmp_path / "m")
    (tmp_path / "m" / "estimator.json").write_text(json.dumps({**about, "scikit-learn": "1.0.2"}))
    with pytest.warns(DataWarning, match=r"r was saved by scikit-learn 1\.0\.2"):
        Estimator.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("kind", "task", "twin"),
    [
        ("linear", "binary", LogisticRegression(C=0.1, max_iter=1000)),
        ("linear", "regression", Ridge(alpha=10)),
        ("knn", "multiclass", KNeighborsClassifier(7)),
        ("svm", "binary", CalibratedClassifierCV(SVC(C=0.1, random_state=3), ensemble=False)),
    ],
)
def test_the_twins_are_scikit_learns(kind, task, twin):
    settings = {"neighbors": 7} if kind == "knn" else {"C": 0.1}
    rows = rows_of(frame_of(), task)
    got = CuMLModel(kind, **settings).fit(rows, seed=3).predict(rows)
    torch.testing.assert_close(got, SKModel("t", twin).fit(rows, seed=3).predict(rows), rtol=0, atol=1e-9)
