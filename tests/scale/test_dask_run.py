from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

from fastrec.competition import Competition, run_competition
from fastrec.errors import DataError
from fastrec.estimators import XGBModel
from fastrec.features import CountEncode, FeatureSet, GroupRank, GroupStats, TargetEncode, category
from fastrec.scale import dask_cluster
from fastrec.validate import Folds
from tests.competition.test_table_run import TEST, TRAIN, TREES


class Recipe(Competition):
    name = "cities"
    task = "binary"
    target = "binary"
    ids = ("id",)

    def features(self):
        made = [CountEncode(category(max_card=9)), TargetEncode("city", "binary", classes=["Y"])]
        return FeatureSet([*made, GroupRank("x", by="city"), GroupStats("z", by="city", scope="all")], key="id")

    def folds(self, found, target):
        return Folds.kfold(len(found.train), 2)

    def models(self, *, bs):
        return [XGBModel("xgb", **TREES)]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    TRAIN[["id", "x", "z", "city", "binary"]].to_csv(folder / "train.csv", index=False)
    TEST[["id", "x", "z", "city"]].to_csv(folder / "test.csv", index=False)
    return folder


def test_a_cluster_makes_the_features_of_a_run(data, tmp_path):
    runs = {}
    for name, scheduler in {"here": None, "there": "local:2"}.items():
        made = run_competition(Recipe(), data, tmp_path / name, device="cpu", scheduler=scheduler, resume=False)
        runs[name] = pd.read_parquet(made / "oof" / "xgb.parquet"), pd.read_csv(made / "submission.csv")
        config = json.loads((made / "config.json").read_text())
        assert config.get("scheduler") == scheduler
    for here, there in zip(*runs.values(), strict=True):
        pd.testing.assert_frame_equal(here, there, rtol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "here", "there"]  # the workers' rows are gone


@pytest.mark.parametrize("name", ["local:0", "local:two", "local", "10.0.0.1:8786", ""])
def test_what_is_no_scheduler(name):
    with pytest.raises(DataError, match="is no scheduler"), dask_cluster(name):
        pass
