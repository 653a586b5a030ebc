"""Write linear estimators of scikit-learn into a graph: weighted sums, and probabilities from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn import linear_model
from sklearn.linear_model._base import LinearModel  # no public class has all of these for its descendants

from fastrec.estimators._learnable import assembled
from fastrec.serve.graph.tensor import GraphTensor
from fastrec.validate.tasks import Task

_CLASSIFIERS = (linear_model.LogisticRegression, linear_model.SGDClassifier)
_POWERS = (linear_model.PoissonRegressor, linear_model.GammaRegressor, linear_model.TweedieRegressor)
_REGRESSORS = (LinearModel, linear_model.SGDRegressor, *_POWERS)


def linear_prediction(parts: list[Any], matrix: GraphTensor, task: Task, k: int) -> GraphTensor | None:
    """Write the prediction of linear estimators, or None if others are among them: float64 ``[rows]`` or ``[rows, k]``.

    ``parts`` has a trained estimator, or a constant, for each output.
    """
    kinds = _REGRESSORS if task == "regression" else _CLASSIFIERS
    trained = [p for p in parts if not isinstance(p, float)]
    if not trained or not all(isinstance(p, kinds) and type(p).__module__.startswith("sklearn.") for p in trained):
        return None
    return assembled([_said(part, matrix, task, k) for part in parts], task)


def _said(part: Any, matrix: GraphTensor, task: Task, k: int) -> Any:
    """Write the prediction of one output: ``[rows]``, or ``[rows, k]`` for a multiclass task."""
    if isinstance(part, float):
        return (matrix[:, 0] != matrix[:, 0]).double() * 0 + part
    weights = torch.from_numpy(np.asarray(part.coef_, dtype=np.float64).reshape(-1, matrix.shape[1]).T.copy())
    start = torch.from_numpy(np.array(part.intercept_, dtype=np.float64).reshape(-1))
    sums = matrix.double() @ weights + start
    if task == "regression":
        if isinstance(part, linear_model.TweedieRegressor):
            log = part.link == "log" or (part.link == "auto" and part.power > 0)
        else:
            log = isinstance(part, _POWERS)
        return (sums.exp() if log else sums)[:, 0]
    if task != "multiclass":
        return _of_two(part, sums)[:, 0]
    # scikit-learn before 1.8 learned classes one against the rest on request
    one_by_one = getattr(part, "solver", None) == "liblinear" or getattr(part, "multi_class", None) == "ovr"
    if len(part.classes_) == 2:
        second = _of_two(part, sums)
        shares = torch.cat([1 - second, second], 1)
    elif isinstance(part, linear_model.LogisticRegression) and not one_by_one:
        shares = sums.softmax(1)
    else:
        shares = _of_two(part, sums)
        shares = torch.where(shares.sum(1, keepdim=True) == 0, 1.0, shares)  # no class at all: all of them alike
        shares = shares / shares.sum(1, keepdim=True)
    places = torch.zeros((len(part.classes_), k), dtype=torch.float64)  # a class may have had no row
    places[torch.arange(len(places)), torch.from_numpy(np.asarray(part.classes_).astype(np.int64))] = 1
    return shares @ places


def _of_two(part: Any, sums: Any) -> Any:
    if getattr(part, "loss", None) == "modified_huber":
        return (sums.clamp(-1, 1) + 1) / 2
    # onnxruntime's Sigmoid is 0 below -37, and of several classes the least unlikely one counts
    return 1 / (1 + (-sums).exp())
