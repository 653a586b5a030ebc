"""How a net's training keeps a limit of time: as many epochs as fit, judged by a few batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from fastai.callback.core import Callback, CancelFitException
from torch import nn

from fastrec._core.ranks import on_first_rank
from fastrec.errors import OutOfTimeError
from fastrec.estimators._pace import Pace

_WARM, _TIMED = 2, 6  # batches


def epochs_in_time(
    pace: Pace,
    dls: Any,
    net: nn.Module,
    loss: Any,
    report: Callable[[nn.Module], Any],
    epochs: int,
    *,
    name: str,
) -> int:
    """How many of the epochs fit into the time that is left; of several processes the first one finds out.

    A copy of the net learns from a few batches against the clock, and is scored once, as it is after every epoch.

    Args:
        pace: the time.
        dls: dataloaders of the training rows.
        net: the net; it stays as it is.
        loss: its loss.
        report: what scores it after an epoch.
        epochs: how many there would be with all the time.
        name: the estimator, for messages.

    Returns:
        1 to ``epochs``.

    Raises:
        OutOfTimeError: not one epoch fits.
    """
    given = (pace, dls, net, loss, report, epochs, name)
    return on_first_rank(lambda: _epochs_in_time(*given), "trying how long an epoch takes")


def _epochs_in_time(
    pace: Pace, dls: Any, net: nn.Module, loss: Any, report: Callable[[nn.Module], Any], epochs: int, name: str
) -> int:
    state = torch.random.get_rng_state()
    trial = copy.deepcopy(net).train()
    loss = trial.wrap_loss(loss) if hasattr(trial, "wrap_loss") else loss
    rule = torch.optim.AdamW(trial.parameters(), lr=1e-4)
    n = len(dls.train)
    count, seconds = 0, 0.0
    for i, batch in enumerate(islice(_alone(dls.train), min(_WARM + _TIMED, n))):
        began = time.monotonic()
        *xb, yb = batch
        found = loss(trial(*xb), yb)
        found.backward()
        rule.step()
        rule.zero_grad()
        if i >= _WARM or n <= _WARM:
            count, seconds = count + 1, seconds + time.monotonic() - began
    began = time.monotonic()
    report(trial.eval())
    scoring = time.monotonic() - began
    torch.random.set_rng_state(state)
    epoch = seconds / max(count, 1) * n + scoring
    if epoch > pace.left * 1.25:
        raise OutOfTimeError(
            f"{name}: an epoch takes {epoch:.0f} s, {pace.left:.0f} s are left",
            remedy="Give more minutes, or a smaller model",
        )
    return max(1, min(epochs, int(pace.left / epoch)))


def _alone(loader: Any) -> Any:
    """The loader as one process has it: of several, the others are not asked."""
    return loader if loader.world_size == 1 else loader.new(rank=0, world_size=1)


class StopInTime(Callback):
    """Ends a training whose next epoch would not fit; the best epoch's weights stay."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def before_epoch(self) -> None:
        """Note when an epoch begins."""
        self._began = time.monotonic()

    def after_epoch(self) -> None:
        """End if another one is too long."""
        took = time.monotonic() - self._began
        is_late = on_first_rank(lambda: self.pace.left < took * 0.75, "looking at the clock")
        if is_late and self.learn.epoch + 1 < self.learn.n_epoch:
            raise CancelFitException
