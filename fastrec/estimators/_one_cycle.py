"""Training by the one-cycle schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fastrec.estimators._batch_rule import fit_options
from fastrec.training import rec_learner


def train_one_cycle(
    dls: Any,
    net: nn.Module,
    loss: Any,
    epochs: int,
    *,
    lr: float,
    bs: int,
    base_bs: int,
    wd: float,
    cbs: Sequence[Any] = (),
) -> None:
    """Train a net by AdamW and fastai's one-cycle schedule.

    Args:
        dls: dataloaders; validation rows are not looked at.
        lr: the highest rate, at batches of ``base_bs`` rows; see ``fit_options`` for others.
        bs: rows in a batch, of all ranks together.
    """
    rule, schedule = fit_options(net, lr, bs, base_bs)
    learn = rec_learner(dls, net, loss_func=loss, wd=wd, cbs=list(cbs), **rule)
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx():
        learn.fit_one_cycle(epochs, pct_start=0.25, **schedule)
