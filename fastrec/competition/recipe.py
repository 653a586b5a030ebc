"""``Competition``: a competition's recipe, which ``fastrec.competition.run_competition`` runs."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
import warnings
from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from fastrec.competition.reading import CompetitionData, Reading, read_folder, with_row_numbers
from fastrec.errors import DataError, DataWarning
from fastrec.metrics import Metric, get_metric
from fastrec.table import Table
from fastrec.validate import Folds, ListEvents, Target
from fastrec.validate.cuts import first_in_group

if TYPE_CHECKING:
    from fastrec.competition.forms.rows import SubmissionForm
    from fastrec.estimators import Estimator
    from fastrec.features import FeatureSet
    from fastrec.stacking import Stack
    from fastrec.validate.target import Scale, Task


@dataclass(frozen=True)
class Kind:
    """Steps and options of one kind of recipe."""

    # ``module:NAME`` of the ordered steps, functions of the run's record; imported when a run begins
    steps: str
    options: frozenset[str] = frozenset()  # options that it supports, of those that not every kind does
    record: str = "fastrec.competition.run_record:Run"  # ``module:Name`` of the record
    keeps_parts: bool = False  # an interrupted run continues from its finished parts

    def load(self) -> tuple[type, list[Callable[[Any], None]]]:
        """Import the record and the steps."""
        return resolve_name(self.record), resolve_name(self.steps)


class Competition(ABC):
    """A recipe: rows, features, models. ``fastrec run`` runs it.

    A table with a target needs ``name``, ``task`` and ``target``; everything else has a default to override.

    Attributes:
        name: the competition.
        task: ``'ranking'``, ``'binary'``, ``'multiclass'``, ``'regression'`` or ``'multilabel'``; None: inferred from
            the target, if it is unambiguous.
        metric: the score, such as ``'auc'`` or a ``Metric``; None: the task's usual one.
        also: other metrics to report.
        target: the column, or columns, to predict; in a ranking task ``label`` instead.
        ids: columns that name a row: no features.
        drop: other columns to leave out of training.
        positive: a binary task's class 1; None: the later value in sorted order.
        scale: train on the ``'log'`` or ``'log1p'`` of amounts.
        class_weight: ``'balanced'``: all classes have the same total weight.
        weight: the column with the training weight of a row, or a list; None: equal weights.
        fold_key: a column whose values folds must not split (a session, a user, a customer); None: a list, or a row.
        time: a column of times: folds are in its order, each trained on earlier rows; None: at random.
        time_gap: the gap between training and scored rows, in the unit of ``time``.
        time_horizon: the length of a scored block, in the unit of ``time``; None: a share of the rows.
        last_of: ranking: a column, such as a session. With ``time``, folds are at random and score the last list of
            each of its values, like a test whose lists follow earlier ones.
        n_folds: number of folds.
        history: features of rows to predict look back to training rows (lags of a series); the target of scored rows is
            hidden from them.
        refit: predict test rows by models of all training rows; False: by the mean of the folds' models, which has less
            variance if folds are at random. None: True with ``time`` and test rows, as the folds' models lack the last
            rows.
        list_column: ranking: the list of each candidate, int64.
        label: ranking: 1 for the chosen candidate.
        item: ranking: the candidate's id, as submitted; ``'row_number'``: its place in the file, if it has no id.
        as_shown: ranking: rows of a list are in the order shown, which breaks ties; False: rows of a list are shuffled,
            as their order may leak the label.
        counted: ranking: a column: scores are over the lists where it is 1, which resemble the test's; None: all.
        touched: ranking: a column: above 0 if the candidate was known before, for the report; None: not reported.
        position: ranking: a column of the training rows with the place (1, 2, …) at which a row was shown; None:
            position bias is not modelled. Rows to predict need no such column: they are scored as if shown first.
        position_as: ranking: ``'feature'``: the place is a feature; ``'weights'``: lists are weighted by the inverse
            examination of their clicks' places (``fastrec.competition.scoring``).
        calibrate: ranking: convert scores to probabilities of being relevant, fitted out of fold: ``'platt'``, which
            keeps every order, or ``'isotonic'``, which may create ties. None: no calibration.
        events: ranking: the session's events for rankers that read them (``SessionRanker``); None: none.
        reading: how to read the files: their names if not ``train`` and ``test``, headers, separators, text columns of
            times or numbers.
        submission: the form of the submission; None: ``sample_submission.csv``'s, or ids and the target.
    """

    _kind: ClassVar[Kind] = Kind(
        "fastrec.competition.table_run:TABLE",
        frozenset({"bs", "minutes", "ranks", "scheduler"}),
        "fastrec.competition.run_record:TableRun",
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
    last_of: str | None = None
    n_folds: int = 5
    history = False
    refit: bool | None = None
    list_column = "list_id"
    label = "clicked"
    item = "item_id"
    as_shown = True
    counted: str | None = None
    touched: str | None = None
    position: str | None = None
    position_as: Literal["feature", "weights"] = "feature"
    calibrate: Literal["platt", "isotonic"] | None = None
    events: EventsBefore | None = None
    reading: Reading = Reading()
    submission: SubmissionForm | None = None
    cold_folds: Collection[int] = ()  # of a retrain: folds that score rows which a warm start was trained on

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        """Read the files into tables; by default ``train``, ``test`` and any other CSV or Parquet files.

        Without a test file, the rows of ``train`` with a missing target (in a ranking whole lists) are the rows to
        predict. Candidates of a ranking are sorted by list.

        Args:
            data: the folder.
            rows: use only about this many training rows.
            device: where the tables go.
        """
        found = read_folder(data, rows=rows, device=device, reading=self.reading)
        train, test = found.train, found.test
        if self.task == "ranking":
            return self._lists_together(found)
        names = [n for n in ([self.target] if isinstance(self.target, str) else self.target or ()) if n in train]
        if test is not None or not names:
            return found
        missing = torch.stack([train[n].is_missing() for n in names]).any(0)
        if not bool(missing.any()) or bool(missing.all()):
            return found
        test = train.take(missing.nonzero().squeeze(1)).drop(names)
        return replace(found, train=train.take((~missing).nonzero().squeeze(1)), test=test)

    def _lists_together(self, found: CompetitionData) -> CompetitionData:
        name, label, truth = self.list_column, self.label, found.truth
        train, test = (None if t is None else with_row_numbers(t, self.item) for t in (found.train, found.test))
        if isinstance(truth, Table) and name in truth:
            truth = with_row_numbers(truth, self.item)
        if label in train and name in train:
            # A list without labels is to be predicted.
            groups = train[name].group_numbers()
            unknown = torch.isin(groups, groups[~train[label].is_missing()], invert=True)
            if bool(unknown.any()) and not bool(unknown.all()):
                test = train.take(unknown.nonzero().squeeze(1)).drop([label]) if test is None else test
                train = train.take((~unknown).nonzero().squeeze(1))
        made = []
        for table in (train, test):
            if table is not None and name in table:
                if not self.as_shown:
                    draw = torch.Generator().manual_seed(0)
                    table = table.take(torch.randperm(len(table), generator=draw).to(table.device))
                table = table.take(torch.argsort(table[name].group_numbers(), stable=True))
            made.append(table)
        return replace(found, train=made[0], test=made[1], truth=truth)

    def features(self) -> FeatureSet | None:
        """Return the features; None: the raw columns."""
        return None

    @property
    def categories(self) -> Sequence[str] | None:
        """The categorical columns; None: text, booleans and categories of the files.

        A ranking's items are categories only if named here.
        """
        return None

    @property
    def plain(self) -> Sequence[str] | None:
        """Columns of the files that are numerical features; None: all numbers.

        Columns with a role, such as ids, lists, labels and weights, are never among them.
        """
        return None

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        """Return the folds that everything is scored by.

        They are by ``last_of``, else by ``time`` (in a ranking task a list's time is that of its first row), if given.
        Else they are whole groups of ``fold_key`` (in a ranking task whole lists), else stratified by class, or random.
        """
        train = found.train
        if self.last_of is not None:
            return Folds.last(train, self.list_column, self.last_of, self.time, self.n_folds)
        if self.time is not None:
            if target is None and self.time in train:
                train = train.select([self.time]).take(first_in_group(train[self.list_column].group_numbers()))
            return Folds.time_series(train, self.time, self.n_folds, gap=self.time_gap, horizon=self.time_horizon)
        if target is None or self.fold_key is not None:
            return Folds.group(train, self.fold_key or self.list_column, self.n_folds)
        if target.task in ("binary", "multiclass"):
            return Folds.stratified(train, target.strata(train), self.n_folds)
        return Folds.kfold(len(train), self.n_folds)

    def baselines(self) -> Sequence[Estimator]:
        """Return rules to compare with: estimators without parameters."""
        from fastrec.estimators import ConstantModel

        return [] if self.task == "ranking" else [ConstantModel("constant")]

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        """Return the base models of the stack; by default XGBoost, a net and, if it is installed, LightGBM.

        Args:
            bs: the nets' batch size; None: their default.
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
        if self.task == "ranking":
            return None
        if self.target is None:
            remedy = "Write target = 'the column', or task = 'ranking'"
            raise DataError(f"{self.name}: the recipe names no target", remedy=remedy)
        task = self.task
        if task is None and self.metric is not None:  # the task, if the metric scores only one
            tasks = [t for t in get_metric(self.metric).tasks if t != "ranking"]
            task = tasks[0] if len(tasks) == 1 else None
        return Target.fit(train, self.target, task, positive=self.positive, scale=self.scale)


_PACKAGE = str(Path(__file__).parents[1])
_WRONG_CALL = re.compile(r"\(\) (got an? |got some |missing |takes )")


def check_recipe(recipe: Any, *, bs: int | None) -> None:
    """Refuse misspelt attributes, values of another type, and generators or estimators with unknown arguments."""
    from fastrec.competition.forms.rows import SubmissionForm

    if not isinstance(recipe, Competition):
        remedy = f"Write {recipe.__name__}()" if isinstance(recipe, type) else "Give a Competition, or its folder"
        raise DataError(f"{recipe!r} is no recipe", remedy=remedy)
    kinds = type(recipe).__mro__
    if type(recipe).__module__.partition(".")[0] == "fastrec":  # the library's recipes load models and features
        return
    base = next(c for c in kinds if "_kind" in vars(c))
    file = getattr(sys.modules.get(type(recipe).__module__), "__file__", None)
    if not hasattr(recipe, "name"):
        raise DataError(f"{type(recipe).__name__} has no name", file=file, remedy="Write name = 'the competition'")
    own = {n for c in kinds if not issubclass(base, c) for n in vars(c)} | set(vars(recipe))
    known = {n for n in dir(base) if not n.startswith("_")}
    for name in sorted(n for n in own if n not in known and not n.startswith("_") and n != "name"):
        # A recipe with both names is fine: `model` may be a helper of `models`.
        near = [n for n in difflib.get_close_matches(name, known, n=3, cutoff=0.8) if n not in own]
        if near:
            problem = f"{type(recipe).__name__} has the attribute {name}, which no recipe knows"
            raise DataError(problem, file=file, remedy=f"Write {near[0]}, or _{name} for a helper")
    for name in sorted(own & known):
        value = inspect.getattr_static(recipe, name)
        if callable(getattr(base, name)) and not (callable(value) or hasattr(value, "__get__")):
            remedy = f"Write def {name}(self), and return it"
            raise DataError(f"{recipe.name}: {name} is {value!r}, and no method", file=file, remedy=remedy)
    if base is Competition:
        forms: dict[str, tuple[Any, str]] = dict.fromkeys(
            ("also", "drop", "ids"), ((list, tuple, set), "a list of names")
        )
        forms |= {"n_folds": (Integral, "a whole number"), "reading": (Reading, "Reading(…)")}
        forms["submission"] = (SubmissionForm | None, "SubmissionForm(…)")
        for name, (form, said) in forms.items():
            if not isinstance(value := getattr(recipe, name), form):
                raise DataError(f"{recipe.name}: {name} is {value!r}", file=file, remedy=f"Give {said}")
        for metric in recipe.also:
            get_metric(metric)
        models = type(recipe).models
        code = None if models is base.models else getattr(models, "__code__", None)
        unused = code is not None and "class_weight" not in f"{code.co_names} {code.co_consts}"
        if recipe.class_weight is not None and unused:
            problem = f"{recipe.name}: its models() does not use class_weight: all classes weigh alike"
            warnings.warn(f"{problem}. Give the models class_weight=self.class_weight", DataWarning, stacklevel=2)
    calls = {"features": recipe.features, "models": lambda: recipe.models(bs=bs), "stack": recipe.stack}
    for name, call in calls.items():
        # Other errors may come from data that are not read yet: they are raised when the result is used.
        try:
            made = call()
        except TypeError as error:
            frames = traceback.extract_tb(error.__traceback__)
            at = next((f for f in reversed(frames) if not f.filename.startswith((_PACKAGE, "<"))), None)
            if all(f.filename == __file__ for f in frames) and _WRONG_CALL.search(str(error)):
                remedy = "Write def features(self) and def models(self, *, bs): bs is the batch size, or None"
                raise DataError(f"{recipe.name}: {error}", file=file, remedy=remedy) from error
            if at is not None and _WRONG_CALL.search(str(error)):
                problem = f"{recipe.name}: line {at.lineno}: {error}"
                raise DataError(problem, file=at.filename, remedy="Mend the call") from error
            continue
        except Exception:
            continue
        if base is Competition:
            _refuse_result(recipe, name, made, file)


def _refuse_result(recipe: Competition, name: str, made: Any, file: str | None) -> None:
    """Refuse a method's result of another type, and generators that could not be saved after the training."""
    from fastrec.estimators import Estimator
    from fastrec.features import FeatureSet
    from fastrec.features._engine.saving import function_name
    from fastrec.stacking import Stack

    wanted, remedy = {
        "features": (FeatureSet, "Return FeatureSet([…])"),
        "models": (Sequence, "Return a list of models"),
        "stack": (Stack, "Return Stack(…)"),
    }[name]
    if name == "features" and made is None:
        return
    if not isinstance(made, wanted):
        problem = f"{recipe.name}: {name}() returns {'nothing' if made is None else f'a {type(made).__name__}'}"
        raise DataError(problem, file=file, remedy=remedy)
    for model in made if name == "models" else ():
        if isinstance(model, type):
            remedy = f'Write {model.__name__}("a name")'
            raise DataError(f"{recipe.name}: models() returns the class {model.__name__}", file=file, remedy=remedy)
        if not isinstance(model, Estimator):
            problem = f"{recipe.name}: models() returns a {type(model).__name__}, which is no model of fastrec"
            raise DataError(problem, file=file, remedy='Write SKModel("a name", …) around a scikit-learn estimator')
    for step in made.steps if name == "features" else ():
        if hasattr(step, "function"):
            try:
                function_name(step)
            except DataError as error:
                raise error.of_file(file) from None


@dataclass(frozen=True)
class EventsBefore:
    """The events before a list, for rankers that read the session (``SessionRanker``).

    Args:
        table: the recipe's table of events, one of ``CompetitionData.tables``.
        session: the column of sessions, in the events and among the candidates.
        order: the columns that sort events and lists, in both; events strictly before a list are read.
        item: the column of items, in both.
        cats, conts: categorical and numerical columns of the events.
        time: a column of times, in both; None: no feature of the time since an event.

    Raises:
        DataError: there is no column to order by.
    """

    table: str
    session: str
    order: Sequence[str]
    item: str
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    time: str | None = None

    def __post_init__(self) -> None:
        for name in ("order", "cats", "conts"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if not self.order:
            raise DataError("events without an order", remedy="Name the columns of time and step (order=[…])")

    @property
    def columns(self) -> list[str]:
        """The candidates' columns needed to find the events of their lists, without the list column."""
        return list(dict.fromkeys([self.session, *self.order, self.item, *([self.time] if self.time else [])]))

    def of(self, candidates: Table, lists: str, tables: Mapping[str, Table]) -> ListEvents:
        """Return the events before the lists of some candidates.

        Args:
            candidates: rows of whole lists.
            lists: the column of lists.
            tables: the tables by name, with the table of events among them.
        """
        if self.table not in tables:
            problem = f"models read the events before a list, and the table of events {self.table!r} is not there"
            remedy = f"There are {', '.join(tables) or 'no tables'}; put {self.table}.parquet beside the rows"
            raise DataError(problem, remedy=remedy)
        columns = {"cats": self.cats, "conts": self.conts, "time": self.time, "order": self.order}
        return ListEvents.before(
            candidates, tables[self.table], lists=lists, session=self.session, item=self.item, **columns
        )
