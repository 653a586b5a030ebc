"""Margins of exported trees against XGBoost's own, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.serve.forest import booster_of_margins, forest_of_xgboost
from tests.serve.forest.conftest import above_one, classes, same

CATS = ["q", "q", "c", "q", "q"]


OBJECTIVES = {
    **dict.fromkeys(("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"), same),
    **dict.fromkeys(("reg:squaredlogerror", "reg:tweedie", "count:poisson"), abs),
    "reg:gamma": lambda y: abs(y) + 0.1,
    **dict.fromkeys(("binary:logistic", "binary:logitraw", "reg:logistic", "rank:map"), above_one),
    **dict.fromkeys(("multi:softprob", "rank:ndcg", "rank:pairwise"), classes),
}


def trained(rows, label, types=None, rounds=8, **params) -> xgb.Booster:
    groups = np.arange(len(rows)) // 20 if params.get("objective", "").startswith("rank") else None
    data = xgb.DMatrix(rows, label, qid=groups, feature_types=types, enable_categorical=True, nthread=1)
    return xgb.train({"max_depth": 4, "nthread": 1, **params}, data, rounds)


def own_margins(booster: xgb.Booster, rows: np.ndarray, types=None) -> np.ndarray:
    data = xgb.DMatrix(rows, feature_types=types, enable_categorical=True, nthread=1)
    return booster.predict(data, output_margin=True).reshape(len(rows), -1)


SETS = [(o, CATS) for o in ("reg:squarederror", "binary:logistic", "multi:softprob")]


@pytest.mark.parametrize(("objective", "types"), [*((o, None) for o in OBJECTIVES), *SETS])
def test_every_objective(objective, types, rows, odd_rows, amounts, margins):
    more = {"num_class": 4} if objective.startswith("multi") else {}
    booster = trained(rows, OBJECTIVES[objective](amounts), types, objective=objective, **more)
    forest = forest_of_xgboost(booster, 5)
    assert forest.targets == (4 if more else 1)
    assert bool(forest.derived) == (types is not None)
    for part in (rows, odd_rows):
        np.testing.assert_array_equal(margins(forest, part), own_margins(booster, part, types))


@pytest.mark.parametrize(
    "more",
    [
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
    ids=str,
)
def test_other_ways_to_grow(more, rows, odd_rows, amounts, margins):
    for objective in ("reg:squarederror", "binary:logistic"):
        booster = trained(rows, OBJECTIVES[objective](amounts), CATS, objective=objective, **more)
        expected = own_margins(booster, odd_rows, CATS)
        np.testing.assert_array_equal(margins(forest_of_xgboost(booster), odd_rows), expected)


@pytest.mark.parametrize("most", [1, 20])
def test_forests_of_many_sets_are_several_nodes(most, rows, odd_rows, amounts, margins, monkeypatch):
    more = {"max_cat_to_onehot": 1, "booster": "dart", "rate_drop": 0.3, "objective": "binary:logistic"}
    booster = trained(rows, amounts > 1, CATS, rounds=20, **more)
    forest = forest_of_xgboost(booster)
    monkeypatch.setattr("fastrec._core.limits.FOREST_SETS", most)
    ensembles = [n for n in forest.model().graph.node if n.op_type == "TreeEnsemble"]
    assert 1 < len(forest.derived) / (most + 15) <= len(ensembles) <= 20
    expected = own_margins(booster, odd_rows, CATS)
    np.testing.assert_allclose(margins(forest, odd_rows), expected, rtol=1e-6, atol=1e-6)


def test_categories_that_share_rows_of_a_table(margins):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 500, (4000, 1)).astype(np.float32)
    label = rng.normal(size=500)[rows[:, 0].astype(int)]
    rows[::9] = np.nan
    for shift in (-3, 3):  # where missing ones go
        booster = trained(rows, np.where(np.isnan(rows[:, 0]), shift, label), ["c"], rounds=2, max_depth=2)
        probes = np.append(np.arange(-2, 600), np.nan).astype(np.float32)[:, None]
        expected = own_margins(booster, probes, ["c"])
        np.testing.assert_array_equal(margins(forest_of_xgboost(booster), probes), expected)


def test_a_booster_cut_to_its_best_tree(rows, amounts, margins):
    booster = trained(rows, amounts)[:3]
    forest = forest_of_xgboost(booster, 5)
    assert len(forest.roots) == 3
    np.testing.assert_array_equal(margins(forest, rows), own_margins(booster, rows))


def test_no_tree_at_all_is_the_base_score(rows, amounts, margins):
    booster = trained(rows, amounts, rounds=0, base_score=0.25)
    np.testing.assert_array_equal(margins(forest_of_xgboost(booster, 5), rows), np.full((400, 1), 0.25))


def test_one_column(rows, amounts, margins):
    booster = trained(rows[:, :1], amounts)
    got = margins(forest_of_xgboost(booster, 1), rows[:, :1])
    np.testing.assert_array_equal(got, own_margins(booster, rows[:, :1]))


def test_no_root_has_a_node_and_a_leaf_of_one_number(rows, amounts):
    for params in ({"max_depth": 2}, {"max_depth": 3, "gamma": 3}, {"grow_policy": "lossguide", "max_leaves": 3}):
        forest = forest_of_xgboost(trained(rows, amounts, rounds=40, **params))
        left, right = forest.left[forest.roots], forest.right[forest.roots]
        mixed = forest.left_leaf[forest.roots] != forest.right_leaf[forest.roots]
        assert mixed.any()
        assert (left != right)[mixed].all()  # versions of onnxruntime up to 1.21 take such a root for a leaf


@pytest.mark.parametrize("objective", ["binary:logistic", "count:poisson", "rank:ndcg", "reg:squarederror"])
def test_a_booster_that_says_its_margins(objective, rows, odd_rows, amounts):
    for more in ({}, {"booster": "dart", "rate_drop": 0.5}):
        booster = trained(rows, OBJECTIVES[objective](amounts), CATS, objective=objective, **more)
        saved = booster_of_margins(booster).save_raw("ubj")
        data = xgb.DMatrix(odd_rows, feature_types=CATS, enable_categorical=True)
        said = xgb.Booster(model_file=saved).predict(data)[:, None]
        np.testing.assert_array_equal(said, own_margins(booster, odd_rows, CATS))


def test_what_cannot_be_exported_is_named(rows, amounts):
    linear = xgb.train({"booster": "gblinear", "nthread": 1}, xgb.DMatrix(np.nan_to_num(rows), amounts), 2)
    with pytest.raises(DataError, match="gblinear"):
        forest_of_xgboost(linear)
    with pytest.raises(DataError, match="4 targets"):
        booster_of_margins(trained(rows, classes(amounts), objective="multi:softprob", num_class=4))
    with pytest.raises(DataError, match="vectors"):
        forest_of_xgboost(trained(rows, np.stack([amounts, amounts], 1), multi_strategy="multi_output_tree"))
    with pytest.raises(DataError, match="binary:hinge"):
        forest_of_xgboost(trained(rows, amounts > 1, objective="binary:hinge"))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    columns=st.integers(1, 6),
    n_cats=st.integers(0, 2),
    missing=st.sampled_from([0, 0.2, 0.9]),
    depth=st.integers(1, 6),
    objective=st.sampled_from(["reg:squarederror", "binary:logistic"]),
)
def test_any_table(margins, seed, columns, n_cats, missing, depth, objective):
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(60, columns)) * 10.0 ** rng.integers(-3, 6, columns)).astype(np.float32)
    types = ["c" if i < n_cats else "q" for i in range(columns)]
    for i in range(min(n_cats, columns)):
        rows[:, i] = rng.integers(0, rng.integers(1, 70), 60)
    rows[rng.random(rows.shape) < missing] = np.nan
    label = rng.integers(0, 2, 60)
    booster = trained(rows, label, types, rounds=5, max_depth=depth, objective=objective, min_child_weight=0)
    splits = booster.trees_to_dataframe()["Split"].dropna().to_numpy(np.float32)
    hits = rng.choice(splits, rows.shape) if len(splits) else rows
    cats = rng.integers(-1, 80, rows.shape).astype(np.float32)
    probes = np.where([t == "c" for t in types], cats, hits).astype(np.float32)
    for part in (rows, probes):
        expected = own_margins(booster, part, types)
        np.testing.assert_array_equal(margins(forest_of_xgboost(booster, columns), part), expected)
