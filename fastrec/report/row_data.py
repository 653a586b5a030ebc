"""What a run without lists says of its rows: targets and out-of-fold predictions, summed up for its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fastrec.errors import UnreadableFileError

_BINS = 10
_MOST_CLASSES = 12  # of so many classes a table of confusions can be read
_SAMPLE = 200_000  # rows that models' correlations are taken over


@dataclass(frozen=True)
class Bin:
    """Rows of like predictions: how many, what was predicted and what came true on average, and its 10-90 % range."""

    rows: int
    predicted: float
    actual: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass
class RowResults:
    """Of one model's out-of-fold predictions.

    Attributes:
        task: the task.
        outputs: classes or targets, as they are called.
        bins: output → bins of ascending prediction (of a multiclass task: the first class's of each row).
        lift: share of rows, from the highest prediction down → share of class 1; empty for other tasks.
        confusion: actual class → predicted class → rows; empty where there are no classes, or too many.
        correlations: model → model → rank correlation of their predictions.
    """

    task: str
    outputs: list[str]
    bins: dict[str, list[Bin]] = field(default_factory=dict)
    lift: list[tuple[float, float]] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    correlations: dict[str, dict[str, float]] = field(default_factory=dict)


def read_rows(run: Path, task: str, outputs: Sequence[str], best: str, models: Sequence[str]) -> RowResults | None:
    """Sum up a run's out-of-fold predictions.

    Args:
        run: the run directory.
        task: its task.
        outputs: the names of its classes or targets.
        best: the model whose predictions are looked at.
        models: the models whose predictions are correlated.

    Returns:
        The sums, or None where the run wrote no rows.

    Raises:
        UnreadableFileError: a file that is there cannot be read.
    """
    predicted = {m: values for m in models if (values := _predictions(run / "oof" / f"{m}.parquet")) is not None}
    made = RowResults(task, list(outputs))
    made.correlations = _correlations(predicted)
    path = run / "rows.parquet"
    if task == "ranking" or not path.exists() or best not in predicted:
        return made if made.correlations else None
    rows = _table(path)
    rows = rows.filter(pc.equal(rows["split"], "oof"))
    label = np.column_stack([rows[n].to_numpy() for n in rows.column_names if n.startswith("label_")])
    values = predicted[best]
    if len(values) != len(label):
        return made
    known = np.isfinite(values).all(1) & np.isfinite(label).all(1)
    label, values = label[known], values[known]
    if task == "multiclass":
        _add_classes(made, label[:, 0].astype(int), values)
        return made
    names = made.outputs[-1:] if task == "binary" else made.outputs
    for i, name in enumerate(names):
        made.bins[name] = _bins(values[:, i], label[:, i], spread=task == "regression")
    if task == "binary":
        made.lift = _lift(values[:, 0], label[:, 0])
        both = np.stack([1 - values[:, 0], values[:, 0]], 1)
        made.confusion = _confusion(label[:, 0].astype(int), both.argmax(1), 2)
    return made


def _add_classes(made: RowResults, label: np.ndarray, values: np.ndarray) -> None:
    first = values.argmax(1)
    right = (first == label).astype(float)
    made.bins["the class that is thought likeliest"] = _bins(values.max(1), right, spread=False)
    if values.shape[1] <= _MOST_CLASSES:
        made.confusion = _confusion(label, first, values.shape[1])


def _bins(predicted: np.ndarray, actual: np.ndarray, *, spread: bool) -> list[Bin]:
    order = np.argsort(predicted, kind="stable")
    made = []
    for rows in np.array_split(order, min(_BINS, len(order))):
        ends = np.quantile(actual[rows], [0.1, 0.9]) if spread else (np.nan, np.nan)
        made.append(Bin(len(rows), float(predicted[rows].mean()), float(actual[rows].mean()), *map(float, ends)))
    return made


def _lift(predicted: np.ndarray, actual: np.ndarray) -> list[tuple[float, float]]:
    found = np.concatenate([[0.0], np.cumsum(actual[np.argsort(-predicted, kind="stable")])])
    if not found[-1]:
        return []
    places = np.unique(np.linspace(0, len(actual), 21).round().astype(int))
    return [(float(p / len(actual)), float(found[p] / found[-1])) for p in places]


def _confusion(actual: np.ndarray, predicted: np.ndarray, classes: int) -> list[list[int]]:
    return np.bincount(actual * classes + predicted, minlength=classes**2).reshape(classes, classes).tolist()


def _correlations(predicted: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Spearman's: of the ranks of all predictions."""
    ranks: dict[str, np.ndarray] = {}
    for name, values in predicted.items():
        flat = values[np.linspace(0, len(values) - 1, min(len(values), _SAMPLE)).astype(int)].reshape(-1)
        if len(flat) and np.nanmin(flat) < np.nanmax(flat):  # a constant correlates with nothing
            ranks[name] = _ranks(flat)
    names = [n for n in ranks if len(ranks[n]) == len(next(iter(ranks.values())))]
    if len(names) < 2:
        return {}
    found = np.corrcoef(np.stack([ranks[n] for n in names]))
    return {a: {b: float(found[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of values, the mean rank among equal ones; missing ones at the middle."""
    _, inverse, counts = np.unique(
        np.nan_to_num(values, nan=np.nanmedian(values)), return_inverse=True, return_counts=True
    )
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _predictions(path: Path) -> np.ndarray | None:
    if not path.exists():
        return None
    table = _table(path)
    names = [n for n in table.column_names if n == "score" or n.startswith("prediction")]
    return np.column_stack([table[n].to_numpy() for n in names]) if names else None


def _table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(
            f"is not a Parquet file that can be read ({error})", file=path, remedy="Run again"
        ) from error
