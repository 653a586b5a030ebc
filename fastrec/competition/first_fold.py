"""Leaves models out that are far behind after their first fold."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from fastrec.competition.live_scores import score_of
from fastrec.competition.table_record import TableRun
from fastrec.errors import OutOfTimeError
from fastrec.estimators import ConstantModel, Estimator


class FirstFold:
    """Scores of the first fold's rows.

    A model that gains less over the constant than half of the best model's gain has hardly begun to learn. No stack
    uses it, and the other folds would take four fifths of its time.
    """

    def __init__(self, run: TableRun) -> None:
        self.run, self.metric = run, run.scorer.for_choosing()
        self.scores: dict[str, float] = {}

    def note(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """See ``CrossFit.watch``."""
        if fold:
            return
        rows = self.run.folds[0][1].cpu()
        counted = self.run.counted[rows]
        score = score_of(self.run, self.metric, rows[counted], oof[counted.to(oof.device)])
        if not math.isnan(score):
            self.scores[name] = score

    def check(self, model: Estimator, rules: Collection[Estimator], done: Collection[str]) -> None:
        """Refuse a model that is far behind; without a constant or another model none is refused.

        Args:
            model: the model.
            rules: estimators without parameters.
            done: the names of all models in the run.

        Raises:
            OutOfTimeError: naming its score and the best.
        """
        constant = next((r.name for r in rules if isinstance(r, ConstantModel)), None)
        learned = [n for n in done if n not in {r.name for r in rules} and n in self.scores]
        if constant not in self.scores or model.name not in self.scores or not learned:
            return
        sign = 1 if self.metric.greater_is_better else -1
        best = max(learned, key=lambda name: sign * self.scores[name])
        score, most, least = (self.scores[n] for n in (model.name, best, constant))
        if sign * (most - least) > 0 and sign * (score - least) < 0.5 * sign * (most - least):
            raise OutOfTimeError(
                f"{model.name}: in the first fold its {self.metric.name} is {score:.5g}, that of {best} {most:.5g}, of "
                f"a constant {least:.5g}"
            )
