"""Which models are so far behind after the first fold that the others are not worth their time."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from fastrec.competition.live_scores import score_of
from fastrec.errors import OutOfTimeError
from fastrec.estimators import ConstantModel, Estimator

if TYPE_CHECKING:
    from fastrec.competition.fitting import Fitted

_LEAST = 0.5  # of what the best model gains over the constant


class FirstFold:
    """Scores of the first fold's rows.

    A model that gains less over the constant than half of what the best one does has hardly begun to learn: no stack
    makes use of it, and the other folds would take four fifths of its time.

    Args:
        made: the run's rows, folds and metric.
    """

    def __init__(self, made: Fitted) -> None:
        self.made, self.metric = made, made.scorer.for_choosing()
        self.scores: dict[str, float] = {}

    def note(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """See ``CrossFit.watch``."""
        if fold:
            return
        rows = self.made.folds[0][1].cpu()
        counted = self.made.counted[rows]
        score = score_of(self.made, self.metric, rows[counted], oof[counted.to(oof.device)])
        if not math.isnan(score):
            self.scores[name] = score

    def check(self, model: Estimator, rules: Collection[Estimator], done: Collection[str]) -> None:
        """Refuse a model that is far behind; where there is no constant, or no other model, none is.

        Args:
            model: the model.
            rules: what there was nothing to train of.
            done: the names of all that is in the run.

        Raises:
            OutOfTimeError: saying how it stands.
        """
        constant = next((r.name for r in rules if isinstance(r, ConstantModel)), None)
        learned = [n for n in done if n not in {r.name for r in rules} and n in self.scores]
        if constant not in self.scores or model.name not in self.scores or not learned:
            return
        sign = 1 if self.metric.greater_is_better else -1
        best = max(learned, key=lambda name: sign * self.scores[name])
        own, its, least = (self.scores[n] for n in (model.name, best, constant))
        if sign * (its - least) > 0 and sign * (own - least) < _LEAST * sign * (its - least):
            raise OutOfTimeError(
                f"{model.name}: in the first fold its {self.metric.name} is {own:.5g}, that of {best} {its:.5g}, of a "
                f"constant {least:.5g}"
            )
