"""``LastRows``: what a net says of the last training rows before it learns from them, and a blend by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from fastai.callback.core import Callback

from fastrec.estimators import Estimator
from fastrec.metrics import Metric
from fastrec.stacking import HillClimb, MeanBlend
from fastrec.stacking.stack_model import level_two_of
from fastrec.table import Table
from fastrec.validate import Rows

__all__ = ["LastRows", "blend_by_last_rows"]


class LastRows(Callback):
    """Keeps the probabilities of the last rows as they were when each row came, and their targets.

    In one epoch a row is new when it comes: its probability is as honest as one of a held-out row, and costs nothing
    (progressive validation: Blum, Kalai, Langford 1999).

    Args:
        rows: so many at least, if there are as many.
    """

    def __init__(self, rows: int = 200_000) -> None:
        super().__init__()
        self.rows = rows
        self.seen, self._held = 0, 0
        self._parts: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def after_pred(self) -> None:
        """Keep a batch, and let go of the oldest that are not needed any more."""
        if not self.learn.training:
            return
        said = self.learn.pred.detach().reshape(-1).sigmoid()
        self._parts.append((said, self.learn.yb[0].detach().reshape(-1).clone()))
        self.seen += len(said)
        self._held += len(said)
        while self._held - len(self._parts[0][0]) >= self.rows:
            self._held -= len(self._parts.popleft()[0])

    @property
    def said(self) -> torch.Tensor:
        """Probabilities, float64 ``[rows]``."""
        return torch.cat([p.double().cpu() for p, _ in self._parts])

    @property
    def label(self) -> torch.Tensor:
        """Targets, float64 ``[rows]``."""
        return torch.cat([y.double().cpu() for _, y in self._parts])


def blend_by_last_rows(last: Mapping[str, LastRows], metric: str | Metric | None, epochs: Sequence[int]) -> Estimator:
    """Fit a blend of nets by their predictions of the last rows before they learned from them.

    Args:
        last: the nets' rows, by name.
        metric: what to climb on.
        epochs: how often each net has seen every row.

    Returns:
        ``HillClimb``; the plain mean where the nets have not seen the same rows, or have seen them before.
    """
    names, each = list(last), list(last.values())
    same = len({r.seen for r in each}) == 1 and each[0].seen > 0
    if len(names) < 2 or max(epochs) > 1 or not same or not all(torch.equal(r.label, each[0].label) for r in each):
        return MeanBlend(names)
    label = each[0].label
    if len(torch.unique(label)) < 2:
        return MeanBlend(names)
    said = {n: r.said for n, r in last.items()}
    rows = Rows(Table({n: v.numpy() for n, v in said.items()}), "binary", label=label)
    return HillClimb(names, metric=metric, rows=None).fit(level_two_of(said, rows, ()))
