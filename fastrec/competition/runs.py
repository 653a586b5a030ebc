"""``list_runs``, ``compare_runs`` and ``log_run``: list a folder's runs, compare two, log one in MLflow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core.atomic import read_json
from fastrec._core.imports import require
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.metrics import Interval, as_scored, bootstrap_metric, paired_difference
from fastrec.metrics.intervals import cluster_means, interval_of
from fastrec.report.data import RunSummary, list_scores, list_weights, out_of_fold, read_table, run_summary


@dataclass(frozen=True)
class Comparison:
    """The mean difference of run ``a`` to run ``b``, with its interval, over rows that both scored."""

    segment: str
    rows: int
    a: float
    b: float
    difference: Interval
    metric: str
    greater_is_better: bool

    def sentence(self, a: str, b: str) -> str:
        """Say which run is better and by how much, or that it may be chance."""
        mean, low, high = self.difference
        if mean == 0:
            return f"{a} and {b} score alike"
        better, other = (a, b) if (mean > 0) == self.greater_is_better else (b, a)
        low, high = (low, high) if mean > 0 else (-high, -low)
        by = f"{abs(mean):.5f} [{low:.5f}, {high:.5f}]"
        if low > 0:
            return f"{better} is better than {other} by {by}"
        return f"{better} is ahead of {other} by {by}, which may be chance: the interval holds 0"


def list_runs(folder: str | Path) -> list[RunSummary]:
    """List the runs in a folder, the best first within a competition.

    Raises:
        MissingFileError: there is no such folder.
        UnreadableFileError: a run's files are damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", file=folder, remedy="Give the folder of run directories")
    found = [run_summary(p.parent) for p in sorted(folder.glob("*/scores.json")) if not p.parent.name.startswith(".")]
    # A loss is listed in ascending order.
    losses = {s.name: read_json(folder / s.name / "scores.json").get("greater_is_better") is False for s in found}
    return sorted(found, key=lambda s: (s.competition, s.metric, s.score if losses[s.name] else -s.score, s.name))


def compare_runs(a: str | Path, b: str | Path, *, model: str | None = None, by: str | None = None) -> list[Comparison]:
    """Compare two runs on the rows (of next items: sessions) that both scored out of fold.

    Args:
        a, b: run directories of one competition.
        model: the model to compare; None: the stack, of next items all models together.
        by: a column of the runs' ``rows.parquet`` to split by. Of rankings one of ``lists.parquet``: ``length``,
            ``positives``, ``place``, ``touched``; of next items ``length``, the number of events before the answer.

    Returns:
        All rows first, then each segment of ``by``. A difference above 0 means that ``a`` scores higher, which is worse
        if the metric is a loss.

    Raises:
        DataError: the runs differ in metric or rows.
        MissingColumnError: a run has no such column.
    """
    first, second = Path(a), Path(b)
    scores = [read_json(r / "scores.json") for r in (first, second)]
    metric, better = scores[0].get("metric"), scores[0].get("greater_is_better", True)
    if metric != scores[1].get("metric"):
        problem = f"{first.name} is scored by {metric}, {second.name} by {scores[1].get('metric')}"
        raise DataError(problem, remedy="Compare runs of one metric")
    file = next((n for n in _RANKS if (first / n).is_file()), None)
    rows = [read_table(r / (file or "rows.parquet")) for r in (first, second)]
    rows = [t.filter(pc.equal(t["split"], "oof")) for t in rows]
    names = [n for n in rows[0].column_names if n.startswith("label_")] if file is None else _RANKS[file]
    keys = [t.select([n for n in names if n in t.column_names]).combine_chunks() for t in rows]
    same = keys[0].equals(keys[1])
    if not same and file is None and len(rows[0]) == len(rows[1]):  # equal up to the rounding of logarithms
        labels = [t.to_pandas() for t in keys]
        same = list(labels[0]) == list(labels[1]) and np.allclose(*labels, rtol=1e-9, atol=0.0, equal_nan=True)
    if not same:
        problem = f"{first.name} and {second.name} scored other rows"
        judged = next((p for p in (first, second) if (p / "gate.json").is_file()), None)
        remedy = "Compare runs on the same training rows"
        if judged is not None:  # a retrained run has newer rows
            remedy += f". {judged / 'gate.json'} holds how {judged.name} compares with the run that served"
        raise DataError(problem, remedy=remedy)
    segments: list[tuple[str, np.ndarray]] = [("all", np.ones(len(rows[0]), dtype=bool))]
    if by is not None:
        if by not in rows[0].column_names:
            other = ("split", "fold_key", "target"), ("label_", "rr_", "score_")
            may = [n for n in rows[0].column_names if n not in other[0] and not n.startswith(other[1])]
            may = [n for n in may if rows[0][n].null_count < len(rows[0])]
            where = first / (file or "rows.parquet")
            remedy = f"One of: {', '.join(may)}"
            raise MissingColumnError("the runs do not have it", file=where, column=by, remedy=remedy)
        text = rows[0][by].cast(pa.string())
        for value in sorted(v for v in pc.unique(text).to_pylist() if v is not None):
            segments.append((f"{by}={value}", np.asarray(pc.fill_null(pc.equal(text, value), False))))
    if file is not None:
        each = zip(rows, scores, (first, second), strict=True)
        a_and_b = np.column_stack([_of_lists(r, model or s.get("final", "stack"), run) for r, s, run in each])
        known = np.isfinite(a_and_b).all(1)  # the AUC of lists of one class is undefined
        weights, made = list_weights(rows[0], str(metric)), []
        for name, chosen in segments:
            values, some = a_and_b[chosen & known], None if weights is None else weights[chosen & known]
            if some is None:
                means, difference = values.mean(0), paired_difference(*values.T)
            else:
                means, draws = cluster_means(values, np.arange(len(values)), weights=some)
                difference = interval_of(means[0] - means[1], draws[:, 0] - draws[:, 1])
            # Greater is better in all metrics of lists.
            made.append(Comparison(name, len(values), *map(float, means), difference, str(metric), True))
        return made
    model, predicted, known = model or "stack", [], np.ones(len(rows[0]), dtype=bool)
    for run in (first, second):
        found = out_of_fold(run, model, whole=True)
        if found is None:
            there = ", ".join(sorted(p.stem for p in (run / "oof").glob("*.parquet")))
            raise MissingFileError(f"the run has no predictions of {model!r}", file=run, remedy=f"It has {there}")
        y, values, folds = (v[:, 0] if v.shape[1:] == (1,) else v for v in found)
        scored = ~np.isnan(values).reshape(len(y), -1).any(1)
        values[scored] = as_scored(str(metric), y[scored], values[scored], folds[scored]).numpy()
        known &= scored
        predicted.append(values)
    # Rows of one key are not independent: resample keys.
    units = None
    if "fold_key" in rows[0].column_names:
        units = rows[0]["fold_key"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    made = []
    for name, chosen in segments:
        s = chosen & known
        clusters, both = None if units is None else units[s], {"a": predicted[0][s], "b": predicted[1][s]}
        result = bootstrap_metric(str(metric), y[s], both, clusters=clusters)
        means = result.interval("a").mean, result.interval("b").mean
        made.append(Comparison(name, int(s.sum()), *means, result.difference("a", "b"), str(metric), bool(better)))
    return made


# Files with each model's score of each list, and the columns that two runs on the same rows share.
_RANKS = {"lists.parquet": ["length", "fold_key"], "next_items.parquet": ["length", "target"]}


def _of_lists(table: pa.Table, model: str, run: Path) -> np.ndarray:
    found = list_scores(table)
    if not found:
        problem = "the run's metric is no mean over lists, by which rankings are compared"
        raise DataError(problem, file=run, remedy="Run the recipes with another metric, such as mrr or gauc")
    if model not in found:
        remedy = f"It has {', '.join(found)}"
        raise MissingColumnError("the run has no such model", file=run, column=model, remedy=remedy)
    return found[model]


_SETTINGS = ("competition", "task", "metric", "seed", "device", "rows", "folds", "folds_method", "git_revision")
_REFUSED = re.compile(r"[^\w\-. /:]")  # characters that MLflow's names must not have
_FILES = ("report.html", "config.json", "scores.json", "gate.json")


def log_run(run: str | Path, *, name: str | None = None, trust: Sequence[str] = ()) -> str:
    """Log a run's settings, scores and report in MLflow, and return the id of MLflow's run.

    Args:
        run: the run directory.
        name: of a new MLflow run, if none is active; None: the folder's name.
        trust: modules of the run's custom generators and estimators that may be imported.

    Raises:
        MissingPackageError: MLflow is not installed.
        FastrecError: it is no run directory, or a damaged one.
    """
    mlflow = require("mlflow", "mlflow", "pip install mlflow")
    saved, folder = SavedRun(run, trust=trust), Path(run)
    scores = read_json(folder / "scores.json")
    try:
        metrics = _metrics(scores)
    except (ValueError, KeyError, AttributeError) as error:
        path, remedy = folder / "scores.json", "Run the recipe again"
        raise UnreadableFileError(f"it cannot be read ({error!r})", file=path, remedy=remedy) from error
    there = mlflow.active_run()
    with mlflow.start_run(run_name=name or folder.resolve().name) if there is None else nullcontext(there) as active:
        settings = {n: saved.config[n] for n in _SETTINGS if saved.config.get(n) is not None}
        features = len(saved.cats) + len(saved.conts)
        mlflow.log_params({**settings, "models": ", ".join(saved.names), "features": features})
        mlflow.log_metrics(metrics)
        for file in (f for f in _FILES if (folder / f).is_file()):
            mlflow.log_artifact(str(folder / file))
    return str(active.info.run_id)


def _metrics(scores: dict[str, Any]) -> dict[str, float]:
    made = {f"oof_{model}": v for model, v in scores["oof"].items()}
    made |= {f"test_{model}": v for model, v in scores["models"].items()}
    made["seconds"] = sum(scores.get("seconds", {}).values())
    return {_REFUSED.sub("_", n): float(v) for n, v in made.items() if v is not None}
