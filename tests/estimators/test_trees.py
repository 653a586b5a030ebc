"""XGBModel, LGBMModel and CatBoostModel against their libraries called directly."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, ndcg_score
from sklearn.utils.class_weight import compute_sample_weight

from fastrec._core.device import on_host, resolve_device
from fastrec.errors import DataError, MissingPackageError, WriteError
from fastrec.estimators import (
    CatBoostModel,
    CentredModel,
    ConstantModel,
    Estimator,
    LGBMModel,
    NetModel,
    OffsetModel,
    SKModel,
    XGBModel,
    XGBRanker,
    _tree_model,
)
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.base import held_out, output_weight, some_held_out
from fastrec.table import Table
from fastrec.validate import Lists, Rows
from tests.estimators import made
from tests.estimators.made import start_rows

N = 400
NEEDS = {LGBMModel: "lightgbm", CatBoostModel: "catboost"}
# The kinds whose library is installed.
KINDS = [k for k in (XGBModel, LGBMModel, CatBoostModel) if k not in NEEDS or find_spec(NEEDS[k])]


frame_of = partial(made.frame_of, n=N)


def rows_of(frame: pd.DataFrame, task: str, **more) -> Rows:
    weight = torch.from_numpy(frame.weight.to_numpy(copy=True))
    weight = weight[torch.arange(N) // 8 * 8] if task == "ranking" else weight
    return made.rows_of(frame, task, size=8, **{"cats": ["city"], "weight": weight, **more})


def matrix(frame: pd.DataFrame) -> np.ndarray:
    codes = frame.city.map({c: i for i, c in enumerate(made.CITIES, 1)})
    return np.stack([codes, frame.x, frame["z[m]"]], 1).astype(np.float32)


XGB = {"eta": 0.3, "max_depth": 3, "tree_method": "hist", "max_bin": 256, "nthread": 1, "seed": 5}
XGB |= {"subsample": 0.8, "colsample_bytree": 0.8}
XGB_TASKS = {
    "binary": {"objective": "binary:logistic"},
    "multiclass": {"objective": "multi:softprob", "num_class": 3},
    "regression": {"objective": "reg:squarederror"},
    "ranking": {"objective": "rank:ndcg", "ndcg_exp_gain": False},
}


@pytest.mark.parametrize("task", XGB_TASKS)
def test_xgboost_called_directly_says_the_same(task):
    frame, test = frame_of(), frame_of(1)
    rows = rows_of(frame, task)
    weight = rows.weight[::8] if task == "ranking" else rows.weight
    ranks = {"qid": rows.groups.numpy()} if task == "ranking" else {}
    data = xgb.QuantileDMatrix(matrix(frame), rows.label.numpy(), weight=weight.numpy(), max_bin=256, **ranks)
    expected = xgb.train({**XGB, **XGB_TASKS[task]}, data, 6).predict(xgb.DMatrix(matrix(test)))
    model = XGBModel("t", rounds=6, early_stopping_rounds=None, learning_rate=0.3, max_depth=3, nthread=1)
    got = model.fit(rows, seed=5).predict(rows_of(test, task)).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("objective", ["rank:ndcg", "rank:pairwise", "rank:map", "binary:logistic"])
def test_a_ranker_says_the_same_with_its_own_defaults(objective):
    frame, test = frame_of(), frame_of(1)
    rows, params = rows_of(frame, "ranking"), {**XGB, "max_bin": 64, "colsample_bytree": 0.5, "objective": objective}
    given = {"weight": rows.weight.numpy()}
    if objective.startswith("rank:"):
        given = {"weight": rows.weight[::8].numpy(), "qid": rows.groups.numpy()}
        pairs = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 8}
        params |= {"ndcg_exp_gain": False, **pairs}
    data = xgb.QuantileDMatrix(matrix(frame), rows.label.numpy(), max_bin=64, **given)
    expected = xgb.train(params, data, 4).predict(xgb.DMatrix(matrix(test)), output_margin=True)
    model = XGBRanker("t", objective=objective, rounds=4, eta=0.3, max_depth=3, nthread=1).fit(rows, seed=5)
    np.testing.assert_allclose(model.predict(rows_of(test, "ranking", label=None)), expected, rtol=0, atol=1e-6)


def test_a_rankers_trees_start_from_the_margin_column():
    rows, start = rows_of(frame_of(), "ranking", weight=None), torch.randn(N).double()
    rows = rows.with_table(rows.table.with_columns({"start": start}))
    model = XGBRanker("m", rounds=5, margin="start", max_depth=2, nthread=1).fit(rows, seed=3)
    plain = {**model.params_in_full(3), "device": "cpu"}
    data = xgb.DMatrix(matrix(frame_of()), rows.label.numpy(), qid=rows.groups.numpy(), base_margin=start.numpy())
    assert model.predict(rows).numpy() == pytest.approx(xgb.train(plain, data, 5).predict(data), abs=1e-4)


FEW = {"rounds": 4, "early_stopping_rounds": None, "eta": 0.3, "max_depth": 3, "nthread": 1, "colsample_bytree": 1.0}


def test_text_is_read_by_the_training_vocabulary_however_a_table_orders_it():
    test = frame_of(1)
    model = XGBModel("t", **FEW).fit(rows_of(frame_of(), "binary"), seed=5)
    expected = model.predict(rows_of(test, "binary"))
    # A table of the same rows whose dictionary starts with other values, one of them unseen.
    longer = made.rows_of(pd.concat([test[:3].assign(city=["white", "rome", "oslo"]), test]), "binary", cats=["city"])
    assert torch.equal(model.predict(longer)[3:], expected)
    categorical = test.assign(city=pd.Categorical(test.city, categories=["white", *made.CITIES]))
    assert torch.equal(model.predict(rows_of(categorical, "binary")), expected)
    unseen, gone = (model.predict(rows_of(test.assign(city=city), "binary")) for city in ("white", None))
    assert torch.equal(unseen, gone)
    # columns that are not learned from may be absent
    some = XGBModel("t", columns=["z[m]", "city"], **FEW).fit(rows_of(frame_of(), "binary"))
    assert set(some.trace.importance) == {"z[m]", "city"}
    rows = rows_of(test, "binary")
    assert torch.equal(some.predict(rows.with_table(rows.table.drop(["x"]))), some.predict(rows))


def test_number_categories_beyond_float32_are_told_apart():
    ids = torch.tensor([1 << 40, (1 << 40) + 1] * 100)
    data = Lists(Table({"id": ids}), torch.arange(200) // 2, cats=["id"], label=(ids % 2).double())
    got = XGBRanker("trees", rounds=5, colsample_bytree=1.0).fit(data).predict(data)
    assert (got[1::2] > got[::2]).all()


def test_infinite_and_huge_numbers_are_taken():
    z = frame_of()["z[m]"]
    huge, large = (frame_of().assign(**{"z[m]": z.mask(z > 1, v).mask(z < -1, -v)}) for v in (np.inf, 1e300))
    a, b = (XGBModel("t", **FEW).fit(rows_of(f, "binary"), seed=5).predict(rows_of(f, "binary")) for f in (huge, large))
    assert a.isfinite().all()
    assert torch.equal(a, b)


@settings(max_examples=25)
@given(names=st.lists(st.text("[]<%5BDC 3a", min_size=1, max_size=4), min_size=3, max_size=3, unique=True))
def test_columns_may_have_any_names(names, tmp_path_factory):
    """Names change nothing but the names: the same trees, importance by the columns' own."""
    plain = rows_of(frame_of(), "binary")
    renamed = dict(zip(["city", "x", "z[m]"], names, strict=True))
    data = replace(plain, table=plain.table.rename(renamed), cats=[names[0]], conts=names[1:])
    expected, got = (XGBModel("t", **FEW).fit(r, seed=5) for r in (plain, data))
    assert torch.equal(got.predict(data), expected.predict(plain))
    assert got.trace.importance == {renamed[n]: v for n, v in expected.trace.importance.items()}
    folder = tmp_path_factory.mktemp("names")
    got.save(folder / "m")
    assert torch.equal(Estimator.load(folder / "m").predict(data), expected.predict(plain))


LGB = {"learning_rate": 0.3, "num_leaves": 7, "num_threads": 1, "seed": 5, "verbosity": -1, "deterministic": True}
LGB |= {"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8, "force_row_wise": True}
LGB_TASKS = {
    "binary": {"objective": "binary"},
    "multiclass": {"objective": "multiclass", "num_class": 3},
    "regression": {"objective": "regression"},
    "ranking": {"objective": "lambdarank", "label_gain": [0, 1]},
}


@pytest.mark.parametrize("task", LGB_TASKS)
def test_lightgbm_called_directly_says_the_same(task):
    lgb = pytest.importorskip("lightgbm")
    frame, test = frame_of(), frame_of(1)
    rows = rows_of(frame, task)
    ranks = {"group": np.full(N // 8, 8)} if task == "ranking" else {}
    data = lgb.Dataset(
        matrix(frame), rows.label.numpy(), weight=rows.weight.numpy(), categorical_feature=[0], params=LGB, **ranks
    )
    expected = lgb.train({**LGB, **LGB_TASKS[task]}, data, 6).predict(matrix(test))
    model = LGBMModel("t", rounds=6, early_stopping_rounds=None, eta=0.3, num_leaves=7, n_jobs=1)
    got = model.fit(rows, seed=5).predict(rows_of(test, task)).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


CAT = {"learning_rate": 0.3, "depth": 3, "thread_count": 1, "random_seed": 5}
CAT |= {"allow_writing_files": False, "logging_level": "Silent"}
CAT_TASKS = {"binary": "Logloss", "multiclass": "MultiClass", "regression": "RMSE", "ranking": "YetiRank"}


@pytest.mark.parametrize("task", CAT_TASKS)
def test_catboost_called_directly_says_the_same(task):
    catboost = pytest.importorskip("catboost")
    frame, test = frame_of(), frame_of(1)
    rows = rows_of(frame, task)

    def pool(part: pd.DataFrame, **more):
        columns = pd.DataFrame(matrix(part)).fillna({0: 0}).astype({0: int})
        return catboost.Pool(columns, cat_features=[0], **more)

    more = {"weight": rows.weight.numpy()}
    if task == "ranking":
        more = {"group_id": rows.groups.numpy(), "group_weight": rows.weight.numpy()}
    data = pool(frame, label=rows.label.numpy(), **more)
    direct = catboost.CatBoost({**CAT, "loss_function": CAT_TASKS[task], "iterations": 6}).fit(data)
    kind = "Probability" if task in ("binary", "multiclass") else "RawFormulaVal"
    expected = direct.predict(pool(test), prediction_type=kind)
    expected = expected[:, 1] if task == "binary" else expected
    model = CatBoostModel("t", rounds=6, early_stopping_rounds=None, eta=0.3, max_depth=3, thread_count=1)
    got = model.fit(rows, seed=5).predict(rows_of(test, task)).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_catboost_takes_numbers_as_the_categories_that_they_are_said_to_be(tmp_path):
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"month": rng.integers(1, 13, N), "day": rng.integers(1, 8, N), "x": rng.normal(size=N)})
    value = rng.normal(size=(13, 8))[frame.month, frame.day] + 0.1 * frame.x
    label = torch.from_numpy((value > 0).to_numpy(dtype=float))
    rows = Rows(Table.read(frame), "binary", conts=list(frame), label=label)
    options = {"rounds": 20, "early_stopping_rounds": None, "eta": 0.3, "max_depth": 3, "thread_count": 1}
    columns = frame.assign(x=frame.x.astype(np.float32))
    data = catboost.Pool(columns, label.numpy(), cat_features=["month", "day"])
    direct = catboost.CatBoost({**CAT, "loss_function": "Logloss", "iterations": 20}).fit(data)
    expected = direct.predict(columns, prediction_type="Probability")[:, 1]
    model = CatBoostModel("t", keys=["month", "day"], **options).fit(rows, seed=5)
    np.testing.assert_allclose(model.predict(rows).numpy(), expected, rtol=0, atol=1e-6)
    assert (CatBoostModel("t", **options).fit(rows, seed=5).predict(rows) - model.predict(rows)).abs().max() > 0.01
    model.save(tmp_path / "t")
    again = CatBoostModel.load(tmp_path / "t")
    assert again.keys == ["month", "day"]
    assert torch.equal(again.predict(rows), model.predict(rows))
    for keys, said in ((["week"], "no column that trees learn from"), ("month", "one text")):
        with pytest.raises(DataError, match=said):
            CatBoostModel("t", keys=keys, **options).fit(rows)


# ------------------------------------------------------------------------------------------------------- early stopping


def size_of(model: Estimator) -> int:
    (trees,) = model._parts
    if isinstance(model, CatBoostModel):
        return trees.tree_count_
    return trees.num_boosted_rounds() if isinstance(model, XGBModel) else trees.current_iteration()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_few_rows_are_all_learned_from_once_it_is_known_when_to_stop(kind, task, monkeypatch):
    """As many trees as are best on the mean of four draws' curves, each made here by itself, and a seventh more."""
    rows, how = rows_of(frame_of(), task), {"rounds": 300, "early_stopping_rounds": 5, "eta": 0.3}
    made = kind("t", **how).fit(rows, seed=1)
    first = kind("t", **how)
    curves = []
    for seed in range(4):
        held = held_out(rows, seed=seed)
        monkeypatch.setattr(_tree_model, "rows_to_stop_by", lambda rows, seed=0, held=held: held)
        monkeypatch.setattr(_tree_model.TreeModel, "regrows", False)
        curves.append([r["held_out"] for r in first.fit(rows, seed=1).trace.curves])
    most = max(map(len, curves))
    mean = np.mean([c + [c[-1]] * (most - len(c)) for c in curves], axis=0)
    np.testing.assert_allclose([r["held_out"] for r in made.trace.curves], mean, rtol=1e-6)
    wanted = math.ceil((mean.argmin() + 1) * 8 / 7)
    assert size_of(made) == wanted
    # CatBoost has other defaults for a few rounds than for many
    again = kind("t", rounds=300 if kind is CatBoostModel else wanted, early_stopping_rounds=None, eta=0.3)
    again.fit(rows, seed=1)
    if kind is CatBoostModel:
        again._parts[0].shrink(wanted)
    torch.testing.assert_close(again.predict(rows), made.predict(rows), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_without_a_target_s_only_1_tells_nothing(kind):
    rows = rows_of(frame_of(), "binary")
    only = (~held_out(rows) & held_out(rows, seed=1)).nonzero()[0]
    label = torch.stack([rows.label, torch.zeros(N, dtype=torch.float64).index_fill(0, only, 1.0)], 1)
    several = Rows(rows.table, "multilabel", cats=["city"], conts=["x", "z[m]"], label=label, n_outputs=2)
    assert kind("t", rounds=30, early_stopping_rounds=5).fit(several, seed=1).predict(several).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_trees_that_stopped_by_a_measure_of_ones_own_stay(kind, monkeypatch):
    rows, how = rows_of(frame_of(), "binary"), {"rounds": 60, "early_stopping_rounds": 5, "eta": 0.3}
    how |= {XGBModel: {"eval_metric": "auc"}, LGBMModel: {"metric": "auc"}}.get(kind, {"eval_metric": "AUC"})
    own = kind("t", **how).fit(rows, seed=1).predict(rows)
    monkeypatch.setattr(_tree_model.TreeModel, "regrows", False)
    assert torch.equal(kind("t", **how).fit(rows, seed=1).predict(rows), own)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["binary", "ranking"])
def test_the_trees_up_to_the_best_on_the_rows_held_out_are_kept(kind, task, monkeypatch):
    """The curve's best tree is the last one kept, five more were tried, and rows held out are not learned from."""
    monkeypatch.setattr(_tree_model.TreeModel, "regrows", False)
    rows = rows_of(frame_of(), task)
    model = kind("t", rounds=300, early_stopping_rounds=5, eta=0.5).fit(rows, seed=1)
    curve = [record["held_out"] for record in model.trace.curves]
    best = int(np.argmin(curve) if task == "binary" else np.argmax(curve))
    assert best + 6 == len(curve) < 300
    assert size_of(model) == best + 1
    held = some_held_out(rows, name="t")
    if task == "binary":
        other = model.fresh()
        # CatBoost has other defaults for a few rounds than for many: its trees are cut off afterwards
        other.early_stopping_rounds, other.rounds = None, 300 if kind is CatBoostModel else best + 1
        other.fit(rows.take(~held), seed=1)
        if kind is CatBoostModel:
            other._parts[0].shrink(best + 1)
        torch.testing.assert_close(other.predict(rows), model.predict(rows), rtol=0, atol=1e-6)
        label, said, weight = (t.numpy() for t in (rows.label[held], model.predict(rows.take(held)), rows.weight[held]))
        loss = log_loss(label, said, sample_weight=weight)
        assert curve[best] == pytest.approx(loss, rel=1e-4)  # the task's loss, on these rows, with weights


def test_lightgbm_stops_by_the_order_of_whole_lists():
    """Its curve is scikit-learn's NDCG of all places, not of the first one; another name of eval_at is heard."""
    pytest.importorskip("lightgbm")
    rows = rows_of(frame_of(), "ranking", weight=None)
    held = rows.take(some_held_out(rows, name="t"))
    for at, asked in ((None, {}), (1, {"ndcg_eval_at": 1})):
        model = LGBMModel("t", rounds=300, early_stopping_rounds=5, eta=0.5, **asked).fit(rows, seed=4)
        lists = [t.numpy().reshape(-1, 8) for t in (held.label, model.predict(held))]
        some = lists[0].max(1) > 0
        expected = np.where(some, 1.0, 0.0)  # LightGBM counts lists without a positive as 1
        expected[some] = [ndcg_score(y[None], s[None], k=at) for y, s in zip(*(t[some] for t in lists))]
        expected[~some] = 1.0
        assert max(r["held_out"] for r in model.trace.curves) == pytest.approx(expected.mean(), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_of_too_few_rows_to_stop_by_all_trees_are_grown(kind):
    few = rows_of(frame_of(), "binary").take(torch.arange(4, 11))
    late = rows_of(frame_of(), "binary", label=(torch.arange(N) > N - 20).double(), order=torch.arange(N))
    for rows in (few, late):  # in the second class 1 would be in the rows held out alone
        said = [kind("t", rounds=5, early_stopping_rounds=stop).fit(rows).predict(rows) for stop in (None, 3)]
        assert torch.equal(*said)


def test_a_place_that_catboost_cannot_write_to_is_named(tmp_path):
    pytest.importorskip("catboost")
    model = CatBoostModel("t", rounds=2, early_stopping_rounds=None).fit(rows_of(frame_of(), "binary"))
    with pytest.raises(WriteError, match="could not be written"):
        model.write(tmp_path / "none")


# ------------------------------------------------------------------------------------------- parameters and objectives


@pytest.mark.parametrize("kind", KINDS)
def test_constraints_name_columns(kind):
    rows = rows_of(frame_of(), "regression")
    rising = torch.linspace(-3, 3, 30).double()
    table = Table({"x": rising, "z[m]": torch.zeros(30).double(), "city": ["oslo"] * 30})
    line = Rows(table, "regression", cats=["city"], conts=["x", "z[m]"])
    options = {"rounds": 30, "early_stopping_rounds": None, "eta": 0.3}
    free = kind("t", **options).fit(rows).predict(line)
    bound = kind("t", **options, monotone_constraints={"x": -1, "z[m]": 1}).fit(rows).predict(line)
    assert (bound.diff() <= 1e-9).all()
    assert not (free.diff() <= 1e-9).all()


COUNTS = {XGBModel: "count:poisson", LGBMModel: "poisson", CatBoostModel: "Poisson"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_objective_of_another_task_is_refused(kind):
    for objective, task in ((COUNTS[kind], "binary"), ("nonsense", "regression")):
        with pytest.raises(DataError, match=f"cannot learn a {task} task by the objective '{objective}'"):
            kind("t", objective=objective).fit(rows_of(frame_of(), task))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (XGBModel, "n_estimators"),
        (XGBModel, "device"),
        (LGBMModel, "num_iterations"),
        (LGBMModel, "random_state"),
        (CatBoostModel, "iterations"),
        (CatBoostModel, "loss_function"),
        *((XGBRanker, n) for n in ("num_boost_round", "n_estimators", "seed", "random_state", "device")),
    ],
)
def test_parameters_that_have_an_argument_here_are_refused(kind, given):
    with pytest.raises(DataError, match=f"{given}.*Give it as"):
        kind("t", **{given: 1})


@pytest.mark.parametrize("kind", KINDS)
def test_importance_is_by_gain_and_curves_tell_outputs_apart(kind):
    rows = rows_of(frame_of(), "regression")
    two = replace(rows, label=torch.stack([rows.label, -rows.label], 1), n_outputs=2)
    model = kind("t", rounds=20, early_stopping_rounds=3, eta=0.3).fit(two)
    assert list(model.trace.importance) == ["city", "x", "z[m]"]
    others = ["city", "x"] if kind is not XGBModel or on_host(resolve_device()) else ["x"]  # a GPU samples others
    assert model.trace.importance["z[m]"] < min(model.trace.importance[n] for n in others)
    assert {record["output"] for record in model.trace.curves} == {0, 1}


def test_whole_relevances_are_asked_for_where_lightgbm_needs_them():
    pytest.importorskip("lightgbm")
    rows = rows_of(frame_of(), "ranking")
    with pytest.raises(DataError, match="whole relevances") as caught:
        LGBMModel("t").fit(replace(rows, label=rows.label / 2))
    assert caught.value.row == int((rows.label > 0).nonzero()[0])


@pytest.mark.parametrize(("kind", "module"), NEEDS.items())
def test_a_library_that_is_not_installed_is_named(kind, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=r"pip install fastrec-tabular\[trees\]"):
        kind("t").fit(rows_of(frame_of(), "binary"))


# -------------------------------------------------------------------------------------------------------- class weights


def test_class_weights_are_scikit_learns():
    label = np.random.default_rng(0).choice(3, 50, p=[0.7, 0.2, 0.1])
    rows = rows_of(frame_of(), "multiclass").take(torch.arange(50))
    rows = replace(rows, label=torch.from_numpy(label), weight=None)
    for weights in ("balanced", {0: 0.5, 1: 1.0, 2: 4.0}):
        expected = compute_sample_weight(weights, label)
        np.testing.assert_allclose(output_weight(rows, rows.label, weights), expected)
        weighted = replace(rows, weight=torch.full((50,), 3.0))
        np.testing.assert_allclose(output_weight(weighted, rows.label, weights), 3 * expected)
    assert output_weight(rows, rows.label, None) is None


@pytest.mark.parametrize("given", ["even", {"a": 1}, {0: -1}, {0: "x"}, {-1: 2}, 5])
def test_class_weights_that_are_none_are_refused(given):
    with pytest.raises(DataError, match="class_weight"):
        XGBModel("t", class_weight=given)
    with pytest.raises(DataError, match=r"weight for class 3.*0 to 2"):
        XGBModel("t", class_weight={3: 1.0}).fit(rows_of(frame_of(), "multiclass"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_of_amounts_chooses_the_objective(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = np.exp(x) * rng.gamma(2, 0.5, 400)
    rows = Rows(Table({"x": x}), "regression", conts=["x"], label=torch.from_numpy(y))
    shares = {}
    for q in ("0.1", "0.9"):
        made = kind(rounds=40, early_stopping_rounds=None)
        made.suit(f"pinball@{q}")
        shares[q] = float((rows.label <= made.fit(rows).predict(rows)).double().mean())
        assert kind(**made.settings()).settings() == made.settings()
    assert shares == {"0.1": pytest.approx(0.1, abs=0.06), "0.9": pytest.approx(0.9, abs=0.06)}
    for metric in ("poisson_deviance", "gamma_deviance"):
        made = kind(rounds=10, early_stopping_rounds=None)
        made.suit(metric)
        assert bool((made.fit(rows).predict(rows) > 0).all())
    asked = kind(objective=kind.objectives["regression"][0])
    asked.suit("mae")
    assert asked.objective == kind.objectives["regression"][0]
    plain = kind()
    plain.suit("rmse")
    assert plain.objective is None


# Settings of the wrong kind: an error that names the model and the argument.


@pytest.mark.parametrize("value", ["5", 2.5, 0, -1, True])
@pytest.mark.parametrize("argument", ["rounds", "early_stopping_rounds"])
@pytest.mark.parametrize("cls", [LGBMModel, XGBModel, CatBoostModel])
def test_settings_of_trees_of_the_wrong_kind_are_named(cls, argument, value):
    with pytest.raises(DataError, match=rf"mine: {argument} is .*whole number"):
        cls("mine", **{argument: value})
    assert cls("mine", **{argument: np.int64(3)}).settings()[argument] == 3


@pytest.mark.parametrize("argument", ["epochs", "bs", "max_rows", "patience", "seeds"])
def test_settings_of_nets_of_the_wrong_kind_are_named(argument):
    with pytest.raises(DataError, match=rf"mine: {argument} is '3'"):
        NetModel("mine", **{argument: "3"})


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(LGBMModel, {"learning_rate": "fast"}), (XGBModel, {"max_depth": "deep"}), (CatBoostModel, {"depth": "deep"})],
)
def test_what_a_library_refuses(kind, wrong):
    if kind not in KINDS:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    with pytest.raises(DataError, match=rf"mine: {NEEDS.get(kind, 'xgboost')} refuses to learn .*Check the parameters"):
        kind("mine", rounds=2, early_stopping_rounds=None, **wrong).fit(rows_of(frame_of(), "binary"), None, seed=0)


# Trees that are grown on others: as each library does it by itself, and only where the columns are the same.

SMALL = {"rounds": 8, "early_stopping_rounds": None}


def grown_on(first, data, **options):
    made = type(first)(**{**SMALL, **options})
    assert made.start_from(first)
    return made.fresh().fit(data, seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_trees_stop_by_what_all_of_them_say_of_the_held_out_rows(kind, task, monkeypatch):
    """The curve that training stops by is of old and new trees together, and the saved model says the same."""
    monkeypatch.setattr(_tree_model.TreeModel, "regrows", False)
    given = {"cats": ()} if kind is CatBoostModel else {}
    first = kind(**SMALL).fit(start_rows(task=task, **given))
    more = start_rows(seed=1, task=task, **given)
    made = grown_on(first, more, rounds=60, early_stopping_rounds=3)
    assert made.trace.began == "grown on the trees that were there"
    part = more.take(held_out(more))
    loss = log_loss(part.label.numpy(), made.predict(part).numpy(), labels=range(2 if task == "binary" else 3))
    assert loss == pytest.approx(min(record["held_out"] for record in made.trace.curves), rel=1e-5)
    assert len(made.trace.curves) <= 30  # half of 60 at most


def test_xgboost_goes_on_as_it_does_by_itself():
    first = XGBModel(**SMALL).fit(start_rows())
    data = start_rows(seed=1)
    made = grown_on(first, data)
    inputs = TreeInputs.fit(start_rows())
    params = made._params(data, 1, None)
    matrix = xgb.DMatrix(inputs.matrix(data.table).numpy(), data.label.numpy(), feature_names=["city", "x", "z"])
    by_hand = xgb.train(params, matrix, 4, xgb_model=first._parts[0])
    assert np.allclose(made.predict(data).numpy(), by_hand.predict(matrix), atol=1e-6)
    assert made._parts[0].num_boosted_rounds() == 8 + 4
    asked = xgb.DMatrix(inputs.matrix(start_rows().table).numpy(), feature_names=["city", "x", "z"])
    assert np.allclose(made._parts[0][:8].predict(asked), first.predict(start_rows()), atol=1e-6)


def test_other_columns_values_or_outputs_are_grown_anew_and_it_is_said():
    first = XGBModel(**SMALL).fit(start_rows())
    anew = XGBModel(**SMALL).fit(start_rows("abc"), seed=1)
    made = grown_on(first, start_rows("abc"))
    assert made.trace.began == "grown anew: city has new values (c)"
    assert torch.equal(made.predict(start_rows("abc")), anew.predict(start_rows("abc")))
    assert grown_on(first, start_rows(more=["w"])).trace.began == "grown anew: the columns are others (w)"
    assert grown_on(first, start_rows(task="regression")).trace.began == "grown anew: the classes or targets are others"
    # a value that does not come any more is no obstacle: the others keep their codes
    fewer = grown_on(first, start_rows("b", seed=1))
    assert fewer.trace.began == "grown on the trees that were there"
    assert fewer._inputs.vocabs["city"].classes == first._inputs.vocabs["city"].classes


def test_catboost_goes_on_without_categories_alone():
    pytest.importorskip("catboost")
    made = grown_on(CatBoostModel(**SMALL).fit(start_rows()), start_rows(seed=1))
    assert made.trace.began == "grown anew: CatBoost goes on without categories only, and city is one"


def test_what_cannot_begin_with_another_says_so():
    first = XGBModel(**SMALL).fit(start_rows())
    assert not XGBModel().start_from(XGBModel())  # untrained
    for other in (XGBModel(native_cats=True), LGBMModel(), NetModel(), ConstantModel("c")):
        assert not other.start_from(first)
    offset = OffsetModel(XGBModel(**SMALL), "x").fit(start_rows(task="regression"))
    other = OffsetModel(XGBModel(**SMALL), "x")
    assert other.start_from(offset)
    assert not CentredModel(XGBModel(**SMALL), "x").start_from(offset)
    assert other.fresh().fit(start_rows(task="regression", seed=1)).trace.began == "grown on the trees that were there"
    made, names = XGBModel(**SMALL), {""}  # what is kept of a run goes by the name of the start
    for start in (first, XGBModel(**SMALL).fit(start_rows(seed=1))):
        assert made.start_from(start)
        names.add(made.began_with)
    assert len(names) == 3
    other.start_anew()
    assert other.fresh().fit(start_rows(task="regression", seed=1)).trace.began == ""


def test_a_parameter_that_the_library_does_not_know_is_refused_by_its_nearest_name():
    rows = Rows(Table.read({"x": list(range(40))}), "binary", conts=["x"], label=torch.arange(40) % 2)
    lists = Lists(rows.table, torch.arange(40) // 4, conts=["x"], label=rows.label.double())
    for model, data, odd, near in (
        (LGBMModel("m", rounds=2, num_leafs=2), rows, "num_leafs", "num_leaf"),
        (LGBMModel("m", rounds=2, early_stoping_rounds=3), rows, "early_stoping_rounds", "early_stopping_rounds"),
        (XGBModel("m", rounds=2, max_dpeth=2), rows, "max_dpeth", "max_depth"),
        (
            XGBRanker("m", rounds=2, lambdarank_pair_metod="mean"),
            lists,
            "lambdarank_pair_metod",
            "lambdarank_pair_method",
        ),
        (XGBRanker("m", rounds=2, zzz=1, verbosity=0), lists, "zzz", None),
    ):
        said = f"{odd!r} here. {'Leave it out' if near is None else f'Did you mean {near}'}"
        with pytest.raises(DataError, match=said):
            model.fit(data)
    few = {"rounds": 2, "early_stopping_rounds": None}
    for fine in (
        LGBMModel("m", **few, num_leaf=3, min_child_samples=2, reg_alpha=0.1, linear_tree=False),
        XGBModel("m", **few, learning_rate=0.1, reg_lambda=2, alpha=0.1, min_split_loss=0, eval_metric=["auc"]),
        XGBModel("m", **few, booster="dart", rate_drop=0.1, monotone_constraints={"x": 1}, n_jobs=1, base_score=0.5),
        XGBModel("m", **few, interaction_constraints=[["x"]], grow_policy="lossguide", max_leaves=3, verbosity=1),
    ):
        fine.fit(rows)


@pytest.mark.parametrize("kind", [LGBMModel, XGBModel, CatBoostModel, SKModel])
def test_no_column_and_a_column_named_twice_are_refused(kind):
    rows = Rows(Table.read({"x": [0, 1, 2, 3]}), "binary", label=torch.tensor([0, 1, 0, 1]))
    own = {"estimator": LogisticRegression()} if kind is SKModel else {"rounds": 2}
    with pytest.raises(DataError, match="there is no column to learn from"):
        kind("m", **own).fit(rows)
    with pytest.raises(DataError, match="named twice"):
        kind("m", columns=["x", "x"], **own).fit(rows)
