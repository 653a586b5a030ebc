"""``OneCycleInTime``: the 1cycle policy, which reaches its end when the time is used up."""

from __future__ import annotations

import time
from typing import Any

from fastai.callback.core import Callback, CancelFitException

from fastrec.training.lean_learner import one_cycle

__all__ = ["OneCycleInTime"]


class OneCycleInTime(Callback):
    """Rates rise and fall by the share of the batches that are done, or of the time, whichever is larger.

    Without a limit that is ``fit_one_cycle``'s schedule. With one that binds, weights depend on how fast the machine
    was.

    Args:
        lr: the highest rate.
        seconds: wall time from the start of the training; None: no limit.
        pct_start: share of the training in which the rate rises.
        div, div_final: the first rate is ``lr / div``, the last ``lr / div_final``.
    """

    run_valid, order = False, 60

    def __init__(
        self,
        lr: float,
        seconds: float | None = None,
        *,
        pct_start: float = 0.1,
        div: float = 10.0,
        div_final: float = 1e3,
    ) -> None:
        super().__init__()
        self.rate = one_cycle(pct_start, lr / div, lr, lr / div_final)
        self.seconds, self.began, self.done = seconds, 0.0, 0.0

    def before_fit(self) -> None:
        """Start the clock."""
        self.began = time.monotonic()

    def before_batch(self) -> None:
        """Set the rate."""
        learn: Any = self.learn
        self.done = float(learn.pct_train)
        if self.seconds is not None:
            self.done = min(max(self.done, (time.monotonic() - self.began) / max(self.seconds, 1e-9)), 1.0)
        learn.opt.set_hyper("lr", self.rate(self.done))

    def after_batch(self) -> None:
        """Stop where the time is over."""
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            raise CancelFitException
