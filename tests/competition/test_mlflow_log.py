import json
from pathlib import Path

import pytest

from fastrec.competition import log_run
from fastrec.competition.mlflow_log import _metrics
from fastrec.errors import MissingPackageError


def test_metrics_are_scores_by_model():
    scores = {"oof": {"a": 0.5, "stack": 0.75}, "models": {"stack": 0.5, "b": None}, "seconds": {"x": 1.5, "y": 2}}
    assert _metrics(scores) == {"oof_a": 0.5, "oof_stack": 0.75, "test_stack": 0.5, "seconds": 3.5}


def test_a_run_is_noted_or_the_remedy_is_said(tmp_path: Path):
    from tests.competition.test_table_run import Recipe, run_competition, write

    try:
        import mlflow
    except ImportError:
        with pytest.raises(MissingPackageError, match="pip install mlflow"):
            log_run(tmp_path)
        return
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    run = run_competition(Recipe("binary"), write(tmp_path / "data", "binary"), tmp_path / "run")
    found = mlflow.get_run(log_run(run, name="first"))
    assert found.data.params["task"] == "binary"
    scores = json.loads((run / "scores.json").read_text())
    assert found.data.metrics["oof_stack"] == pytest.approx(scores["oof"]["stack"])
