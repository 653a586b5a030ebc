"""Blends, the models of level 2: their inputs, and means, weighted sums and trees over base models' predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import xgboost as xgb
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.estimators import Estimator, Ranker, Trace, XGBRanker
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.base import Rule
from fastrec.estimators.xgboost import gains, linked, names_for_xgboost, params_for_xgboost, predicted
from fastrec.metrics.ranking import choice, group_ranks
from fastrec.segments import segment_max, segment_sum
from fastrec.table import Table
from fastrec.tabular.procs.procs import interpolated, spread_places
from fastrec.validate import Lists, Rows, whole_lists
from fastrec.validate.target import Task

# Level-2 inputs for tasks without lists: the predictions of each base model, one column per number.


def base_models(names: Sequence[str]) -> list[str]:
    """Return base models' names; refuse none, and a bare text, whose letters would be taken for names."""
    if isinstance(names, str) or not (made := list(names)):
        raise DataError(f"a blend of the models {names!r}", remedy="Give a list of one name or more")
    return made


def names_of(model: str, data: Rows) -> list[str]:
    """Return the columns of a base model: its name, or its name with the number of each class or target."""
    return [model] if data.n_scores == 1 else [f"{model}_{j}" for j in range(data.n_scores)]


def by_row(predicted: Mapping[str, torch.Tensor], data: Rows, extra: Sequence[str] = ()) -> Rows:
    """Return the rows with level-2 inputs instead of features; ``extra``: columns of level 1 to keep."""
    columns: dict[str, Any] = {n: data.table[n] for n in extra}
    used = [n for n in extra if n not in data.cats]
    for model, values in predicted.items():
        wide = in_columns(values)
        if wide.shape != (len(data), data.n_scores):
            problem = f"{model} predicts {tuple(values.shape)} for {len(data)} rows of a {data.task} task"
            raise DataError(problem, remedy=f"Give {data.n_scores} numbers for each row")
        names = names_of(model, data)
        refuse_twice(names, columns)
        columns |= {n: wide[:, j].double() for j, n in enumerate(names)}
        used += names
    return replace(data, table=Table(columns, device="cpu"), cats=[n for n in extra if n in data.cats], conts=used)


def refuse_twice(names: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Refuse level-2 inputs whose names are already in use."""
    if (twice := next((n for n in names if n in columns), None)) is not None:
        raise DataError("two level-2 inputs have this name", column=twice, remedy="Rename the column or the model")


def predicted_by(models: Sequence[str], data: Rows) -> torch.Tensor:
    """Return the base models' predictions: float64 ``[n, models, k]``."""
    each = [torch.stack([data.table[n].number().cpu() for n in names_of(m, data)], 1) for m in models]
    return torch.stack(each, 1)


def in_lists(models: Sequence[str], data: Rows, of: Inputs = "log_softmax") -> torch.Tensor:
    """Return one ``in_list`` input of each base model by name: float64 ``[n, models]``."""
    return torch.stack([data.table[f"{m}_{of}"].number().cpu() for m in models], 1)


def labels_of(data: Rows) -> torch.Tensor:
    """Return labels as float64 ``[n, targets]``."""
    if data.label is None:
        raise DataError("a blend was given rows without labels to learn from", remedy="Give label=")
    return in_columns(data.label.double())


def weights_of(data: Rows) -> torch.Tensor:
    """Return weights of mean 1, float64 ``[n]``, so that a ridge does not depend on the weights' unit."""
    if data.weight is None:
        return torch.ones(len(data), dtype=torch.float64)
    weight = data.weight.double()
    if not bool((weight > 0).any()):
        raise DataError("no row has a weight above 0", remedy="Give at least one row that counts")
    return weight / weight.mean()


def in_columns(values: torch.Tensor) -> torch.Tensor:
    """Turn ``[n]`` into ``[n, 1]``."""
    return values[:, None] if values.ndim == 1 else values


def as_task(values: torch.Tensor, data: Rows) -> torch.Tensor:
    """Convert numbers ``[n, k]`` to the shape of the task's predictions: ``[n]`` if there is one per row."""
    return values[:, 0] if data.n_scores == 1 else values


_START = "__start__"  # the column of scores that trees start from

Inputs = Literal["rank", "gap", "softmax", "log_softmax"]


def in_list(scores: torch.Tensor, groups: torch.Tensor) -> dict[Inputs, torch.Tensor]:
    """Return a model's rank, gap and softmax share within each list: float64 ``[n]`` each.

    ``rank`` starts at 1, with ties in row order; ``gap`` is the score minus the list's best, ≤ 0. A candidate with a
    score of NaN or -inf ranks last, with a softmax of 0; several with +inf share the top.
    """
    _, codes = torch.unique(groups, return_inverse=True)
    size = int(codes.max()) + 1 if len(codes) else 0
    # A missing score ranks last, as in the metrics.
    rough = torch.where(scores.isnan(), -torch.inf, scores)
    top = segment_max(rough, codes, size)[codes]
    gap = torch.where(rough == top, 0.0, torch.where(rough.isfinite() & top.isfinite(), rough - top, -limits.FAR_GAP))
    log_softmax = gap - segment_sum(gap.exp(), codes, size)[codes].log()
    rank = group_ranks(scores, groups, ties="ordinal").double() if len(scores) else scores
    return {"rank": rank, "gap": gap, "softmax": log_softmax.exp(), "log_softmax": log_softmax}


def level_two(scores: Mapping[str, torch.Tensor], data: Lists, extra: Sequence[str] = ()) -> Lists:
    """Return candidates with level-2 inputs instead of features; the models' raw scores are columns but not inputs."""
    columns: dict[str, Any] = {n: data.table[n] for n in extra}
    used = [n for n in extra if n not in data.cats]
    for model, values in scores.items():
        inputs = {f"{model}_{word}": v for word, v in in_list(values, data.groups).items()}
        refuse_twice([model, *inputs], columns)
        columns |= inputs
        columns[model] = values.double()
        used += [n for n in inputs if n != f"{model}_log_softmax"]
    cats = [n for n in extra if n in data.cats]
    return Lists(Table(columns, device="cpu"), data.groups, cats=cats, conts=used, label=data.label, weight=data.weight)


class LinearBlend(Ranker):
    """A weighted sum of the base models' in-list log-softmax.

    The weights, all ≥ 0, maximise the likelihood of the clicks (conditional logit), with a ridge penalty.

    Args:
        models: the base models' names.
        name: the ranker's name.
        ridge: penalty on the squared weights, in units of lists.

    Source: McFadden 1974, "Conditional logit analysis of qualitative choice behavior".
    """

    learned = ("weights",)
    weights: torch.Tensor | None

    def __init__(self, models: Sequence[str], *, name: str = "blend", ridge: float = 1.0) -> None:
        self.name, self.models, self.ridge = name, base_models(models), ridge
        self.forget()

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Find the weights, without looking at ``valid``."""
        train = whole_lists(train, name=self.name)
        x, y = in_lists(self.models, train), train.label.double()
        _, codes = torch.unique_consecutive(train.groups, return_inverse=True)
        size = int(codes.max()) + 1 if len(codes) else 0
        share = y / segment_sum(y, codes, size)[codes]
        share = share if train.weight is None else share * train.weight

        def loss(weights: torch.Tensor) -> torch.Tensor:
            score = x @ weights
            # Subtract the maximum, because the softmax of large scores overflows.
            top = segment_max(score.detach(), codes, size)[codes]
            total = torch.zeros(size, dtype=torch.float64).index_add(0, codes, (score - top).exp())
            return -(share * (score - top - total.log()[codes])).sum() + self.ridge * (weights**2).sum()

        models = len(self.models)
        self.weights = minimum(loss, torch.full((models,), 1 / models, dtype=torch.float64), models)
        self.trace = Trace(importance={m: float(w) for m, w in zip(self.models, self.weights, strict=True)})
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """Return the weighted sum: float64 ``[n]``."""
        if self.weights is None:
            raise self.not_fitted()
        return in_lists(self.models, data) @ self.weights


class BoostedBlend(Ranker):
    """XGBoost's ranker over level-2 inputs, starting from a ``LinearBlend``: the trees learn corrections to it.

    Args:
        models: the base models' names.
        name: the ranker's name.
        rounds: the number of trees.
        **params: XGBoost's own parameters.
    """

    learned = ("blend", "trees")

    def __init__(self, models: Sequence[str], *, name: str = "boosted_blend", rounds: int = 40, **params: Any) -> None:
        self.models, self.name, self.rounds, self.params = base_models(models), name, rounds, params
        self.forget()

    def forget(self) -> None:
        """Drop weights and trees."""
        super().forget()
        self.blend = LinearBlend(self.models)
        self.trees = XGBRanker(self.name, rounds=self.rounds, margin=_START, **self.params)

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Find the weights, then grow the trees, without looking at ``valid``."""
        self.blend.fit(train)
        self.trees.fit(self._started(train), seed=seed, device=device)
        self.trace = self.trees.trace
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        """Return the corrected blend: float64 ``[n]``."""
        return self.trees.predict(self._started(data))

    def _started(self, data: Lists) -> Lists:
        return replace(data, table=data.table.with_columns({_START: self.blend.predict(data)}))


def minimum(loss: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, weights: int) -> torch.Tensor:
    """Minimise a smooth function of numbers, float64 ``[m]``, of which the first ``weights`` are not negative.

    A fold's rows are in the training rows of the models that predict the other folds: where its labels are high, its
    own predictions are low. A blend with negative weights would learn to tell the labels from that.
    """

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        numbers = torch.from_numpy(x.copy()).requires_grad_()
        found = loss(numbers)
        found.backward()
        return float(found.detach()), numbers.grad.numpy()

    bounds = [(0, None)] * weights + [(None, None)] * (len(start) - weights)
    found = minimize(value, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    return torch.from_numpy(found.x)


def ridge_regression(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit least squares with weights ≥ 0 and an unpenalised intercept, in standard deviations of y.

    ``w``: row weights; ``ridge``: penalty on squares. Returns coefficients ``[m]`` and the intercept, a scalar.
    """
    total = w.sum()
    mean_x, mean_y = (w @ x) / total, (w @ y) / total
    x, y = x - mean_x, y - mean_y
    # so that the penalty does not depend on the target's unit
    unit = (w @ y.square()) / total
    unit = torch.where(unit > 0, unit, 1.0)
    gram = (x * w[:, None]).T @ x / unit + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    aim, m = x.T @ (w * y) / unit, x.shape[1]
    # It starts from equal weights: without a ridge, equal models share the weight.
    coefficients = minimum(lambda b: b @ gram @ b / 2 - aim @ b, torch.full((m,), 1 / m, dtype=x.dtype), m)
    return coefficients, mean_y - mean_x @ coefficients


def logistic(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit a logistic regression with weights ≥ 0 and an unpenalised intercept.

    ``w``: row weights; ``ridge``: penalty on squares. Returns coefficients ``[m]`` and the intercept, a scalar.
    """

    def loss(b: torch.Tensor) -> torch.Tensor:
        z = x @ b[:-1] + b[-1]
        # The intercept is nearly free, but stays finite if there is only one class.
        penalty = ridge * b[:-1].square().sum() + 1e-9 * b[-1].square()
        return (w @ (torch.nn.functional.softplus(z) - y * z) + penalty) / len(x)

    found = minimum(loss, torch.zeros(x.shape[1] + 1, dtype=x.dtype), x.shape[1])
    return found[:-1], found[-1]


def pool(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit classes by ``softmax(sum of coefficient m times x m, plus a constant a class)``, with maximum likelihood.

    ``x`` is float64 ``[n, m, k]``; ``w``: row weights; ``ridge``: penalty on squares. Returns coefficients ``[m]``, all
    ≥ 0, and constants ``[k]``.
    """
    n, models, classes = x.shape

    def loss(b: torch.Tensor) -> torch.Tensor:
        z = torch.einsum("nmk,m->nk", x, b[:models]) + b[models:]
        of_true = z.gather(1, y[:, None])[:, 0] - z.logsumexp(1)
        return (ridge * b.square().sum() - w @ of_true) / n

    start = torch.cat([torch.full((models,), 1 / models, dtype=x.dtype), torch.zeros(classes, dtype=x.dtype)])
    found = minimum(loss, start, models)
    return found[:models], found[models:]


class OneBase(Rule):
    """One base model alone, unchanged.

    Args:
        model: the base model's name.
        name: the blend's name; None: the model's name.
    """

    def __init__(self, model: str, *, name: str | None = None) -> None:
        self.model, self.name = model, name or model
        self.forget()

    def forget(self) -> None:
        """Give the whole weight to the model; nothing is learned."""
        self.trace = Trace(importance={self.model: 1.0})

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the model's predictions: float64 ``[n]`` or ``[n, k]``."""
        return as_task(predicted_by([self.model], data)[:, 0], data)


class MeanBlend(Rule):
    """The plain mean of the base models' predictions. Nothing is fitted, so nothing can be overfitted.

    Args:
        models: the base models' names.
        of: in lists, average the ``'log_softmax'`` (a product of the models' click shares) or the ``'rank'`` (Borda
            count); None: the predictions themselves.
        name: the estimator's name; None: ``mean``, with ``_`` and the quantity in lists.
    """

    tasks = ("binary", "multiclass", "regression", "multilabel")

    def __init__(
        self, models: Sequence[str], *, of: Literal["log_softmax", "rank"] | None = None, name: str | None = None
    ) -> None:
        if of is not None:
            choice(of, "of", ("log_softmax", "rank"))
        self.models, self.of, self.name = base_models(models), of, name or ("mean" if of is None else f"mean_{of}")
        self.tasks = type(self).tasks if of is None else ("ranking",)
        self.forget()

    def forget(self) -> None:
        """Give all models the same weight; nothing is learned."""
        self.trace = Trace(importance=dict.fromkeys(self.models, 1 / len(self.models)))

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the mean: float64 ``[n]`` or ``[n, k]``."""
        if self.of is None:
            return as_task(predicted_by(self.models, data).mean(1), data)
        mean = in_lists(self.models, data, self.of).mean(1)
        return -mean if self.of == "rank" else mean


class WeightedBlend(Estimator):
    """Fitted weighted sum: weights ``[models, k]``, all ≥ 0, a constant ``[k]``; ``ridge``: a penalty in rows."""

    kind: str
    solve: ClassVar[Callable[..., tuple[torch.Tensor, torch.Tensor]]]  # for one target
    learned = ("weights", "constant")
    weights: torch.Tensor | None
    constant: torch.Tensor | None

    def __init__(self, models: Sequence[str], *, name: str | None = None, ridge: float = 1.0) -> None:
        self.models, self.name, self.ridge = base_models(models), name or self.kind, ridge
        self.forget()

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights, without looking at ``valid``."""
        self.check_task(train)
        weights, self.constant = self._find(self._inputs(train), labels_of(train), weights_of(train))
        self.weights = weights
        self.trace = Trace(importance=dict(zip(self.models, weights.mean(1).tolist(), strict=True)))
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return the weighted sum on the task's scale: float64 ``[n]`` or ``[n, k]``."""
        return as_task(self._as_predicted(self.linear(data)), data)

    def linear(self, data: Rows) -> torch.Tensor:
        """Return the weighted sum itself (logits, log-probabilities or values): float64 ``[n, k]``."""
        if self.weights is None or self.constant is None:
            raise self.not_fitted()
        return torch.einsum("nmk,mk->nk", self._inputs(data), self.weights) + self.constant

    def _find(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fits = [type(self).solve(x[:, :, j], y[:, j], w, self.ridge) for j in range(y.shape[1])]
        return torch.stack([f[0] for f in fits], 1), torch.stack([f[1] for f in fits])

    def _inputs(self, data: Rows) -> torch.Tensor:
        return predicted_by(self.models, data)

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class RidgeBlend(WeightedBlend):
    """A weighted sum of the base models' values plus a constant, by ridge regression; each target separately.

    Args:
        models, name: as for ``LinearBlend``; ``name=None`` means ``ridge``.
        ridge: penalty on the squared weights, in units of rows (values in units of the target's standard deviation).

    Source: Breiman 1996, "Stacked regressions"; Hoerl and Kennard 1970.
    """

    kind, tasks, solve = "ridge", ("regression",), staticmethod(ridge_regression)


class LogisticBlend(WeightedBlend):
    """A logistic regression on the logits of the base models' probabilities; each label separately.

    Args:
        models, name: as for ``LinearBlend``; ``name=None`` means ``logistic``.
        ridge: penalty on the squared weights, in units of rows.

    Source: Wolpert 1992, "Stacked generalization".
    """

    kind, tasks, solve = "logistic", ("binary", "multilabel"), staticmethod(logistic)

    def _inputs(self, data: Rows) -> torch.Tensor:
        # Certainty beyond a millionth gives a model no more weight.
        return predicted_by(self.models, data).logit(eps=1e-6)

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.sigmoid()


class PoolBlend(WeightedBlend):
    """A multinomial model of the log-probabilities of the base models, with one weight per model and one constant per
    class.

    It has no weights per model and class, or per pair of classes, as these would be too many for many classes.

    Args:
        models, name: as for ``LinearBlend``; ``name=None`` means ``logistic``.
        ridge: penalty on the squared weights and constants, in units of rows.

    Source: Genest and Zidek 1986, "Combining probability distributions", section 3 (logarithmic pools).
    """

    kind, tasks = "logistic", ("multiclass",)

    def _find(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, constant = pool(x, y[:, 0].long(), w, self.ridge)
        return weights[:, None].expand(-1, x.shape[2]).contiguous(), constant

    def _inputs(self, data: Rows) -> torch.Tensor:
        # Clipped as in LogisticBlend.
        return predicted_by(self.models, data).clamp(min=1e-6).log()

    def _as_predicted(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.softmax(1)


class RankMean(Estimator):
    """The mean rank of a row, for metrics that depend only on the order; the models' scales do not matter.

    A row's rank is its place among the training rows, interpolated between stored knots. A row's prediction therefore
    does not depend on the other rows predicted with it. A straight line maps the mean rank to the task's scale: a
    probability (via the logit) or a value. It preserves the order as long as higher means more.

    Probabilities move halfway to an isotonic regression if that improves their cross-fitted log loss by two standard
    errors (on `churn` from 0.199 to 0.168). Halfway preserves the order, and no probability becomes 0 or 1.

    Args:
        models, name: as for ``LinearBlend``.
    """

    tasks = ("binary", "multilabel", "regression")
    learned = ("_knots", "_line", "_curves")

    def __init__(self, models: Sequence[str], *, name: str = "mean_rank") -> None:
        self.models, self.name = base_models(models), name
        self.forget()

    def forget(self) -> None:
        """Drop the knots."""
        self.trace = Trace(importance=dict.fromkeys(self.models, 1 / len(self.models)))
        self._knots: list[list[torch.Tensor]] = []  # for each model and column: values, shares
        self._line: torch.Tensor | None = None  # [2, k]: slope and constant
        self._curves: list[list[torch.Tensor]] = []  # for each column: probabilities by the line, and calibrated ones

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Store the training rows' distribution and fit the line, without looking at ``valid``."""
        self.check_task(train)
        x, y, w = predicted_by(self.models, train), labels_of(train), weights_of(train)
        self._knots = []
        for values in x.flatten(1).T:  # distinct values, and the share of rows at or below each (ties: their middle)
            distinct, counts = torch.unique_consecutive(torch.sort(values).values, return_counts=True)
            shares = (counts.cumsum(0) - counts / 2) / len(values)
            places = spread_places(shares, limits.RANK_KNOTS)
            self._knots.append([distinct[places], shares[places]])
        shares = self._shares(x)
        find = ridge_regression if train.task == "regression" else logistic
        line = [find(_on_scale(shares[:, [j]], train), y[:, j], w, 1e-6) for j in range(y.shape[1])]
        self._line = torch.stack([torch.stack([f[0][0] for f in line]), torch.stack([f[1] for f in line])])
        if train.task != "regression":
            by_line = (_on_scale(shares, train) * self._line[0] + self._line[1]).sigmoid()
            self._curves = [self._calibrated(p.contiguous(), t, w) for p, t in zip(by_line.T, y.T, strict=True)]
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values in the order of the mean ranks: float64 ``[n]`` or ``[n, k]``."""
        if self._line is None:
            raise self.not_fitted()
        sums = _on_scale(self._shares(predicted_by(self.models, data)), data) * self._line[0] + self._line[1]
        if data.task == "regression":
            return as_task(sums, data)
        columns = zip(sums.sigmoid().T, self._curves, strict=True)
        return as_task(torch.stack([interpolated(p.contiguous(), *c) if c else p for p, c in columns], 1), data)

    def _shares(self, x: torch.Tensor) -> torch.Tensor:
        each = [
            interpolated(values.contiguous(), *knots) if len(knots[0]) > 1 else torch.full_like(values, 0.5)
            for values, knots in zip(x.flatten(1).T, self._knots, strict=True)
        ]
        return torch.stack(each, 1).reshape(x.shape).mean(1)

    @staticmethod
    def _calibrated(p: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        """Return the points of a piecewise linear calibration; empty: calibration brings no improvement."""

        def curve(rows: torch.Tensor) -> list[torch.Tensor]:
            steps = IsotonicRegression(out_of_bounds="clip").fit(*(v[rows].numpy() for v in (p, y, w)))
            # A step between two rows would be steeper than the precision of an exported graph.
            x = np.unique([0.0, *np.quantile(p[rows].numpy(), np.linspace(0, 1, 21)), 1.0])
            return [torch.from_numpy(x), torch.from_numpy((x + steps.predict(x)) / 2)]

        part, better = torch.arange(len(p)) % 5, p.clone()
        for k in range(5):
            here = part == k
            if bool(here.any()) and not bool(here.all()):
                better[here] = interpolated(p[here], *curve(~here))
        gain = torch.nn.functional.binary_cross_entropy(p, y, reduction="none")
        gain = gain - torch.nn.functional.binary_cross_entropy(better, y, reduction="none")
        error = float(gain.std(correction=0)) / len(gain) ** 0.5
        return curve(part >= 0) if float(gain.mean()) > limits.CHOICE_ERRORS * error else []


def _on_scale(shares: torch.Tensor, data: Rows) -> torch.Tensor:
    # The logit of the first and the last row would be infinite.
    return shares if data.task == "regression" else shares.logit(eps=1e-4)


_SMALL = {"max_depth": 3, "eta": 0.05, "min_child_weight": 20, "subsample": 0.7, "tree_method": "hist", "max_bin": 64}
_OBJECTIVE = {
    "binary": "binary:logistic",
    "multilabel": "binary:logistic",
    "regression": "reg:squarederror",
    "multiclass": "multi:softprob",
}


class TreeBlend(Estimator):
    """A few small trees over the base models' predictions and a few columns of the rows.

    They start from the task's weighted sum (``RidgeBlend``, ``LogisticBlend``, ``PoolBlend``) and learn corrections to
    it, such as where one model deserves more weight. Each target or label has its own trees.

    Args:
        models, name: as for ``LinearBlend``.
        rounds: the number of trees (multiclass: per class).
        **params: XGBoost's own parameters.
    """

    tasks = tuple(_OBJECTIVE)

    def __init__(
        self, models: Sequence[str], task: Task, *, name: str = "trees", rounds: int = 40, **params: Any
    ) -> None:
        self.models, self.task, self.name, self.rounds, self.params = base_models(models), task, name, rounds, params
        self.forget()

    def forget(self) -> None:
        """Drop sums and trees."""
        super().forget()
        self.sums: WeightedBlend = linear_blend(self.models, self.task)
        self._boosters: list[xgb.Booster] = []
        self._inputs = TreeInputs([], {})

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Find the weights, then grow the trees, without looking at ``valid``."""
        self.check_task(train)
        # the trees learn the residual of the sum, so the sum is fitted first
        self.sums.fit(train)
        self._inputs = TreeInputs.fit(train)
        x, names, w = self._inputs.matrix(train.table).cpu().numpy(), self._inputs.names, weights_of(train).numpy()
        of_models = {n for m in self.models if train.task != "multiclass" for n in names_of(m, train)}
        params = {**_SMALL, "monotone_constraints": {n: 1 for n in names if n in of_models}, **self.params}
        params = params_for_xgboost(params, seed, None) | {"objective": _OBJECTIVE[train.task]}
        if train.task == "multiclass":
            params["num_class"] = train.n_outputs
        about = {"weight": w, "feature_names": names_for_xgboost(names), "nthread": params["nthread"]}
        for column, margin in zip(labels_of(train).T, self._margins(train), strict=True):
            data = xgb.DMatrix(x, column.numpy(), base_margin=margin.numpy(), **about)
            self._boosters.append(xgb.train(params, data, self.rounds))
        each = [gains(booster, names) for booster in self._boosters]
        self.trace = Trace(importance={n: sum(g[n] for g in each) for n in names})
        return self

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values: float64 ``[n]`` or ``[n, k]``."""
        if not self._boosters:
            raise self.not_fitted()
        if not len(data):  # XGBoost warns about them
            return as_task(torch.zeros(0, data.n_outputs, dtype=torch.float64), data)
        x, names = self._inputs.matrix(data.table).cpu(), self._inputs.names
        both = zip(self._boosters, self._margins(data), strict=True)
        sums = [predicted(b, x, names, margin=True, start=margin) for b, margin in both]
        values = linked(sums[0] if data.task == "multiclass" else torch.stack(sums, 1), _OBJECTIVE[data.task])
        return as_task(values, data)

    def _margins(self, data: Rows) -> list[torch.Tensor]:
        sums = self.sums.linear(data).float()
        return [sums] if data.task == "multiclass" else [v.contiguous() for v in sums.T]

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
    """Return the weighted sum for a task."""
    return {"regression": RidgeBlend, "multiclass": PoolBlend}.get(task, LogisticBlend)(models)
