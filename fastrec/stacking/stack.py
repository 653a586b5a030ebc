"""Stacking: a second model over the base models' out-of-fold predictions, for every task.

Inputs of a list's candidate do not depend on the offset of a model's scores in the list: out-of-fold scores (one
model) and test scores (mean of the folds' models) then mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastrec.errors import DataError, LeakageError
from fastrec.estimators import Estimator, XGBRanker
from fastrec.metrics import Interval, Metric, bootstrap_metric, default_metric, get_metric, loss_of
from fastrec.metrics.registry import MRR_AS_SHOWN
from fastrec.stacking.blends import AverageBlend, BoostedBlend, LinearBlend
from fastrec.stacking.choose import BlendChoice, Judge, cross_fit, refuse_same_names, restored
from fastrec.stacking.hill_climb import HillClimb, best_of
from fastrec.stacking.level_two_folds import LevelTwoFolds, level_two_folds
from fastrec.stacking.rank_mean import RankMean
from fastrec.stacking.row_blends import MeanBlend, OneBase
from fastrec.stacking.row_inputs import in_columns, names_of
from fastrec.stacking.stack_model import StackModel, level_two_of
from fastrec.stacking.tree_blend import TreeBlend, linear_blend
from fastrec.validate import Predictions, Rows


@dataclass(frozen=True)
class Stacked:
    """Result of a stack; unpacks into ``predictions`` and ``tried``.

    Args:
        predictions: the stack's, named ``stack``. Out of fold: by the blend that was chosen without the row's fold; of
            the test rows: by what all folds together choose.
        tried: blend, or base model alone → its out-of-fold score. The best of them is flattered: it was chosen by it.
        score: the score of ``predictions.oof``: each fold is scored by what was chosen without it.
        best_base: the base model with the best out-of-fold score.
        chosen: what the test predictions are made by.
        choices: what was chosen for each fold.
        scores: ``'stack'`` and the best base model → score with its bootstrap interval, over groups where there are
            groups.
        difference: stack less best base model, paired, with its interval.
        model: what predicts for other rows.
    """

    predictions: Predictions
    tried: dict[str, float]
    score: float
    best_base: str
    chosen: str
    choices: list[str]
    scores: dict[str, Interval]
    difference: Interval
    model: StackModel = field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.predictions, self.tried))


class Stack:
    """Trains level 2 on the base models' out-of-fold predictions, fold by fold on the base models' own folds.

    Blends (see ``blends``) and each base model alone are tried. The usual one, the fitted weighted sum for lists and
    hill climbing for rows, is taken unless another is clearly better (see ``BlendChoice``). The choice is cross-fitted
    as well: the stack's score is that of the choice made for each fold without it.

    The best base model may score higher: it is the best of many on the rows that it is scored by, which flatters.

    Args:
        extra: columns of level 1 that the trees see too.
        rounds: how many trees the XGBoost ranker of a ranking task has.
        **params: that ranker's own parameters.
    """

    def __init__(self, *, extra: Sequence[str] = (), rounds: int = 60, **params: Any) -> None:
        self.extra, self.rounds = list(extra), rounds
        self.params = {"max_depth": 3, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8, **params}

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        """Return the blends to try.

        Lists: an XGBoost ranker, a fitted linear blend, an XGBoost ranker that starts from it, and two plain means.
        Other rows: the plain mean, for metrics of the order alone the mean rank, a fitted weighted sum, and trees that
        start from it. All: hill climbing on the metric, and each base model alone.

        Args:
            models: the base models' names.
            data: the training rows.
            metric: what hill climbing climbs on.
        """
        blends: list[Estimator]
        if data.task == "ranking":
            blends = [
                XGBRanker("xgb_ranker", rounds=self.rounds, **self.params),
                LinearBlend(models),
                BoostedBlend(models, max_depth=3, eta=0.05, min_child_weight=20, subsample=0.7),
                AverageBlend(models),
                AverageBlend(models, of="rank"),
            ]
        else:
            blends = [MeanBlend(models), linear_blend(models, data.task)]
            blends += [RankMean(models)] if metric.wants == "scores" and data.task in RankMean.tasks else []
            # Each output has trees of its own: of many outputs they take too long.
            blends += [TreeBlend(models, data.task)] if data.n_scores <= 20 else []
        return [*blends, HillClimb(models, metric=metric), *(OneBase(m) for m in models)]

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
        constant: Predictions | None = None,
    ) -> Stacked:
        """Stack base models.

        Args:
            base: their out-of-fold and test predictions.
            train: the training rows, with labels.
            folds: the base models' folds: whole numbers ``[n]`` from 0, or ``Folds``. Rows that no fold scores take no
                part.
            test: the test rows.
            metric: what to choose by, a name or a ``Metric``; None: the task's usual one (of lists: MRR, ties as they
                are shown). It is not weighted. Of classes, thresholds are learned without the fold that they cut.
            counted: bool ``[n]``: the training rows (of lists: candidates) that the choice is made by; None: all.
            seed: of everything random.
            restore: takes labels and predictions to the scale of the metric (``Target.restore``); None: they are.
            constant: a constant's predictions: it is chosen where it is better by more than a standard error, and
                where folds are not by time hill climbing may take it. A metric of the order alone passes it over.

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
        names = [p.name for p in base]
        every = [*base] if constant is None or chosen_by.wants == "scores" else [*base, constant]
        refuse_others(every, train, test, ours)
        blends = self.blends(names, train, restored(loss_of(chosen_by, train.task), restore))
        for one in every[len(base) :]:
            # Hill climbing may take the constant, but not in folds by time: their first ones know too little of models.
            for blend in blends:
                if isinstance(blend, HillClimb):
                    blend.models = [*(m for m in blend.models if m != one.name), *([] if ours.ahead else [one.name])]
            if one.name not in [b.name for b in blends]:
                blends.append(OneBase(one.name))
        # Scores of what was tried go by name.
        refuse_same_names(blends)
        two = level_two_of({p.name: p.oof for p in every}, train, self.extra)
        # A fold's constant is high where its labels are low: trees would learn that.
        hidden = {n for p in every[len(base) :] for n in names_of(p.name, train)}
        two = replace(two, conts=[n for n in two.conts if n not in hidden])
        two_test = level_two_of({p.name: p.test for p in every}, test, self.extra)
        raw = replace(train, label=train.label if restore is None else restore(train.label))
        judge = Judge(chosen_by, raw, _counted(counted, ours.scored), ours.codes, restore)
        tried = [cross_fit(blend, two, ours, two_test, seed) for blend in blends]
        kind = LinearBlend if train.task == "ranking" else HillClimb
        usual = next((i for i, b in enumerate(blends) if isinstance(b, kind)), 0)
        level = next((i for i, b in enumerate(blends) if constant in every and b.name == constant.name), None)
        choice = BlendChoice(tried, usual, ours, judge, constant=level)
        return self._outcome(base, every, choice, seed=seed)

    def _outcome(
        self, base: Sequence[Predictions], every: Sequence[Predictions], choice: BlendChoice, *, seed: int
    ) -> Stacked:
        judge, tried = choice.judge, choice.tried
        scores = {p.name: judge(judge.values(p.oof)) for p in tried}
        best_base = base[best_of(judge.metric, [judge(judge.values(p.oof)) for p in base])]
        oof, choices = choice.nested()
        best = tried[choice.best()]
        predictions = Predictions("stack", oof, best.test, [], best.importance, best.models, choice.folds.digest)
        rows, data = judge.counted, judge.data
        assert data.label is not None
        groups = None if data.groups is None else data.groups[rows]
        both = {"stack": judge.values(oof)[rows], best_base.name: judge.values(best_base.oof)[rows]}
        sampled = bootstrap_metric(judge.metric, data.label[rows], both, groups=groups, seed=seed)
        blends = best.models if best.models[0].learns else best.models[:1]
        used = {*getattr(blends[0], "models", ()), getattr(blends[0], "model", "")}
        return Stacked(
            predictions=predictions,
            tried=scores,
            score=judge(judge.values(oof)),
            best_base=best_base.name,
            chosen=best.name,
            choices=choices,
            scores={n: sampled.interval(n) for n in both},
            difference=sampled.difference("stack", best_base.name),
            model=StackModel([p.name for p in every if p in base or p.name in used], blends, self.extra),
        )


def _metric_of(metric: str | Metric | None, data: Rows) -> Metric:
    if metric is None:
        return MRR_AS_SHOWN if data.task == "ranking" else get_metric(default_metric(data.task))
    chosen = get_metric(metric)
    if data.task not in chosen.tasks:
        raise DataError(
            f"{chosen.name} is a metric of {', '.join(chosen.tasks)} tasks, not of a {data.task} task",
            remedy="Give a metric of the rows' task, or name another task",
        )
    return chosen


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
