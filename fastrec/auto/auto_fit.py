"""``fit``: a frame and its target in, scored and stacked models out, in a limit of time."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, read_json
from fastrec._core.memory import bytes_of, held, memory_limit, shown_bytes
from fastrec._core.progress import Stages
from fastrec.auto.problem import Asked
from fastrec.auto.workspace import WHICH_GROUP, new_competition
from fastrec.competition.budget import Budget
from fastrec.competition.predict import SavedRun
from fastrec.competition.run import load_competition, run_competition
from fastrec.errors import DataError, DataWarning, FastrecError, MissingFileError, WriteError
from fastrec.table import Table, column_names
from fastrec.table.read import check_names
from fastrec.validate.target import Task

_FORMS = ("scores", "ranks", "items")  # how a ranking is predicted
_WARNED = ("as_shown", "classes", "columns", "folds", "leak", "task", "test columns", "test target")
Preset = Literal["quick", "good", "best"]
_PRESETS: dict[str, float] = {"quick": 2.0, "good": 10.0, "best": 60.0}  # minutes


class Fit:
    """The result of ``fastrec.fit``; ``fastrec.load(folder)`` opens a saved one.

    The attribute ``run`` is the run directory, which ``fastrec predict`` and other commands take.

    Args:
        folder: the fit's folder. It holds ``competitions/mine`` (the recipe, as ``fastrec new`` writes it), ``data``
            and ``run``.
        temporary: remove the folder together with this object.

    Raises:
        MissingFileError: there is no fit in the folder.
    """

    def __init__(self, folder: str | Path, *, temporary: bool = False) -> None:
        self.folder = Path(folder)
        if not (self.folder / "run" / "config.json").is_file():
            remedy = "Give the folder that Fit.save has written, or fit(folder=…)"
            raise MissingFileError("there is no fit in it", file=folder, remedy=remedy)
        if temporary:
            weakref.finalize(self, shutil.rmtree, str(folder), ignore_errors=True)
        self.run = self.folder / "run"

    @cached_property
    def _saved(self) -> SavedRun:
        return SavedRun(self.run)

    @property
    def scores(self) -> dict[str, Any]:
        """The content of ``scores.json``."""
        return read_json(self.run / "scores.json")

    @property
    def score(self) -> float:
        """The stack's cross-fitted score."""
        return float(self.scores["oof"]["stack"])

    def leaderboard(self) -> pd.DataFrame:
        """Return the models' out-of-fold scores, the best first; the stack and its best part have an interval.

        Models that were left out come last, with the reason in the column ``left_out``.
        """
        scores = self.scores
        metric, intervals = scores["metric"], scores["intervals"]
        bounds = {n: intervals.get(n, (None, None, None)) for n in scores["oof"]}
        rows = [{"model": n, metric: s, "low": bounds[n][1], "high": bounds[n][2]} for n, s in scores["oof"].items()]
        left_out = read_json(self.run / "config.json").get("left_out", {})
        rows += [{"model": n, "left_out": why} for n, why in left_out.items()]
        up = bool(scores["greater_is_better"])
        return pd.DataFrame(rows).sort_values(metric, ascending=not up, kind="stable", ignore_index=True)

    def predict(
        self, df: Any, *, form: Literal["scores", "ranks", "items"] | None = None, log: str | Path | Any = None
    ) -> Any:
        """Predict rows: classes (their probabilities: ``predict_proba``), amounts, or the order within groups.

        In a binary task a row is ``positive`` from a probability of .5 on. With a metric of classes, such as ``f1``, it
        is so from the threshold that was best out of fold.

        Args:
            df: rows of any library, with the columns that the fit learned from, in any order.
            form: the form of a ranking's result. ``'scores'`` (also None): a number for each row, the higher the
                better. ``'ranks'``: each row's place in its group, 1 = the best. ``'items'``: the ordered items of each
                group.
            log: the events so far, for a ranking with a log; a file or a frame. None: the log of ``fit``.

        Returns:
            An array ``[n]``; of several targets a DataFrame ``[n, targets]``, with the index of a pandas frame. With
            ``form="ranks"`` int64 ``[n]``. With ``form="items"`` a DataFrame ``[groups, 2]`` of each group and its list
            of items; groups are in the order of their first rows.
        """
        target, decision = self._saved.target, self._saved.decision
        forms = (None, *_FORMS) if target is None else (None,)
        if form not in forms:
            remedy = f"Use one of {', '.join(_FORMS)}" if target is None else "Leave form= out"
            raise DataError(f"a {self._saved.task} task is not predicted as {form!r}", remedy=remedy)
        known = self.folder / "data" / "log.parquet"
        if log is not None and not known.is_file():
            raise DataError("the fit has learned from no log", remedy="Leave log= out, or give it to fit, too")
        events = {"log": known if log is None else log} if known.is_file() else None
        predicted = self._saved.predict(df, tables=events)
        if target is None:
            return self._ranked(df, predicted, form)
        if target.task == "regression" and predicted.ndim == 1:
            return predicted.numpy()
        if target.task in ("regression", "multilabel"):
            values = predicted if target.task == "regression" else (predicted >= 0.5).int()
            return pd.DataFrame(values.numpy(), _index(df), target.names)
        if decision.threshold is not None:
            chosen = decision.classes(predicted)
        else:
            chosen = predicted.argmax(1) if predicted.ndim == 2 else (predicted >= 0.5).long()
        return target.decode(chosen).to_numpy(zero_copy_only=False)

    def _ranked(self, df: Any, scores: torch.Tensor, form: str | None) -> Any:
        if form in (None, "scores"):
            return scores.numpy()
        names = [self._saved.config[n] for n in ("list_column", "item")]
        table = self._saved.read(df)
        groups, items = (table[n].to_arrow().to_pandas() for n in names)
        place, known = pd.factorize(groups)
        # Equal scores keep the order of the rows, as in a submission.
        best = np.lexsort((-scores.numpy(), place))
        if form == "ranks":
            ranks = np.empty(len(best), dtype=np.int64)
            ranks[best] = pd.Series(place[best]).groupby(place[best]).cumcount() + 1
            return ranks
        ordered: dict[int, list[Any]] = {i: [] for i in range(len(known))}
        for i, item in zip(place[best].tolist(), items.iloc[best].tolist(), strict=True):
            ordered[i].append(item)
        return pd.DataFrame({names[0]: known, names[1]: pd.Series(list(ordered.values()), dtype="object")})

    def predict_proba(self, df: Any) -> pd.DataFrame:
        """Predict the probability of each class: a DataFrame ``[n, classes]``, with the index of a pandas frame.

        Raises:
            DataError: the target has no classes.
        """
        target = self._saved.target
        if target is None:
            remedy = "Call predict; for the probability of each row by itself, fit with task='binary'"
            raise DataError("a ranking has scores, which are no probabilities", remedy=remedy)
        if target.task == "regression":
            raise DataError("amounts have no probabilities", remedy="Call predict")
        predicted = self._saved.predict(df)
        if target.task == "multilabel" or target.classes is None:
            return pd.DataFrame(predicted.numpy(), _index(df), target.names)
        wide = predicted if predicted.ndim == 2 else torch.stack([1 - predicted, predicted], 1)
        return pd.DataFrame(wide.numpy(), _index(df), target.classes.values.to_pylist())

    def save(self, folder: str | Path) -> Path:
        """Copy the recipe, the training rows and the run to a new folder, for ``fastrec.load``; return its path.

        Raises:
            DataError: there is something in the folder already.
        """
        folder = Path(folder)
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise DataError("there is something in the folder already", file=folder, remedy="Choose another folder")
        with atomic_folder(folder) as part:
            shutil.copytree(self.folder, part, dirs_exist_ok=True)
        return folder

    def explain(self, df: Any, *, of: Any = None, background: Any = None) -> pd.DataFrame:
        """Explain predictions by each raw column's contribution: see :meth:`fastrec.competition.SavedRun.explain`."""
        return self._saved.explain(df, of=of, background=background)

    def predict_interval(self, df: Any, level: float = 0.9) -> pd.DataFrame:
        """Predict amounts with intervals: see :meth:`fastrec.competition.SavedRun.predict_interval`."""
        return self._saved.predict_interval(df, level)

    def predict_set(self, df: Any, level: float = 0.9) -> pd.DataFrame:
        """Predict sets of classes: see :meth:`fastrec.competition.SavedRun.predict_set`."""
        return self._saved.predict_set(df, level)

    def report(self) -> Path:
        """Return the path of ``report.html``, to be opened in a browser."""
        return self.run / "report.html"

    def __repr__(self) -> str:
        return f"Fit({self.scores['task']}, {self.scores['metric']} {self.score:.5f} out of fold, {self.run})"


def load(folder: str | Path) -> Fit:
    """Open an earlier fit: a folder that ``Fit.save`` has written, or ``fit(folder=…)``.

    Raises:
        MissingFileError: there is no fit in the folder.
    """
    return Fit(folder)


def fit(
    df: Any,
    target: str | Sequence[str],
    *,
    metric: str | None = None,
    minutes: float | None = None,
    preset: Preset | None = None,
    test: Any = None,
    task: Task | None = None,
    group: str | None = None,
    item: str | None = None,
    time: str | None = None,
    log: str | Path | Any = None,
    owner: str | None = None,
    weight: str | None = None,
    counted: str | None = None,
    positive: Any = None,
    ids: Sequence[str] = (),
    refit: bool | None = None,
    memory: str | int | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Fit:
    """Learn to predict a column of a frame: features, models and a stack, chosen and scored out of fold.

    It is ``fastrec new`` and ``fastrec run`` in one; the recipe is ``fit.folder / "competitions/mine"``. For class
    weights, further metrics or features of your own edit that file (:class:`fastrec.competition.Competition`), then
    call ``run_competition`` or ``fastrec run``.

    Args:
        df: the rows: a frame of pandas, polars, Arrow, cuDF, or a dict of columns. Rows without a target are passed
            over where ``test`` is given, else they are predicted. A pandas index is not learned from.
        target: the column to predict; several are multilabel if each is 0 or 1, else a regression.
        metric: the metric to optimize; None: the task's usual one.
        minutes: wall time for all, .05 at least; None: 5, or what ``preset`` says.
        preset: minutes by name: ``'quick'`` 2, ``'good'`` 10, ``'best'`` 60.
        test: rows to predict; folds are cut as they were: by time, by group, or at random. Without them folds are at
            random, and a warning names columns that suggest another cut.
        task: None: derived from the target's values; if one row of each group is a 1, a ranking.
        group: the column whose value several rows share. Rows of a session or the like are candidates, and the task is
            a ranking, if at most one of them has label 1, or if labels are grades and the candidates or the groups
            (``session_id``, ``query``) are named so. Else each row is predicted by itself, and no fold splits a group
            (a patient, a user). ``task`` decides; a doubtful choice is warned of.
        item: of a ranking the column that names the candidates; None: it is looked for, else rows are items.
        time: the column of times that folds go by: each learns from earlier rows alone; None: as ``test`` is cut.
            Without ``test`` later rows of a table are predicted by models of all rows (``refit``).
        log: of a ranking the events of sessions or users, a file or a frame, for features of what was before each
            group. Item, time and session (or user) have the candidates' names and types; another column may hold the
            kind of an event. Events at or after the time of a group are not used for it.
        owner: the column of ``log`` and candidates with the session or user of an event; None: it is looked for.
        weight: the column of the rows' weights in training, 0 or more. It is not learned from, and rows to predict may
            lack it. Scores count all rows alike.
        counted: of a ranking a column that is 1 for lists that are scored and 0 for others, which only teach; rows to
            predict may lack it. Without ``time`` folds keep the lists of one user together.
        positive: of a binary task the class that probabilities are for; None: the later in sorted order.
        ids: columns that are not learned from.
        refit: predict by models of all training rows, not by the mean of the folds' models; None: if folds go by time.
        memory: how much the process may hold, such as ``"4GB"``; models that would take more are left out, and
            ``leaderboard`` names them. None: the limit of the control group, or all of the machine's.
        folder: where recipe, data and run are kept, without an earlier fit in it; None: a temporary folder that lives
            as long as the result.
        seed: of everything random.
        device: where to compute.
        quiet: show nothing.

    Raises:
        MissingColumnError: the frame lacks the target.
        FastrecError: there is nothing to learn from, too little time, or an earlier fit in the folder.

    Example:
        >>> fastrec.fit(df, "income", metric="auc", minutes=5).leaderboard()  # doctest: +SKIP
        >>> fitted = fastrec.fit(clicks, "clicked", group="session_id", metric="mrr")  # doctest: +SKIP
        >>> fitted.predict(new_sessions, form="items")  # doctest: +SKIP
    """
    if preset is not None and (preset not in _PRESETS or minutes is not None):
        told = "a name of minutes, and minutes are given, too" if preset in _PRESETS else "no name of minutes"
        raise DataError(f"preset={preset!r} is {told}", remedy=f"Give one of {', '.join(_PRESETS)}, or minutes=")
    minutes = _PRESETS.get(str(preset), 5.0) if minutes is None else minutes
    for what, value, kind in (("minutes", minutes, Real), ("seed", seed, Integral)):
        if not isinstance(value, kind):
            problem = f"{what}={value!r} is no {'whole ' * (kind is Integral)}number"
            raise DataError(problem, remedy="Give a number")
    if not minutes >= limits.FIT_MINUTES:  # not a number is refused, too
        remedy = f"Give {limits.FIT_MINUTES} or more"
        raise DataError(f"minutes is {minutes}, which is too little to learn in", remedy=remedy)
    most = memory_limit() if memory is None else bytes_of(memory)
    if memory is not None and most < held():
        problem = f"memory={memory!r} is {shown_bytes(most)}, and this process holds {shown_bytes(held())} already"
        raise DataError(problem, remedy="Give more: a number is bytes, or write text such as '4GB'")
    budget = Budget(minutes, memory=most)
    tables = {"train": _arrow(df)} | ({} if test is None else {"test": _arrow(test)})
    tables |= {} if log is None else {"log": _arrow(log)}
    indices = [d.index for d in (df, test) if isinstance(d, pd.DataFrame)]
    lost = [i for i in indices if i.nlevels > 1 or i.name is not None]
    if lost:  # said once, not for each frame
        named = ", ".join(str(n) for n in lost[0].names if n is not None) or "of several levels"
        what = f"the frame's index ({named}) is not learned from; call reset_index() if it should be"
        warnings.warn(what, DataWarning, stacklevel=2)
    if not isinstance(target, str):  # a frame's names may be numbers, or pairs
        named = isinstance(target, Hashable) and target in list(column_names(df))
        several = isinstance(target, list | tuple | pd.Index) and all(isinstance(t, Hashable) for t in target)
        if not (named or several):
            problem = f"target= names a column or several, and this is of type {type(target).__name__}"
            raise DataError(problem, remedy="Make the values a column of the table, and give its name")
        target = str(target) if named else [str(t) for t in target]
    check_names(tables["train"].column_names, [target] if isinstance(target, str) else target)
    own_log = None if log is None else "log.parquet"
    asked = Asked(
        target, metric, task, group, item, time, own_log, owner, weight, counted, positive, ids, refit, minutes
    )
    where = Path(tempfile.mkdtemp(prefix="fastrec-") if folder is None else folder)
    recipe, data = where / "competitions" / "mine", where / "data"
    if recipe.exists() or data.exists():
        remedy = "Choose another folder, or remove it; fastrec.load(folder) opens an earlier fit"
        raise DataError("there is something in the folder already", file=where, remedy=remedy)
    stages = Stages(quiet=quiet)
    # A fifth of the time, at most a minute, goes to trying features; of a ranking twice that: they decide most.
    seconds = min(0.2 * 60 * minutes, 60.0) * (1 + (task == "ranking" or (group is not None and task is None)))
    try:
        try:
            data.mkdir(parents=True)
        except OSError as error:
            problem = f"no folder can be made there ({error.strerror})"
            raise WriteError(problem, file=where, remedy="Choose another folder") from error
        for name, table in tables.items():
            pq.write_table(table, data / f"{name}.parquet")
        made = new_competition(recipe, data, asked, ask=_answer, seconds=seconds, say=stages.say)
        for d in made.decisions:
            if d.what in _WARNED and not d.sure:
                warnings.warn(f"{d.what}: {d.why}", DataWarning, stacklevel=2)
        options: dict[str, Any] = {"device": device, "seed": seed, "stages": stages, "minutes": budget}
        run_competition(load_competition(recipe), data, where / "run", resume=True, **options)
    except BaseException as error:
        if folder is None or not recipe.exists():  # with a recipe `fastrec run` can go on
            shutil.rmtree(data if folder is not None else where, ignore_errors=True)
        if folder is None and isinstance(error, FastrecError) and (error.file or "").startswith(str(where)):
            said = {"column": error.column, "row": error.row, "remedy": error.remedy}
            raise type(error)(error.problem, **said) from None  # the file is gone, and was none of the caller's
        raise
    return Fit(where, temporary=folder is None)


def _answer(question: str, answer: str) -> str:
    """Take the likeliest answer, but guess no groups: other groups are another problem."""
    if question.startswith(WHICH_GROUP):
        why = question.removeprefix(WHICH_GROUP).strip(" ()")
        problem = f"it is not plain which rows are candidates of one group. It may be {answer}: {why}"
        raise DataError(problem, remedy=f"Write group={answer!r}, or the column that it is")
    return answer


def _arrow(df: Any) -> pa.Table:
    df = Table.read(df) if isinstance(df, str | Path) else df
    check_names([str(n) for n in column_names(df)], None)
    return df if isinstance(df, pa.Table) else Table.read(df).to_arrow()


def _index(df: Any) -> pd.Index | None:
    return df.index if isinstance(df, pd.DataFrame) else None
