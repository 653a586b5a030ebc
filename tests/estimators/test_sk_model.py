"""SKModel and CuMLModel against scikit-learn called directly."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from fastrec.errors import DataError, DataWarning, UnreadableFileError
from fastrec.estimators import CuMLModel, Estimator, SKModel
from fastrec.estimators._sk_description import described, made_of
from fastrec.table import Table
from fastrec.validate import Rows

N = 200


def frame_of(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(5, 3, N), "z": rng.normal(size=N), "city": rng.choice(["a", "b", "c"], N)})
    frame["value"] = frame.x + (frame.city == "b") * 4 + rng.normal(size=N)
    frame.loc[rng.random(N) < 0.2, "x"] = np.nan
    frame.loc[rng.random(N) < 0.2, "city"] = None
    return frame


def rows_of(frame: pd.DataFrame, task: str = "binary", **more) -> Rows:
    value = torch.from_numpy(frame.value.to_numpy(copy=True))
    label = {"binary": (value > 6).double(), "multiclass": (value > 4).long() + (value > 8), "regression": value}[task]
    given = {"cats": ["city"], "conts": ["x", "z"], "label": label, "n_outputs": 3 if task == "multiclass" else 1}
    return Rows(Table.read(frame[["city", "x", "z"]]), task, **{**given, **more})


@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn_called_directly_says_the_same(weighted):
    frame, test = frame_of(), frame_of(1)
    weight = np.random.default_rng(2).uniform(0.5, 2, N) if weighted else None
    rows = rows_of(frame, "regression", weight=None if weight is None else torch.from_numpy(weight))
    onehot = OneHotEncoder(categories=[["a", "b", "c"]], handle_unknown="ignore")
    main = make_column_transformer((onehot, ["city"]), (StandardScaler(), ["x", "z"]))
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
    assert model._inputs.owners == ["id"] * 65 + ["x"]
    ends = Rows(Table({"id": [0, 0], "x": [float("inf"), 399.0]}), "regression", cats=["id"], conts=["x"])
    got = model.predict(ends)
    assert got[0] == got[1]


def test_without_preparation_a_pipeline_is_given_the_plain_columns():
    rows = rows_of(frame_of())
    model = SKModel("p", make_pipeline(SimpleImputer(), LogisticRegression()), prepare=False).fit(rows)
    plain = np.column_stack([frame_of().city.map({"a": 1, "b": 2, "c": 3}), frame_of().x, frame_of().z])
    direct = make_pipeline(SimpleImputer(), LogisticRegression()).fit(plain.astype(np.float32), rows.label.numpy())
    expected = direct.predict_proba(plain.astype(np.float32))[:, 1]
    np.testing.assert_allclose(model.predict(rows).numpy(), expected, rtol=0, atol=1e-6)


def test_weights_reach_the_last_step_of_a_pipeline():
    rows = rows_of(frame_of())
    heavy = rows_of(frame_of(), weight=torch.where(rows.label == 1, 50.0, 1.0))
    model = SKModel("p", make_pipeline(StandardScaler(), LogisticRegression()))
    plain, weighted = (model.fresh().fit(r).predict(rows).mean() for r in (rows, heavy))
    assert weighted > plain + 0.1
    knn = SKModel("knn", KNeighborsClassifier())
    with pytest.warns(DataWarning, match="knn: KNeighborsClassifier takes no weights"):
        knn.fit(heavy)


def test_what_cannot_do_a_task_is_refused():
    rows = rows_of(frame_of())
    with pytest.raises(DataError, match=r"cannot learn a binary task.*regression"):
        SKModel("r", Ridge()).fit(rows)
    with pytest.raises(DataError, match="cannot learn a regression task"):
        SKModel("l", LogisticRegression()).fit(rows_of(frame_of(), "regression"))
    with pytest.raises(DataError, match=r"svc .SVC. says no probabilities.*Calibrated"):
        SKModel("svc", SVC()).fit(rows)
    for odd in (Ridge, 5, "Ridge"):
        with pytest.raises(DataError, match="no estimator"):
            SKModel("odd", odd)


def test_the_estimator_that_was_given_stays_untrained_and_keeps_its_own_seed():
    own = RandomForestClassifier(5, random_state=9)
    rows = rows_of(frame_of())
    a, b = (SKModel("f", own).fit(rows, seed=s).predict(rows) for s in (1, 2))
    assert torch.equal(a, b)
    assert not hasattr(own, "estimators_")
    free = RandomForestClassifier(5)
    a, b, c = (SKModel("f", free).fit(rows, seed=s).predict(rows) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    model = SKModel("f", free).fit(rows)
    assert set(model.trace.importance) == {"city", "x", "z"}
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
def test_an_estimator_is_described_and_made_again(estimator):
    made = made_of(json.loads(json.dumps(described(estimator))))
    assert repr(made).replace("np.float64(2.0)", "2.0") == repr(estimator).replace("np.float64(2.0)", "2.0")


@pytest.mark.parametrize("path", ["os:system", "antigravity:Ridge", "sklearn.os:system", "builtins:dict", "sklearn:os"])
def test_nothing_is_made_that_is_no_estimator(path, tmp_path):
    import sys

    with pytest.raises((DataError, ImportError)):
        made_of({"$estimator": path, "params": {}})
    assert "antigravity" not in sys.modules
    SKModel("r", Ridge()).fit(rows_of(frame_of(), "regression")).save(tmp_path / "m")
    about = json.loads((tmp_path / "m" / "estimator.json").read_text())
    about["settings"]["estimator"]["$estimator"] = path
    (tmp_path / "m" / "estimator.json").write_text(json.dumps(about))
    with pytest.raises(UnreadableFileError):
        Estimator.load(tmp_path / "m")


class Mine(Ridge):
    """An estimator of one's own."""


def test_ones_own_estimator_is_loaded_where_it_is_known(tmp_path):
    rows = rows_of(frame_of(), "regression")
    model = SKModel("mine", Mine(alpha=3)).fit(rows)
    assert described(Mine())["$estimator"] == f"{__name__}:Mine"
    model.save(tmp_path / "m")
    import sys

    if __name__ in sys.modules:
        assert torch.equal(Estimator.load(tmp_path / "m").predict(rows), model.predict(rows))
    with pytest.raises(DataError, match="not known here"):
        made_of({"$estimator": "nowhere.at_all:Mine", "params": {}})


def test_a_parameter_that_no_file_holds_is_named(tmp_path):
    odd = make_pipeline(SimpleImputer(missing_values=pd.NA), Ridge())
    with pytest.raises(DataError, match="a parameter is a NAType"):
        described(odd)


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


def test_kinds_and_settings_that_are_none_are_refused():
    with pytest.raises(DataError, match=r"no kind 'lasso'.*linear, knn"):
        CuMLModel("lasso")
    with pytest.raises(DataError, match=r"knn has no setting 'C'.*neighbors"):
        CuMLModel("knn", C=1)
