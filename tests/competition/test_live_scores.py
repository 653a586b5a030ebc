"""The leaderboard of a run that is under way: its last figures are those of ``scores.json``."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.metrics import log_loss

from fastrec._core.progress import Stages
from fastrec.competition import Competition, run_competition
from fastrec.competition.train_models import LiveScores
from fastrec.estimators import XGBModel
from fastrec.stacking import Stack
from fastrec.validate import Folds, Target
from tests.files import write_csv

TREES = {"rounds": 4, "early_stopping_rounds": None, "nthread": 1}


class Recipe(Competition):
    name, task, target, metric, ids = "Live", "binary", "y", "auc", ("id",)

    def folds(self, found, target: Target | None) -> Folds:
        return Folds.kfold(len(found.train), 3)

    def models(self, *, bs):
        return [XGBModel("deep", max_depth=3, **TREES), XGBModel("flat", max_depth=1, **TREES)]

    def stack(self):
        return Stack(rounds=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"id": range(240), "x": rng.normal(size=240), "z": rng.normal(size=240)})
    frame["y"] = (frame.x + 0.5 * frame.z + rng.normal(size=240) > 0).astype(int)
    return write_csv(folder, train=frame[:200], test=frame[200:].drop(columns="y"))


def run(recipe, data, out, *, terminal: bool, quiet: bool = False, **options) -> tuple[dict, str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, color_system=None, _environ={"TERM": "xterm"})
    run_competition(recipe, data, out, stages=Stages(console=console, quiet=quiet), **options)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    return json.loads((out / "scores.json").read_text())["oof"], text


def test_a_log_has_a_line_of_each_model_with_the_runs_own_score(data, tmp_path, monkeypatch):
    for _ in range(2):  # kept models are shown again
        oof, text = run(Recipe(), data, tmp_path / "run", terminal=False, resume=True)
        lines = [line for line in text.splitlines() if "auc" in line]
        wanted = (f"  {n}: auc {oof[n]:.5f} after 3 of 3 folds" for n in ("constant", "deep", "flat"))
        assert sorted(lines) == sorted(wanted)
        assert text.index("flat: auc") < text.index("models: ")
    monkeypatch.setattr(LiveScores, "_score", lambda *_: 1 / 0)  # quiet runs compute nothing
    assert run(Recipe(), data, tmp_path / "run", terminal=False, quiet=True)[1] == ""


def test_a_terminal_has_a_table_below_the_bar_best_first(data, tmp_path):
    oof, text = run(Recipe(), data, tmp_path / "run", terminal=True)
    order = [*sorted(("deep", "flat"), key=lambda n: -oof[n]), "constant"]
    wanted = r" *\s+".join(rf"{n} +{oof[n]:.5f} +3 of 3" for n in order)
    assert re.search(r"model +auc, out of fold +folds", text)
    assert re.search(wanted, text)
    assert "after 3 of 3 folds" not in text


def test_metrics_of_classes_are_watched_by_their_loss(data, tmp_path):
    recipe = Recipe()
    recipe.metric = "f1"
    _, text = run(recipe, data, tmp_path / "run", terminal=False)
    table = pd.read_parquet(tmp_path / "run" / "oof" / "deep.parquet")
    labels = pd.read_parquet(tmp_path / "run" / "rows.parquet").query("split == 'oof'").label_y
    assert f"  deep: logloss {log_loss(labels, table.prediction):.5f} after 3 of 3 folds" in text
