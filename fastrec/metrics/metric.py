"""``Metric``: a function of targets and predictions with what a program must know of it; ``as_metric`` makes one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics.inputs import check_probabilities, paired, row_weights, to_classes
from fastrec.metrics.lists import choice, refuse_rows

TASKS = ("ranking", "binary", "multiclass", "regression", "multilabel")
WANTS = ("scores", "probabilities", "classes", "values")

Wants = Literal["scores", "probabilities", "classes", "values"]


@dataclass(frozen=True)
class Metric:
    """One number for predictions beside their targets, with its direction.

    ``get_metric`` gives those of the registry, ``as_metric`` makes one of a function.

    Args:
        name: such as ``'ndcg@10'``.
        function: ``function(y, prediction, *, groups, weight)`` of checked float64 tensors.
        greater_is_better: the direction.
        wants: what it is computed from. ``'scores'``: any numbers, higher is more; ``'probabilities'``: numbers from 0
            to 1, of several classes summing to 1; ``'classes'``: codes, which it makes of probabilities by itself
            (the highest; above .5); ``'values'``: numbers of the target's own unit.
        tasks: the tasks that it can score.
        needs_groups: whether it cannot do without ``groups``.
    """

    name: str
    function: Callable[..., Any]
    greater_is_better: bool
    wants: Wants
    tasks: tuple[str, ...]
    needs_groups: bool = False

    def __call__(self, y: Any, prediction: Any, *, groups: Any = None, weight: Any = None) -> float:
        """Score predictions.

        Args:
            y: ``[n]`` targets: numbers, 0 and 1, or class codes from 0; ``[n, t]`` of several targets.
                Tensor, array, Series or frame.
            prediction: ``[n]`` (a number a row), ``[n, k]`` (one for each class, or for each target).
            groups: ``[n]`` integers, the list of each row; for the metrics of lists.
            weight: ``[n]`` weights >= 0, or None; a row of weight 0 does not count. A list weighs the mean of its
                rows' weights.

        Returns:
            The metric; NaN where it is not defined, such as the AUC of one class, or where all weights are 0.

        Raises:
            DataError: lengths differ, a value is missing or out of its range (with its row), no groups for a metric
                that needs them, or the shapes are not of a task of this metric.
        """
        target, p = paired(y, prediction)
        if self.needs_groups and groups is None:
            remedy = "Pass groups=, the list number of every row"
            raise DataError(f"{self.name} is a metric of lists, and no groups were given", remedy=remedy)
        p, w = self._prepared(target, p), row_weights(weight, p)
        if w is not None and groups is None and bool((w == 0).any()):  # as if they were not there; in a list they are
            counted = w > 0
            if not bool(counted.any()):
                return math.nan
            target, p, w = target[counted], p[counted], w[counted]
        return float(self.function(target, p, groups=groups, weight=w))

    @property
    def is_own(self) -> bool:
        """Whether its function is a user's own, which no file holds."""
        return isinstance(self.function, OwnFunction | LostFunction)

    def to_state(self) -> dict[str, Any]:
        """Return all but the function, as JSON values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "function"}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Metric:
        """Make a metric of its ``to_state``, which cannot be computed."""
        return cls(**{**state, "tasks": tuple(state["tasks"]), "function": LostFunction(state["name"])})

    def better(self, a: float, b: float) -> bool:
        """Return whether ``a`` is better than ``b``; NaN is worse than every number."""
        if math.isnan(a) or math.isnan(b):
            return math.isnan(b) and not math.isnan(a)
        return a > b if self.greater_is_better else a < b

    def _prepared(self, y: Tensor, p: Tensor) -> Tensor:
        """Return the prediction as the function wants it."""
        if y.ndim == 2 and not {"multilabel", "regression"} & set(self.tasks):
            self._refuse(f"{y.shape[1]} targets a row", "y")
        of_classes = y.ndim == 1 and p.ndim == 2
        if self.wants == "probabilities":
            check_probabilities(p, of_classes=of_classes)
        elif self.wants in ("values", "classes"):
            bad = p.isinf() if p.ndim == 1 else p.isinf().any(1)
            refuse_rows(bad, "prediction", "is infinite", "Look at what predicted it")
        if of_classes and p.shape[1] == 2 and "binary" in self.tasks and self.wants != "values" and (y <= 1).all():
            p = self._one_column(p)
        elif of_classes and "multiclass" not in self.tasks:
            self._refuse(f"{p.shape[1]} numbers a row for one target", "prediction")
        if self.wants == "classes":
            return to_classes(y, p, rounded="regression" in self.tasks)
        return p

    def _one_column(self, p: Tensor) -> Tensor:
        """Turn two columns into one: class 1 if they are probabilities, else their difference."""
        if self.wants == "classes":
            return (p[:, 1] > p[:, 0]).double()
        are_probabilities = bool(((p.sum(1) - 1).abs() < 1e-3).all() & (p >= 0).all())
        return p[:, 1] if are_probabilities else p[:, 1] - p[:, 0]

    def _refuse(self, given: str, column: str) -> None:
        tasks = ", ".join(self.tasks)
        raise DataError(
            f"{self.name} is for {tasks}, but there are {given}", column=column, remedy="Take a metric of your task"
        )


def as_metric(
    function: Callable[..., Any] | None = None,
    *,
    greater_is_better: bool,
    wants: Wants = "scores",
    name: str | None = None,
    tasks: Sequence[str] = TASKS,
) -> Any:
    """Make a metric of one's own function; also a decorator: ``@as_metric(greater_is_better=False)``.

    Args:
        function: ``function(y, prediction) -> number`` of float64 NumPy arrays; if it has the arguments ``groups`` or
            ``weight``, they are passed by name. Groups without a default are needed.
        greater_is_better: the direction.
        wants: what predictions it takes, see :class:`fastrec.metrics.Metric`; the range of probabilities is checked,
            and classes are made of probabilities.
        name: what to call it; None for the function's name.
        tasks: the tasks that it can score.

    Returns:
        The ``Metric``; without a function, a decorator that makes one.

    Raises:
        DataError: an unknown ``wants`` or task, or no name.
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
    """Calls a user's function with NumPy arrays and those of ``groups`` and ``weight`` that it takes."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        try:
            parameters = dict(inspect.signature(function).parameters)
        except ValueError:  # a function written in C may not tell
            parameters = {}
        any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.takes = {n for n in ("groups", "weight") if any_name or n in parameters}
        self.needs_groups = "groups" in parameters and parameters["groups"].default is inspect.Parameter.empty

    def __call__(self, y: Tensor, p: Tensor, *, groups: Any, weight: Tensor | None) -> float:
        """Call the function."""
        if weight is not None and "weight" not in self.takes:
            raise DataError(
                f"{self.name} takes no weights", column="weight", remedy="Let the function take weight=None, and use it"
            )
        given = {"groups": _as_array(groups), "weight": _as_array(weight)}
        return float(self.function(_as_array(y), _as_array(p), **{n: given[n] for n in given if n in self.takes}))


@dataclass(frozen=True)
class LostFunction:
    """Stands where a metric that was read from a file had a user's function."""

    name: str

    def __call__(self, *_: Any, **__: Any) -> float:
        """Refuse.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.name} is a metric of one's own, and its function is not in the file",
            remedy="Give the estimator the metric again (stop_by=), or make it anew",
        )


def _as_array(x: Any) -> Any:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x
