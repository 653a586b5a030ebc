"""``fastrec run --ranks 2``: the nets of a run trained by processes that are started for them."""

import json

import numpy as np
import pandas as pd
import pytest

from fastrec.competition import run_competition
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, RankError
from fastrec.scale import training_on_ranks

RECIPE = '''
import os
import signal

from fastrec.competition import Competition
from fastrec.estimators import ConstantModel, NetModel
from fastrec.models import TabularNet
from fastrec.validate import Folds


class OwnNet(TabularNet):
    """A net that other processes only find through this file; ``DIE`` kills the second of them."""

    def forward(self, *given):
        if os.environ.get("DIE") and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*given)


class Tiny(Competition):
    name, task, target, ids = "tiny", "binary", "y", ("id",)

    def folds(self, found, target):
        return Folds.kfold(len(found.train), 2)

    def models(self, *, bs):
        return [NetModel("net", model=OwnNet, epochs=20, bs=bs, lr=0.02, options={"layers": [8]})]
'''


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("workspace")
    (root / "competitions" / "tiny").mkdir(parents=True)
    (root / "competitions" / "tiny" / "competition.py").write_text(RECIPE)
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"id": np.arange(400), "x": rng.normal(size=400), "city": rng.choice(list("abc"), 400)})
    df["y"] = (df.x + rng.normal(size=400) > 0).astype(int)
    (root / "data").mkdir()
    df[:300].to_csv(root / "data" / "train.csv", index=False)
    df[300:].drop(columns="y").to_csv(root / "data" / "test.csv", index=False)
    return root


def test_two_ranks_write_what_one_process_writes_and_a_killed_one_ends_the_run(workspace, monkeypatch):
    recipe = load_competition(workspace / "competitions" / "tiny")
    alone = run_competition(recipe, workspace / "data", workspace / "alone", device="cpu", bs=64)
    given = {"device": "cpu", "bs": 64, "ranks": 2, "resume": True}
    monkeypatch.setenv("DIE", "yes")
    with pytest.raises(RankError, match="rank 1 by signal 9"):
        run_competition(recipe, workspace / "data", workspace / "shared", **given)
    assert not (workspace / "shared").exists()
    monkeypatch.delenv("DIE")
    shared = run_competition(recipe, workspace / "data", workspace / "shared", **given)
    files = [{str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()} for run in (alone, shared)]
    blends = [{f for f in own if f.startswith("stack")} for own in files]  # another one may be chosen
    assert files[0] - blends[0] == files[1] - blends[1]
    assert json.loads((shared / "config.json").read_text())["ranks"] == 2
    assert "ranks" not in json.loads((alone / "config.json").read_text())
    predictions = [pd.read_parquet(run / "oof" / "net.parquet").iloc[:, -1] for run in (alone, shared)]
    assert np.corrcoef(*predictions)[0, 1] > 0.9
    predicted = [pd.read_csv(run / "submission.csv") for run in (alone, shared)]
    assert predicted[0].columns.tolist() == predicted[1].columns.tolist()
    assert np.corrcoef(predicted[0].iloc[:, -1], predicted[1].iloc[:, -1])[0, 1] > 0.9


def test_less_than_one_process_is_refused():
    with pytest.raises(DataError, match="0 processes"), training_on_ranks(0):
        pass
