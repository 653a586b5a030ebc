"""New rows beside a run: read as its recipe reads files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import Competition, predict_run, run_competition
from fastrec.competition.reading import Reading
from fastrec.estimators import XGBModel
from fastrec.monitor import monitor


class Flats(Competition):
    """Prices as text, semicolons, no header."""

    name, task, target, metric = "flats", "regression", "rent", "rmse"
    reading = Reading(header=["price", "place", "rent"], delimiter=";", numbers=["price", "rent"])
    categories = ("place",)

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=5, early_stopping_rounds=None, nthread=1)]


def flats(rows: int, seed: int, dearer: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    price = rng.normal(1500, 200, rows) + dearer
    frame = pd.DataFrame({"price": [f"${p:,.2f}" for p in price], "place": rng.choice(["a, b", "c"], rows)})
    return frame.assign(rent=[f"${p / 100:.2f}" for p in price])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flats")
    (folder / "data").mkdir()
    flats(400, 0).to_csv(folder / "data" / "train.csv", index=False, header=False, sep=";")
    return run_competition(Flats(), folder / "data", folder / "run", resume=True)


def test_files_are_read_as_the_runs(run, tmp_path):
    for name, dearer in (("same", 0.0), ("dear", 400.0)):
        (tmp_path / name).mkdir()
        flats(300, 1, dearer).to_csv(tmp_path / name / "test.csv", index=False, header=False, sep=";")
    assert monitor(run, tmp_path / "same", adversarial=False).ok
    assert monitor(run, tmp_path / "same" / "test.csv", adversarial=False).ok
    assert monitor(run, flats(300, 1), adversarial=False).ok  # a frame too
    found = monitor(run, tmp_path / "dear", adversarial=False)
    assert {f.about for f in found.findings} == {"price"}
    assert {f.kind for f in found.findings} <= {"shape", "unseen"}


def test_labels_beside_a_run(run, tmp_path):
    new = flats(300, 2)
    new.to_csv(tmp_path / "new.csv", index=False, header=False, sep=";")
    new[["rent"]].assign(at=0).to_csv(tmp_path / "labels.csv", index=False)
    rent = new["rent"].str[1:].astype(float)
    rent.to_frame("prediction").to_csv(tmp_path / "scores.csv", index=False)
    words = ["monitor", run, tmp_path / "new.csv", "--scores", tmp_path / "scores.csv", "--no-trees"]
    words += ["--labels", tmp_path / "labels.csv", "--time", "at", "--trust", "json"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code in (0, 3), done.output
    assert "1970-01-01   300 0.0000" in done.output


def test_what_predict_writes_is_compared_with_the_runs_own(run, tmp_path):
    for name, dearer in (("same", 0.0), ("dear", 400.0)):
        flats(300, 3, dearer)[["price", "place"]].assign(rent="$1").to_csv(
            tmp_path / f"{name}.csv", index=False, header=False, sep=";"
        )
        predict_run(run, tmp_path / f"{name}.csv", tmp_path / f"{name}_scores.csv")
        found = monitor(run, tmp_path / f"{name}.csv", scores=tmp_path / f"{name}_scores.csv", adversarial=False)
        assert ("prediction" in {f.kind for f in found.findings}) == (name == "dear")


def test_a_recipes_time_that_is_a_number_is_not_compared(tmp_path):
    class Timed(Competition):
        name, task, target, time, n_folds = "timed", "regression", "y", "day", 2

        def models(self, *, bs):
            return [XGBModel("xgb", rounds=3, early_stopping_rounds=None, nthread=1)]

    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"day": np.arange(400), "x": rng.normal(size=400), "y": rng.normal(size=400)})
    (tmp_path / "data").mkdir()
    rows[:200].to_csv(tmp_path / "data" / "train.csv", index=False)
    run = run_competition(Timed(), tmp_path / "data", tmp_path / "run", resume=True)
    found = monitor(run, rows[200:], adversarial=True)
    assert found.ok, found
    assert "day" in found.left_out
