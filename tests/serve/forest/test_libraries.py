"""Margins of exported trees against the libraries' own, to the bit; of every input that float32 can hold."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import ensemble, linear_model, tree

from fastrec.errors import DataError
from fastrec.serve.forest.libraries import booster_of_margins, forest_of_lightgbm, forest_of_sklearn, forest_of_xgboost
from tests.serve.forest.conftest import above_one, classes, model_of, same

CONVERT = {"lightgbm": forest_of_lightgbm, "xgboost": forest_of_xgboost}
USUAL = {
    "lightgbm": {"num_leaves": 10, "min_data_in_leaf": 5, "num_threads": 1, "verbosity": -1, "seed": 1},
    "xgboost": {"max_depth": 4, "nthread": 1},
}
OBJECTIVES = {
    "lightgbm": {
        **dict.fromkeys(("regression", "l1", "huber", "fair", "quantile", "mape"), same),
        **dict.fromkeys(("poisson", "tweedie"), abs),
        "gamma": lambda y: abs(y) + 0.1,
        **dict.fromkeys(("binary", "cross_entropy", "cross_entropy_lambda"), above_one),
        **dict.fromkeys(("multiclass", "multiclassova", "lambdarank", "rank_xendcg"), classes),
    },
    "xgboost": {
        **dict.fromkeys(("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"), same),
        **dict.fromkeys(("reg:squaredlogerror", "reg:tweedie", "count:poisson"), abs),
        "reg:gamma": lambda y: abs(y) + 0.1,
        **dict.fromkeys(("binary:logistic", "binary:logitraw", "reg:logistic", "rank:map"), above_one),
        **dict.fromkeys(("multi:softprob", "rank:ndcg", "rank:pairwise"), classes),
    },
}
BOTH = pytest.mark.parametrize("library", list(CONVERT))


def matrix(rows, cats=(), **more) -> xgb.DMatrix:
    types = ["c" if i in cats else "q" for i in range(rows.shape[1])]
    return xgb.DMatrix(rows, feature_types=types, enable_categorical=True, nthread=1, **more)


def trained(library, rows, label, cats=(), rounds=8, **params):
    """A booster of rows, in lists of 20 if it ranks; ``cats``: the columns of categories."""
    module = pytest.importorskip(library)
    ranks = params.get("objective") in ("rank:ndcg", "rank:pairwise", "rank:map", "lambdarank", "rank_xendcg")
    groups, params = [20] * (len(rows) // 20) if ranks else None, {**USUAL[library], **params}
    if library == "xgboost":
        return xgb.train(params, matrix(rows, cats, label=label, group=groups), rounds)
    data = module.Dataset(rows, label, group=groups, categorical_feature=list(cats), params=params)
    return module.train(params, data, rounds)


def own_margins(booster, rows: np.ndarray, cats=()) -> np.ndarray:
    by_xgboost = isinstance(booster, xgb.Booster)
    made = (
        booster.predict(matrix(rows, cats), output_margin=True) if by_xgboost else booster.predict(rows, raw_score=True)
    )
    return made.reshape(len(rows), -1)


def same_margins(margins, booster, forest, cats, *parts, tolerance: float = 0.0) -> None:
    for part in parts:
        expected = own_margins(booster, part, cats)
        np.testing.assert_allclose(margins(forest, part), expected, rtol=tolerance, atol=tolerance)


AVERAGED = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
EVERY = [
    *((library, o, (), {}) for library, known in OBJECTIVES.items() for o in known),
    *(("lightgbm", o, (2,), {}) for o in ("regression", "binary", "multiclass")),
    *(("xgboost", o, (2,), {}) for o in ("reg:squarederror", "binary:logistic", "multi:softprob")),
    *(("lightgbm", o, (), AVERAGED) for o in ("regression", "binary")),
    ("lightgbm", "binary", (), {"sigmoid": 2.5}),
    ("lightgbm", "regression", (), {"reg_sqrt": True}),
]


@pytest.mark.parametrize(("library", "objective", "cats", "more"), EVERY, ids=str)
def test_every_objective(library, objective, cats, more, rows, odd_rows, amounts, margins, linked):
    several = {"num_class": 4} if objective.startswith("multi") else {}
    label, more = OBJECTIVES[library][objective](amounts), {"objective": objective, **several, **more}
    booster = trained(library, rows, label, cats, **more)
    forest = CONVERT[library](booster)
    assert (forest.columns, forest.targets) == (5, 4 if several else 1)
    assert library == "lightgbm" or bool(forest.derived) == bool(cats)
    same_margins(margins, booster, forest, cats, rows, odd_rows)
    predicted = booster.predict(rows if library == "lightgbm" else matrix(rows, cats)).reshape(400, -1)
    rtol, atol = (1e-12, 1e-300) if library == "lightgbm" else (1e-5, 1e-7)  # XGBoost's predictions have 32 bits
    np.testing.assert_allclose(linked(forest, margins(forest, rows)), predicted, rtol=rtol, atol=atol)


WAYS = {
    "lightgbm": [
        {"boosting": "dart"},
        {"min_data_in_leaf": 500, "zero_as_missing": True},
        {"extra_trees": True, "use_missing": False},
    ],
    "xgboost": [
        {"booster": "dart", "rate_drop": 0.5},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"base_score": 0.7},
        {"max_depth": 1},
        {"eta": 0},
        {"min_child_weight": 1e9},  # trees of one leaf
        {"grow_policy": "lossguide", "max_leaves": 6},
        {"max_cat_to_onehot": 100},
        {"monotone_constraints": (1, 0, 0, 0, 0)},
    ],
}


@pytest.mark.parametrize(("library", "more"), [(name, w) for name, ways in WAYS.items() for w in ways], ids=str)
def test_other_ways_to_grow(library, more, rows, odd_rows, amounts, margins):
    rows, odd_rows = rows.copy(), odd_rows.copy()
    for part in (rows, odd_rows):
        part[::3, 0], part[1::3, 3], part[2::9, 4] = 0, 0, 1e-36
    for cats in ((), (2,)):
        booster = trained(library, rows, amounts, cats, **more)
        same_margins(margins, booster, CONVERT[library](booster), cats, odd_rows)


SETS = {
    "lightgbm": {"rounds": 12, "min_data_per_group": 1, "objective": "multiclass", "num_class": 4},
    "xgboost": {"rounds": 20, "max_cat_to_onehot": 1, "booster": "dart", "rate_drop": 0.3},
}


@pytest.mark.parametrize("most", [1, 4])
@BOTH
def test_forests_of_many_sets_are_several_nodes(library, most, rows, odd_rows, amounts, margins, monkeypatch):
    label = classes(amounts) if library == "lightgbm" else amounts
    booster = trained(library, rows, label, (2,), **SETS[library])
    forest = CONVERT[library](booster)
    monkeypatch.setattr("fastrec._core.limits.FOREST_SETS", most)
    ensembles = [n for n in model_of(forest).graph.node if n.op_type == "TreeEnsemble"]
    assert 2 <= len(ensembles) <= len(forest.roots)
    tolerance = 1e-13 if library == "lightgbm" else 1e-5
    same_margins(margins, booster, forest, (2,), odd_rows, tolerance=tolerance)


def test_categories_by_the_thousand_make_no_table_of_all(margins):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3000, (9000, 1)).astype(np.float32)
    label = rng.normal(size=3000)[rows[:, 0].astype(int)] + rng.normal(size=9000)
    many = {"min_data_per_group": 1, "max_cat_threshold": 32}
    booster = trained("lightgbm", rows, label, (0,), rounds=12, **many)
    forest = forest_of_lightgbm(booster)
    assert model_of(forest).ByteSize() < 8 * 3000 * len(forest.derived) / 4
    same_margins(margins, booster, forest, (0,), np.append(np.arange(-2, 4000), np.nan).astype(np.float32)[:, None])


def test_trees_up_to_the_best_one_and_none_at_all(rows, amounts, margins):
    lgb = pytest.importorskip("lightgbm")
    data, held = lgb.Dataset(rows[:200], amounts[:200]), lgb.Dataset(rows[200:], amounts[200:])
    stop = {"valid_sets": [held], "callbacks": [lgb.early_stopping(3, verbose=False)], "keep_training_booster": True}
    params = {"learning_rate": 0.5, "verbosity": -1, "num_threads": 1, "metric": "l2"}
    booster = lgb.train(params, data, 60, **stop)
    forest = forest_of_lightgbm(booster)
    assert len(forest.roots) == booster.best_iteration < booster.current_iteration()
    same_margins(margins, booster, forest, (), rows)
    booster = trained("xgboost", rows, amounts)[:3]
    assert len(forest_of_xgboost(booster).roots) == 3
    same_margins(margins, booster, forest_of_xgboost(booster), (), rows)
    booster = trained("xgboost", rows, amounts, rounds=0, base_score=0.25)
    np.testing.assert_array_equal(margins(forest_of_xgboost(booster), rows), np.full((400, 1), 0.25))


def test_no_root_has_a_node_and_a_leaf_of_one_number(rows, amounts):
    for params in ({"max_depth": 2}, {"max_depth": 3, "gamma": 3}, {"grow_policy": "lossguide", "max_leaves": 3}):
        forest = forest_of_xgboost(trained("xgboost", rows, amounts, rounds=40, **params))
        left, right = forest.left[forest.roots], forest.right[forest.roots]
        mixed = forest.left_leaf[forest.roots] != forest.right_leaf[forest.roots]
        assert mixed.any()
        assert (left != right)[mixed].all()  # versions of onnxruntime up to 1.21 take such a root for a leaf


@pytest.mark.parametrize("objective", ["binary:logistic", "count:poisson", "rank:ndcg", "reg:squarederror"])
@pytest.mark.parametrize("more", [{}, {"booster": "dart", "rate_drop": 0.5}], ids=str)
def test_a_booster_that_predicts_its_margins(objective, more, rows, odd_rows, amounts):
    label = OBJECTIVES["xgboost"][objective](amounts)
    booster = trained("xgboost", rows, label, (2,), objective=objective, **more)
    saved = booster_of_margins(booster).save_raw("ubj")
    predicted = xgb.Booster(model_file=saved).predict(matrix(odd_rows, (2,)))[:, None]
    np.testing.assert_array_equal(predicted, own_margins(booster, odd_rows, (2,)))


@BOTH
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    columns=st.integers(1, 6),
    n_cats=st.integers(0, 2),
    missing=st.sampled_from([0, 0.2, 0.9]),
    depth=st.integers(1, 6),
    how=st.integers(0, 2),
)
def test_any_table(margins, library, seed, columns, n_cats, missing, depth, how):
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(60, columns)) * 10.0 ** rng.integers(-3, 6, columns)).astype(np.float32)
    cats = list(range(min(n_cats, columns)))
    for i in cats:
        rows[:, i] = rng.integers(0, rng.integers(2, 70), 60)
    rows[rng.random(rows.shape) < missing] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0
    grown = {"min_data_in_leaf": 1, "min_data_per_group": 1, "cat_smooth": 0, "min_data_in_bin": 1, "max_depth": depth}
    grown |= [{}, {"zero_as_missing": True}, {"use_missing": False}][how]
    if library == "xgboost":
        objective = ["reg:squarederror", "binary:logistic", "count:poisson"][how]
        grown = {"max_depth": depth, "min_child_weight": 0, "objective": objective}
    booster = trained(library, rows, rng.integers(0, 2, 60), cats, rounds=5, **grown)
    forest = CONVERT[library](booster)
    splits = forest.threshold if len(forest.threshold) else np.zeros(1)
    hits = rng.choice(splits, rows.shape).astype(np.float32)
    hits[abs(hits) < 1e-30] = 0  # LightGBM reads numbers up to 1e-35 as 0
    for probes in (rows, hits, np.nextafter(hits, np.float32(9e9)), np.nextafter(hits, np.float32(-9e9))):
        if probes is not rows:
            probes[:, cats] = rng.integers(-2, 90, (60, len(cats)))
        same_margins(margins, booster, forest, cats, probes)


SMALL = {
    "RandomForest": {"n_estimators": 9},
    "ExtraTrees": {"n_estimators": 9},
    "GradientBoosting": {"n_estimators": 9},
}
NAMES = ("DecisionTree", "ExtraTree", *SMALL, "HistGradientBoosting")
TREES = [
    getattr(tree if name in NAMES[:2] else ensemble, f"{name}{task}")(random_state=0, **SMALL.get(name, {}))
    for name in NAMES
    for task in ("Classifier", "Regressor")
]
TREES += [
    *(
        ensemble.GradientBoostingClassifier(n_estimators=5, **how)
        for how in ({"loss": "exponential"}, {"init": "zero"})
    ),
    *(ensemble.GradientBoostingRegressor(n_estimators=5, **how) for how in ({"loss": "huber"}, {"init": "zero"})),
    *(ensemble.HistGradientBoostingRegressor(max_iter=5, loss=n) for n in ("poisson", "gamma", "absolute_error")),
    ensemble.HistGradientBoostingClassifier(max_iter=40, early_stopping=True, n_iter_no_change=2),
    tree.DecisionTreeRegressor(max_depth=None, min_samples_leaf=400),
]


@pytest.mark.parametrize("model", TREES, ids=str)
def test_trees_of_scikit_learn(model, rows, amounts, margins, linked):
    rows = rows if "Hist" in str(model) else np.nan_to_num(rows)
    if not hasattr(model, "predict_proba"):
        forest = forest_of_sklearn(model.fit(rows, abs(amounts) + 0.1))
        found, expected = linked(forest, margins(forest, rows)), model.predict(rows)[:, None]
        return np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    for n_classes, every_class in ((2, False), (2, True), (3, False)):
        if n_classes > 2 and getattr(model, "loss", None) == "exponential":
            continue
        model.fit(rows, np.clip(amounts.round(), 0, n_classes - 1))
        forest = forest_of_sklearn(model, every_class=every_class)
        expected = model.predict_proba(rows)[:, 0 if every_class or n_classes > 2 else 1 :]
        found = linked(forest, margins(forest, rows))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_histograms_take_rows_as_wide_as_they_were_trained_on(margins):
    rows = 1 + np.arange(200.0)[:, None] * 1e-12  # one and the same number in float32
    model = ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5).fit(rows, np.arange(200.0))
    forest = forest_of_sklearn(model)
    assert forest.wide
    np.testing.assert_array_equal(margins(forest, rows)[:, 0], model.predict(rows))


def test_what_cannot_be_exported_is_named(rows, amounts):
    filled, two = np.nan_to_num(rows), np.stack([amounts, amounts], 1)
    linear = ensemble.GradientBoostingRegressor(n_estimators=2, init=linear_model.LinearRegression())
    vectors = {"multi_strategy": "multi_output_tree"}
    by_set = ensemble.HistGradientBoostingRegressor(max_iter=2, categorical_features=[2])
    several = {"objective": "multi:softprob", "num_class": 4}
    own = {"objective": lambda p, d: (p - d.get_label(), np.ones(len(p)))}
    by_xgboost, by_sklearn, by_lightgbm = forest_of_xgboost, forest_of_sklearn, forest_of_lightgbm
    for convert, model, says in (
        (by_xgboost, xgb.train({"booster": "gblinear", "nthread": 1}, matrix(filled, label=amounts), 2), "gblinear"),
        (booster_of_margins, trained("xgboost", rows, classes(amounts), **several), "4 targets"),
        (by_xgboost, trained("xgboost", rows, two, **vectors), "vectors"),
        (by_xgboost, trained("xgboost", rows, amounts > 1, objective="binary:hinge"), "binary:hinge"),
        (by_sklearn, ensemble.AdaBoostRegressor(n_estimators=2).fit(filled, amounts), "Regressor has no trees"),
        (by_sklearn, tree.DecisionTreeRegressor().fit(filled, two), "several targets"),
        (by_sklearn, linear.fit(filled, amounts), "LinearRegression"),
        (by_sklearn, by_set.fit(filled, amounts), "categories of its own"),
        (by_lightgbm, trained("lightgbm", rows, amounts, linear_tree=True), "linear models"),
        (by_lightgbm, trained("lightgbm", rows, amounts, **own), "none"),
    ):
        with pytest.raises(DataError, match=says):
            convert(model)
