"""How a net's training keeps a deadline: as many epochs as fit, judged by a few batches, and a stop."""

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
from fastrec.estimators._pace import Deadline


def epochs_in_time(
    deadline: Deadline,
    dls: Any,
    net: nn.Module,
    loss: Any,
    report: Callable[[nn.Module], Any],
    epochs: int,
    *,
    name: str,
) -> int:
    """Return how many of the epochs fit into the time that is left; of several processes the first one decides.

    A copy of the net learns from a few batches against the clock, and is scored once, as it is after every epoch.

    Args:
        dls: dataloaders of the training rows.
        net: the net; it stays as it is.
        report: what scores it after an epoch.
        epochs: how many there would be with all the time.
        name: the estimator, for messages.

    Returns:
        1 to ``epochs``.
    """

    def judged() -> int:
        state = torch.random.get_rng_state()
        trial = copy.deepcopy(net).train()
        own = trial.wrap_loss(loss) if hasattr(trial, "wrap_loss") else loss
        rule = torch.optim.AdamW(trial.parameters(), lr=1e-4)
        n, warm, timed = len(dls.train), 2, 6  # batches; the first ones, which allocate, are not timed
        # of several ranks the others do not come to these batches
        loader = dls.train if dls.train.world_size == 1 else dls.train.new(rank=0, world_size=1)
        count, seconds = 0, 0.0
        for i, batch in enumerate(islice(loader, min(warm + timed, n))):
            began = time.monotonic()
            *xb, yb = batch
            own(trial(*xb), yb).backward()
            rule.step()
            rule.zero_grad()
            if i >= warm or n <= warm:
                count, seconds = count + 1, seconds + time.monotonic() - began
        began = time.monotonic()
        report(trial.eval())
        epoch = seconds / max(count, 1) * n + time.monotonic() - began
        torch.random.set_rng_state(state)
        if epoch > deadline.left * 1.25:
            raise OutOfTimeError(
                f"{name}: an epoch takes {epoch:.0f} s, {deadline.left:.0f} s are left",
                remedy="Give more minutes, or a smaller model",
            )
        return max(1, min(epochs, int(deadline.left / epoch)))

    return on_first_rank(judged, "trying how long an epoch takes")


class StopInTime(Callback):
    """Ends a training whose next epoch would not fit; the best epoch's weights stay."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline

    def before_epoch(self) -> None:
        """Note when an epoch begins."""
        self._began = time.monotonic()

    def after_epoch(self) -> None:
        """Stop if the next epoch would be too long."""
        took = time.monotonic() - self._began
        is_late = on_first_rank(lambda: self.deadline.left < took * 0.75, "looking at the clock")
        if is_late and self.learn.epoch + 1 < self.learn.n_epoch:
            raise CancelFitException
