"""``log_run``: a run noted in MLflow, where somebody keeps their runs there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastrec._core.optional import require
from fastrec.competition.predict import SavedRun
from fastrec.errors import UnreadableFileError

_SETTINGS = ("competition", "task", "metric", "seed", "device", "rows", "folds", "folds_method", "git_revision")
_REFUSED = re.compile(r"[^\w\-. /:]")  # characters that MLflow takes in no name
_FILES = ("report.html", "config.json", "scores.json", "gate.json")


def log_run(run: str | Path, *, name: str | None = None, trust: Sequence[str] = ()) -> str:
    """Note a run's settings, scores and report in MLflow: in the run that is active there, else in a new one.

    Args:
        run: the run directory.
        name: what to call it there; None: as its folder is called.
        trust: modules of the run's own generators and estimators that may be imported.

    Returns:
        The id of MLflow's run.

    Raises:
        MissingPackageError: MLflow is not installed.
        FastrecError: it is no run directory, or a damaged one.
    """
    mlflow = require("mlflow", "mlflow", "pip install mlflow")
    saved, folder = SavedRun(run, trust=trust), Path(run)
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        metrics = _metrics(scores)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        path = folder / "scores.json"
        raise UnreadableFileError(f"it cannot be read ({error!r})", file=path, remedy="Run the recipe again") from error
    active = mlflow.active_run()
    if active is None:
        with mlflow.start_run(run_name=name or folder.resolve().name) as active:
            _write(mlflow, saved, metrics)
    else:
        _write(mlflow, saved, metrics)
    return str(active.info.run_id)


def _write(mlflow: Any, saved: SavedRun, metrics: dict[str, float]) -> None:
    settings = {n: saved.config[n] for n in _SETTINGS if saved.config.get(n) is not None}
    mlflow.log_params({**settings, "models": ", ".join(saved.names), "features": len(saved.cats) + len(saved.conts)})
    mlflow.log_metrics(metrics)
    for file in _FILES:
        if (saved.folder / file).is_file():
            mlflow.log_artifact(str(saved.folder / file))


def _metrics(scores: dict[str, Any]) -> dict[str, float]:
    """Return scores by model, out of fold and on the test, and seconds; names of characters that MLflow takes."""
    made = {f"oof_{model}": v for model, v in scores["oof"].items()}
    made |= {f"test_{model}": v for model, v in scores["models"].items()}
    made["seconds"] = sum(scores.get("seconds", {}).values())
    return {_REFUSED.sub("_", n): float(v) for n, v in made.items() if v is not None}
