"""Summarise targets and out-of-fold predictions of a run for its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.stats import rankdata

from fastrec.errors import UnreadableFileError


@dataclass(frozen=True)
class Bin:
    """Rows of similar predictions: count, mean prediction, mean target, and the target's 10-90 % range."""

    rows: int
    predicted: float
    actual: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass
class RowResults:
    """Summary of one model's out-of-fold predictions.

    Attributes:
        task: the task.
        outputs: names of classes or targets.
        bins: output → bins of ascending prediction (multiclass: of each row's likeliest class).
        lift: share of rows, from the highest prediction down → share of class 1; empty for other tasks.
        confusion: actual class → predicted class → rows; empty without classes, or with too many.
        correlations: model → model → rank correlation of their predictions.
    """

    task: str
    outputs: list[str]
    bins: dict[str, list[Bin]] = field(default_factory=dict)
    lift: list[tuple[float, float]] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    correlations: dict[str, dict[str, float]] = field(default_factory=dict)


def read_rows(run: Path, task: str, outputs: Sequence[str], best: str, models: Sequence[str]) -> RowResults | None:
    """Summarise a run's out-of-fold predictions, None if it wrote no rows.

    Args:
        run, task: the run directory and its task.
        outputs: the names of its classes or targets.
        best: the model whose predictions are summarised.
        models: the models whose predictions are correlated.

    Raises:
        UnreadableFileError: a file that is there cannot be read.
    """
    predicted = {m: values for m in models if (values := _predictions(run / "oof" / f"{m}.parquet")) is not None}
    results = RowResults(task, list(outputs), correlations=_correlations(predicted))
    path = run / "rows.parquet"
    if task == "ranking" or not path.exists() or best not in predicted:
        return results if results.correlations else None
    rows = read_table(path)
    rows = rows.filter(pc.equal(rows["split"], "oof"))
    label = np.column_stack([rows[n].to_numpy() for n in rows.column_names if n.startswith("label_")])
    values = predicted[best]
    if len(values) != len(label):
        return results
    known = np.isfinite(values).all(1) & np.isfinite(label).all(1)
    label, values = label[known], values[known]
    if task == "multiclass":
        classes, likeliest = label[:, 0].astype(int), values.argmax(1)
        right = (likeliest == classes).astype(float)
        results.bins["the likeliest class"] = _bins(values.max(1), right, spread=False)
        if values.shape[1] <= 12:  # a larger table is not readable
            results.confusion = _confusion(classes, likeliest, values.shape[1])
        return results
    names = results.outputs[-1:] if task == "binary" else results.outputs
    for i, name in enumerate(names):
        results.bins[name] = _bins(values[:, i], label[:, i], spread=task == "regression")
    if task == "binary":
        scores, actual = values[:, 0], label[:, 0]
        positives = np.concatenate([[0.0], np.cumsum(actual[np.argsort(-scores, kind="stable")])])
        if positives[-1]:
            places = np.unique(np.linspace(0, len(actual), 21).round().astype(int))
            results.lift = [(float(p / len(actual)), float(positives[p] / positives[-1])) for p in places]
        results.confusion = _confusion(actual.astype(int), (scores > 1 - scores).astype(int), 2)
    return results


def _bins(predicted: np.ndarray, actual: np.ndarray, *, spread: bool) -> list[Bin]:
    order = np.argsort(predicted, kind="stable")
    bins = []
    for rows in np.array_split(order, min(10, len(order))):
        ends = np.quantile(actual[rows], [0.1, 0.9]) if spread else (np.nan, np.nan)
        bins.append(Bin(len(rows), float(predicted[rows].mean()), float(actual[rows].mean()), *map(float, ends)))
    return bins


def _confusion(actual: np.ndarray, predicted: np.ndarray, classes: int) -> list[list[int]]:
    return np.bincount(actual * classes + predicted, minlength=classes**2).reshape(classes, classes).tolist()


def _correlations(predicted: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    ranks: dict[str, np.ndarray] = {}
    for name, values in predicted.items():
        # 200,000 rows, evenly spaced, bound the time of ranking
        flat = values[np.linspace(0, len(values) - 1, min(len(values), 200_000)).astype(int)].reshape(-1)
        if len(flat) and np.nanmin(flat) < np.nanmax(flat):  # a constant correlates with nothing
            ranks[name] = rankdata(np.nan_to_num(flat, nan=np.nanmedian(flat)))
    names = [n for n in ranks if len(ranks[n]) == len(next(iter(ranks.values())))]
    if len(names) < 2:
        return {}
    matrix = np.corrcoef(np.stack([ranks[n] for n in names]))
    return {a: {b: float(matrix[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}


def _predictions(path: Path) -> np.ndarray | None:
    if not path.exists():
        return None
    table = read_table(path)
    names = [n for n in table.column_names if n == "score" or n.startswith("prediction")]
    return np.column_stack([table[n].to_numpy() for n in names]) if names else None


def read_table(path: Path) -> pa.Table:
    """Read a Parquet file of a run.

    Raises:
        UnreadableFileError: it is none.
    """
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(
            f"is not a Parquet file that can be read ({error})", file=path, remedy="Run again"
        ) from error
