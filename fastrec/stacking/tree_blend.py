"""``TreeBlend``: XGBoost's trees that correct a fitted weighted sum, for rows that stand for themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import xgboost as xgb

from fastrec.estimators import Estimator, Trace
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.stacking.row_blends import LogisticBlend, PoolBlend, RidgeBlend, WeightedBlend
from fastrec.stacking.row_inputs import as_task, labels_of, weights_of
from fastrec.validate import Rows
from fastrec.validate.tasks import Task

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
        self.trace = Trace(importance=self._gains())
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

    def _gains(self) -> dict[str, float]:
        gains = dict.fromkeys(self._inputs.names, 0.0)
        for booster in self._boosters:
            for place, gain in booster.get_score(importance_type="total_gain").items():
                gains[self._inputs.names[int(place[1:])]] += float(np.sum(gain))  # the trees know columns as f0, f1, …
        return gains

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
    """Return the margins that each booster starts from: of all classes at once, or of a target each."""
    values = sums.float().numpy()
    return [values] if data.task == "multiclass" else [np.ascontiguousarray(v) for v in values.T]
