"""What every estimator promises, for every task that it does; a new one is one line in ``MADE``."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fastrec.errors import DataError, DataWarning, NotFittedError
from fastrec.estimators import (
    CatBoostModel,
    CentredModel,
    ConstantModel,
    CuMLModel,
    Estimator,
    LGBMModel,
    NetModel,
    NetRanker,
    OffsetModel,
    PseudoLabelled,
    SKModel,
    XGBModel,
    XGBRanker,
)
from fastrec.metrics import get_metric
from fastrec.metrics.registry import TASKS
from fastrec.table import Table
from fastrec.validate import Rows
from tests.estimators.made import N_OUT, frame_of, rows_of
from tests.fresh import run

TREES = {"rounds": 40, "early_stopping_rounds": 5}
FILLED = SimpleImputer(keep_empty_features=True)
# Name of a case → how it is made, with settings as small as will learn something. What a case needs that may not be
# installed stands in NEEDS.
MADE = {
    "xgb": lambda: XGBModel("xgb", eta=0.3, max_depth=3, **TREES),
    "xgb-native": lambda: XGBModel("x", eta=0.3, max_depth=3, rounds=10, early_stopping_rounds=None, native_cats=True),
    "xgb-ranker": lambda: XGBRanker("ranker", rounds=10),
    "lgbm": lambda: LGBMModel("lgbm", eta=0.3, num_leaves=8, **TREES),
    "lgbm-codes": lambda: LGBMModel("l", eta=0.3, rounds=10, early_stopping_rounds=None, native_cats=False),
    "catboost": lambda: CatBoostModel("cat", eta=0.3, depth=3, **TREES),
    "sk-forest": lambda: SKModel("forest", RandomForestClassifier(10, min_samples_leaf=5), cats="code"),
    "sk-pipe": lambda: SKModel("pipe", make_pipeline(FILLED, StandardScaler(), GaussianNB()), prepare=False),
    "sk-amounts": lambda: SKModel("trees", HistGradientBoostingRegressor(max_iter=20), cats="code"),
    "cuml-linear": lambda: CuMLModel("linear"),
    "cuml-knn": lambda: CuMLModel("knn", neighbors=20),
    "cuml-forest": lambda: CuMLModel("random_forest", trees=10, depth=6),
    "cuml-svm": lambda: CuMLModel("svm"),
    "constant": lambda: ConstantModel(),
    "pseudo": lambda: PseudoLabelled(XGBModel("p", eta=0.3, max_depth=3, rounds=10, early_stopping_rounds=None)),
    "offset": lambda: OffsetModel(XGBModel("o", eta=0.3, max_depth=3, **TREES), "x"),
    "centred": lambda: CentredModel(XGBModel("o", eta=0.3, max_depth=3, **TREES), "z[m]", share=0.5),
    "net-ranker": lambda: NetRanker("net", layers=[32], epochs=8, bs=80, lr=3e-2, ps=0.0),
    "net": lambda: NetModel("net", model="TabularNet", epochs=10, bs=64, lr=5e-2, options={"layers": [32]}),
}
NO_WEIGHTS = {"cuml-knn"}  # it says so, in a warning
NEEDS = {"lgbm": "lightgbm", "lgbm-codes": "lightgbm", "catboost": "catboost"}
CASES = []
for _name, _make in MADE.items():
    _missing = _name in NEEDS and importlib.util.find_spec(NEEDS[_name]) is None
    _marks = [pytest.mark.skip(f"{NEEDS[_name]} is not installed")] if _missing else []
    CASES += [pytest.param(_name, t, id=f"{_name}-{t}", marks=_marks) for t in TASKS if t in _make().tasks]
LEARN = [c for c in CASES if MADE[c.values[0]]().learns]


@cache
def train_of(task: str) -> Rows:
    return rows_of(frame_of(0), task)


@cache
def test_of(task: str) -> Rows:
    frame = frame_of(1, 200)
    frame.loc[:5, "city"] = "unseen"
    frame.loc[4:9, ["x", "z[m]"]] = np.nan
    frame.loc[4:9, "city"] = None
    return rows_of(frame, task)


test_of.__test__ = False


@cache
def fitted(name: str, task: str) -> Estimator:
    return MADE[name]().fit(train_of(task), seed=3)


@cache
def predicted(name: str, task: str) -> torch.Tensor:
    return fitted(name, task).predict(test_of(task))


def loss(rows: Rows, said: torch.Tensor) -> float:
    """The task's own loss, by the plainest formula; of a ranking the share of pairs in the wrong order."""
    label = rows.label.double()
    if rows.task == "ranking":
        score, label = said.reshape(-1, 4), label.reshape(-1, 4)
        wrong = (score[:, :, None] < score[:, None]).double() + (score[:, :, None] == score[:, None]).double() / 2
        pairs = label[:, :, None] > label[:, None]
        return float(wrong[pairs].mean())
    if rows.task == "regression":
        return float((said - label).square().mean())
    if rows.task == "multiclass":
        return float(-said.clamp_min(1e-9).gather(1, rows.label.long()[:, None]).log().mean())
    return float(-torch.where(label == 1, said, 1 - said).clamp_min(1e-9).log().mean())


# -------------------------------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize(("name", "task"), CASES)
def test_predictions_have_the_shape_and_range_of_the_task(name, task):
    got, rows = predicted(name, task), test_of(task)
    assert got.shape == ((len(rows), N_OUT[task]) if task in N_OUT else (len(rows),))
    assert (got.dtype, got.device.type) == (torch.float64, "cpu")
    assert got.isfinite().all()
    if task in ("binary", "multiclass", "multilabel"):
        assert ((got >= 0) & (got <= 1)).all()
    if task == "multiclass":
        torch.testing.assert_close(got.sum(1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-12)
    none = fitted(name, task).predict(rows.take(torch.zeros(len(rows), dtype=torch.bool)))
    assert (none.shape, none.dtype) == ((0, *got.shape[1:]), torch.float64)


@pytest.mark.parametrize(("name", "task"), LEARN)
def test_a_planted_signal_is_learned(name, task):
    rows = test_of(task)
    constant = ConstantModel().fit(train_of(task)).predict(rows)
    assert loss(rows, predicted(name, task)) < 0.9 * loss(rows, constant)


@pytest.mark.parametrize(("name", "task"), CASES)
def test_rows_are_predicted_one_by_one(name, task):
    """No row's prediction depends on the others: any part, in any order of the columns, without the label."""
    rows = test_of(task)
    part = torch.arange(len(rows)) < 40
    turned = replace(rows.take(part), label=None, weight=None)
    turned = turned.with_table(turned.table.select(turned.table.names[::-1]))
    torch.testing.assert_close(fitted(name, task).predict(turned), predicted(name, task)[part], rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize(("name", "task"), CASES)
def test_rows_of_weight_zero_are_as_rows_left_out(name, task):
    rows = train_of(task)
    kept = torch.arange(len(rows)) // 4 % 3 != 0  # whole lists
    silent = replace(rows, weight=kept.double())
    left_out = rows.take(kept)
    if task != "ranking":  # nor does it matter what their label is
        counts = kept if rows.label.ndim == 1 else kept[:, None]
        silent = replace(silent, label=torch.where(counts, rows.label, rows.label.flip(0)))
    a, b = (MADE[name]().fit(r, seed=3).predict(test_of(task)) for r in (silent, left_out))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] != "ranking"])
def test_weights_move_predictions_to_the_rows_that_have_them(name, task):
    """Rows of the highest targets at a hundredth of the weight: what is predicted falls, for each of the outputs."""
    rows = train_of(task)
    value = torch.from_numpy(frame_of(0).value.to_numpy(copy=True))
    weighted = replace(rows, weight=torch.where(value > 0, 0.01, 1.0).double())
    if name in NO_WEIGHTS:
        with pytest.warns(DataWarning, match="takes no weights"):
            MADE[name]().fit(weighted, seed=3)
        return
    less = MADE[name]().fit(weighted, seed=3).predict(test_of(task))
    low, before = (p if p.ndim == 1 else p[:, 0] for p in (less, predicted(name, task)))
    fall = float((low - before).mean())
    assert (fall > 0.1) if task == "multiclass" else (fall < -0.1)  # class 0 has the low values


@pytest.mark.parametrize(("name", "task"), [c for c in LEARN if c.values[1] == "ranking"])
def test_weights_of_lists_move_scores(name, task):
    """Lists where the order is turned round teach it as far as they count."""
    rows = train_of(task)
    turned = (rows.groups % 3) != 0
    label = torch.where(turned, rows.label.reshape(-1, 4).flip(1).reshape(-1), rows.label)
    away = replace(rows, label=label, weight=torch.where(turned, 0.001, 1.0).double())
    there = replace(away, weight=torch.where(turned, 1.0, 0.001).double())
    losses = [loss(test_of(task), MADE[name]().fit(r, seed=3).predict(test_of(task))) for r in (away, there)]
    assert losses[0] < losses[1]


@pytest.mark.parametrize(("name", "task"), [c for c in LEARN if c.values[1] in ("binary", "multiclass", "multilabel")])
def test_class_weights(name, task):
    """The weight of class 1 moves predictions towards it, and balanced weights towards a class that is rare."""
    if not hasattr(MADE[name](), "class_weight") or name in NO_WEIGHTS or (name, task) == ("net", "multilabel"):
        pytest.skip("it takes none")
    model = MADE[name]()
    rows = train_of(task)
    model.class_weight = {1: 20.0}
    one = model.fit(rows, seed=3).predict(test_of(task))
    column = (lambda p: p) if task == "binary" else (lambda p: p[:, 1])
    assert column(one).mean() > column(predicted(name, task)).mean() + 0.05
    is_one = (rows.label if rows.label.ndim == 1 else rows.label[:, 1]) == 1
    rare = rows.take(~is_one | (torch.arange(len(rows)) % 4 == 0))
    plain, balanced = MADE[name](), MADE[name]()
    balanced.class_weight = "balanced"
    plain, balanced = (column(m.fit(rare, seed=3).predict(test_of(task))).mean() for m in (plain, balanced))
    assert balanced > plain + 0.02


# ------------------------------------------------------------------------------------------------- odd training rows


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] in ("binary", "multiclass")])
def test_rows_of_one_class_are_refused(name, task):
    rows = train_of(task)
    with pytest.raises(DataError, match=f"{MADE[name]().name}.*one class only"):
        MADE[name]().fit(rows.take(rows.label == 1))


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] == "multiclass"])
def test_a_class_without_training_rows_keeps_its_column(name, task):
    for absent in range(3):
        rows = train_of(task)
        got = MADE[name]().fit(rows.take(rows.label != absent), seed=3).predict(test_of(task))
        assert got.shape == (len(test_of(task)), 3)
        assert got.isfinite().all()
        assert got[:, absent].max() < 0.05
        torch.testing.assert_close(got.sum(1), torch.ones(len(got), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] in ("regression", "multilabel")])
def test_a_constant_target_is_predicted(name, task):
    if (name, task) in (("net", "multilabel"), ("offset", "regression")):
        pytest.skip("one net for all labels, and less an offset no target is constant")
    rows = train_of(task)
    label = rows.label.clone()
    label[..., 0] = 1.0
    constant = torch.full_like(label, 123456.7) if task == "regression" else label
    got = MADE[name]().fit(replace(rows, label=constant), seed=3).predict(test_of(task))
    got, expected = (got, 123456.7) if task == "regression" else (got[:, 0], 1.0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] == "regression"])
def test_several_targets(name, task):
    if name == "offset":
        pytest.skip("one offset is of one target")
    rows = train_of(task)
    label = torch.stack([rows.label, -rows.label * 10, torch.full_like(rows.label, 2.5)], 1)
    model = MADE[name]().fit(replace(rows, label=label, n_outputs=3), seed=3)
    got = model.predict(test_of(task))
    assert got.shape == (len(test_of(task)), 3)
    if name != "net":  # its targets share one net
        torch.testing.assert_close(got[:, 0], predicted(name, task), rtol=0, atol=1e-5)
    if model.learns:
        assert np.corrcoef(got[:, 1], got[:, 0])[0, 1] < -0.95
    torch.testing.assert_close(got[:, 2], torch.full_like(got[:, 2], 2.5))


@pytest.mark.parametrize(("name", "task"), CASES)
def test_columns_that_are_all_missing_or_constant_are_taken(name, task):
    frame = frame_of(2, 240).assign(**{"z[m]": np.nan, "item": 4})
    got = MADE[name]().fit(rows_of(frame, task), seed=3).predict(test_of(task))
    assert got.isfinite().all()


@pytest.mark.parametrize(("name", "task"), [c for c in CASES if c.values[1] != "ranking"])
def test_numbers_alone_and_categories_alone_are_taken(name, task):
    for columns in ({"cats": [], "conts": ["x", "z[m]"]}, {"cats": ["city", "item"], "conts": []}):
        rows = replace(train_of(task), **columns)
        got = MADE[name]().fit(rows, seed=3).predict(replace(test_of(task), **columns))
        assert got.isfinite().all()


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("name", "task"), CASES)
def test_what_teaches_nothing_is_named(name, task):
    model, rows = MADE[name](), train_of(task)
    with pytest.raises(DataError, match=f"{model.name}.*without labels"):
        model.fit(replace(rows, label=None))
    with pytest.raises(DataError, match=f"{model.name} has no"):
        model.fit(replace(rows, weight=torch.zeros(len(rows))))
    with pytest.raises(NotFittedError, match=model.name):
        model.predict(rows)


@pytest.mark.parametrize("name", dict.fromkeys(c.values[0] for c in CASES if not c.marks))
def test_tasks_that_it_cannot_do_are_refused(name):
    model = MADE[name]()
    for task in set(TASKS) - set(model.tasks):
        with pytest.raises(DataError, match=f"cannot learn a {task} task"):
            model.fit(train_of(task))


@pytest.mark.parametrize(("name", "task"), [c for c in LEARN if c.values[1] in ("ranking", "regression")])
def test_class_weights_without_classes_are_refused(name, task):
    model = MADE[name]()
    if not hasattr(model, "class_weight"):
        pytest.skip("it takes none")
    model.class_weight = "balanced"
    with pytest.raises(DataError, match="no classes"):
        model.fit(train_of(task))


# ------------------------------------------------------------------------------------------------------------- saving

CODE = """
import sys
import numpy as np
import torch
from pathlib import Path
from fastrec.estimators import Estimator
from fastrec.table import Table
from fastrec.validate import Rows

folder = Path(sys.argv[1])
torch.manual_seed(7)
state = torch.random.get_rng_state()
rows = Rows(Table.read(folder / "rows.parquet"), "regression", cats=["city", "item"], conts=["x", "z[m]"])
said = {p.name: Estimator.load(p).predict(rows).numpy() for p in sorted((folder / "saved").iterdir())}
assert torch.equal(torch.random.get_rng_state(), state)  # loading draws no random numbers that others count on
np.savez(folder / "said.npz", **said)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """What every case predicts in a process that knows nothing but the folders."""
    folder = tmp_path_factory.mktemp("estimators")
    frame = test_of("regression").table.to_pandas()
    frame.to_parquet(folder / "rows.parquet")
    for case in CASES:
        if not case.marks:
            fitted(*case.values).save(folder / "saved" / case.id)
    run(CODE, folder)
    return folder / "saved", np.load(folder / "said.npz")


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_fresh_process_predicts_the_same(elsewhere, name, task):
    np.testing.assert_allclose(elsewhere[1][f"{name}-{task}"], predicted(name, task).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_loaded_one_learns_the_same_again_and_saves_the_same(elsewhere, name, task, tmp_path):
    loaded = Estimator.load(elsewhere[0] / f"{name}-{task}")
    assert type(loaded) is type(fitted(name, task))
    loaded.save(tmp_path / "again")
    assert torch.equal(Estimator.load(tmp_path / "again").predict(test_of(task)), loaded.predict(test_of(task)))
    # neither global random state nor rows to report on change the numbers
    np.random.seed(11)  # noqa: NPY002 - libraries draw on this one
    torch.manual_seed(11)
    again = loaded.fresh().fit(train_of(task), test_of(task), seed=3).predict(test_of(task))
    torch.testing.assert_close(again, predicted(name, task), rtol=0, atol=1e-6)


def test_no_file_is_a_pickle(elsewhere):
    for path in elsewhere[0].rglob("*"):
        assert path.is_dir() or path.suffix in {".json", ".safetensors", ".ubj", ".txt", ".cbm"}
        assert path.is_dir() or path.read_bytes()[:1] != b"\x80"


@pytest.mark.parametrize("metric", ["rmse", "mae", "pinball@0.9", "mape", "rmspe", "gamma_deviance"])
def test_no_value_is_better_than_a_metrics_constant(metric):
    label = torch.from_numpy(np.random.default_rng(1).gamma(2, 1.5, 200))
    rows = Rows(Table({"x": torch.arange(200)}), "regression", label=label)
    made = ConstantModel()
    made.suit(metric)
    value = made.fit(rows).predict(rows)
    score = get_metric(metric)
    every = [score(label, torch.full((200,), float(v), dtype=torch.float64)) for v in [*label, label.mean()]]
    assert score(label, value) <= min(every) * (1 + 1e-3)
    assert ConstantModel(**made.settings()).metric == metric
