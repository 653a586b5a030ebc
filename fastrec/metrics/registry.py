"""The metrics by name, with their properties."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fastrec.errors import DataError, refuse
from fastrec.metrics import ranking
from fastrec.metrics import rows as r
from fastrec.metrics.ranking import choice
from fastrec.metrics.rows import check_probabilities, paired, row_weights, to_classes

TASKS = ("ranking", "binary", "multiclass", "regression", "multilabel")
WANTS = ("scores", "probabilities", "classes", "values")

Wants = Literal["scores", "probabilities", "classes", "values"]


@dataclass(frozen=True)
class Metric:
    """A number that scores predictions against targets, and its direction.

    ``get_metric`` returns those of the registry; ``as_metric`` makes one from a function.

    Args:
        name: such as ``'ndcg@10'``.
        function: ``function(y, prediction, *, groups, weight)`` of checked float64 tensors.
        wants: the kind of predictions. ``'scores'``: any numbers, higher is more; ``'probabilities'``: numbers from 0
            to 1, which sum to 1 over several classes; ``'classes'``: codes, which it derives from probabilities itself
            (the highest; above .5); ``'values'``: numbers in the target's own unit.
        tasks: the tasks that it can score.
        needs_groups: whether ``groups`` are required.
    """

    name: str
    function: Callable[..., Any]
    greater_is_better: bool
    wants: Wants
    tasks: tuple[str, ...]
    needs_groups: bool = False

    def __call__(self, y: Any, prediction: Any, *, groups: Any = None, weight: Any = None) -> float:
        """Score predictions; return NaN if the metric is undefined: the AUC of one class, or all weights 0.

        Args:
            y: ``[n]`` targets: numbers, 0 and 1, or class codes from 0; ``[n, t]`` of several targets.
                Tensor, array, Series or frame.
            prediction: ``[n]`` (one number per row), ``[n, k]`` (one per class, or per target).
            groups: ``[n]`` integers, the list of each row; for the metrics of lists.
            weight: ``[n]`` weights >= 0, or None; a row of weight 0 does not count. A list's weight is the mean of its
                rows' weights.

        Raises:
            DataError: lengths differ, a value is missing or out of its range (with its row), no groups for a metric
                that needs them, or the shapes are not of a task of this metric.
        """
        target, p = paired(y, prediction)
        if self.needs_groups and groups is None:
            remedy = "Pass groups=, the list number of every row"
            raise DataError(f"{self.name} is a metric of lists, and no groups were given", remedy=remedy)
        p, w = self._prepared(target, p), row_weights(weight, p)
        if w is not None and groups is None and bool((w == 0).any()):  # drop such rows; in lists they stay
            counted = w > 0
            if not bool(counted.any()):
                return math.nan
            target, p, w = target[counted], p[counted], w[counted]
        return float(self.function(target, p, groups=groups, weight=w))

    def by_group(self, y: Any, prediction: Any, groups: Any) -> Tensor | None:
        """Score every list separately: float64 ``[g]``, in ascending order of the groups; NaN if undefined.

        The metric is their mean (``gauc``: weighted by their rows). Return None if it is not a mean over lists.
        """
        if not isinstance(self.function, partial) or self.function.func is not _listwise:
            return None
        target, p = paired(y, prediction)
        of, *rest = (self.function.keywords.get(n) for n in ("function", "k", "ties"))
        return ranking.score_groups(of, p, target, groups, k=rest[0], ties=rest[1] or "worst")

    @property
    def is_own(self) -> bool:
        """Whether its function is a user's own, which cannot be saved."""
        return isinstance(self.function, OwnFunction)

    def to_state(self) -> dict[str, Any]:
        """Return all but the function, as JSON values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "function"}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Metric:
        """Make a metric from its ``to_state``; it cannot be computed."""
        return cls(**{**state, "tasks": tuple(state["tasks"]), "function": OwnFunction(None, state["name"])})

    def better(self, a: float, b: float) -> bool:
        """Return whether ``a`` is better than ``b``; NaN is worse than every number."""
        if math.isnan(a) or math.isnan(b):
            return math.isnan(b) and not math.isnan(a)
        return a > b if self.greater_is_better else a < b

    def _prepared(self, y: Tensor, p: Tensor) -> Tensor:
        if y.ndim == 2 and not {"multilabel", "regression"} & set(self.tasks):
            self._refuse(f"{y.shape[1]} targets a row", "y")
        of_classes = y.ndim == 1 and p.ndim == 2
        if self.wants == "probabilities":
            check_probabilities(p, of_classes=of_classes)
        elif self.wants in ("values", "classes"):
            bad = p.isinf() if p.ndim == 1 else p.isinf().any(1)
            refuse(bad, "prediction", "a value is infinite", "Look at what predicted it")
        if of_classes and p.shape[1] == 2 and "binary" in self.tasks and self.wants != "values" and (y <= 1).all():
            # merge two columns: class 1 of probabilities, otherwise their difference
            if self.wants == "classes":
                p = (p[:, 1] > p[:, 0]).double()
            elif bool(((p.sum(1) - 1).abs() < 1e-3).all() & (p >= 0).all()):
                p = p[:, 1]
            else:
                p = p[:, 1] - p[:, 0]
        elif of_classes and "multiclass" not in self.tasks:
            self._refuse(f"{p.shape[1]} numbers a row for one target", "prediction")
        return to_classes(y, p, rounded="regression" in self.tasks) if self.wants == "classes" else p

    def _refuse(self, given: str, column: str) -> None:
        tasks = ", ".join(self.tasks)
        remedy = "Take another metric"
        raise DataError(f"{self.name} is for {tasks}, but there are {given}", column=column, remedy=remedy)


def as_metric(
    function: Callable[..., Any] | None = None,
    *,
    greater_is_better: bool,
    wants: Wants = "scores",
    name: str | None = None,
    tasks: Sequence[str] = TASKS,
) -> Any:
    """Make a metric from your own function; also a decorator: ``@as_metric(greater_is_better=False)``.

    Args:
        function: ``function(y, prediction) -> number`` of float64 NumPy arrays. If it has arguments ``groups`` or
            ``weight``, they are passed by name; groups without a default are required.
        wants: the kind of predictions, see :class:`fastrec.metrics.Metric`. The range of probabilities is checked, and
            classes are derived from probabilities.
        name: the metric's name; None for the function's name.
        tasks: the tasks that it can score.

    Returns:
        The ``Metric``; without a function, a decorator that makes one.

    Raises:
        DataError: an unknown ``wants`` or task, no name, or a function of other arguments.
    """
    choice(wants, "wants", WANTS)
    for task in tasks:
        choice(task, "task", TASKS)
    if function is None:
        return lambda f: as_metric(f, greater_is_better=greater_is_better, wants=wants, name=name, tasks=tasks)
    name = name or getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise DataError("the metric has no name", remedy="Pass name=")
    wrapped = OwnFunction(function, name)
    return Metric(name, wrapped, greater_is_better, wants, tuple(tasks), needs_groups=wrapped.needs_groups)


class OwnFunction:
    """Wrapper of a user's function, called with NumPy arrays and with ``groups`` and ``weight`` if it takes them.

    The function of a metric that was read from a file is None.
    """

    def __init__(self, function: Callable[..., Any] | None, name: str) -> None:
        self.function, self.name = function, name
        try:
            signature = None if function is None else inspect.signature(function)
        except ValueError:  # a function written in C may lack a signature
            signature = None
        parameters = {} if signature is None else signature.parameters
        any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.takes = {n for n in ("groups", "weight") if any_name or n in parameters}
        self.needs_groups = "groups" in parameters and parameters["groups"].default is inspect.Parameter.empty
        try:
            if signature is not None:
                signature.bind(None, None, **dict.fromkeys(self.takes))
        except TypeError as error:
            remedy = "Let it take y and prediction, and groups and weight if it uses them"
            raise DataError(f"the metric {name} cannot be called ({error})", remedy=remedy) from error

    def __call__(self, y: Tensor, p: Tensor, *, groups: Any, weight: Tensor | None) -> float:
        """Call the function."""
        if self.function is None:
            problem = f"{self.name} is a metric of one's own, and its function is not in the file"
            raise DataError(problem, remedy="Give the estimator the metric again (stop_by=), or make it anew")
        if weight is not None and "weight" not in self.takes:
            remedy = "Let it take weight=None, and use it"
            raise DataError(f"{self.name} takes no weights", column="weight", remedy=remedy)
        given = {"groups": _as_array(groups), "weight": _as_array(weight)}
        return float(self.function(_as_array(y), _as_array(p), **{n: given[n] for n in given if n in self.takes}))


def _as_array(x: Any) -> Any:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x


_CLASSES = ("binary", "multiclass")
_LABELS = ("binary", "multiclass", "multilabel")


class _Entry(NamedTuple):
    function: Callable[..., float]
    greater_is_better: bool
    wants: Wants
    tasks: tuple[str, ...]
    needs_groups: bool = False
    parameter: str = ""  # the text after an @
    usual: Any = None  # the parameter's default in a list of names
    optional: bool = False  # whether the parameter may be omitted


def _listwise(y: Tensor, p: Tensor, *, function: Callable[..., float], groups: Any, weight: Any, **k: Any) -> float:
    return function(p, y, groups, sample_weight=weight, **k)


def _of_lists(function: Callable[..., float], *more: Any, tasks: tuple[str, ...] = ("ranking",), **rest: Any) -> _Entry:
    return _Entry(partial(_listwise, function=function), True, "scores", tasks, True, *more, **rest)


# The score of a submission: equal scores are written in the order in which candidates were displayed.
MRR_AS_SHOWN = Metric(
    "mrr", partial(_listwise, function=ranking.mrr, ties="ordinal"), True, "scores", ("ranking",), needs_groups=True
)

_METRICS = {
    "auc": _Entry(r.auc, True, "scores", ("ranking", *_LABELS)),
    "average_precision": _Entry(r.average_precision, True, "scores", _LABELS),
    "logloss": _Entry(r.log_loss, False, "probabilities", _LABELS),
    "brier": _Entry(r.brier, False, "probabilities", _LABELS),
    "accuracy": _Entry(r.accuracy, True, "classes", _LABELS),
    "balanced_accuracy": _Entry(partial(r.of_counts, formula=r.balanced_accuracy_of), True, "classes", _CLASSES),
    "f1": _Entry(r.f1, True, "classes", ("binary",)),
    "f1_macro": _Entry(r.f1_macro, True, "classes", _LABELS),
    "f1_micro": _Entry(r.f1_micro, True, "classes", _LABELS),
    "mcc": _Entry(partial(r.of_counts, formula=r.mcc_of), True, "classes", _CLASSES),
    "quadratic_kappa": _Entry(r.quadratic_kappa, True, "classes", (*_CLASSES, "regression")),
    "gini": _Entry(r.gini, True, "scores", ("binary", "regression")),
    "rmse": _Entry(r.rmse, False, "values", ("regression",)),
    "mae": _Entry(r.mae, False, "values", ("regression",)),
    "rmsle": _Entry(r.rmsle, False, "values", ("regression",)),
    "rmspe": _Entry(r.rmspe, False, "values", ("regression",)),
    "mape": _Entry(r.mape, False, "values", ("regression",)),
    "smape": _Entry(r.smape, False, "values", ("regression",)),
    "r2": _Entry(r.r2, True, "values", ("regression",)),
    "pinball": _Entry(r.pinball, False, "values", ("regression",), parameter="q", usual=0.5),
    "poisson_deviance": _Entry(r.poisson_deviance, False, "values", ("regression",)),
    "gamma_deviance": _Entry(r.gamma_deviance, False, "values", ("regression",)),
    "mrr": _of_lists(ranking.mrr, "k", optional=True),
    "ndcg": _of_lists(ranking.ndcg, "k", 10, optional=True),
    "map": _of_lists(ranking.mean_average_precision, "k", 10, optional=True),
    "hit_rate": _of_lists(ranking.hit_rate, "k", 10),
    "recall": _of_lists(ranking.recall, "k", 10),
    "gauc": _of_lists(ranking.gauc, tasks=("ranking", "binary")),
}
_DEFAULTS = {"ranking": "mrr", "binary": "auc", "multiclass": "logloss", "regression": "rmse", "multilabel": "auc"}


def get_metric(name: str | Metric) -> Metric:
    """Return the metric of a name.

    Classes: auc, average_precision, logloss, brier, accuracy, balanced_accuracy, f1, f1_macro, f1_micro, mcc,
    quadratic_kappa, gini. Numbers: rmse, mae, rmsle, rmspe, mape, smape, r2, pinball@q, poisson_deviance,
    gamma_deviance, gini, quadratic_kappa. Lists: mrr, mrr@k, ndcg, ndcg@k, map, map@k, hit_rate@k, recall@k, gauc.

    Args:
        name: such as ``'auc'``, ``'ndcg@10'``, ``'pinball@0.9'``, in any case; a ``Metric`` is returned unchanged.

    Raises:
        DataError: no metric has this name (the message lists the nearest), or its k or q is out of range.
    """
    if isinstance(name, Metric):
        return name
    if callable(name):
        remedy = "Make it a metric: as_metric(function, greater_is_better=…, wants=…)"
        raise DataError("a function does not say whether more is better", remedy=remedy)
    base, at, text = str(name).lower().partition("@")
    entry = _METRICS.get(base)
    if entry is None or (at and not entry.parameter):
        every = [_usual_name(n) for n in _METRICS]
        wanted = str(base if entry is None else name).lower()
        near = difflib.get_close_matches(wanted, [*every, *_METRICS], n=5, cutoff=0.5)
        names = sorted({_usual_name(n.partition("@")[0]) for n in near})
        remedy = f"Near it: {', '.join(names)}" if names else f"There are {', '.join(every)}"
        raise DataError(f"there is no metric {name!r}", remedy=remedy)
    if not at and not entry.optional and entry.parameter:
        raise DataError(f"{base} needs a number", remedy=f"Write {base}@{entry.usual}, with your {entry.parameter}")
    value = _parsed(str(name), entry.parameter, text) if at else None  # None: the whole list
    options = {entry.parameter: value} if entry.parameter else {}
    name = f"{base}@{value}" if at else base
    function = partial(entry.function, **options) if options else entry.function
    return Metric(name, function, entry.greater_is_better, entry.wants, entry.tasks, entry.needs_groups)


def known_metric(name: str | Metric | None) -> Metric | None:
    """Return the metric of a name; None: there is none, or it is one's own."""
    try:
        return get_metric(name or "")
    except DataError:
        return None


def metrics_for(task: str) -> list[str]:
    """Return the names of the metrics that can score a task (one of ``TASKS``), with a typical k or q if needed."""
    choice(task, "task", TASKS)
    lists = task == "ranking"
    return [_usual_name(n) for n, e in _METRICS.items() if task in e.tasks and (lists or not e.needs_groups)]


def default_metric(task: str) -> str:
    """Return the name of a task's default metric; the task is one of ``TASKS``.

    mrr for ranking, auc for binary and (as a mean) multilabel, logloss for multiclass, rmse for regression.
    """
    return _DEFAULTS[choice(task, "task", TASKS)]


def _usual_name(base: str) -> str:
    entry = _METRICS[base]
    return base if entry.usual is None else f"{base}@{entry.usual}"


def _parsed(name: str, parameter: str, text: str) -> int | float:
    try:
        value = int(text) if parameter == "k" else float(text)
    except ValueError:
        value = -1
    if (value < 1) if parameter == "k" else not 0 < value < 1:
        range_ = "a whole number above 0" if parameter == "k" else "between 0 and 1"
        raise DataError(f"the {parameter} of {name!r} is not {range_}", remedy="Write it like ndcg@10 or pinball@0.9")
    return value
