"""``fit``: a frame and its target in, scored and stacked models out, in a limit of time."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fastrec._core.progress import Stages
from fastrec.auto.workspace import new_competition
from fastrec.competition.budget import Budget
from fastrec.competition.load import load_competition
from fastrec.competition.predict import SavedRun
from fastrec.competition.run import run_competition
from fastrec.errors import DataError
from fastrec.table import Table, column_names
from fastrec.table.read import check_names
from fastrec.validate.tasks import Task

_FOR_FEATURES, _FOR_FEATURES_AT_MOST = 0.2, 60.0  # share of the time, seconds


class Fit:
    """What ``fastrec.fit`` has learned.

    Args:
        folder: holds ``competitions/mine`` (the recipe, as ``fastrec new`` writes it), ``data`` and ``run``.
        temporary: the folder goes when this does.

    Attributes:
        run: the run directory: scores, models, report; what ``fastrec predict``, ``try`` and ``report`` take.
    """

    def __init__(self, folder: str | Path, *, temporary: bool = False) -> None:
        self.folder = Path(folder)
        if temporary:
            weakref.finalize(self, shutil.rmtree, str(folder), ignore_errors=True)
        self.run = self.folder / "run"
        self._saved: SavedRun | None = None

    @property
    def scores(self) -> dict[str, Any]:
        """What ``scores.json`` says."""
        return json.loads((self.run / "scores.json").read_text(encoding="utf-8"))

    @property
    def score(self) -> float:
        """The stack's cross-fitted score."""
        return float(self.scores["oof"]["stack"])

    def leaderboard(self) -> pd.DataFrame:
        """Every model and its out-of-fold score, the best first; of the stack and its best part with the interval."""
        found = self.scores
        rows = [
            {"model": n, found["metric"]: s, "low": None, "high": None} | _interval(found, n)
            for n, s in found["oof"].items()
        ]
        up = bool(found["greater_is_better"])
        return pd.DataFrame(rows).sort_values(found["metric"], ascending=not up, kind="stable", ignore_index=True)

    def predict(self, df: Any) -> Any:
        """What rows are predicted to be: classes, or amounts.

        Args:
            df: rows of any library, with the columns that were learned from, in any order.

        Returns:
            An array ``[n]``; of several targets a DataFrame ``[n, targets]``, with the index of a pandas frame.
        """
        saved = self._read()
        made = saved.predict(df)
        target = saved.target
        assert target is not None
        if target.task == "regression":
            return made.numpy() if made.ndim == 1 else pd.DataFrame(made.numpy(), _index(df), target.names)
        if target.task == "multilabel":
            return pd.DataFrame((made >= 0.5).int().numpy(), _index(df), target.names)
        chosen = saved.decision.classes(made) if saved.decision.threshold is not None else _likeliest(made)
        return target.decode(chosen).to_numpy(zero_copy_only=False)

    def predict_proba(self, df: Any) -> pd.DataFrame:
        """The probability of each class: a DataFrame ``[n, classes]``, with the index of a pandas frame.

        Raises:
            DataError: the target has no classes.
        """
        saved = self._read()
        target = saved.target
        assert target is not None
        if target.task == "regression":
            raise DataError("amounts have no probabilities", remedy="Call predict")
        made = saved.predict(df)
        if target.task == "multilabel" or target.classes is None:
            return pd.DataFrame(made.numpy(), _index(df), target.names)
        wide = made.numpy() if made.ndim == 2 else pd.DataFrame({0: 1 - made.numpy(), 1: made.numpy()}).to_numpy()
        return pd.DataFrame(wide, _index(df), target.classes.values.to_pylist())

    def report(self) -> Path:
        """The report: the page ``report.html`` (open it in a browser)."""
        return self.run / "report.html"

    def _read(self) -> SavedRun:
        if self._saved is None:
            self._saved = SavedRun(self.run)
        return self._saved

    def __repr__(self) -> str:
        found = self.scores
        return f"Fit({found['task']}, {found['metric']} {self.score:.5f} out of fold, {self.run})"


def fit(
    df: Any,
    target: str | Sequence[str],
    *,
    metric: str | None = None,
    minutes: float = 5.0,
    test: Any = None,
    task: Task | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Fit:
    """Learn to predict a column of a frame: features, models and a stack, chosen and scored out of fold.

    It is ``fastrec new`` and ``fastrec run`` in one: the recipe that it makes lies in ``fit.folder``, in
    ``competitions/mine``.

    Args:
        df: the rows: a frame of pandas, polars, Arrow, cuDF, or a dict of columns. Rows without a target are passed
            over where ``test`` is given, else they are predicted.
        target: the column, or columns, to predict.
        metric: what to be good at; None: the task's usual one.
        minutes: wall time for all.
        test: rows to predict, from which it is seen how they were cut (by time, by group, at random).
        task: None: what the target's values say.
        folder: where recipe, data and run are kept; None: a temporary folder that lives as long as the result.
        seed: of everything random.
        device: where to compute.
        quiet: show nothing.

    Returns:
        ``.leaderboard()``, ``.predict(df)``, ``.predict_proba(df)``, ``.report()``.

    Raises:
        FastrecError: there is nothing to learn from.

    Example:
        >>> import fastrec
        >>> fitted = fastrec.fit(df, "income", metric="auc", minutes=5)  # doctest: +SKIP
        >>> fitted.leaderboard()  # doctest: +SKIP
    """
    began = time.monotonic()
    where = Path(tempfile.mkdtemp(prefix="fastrec-") if folder is None else folder)
    data = where / "data"
    data.mkdir(parents=True, exist_ok=True)
    if not isinstance(target, str):  # a frame's names may be numbers, or pairs
        target = str(target) if target in list(column_names(df)) else [str(t) for t in target]
    pq.write_table(_arrow(df), data / "train.parquet")
    if test is not None:
        pq.write_table(_arrow(test), data / "test.parquet")
    stages = Stages(quiet=quiet)
    seconds = min(_FOR_FEATURES * 60 * minutes, _FOR_FEATURES_AT_MOST)
    made = new_competition(
        where / "competitions" / "mine", data, target=target, metric=metric, task=task, seconds=seconds, say=stages.say
    )
    run_competition(
        load_competition(made.folder),
        data,
        where / "run",
        device=device,
        seed=seed,
        stages=stages,
        resume=True,
        minutes=Budget(minutes, began=began),
    )
    return Fit(where, temporary=folder is None)


def _arrow(df: Any) -> pa.Table:
    """A frame as Arrow, its names as text.

    Raises:
        DataError: values that no column can hold, naming the column.
    """
    check_names([str(n) for n in column_names(df)], None)
    return df if isinstance(df, pa.Table) else Table.read(df).to_arrow()


def _index(df: Any) -> pd.Index | None:
    return df.index if isinstance(df, pd.DataFrame) else None


def _interval(found: dict[str, Any], name: str) -> dict[str, float]:
    known = found["intervals"].get(name)
    return {} if known is None else {"low": known[1], "high": known[2]}


def _likeliest(made: Any) -> Any:
    return made.argmax(1) if made.ndim == 2 else (made >= 0.5).long()
