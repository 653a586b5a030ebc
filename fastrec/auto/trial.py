"""``QuickTrial``: a quick model on some of the training rows, with and without features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fastrec.auto.chosen import Family
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem
from fastrec.estimators import Estimator, LGBMModel, XGBModel
from fastrec.features import FeatureSet
from fastrec.features.base import Feature
from fastrec.metrics import bootstrap_metric, default_metric, get_metric
from fastrec.table import Table
from fastrec.validate import Folds, Rows, Target


class QuickTrial:
    """A quick model on some of the training rows, with and without features.

    Args:
        problem: what is known of the table.
        base: the features to begin with.
        seconds: time for all that is tried.
        rows: how many rows it is made on, at most.
        n_folds: how many parts they are cut into.
    """

    def __init__(
        self, problem: Problem, base: Sequence[Feature], seconds: float, *, rows: int = 50_000, n_folds: int = 3
    ) -> None:
        self.problem, self.base, self.seconds, self.n_folds = problem, list(base), seconds, n_folds
        self.hurried = False
        table = Table.read(problem.train)
        self.target = Target.fit(table, problem.target, problem.task, positive=problem.positive)
        known = self.target.known(table).nonzero().squeeze(1)
        if len(known) > rows:
            known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:rows].sort().values]
        self.table = table.take(known)
        self.label = self.target.encode(self.table)
        self.folds = self._cut()
        self.metric = get_metric("logloss" if problem.task == "multiclass" else default_metric(problem.task))
        self.tables = {n: Table.read(t) for n, t in problem.files.side.items()}
        numbers = [c.name for c in problem.kinds("number")]
        self.cats, self.conts = [c.name for c in problem.kinds("category")], numbers
        self.rows = self._rows(self.table, [])
        self._score: tuple[torch.Tensor, float] | None = None

    def _cut(self) -> Folds:
        """Return folds like the run's: whole groups, blocks of time, or rows at random."""
        problem = self.problem
        if problem.group is not None and problem.group in self.table:
            return Folds.group(self.table, problem.group, self.n_folds)
        if problem.time is not None and problem.time in self.table:
            times = self.table[problem.time].number(torch.float64).cpu()
            place = torch.empty(len(times), dtype=torch.int64)
            place[torch.argsort(times, stable=True)] = torch.arange(len(times))
            return Folds(place * self.n_folds // len(times), method="blocks of time")
        if problem.task in ("binary", "multiclass"):
            return Folds.stratified(self.table, self.label.long(), self.n_folds)
        return Folds.kfold(len(self.table), self.n_folds)

    @property
    def target_options(self) -> dict[str, Any] | None:
        """What a ``TargetEncode`` of the raw target is to be told; None: the target has no means."""
        if self.problem.task == "regression":
            return {}
        if self.problem.task == "binary":
            one = self.problem.classes[-1]
            return {} if one in (1, True) and self.problem.classes[0] in (0, False) else {"classes": [one]}
        return {"classes": list(self.problem.classes)} if len(self.problem.classes) <= 10 else None

    def told_by(self, c: ColumnInfo) -> float:
        """Return the share of the target's variance between a column's values, adjusted for chance (adjusted η²)."""
        column = self.table[c.name]
        codes = column.coded().codes.cpu().numpy() if c.kind == "category" or c.key else _binned(column)
        y = self.label.double().numpy()
        y = y if y.ndim == 1 else y[:, 0]
        _, codes = np.unique(codes, return_inverse=True)
        count = np.bincount(codes)
        mean = np.bincount(codes, y) / count
        whole = ((y - y.mean()) ** 2).sum()
        between = (count * (mean - y.mean()) ** 2).sum()
        n, k = len(y), len(count)
        return float((between - (k - 1) * (whole - between) / max(n - k, 1)) / max(whole, 1e-12))

    def family(self, name: str, features: list[Feature]) -> Family:
        """Try features; if they improve the score by more than its error, they are kept and join the base."""
        if self._score is None:
            self._score = self._cross_fitted(self.base)
        before, _ = self._score
        after, new = self._cross_fitted([*self.base, *features])
        gain, error = self.gain(self.rows.label, after, before)
        kept = is_worth(gain, error)
        if kept:
            self.base, self._score = [*self.base, *features], (after, new)
        return Family(name, features, gain, error, kept)

    def gain(self, label: torch.Tensor | None, after: torch.Tensor, before: torch.Tensor) -> tuple[float, float]:
        """Return the gain of predictions over others of the same rows, and its standard error."""
        seen = bootstrap_metric(self.metric, label, {"after": after, "before": before}, seed=0)
        apart = seen.difference("after", "before")
        sign = 1.0 if self.metric.greater_is_better else -1.0
        gain = sign * (self.metric(label, after) - self.metric(label, before))
        return gain, (apart.high - apart.low) / 3.92

    def parts(self) -> Iterator[tuple[Rows, Rows]]:
        """Iterate over the rows outside and inside of each fold, with the features."""
        return self._parts(self.base)

    def _rows(self, table: Table, made: Sequence[str]) -> Rows:
        label = self.target.encode(table)
        task, n = self.problem.task, self.target.n_outputs
        return Rows(table, task, cats=self.cats, conts=[*self.conts, *made], label=label, n_outputs=n)

    def _parts(self, features: Sequence[Feature]) -> Iterator[tuple[Rows, Rows]]:
        if not features:
            for outside, inside in self.folds:
                yield self._rows(self.table.take(outside), []), self._rows(self.table.take(inside), [])
            return
        made = FeatureSet(list(features))
        for train, valid in made.cross_fit(self.table, self.folds.codes, tables=self.tables):
            outputs = [n for n in made.outputs if train[n].plain().kind == "number"]
            yield self._rows(train, outputs), self._rows(valid, outputs)

    def _cross_fitted(self, features: Sequence[Feature]) -> tuple[torch.Tensor, float]:
        oof: torch.Tensor | None = None
        for (_, inside), (train, valid) in zip(self.folds, self._parts(features), strict=True):
            model = _judge()
            # The time is shared by 24 fits, a few more than there are.
            model.time_limit = self.seconds / 24
            began = time.monotonic()
            model.fit(train, None, seed=0)
            # A model that used nine tenths of its time was stopped by it.
            self.hurried |= time.monotonic() - began > 0.9 * model.time_limit
            said = model.predict(valid)
            if oof is None:
                oof = torch.zeros((len(self.table), *said.shape[1:]), dtype=torch.float64)
            oof[inside] = said
        assert oof is not None
        return oof, self.metric(self.rows.label, oof)


def is_worth(gain: float, error: float, times: float = 1.0) -> bool:
    """Return whether a gain exceeds so many of its standard errors."""
    return gain > 0 and gain > times * error


def _judge() -> Estimator:
    """Return a model that learns all it can: with a weak one every encoding looks like a gain."""
    if find_spec("lightgbm") is not None:
        return LGBMModel("judge", rounds=800, learning_rate=0.1, early_stopping_rounds=30)
    return XGBModel("judge", rounds=800, eta=0.1, early_stopping_rounds=30)


def _binned(column: Any) -> np.ndarray:
    values = column.number(torch.float64).cpu().numpy()
    finite = values[np.isfinite(values)]
    edges = np.unique(np.quantile(finite, np.linspace(0, 1, 33)[1:-1])) if len(finite) else np.zeros(0)
    return np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
