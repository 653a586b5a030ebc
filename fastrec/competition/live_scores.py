"""How the models of a run stand while it goes on: a table in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

import torch
from rich.table import Table as RichTable

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.errors import FastrecError

if TYPE_CHECKING:
    from fastrec.competition.fitting import Fitted
    from fastrec.metrics import Metric


def score_of(made: Fitted, metric: Metric, rows: torch.Tensor, said: torch.Tensor) -> float:
    """A score of some training rows, NaN where they have none: of one class alone, say.

    Args:
        made: the run's rows.
        metric: what scores.
        rows: int64 ``[m]``, or bool ``[n]``, which ones.
        said: float64 ``[m]`` or ``[m, k]``, of these.
    """
    groups = made.train.groups[rows] if made.train.task == "ranking" else None
    own = made.scorer.restore or (lambda values: values)
    try:
        return metric(own(made.train.label[rows]), own(said), groups=groups)
    except FastrecError:
        return float("nan")


class LiveScores:
    """The out-of-fold score of each model over the folds that it has done: ``CrossFit``'s ``watch``.

    Of metrics of classes, whose thresholds are found at the end, it is the loss that a stack is chosen by.

    Args:
        made: the run's rows, folds and metric.
        stages: where it is shown; a quiet one computes nothing.
    """

    def __init__(self, made: Fitted, stages: Stages) -> None:
        self.made, self.stages = made, stages
        self.metric = made.scorer.for_choosing()
        self.scores: dict[str, tuple[float, int]] = {}  # model → score, folds
        self._sums: dict[str, torch.Tensor] = {}
        self._times: dict[str, torch.Tensor] = {}
        self._lock = Lock()  # trees are trained beside nets
        self._last = time.perf_counter()

    def __call__(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """Note what a model says of a fold's rows, and show how it stands.

        Args:
            name: the model.
            fold: which fold.
            oof: float64 ``[m]`` or ``[m, k]``.
        """
        if self.stages.quiet:
            return
        with self._lock:
            folds = self.scores.get(name, (0.0, 0))[1] + 1
            self.scores[name] = self._score(name, fold, oof), folds
            self.stages.below = self.table()
            self._say(name)

    def _score(self, name: str, fold: int, oof: torch.Tensor) -> float:
        made = self.made
        inside = made.folds[fold][1].cpu()
        sums = self._sums.setdefault(name, torch.zeros((len(made.train), *oof.shape[1:]), dtype=torch.float64))
        times = self._times.setdefault(name, torch.zeros(len(made.train)))
        level = self.metric.wants == "scores" and bool((oof == oof[:1]).all())  # a constant orders nothing
        sums[inside] += torch.zeros_like(oof) if level else oof
        times[inside] += 1
        known = made.counted & (times > 0)
        mean = sums[known] / times[known].reshape(-1, *[1] * (sums.dim() - 1))
        return score_of(made, self.metric, known, mean)

    def table(self) -> RichTable:
        """The models so far, the best first."""
        table = RichTable("model", f"{self.metric.name}, out of fold", "folds", box=None)
        sign = -1 if self.metric.greater_is_better else 1
        for name, (score, folds) in sorted(self.scores.items(), key=lambda s: (s[1][0] != s[1][0], sign * s[1][0])):
            table.add_row(name, f"{score:.5f}", f"{folds} of {len(self.made.folds)}")
        return table

    def _say(self, name: str) -> None:
        """A line where there is no table: of each model's last fold, of others one in ten seconds."""
        (score, folds), total = self.scores[name], len(self.made.folds)
        now = time.perf_counter()
        if self.stages.has_bars or (folds < total and now - self._last < limits.PLAIN_EVERY):
            return
        self._last = now
        self.stages.say(f"  {name}: {self.metric.name} {score:.5f} after {folds} of {total} folds")
