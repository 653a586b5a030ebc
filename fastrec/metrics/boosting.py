"""The registry's metrics for the training functions of XGBoost, LightGBM and CatBoost.

None of the three libraries is imported here, except for CatBoost's several targets. Groups and weights come from the
evaluated data set, so training and validation rows each use their own; only CatBoost does not pass on its groups. A
metric of probabilities gets the objective's transformed margins. With your own objective, the libraries pass raw
margins, and ``transform`` turns them into probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastrec._core.imports import require
from fastrec.errors import DataError
from fastrec.metrics.ranking import flat_tensor
from fastrec.metrics.registry import Metric, get_metric

Transform = Callable[[np.ndarray], Any]


def xgboost_metric(
    name: str | Metric, *, groups: Any = None, weight: Any = None, transform: Transform | None = None
) -> Callable[[np.ndarray, Any], tuple[str, float]]:
    """Make a metric for ``xgboost.train(custom_metric=…, maximize=metric.greater_is_better)``.

    Args:
        name: as for :func:`fastrec.metrics.get_metric`.
        groups: ``[n]`` integers for every evaluated set; None: the sets' own (``group`` or ``qid``).
        weight: ``[n]`` weights; None: the sets' own. XGBoost's weights of lists become those of their rows.
        transform: conversion of raw margins, for your own objective; None: use the predictions unchanged, as XGBoost
            has already transformed them by the objective.

    Returns:
        A function of predictions and ``DMatrix`` that returns the name and the value.

    Raises:
        DataError: an unknown name; during training, whatever the metric raises.
    """
    metric = get_metric(name)

    def evaluate(predictions: np.ndarray, data: Any) -> tuple[str, float]:
        sizes = np.diff(np.asarray(data.get_uint_info("group_ptr")).astype(np.int64))
        own = np.asarray(data.get_weight())
        # If the objective ranks, XGBoost's weights are those of lists.
        if len(sizes) and len(own) == len(sizes):
            own = np.repeat(own, sizes)
        rest = {"groups": _rows_of(sizes) if groups is None else groups}
        rest["weight"] = weight if weight is not None or not len(own) else own
        return metric.name, metric(data.get_label(), _transformed(predictions, transform), **rest)

    return evaluate


def lightgbm_metric(
    name: str | Metric, *, groups: Any = None, weight: Any = None, transform: Transform | None = None
) -> Callable[[np.ndarray, Any], tuple[str, float, bool]]:
    """Make a metric for ``lightgbm.train(feval=…)``; with ``params['metric'] = 'None'`` it is the only one.

    Args:
        name, groups, weight, transform: as for :func:`xgboost_metric`.

    Returns:
        A function of predictions and ``Dataset`` that returns name, value and whether greater is better.
    """
    metric = get_metric(name)

    def evaluate(predictions: np.ndarray, data: Any) -> tuple[str, float, bool]:
        rest = {"groups": _rows_of(data.get_group()) if groups is None else groups}
        rest["weight"] = data.get_weight() if weight is None else weight
        value = metric(data.get_label(), _transformed(predictions, transform), **rest)
        return metric.name, value, metric.greater_is_better

    return evaluate


def catboost_metric(
    name: str | Metric, *, groups: Sequence[Any] = (), several_targets: bool = False, transform: Transform | None = None
) -> Any:
    """Make a metric for CatBoost's ``eval_metric=…``.

    CatBoost passes raw margins. If the metric needs probabilities or classes, they go through a sigmoid (one column, or
    several targets) or a softmax (several classes), unless ``transform`` is given. Weights are the pool's.

    Args:
        name: as for :func:`fastrec.metrics.get_metric`.
        groups: ``[n]`` integers for each evaluated set, training rows first: CatBoost passes no groups and also
            evaluates the training rows. Sets are identified by their number of rows.
        several_targets: for a target of several columns (``MultiLogloss``, ``MultiRMSE``); needs CatBoost.
        transform: conversion of the raw margins, such as ``numpy.exp`` for ``Poisson``.
    Returns:
        An object with ``is_max_optimal``, ``evaluate`` and ``get_final_error``.

    Raises:
        DataError: an unknown name, no groups for a metric of lists, or two different sets with the same number of rows.
        MissingPackageError: ``several_targets`` without CatBoost.
    """
    metric = get_metric(name)
    if metric.needs_groups and not len(groups):
        remedy = "Pass groups=[of the training rows, of the validation rows]"
        raise DataError(f"{metric.name} is a metric of lists, and no groups were given", column="groups", remedy=remedy)
    by_length: dict[int, np.ndarray] = {}
    for given in groups:
        if np.ndim(given) == 0:
            raise DataError("groups are one list of rows", column="groups", remedy="Give a list for each evaluated set")
        codes = flat_tensor(given, "groups").cpu().numpy()
        if not np.array_equal(by_length.setdefault(len(codes), codes), codes):
            problem = f"two sets have {len(codes)} rows, and CatBoost does not say which it evaluates"
            raise DataError(problem, column="groups", remedy="Leave a list out of one of them")
    if not several_targets:
        return _CatBoostMetric(metric, by_length, several_targets, transform)
    base = require("catboost", "CatBoost", "pip install catboost").MultiTargetCustomMetric
    return type("_CatBoostTargets", (_CatBoostMetric, base), {})(metric, by_length, several_targets, transform)


class _CatBoostMetric:
    no_jit = True  # CatBoost would otherwise try to compile the methods, and warn that it cannot

    def __init__(
        self, metric: Metric, groups: dict[int, np.ndarray], several_targets: bool, transform: Transform | None
    ) -> None:
        self.metric, self.groups, self.several, self.transform = metric, groups, several_targets, transform

    def is_max_optimal(self) -> bool:
        """Return whether greater is better."""
        return self.metric.greater_is_better

    def evaluate(self, approxes: Sequence[Any], target: Any, weight: Any) -> tuple[float, float]:
        """Return the value of a whole set, and 1, by which CatBoost divides at the end."""
        raw = np.column_stack([np.asarray(a) for a in approxes])
        y = np.column_stack([np.asarray(t) for t in target]) if self.several else np.asarray(target)
        raw = raw if self.several or raw.shape[1] > 1 else raw[:, 0]
        groups = self.groups.get(len(y))
        if groups is None and self.groups:
            given = ", ".join(map(str, self.groups))
            problem = f"CatBoost evaluates {len(y)} rows, and there are groups for {given}"
            remedy = "Give the groups of the training rows and of every evaluated set"
            raise DataError(problem, column="groups", remedy=remedy)
        p = _transformed(raw, self.transform) if self.transform else self._activated(raw, y)
        # CatBoost's arrays are valid only during this call
        return self.metric(y.copy(), p, groups=groups, weight=None if weight is None else np.array(weight)), 1.0

    def get_final_error(self, error: float, weight: float) -> float:
        """Return the value."""
        return error

    def _activated(self, raw: np.ndarray, y: np.ndarray) -> np.ndarray:
        margins = torch.from_numpy(raw.astype(np.float64))
        if self.metric.wants == "values":
            return raw.copy()
        if margins.ndim == 2 and not self.several:
            return margins.softmax(1).numpy()
        # classes of an ordinal target come from values, which need no sigmoid
        if self.metric.wants == "scores" or (self.metric.wants == "classes" and not np.isin(y, (0, 1)).all()):
            return raw.copy()
        return margins.sigmoid().numpy()


def _transformed(predictions: np.ndarray, transform: Transform | None) -> Any:
    return predictions if transform is None else transform(predictions)


def _rows_of(sizes: Any) -> np.ndarray | None:
    return None if sizes is None or not len(sizes) else np.repeat(np.arange(len(sizes)), sizes)
