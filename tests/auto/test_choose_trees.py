"""The size of trees goes by what a trial on the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from fastrec.auto.columns import Files, look_at
from fastrec.auto.features import Chosen
from fastrec.auto.models import SIZES, choose_models, choose_trees
from fastrec.auto.problem import Problem

pytest.importorskip("lightgbm")


def problem(train, task="binary", classes=("N", "Y")):
    infos = look_at(train, skip=["y"])
    return Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc", classes=list(classes))


def checkered():
    """Each of 1,600 squares has a label of its own."""
    rng, n = np.random.default_rng(0), 12_000
    a, b = rng.random(n), rng.random(n)
    square = (a * 40).astype(int) * 40 + (b * 40).astype(int)
    return pa.table({"a": a, "b": b, "y": np.where(rng.random(1_600) < 0.5, "N", "Y")[square]})


def noise():
    """One of forty numbers tells a little."""
    rng, n = np.random.default_rng(3), 4_000
    x = rng.normal(size=(n, 40))
    y = np.where(x[:, 0] + rng.normal(size=n) * 3 > 0, "Y", "N")
    return pa.table({f"v{i}": x[:, i] for i in range(40)} | {"y": y})


def test_what_hangs_on_several_columns_at_once_gets_very_large_trees():
    told = []
    found = problem(checkered())
    chosen = choose_trees(found, Chosen(), seconds=300, say=told.append)
    assert chosen.trees == "very large"
    assert "a trial's auc is usual" in chosen.trees_why
    assert told[-1].startswith("sizes of trees: very large (auc usual ")
    models = [m.text for m in choose_models(found, chosen)]
    assert "num_leaves=511" in models[0]
    assert any('"finer"' in m and "num_leaves=1023" in m for m in models)


def test_chance_among_few_rows_decides_nothing():
    assert choose_trees(problem(noise()), Chosen(), seconds=300).trees == "usual"


@pytest.mark.parametrize("how", ["few rows", "no time", "multilabel", "many classes"])
def test_where_nothing_can_be_tried_nothing_is_said(how):
    train = checkered()
    made = {
        "few rows": problem(train.slice(0, 500)),
        "no time": problem(train),
        "multilabel": problem(train, "multilabel"),
        "many classes": problem(train, "multiclass", classes=range(30)),
    }[how]
    chosen = choose_trees(made, Chosen(), seconds=0 if how == "no time" else 40)
    assert (chosen.trees, chosen.trees_why) == ("", "")


def test_every_size_is_one_that_the_libraries_take():
    from fastrec.estimators import LGBMModel, XGBModel
    from fastrec.table import Table
    from fastrec.validate import Rows

    x = np.random.default_rng(0).normal(size=400)
    rows = Rows(Table.read({"x": x}), "binary", conts=["x"], label=torch.from_numpy(x > 0).double())
    for size in SIZES.values():
        for model in (LGBMModel(rounds=5, **size["lgbm"]), XGBModel(rounds=5, **size["xgb"])):
            assert model.fit(rows, None, seed=0).predict(rows).shape == (400,)
