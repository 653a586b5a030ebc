"""``TreeBlend`` and ``HillClimb``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.estimators import Estimator, Trace
from fastrec.estimators._tree_model import TreeInputs
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.stacking.blends import (
    LogisticBlend,
    PoolBlend,
    RidgeBlend,
    WeightedBlend,
    as_task,
    labels_of,
    predicted_by,
    weights_of,
)
from fastrec.validate import Rows
from fastrec.validate.target import Task

# ``TreeBlend``: XGBoost's trees that correct a fitted weighted sum, for rows that stand for themselves.

_SMALL = {"max_depth": 3, "eta": 0.05, "min_child_weight": 20, "subsample": 0.7, "tree_method": "hist", "max_bin": 64}
_OBJECTIVE = {
    "binary": "binary:logistic",
    "multilabel": "binary:logistic",
    "regression": "reg:squarederror",
    "multiclass": "multi:softprob",
}


class TreeBlend(Estimator):
    """A few small trees over what the base models predict, and a few columns of the rows.

    They start from the task's weighted sum (``RidgeBlend``, ``LogisticBlend``, ``PoolBlend``) and learn corrections to
    it: where one model is to be trusted more than elsewhere. Several targets or labels have trees of their own.

    Args:
        models, name: as of ``LinearBlend``.
        task: the task.
        rounds: how many trees (of a multiclass task: for each class).
        **params: XGBoost's own parameters.
    """

    tasks = tuple(_OBJECTIVE)

    def __init__(
        self, models: Sequence[str], task: Task, *, name: str = "trees", rounds: int = 40, **params: Any
    ) -> None:
        self.models, self.task, self.name, self.rounds, self.params = list(models), task, name, rounds, params
        self.forget()

    def forget(self) -> None:
        """Drop sums and trees."""
        super().forget()
        self.sums: WeightedBlend = linear_blend(self.models, self.task)
        self._boosters: list[xgb.Booster] = []
        self._inputs = TreeInputs([], {})

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights, then grow the trees; ``valid`` is not looked at."""
        self.check_task(train)
        # the trees learn what the sum leaves: it is found first
        self.sums.fit(train)
        self._inputs = TreeInputs.fit(train)
        x, start, w = self._matrix(train), self.sums.linear(train), weights_of(train).numpy()
        params = {**_SMALL, "nthread": torch.get_num_threads(), **self.params, "seed": seed}
        params["objective"] = _OBJECTIVE[train.task]
        if train.task == "multiclass":
            params["num_class"] = train.n_outputs
        for column, margin in zip(labels_of(train).T, _margins(start, train), strict=True):
            data = xgb.DMatrix(x, column.numpy(), weight=w, base_margin=margin, nthread=params["nthread"])
            self._boosters.append(xgb.train(params, data, self.rounds))
        gains = dict.fromkeys(self._inputs.names, 0.0)
        for booster in self._boosters:
            for place, gain in booster.get_score(importance_type="total_gain").items():
                gains[self._inputs.names[int(place[1:])]] += float(np.sum(gain))  # the trees know columns as f0, f1, …
        self.trace = Trace(importance=gains)
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values: float64 ``[n]`` or ``[n, k]``."""
        if not self._boosters:
            raise self.not_fitted()
        if not len(data):  # XGBoost warns of them
            return as_task(torch.zeros(0, data.n_outputs, dtype=torch.float64), data)
        x, threads = self._matrix(data), torch.get_num_threads()
        margins = [
            torch.from_numpy(b.predict(xgb.DMatrix(x, base_margin=m, nthread=threads), output_margin=True)).double()
            for b, m in zip(self._boosters, _margins(self.sums.linear(data), data), strict=True)
        ]
        sums = margins[0].reshape(len(data), -1) if data.task == "multiclass" else torch.stack(margins, 1)
        # XGBoost's own probabilities are float32: rows of many classes would not sum to 1
        if data.task == "multiclass":
            return sums.softmax(1)
        return as_task(sums if data.task == "regression" else sums.sigmoid(), data)

    def _matrix(self, data: Rows) -> np.ndarray:
        return self._inputs.matrix(data.table).cpu().numpy()

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weighted sum (``sums/``), the trees (``trees0.ubj``, …) and the vocabularies."""
        if not self._boosters:
            raise self.not_fitted()
        self.sums.save(folder / "sums")
        for j, booster in enumerate(self._boosters):
            (folder / f"trees{j}.ubj").write_bytes(booster.save_raw("ubj"))
        return {**self._inputs.write(folder), "boosters": len(self._boosters)}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        self.sums = type(self.sums).load(folder / "sums")
        self._inputs = TreeInputs.read(folder, about)
        self._boosters = [xgb.Booster(model_file=folder / f"trees{j}.ubj") for j in range(about["boosters"])]


def linear_blend(models: Sequence[str], task: Task) -> WeightedBlend:
    """Return the weighted sum of a task."""
    if task == "regression":
        return RidgeBlend(models)
    return PoolBlend(models) if task == "multiclass" else LogisticBlend(models)


def _margins(sums: torch.Tensor, data: Rows) -> list[np.ndarray]:
    values = sums.float().numpy()
    return [values] if data.task == "multiclass" else [np.ascontiguousarray(v) for v in values.T]


# ``HillClimb``: models added one at a time, each as often as it helps, straight on the metric.


class HillClimb(Estimator):
    """Mean of base models in which each counts as often as it helps the metric; many not at all.

    The search starts from the best model and adds, step by step, the one whose addition makes the best mean; what it
    ends with is the best mean on its way. Probabilities and values are averaged; in lists, the in-list log-softmax.

    Args:
        models: the base models' names.
        name: the blend's name.
        metric: what to climb on, a name or a ``Metric``; None: the task's usual one. A metric of one's own is not
            saved: what is loaded predicts as before, but would be fitted anew by the task's usual metric.
        steps: how many models are added at most, the first one included.
        rows: look at about this many of the training rows (whole lists), chosen at random; None: all.

    Source: Caruana et al. 2004, "Ensemble selection from libraries of models".
    """

    learned = ("weights",)

    def __init__(
        self,
        models: Sequence[str],
        *,
        name: str = "hill_climb",
        metric: str | Metric | None = None,
        steps: int = 40,
        rows: int | None = 50_000,
    ) -> None:
        self.models, self.name, self.metric, self.steps, self.rows = list(models), name, metric, steps, rows
        self.forget()

    def forget(self) -> None:
        """Drop the weights."""
        super().forget()
        self.weights: torch.Tensor | None = None

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights; ``valid`` is not looked at."""
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        train = self._some(train, seed)
        metric = get_metric(default_metric(train.task) if self.metric is None else self.metric)
        counts = climb(metric, train, self._inputs(train), self.steps)
        self.weights = counts.double() / counts.sum()
        self.trace = Trace(importance=dict(zip(self.models, self.weights.tolist(), strict=True)))
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the weighted mean: float64 ``[n]`` or ``[n, k]``."""
        if self.weights is None:
            raise self.not_fitted()
        return as_task(torch.einsum("nmk,m->nk", self._inputs(data), self.weights), data)

    def _inputs(self, data: Rows) -> torch.Tensor:
        if data.task == "ranking":
            return torch.stack([data.table[f"{m}_log_softmax"].number().cpu() for m in self.models], 1)[:, :, None]
        return predicted_by(self.models, data)

    def _some(self, train: Rows, seed: int) -> Rows:
        if self.rows is None or len(train) <= self.rows:
            return train
        draw = torch.Generator().manual_seed(seed)
        if train.groups is None:
            return train.take(torch.randperm(len(train), generator=draw)[: self.rows].sort().values)
        ids, codes = torch.unique(train.groups, return_inverse=True)
        chosen = torch.randperm(len(ids), generator=draw)[: max(int(self.rows / len(train) * len(ids)), 1)]
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[chosen] = True
        return train.take(mask[codes])

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments; a metric by its name if it has one."""
        metric = self.metric.name if isinstance(self.metric, Metric) else self.metric
        try:
            get_metric(str(metric))
        except DataError:
            metric = None
        return {**super().settings(), "metric": metric}


def climb(metric: Metric, data: Rows, x: torch.Tensor, steps: int) -> torch.Tensor:
    """Count how often each model is taken: int64 ``[models]``; ``x`` float64 ``[n, models, k]`` is averaged; ties: the
    first.
    """

    def score(mean: torch.Tensor) -> float:
        return metric(data.label, mean[:, 0] if mean.shape[1] == 1 else mean, groups=data.groups)

    taken = torch.zeros(x.shape[1], dtype=torch.int64)
    total = torch.zeros_like(x[:, 0])
    best, best_score, since = taken, float("nan"), 0
    for step in range(1, steps + 1):
        scores = [score((total + x[:, m]) / step) for m in range(x.shape[1])]
        chosen = best_of(metric, scores)
        taken = taken.clone()
        taken[chosen] += 1
        total = total + x[:, chosen]
        since += 1
        if step == 1 or metric.better(scores[chosen], best_score):
            best, best_score, since = taken, scores[chosen], 0
        # One addition may bring nothing where two would; five in a row hardly do.
        if since >= 5:
            break
    return best


def best_of(metric: Metric, scores: Sequence[float]) -> int:
    """Return the place of the best score; of equal ones the first."""
    best = 0
    for i, value in enumerate(scores):
        if metric.better(value, scores[best]):
            best = i
    return best
