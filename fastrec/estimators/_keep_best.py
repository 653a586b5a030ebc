"""``KeepBest``: after each epoch held-out rows are scored; the best epoch's weights stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.learner import Recorder

from fastrec._core.ranks import on_first_rank

Score = Callable[[Any], dict[str, float]]


class KeepBest(Callback):
    """Scores the net after each epoch, ends the training where it gets no better, and puts the best weights back.

    Args:
        report: net → what to note of an epoch, the value to stop by among it.
        by: the name of that value; None: nothing is held out, the last weights stay.
        greater_is_better: its direction.
        patience: epochs without a better value after which training ends; None: never.

    Attributes:
        records: what was noted of each epoch.
        best: the epoch whose weights stay.
    """

    order = Recorder.order + 1

    def __init__(
        self, report: Score, by: str | None, *, greater_is_better: bool = False, patience: int | None = None
    ) -> None:
        super().__init__()
        self.report, self.by, self.patience = report, by, patience
        self.sign = -1.0 if greater_is_better else 1.0
        self.records: list[dict[str, float]] = []
        self.best, self._least = 0, math.inf
        self._weights: dict[str, torch.Tensor] | None = None

    def after_epoch(self) -> None:
        """Score, and keep the weights if they are the best so far."""
        net = self.learn.model.eval()
        scores = on_first_rank(lambda: self.report(net), "scoring an epoch")  # all stop at the same one
        self.records.append(
            {"epoch": self.learn.epoch, "train_loss": float(self.learn.recorder.values[-1][0]), **scores}
        )
        if self.by is None:
            self.best = self.learn.epoch
            return
        value = self.sign * scores[self.by]
        if value < self._least or self._weights is None:  # NaN is never better
            self._least = math.inf if math.isnan(value) else value
            self.best = self.learn.epoch
            self._weights = {n: w.clone() for n, w in net.state_dict().items()}
        elif self.patience is not None and self.learn.epoch - self.best >= self.patience:
            raise CancelFitException

    def after_fit(self) -> None:
        """Put the best weights back."""
        if self._weights is not None:
            self.learn.model.load_state_dict(self._weights)
        self._weights = None
