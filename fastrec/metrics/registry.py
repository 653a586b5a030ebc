"""The metrics by name: ``get_metric('ndcg@10')(y, prediction, groups=groups)``, whatever the task."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics import classification as c
from fastrec.metrics import ranking
from fastrec.metrics import regression as r
from fastrec.metrics.lists import choice
from fastrec.metrics.metric import TASKS, Metric, Wants

_CLASSES = ("binary", "multiclass")
_LABELS = ("binary", "multiclass", "multilabel")


class _Entry(NamedTuple):
    function: Callable[..., float]
    greater_is_better: bool
    wants: Wants
    tasks: tuple[str, ...]
    needs_groups: bool = False
    parameter: str = ""  # what follows an @
    usual: Any = None  # the parameter in a list of names
    optional: bool = False  # whether the name stands without the parameter, too


def _listwise(y: Tensor, p: Tensor, *, function: Callable[..., float], groups: Any, weight: Any, **k: Any) -> float:
    return function(p, y, groups, sample_weight=weight, **k)


# What a submission scores: equal scores are written in the order in which the candidates were shown.
MRR_AS_SHOWN = Metric(
    "mrr", partial(_listwise, function=ranking.mrr, ties="ordinal"), True, "scores", ("ranking",), needs_groups=True
)

_METRICS = {
    "auc": _Entry(c.auc, True, "scores", ("ranking", *_LABELS)),
    "average_precision": _Entry(c.average_precision, True, "scores", _LABELS),
    "logloss": _Entry(c.log_loss, False, "probabilities", _LABELS),
    "brier": _Entry(c.brier, False, "probabilities", _LABELS),
    "accuracy": _Entry(c.accuracy, True, "classes", _LABELS),
    "balanced_accuracy": _Entry(partial(c.of_counts, formula=c.balanced_accuracy_of), True, "classes", _CLASSES),
    "f1": _Entry(c.f1, True, "classes", ("binary",)),
    "f1_macro": _Entry(c.f1_macro, True, "classes", _LABELS),
    "f1_micro": _Entry(c.f1_micro, True, "classes", _LABELS),
    "mcc": _Entry(partial(c.of_counts, formula=c.mcc_of), True, "classes", _CLASSES),
    "quadratic_kappa": _Entry(c.quadratic_kappa, True, "classes", (*_CLASSES, "regression")),
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
    "mrr": _Entry(partial(_listwise, function=ranking.mrr), True, "scores", ("ranking",), True, "k", optional=True),
    "ndcg": _Entry(
        partial(_listwise, function=ranking.ndcg), True, "scores", ("ranking",), True, "k", 10, optional=True
    ),
    "map": _Entry(
        partial(_listwise, function=ranking.mean_average_precision), True, "scores", ("ranking",), True, "k", 10, True
    ),
    "hit_rate": _Entry(partial(_listwise, function=ranking.hit_rate), True, "scores", ("ranking",), True, "k", 10),
    "recall": _Entry(partial(_listwise, function=ranking.recall), True, "scores", ("ranking",), True, "k", 10),
    "gauc": _Entry(partial(_listwise, function=ranking.gauc), True, "scores", ("ranking", "binary"), True),
}
_DEFAULTS = {"ranking": "mrr", "binary": "auc", "multiclass": "logloss", "regression": "rmse", "multilabel": "auc"}


def get_metric(name: str | Metric) -> Metric:
    """Return the metric of a name.

    Of classes: auc, average_precision, logloss, brier, accuracy, balanced_accuracy, f1, f1_macro, f1_micro, mcc,
    quadratic_kappa, gini. Of numbers: rmse, mae, rmsle, rmspe, mape, smape, r2, pinball@q, poisson_deviance,
    gamma_deviance, gini, quadratic_kappa. Of lists: mrr, mrr@k, ndcg, ndcg@k, map, map@k, hit_rate@k, recall@k, gauc.

    Args:
        name: such as ``'auc'``, ``'ndcg@10'``, ``'pinball@0.9'``; a ``Metric`` is given back.

    Returns:
        The metric.

    Raises:
        DataError: no metric has this name (it lists the nearest), or its k or q is out of range.
    """
    if isinstance(name, Metric):
        return name
    if callable(name):
        remedy = "Make it a metric: as_metric(function, greater_is_better=…, wants=…)"
        raise DataError("a function does not say whether more is better", remedy=remedy)
    base, at, text = str(name).partition("@")
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
    options: dict[str, Any] = {}
    if at:
        options[entry.parameter] = _parsed(str(name), entry.parameter, text)
    elif entry.parameter:
        options[entry.parameter] = None  # the whole list
    return Metric(
        name=f"{base}@{options[entry.parameter]}" if at else base,
        function=partial(entry.function, **options) if options else entry.function,
        greater_is_better=entry.greater_is_better,
        wants=entry.wants,
        tasks=entry.tasks,
        needs_groups=entry.needs_groups,
    )


def metrics_for(task: str) -> list[str]:
    """Return names of the metrics that can score a task, with a usual k or q if one is needed.

    Args:
        task: ``'ranking'``, ``'binary'``, ``'multiclass'``, ``'regression'`` or ``'multilabel'``.

    Raises:
        DataError: an unknown task.
    """
    choice(task, "task", TASKS)
    lists = task == "ranking"
    return [_usual_name(n) for n, e in _METRICS.items() if task in e.tasks and (lists or not e.needs_groups)]


def default_metric(task: str) -> str:
    """Return the name of the metric that a task is scored by unless another is given.

    mrr for lists, auc for two classes and for labels (the mean over them), logloss for several, rmse for numbers.

    Args:
        task: as for :func:`metrics_for`.

    Raises:
        DataError: an unknown task.
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
