"""Settings of the wrong kind: an error that names the model and the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.errors import DataError
from fastrec.estimators import CatBoostModel, LGBMModel, NetModel, XGBModel
from fastrec.table import Table
from fastrec.validate import Rows

MAKERS = {"lightgbm": LGBMModel, "xgboost": XGBModel, "catboost": CatBoostModel}


@pytest.mark.parametrize("value", ["5", 2.5, 0, -1, True])
@pytest.mark.parametrize("argument", ["rounds", "early_stopping_rounds"])
@pytest.mark.parametrize("cls", MAKERS.values())
def test_trees(cls, argument, value):
    with pytest.raises(DataError, match=rf"mine: {argument} is .*whole number"):
        cls("mine", **{argument: value})


@pytest.mark.parametrize("argument", ["epochs", "bs", "max_rows", "patience", "seeds"])
def test_nets(argument):
    with pytest.raises(DataError, match=rf"mine: {argument} is '3'"):
        NetModel("mine", **{argument: "3"})


def test_numpys_whole_numbers_are_whole_numbers():
    assert LGBMModel("mine", rounds=np.int64(3), early_stopping_rounds=None).rounds == 3


@pytest.mark.parametrize(
    ("library", "wrong"),
    [("lightgbm", {"learning_rate": "fast"}), ("xgboost", {"max_depth": "deep"}), ("catboost", {"depth": "deep"})],
)
def test_what_a_library_refuses(library, wrong):
    pytest.importorskip(library)
    n = 60
    table = Table({"x": torch.arange(n, dtype=torch.float64)})
    rows = Rows(table, "binary", conts=["x"], label=(torch.arange(n) % 3 == 0).long())
    model = MAKERS[library]("mine", rounds=2, early_stopping_rounds=None, **wrong)
    with pytest.raises(DataError, match=rf"mine: {library} refuses to learn .*Check the parameters"):
        model.fit(rows, None, seed=0)
