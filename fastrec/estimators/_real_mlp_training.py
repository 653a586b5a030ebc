"""Training RealMLP as its authors do: several waves of the rate, parts at rates of their own, falling dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastai.callback.core import Callback
from fastai.callback.schedule import ParamScheduler
from torch import nn

from fastrec.models import RealMLP
from fastrec.models.real_mlp import RATES, UNDECAYED
from fastrec.optim import adamw
from fastrec.training import rec_learner

_ADAM = {"mom": 0.9, "sqr_mom": 0.95, "eps": 1e-8}


def train_real_mlp(
    dls: Any, net: RealMLP, loss: Any, epochs: int, *, lr: float, wd: float, cbs: Sequence[Any] = ()
) -> None:
    """Train by arXiv 2407.04491, section 3 and table A.1: Adam with β₂ .95, ``coslog4``, decay and dropout flat-cosine.

    Args:
        dls: dataloaders; validation rows are not looked at.
        lr: the highest rate; parts of the net have theirs in proportion (``RATES``).
        wd: weight decay, of all but biases, at the beginning.
    """
    parts = dict(zip(RATES, RealMLP.rate_groups(net), strict=True))
    used = [name for name, parameters in parts.items() if parameters]
    rates = np.array([lr * RATES[name] for name in used])
    decays = np.array([0.0 if name == UNDECAYED else wd for name in used])
    learn = rec_learner(
        dls,
        net,
        loss_func=loss,
        opt_func=partial(adamw, **_ADAM),
        splitter=lambda net: [p for p in RealMLP.rate_groups(net) if p],
    )
    schedule = ParamScheduler({"lr": lambda t: rates * coslog(t), "wd": lambda t: decays * flat_cos(t)})
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx():
        learn.fit(epochs, lr, wd=wd, cbs=[schedule, ScheduledDropout(flat_cos), *cbs])


def coslog(t: float, waves: int = 4) -> float:
    """Return the rate's share of its highest: ``waves`` waves, each twice as long as the one before, from 0 to 0.

    ``½ (1 - cos(2π log₂(1 + (2^waves - 1) t)))`` (arXiv 2407.04491, section 3).

    Args:
        t: the share of the training that is done, 0 to 1.
    """
    return 0.5 * (1 - math.cos(2 * math.pi * math.log2(1 + (2**waves - 1) * float(t))))


def flat_cos(t: float) -> float:
    """Return 1 for the first half, then down to 0 along half a cosine (source as of ``coslog``)."""
    return 0.5 * (1 + math.cos(math.pi * max(0.0, 2 * float(t) - 1)))


class ScheduledDropout(Callback):
    """Every dropout of the net times a share that changes over the training.

    Args:
        share: of the share of the training that is done.
    """

    run_valid = False

    def __init__(self, share: Callable[[float], float]) -> None:
        super().__init__()
        self.share = share
        self._own: list[tuple[nn.Dropout, float]] = []

    def before_fit(self) -> None:
        """Note each dropout."""
        self._own = [(m, m.p) for m in self.learn.model.modules() if isinstance(m, nn.Dropout)]

    def before_batch(self) -> None:
        """Set each for this batch."""
        share = self.share(self.learn.pct_train)
        for module, p in self._own:
            module.p = p * share

    def after_fit(self) -> None:
        """Restore each dropout."""
        for module, p in self._own:
            module.p = p
