"""Stacking: a second model over the base models' out-of-fold scores.

Level-2 inputs of a candidate, for every base model: its rank in the list, its gap to the list's best score, and its
share of the list's softmax. They do not depend on the offset of a model's scores in a list, so that out-of-fold scores
(one model) and test scores (mean of the folds' models) mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.estimators import Ranker, XGBRanker
from fastrec.features._engine.folds import fold_numbers
from fastrec.metrics import reciprocal_ranks
from fastrec.stacking.blends import AverageBlend, BoostedBlend, LinearBlend, level_two
from fastrec.table import as_column
from fastrec.validate import Lists, Predictions


class Stack:
    """Trains level 2 on the base models' out-of-fold scores, fold by fold on the base models' own folds.

    An XGBoost ranker, a fitted linear blend, an XGBoost ranker that starts from that blend, and two plain means are
    tried; the one with the best out-of-fold score is the stack.

    Args:
        extra: columns of level 1 that the XGBoost ranker sees too.
        rounds: how many trees the XGBoost ranker has.
        **params: that ranker's own parameters.
    """

    def __init__(self, *, extra: Sequence[str] = (), rounds: int = 60, **params: Any) -> None:
        self.extra, self.rounds = list(extra), rounds
        self.params = {"max_depth": 3, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8, **params}

    def rankers(self, models: Sequence[str]) -> list[Ranker]:
        """The level-2 models that are tried."""
        return [
            XGBRanker("xgb_ranker", rounds=self.rounds, **self.params),
            LinearBlend(models),
            BoostedBlend(models, max_depth=3, eta=0.05, min_child_weight=20, subsample=0.7),
            AverageBlend(models),
            AverageBlend(models, of="rank"),
        ]

    def fit(
        self,
        base: Sequence[Predictions],
        train: Lists,
        folds: torch.Tensor,
        test: Lists,
        *,
        counted: torch.Tensor | None = None,
        seed: int = 0,
    ) -> tuple[Predictions, dict[str, float]]:
        """Stack base models.

        Args:
            base: their out-of-fold and test scores.
            train: the training lists, with labels.
            folds: whole numbers ``[n]`` from 0: the base models' folds.
            test: the test lists.
            counted: bool ``[n]``: the training candidates whose lists the choice is made by; None: all.
            seed: of everything random.

        Returns:
            The chosen stack's predictions, named ``stack``, and the out-of-fold score of each that was tried.
        """
        names = [p.name for p in base]
        if not names:
            raise DataError("there is nothing to stack", remedy="Give at least one base model")
        if len(folds) != len(train):
            raise DataError(f"{len(folds)} folds for {len(train)} candidates", remedy="Give the base models' own folds")
        folds = fold_numbers(as_column(folds, name="folds")).cpu()
        two = level_two({p.name: p.oof for p in base}, train, self.extra)
        two_test = level_two({p.name: p.test for p in base}, test, self.extra)
        tried = [self._cross_fit(ranker, two, folds, two_test, seed) for ranker in self.rankers(names)]
        scores = {p.name: _counted_score(p.oof, train, counted) for p in tried}
        best = max(tried, key=lambda p: scores[p.name])
        chosen = Predictions("stack", best.oof, best.test, importance=best.importance, models=best.models)
        return chosen, scores

    @staticmethod
    def _cross_fit(ranker: Ranker, two: Lists, folds: torch.Tensor, test: Lists, seed: int) -> Predictions:
        present = torch.unique(folds)
        count = len(present)
        result = Predictions(
            ranker.name, torch.zeros(len(two), dtype=torch.float64), torch.zeros(len(test), dtype=torch.float64)
        )
        for k, fold in enumerate(present):
            inside = folds == fold
            model = ranker.fresh().fit(two.take(~inside), seed=seed + k)
            result.oof[inside] = model.predict(two.take(inside))
            result.test += model.predict(test) / count
            result.models.append(model)
            for name, gain in model.trace.importance.items():
                result.importance[name] = result.importance.get(name, 0.0) + gain / count
        return result


def _counted_score(scores: torch.Tensor, data: Lists, counted: torch.Tensor | None) -> float:
    rows = torch.ones(len(data), dtype=torch.bool) if counted is None else counted.cpu()
    assert data.label is not None
    return float(reciprocal_ranks(scores[rows], data.label[rows], data.groups[rows], ties="ordinal")[1].mean())
