"""Baselines, and wrappers around other estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.estimators.base import Estimator, Ranker, Rule, Trace, Wrapper, constant_of, learnable, outputs_of
from fastrec.metrics import get_metric
from fastrec.segments import lexical_order
from fastrec.table import Table, concat
from fastrec.validate import Lists, Rows
from fastrec.validate.target import Task

_OF_MEANS = ("rmse", "r2", "poisson_deviance", "gamma_deviance")  # the mean is optimal for them


class ConstantModel(Estimator):
    """A model that predicts a constant: class shares, the mean, or the optimum of a metric; weights count.

    Scores of a ranking are all 0.

    Args:
        metric: for regression, the metric that the constant optimises (the mean or one of 201 quantiles). None: mean.
    """

    learns = False
    learned = ("_value",)
    _value: torch.Tensor | None

    def __init__(self, name: str = "constant", *, metric: str | None = None) -> None:
        self.name, self.metric = name, metric
        self.forget()

    def suit(self, metric: str) -> None:
        """Predict the best constant for a metric, unless one was named."""
        self.metric = self.metric or metric

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the constant."""
        self.check_task(train)
        train = learnable(train, name=self.name)
        weight = (torch.ones(len(train)) if train.weight is None else train.weight).double()
        if train.task == "ranking":
            value = torch.tensor(0.0)
        elif train.task == "multiclass":
            (label,) = outputs_of(train)
            value = torch.zeros(train.n_outputs, dtype=torch.float64).index_add_(0, label.long(), weight) / weight.sum()
        else:
            values = [self._best(label, weight, train.task) for label in outputs_of(train)]
            value = torch.tensor(values[0] if train.n_scores == 1 else values, dtype=torch.float64)
        self._value = value.double()
        return self

    def _best(self, label: torch.Tensor, weight: torch.Tensor, task: str) -> float:
        mean = constant_of(label, weight)
        if task != "regression" or self.metric is None or self.metric in _OF_MEANS:
            return mean
        metric, order = get_metric(self.metric), torch.argsort(label)
        # Some 20,000 rows are enough for the quantiles; the metric is computed 202 times.
        order = order[:: max(len(order) // 20_000, 1)]
        label, weight = label[order].double(), weight[order]
        tried = torch.cat([torch.tensor([mean], dtype=torch.float64), _quantiles(label, weight)])
        scores = [metric(label, value.expand(len(label)), weight=weight) for value in tried]
        best = 0
        for i, score in enumerate(scores):
            best = i if metric.better(score, scores[best]) else best
        return float(tried[best])

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the constant for every row: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._value is None:
            raise self.not_fitted()
        return self._value.expand(len(data), *self._value.shape).clone()


def _quantiles(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return quantiles of ascending values; if two values qualify, return their mean."""
    share = torch.cumsum(weight, 0) / weight.sum()
    q = torch.linspace(0, 1, 201, dtype=torch.float64)
    low, high = (torch.searchsorted(share, q + d).clamp(max=len(values) - 1) for d in (-1e-12, 1e-12))
    return (values[low] + values[high]) / 2


class ColumnRanker(Rule, Ranker):
    """A ranking by columns: ascending by the first column, ties by the next one; missing values come last.

    Args:
        columns: the columns, the most important first.
    """

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name, self.columns, self.trace = name, list(columns), Trace()

    def predict(self, data: Lists) -> torch.Tensor:
        """Return minus the place of each candidate in the columns' order: float64 ``[n]``."""
        keys: list[torch.Tensor] = []
        for name in self.columns:
            column = data.table[name].plain()
            if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
                missing = column.is_missing()  # integers and times keep all 64 bits, missing ones are last
                keys += [missing.long(), torch.where(missing, 0, column.integer())]
            else:
                keys.append(column.number())  # NaN sorts last
        order = lexical_order([key.cpu() for key in keys])
        place = torch.arange(len(data), dtype=torch.float64)
        if order is not None:
            place[order] = torch.arange(len(data), dtype=torch.float64)
        return -place


class CentredModel(Wrapper):
    """An estimator that is trained on labels minus a share of their day's mean label.

    It is meant for rows of many stores, series or users on the same days. An error that all rows of a day share (the
    weather, a strike) cannot be predicted for later days, and a model would overfit it. Each training label loses
    ``share`` of its day's mean label and gains the same share of the overall mean. Day effects that features explain (a
    weekday, a promotion) are lost too: use it inside ``OffsetModel``, whose offset includes them. Rows without a value
    of the column form a day of their own.

    Args:
        model: the estimator to train, whose name it takes. None: ``read`` sets it.
        column: the column that identifies the day, or another set of related rows.
        share: the share of these rows' mean to remove, above 0, at most 1.
    """

    tasks = ("regression",)

    def __init__(self, model: Estimator | None, column: str, *, share: float = 0.7) -> None:
        if not 0 < share <= 1:
            raise DataError(f"no share of {share} is taken off", remedy="Give one above 0, at most 1")
        self.model, self.column, self.share = model, column, share
        self.forget()

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Learn from centred labels; ``valid`` is reported unchanged."""
        self.begin(train)
        self.model.fit(replace(train, label=self._centred(train)), valid, seed=seed, device=device)
        self.trace = self.model.trace
        return self

    def _centred(self, train: Rows) -> torch.Tensor:
        """Subtract the share of their day's weighted mean from the labels; rows of weight 0 do not count."""
        label = train.label.double().reshape(len(train), -1)  # several targets are centred one by one
        weight = (torch.ones(len(train)) if train.weight is None else train.weight).double()[:, None]
        # missing days have code 0, a day of their own
        days = train.table[self.column].coded().codes.cpu().long()
        n_days = int(days.max()) + 1 if len(days) else 1
        total = label.new_zeros(n_days, label.shape[1]).index_add_(0, days, weight * label)
        of_all = label.new_zeros(n_days, 1).index_add_(0, days, weight)
        mean = total.sum(0) / of_all.sum().clamp_min(1e-300)
        day = torch.where(of_all > 0, total / of_all.clamp_min(1e-300), mean)
        return (label - self.share * (day[days] - mean)).reshape(train.label.shape)


class OffsetModel(Wrapper):
    """A column's value plus an estimator's correction: the estimator learns the target minus the column.

    Use it for regression of one target if something simpler predicts well (an earlier value, a linear model). Trees
    need many splits to follow a number, but none to correct it. If the column is missing, the mean training target is
    used.

    Args:
        model: the estimator that learns the correction, whose name it takes. None: ``read`` sets it.
        column: a number on the scale of the labels (for a target learned as its log, a log).
    """

    tasks = ("regression",)
    learns = True  # the mean, even if the model is a rule
    learned = ("model", "_mean")
    _mean: float | None

    def __init__(self, model: Estimator | None, column: str) -> None:
        self.model, self.column = model, column
        self.forget()

    def suit(self, metric: str) -> None:
        """Let the correction optimise a metric of errors: they are the same with and without the offset."""
        if self.model is not None and metric.partition("@")[0] in ("mae", "pinball"):
            self.model.suit(metric)

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Learn the correction."""
        self.check_task(train)
        if train.n_outputs > 1:
            raise DataError(f"{self.name}: {train.n_outputs} targets, and one offset", remedy="Give one target")
        self.begin(train)
        weight = torch.ones(len(train)) if train.weight is None else train.weight
        self._mean = float((train.label.double() @ weight.double()) / weight.double().sum().clamp_min(1e-300))
        self.model.fit(self._less(train), None if valid is None else self._less(valid), seed=seed, device=device)
        self.trace = self.model.trace
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the column plus the correction: float64 ``[n]`` on the CPU."""
        if self.model is None or self._mean is None:
            raise self.not_fitted()
        return self._offset(data) + self.model.predict(data)

    def _less(self, data: Rows) -> Rows:
        return data if data.label is None else replace(data, label=data.label.double() - self._offset(data))

    def _offset(self, data: Rows) -> torch.Tensor:
        values = data.table[self.column].number().cpu()
        return torch.where(values.isnan(), self._mean, values)


_TASKS = ("binary", "multiclass", "regression", "multilabel")


class PseudoLabelled(Wrapper):
    """An estimator that is trained twice: on the labelled rows, and on these plus the rows that it then labels itself.

    This is self-training (Lee, "Pseudo-Label", ICML 2013 workshop). A row gets its most likely class if its probability
    is at least ``confidence`` (multilabel: if this holds for each label). Regression has no such confidence: all rows
    are used with their predictions. Pseudo-labelled rows are never part of the early-stopping hold-out.

    It may help if labels are few and classes well separated, with smooth models rather than trees; check the
    out-of-fold score. ``CrossFit`` gives each fold the rows to label; without any, only the estimator is trained.

    Args:
        model: the estimator to train, whose name it takes. None: ``read`` sets it.
        confidence: the least probability of a class, above 0, at most 1.
        weight: the weight of a pseudo-labelled row relative to a training row of mean weight.
        rounds: how often rows are labelled anew, each time with the last round's model.

    Attributes:
        taken: how many rows were labelled in the last round.
    """

    wants_unlabeled = True
    learned = ("model", "taken")

    def __init__(
        self, model: Estimator | None, *, confidence: float = 0.9, weight: float = 0.5, rounds: int = 1
    ) -> None:
        if not (0 < confidence <= 1 and weight > 0 and rounds >= 1):
            problem = f"no pseudo-labels of confidence {confidence}, weight {weight} and {rounds} rounds"
            remedy = "Give a confidence above 0 and at most 1, a weight above 0, and one round or more"
            raise DataError(problem, remedy=remedy)
        self.model, self.confidence, self.weight, self.rounds = model, confidence, weight, rounds
        self.forget()

    @property
    def tasks(self) -> Sequence[Task]:  # type: ignore[override]
        """The wrapped estimator's tasks except ranking, because a list has no label of its own."""
        return tuple(t for t in _TASKS if self.model is None or t in self.model.tasks)

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        self.taken = 0

    def start_from(self, other: Estimator) -> bool:
        """Return False: the last round's model has learned from its own labels."""
        return False

    def fit(
        self,
        train: Rows,
        valid: Rows | None = None,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        unlabeled: Rows | None = None,
    ) -> Self:
        """Learn from labelled rows, label others, learn from both.

        Args:
            train, valid, seed, device: see ``Estimator.fit``.
            unlabeled: the rows to label; labels that they have are not used. None: none.
        """
        self.begin(train)
        self.model.fit(train, valid, seed=seed, device=device)
        for _ in range(self.rounds if unlabeled is not None and len(unlabeled) else 0):
            label, sure = self._labelled(train.task, self.model.predict(replace(unlabeled, label=None)))
            if not bool(sure.any()):
                break
            both = self._together(train, unlabeled.take(sure), label[sure])
            self.model = self.model.fresh().fit(both, valid, seed=seed, device=device)  # type: ignore[assignment]
            self.taken = int(sure.sum())
        self.trace = self.model.trace
        return self

    def _labelled(self, task: Task, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels for the rows, and which of them are confident, bool ``[n]``."""
        if task == "regression":
            return predicted, torch.ones(len(predicted), dtype=torch.bool)
        if task == "multiclass":
            most = predicted.max(1)
            return most.indices, most.values >= self.confidence
        sure = torch.maximum(predicted, 1 - predicted) >= self.confidence
        return predicted > 0.5, sure if task == "binary" else sure.all(1)

    def _together(self, train: Rows, more: Rows, label: Tensor) -> Rows:
        n, m, ours, theirs = len(train), len(more), train.table, more.table
        # the columns used for training, and others of the same kind in both tables
        names = list(train.names)
        names += [n for n in ours.names if n not in names and n in theirs and ours[n].kind == theirs[n].kind]
        weight = None
        if train.weight is not None or self.weight != 1:
            given = torch.ones(n, dtype=torch.float64) if train.weight is None else train.weight.double()
            mean = given[given > 0].mean()  # rows of weight 0 are ignored
            weight = torch.cat([given, (self.weight * mean).expand(m)])
        some = {n: v for n in ("groups", "order") if (v := getattr(train, n)) is not None}
        return replace(
            train,
            table=concat([ours.select(names), theirs.select(names)]),
            label=torch.cat([train.label, label.to(train.label.dtype)]),
            weight=weight,
            guessed=torch.arange(n + m) >= n,
            **{name: torch.cat([v, v.max().expand(m)]) for name, v in some.items()},  # guessed rows are never held out
        )


def long_tails(table: Table, names: Sequence[str]) -> list[str]:
    """Find numeric columns whose furthest value lies far beyond the middle half of the values.

    In a large table only some rows, evenly spaced, are examined.
    """
    step = max(len(table) // limits.LONG_TAIL_ROWS, 1)
    long = []
    for name in names:
        values = table[name].number(torch.float64)[::step]
        ordered = values[values.isfinite()].sort().values
        if len(ordered.unique_consecutive()) < 5:
            continue  # so few distinct values are categories, not quantities
        low, middle, high = (float(ordered[round(q * (len(ordered) - 1))]) for q in (0.25, 0.5, 0.75))
        # Eight distances of the quartiles: far beyond a normal distribution's extremes.
        if max(float(ordered[-1]) - middle, middle - float(ordered[0])) > 8.0 * (high - low):
            long.append(name)
    return long
