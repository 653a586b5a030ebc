"""A run's scorer: its metric on the target's original scale, with thresholds of classes learned out of fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from fastrec import metrics
from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.estimators import Estimator
from fastrec.metrics.ranking import flat_tensor, plain_tensor
from fastrec.metrics.registry import MRR_AS_SHOWN, Metric
from fastrec.validate import Rows, Target
from fastrec.validate.target import Task


@dataclass(frozen=True)
class Decision:
    """Thresholds for classes and calibration of scores, learned on out-of-fold predictions."""

    # predictions above it are class 1 of a binary task; None: probabilities are submitted
    threshold: float | None = None
    # thresholds between adjacent classes; None: amounts are submitted
    cuts: tuple[float, ...] | None = None
    # of a ranking: slope and intercept of the scores' sigmoid
    sigmoid: tuple[float, float] | None = None
    # of a ranking: scores and their probabilities, interpolated linearly
    steps: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @classmethod
    def learn(cls, scorer: Scorer, label: torch.Tensor, oof: torch.Tensor) -> Decision:
        """Choose the decision with the best out-of-fold score, for a metric of classes."""
        if not scorer.wants_classes or scorer.target.task == "multiclass":
            return cls()
        known = ~oof.isnan()
        if scorer.target.task == "binary":
            return cls(threshold=float(metrics.best_threshold(label[known], oof[known], scorer.metric)))
        cuts = metrics.best_rounding(
            scorer.target.restore(label[known]), scorer.target.restore(oof[known]), scorer.metric
        )
        return cls(cuts=tuple(map(float, cuts)))

    @classmethod
    def calibrated(cls, how: str, label: torch.Tensor, scores: torch.Tensor) -> Decision:
        """Fit probabilities of being relevant to a ranking's out-of-fold scores; a label above 0 is relevant.

        By ``'platt'`` (Platt 1999) or ``'isotonic'`` (Zadrozny and Elkan 2002).
        """
        relevant, x = (label > 0).double().cpu().numpy(), scores.cpu().numpy()
        if how not in ("platt", "isotonic"):
            raise DataError(f"calibrate={how!r} is no calibration", remedy="Write 'platt' or 'isotonic'")
        if relevant.min() == relevant.max():
            raise DataError("scores cannot be calibrated: all rows are relevant, or none", remedy="Drop calibrate")
        if how == "isotonic":
            curve = IsotonicRegression(out_of_bounds="clip").fit(x, relevant)
            return cls(steps=(tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())))
        middle, spread = x.mean(), x.std() or 1.0
        line = LogisticRegression(C=math.inf).fit((x - middle)[:, None] / spread, relevant)
        slope = float(line.coef_[0, 0] / spread)
        return cls(sigmoid=(slope, float(line.intercept_[0] - slope * middle)))

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """Calibrate a ranking's scores ``[n]``, if fitted; tensor operations only."""
        if self.sigmoid is not None:
            return torch.sigmoid(scores * self.sigmoid[0] + self.sigmoid[1])
        if self.steps is None:
            return scores
        x, y = (torch.tensor(v, dtype=torch.float64) for v in self.steps)
        if len(x) == 1:
            return scores * 0.0 + y[0]
        width = x.diff()
        done = torch.minimum((scores.unsqueeze(1) - x[:-1]).clamp(min=0.0), width)
        return (done * (y.diff() / width)).sum(1) + y[0]

    def classes(self, values: torch.Tensor) -> torch.Tensor:
        """Convert predictions ``[n]`` on the target's original scale to classes ``[n]``."""
        if self.threshold is not None:
            return (values > self.threshold).long()
        return torch.as_tensor(metrics.apply_cuts(values, self.cuts))


@dataclass(frozen=True)
class Scorer:
    """A run's metric and target (None in a ranking task)."""

    metric: Metric
    target: Target | None

    @classmethod
    def of(cls, metric: str | Metric | None, target: Target | None) -> Scorer:
        """Create the scorer of a recipe's metric.

        Raises:
            DataError: it cannot score the task.
        """
        task: Task = "ranking" if target is None else target.task
        found = metrics.get_metric(metric or metrics.default_metric(task))
        if task not in found.tasks:
            remedy = "Give another metric, or another task"
            raise DataError(f"{found.name} scores no {task} task (it does {', '.join(found.tasks)})", remedy=remedy)
        if found.needs_groups and task != "ranking":
            raise DataError(f"{found.name} scores lists, which a {task} task has not", remedy="Give another metric")
        return cls(MRR_AS_SHOWN if found.name == "mrr" else found, target)

    def check(self, label: torch.Tensor) -> None:
        """Refuse labels that are no whole numbers from 0 (``DataError``), if amounts are scored as classes."""
        if not self.wants_classes or self.target is None or self.target.task != "regression":
            return
        own = self._own(label)
        bad = ((own != own.round()) | (own < 0)).reshape(len(own), -1).any(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            problem = f"{self.name} scores classes, numbered in order from 0, and the target is an amount "
            problem += f"({float(own[row].flatten()[0]):g})"
            remedy = "Give a metric of amounts, such as rmse, or number the classes"
            raise DataError(problem, column=self.target.names[0], row=row, remedy=remedy)

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric.name

    @property
    def wants_classes(self) -> bool:
        """Whether classes are scored, which thresholds make of predictions."""
        return self.metric.wants == "classes" and self.target is not None and self.target.task != "multilabel"

    def __call__(
        self,
        rows: Rows,
        prediction: torch.Tensor,
        chosen: torch.Tensor | None = None,
        *,
        folds: torch.Tensor | None = None,
        decision: Decision | None = None,
    ) -> float:
        """Score predictions.

        Args:
            rows: rows with labels.
            prediction: float64 ``[n]`` or ``[n, k]``.
            chosen: bool ``[n]``, the rows that count; None: all.
            folds: ``[n]``. If classes are scored, each fold's thresholds are learned on the other folds.
            decision: the thresholds of classes, instead of those by ``folds``; with neither, the default threshold.
        """
        label, groups = rows.label, rows.groups if rows.task == "ranking" else None
        if label is None:
            raise DataError("rows without labels cannot be scored", remedy="Give the truth")
        if chosen is not None:
            label, prediction = label[chosen], prediction[chosen]
            groups = None if groups is None else groups[chosen]
            folds = None if folds is None else folds[chosen]
        label, prediction = self._own(label), self._own(prediction)
        if self.wants_classes and prediction.ndim == 1:
            if decision is not None:
                prediction = decision.classes(prediction)
            elif folds is not None:
                prediction = metrics.as_scored(self.metric, label, prediction, folds)
        return self.metric(label, prediction, groups=groups)

    def suit(self, models: Iterable[Estimator]) -> None:
        """Let regression models train on the loss that suits the metric, unless a loss is given.

        On a logarithmic scale only quantiles are preserved: they are used there, else squares.
        """
        if self.target is None or self.target.task != "regression" or self.metric.is_own:
            return
        if self.target.scale is None or self.metric.name.partition("@")[0] in ("mae", "pinball"):
            for model in models:
                model.suit(self.metric.name)

    def for_choosing(self) -> Metric:
        """Return the metric that models are compared by before predictions become classes."""
        return metrics.loss_of(self.metric, "ranking" if self.target is None else self.target.task)

    @property
    def restore(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """A map of labels and predictions to the target's original scale; None: the identity."""
        return None if self.target is None or self.target.scale is None else self.target.restore

    def _own(self, values: torch.Tensor) -> torch.Tensor:
        return values if self.target is None else self.target.restore(values)


def examination(items: Any, places: Any, clicks: Any) -> dict[int, float]:
    """Estimate how often each place is examined, relative to the first one.

    An item shown at two adjacent places has the same relevance at both, so the ratio of its click rates is that of the
    places' examination (intervention harvesting, the adjacent-chain estimator of Agarwal et al. 2019, "Estimating
    Position Bias without Intrusive Interventions"). Items are pooled by Mantel and Haenszel 1959. This holds if an
    item's place does not depend on its relevance to that list.

    Args:
        items: ``[n]`` codes of items, integers.
        places: ``[n]`` whole numbers, the place at which each item was shown.
        clicks: ``[n]`` numbers, above 0 for a click.

    Returns:
        Place → its examination, 1 for the first. A place without a pair has that of the place before it.

    Raises:
        DataError: lengths differ, or a place is no whole number.
    """
    item, clicked = (flat_tensor(x, n).cpu().numpy() for x, n in ((items, "items"), (clicks, "clicks")))
    place = flat_tensor(places, "places").cpu().double().numpy()
    if not len(item) == len(place) == len(clicked):
        raise DataError("items, places and clicks differ in length", remedy="Give one of each for each row")
    bad = ~(place == np.round(place))  # NaN, too
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{place[row]:g} is no place", column="places", row=row, remedy="Number the places 1, 2, 3, …")
    levels, codes = np.unique(place.astype(np.int64), return_inverse=True)
    # Impressions and clicks of each item at each place, sorted by item and place.
    pairs, row = np.unique(np.unique(item, return_inverse=True)[1] * len(levels) + codes, return_inverse=True)
    shown, hits = np.bincount(row).astype(np.float64), np.bincount(row, weights=clicked > 0)
    first = np.flatnonzero((np.diff(pairs) == 1) & (pairs[1:] % len(levels) > 0))
    both = shown[first] + shown[first + 1]
    upper = np.bincount(pairs[first] % len(levels), hits[first] * shown[first + 1] / both, minlength=len(levels))
    lower = np.bincount(pairs[first] % len(levels), hits[first + 1] * shown[first] / both, minlength=len(levels))
    ratios = np.divide(lower, upper, out=np.ones(len(levels)), where=(upper > 0) & (lower > 0))
    return dict(zip(levels.tolist(), np.cumprod(np.append(1.0, ratios[:-1])).tolist(), strict=True))


def click_weights(groups: Any, places: Any, clicks: Any, examined: dict[int, float]) -> torch.Tensor:
    """Weight each list by the inverse examination of its clicks' places: float64 ``[n]``, equal for all rows of a list.

    A list with several clicks has the mean weight, a list without clicks 1. Examination is clipped at 1 / 20, as else
    few clicks dominate (Swaminathan and Joachims 2015). Arguments: see :func:`examination`, which returns ``examined``.
    """
    place = plain_tensor(places, "places").cpu().numpy().astype(np.int64)
    inverse = np.array([1 / max(examined.get(int(p), 1.0), limits.LEAST_EXAMINED) for p in np.unique(place)])
    of_row = inverse[np.unique(place, return_inverse=True)[1]]
    codes = np.unique(plain_tensor(groups, "groups").cpu().numpy(), return_inverse=True)[1]
    hit = plain_tensor(clicks, "clicks").cpu().numpy() > 0
    count = np.bincount(codes, weights=hit)
    total = np.bincount(codes, weights=hit * of_row)
    return torch.from_numpy(np.divide(total, count, out=np.ones(len(count)), where=count > 0)[codes])


def permutation_importance(
    model: Estimator, rows: Rows, scorer: Scorer, *, seed: int = 0, most_rows: int = 4_000, most: int = 40
) -> dict[str, float]:
    """Measure the drop of a score if one feature's values are shuffled among rows (Breiman 2001, section 10).

    The labelled ``rows`` are unseen by the model; about ``most_rows`` are used (whole lists), and ``most`` features,
    those of the highest gain if the model reports gains.
    """
    rows = some_rows(rows, most_rows)
    gains = model.trace.importance
    names = sorted(rows.names, key=lambda n: -gains.get(n, 0.0))[:most]
    sign = 1.0 if scorer.metric.greater_is_better else -1.0
    one = torch.zeros(len(rows), dtype=torch.int64)  # thresholds of classes are fitted on other parts of these rows
    whole = scorer(rows, model.predict(rows), folds=one)
    draw, made = torch.Generator().manual_seed(seed), {}
    for name in names:
        order = torch.randperm(len(rows), generator=draw).to(rows.table.device)
        shuffled = rows.table.with_columns({name: rows.table[name].take(order)})
        made[name] = sign * (whole - scorer(rows, model.predict(rows.with_table(shuffled)), folds=one))
    return made


def some_rows(rows: Rows, most: int) -> Rows:
    """Return about ``most`` rows, spread evenly, or the first whole lists."""
    if len(rows) <= most:
        return rows
    if rows.task != "ranking":
        return rows.take(torch.linspace(0, len(rows) - 1, most).long())
    return rows.take((rows.groups <= rows.groups[most - 1]).nonzero().squeeze(1))
