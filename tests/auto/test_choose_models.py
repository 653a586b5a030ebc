"""Which models a table gets: what is known of it decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fastrec.auto.choose_models import choose_models
from fastrec.auto.chosen import Chosen, Family
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.files import Files
from fastrec.auto.problem import Problem

pytest.importorskip("lightgbm")


def texts(rows, columns=5, task="binary", **chosen):
    names = [f"v{i}" for i in range(columns)]
    train = pa.table({n: np.zeros(rows) for n in names[:1]})
    infos = [ColumnInfo(n, "number", 9, 0.0) for n in names]
    problem = Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc")
    return [m.text for m in choose_models(problem, Chosen(**chosen))]


PAID = [Family("counts", [], gain=0.1, error=0.01, kept=True)]


def test_many_rows_get_larger_trees_and_none_that_learn_slowly():
    few, many = texts(1_000), texts(40_000)
    assert few[0] == 'LGBMModel("lgbm")'
    assert "num_leaves=127" in many[0]
    assert any("max_depth=9" in t for t in many)
    assert not any("max_depth=9" in t for t in few)
    for slow in ("extra_trees", "ExtraTrees"):
        assert any(slow in t for t in few)
        assert not any(slow in t for t in many)


def test_wide_tables_and_many_classes_keep_small_trees():
    for made in (texts(40_000, columns=200), texts(40_000, task="multiclass")):
        assert not any("num_leaves" in t for t in made)


def test_the_models_without_features_come_first_where_the_trials_were_hurried():
    slow, quick = texts(1_000, families=PAID), texts(1_000, families=PAID, hurried=True)
    assert [t.split('"')[1] for t in slow[:3]] == ["lgbm", "plain", "xgb"]
    assert [t.split('"')[1] for t in quick[:3]] == ["plain", "lgbm", "xgb"]
    assert "columns=OWN" not in slow[2]
    assert "columns=OWN" in quick[2]


def test_features_that_were_not_kept_change_nothing():
    left = [Family("counts", [], gain=-0.1, error=0.01, kept=False)]
    assert texts(1_000, families=left, hurried=True) == texts(1_000)
