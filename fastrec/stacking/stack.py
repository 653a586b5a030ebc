"""Stacking: a second model over the base models' out-of-fold predictions, for every task.

Level-2 inputs of a list's candidate, for every base model: its rank in the list, its gap to the list's best score, and
its share of the list's softmax. They do not depend on the offset of a model's scores in a list, so that out-of-fold
scores (one model) and test scores (mean of the folds' models) mean the same. Of other rows they are the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastrec.errors import DataError, LeakageError
from fastrec.estimators import Estimator, XGBRanker
from fastrec.metrics import Interval, Metric, bootstrap_metric, default_metric, get_metric
from fastrec.metrics.registry import MRR_AS_SHOWN
from fastrec.stacking.blends import AverageBlend, BoostedBlend, LinearBlend
from fastrec.stacking.choose import Choice, Judge, cross_fit, refuse_same_names, restored
from fastrec.stacking.hill_climb import HillClimb, best_of
from fastrec.stacking.level_two_folds import LevelTwoFolds, level_two_folds
from fastrec.stacking.rank_mean import RankMean
from fastrec.stacking.row_blends import MeanBlend, OneBase
from fastrec.stacking.row_inputs import in_columns
from fastrec.stacking.stack_model import StackModel, level_two_of
from fastrec.stacking.tree_blend import TreeBlend, linear_blend
from fastrec.validate import Predictions, Rows

_MANY = 20  # of so many classes or targets no trees are tried: each has trees of its own


@dataclass(frozen=True)
class Stacked:
    """What a stack came to; unpacks into ``predictions`` and ``tried``.

    Args:
        predictions: the stack's, named ``stack``. Out of fold: by the blend that was the best without the row's fold;
            of the test rows: by what all folds together choose.
        tried: blend, or base model alone → its out-of-fold score. The best of them is flattered: it was chosen by it.
        nested: the score of choosing the best without the fold that it is then scored on.
        score: the score of ``predictions.oof``: ``nested``, or the best base model's where that is better.
        best_base: the base model with the best out-of-fold score.
        chosen: what the test predictions are made by.
        choices: what was chosen for each fold.
        fell_back: ``nested`` was below the best base model: the stack is that model alone.
        scores: ``'stack'`` and the best base model → score with its bootstrap interval, over groups where there are
            groups.
        difference: stack less best base model, paired, with its interval.
        model: what predicts for other rows.
    """

    predictions: Predictions
    tried: dict[str, float]
    nested: float
    score: float
    best_base: str
    chosen: str
    choices: list[str]
    fell_back: bool
    scores: dict[str, Interval]
    difference: Interval
    model: StackModel = field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.predictions, self.tried))


class Stack:
    """Trains level 2 on the base models' out-of-fold predictions, fold by fold on the base models' own folds.

    Tried are blends (see ``blends``) and each base model alone. Of lists the fitted weighted sum is taken, of rows hill
    climbing, unless another is better by more than two standard errors (``Choice``). The choice is cross-fitted as they
    are: it is made for each fold without it, and the score of that is the stack's. What predicts test rows is the same
    choice, made by all there is. A stack whose score is below its best base model's is replaced by that model.

    Args:
        extra: columns of level 1 that the trees see too.
        rounds: how many trees the XGBoost ranker of a ranking task has.
        **params: that ranker's own parameters.
    """

    falls_back = True  # False: a stack below its best base model stays: nothing is chosen by all folds' labels

    def __init__(self, *, extra: Sequence[str] = (), rounds: int = 60, **params: Any) -> None:
        self.extra, self.rounds = list(extra), rounds
        self.params = {"max_depth": 3, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8, **params}

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        """What is tried.

        Lists: an XGBoost ranker, a fitted linear blend, an XGBoost ranker that starts from it, and two plain means.
        Other rows: the plain mean, for metrics of the order alone the mean rank, a fitted weighted sum, and trees that
        start from it. All: hill climbing on the metric, and each base model alone.

        Args:
            models: the base models' names.
            data: the training rows.
            metric: what is chosen by.
        """
        made: list[Estimator]
        if data.task == "ranking":
            made = [
                XGBRanker("xgb_ranker", rounds=self.rounds, **self.params),
                LinearBlend(models),
                BoostedBlend(models, max_depth=3, eta=0.05, min_child_weight=20, subsample=0.7),
                AverageBlend(models),
                AverageBlend(models, of="rank"),
            ]
        else:
            made = [MeanBlend(models), linear_blend(models, data.task)]
            made += [RankMean(models)] if metric.wants == "scores" and data.task in RankMean.tasks else []
            made += [TreeBlend(models, data.task)] if data.n_scores <= _MANY else []
        return [*made, HillClimb(models, metric=metric), *(OneBase(m) for m in models)]

    def fit(
        self,
        base: Sequence[Predictions],
        train: Rows,
        folds: Any,
        test: Rows,
        *,
        metric: str | Metric | None = None,
        counted: torch.Tensor | None = None,
        seed: int = 0,
        restore: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Stacked:
        """Stack base models.

        Args:
            base: their out-of-fold and test predictions.
            train: the training rows, with labels.
            folds: the base models' folds: whole numbers ``[n]`` from 0, or ``Folds``. Rows that no fold scores take no
                part.
            test: the test rows.
            metric: what to choose by, a name or a ``Metric``; None: the task's usual one (of lists: MRR, ties as they
                are shown). It is not weighted.
            counted: bool ``[n]``: the training rows (of lists: candidates) that the choice is made by; None: all.
            seed: of everything random.
            restore: takes labels and predictions to the scale of the metric (``Target.restore``); None: they are.

        Returns:
            The stack's predictions, the out-of-fold score of each that was tried, and what predicts other rows.

        Raises:
            LeakageError: predictions were not made by these folds.
            DataError: there is nothing to stack, the metric is of another task, or lists, folds or shapes do not fit.
        """
        if not base:
            raise DataError("there is nothing to stack", remedy="Give at least one base model")
        if train.label is None:
            raise DataError("the training rows have no labels", remedy="Give label=")
        ours = level_two_folds(folds, train)
        chosen_by = _metric_of(metric, train)
        refuse_others(base, train, test, ours)
        names, chosen_by = [p.name for p in base], restored(chosen_by, restore)
        blends = self.blends(names, train, chosen_by)
        refuse_same_names(blends)
        two = level_two_of({p.name: p.oof for p in base}, train, self.extra)
        two_test = level_two_of({p.name: p.test for p in base}, test, self.extra)
        judge = Judge(chosen_by, train, _counted(counted, ours.scored))
        tried = [cross_fit(blend, two, ours, two_test, seed) for blend in blends]
        kind = LinearBlend if train.task == "ranking" else HillClimb
        usual = next((i for i, b in enumerate(blends) if isinstance(b, kind)), 0)
        return self._outcome(base, tried, ours, judge, usual=usual, seed=seed)

    def _outcome(
        self,
        base: Sequence[Predictions],
        tried: Sequence[Predictions],
        folds: LevelTwoFolds,
        judge: Judge,
        *,
        usual: int,
        seed: int,
    ) -> Stacked:
        scores = {p.name: judge(p.oof) for p in tried}
        best_base = base[best_of(judge.metric, [judge(p.oof) for p in base])]
        choice = Choice(tried, usual, folds, judge)
        oof, choices = choice.nested()
        nested = judge(oof)
        best = tried[choice.best()]
        best_score = judge(best_base.oof)
        fell_back = self.falls_back and judge.metric.better(best_score, nested)
        if fell_back:
            alone = OneBase(best_base.name)
            oof, models = best_base.oof, [alone] * len(folds.pairs)
            made = Predictions("stack", oof, best_base.test, [], {best_base.name: 1.0}, list(models), folds.digest)
            fitted: list[Any] = [alone]
        else:
            made = Predictions("stack", oof, best.test, [], best.importance, best.models, folds.digest)
            fitted = best.models if best.models[0].learns else best.models[:1]
        intervals, difference = _intervals(oof, best_base, judge, seed)
        return Stacked(
            predictions=made,
            tried=scores,
            nested=nested,
            score=best_score if fell_back else nested,
            best_base=best_base.name,
            chosen=best_base.name if fell_back else best.name,
            choices=choices,
            fell_back=fell_back,
            scores=intervals,
            difference=difference,
            model=StackModel([p.name for p in base], fitted, self.extra),
        )


def _metric_of(metric: str | Metric | None, data: Rows) -> Metric:
    if metric is None:
        return MRR_AS_SHOWN if data.task == "ranking" else get_metric(default_metric(data.task))
    found = get_metric(metric)
    if data.task not in found.tasks:
        raise DataError(
            f"{found.name} is a metric of {', '.join(found.tasks)} tasks, not of a {data.task} task",
            remedy="Give a metric of the rows' task, or name another task",
        )
    return found


def _counted(counted: torch.Tensor | None, scored: torch.Tensor) -> torch.Tensor:
    both = scored if counted is None else counted.cpu().bool() & scored
    if not bool(both.any()):
        raise DataError("no counted row is scored by a fold", remedy="Count other rows, or give other folds")
    return both


def refuse_others(base: Sequence[Predictions], train: Rows, test: Rows, folds: LevelTwoFolds) -> None:
    """Refuse predictions of other rows or other folds.

    Raises:
        LeakageError: they were not made by these folds: a blend would trust the model that has seen its answers.
        DataError: lengths differ, or one is missing.
    """
    for one in base:
        if len(one.oof) != len(train) or len(one.test) != len(test):
            raise DataError(
                f"{one.name} has {len(one.oof)} and {len(one.test)} predictions for {len(train)} training and "
                f"{len(test)} test rows",
                remedy="Give one for each row",
            )
        if one.folds != folds.digest:
            how = "are not known to be out of fold" if one.folds is None else "were made by other folds"
            raise LeakageError(
                f"the training predictions of {one.name} {how}",
                remedy="Cross-fit all models on the stack's folds; to vouch for predictions made elsewhere, but out of "
                "these folds, give Predictions(…, folds=folds_digest(rows of each fold, n))",
            )
        if train.task == "ranking":
            continue  # a missing score puts a candidate last
        for values, rows in ((one.oof, folds.scored), (one.test, torch.ones(len(test), dtype=torch.bool))):
            bad = rows & ~in_columns(values).isfinite().all(1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise DataError(f"a prediction of {one.name} is no number", row=row, remedy="Look at what predicted it")


def _intervals(
    oof: torch.Tensor, best_base: Predictions, judge: Judge, seed: int
) -> tuple[dict[str, Interval], Interval]:
    """The stack's score and the best base model's, with bootstrap intervals, and their difference."""
    rows, data = judge.counted, judge.data
    assert data.label is not None
    groups = None if data.groups is None else data.groups[rows]
    both = {"stack": oof[rows], best_base.name: best_base.oof[rows]}
    made = bootstrap_metric(judge.metric, data.label[rows], both, groups=groups, seed=seed)
    return {n: made.interval(n) for n in both}, made.difference("stack", best_base.name)
