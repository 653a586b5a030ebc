"""Level 2 cross-fitted, and the choice among its blends cross-fitted too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.estimators import Estimator
from fastrec.metrics import Metric, as_scored
from fastrec.stacking.hill_climb import best_of
from fastrec.stacking.level_two_folds import LevelTwoFolds
from fastrec.validate import Predictions, Rows


@dataclass(frozen=True)
class Judge:
    """Scores out-of-fold predictions by one metric.

    Args:
        metric: the metric.
        data: the training rows, with labels on the metric's scale.
        counted: bool ``[n]``: the rows that it is computed over.
        folds: int64 ``[n]``: the fold that scores each row; -1: none does.
        restore: takes predictions to the metric's scale; None: they are on it.
    """

    metric: Metric
    data: Rows
    counted: torch.Tensor
    folds: torch.Tensor
    restore: Callable[[torch.Tensor], torch.Tensor] | None = None

    def values(self, oof: torch.Tensor) -> torch.Tensor:
        """Turn out-of-fold predictions into what the metric scores, see ``as_scored``: ``[n]`` or ``[n, k]``."""
        raw = oof if self.restore is None else self.restore(oof)
        if self.metric.wants != "classes" or self.data.task not in ("binary", "regression"):
            return raw
        known, classes = self.folds >= 0, raw.clone()
        assert self.data.label is not None
        classes[known] = as_scored(self.metric, self.data.label[known], raw[known], self.folds[known]).to(classes)
        return classes

    def __call__(self, values: torch.Tensor, rows: torch.Tensor | None = None) -> float:
        """Score ``values`` over the counted rows, or those of them that are in ``rows`` (bool ``[n]``)."""
        used = self.counted if rows is None else self.counted & rows
        if rows is not None and not bool(used.any()):
            used = rows
        assert self.data.label is not None
        groups = None if self.data.groups is None else self.data.groups[used]
        return self.metric(self.data.label[used], values[used], groups=groups)


def cross_fit(blend: Estimator, two: Rows, folds: LevelTwoFolds, test: Rows, seed: int) -> Predictions:
    """Predict rows by blends that were not fitted on them, and test rows by the mean of the folds' blends.

    Args:
        two: training rows with level-2 inputs.
        folds: what to learn from and what to predict.
        test: test rows with level-2 inputs.
        seed: fold k's blend gets ``seed + k``.

    Returns:
        Its predictions: NaN for rows that no fold scores. A blend of rows that are no lists learns from 500,000 of them
        at most, drawn at random (of several outputs: from so many numbers of a base model, or 100,000 rows).
    """
    shape = (two.n_scores,) if two.n_scores > 1 else ()
    oof = torch.zeros((len(two), *shape), dtype=torch.float64)
    tested = torch.zeros((len(test), *shape), dtype=torch.float64)
    predictions = Predictions(blend.name, oof, tested, folds=folds.digest)
    times, count = torch.zeros(len(two), dtype=torch.int64), len(folds.pairs)
    for k, (rows, valid) in enumerate(folds.pairs):
        if blend.learns or not predictions.models:
            model = blend.fresh().fit(two.take(_some(rows, two, seed + k)), seed=seed + k)
            predicted = model.predict(test) if len(test) else tested
        oof[valid] += model.predict(two.take(valid))
        times[valid] += 1
        if blend.learns:
            tested += predicted / count
        predictions.models.append(model)
        for name, share in model.trace.importance.items():
            predictions.importance[name] = predictions.importance.get(name, 0.0) + share / count
    oof /= times.reshape(-1, *[1] * len(shape))  # a row that no fold scores: 0 / 0
    return predictions if blend.learns else replace(predictions, test=predicted)


def rows_of_a_blend(outputs: int) -> int:
    """Return how many rows a blend of rows learns from at most, by the numbers in a prediction."""
    return max(limits.BLEND_ROWS // outputs, limits.BLEND_ROWS_OF_MANY)


def _some(rows: torch.Tensor, data: Rows, seed: int) -> torch.Tensor:
    most = rows_of_a_blend(data.n_scores)
    if data.task == "ranking" or len(rows) <= most:
        return rows
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows[drawn.sort().values]


class BlendChoice:
    """Chooses among cross-fitted blends: the usual one, unless another is better by more than two standard errors.

    Blends of the same models differ by less than their scores are sure of. The highest of such scores is chance, and
    what was chosen by chance without a fold does worse than the others on it. So another blend has to be better than
    the usual one on the mean over folds by more than two of that mean's standard errors (as the one-standard-error rule
    of Breiman et al. 1984, section 3.4.3, but for several rivals); of those that are, the one with the best score over
    all the rows is taken. A constant is taken where it is better than that one by more than one standard error.

    Args:
        tried: cross-fitted blends.
        usual: the place of the usual one.
        folds: the folds of level 2.
        judge: what they are chosen by.
        constant: the place of the constant; None: there is none to compare with.
    """

    def __init__(
        self,
        tried: Sequence[Predictions],
        usual: int,
        folds: LevelTwoFolds,
        judge: Judge,
        *,
        constant: int | None = None,
    ) -> None:
        self.tried, self.usual, self.folds, self.judge = list(tried), usual, folds, judge
        self.constant = constant
        masks = [self._mask(valid) for _, valid in folds.pairs]
        self._values = [judge.values(p.oof) for p in tried]
        self._by_fold = torch.tensor([[judge(v, m) for m in masks] for v in self._values], dtype=torch.float64)
        if not judge.metric.greater_is_better:
            self._by_fold = -self._by_fold

    def _mask(self, rows: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(len(self.judge.data), dtype=torch.bool)
        mask[rows] = True
        return mask

    def best(self, among: torch.Tensor | None = None) -> int:
        """Return the place of the blend to take.

        Args:
            among: bool ``[n]``: the rows that may be looked at; None: all. Of folds by time the first one is not: its
                blends have learned from those that come after what may be looked at.
        """
        if among is not None and self.folds.ahead:
            among = among.clone()
            for k in self.folds.ahead:
                among[self.folds.pairs[k][1]] = False
            if not bool((among & self.judge.counted).any()):
                return self.usual
        whole = [i for i, (_, v) in enumerate(self.folds.pairs) if among is None or bool(among[v].all())]
        chosen = self._best(among, whole)
        if self.constant is None or len(whole) < 2:
            return chosen
        level, score = (self.judge(self._values[i], among) for i in (self.constant, chosen))
        gain = self._by_fold[self.constant, whole] - self._by_fold[chosen, whole]
        doubtful = bool(gain.mean() <= gain.std() / len(whole) ** 0.5)  # not where a deviance is infinite
        return self.constant if self.judge.metric.better(level, score) and not doubtful else chosen

    def _best(self, among: torch.Tensor | None, whole: list[int]) -> int:
        better = range(len(self.tried))
        if len(whole) > 1:
            # Paired by fold: folds differ more than blends do.
            gain = self._by_fold[:, whole] - self._by_fold[self.usual, whole]
            error = limits.CHOICE_ERRORS * gain.std(1) / len(whole) ** 0.5
            better = [i for i in better if bool(gain[i].mean() > error[i])]
            if not better:
                return self.usual
        return better[best_of(self.judge.metric, [self.judge(self._values[i], among) for i in better])]

    def nested(self) -> tuple[torch.Tensor, list[str]]:
        """Return out-of-fold predictions of the blend chosen for each fold without it.

        Returns:
            float64 ``[n]`` or ``[n, k]``, NaN where no fold scores, and the name of the choice of each fold.
        """
        oof = torch.zeros_like(self.tried[0].oof)
        times = torch.zeros(len(oof), dtype=torch.int64)
        names = []
        for rows, valid in self.folds.pairs:
            taken = self.tried[self.best(self._mask(rows))]
            oof[valid] += taken.oof[valid]
            times[valid] += 1
            names.append(taken.name)
        return oof / times.reshape(-1, *[1] * (oof.ndim - 1)), names


def restored(metric: Metric, restore: Callable[[torch.Tensor], torch.Tensor] | None) -> Metric:
    """Return the metric on the target's own scale, if targets are learned on another."""
    if restore is None:
        return metric

    def of_raw(y: torch.Tensor, p: torch.Tensor, *, groups: torch.Tensor | None, weight: torch.Tensor | None) -> float:
        return metric(restore(y), restore(p), groups=groups, weight=weight)

    # By another name: a blend that is saved with it must not climb on the other scale once it is loaded.
    wants = metric.wants if metric.wants == "scores" else "values"
    return replace(metric, name=f"{metric.name} of raw values", function=of_raw, wants=wants)


def refuse_same_names(blends: Sequence[Estimator]) -> None:
    """Refuse two blends of one name."""
    names = [b.name for b in blends]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise DataError(f"two blends have the name {twice!r}", remedy="Give the base model another name")
