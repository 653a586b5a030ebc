"""Scores of a run's models while it trains: a table in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from threading import Lock

import torch
from rich.table import Table as RichTable

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.competition.table_record import TableRun
from fastrec.errors import FastrecError
from fastrec.metrics import Metric


def score_of(run: TableRun, metric: Metric, rows: torch.Tensor, prediction: torch.Tensor) -> float:
    """Score some training rows; NaN if they have no score, as rows of one class alone.

    Args:
        run: the run.
        metric: the metric.
        rows: int64 ``[m]``, or bool ``[n]``: which rows.
        prediction: float64 ``[m]`` or ``[m, k]``, of these.
    """
    groups = run.train.groups[rows] if run.train.task == "ranking" else None
    own = run.scorer.restore or (lambda values: values)
    try:
        return metric(own(run.train.label[rows]), own(prediction), groups=groups)
    except FastrecError:
        return float("nan")


class LiveScores:
    """The out-of-fold score of each model over its finished folds: ``CrossFit``'s ``watch``.

    A metric of classes, whose thresholds are learned at the end, is shown as the loss that stacks are chosen by.

    Args:
        run: the run.
        stages: where scores are shown; a quiet one computes nothing.
    """

    def __init__(self, run: TableRun, stages: Stages) -> None:
        self.run, self.stages = run, stages
        self.metric = run.scorer.for_choosing()
        self.scores: dict[str, tuple[float, int]] = {}  # model → score, folds
        self._sums: dict[str, torch.Tensor] = {}
        self._times: dict[str, torch.Tensor] = {}
        self._lock = Lock()  # trees are trained while nets are
        self._last = time.perf_counter()

    def __call__(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """Note a model's predictions of a fold's rows, and show its score.

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
        inside, n = self.run.folds[fold][1].cpu(), len(self.run.train)
        sums = self._sums.setdefault(name, torch.zeros((n, *oof.shape[1:]), dtype=torch.float64))
        times = self._times.setdefault(name, torch.zeros(n))
        level = self.metric.wants == "scores" and bool((oof == oof[:1]).all())  # a constant orders nothing
        sums[inside] += torch.zeros_like(oof) if level else oof
        times[inside] += 1
        known = self.run.counted & (times > 0)
        mean = sums[known] / times[known].reshape(-1, *[1] * (sums.dim() - 1))
        return score_of(self.run, self.metric, known, mean)

    def table(self) -> RichTable:
        """Return the models so far, the best first."""
        table = RichTable("model", f"{self.metric.name}, out of fold", "folds", box=None)
        sign = -1 if self.metric.greater_is_better else 1
        for name, (score, folds) in sorted(self.scores.items(), key=lambda s: (s[1][0] != s[1][0], sign * s[1][0])):
            table.add_row(name, f"{score:.5f}", f"{folds} of {len(self.run.folds)}")
        return table

    def _say(self, name: str) -> None:
        (score, folds), total = self.scores[name], len(self.run.folds)
        now = time.perf_counter()
        # A log has a line of each model's last fold, and of other folds one in ten seconds.
        if self.stages.has_bars or (folds < total and now - self._last < limits.PLAIN_EVERY):
            return
        self._last = now
        self.stages.say(f"  {name}: {self.metric.name} {score:.5f} after {folds} of {total} folds")
