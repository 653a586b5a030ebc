"""Which models a table gets: what is known of it decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fastrec.auto.columns import ColumnInfo, Files
from fastrec.auto.features import Chosen, Family
from fastrec.auto.models import choose_models
from fastrec.auto.problem import Problem

pytest.importorskip("lightgbm")


def texts(rows, columns=5, task="binary", classes=(), values=None, **chosen):
    names = [f"v{i}" for i in range(columns)]
    train = pa.table(dict.fromkeys(names, np.arange(rows) * 1.0 if values is None else values))
    infos = [ColumnInfo(n, "number", 9, 0.0) for n in names]
    problem = Problem(Files(Path(), {}, {"train": train}), infos, ["y"], task, "auc", classes=list(classes))
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


def test_what_is_text_in_the_files_is_a_category_of_catboost_though_it_became_a_number():
    pytest.importorskip("catboost")
    train = pa.table({"Month": [3.0, 4.0] * 50, "price": [1.5, 2.5] * 50})
    month = ColumnInfo("Month", "number", 12, 0.0, whole=True, key=True, numeric_text=True)
    price = ColumnInfo("price", "number", 90, 0.0, numeric_text=True)
    problem = Problem(Files(Path(), {}, {"train": train}), [month, price], ["y"], "binary", "auc")
    assert choose_models(problem, Chosen())[-1].text == "CatBoostModel(\"catboost\", keys=['Month'])"
    assert 'CatBoostModel("catboost")' in texts(100)


TAILS = np.exp(np.random.default_rng(0).normal(size=1_000) * 2)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_numbers_with_long_tails_get_a_net_of_logarithms_beside_the_other(task):
    made = [t for t in texts(1_000, task=task, values=TAILS) if t.startswith("NetModel")]
    assert len(made) == 2
    assert "logs" not in made[0]
    assert '"log_net"' in made[1]
    assert "logs=True" in made[1]
    assert made[0].split(", ")[1:-1] == made[1].split(", ")[1:-2]  # the same model otherwise
    place = [t.split('"')[1] for t in texts(1_000, task=task, values=TAILS)].index
    assert (place("log_net") == place("net") + 1) is (task == "multiclass")
    assert place("log_net") > place("net")
    assert not any("logs=True" in t for t in texts(1_000, task=task))


def test_nets_that_take_numbers_by_their_ranks_get_none():
    for made in (texts(1_000, values=TAILS), texts(1_000, columns=200, task="multiclass", values=TAILS)):
        assert sum(t.startswith("NetModel") for t in made) == 1


def test_no_catboost_where_classes_make_it_too_slow():
    pytest.importorskip("catboost")
    for rows, there in ((3_000, True), (30_000, False)):  # 100 numbers, 9 classes
        made = texts(rows, columns=100, task="multiclass", classes=range(9))
        assert any("CatBoost" in t for t in made) is there
    assert any("CatBoost" in t for t in texts(30_000, columns=100, task="regression"))
