import importlib.util
import json
from pathlib import Path

import pytest

from fastrec.competition import log_run
from fastrec.competition.runs import _metrics
from fastrec.errors import MissingPackageError


def test_metrics_are_scores_by_model():
    scores = {"oof": {"a": 0.5, "stack": 0.75}, "models": {"stack": 0.5, "b": None}, "seconds": {"x": 1.5, "y": 2}}
    assert _metrics(scores) == {"oof_a": 0.5, "oof_stack": 0.75, "test_stack": 0.5, "seconds": 3.5}


def test_names_are_of_characters_that_mlflow_takes():
    assert _metrics({"oof": {"net (big), 2×": 0.5}, "models": {}}) == {"oof_net _big__ 2_": 0.5, "seconds": 0.0}


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_mlflow_the_remedy_is_said(tmp_path: Path):
    with pytest.raises(MissingPackageError, match="pip install mlflow"):
        log_run(tmp_path)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_run_is_noted(tmp_path: Path, monkeypatch):
    """Settings, scores and files, as MLflow gives them back from its own store."""
    mlflow = pytest.importorskip("mlflow")
    from tests.competition.test_table_run import Recipe, run_competition, write

    monkeypatch.chdir(tmp_path)  # where files go beside a database
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'noted.db'}")
    run = run_competition(Recipe("binary"), write(tmp_path / "data", "binary"), tmp_path / "run")
    found = mlflow.get_run(log_run(run))
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    config, scores = (json.loads((run / f).read_text()) for f in ("config.json", "scores.json"))
    assert found.data.params["task"] == "binary"
    assert found.data.params["seed"] == str(config["seed"])
    assert found.data.params["models"] == ", ".join(m for m in scores["oof"] if m != "stack")
    for model, score in scores["oof"].items():
        assert found.data.metrics[f"oof_{model}"] == pytest.approx(score)
    files = {f.path for f in mlflow.MlflowClient().list_artifacts(found.info.run_id)}
    assert files == {"report.html", "config.json", "scores.json"}
    with mlflow.start_run(run_name="of somebody") as active:  # theirs is used, and stays open
        assert log_run(run, name="first") == active.info.run_id
        assert mlflow.active_run() is not None
    assert mlflow.get_run(active.info.run_id).data.metrics["oof_stack"] == pytest.approx(scores["oof"]["stack"])
