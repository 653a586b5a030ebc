"""Margins of exported trees against CatBoost's own: numbers, single categories, statistics of their combinations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fastrec.errors import DataError
from fastrec.serve.forest import forest_of_catboost
from tests.serve.forest.conftest import above_one, classes, same

catboost = pytest.importorskip("catboost")

LOSSES = {
    **dict.fromkeys(("RMSE", "MAE", "QueryRMSE"), same),
    **dict.fromkeys(("Poisson", "Tweedie:variance_power=1.5"), abs),
    "Logloss": above_one,
    "CrossEntropy": lambda y: (y > 1) * 0.8 + 0.1,
    **dict.fromkeys(("MultiClass", "MultiClassOneVsAll"), classes),
    "YetiRank": lambda y: classes(y) / 3,
}
CODES = {1: 3, 2: 16, 3: 9}


def trained(rows, label, cats=(), loss="RMSE", **params):
    groups = np.arange(len(rows)) // 20 if loss in ("QueryRMSE", "YetiRank") else None
    params = {"iterations": 15, "depth": 4, "thread_count": 1, "random_seed": 0, "loss_function": loss, **params}
    model = catboost.CatBoost({"allow_writing_files": False, "logging_level": "Silent", **params})
    return model.fit(catboost.Pool(rows, np.asarray(label, float), cat_features=list(cats), group_id=groups))


def own_margins(model, rows, cats=()) -> np.ndarray:
    pool = catboost.Pool(rows, cat_features=list(cats))
    return model.predict(pool, prediction_type="RawFormulaVal", thread_count=1).reshape(len(rows), -1)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss, rows, odd_rows, amounts, margins, linked):
    model = trained(rows, LOSSES[loss](amounts), loss=loss)
    forest = forest_of_catboost(model)
    for part in (rows, odd_rows):
        np.testing.assert_allclose(margins(forest, part), own_margins(model, part), rtol=1e-13, atol=1e-13)
    kind = {"logistic": "Probability", "softmax": "Probability", "exp": "Exponent"}.get(forest.link)
    shares, powers = ("Logloss", "CrossEntropy", "Multi"), ("Poisson", "Tweedie")
    assert kind == ("Probability" if loss.startswith(shares) else "Exponent" if loss.startswith(powers) else None)
    if kind is not None:
        expected = model.predict(rows, prediction_type=kind).reshape(400, -1)
        np.testing.assert_allclose(linked(forest, own_margins(model, rows)), expected[:, -forest.targets :], rtol=1e-12)


@pytest.mark.parametrize(
    "more",
    [
        {"grow_policy": "Depthwise"},
        {"grow_policy": "Lossguide", "max_leaves": 9},
        {"nan_mode": "Max"},
        {"depth": 1},
        {"depth": 9, "iterations": 3},
        {"boost_from_average": False},
        {"min_data_in_leaf": 1000, "grow_policy": "Depthwise"},  # trees of one leaf
    ],
    ids=str,
)
@pytest.mark.parametrize("loss", ["RMSE", "MultiClass"])
def test_other_ways_to_grow(loss, more, rows, odd_rows, amounts, margins):
    if loss == "MultiClass":
        more = {n: v for n, v in more.items() if n != "boost_from_average"}
    model = trained(rows, LOSSES[loss](amounts), loss=loss, **more)
    got = margins(forest_of_catboost(model), odd_rows)
    np.testing.assert_allclose(got, own_margins(model, odd_rows), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("more", "symmetric"),
    [({}, True), ({"nan_mode": "Max"}, True), ({"grow_policy": "Lossguide", "max_leaves": 9}, False)],
    ids=str,
)
def test_symmetric_trees_are_tables(more, symmetric, rows, amounts):
    model = forest_of_catboost(trained(rows, amounts, **more)).model()
    assert ("TreeEnsemble" in {n.op_type for n in model.graph.node}) != symmetric


def test_trees_of_several_depths_are_tables(rows, odd_rows, amounts, margins):
    """CatBoost itself gives shallow trees where it finds no more splits."""
    deep, shallow = (forest_of_catboost(trained(rows, amounts, depth=d, iterations=3)) for d in (4, 3))
    both = joined(deep, shallow)
    assert "TreeEnsemble" not in {n.op_type for n in both.model().graph.node}
    expected = margins(deep, odd_rows) + margins(shallow, odd_rows) - shallow.base
    np.testing.assert_allclose(margins(both, odd_rows), expected, rtol=1e-13, atol=1e-13)


def joined(a, b):
    """The trees of two forests."""
    nodes, leaves = len(a.feature), len(a.value)
    moved = {"roots": b.roots + nodes}
    for side in ("left", "right"):
        moved[side] = getattr(b, side) + np.where(getattr(b, f"{side}_leaf"), leaves, nodes)
    names = ("feature", "threshold", "missing_left", "left_leaf", "right_leaf", "value", "target")
    moved |= {n: getattr(b, n) for n in names}
    return replace(a, **{n: np.concatenate([getattr(a, n), v]) for n, v in moved.items()})


def with_categories(seed: int, unseen: int) -> pd.DataFrame:
    """A number and three categories, by codes; ``unseen``: how many codes that training rows lack."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"a": rng.normal(size=500).astype(np.float32)})
    for name, size in (("b", 2), ("c", 12), ("d", 5)):
        made[name] = rng.integers(0, size + unseen, 500)
    made.loc[rng.random(500) < 0.1, "a"] = np.nan
    return made


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_ctr_complexity": 4},
        {"max_ctr_complexity": 4, "nan_mode": "Max"},
        {"max_ctr_complexity": 3, "simple_ctr": ["Buckets", "Counter"], "combinations_ctr": ["Buckets"]},
        {"max_ctr_complexity": 2, "simple_ctr": ["BinarizedTargetMeanValue"]},
        {"one_hot_max_size": 50},
        {"one_hot_max_size": 5, "max_ctr_complexity": 4},
        {"grow_policy": "Depthwise", "max_ctr_complexity": 3},
        {"counter_calc_method": "Full", "has_time": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("loss", ["RMSE", "Logloss", "MultiClass"])
def test_categories_and_their_combinations(loss, more, margins):
    train, other = with_categories(0, 0), with_categories(1, 3)
    label = ((train.c % 3 == 1) ^ (train.d > 2) ^ (train.a > 0) ^ (train.b > 0)).astype(float)
    label += (train.d % 2) if loss == "MultiClass" else 0
    model = trained(train, label, cats=(1, 2, 3), loss=loss, iterations=40, depth=5, **more)
    forest = forest_of_catboost(model, CODES)
    assert forest.derived
    for part in (train, other):
        rows = part.to_numpy(np.float32)
        rows[:, 1:][rows[:, 1:] == 0] = np.nan  # as the matrix of columns has code 0
        np.testing.assert_allclose(margins(forest, rows), own_margins(model, part, (1, 2, 3)), rtol=1e-13, atol=1e-13)


def test_what_cannot_be_exported_is_named():
    text = pd.DataFrame({"t": ["a b", "b c", "c a", "b b"] * 20, "x": np.arange(80.0)})
    pool = catboost.Pool(text, np.arange(80) % 4 % 2, text_features=["t"])
    model = catboost.CatBoost({"iterations": 5, "loss_function": "Logloss", "allow_writing_files": False})
    model.fit(pool, logging_level="Silent")
    with pytest.raises(DataError, match="cannot be exported"):
        forest_of_catboost(model)
