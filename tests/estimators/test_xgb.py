"""XGBRanker against XGBoost called directly."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.estimators import Ranker, XGBRanker
from fastrec.table import Table, Vocab, load_state
from fastrec.validate import Lists

# where the scores are asked for on a GPU, its trees are added up in another order
NEAR = 0 if os.environ.get("FASTREC_DEVICE", "cpu") == "cpu" else 1e-6
PARAMS = {"tree_method": "hist", "max_bin": 64, "eta": 0.3, "max_depth": 3, "nthread": 1, "device": "cpu"}
PARAMS |= {"subsample": 0.8, "colsample_bytree": 0.5}
RANKING = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 8, "ndcg_exp_gain": False}
ROUNDS = 4
COLORS = ["red", "green", "blue", "grey"]


def clicks(lists: int = 80, seed: int = 0) -> pd.DataFrame:
    """Lists of 1 to 6 candidates, some without a click, some with two, missing numbers, text."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, lists)
    frame = pd.DataFrame({"list": np.repeat(np.arange(lists) * 3, sizes)})
    n = len(frame)
    frame["x"], frame["z"] = rng.normal(size=n), rng.integers(0, 50, n)
    frame.loc[rng.random(n) < 0.2, "x"] = np.nan
    frame["color"] = rng.choice(COLORS, n)
    appeal = frame.x.fillna(0) + frame.color.map({"red": 1.0, "blue": -1.0}).fillna(0) + rng.normal(size=n)
    frame["label"] = (appeal.groupby(frame.list).rank(ascending=False) == 1).astype(float)
    frame.loc[frame.list % 5 == 0, "label"] = 0.0
    frame.loc[(frame.list % 7 == 0) & (frame.z > 25), "label"] = 1.0
    frame["weight"] = np.where(frame.list % 2 == 0, 1.0, 0.25)
    return frame


def lists_of(frame: pd.DataFrame, *, weighted: bool = False, known: bool = True) -> Lists:
    wanted = {"label": known, "weight": weighted, "groups": True}
    columns = frame.rename(columns={"list": "groups"})
    given = {name: torch.from_numpy(columns[name].to_numpy(copy=True)) for name, wants in wanted.items() if wants}
    return Lists(Table.read(frame[["x", "z", "color"]]), cats=["color"], conts=["x", "z"], **given)


def teaching(frame: pd.DataFrame) -> pd.DataFrame:
    by = frame.groupby("list").label
    return frame[(by.transform("size") > 1) & (by.transform("sum") > 0)]


def matrix(frame: pd.DataFrame) -> np.ndarray:
    codes = frame.color.map({c: i + 1.0 for i, c in enumerate(sorted(COLORS))})
    return np.stack([codes, frame.x, frame.z], 1).astype(np.float32)


def direct(frame: pd.DataFrame, objective: str, test: pd.DataFrame, *, weighted: bool, seed: int = 5) -> np.ndarray:
    """The same through XGBoost's own interface."""
    used, names, given = teaching(frame), ["color", "x", "z"], {}
    ranks = objective.startswith("rank:")
    if ranks:
        given["qid"] = used.list
    if weighted:
        given["weight"] = used.groupby("list").weight.first() if ranks else used.weight
    data = xgb.QuantileDMatrix(matrix(used), used.label, feature_names=names, max_bin=64, **given)
    params = {**PARAMS, **(RANKING if ranks else {}), "objective": objective, "seed": seed}
    return xgb.train(params, data, ROUNDS).predict(xgb.DMatrix(matrix(test), feature_names=names), output_margin=True)


def ranker(objective: str = "rank:ndcg", **params) -> XGBRanker:
    given = {"rounds": ROUNDS, "eta": 0.3, "max_depth": 3, "nthread": 1, **params}
    return XGBRanker("trees", objective=objective, **given)


@pytest.mark.parametrize("objective", ["rank:ndcg", "rank:pairwise", "rank:map", "binary:logistic"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_xgboost_called_directly(objective, weighted):
    frame, test = clicks(), clicks(seed=1)
    model = ranker(objective).fit(lists_of(frame, weighted=weighted), seed=5)
    got = model.predict(lists_of(test, known=False)).numpy()
    assert len(got) == len(test)  # lists of one candidate and without a click are scored too
    np.testing.assert_allclose(got, direct(frame, objective, test, weighted=weighted), rtol=0, atol=NEAR)
    assert len(np.unique(got)) > 5


def test_text_is_read_by_the_training_vocabulary_however_a_table_orders_it():
    frame, test = clicks(), clicks(seed=1)
    model = ranker().fit(lists_of(frame), seed=5)
    expected = model.predict(lists_of(test))
    # A table of the same rows whose dictionary starts with other values, one of them unseen.
    first = pd.DataFrame({"x": [0.0] * 3, "z": 0, "color": ["white", "red", "green"], "label": 0.0, "list": -1})
    longer = pd.concat([first, test], ignore_index=True)
    assert torch.equal(model.predict(lists_of(longer))[3:], expected)
    categorical = test.assign(color=pd.Categorical(test.color, categories=["white", *COLORS]))
    assert torch.equal(model.predict(lists_of(categorical)), expected)


def test_unseen_and_missing_text_is_missing():
    frame = clicks()
    model = ranker().fit(lists_of(frame), seed=5)
    unseen, gone = (model.predict(lists_of(frame.assign(color=color))) for color in ("white", None))
    assert torch.equal(unseen, gone)
    values = xgb.DMatrix(matrix(frame.assign(color="white")), feature_names=["color", "x", "z"])
    np.testing.assert_array_equal(unseen, model._parts[0].predict(values, output_margin=True))


def test_number_categories_beyond_float32_are_told_apart():
    ids = torch.tensor([1 << 40, (1 << 40) + 1] * 100)
    groups = torch.arange(100).repeat_interleave(2)
    data = Lists(Table({"id": ids}), groups, cats=["id"], label=(ids % 2).double())
    got = XGBRanker("trees", rounds=5, colsample_bytree=1.0).fit(data).predict(data)
    assert (got[1::2] > got[::2]).all()


def test_columns_are_found_by_name_not_by_place():
    frame = clicks()
    data = lists_of(frame)
    model = ranker().fit(data, seed=5)
    turned = replace(data, table=data.table.select(["color", "z", "x"]), cats=(), conts=["z", "x", "color"])
    assert torch.equal(model.predict(turned), model.predict(data))
    some = XGBRanker("trees", rounds=2, columns=["z", "color"]).fit(data)
    assert set(some.trace.importance) == {"z", "color"}
    rest = data.with_table(data.table.drop(["x"]))
    assert torch.equal(some.predict(rest), some.predict(data))


def test_infinite_and_huge_numbers_are_taken():
    frame = clicks()
    frame["z"] = frame.z.astype(float)
    huge = frame.assign(z=frame.z.mask(frame.z > 45, np.inf).mask(frame.z < 5, -np.inf))
    large = frame.assign(z=frame.z.mask(frame.z > 45, 1e300).mask(frame.z < 5, -1e300))
    a, b = (ranker().fit(lists_of(f), seed=5).predict(lists_of(f)) for f in (huge, large))
    assert a.isfinite().all()
    assert torch.equal(a, b)


@settings(max_examples=25)
@given(names=st.lists(st.text("[]<%5BDC 3a", min_size=1, max_size=4), min_size=3, max_size=3, unique=True))
def test_columns_may_have_any_names(names, tmp_path_factory):
    """Names change nothing but the names: the same trees, importance by the columns' own."""
    frame = clicks(40)
    plain = lists_of(frame)
    renamed = dict(zip(["color", "x", "z"], names, strict=True))
    data = replace(plain, table=plain.table.rename(renamed), cats=[names[0]], conts=names[1:])
    expected, got = ranker().fit(plain, seed=5), ranker().fit(data, seed=5)
    assert torch.equal(got.predict(data), expected.predict(plain))
    assert got.trace.importance == {renamed[n]: v for n, v in expected.trace.importance.items()}
    folder = tmp_path_factory.mktemp("names")
    got.save(folder / "m")
    assert torch.equal(Ranker.load(folder / "m").predict(data), expected.predict(plain))


def test_constraints_name_columns_by_their_own_names():
    frame = clicks()
    data = lists_of(frame)
    data = replace(data, table=data.table.rename({"x": "x[m]", "z": "z%"}), conts=["x[m]", "z%"])
    constraints = {"monotone_constraints": {"x[m]": -1}, "interaction_constraints": [["x[m]"], ["z%", "color"]]}
    free, model = (ranker(colsample_bytree=1.0, **c).fit(data, seed=5) for c in ({}, constraints))
    rising = torch.linspace(-3, 3, 20).double()
    table = Table({"x[m]": rising, "z%": torch.full((20,), 7.0), "color": ["red"] * 20})
    line = Lists(table, torch.zeros(20, dtype=torch.int64), cats=["color"], conts=["x[m]", "z%"])
    assert (model.predict(line).diff() <= 0).all()
    assert not (free.predict(line).diff() <= 0).all()


def test_saved_without_pickle_and_read_by_xgboost(tmp_path: Path):
    frame, test = clicks(), clicks(seed=1)
    model = ranker(colsample_bytree=0.7).fit(lists_of(frame), seed=5)
    model.save(tmp_path / "model")
    files = {p.suffix for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {".ubj", ".json", ".safetensors"}
    about = json.loads((tmp_path / "model" / "estimator.json").read_text())
    assert about["used"] == ["color", "x", "z"]
    assert about["settings"]["colsample_bytree"] == 0.7
    vocab = Vocab.from_state(load_state(tmp_path / "model" / "vocabularies")["color"])
    codes = vocab.encode(Table.read(test)["color"]).double().cpu().numpy()
    values = np.stack([codes, test.x, test.z], 1)
    booster = xgb.Booster(model_file=tmp_path / "model" / "trees0.ubj")
    got = booster.predict(xgb.DMatrix(values, feature_names=about["used"]), output_margin=True)
    np.testing.assert_allclose(model.predict(lists_of(test)).numpy(), got, rtol=NEAR, atol=NEAR)


def test_trees_start_from_the_margin_column():
    generator = torch.Generator().manual_seed(0)
    n = 400
    x, start = torch.randn(2, n, generator=generator).double()
    groups = torch.arange(n) // 4
    label = torch.zeros(n)
    label[torch.arange(0, n, 4) + torch.randint(0, 4, (n // 4,), generator=generator)] = 1
    data = Lists(Table({"x": x, "start": start}), groups, conts=["x"], label=label)
    model = XGBRanker("m", rounds=5, margin="start", max_depth=2, nthread=1).fit(data, seed=3)
    plain = {**PARAMS, **RANKING, "objective": "rank:ndcg", "seed": 3, "max_depth": 2, "eta": 0.1}
    values = x.float().numpy()[:, None]
    fit = xgb.DMatrix(values, label.numpy(), qid=groups.numpy(), base_margin=start.float().numpy())
    expected = xgb.train(plain, fit, 5).predict(fit, output_margin=True)
    assert model.predict(data).numpy() == pytest.approx(expected, abs=1e-4)
