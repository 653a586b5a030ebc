"""Margins of exported trees against LightGBM's own, to the bit; of every input that float32 can hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.serve.forest import forest_of_lightgbm
from tests.serve.forest.conftest import above_one, classes, same

lgb = pytest.importorskip("lightgbm")


OBJECTIVES = {
    **dict.fromkeys(("regression", "l1", "huber", "fair", "quantile", "mape"), same),
    **dict.fromkeys(("poisson", "tweedie"), abs),
    "gamma": lambda y: abs(y) + 0.1,
    **dict.fromkeys(("binary", "cross_entropy"), above_one),
    **dict.fromkeys(("multiclass", "multiclassova", "lambdarank", "rank_xendcg"), classes),
}


def trained(rows, label, cats=(), rounds=8, **params):
    params = {"num_leaves": 10, "min_data_in_leaf": 5, "num_threads": 1, "verbosity": -1, "seed": 1, **params}
    groups = [20] * (len(rows) // 20) if params.get("objective") in ("lambdarank", "rank_xendcg") else None
    data = lgb.Dataset(rows, label, group=groups, categorical_feature=list(cats), params=params)
    return lgb.train(params, data, rounds)


def own_margins(booster, rows: np.ndarray) -> np.ndarray:
    return booster.predict(rows, raw_score=True, num_threads=1).reshape(len(rows), -1)


@pytest.mark.parametrize(
    ("objective", "cats"),
    [*((o, ()) for o in OBJECTIVES), ("regression", (2,)), ("binary", (2,)), ("multiclass", (2,))],
)
def test_every_objective(objective, cats, rows, odd_rows, amounts, margins):
    more = {"num_class": 4} if objective.startswith("multi") else {}
    booster = trained(rows, OBJECTIVES[objective](amounts), cats, objective=objective, **more)
    forest = forest_of_lightgbm(booster)
    assert (forest.columns, forest.targets) == (5, 4 if more else 1)
    for part in (rows, odd_rows):
        np.testing.assert_array_equal(margins(forest, part), own_margins(booster, part))


@pytest.mark.parametrize(
    "more",
    [
        {"zero_as_missing": True},
        {"use_missing": False},
        {"boosting": "dart"},
        {"min_data_in_leaf": 500, "zero_as_missing": True},
        {"extra_trees": True, "use_missing": False},
    ],
    ids=str,
)
def test_what_is_missing_and_how_trees_grow(more, rows, odd_rows, amounts, margins):
    rows, odd_rows = rows.copy(), odd_rows.copy()
    for part in (rows, odd_rows):
        part[::3, 0], part[1::3, 3], part[2::9, 4] = 0, 0, 1e-36
    for cats in ((), (2,)):
        booster = trained(rows, amounts, cats, **more)
        np.testing.assert_array_equal(margins(forest_of_lightgbm(booster), odd_rows), own_margins(booster, odd_rows))


def test_categories_by_the_thousand_make_no_table_of_all(margins):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3000, (9000, 1)).astype(np.float32)
    label = rng.normal(size=3000)[rows[:, 0].astype(int)] + rng.normal(size=9000)
    booster = trained(rows, label, cats=(0,), rounds=12, min_data_per_group=1, max_cat_threshold=32)
    forest = forest_of_lightgbm(booster)
    assert forest.model().ByteSize() < 8 * 3000 * len(forest.derived) / 4
    probes = np.arange(-2, 4000, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(margins(forest, probes), own_margins(booster, probes))


@pytest.mark.parametrize("most", [1, 4])
def test_forests_of_many_sets_are_several_nodes(most, rows, odd_rows, amounts, margins, monkeypatch):
    several = {"objective": "multiclass", "num_class": 4}
    booster = trained(rows, classes(amounts), (2,), rounds=12, min_data_per_group=1, **several)
    forest = forest_of_lightgbm(booster)
    monkeypatch.setattr("fastrec._core.limits.FOREST_SETS", most)
    ensembles = [n for n in forest.model().graph.node if n.op_type == "TreeEnsemble"]
    assert 48 >= len(ensembles) >= 2
    np.testing.assert_allclose(margins(forest, odd_rows), own_margins(booster, odd_rows), rtol=1e-13, atol=1e-13)


def test_thresholds_between_two_floats_decide_as_before(margins):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 1))  # float64: thresholds are halfway between such
    booster = trained(rows, rows[:, 0] * 3, rounds=20, num_leaves=60, min_data_in_leaf=1)
    splits = booster.trees_to_dataframe()["threshold"].dropna().to_numpy(float)
    near = splits.astype(np.float32)
    probes = np.concatenate([near, np.nextafter(near, np.float32(-9)), np.nextafter(near, np.float32(9))])[:, None]
    np.testing.assert_array_equal(margins(forest_of_lightgbm(booster), probes), own_margins(booster, probes))


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        *((o, {}) for o in ("binary", "poisson", "cross_entropy", "cross_entropy_lambda")),
        *((o, {"num_class": 4}) for o in ("multiclass", "multiclassova")),
        *((o, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}) for o in ("regression", "binary")),
        ("binary", {"sigmoid": 2.5}),
        ("regression", {"reg_sqrt": True}),
    ],
    ids=str,
)
def test_links_make_of_margins_what_lightgbm_does(objective, more, rows, amounts, margins, linked):
    label = OBJECTIVES.get(objective, lambda y: y > 1)(amounts)
    booster = trained(rows, label, objective=objective, **more)
    forest = forest_of_lightgbm(booster)
    expected = booster.predict(rows).reshape(400, -1)
    np.testing.assert_allclose(linked(forest, margins(forest, rows)), expected, rtol=1e-12, atol=1e-300)


def test_trees_up_to_the_best_one(rows, amounts, margins):
    params = {"learning_rate": 0.5, "verbosity": -1, "num_threads": 1, "metric": "l2"}
    data, held = lgb.Dataset(rows[:200], amounts[:200]), lgb.Dataset(rows[200:], amounts[200:])
    stop = [lgb.early_stopping(3, verbose=False)]
    booster = lgb.train(params, data, 60, valid_sets=[held], callbacks=stop, keep_training_booster=True)
    assert len(forest_of_lightgbm(booster).roots) == booster.best_iteration < booster.current_iteration()
    np.testing.assert_array_equal(margins(forest_of_lightgbm(booster), rows), own_margins(booster, rows))


def test_what_cannot_be_exported_is_named(rows, amounts):
    with pytest.raises(DataError, match="linear models"):
        forest_of_lightgbm(trained(rows, amounts, linear_tree=True))
    with pytest.raises(DataError, match="none"):
        forest_of_lightgbm(trained(rows, amounts, objective=lambda p, d: (p - d.get_label(), np.ones(len(p)))))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    columns=st.integers(1, 5),
    n_cats=st.integers(0, 2),
    missing=st.sampled_from([0, 0.3]),
    how=st.sampled_from([{}, {"zero_as_missing": True}, {"use_missing": False}]),
)
def test_any_table(margins, seed, columns, n_cats, missing, how):
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(60, columns)) * 10.0 ** rng.integers(-3, 6, columns)).round(2).astype(np.float32)
    cats = list(range(min(n_cats, columns)))
    for i in cats:
        rows[:, i] = rng.integers(0, rng.integers(2, 70), 60)
    rows[rng.random(rows.shape) < missing] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0
    grown = {"min_data_in_leaf": 1, "min_data_per_group": 1, "cat_smooth": 0, "min_data_in_bin": 1}
    booster = trained(rows, rng.normal(size=60), cats, rounds=4, **grown, **how)
    probes = rng.permuted(rows, axis=0)
    probes[:, cats] = rng.integers(-2, 90, (60, len(cats)))
    for part in (rows, probes):
        np.testing.assert_array_equal(margins(forest_of_lightgbm(booster), part), own_margins(booster, part))
