"""``Competition``: what a competition's recipe says; ``fastrec.competition.run_competition`` carries it out."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fastrec.competition.data import CompetitionData
from fastrec.competition.data_folder import read_folder
from fastrec.competition.reading import Reading
from fastrec.errors import DataError

if TYPE_CHECKING:  # `import fastrec.competition` is quick: what a run needs is imported when one begins
    from fastrec.competition.events_before import EventsBefore
    from fastrec.competition.forms.list_form import SubmissionFormat
    from fastrec.competition.forms.value_form import ValueForm
    from fastrec.estimators import Estimator
    from fastrec.features import FeatureSet
    from fastrec.metrics import Metric
    from fastrec.stacking import Stack
    from fastrec.table import Table
    from fastrec.validate import Folds, Target
    from fastrec.validate.target import Scale
    from fastrec.validate.tasks import Task


@dataclass(frozen=True)
class Kind:
    """How a kind of recipe is carried out.

    Args:
        steps: ``module:NAME`` of the steps, functions of the run's record, in their order; imported when a run begins.
        options: the options that it can use, of those that not every kind can.
        record: ``module:Name`` of the record.
        keeps_parts: an interrupted run continues from its finished parts.
    """

    steps: str
    options: frozenset[str] = frozenset()
    record: str = "fastrec.competition.run_record:Run"
    keeps_parts: bool = False

    def load(self) -> tuple[type, list[Callable[[Any], None]]]:
        """Import the record and the steps."""
        return resolve_name(self.record), resolve_name(self.steps)


class Competition(ABC):
    """A recipe: which rows, which features, which models. ``fastrec run`` carries it out.

    A table with a target needs ``name``, ``task`` and ``target``; everything else has a default that one overrides.

    Attributes:
        name: the competition.
        task: ``'ranking'``, ``'binary'``, ``'multiclass'``, ``'regression'`` or ``'multilabel'``; None: what the target
            says, where it is plain.
        metric: what the score is, such as ``'auc'`` or a ``Metric``; None: the task's usual one.
        also: other metrics to report.
        target: the column, or columns, to predict; in a ranking task ``label`` instead.
        ids: columns that name a row: they are not learned from.
        drop: other columns that are not learned from.
        positive: a binary task's class 1; None: the later value in sorted order.
        scale: amounts are learned as their ``'log'`` or ``'log1p'``.
        class_weight: ``'balanced'``: each class counts as much as any other.
        weight: a column: how much a row, or a list, counts in training; None: all alike.
        fold_key: what validation folds must not split (a session, a user, a customer); None: a list, or a row.
        time: a column of times: folds are in its order, each trained on what came before; None: at random.
        time_gap: what is left out between training and scored rows, in the unit of ``time``.
        time_horizon: how long a scored block lasts, in the unit of ``time``; None: a share of the rows.
        n_folds: how many validation folds there are.
        history: features look back to training rows from the rows to predict (lags of a series): the target of rows
            that are scored is hidden from them.
        refit: test rows are predicted by models of all training rows; False: by the mean of the folds' models, which is
            the steadier where folds are at random. With ``time`` the folds' models lack the last rows: it is on then,
            where there are test rows.
        list_column: ranking: the list of each candidate, int64.
        label: ranking: 1 for the candidate that was chosen.
        item: ranking: the candidate's id, as submitted.
        counted: ranking: a column: lists where it is 1 are like the test's, and scores are over these; None: all.
        touched: ranking: a column: above 0 where the candidate was known before, for the report; None: not reported.
        events: ranking: what rankers that read the session (``SessionRanker``) are given of it; None: nothing.
        reading: how the files are read: their names where these are not ``train`` and ``test``, headers, separators,
            columns of text that are times or numbers.
        submission: the form of the submission; None: ``sample_submission.csv``'s, or ids and the target.
    """

    _kind: ClassVar[Kind] = Kind(
        "fastrec.competition.table_run:TABLE",
        frozenset({"bs", "minutes", "ranks", "scheduler"}),
        "fastrec.competition.table_record:TableRun",
        keeps_parts=True,
    )
    name: str
    task: Task | None = None
    metric: str | Metric | None = None
    also: Sequence[str] = ()
    target: str | Sequence[str] | None = None
    ids: Sequence[str] = ()
    drop: Sequence[str] = ()
    positive: Any = None
    scale: Scale | None = None
    class_weight: str | None = None
    weight: str | None = None
    fold_key: str | None = None
    time: str | None = None
    time_gap: Any = 0
    time_horizon: Any = None
    n_folds: int = 5
    history = False
    refit: bool | None = None
    list_column = "list_id"
    label = "clicked"
    item = "item_id"
    counted: str | None = None
    touched: str | None = None
    events: EventsBefore | None = None
    reading: Reading = Reading()
    submission: SubmissionFormat | ValueForm | None = None
    cold_folds: Collection[int] = ()  # of a retrain: folds that score rows which a warm start has learned from

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        """Read the files and lay out the rows; by default ``train``, ``test`` and any other CSV or Parquet files.

        Where there is no test, rows of ``train`` whose target is missing are the rows to predict. Candidates of a
        ranking are brought together by their lists.

        Args:
            data: the folder.
            rows: use only about this many training rows.
            device: where the tables go.
        """
        found = read_folder(data, rows=rows, device=device, reading=self.reading)
        if self.task == "ranking":
            return _by_list(found, self.list_column)
        names = [self.target] if isinstance(self.target, str) else list(self.target or ())
        return _test_apart(found, names) if found.test is None and names else found

    def features(self) -> FeatureSet | None:
        """Return the features; None: the columns as they are."""
        return None

    @property
    def categories(self) -> Sequence[str] | None:
        """The columns that are categories; None: text, booleans and categories among the columns of the files.

        Of a ranking's items only where they are named here.
        """
        return None

    @property
    def plain(self) -> Sequence[str] | None:
        """Columns of the files that are number features as they are; None: all numbers.

        Never those that the recipe names for something else, such as ids, lists, labels and weights.
        """
        return None

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        """Return the folds that everything is scored by.

        By ``time`` where it is given; else whole groups of ``fold_key`` (in a ranking task whole lists); else
        stratified by class, or at random.
        """
        from fastrec.validate import Folds

        train = found.train
        if self.time is not None:
            return Folds.time_series(train, self.time, self.n_folds, gap=self.time_gap, horizon=self.time_horizon)
        if target is None:
            return Folds.group(train, self.fold_key or self.list_column, self.n_folds)
        if self.fold_key is not None:
            return Folds.group(train, self.fold_key, self.n_folds)
        if target.task in ("binary", "multiclass"):
            return Folds.stratified(train, target.encode(train).long(), self.n_folds)
        return Folds.kfold(len(train), self.n_folds)

    def baselines(self) -> Sequence[Estimator]:
        """Return rules to compare with: estimators without parameters."""
        from fastrec.estimators import ConstantModel

        return [] if self.task == "ranking" else [ConstantModel("constant")]

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        """Return the base models of the stack; by default XGBoost, a net and, if it is installed, LightGBM.

        Args:
            bs: the nets' batch size; None: their own.
        """
        from fastrec.estimators import LGBMModel, NetModel, NetRanker, XGBModel, XGBRanker

        weight = self.class_weight
        models: list[Estimator] = [XGBModel("xgb", class_weight=weight), NetModel("net", bs=bs, class_weight=weight)]
        if self.task == "ranking":
            weight, models = None, [NetRanker("net", bs=bs), XGBRanker("xgb")]
        if find_spec("lightgbm") is not None:
            models.insert(1, LGBMModel("lgbm", class_weight=weight))
        return models

    def stack(self) -> Stack:
        """Return the second level."""
        from fastrec.stacking import Stack

        return Stack()

    def find_target(self, train: Table) -> Target | None:
        """Return the target; None in a ranking task.

        Raises:
            DataError: the recipe names no target, or the target does not fit the task.
        """
        from fastrec.validate import Target

        if self.task == "ranking":
            return None
        if self.target is None:
            raise DataError(
                f"{self.name}: the recipe names no target", remedy="Write target = 'the column', or task = 'ranking'"
            )
        task = self.task or _task_of_metric(self.metric)
        return Target.fit(train, self.target, task, positive=self.positive, scale=self.scale)


def _by_list(found: CompetitionData, name: str) -> CompetitionData:
    """Sort the candidates by their lists."""
    train, test = (
        t if t is None or name not in t else t.take(torch.argsort(t[name].group_numbers(), stable=True))
        for t in (found.train, found.test)
    )
    return replace(found, train=train, test=test)


def _test_apart(found: CompetitionData, names: Sequence[str]) -> CompetitionData:
    """Take the rows without a target as the test."""
    train = found.train
    missing = torch.zeros(len(train), dtype=torch.bool, device=train.device)
    for name in (n for n in names if n in train):
        missing |= train[name].is_missing()
    if not bool(missing.any()) or bool(missing.all()):
        return found
    test = train.take(missing.nonzero().squeeze(1)).drop([n for n in names if n in train])
    return replace(found, train=train.take((~missing).nonzero().squeeze(1)), test=test)


def _task_of_metric(metric: str | Metric | None) -> Task | None:
    """Return the one task that a metric can score, if it is one."""
    from fastrec.metrics import get_metric

    tasks = [t for t in get_metric(metric).tasks if t != "ranking"] if metric is not None else []
    return tasks[0] if len(tasks) == 1 else None  # type: ignore[return-value]
