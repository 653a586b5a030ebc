"""Files of labels and predictions of the same rows → the metric over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fastrec.competition import SavedRun
from fastrec.competition.reading import Reading
from fastrec.errors import DataError, MissingColumnError
from fastrec.metrics import as_scored, get_metric
from fastrec.monitor.over_time import Every, metric_over_time
from fastrec.monitor.sides import as_read, is_run, prediction_columns, read_table
from fastrec.table import Column, Table

__all__ = ["over_time_of_files"]


def over_time_of_files(
    reference: Path,
    new: Path,
    scores: Path,
    labels: Path,
    *,
    time: str,
    every: Every,
    metric: str | None,
    groups: str | None,
    trust: Sequence[str] = (),
) -> pd.DataFrame:
    """Compute the metric by period.

    Args:
        reference: where it is a run, its metric, its target and its list column are known.
        new: the rows.
        scores: their predictions.
        labels: their labels, a column of the run's target or label, or a single one.
        time: a column of the rows, or of the labels.
        every: how long a period is.
        metric: its name; None: the run's.
        groups: a column of the rows; None: the run's list column, in a ranking task.
        trust: modules of the run's own that may be imported.

    Raises:
        FastrecError: a file or a column is not there, or the files are not of the same rows.
    """
    run = SavedRun(reference, trust=trust) if is_run(reference) else None
    reading = Reading() if run is None else run.reading
    rows = read_table(new, ("test", "train"), reading)
    truth = as_read(read_table(labels, ("test", "train")), reading)  # a file of its own, but values of the recipe's
    if len(rows) != len(truth):
        raise DataError(f"{len(truth)} labels of {len(rows)} rows", file=labels, remedy="Give one for each row")
    if run is None and metric is None:
        raise DataError("which metric is not known", remedy="Give --metric, or a run as reference")
    columns = [c.number().numpy() for c in prediction_columns(scores).values()]
    prediction = columns[0] if len(columns) == 1 else np.column_stack(columns)
    label = _labels(truth, run, labels)
    if groups is None and run is not None and run.target is None:
        groups = run.config["list_column"]
    used = get_metric(metric or (run.config["metric"] if run is not None else None))
    if len(label) == len(prediction):  # else ``metric_over_time`` refuses them, with all lengths
        # The run's own metric is of classes cut by thresholds of other folds; a fixed 0.5 would look like a loss.
        prediction = as_scored(used, label, prediction, np.zeros(len(label), np.int64)).numpy()
    return metric_over_time(
        used,
        label,
        prediction,
        _column((rows, truth), time, new),
        every=every,
        groups=None if groups is None else _column((rows, truth), groups, new).coded().codes.numpy(),
    )


def _labels(truth: Table, run: SavedRun | None, file: Path) -> np.ndarray:
    """Return the labels as the metric takes them: on the target's own scale, with classes as numbers."""
    if run is not None and run.target is not None and all(n in truth for n in run.target.names):
        return run.target.restore(run.target.encode(truth)).numpy()
    names = [run.config["label"]] if run is not None and run.target is None else []
    names = [n for n in names if n in truth] or [n for n in truth.names if truth[n].plain().kind == "number"]
    if len(names) != 1:
        raise DataError(
            f"which column holds labels cannot be told ({', '.join(names[:8]) or 'no numbers'})", file=file,
            remedy="Give a file with that column alone",
        )  # fmt: skip
    return truth[names[0]].plain().number().numpy()


def _column(tables: tuple[Table, Table], name: str, file: Path) -> Column:
    found = next((t[name] for t in tables if name in t), None)
    if found is None:
        raise MissingColumnError("there is no such column", file=file, column=name, remedy=", ".join(tables[0].names))
    return found
