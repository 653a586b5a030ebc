"""Margins of exported trees against CatBoost's own: numbers, single categories, statistics of their combinations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.serve.forest.catboost import _of_length, code_hashes, forest_of_catboost
from fastrec.serve.forest.forest import Forest, Statistic, Tree, grow
from tests.serve.forest.conftest import above_one, classes, model_of, same

catboost = pytest.importorskip("catboost")

LOSSES = {
    **dict.fromkeys(("RMSE", "MAE", "QueryRMSE"), same),
    **dict.fromkeys(("Poisson", "Tweedie:variance_power=1.5"), abs),
    "Logloss": above_one,
    "CrossEntropy": lambda y: (y > 1) * 0.8 + 0.1,
    **dict.fromkeys(("MultiClass", "MultiClassOneVsAll"), classes),
    "YetiRank": lambda y: classes(y) / 3,
}
SIZES = (2, 3, 7, 12, 40)  # of categories
UNSEEN = 3


def trained(rows, label, cats=0, loss="RMSE", group=20, **params):
    """A model of rows; ``cats``: the places of categories, or how many the first columns are."""
    groups = np.arange(len(rows)) // group if loss in ("QueryRMSE", "YetiRank") else None
    params = {"iterations": 15, "depth": 4, "thread_count": 1, "random_seed": 0, "loss_function": loss, **params}
    model = catboost.CatBoost({"allow_writing_files": False, "logging_level": "Silent", **params})
    pool = catboost.Pool(rows, np.asarray(label, float), cat_features=places(cats), group_id=groups)
    return model.fit(pool)


def places(cats) -> list[int]:
    return list(range(cats)) if isinstance(cats, int) else list(cats)


def own_margins(model, rows, cats=0) -> np.ndarray:
    pool = catboost.Pool(rows, cat_features=places(cats))
    return model.predict(pool, prediction_type="RawFormulaVal", thread_count=1).reshape(len(rows), -1)


def same_margins(margins, model, forest: Forest, cats, *frames, tolerance: float = 1e-12) -> None:
    for frame in frames:
        got = margins(forest, matrix_of(frame, cats))
        np.testing.assert_allclose(got, own_margins(model, frame, cats), rtol=tolerance, atol=tolerance)


def matrix_of(frame, cats) -> np.ndarray:
    """Rows as ``TreeInputs.matrix`` has them: categories of code 0 are NaN."""
    rows = np.array(frame, np.float32)
    for place in places(cats):
        rows[rows[:, place] == 0, place] = np.nan
    return rows


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss, rows, odd_rows, amounts, margins, linked):
    model = trained(rows, LOSSES[loss](amounts), loss=loss)
    forest = forest_of_catboost(model)
    same_margins(margins, model, forest, 0, rows, odd_rows, tolerance=1e-13)
    kind = {"logistic": "Probability", "softmax": "Probability", "exp": "Exponent"}.get(forest.link)
    shares, powers = ("Logloss", "CrossEntropy", "Multi"), ("Poisson", "Tweedie")
    assert kind == ("Probability" if loss.startswith(shares) else "Exponent" if loss.startswith(powers) else None)
    if kind is not None:
        expected = model.predict(rows, prediction_type=kind).reshape(400, -1)
        np.testing.assert_allclose(linked(forest, own_margins(model, rows)), expected[:, -forest.targets :], rtol=1e-12)


LEAVES = {"min_data_in_leaf": 1000, "grow_policy": "Depthwise"}, {"max_leaves": 9, "grow_policy": "Lossguide"}


@pytest.mark.parametrize("more", [{}, {"nan_mode": "Max"}, *LEAVES], ids=str)
def test_symmetric_trees_are_tables_and_trees_of_one_leaf(more, rows, odd_rows, amounts, margins):
    model = trained(rows, amounts, **more)
    forest = forest_of_catboost(model)
    same_margins(margins, model, forest, 0, odd_rows, tolerance=1e-13)
    assert ("TreeEnsemble" in {n.op_type for n in model_of(forest).graph.node}) == ("max_leaves" in more)


def test_trees_of_several_depths_are_tables(margins):
    """CatBoost gives shallow trees where it finds no more splits."""
    deep = Tree(
        np.array([1, 3, 5, *[-1] * 4]), np.array([2, 4, 6, *[-1] * 4]), np.array([0, 1, 1, 0, 0, 0, 0]),
        np.array([0.5, 2, 2, 0, 0, 0, 0]), np.ones(7, bool), np.array([0, 0, 0, 1, 2, 4, 8.0]),
    )  # fmt: skip
    shallow = Tree(
        np.array([1, -1, -1]), np.array([2, -1, -1]), np.zeros(3), np.ones(3), np.ones(3, bool), np.r_[0, 16, 32]
    )
    forest = grow([deep, shallow], 2, [100.0], link="identity", rule="le", dtype="float64")
    assert "TreeEnsemble" not in {n.op_type for n in model_of(forest).graph.node}
    rows = np.array([[0.5, 2], [0.5, 3], [1, np.nan], [2, 2], [2, 3]])
    assert margins(forest, rows)[:, 0].tolist() == [117, 118, 120, 136, 140]


def test_what_cannot_be_exported_is_named():
    text = pd.DataFrame({"t": ["a b", "b c", "c a", "b b"] * 20, "x": np.arange(80.0)})
    pool = catboost.Pool(text, np.arange(80) % 4 % 2, text_features=["t"])
    model = catboost.CatBoost({"iterations": 5, "loss_function": "Logloss", "allow_writing_files": False})
    model.fit(pool, logging_level="Silent")
    with pytest.raises(DataError, match="cannot be exported"):
        forest_of_catboost(model)


CTR_LOSSES = ["Logloss", "MultiClass", "MultiClassOneVsAll", "RMSE", "Poisson", "YetiRank", "QueryRMSE"]


def frame_of(seed: int, cats: int, conts: int, n: int, unseen: int = 0) -> pd.DataFrame:
    """Categories by codes, 0 the missing one, and numbers with holes; ``unseen``: how many codes training rows lack."""
    rng = np.random.default_rng(seed)
    columns = {str(i): rng.integers(0, SIZES[i] + unseen, n).astype(np.int32) for i in range(cats)}
    for i in range(cats, cats + conts):
        values = rng.normal(size=n).astype(np.float32).round(1)
        columns[str(i)] = np.where(rng.random(n) < 0.1, np.float32("nan"), values)
    return pd.DataFrame(columns)


def label_of(frame: pd.DataFrame, cats: int, loss: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed + 1)
    value = rng.normal(size=len(frame)) * 0.3
    for i, name in enumerate(frame):
        value += rng.normal(size=50)[frame[name]] if i < cats else np.nan_to_num(frame[name])
    if cats > 1:
        value += rng.normal(size=(50, 50))[frame["0"], frame[str(cats - 1)]]
    if loss == "Logloss":
        return (value > np.median(value)).astype(float)
    if loss.startswith("Multi"):
        return np.digitize(value, np.quantile(value, [0.3, 0.6, 0.8]))
    return (value - value.min()) / np.ptp(value)


def ctr_trained(frame: pd.DataFrame, cats: int, loss: str, seed: int, **more):
    params = {"iterations": 10, "learning_rate": 0.3, "random_seed": seed, "group": 6, **more}
    return trained(frame, label_of(frame, cats, loss, seed), cats, loss, **params)


def codes_of(cats: int) -> dict[int, int]:
    return {i: SIZES[i] + UNSEEN for i in range(cats)}


def statistics_in(forest: Forest) -> list[Statistic]:
    return [d for d in forest.derived if isinstance(d, Statistic)]


ways = st.fixed_dictionaries(
    {
        "max_ctr_complexity": st.sampled_from([1, 2, 4]),
        "one_hot_max_size": st.sampled_from([1, 2, 10, 50]),
        "counter_calc_method": st.sampled_from(["SkipTest", "Full"]),
        "has_time": st.booleans(),
        "depth": st.sampled_from([1, 4, 6]),
        "nan_mode": st.sampled_from(["Min", "Max"]),
        "grow_policy": st.sampled_from(["SymmetricTree", "Depthwise", "Lossguide"]),
    },
    optional={
        "simple_ctr": st.sampled_from([["Buckets"], ["BinarizedTargetMeanValue", "Counter"], ["Borders:Prior=0.3"]]),
        "combinations_ctr": st.sampled_from([["Buckets", "Borders"], ["BinarizedTargetMeanValue"], ["Counter"]]),
    },
)


@settings(max_examples=35, deadline=None)
@given(
    seed=st.integers(0, 10_000), cats=st.integers(1, 5), conts=st.integers(0, 3), n=st.integers(40, 300),
    loss=st.sampled_from(CTR_LOSSES), way=ways,
)  # fmt: skip
def test_any_model(margins, seed, cats, conts, n, loss, way):
    train, other = frame_of(seed, cats, conts, n), frame_of(seed + 1, cats, conts, 100, UNSEEN)
    label = label_of(train, cats, loss, seed)
    # a category's place among categories is not its place in the row
    order = np.random.default_rng(seed).permutation(cats + conts).tolist()
    train, other, own = train.iloc[:, order], other.iloc[:, order], [order.index(i) for i in range(cats)]
    model = trained(train, label, own, loss, iterations=10, learning_rate=0.3, random_seed=seed, group=6, **way)
    forest = forest_of_catboost(model, {place: SIZES[i] + UNSEEN for i, place in enumerate(own)})
    same_margins(margins, model, forest, own, train, other)


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("Logloss", {"combinations_ctr": ["Borders", "Counter"], "simple_ctr": ["Counter"]}),
        ("Logloss", {"combinations_ctr": ["Borders", "Counter"], "nan_mode": "Max"}),
        ("MultiClass", {"combinations_ctr": ["Buckets"], "simple_ctr": ["Buckets"]}),
        ("RMSE", {"combinations_ctr": ["Borders:TargetBorderCount=3"]}),
        ("Logloss", {}),
    ],
    ids=str,
)
def test_combinations_of_every_kind_of_element(loss, more, margins):
    train = frame_of(0, 4, 2, 2000)
    model = ctr_trained(train, 4, loss, 0, iterations=60, depth=6, max_ctr_complexity=4, one_hot_max_size=3, **more)
    forest = forest_of_catboost(model, codes_of(4))
    known = statistics_in(forest)[0].statistics
    assert known.elements.shape[1] > 1
    if loss == "Logloss":
        assert len(known.above) > 1
        assert known.exact
    same_margins(margins, model, forest, 4, train, frame_of(1, 4, 2, 2000, UNSEEN))


@pytest.mark.parametrize("loss", ["RMSE", "Logloss"])
def test_statistics_of_models_trained_on_a_gpu(loss, margins, tmp_path):
    """CatBoost computes them on a CPU as well, but learns them on a GPU only: a model is told that it has them."""
    train = frame_of(5, 3, 1, 400)
    model = ctr_trained(train, 3, loss, 5, simple_ctr=["BinarizedTargetMeanValue", "Counter"], max_ctr_complexity=1)
    model.save_model(str(tmp_path / "m.json"), format="json")
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    for old, new in (("BinarizedTargetMeanValue", "FloatTargetMeanValue"), ("Counter", "FeatureFreq")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "m.json").write_text(text, encoding="utf-8")
    model = catboost.CatBoost().load_model(str(tmp_path / "m.json"), format="json")
    forest = forest_of_catboost(model, codes_of(3))
    assert statistics_in(forest)
    same_margins(margins, model, forest, 3, train, frame_of(6, 3, 1, 400, UNSEEN))


def test_codes_with_the_same_hash(margins):
    """CatBoost does not tell such categories apart; some pairs of 200,000 codes are alike."""
    hashes = code_hashes(200_000)
    order = np.argsort(hashes, kind="stable")
    place = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])[0]
    one, other = order[place], order[place + 1]
    codes = np.array([one, 1, 2] * 40, np.int32)
    model = trained(pd.DataFrame({"0": codes}), codes == one, 1, iterations=5)
    frame = pd.DataFrame({"0": np.array([one, other, 1, 3], np.int32)})
    expected = own_margins(model, frame, 1)
    assert expected[1] == expected[0] != expected[2]
    forest = forest_of_catboost(model, {0: 200_000})
    np.testing.assert_allclose(margins(forest, matrix_of(frame, 1)), expected, rtol=1e-12)


def test_hashes_are_those_that_catboost_writes(tmp_path):
    lengths = [np.arange(10**k, 10**k + 40) for k in range(1, 8)]
    codes = np.concatenate([np.arange(10), *lengths])
    frame = pd.DataFrame({"0": codes})
    pool = catboost.Pool(frame, np.arange(len(codes)) % 2, cat_features=[0])
    trained(frame, np.arange(len(codes)) % 2, 1, iterations=1).save_model(
        str(tmp_path / "m.json"), format="json", pool=pool
    )
    said = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))["features_info"]["cat_features_hash"]
    said = {int(h["value"]): np.uint32(h["hash"]).astype(np.int32) for h in said}
    expected = np.array([said[c] for c in codes.tolist()])
    assert len(said) == len(codes) == 290
    many = code_hashes(100_040)
    np.testing.assert_array_equal(many[codes[codes < len(many)]], expected[codes < len(many)])
    for own in lengths:
        np.testing.assert_array_equal(_of_length(own).astype(np.uint32).view(np.int32), expected[np.isin(codes, own)])
    assert [len(code_hashes(n)) for n in (0, 1, 10, 11, 1000)] == [0, 1, 10, 11, 1000]


def test_the_number_of_nodes_does_not_grow_with_that_of_combinations():
    pytest.importorskip("onnx")
    counts = []
    for cats in (2, 5):
        model = ctr_trained(frame_of(0, cats, 0, 500), cats, "Logloss", 0, iterations=60, one_hot_max_size=1)
        forest = forest_of_catboost(model, codes_of(cats))
        known = statistics_in(forest)[0].statistics
        counts.append((len(model_of(forest).graph.node) - 3 * known.elements.shape[1], len(known.elements)))
    assert counts[0][0] == counts[1][0]
    assert counts[0][1] < counts[1][1]


def test_categories_without_codes_are_refused():
    model = ctr_trained(frame_of(0, 2, 1, 100), 2, "Logloss", 0)
    with pytest.raises(DataError, match="n_codes="):
        forest_of_catboost(model)


def test_combinations_that_cannot_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr("fastrec.serve.forest.catboost.begun", lambda combination, length: 0)
    model = ctr_trained(frame_of(0, 5, 0, 300), 5, "Logloss", 0, max_ctr_complexity=1, one_hot_max_size=1)
    with pytest.raises(DataError, match="the same hash"):
        forest_of_catboost(model, codes_of(5))


def test_statistics_that_are_not_known_are_named():
    model = ctr_trained(frame_of(0, 2, 0, 200), 2, "Logloss", 0)

    class Newer:
        def save_model(self, path: str, **how):
            model.save_model(path, **how)
            text = Path(path).read_text().replace('"ctr_type":"Borders"', '"ctr_type":"Median"')
            Path(path).write_text(text)

    with pytest.raises(DataError, match="Median"):
        forest_of_catboost(Newer(), codes_of(2))
