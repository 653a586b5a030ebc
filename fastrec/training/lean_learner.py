"""``LeanLearner``: fastai's Learner with less Python between two batches and the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fastai.callback.core import _inner_loop
from fastai.callback.schedule import ParamScheduler
from fastai.learner import AvgSmoothLoss, Learner
from fastai.losses import BaseLoss
from fastai.torch_core import TensorBase
from fastcore.foundation import L

__all__ = ["LeanLearner", "one_cycle"]


# At batch 4,096 a net of a competition's size takes some 5 ms a batch on two cores, of which fastai's events, schedules
# and tensor subclasses took 1.5: every event asked every callback, and each schedule built tensors for a cosine.
class LeanLearner(Learner):
    """A Learner that calls callbacks only for events that they have, and schedules without tensors."""

    _known: Sequence[Any] = ()
    _hearers: dict[str, list[Any]] = {}  # noqa: RUF012 - replaced, never changed, before it is first filled

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        recorder = getattr(self, "recorder", None)
        if recorder is not None and type(recorder.smooth_loss) is AvgSmoothLoss:
            recorder.smooth_loss = SmoothLoss(recorder.smooth_loss.beta)

    def __call__(self, event_name: Any) -> None:
        """Call an event of all callbacks, in their order."""
        if not isinstance(event_name, str) or event_name not in _INNER:  # the rare ones, and lists of events
            super().__call__(event_name)
            if event_name == "after_train" and hasattr(self, "recorder"):
                _to_host(self.recorder.losses)
            return
        if event_name == "after_loss" and type(getattr(self, "loss", None)) is TensorBase:
            # every operation on fastai's subclass goes through Python, the backward pass too
            self.loss_grad = self.loss_grad.as_subclass(torch.Tensor)
            self.loss = self.loss.detach().as_subclass(torch.Tensor)  # a plain one warns where it is made a number
        if len(self._known) != len(self.cbs) or any(a is not b for a, b in zip(self._known, self.cbs, strict=True)):
            self._known, self._hearers = list(self.cbs), {}
        if event_name not in self._hearers:
            hears = (c for c in self.cbs.sorted("order") if hasattr(type(c), event_name) or event_name in vars(c))
            self._hearers[event_name] = list(hears)
        for cb in self._hearers[event_name]:
            cb(event_name)

    def _set_device(self, b: Any) -> Any:
        device = next(self.model.parameters()).device
        if type(b) is tuple and all(type(x) is torch.Tensor and x.device == device for x in b):
            return b
        return super()._set_device(b)

    def _do_one_batch(self) -> None:
        loss_func = self.loss_func
        # fastai's losses cast to a tensor subclass, which sends every operation through Python
        if not isinstance(loss_func, BaseLoss) or type(loss_func).__call__ is not BaseLoss.__call__:
            super()._do_one_batch()
            return
        self.pred = self.model(*self.xb)
        self("after_pred")
        if len(self.yb):
            self.loss_grad = plain_loss(loss_func, self.pred, *self.yb)
            self.loss = self.loss_grad.detach()
        self("after_loss")
        if self.training and len(self.yb):
            self._do_grad_opt()

    def fit_one_cycle(
        self,
        n_epoch: int,
        lr_max: Any = None,
        div: float = 25.0,
        div_final: float = 1e5,
        pct_start: float = 0.25,
        wd: float | None = None,
        moms: Sequence[Any] | None = None,
        cbs: Any = None,
        reset_opt: bool = False,
        start_epoch: int = 0,
    ) -> None:
        """Train by the 1cycle policy, as fastai's ``fit_one_cycle`` (arXiv 1708.07120).

        Args:
            lr_max: the highest learning rate: a number, or a slice or list over parameter groups; None: ``self.lr``.
            wd: weight decay; None: the Learner's.
            moms: momentum at the start, in the middle and at the end, each a number or an array of one for each
                parameter group; None: the Learner's. Optimizers without momentum go without.
            start_epoch: epochs that are skipped, as in ``fit``.
        """
        if self.opt is None:
            self.create_opt()
        self.opt.set_hyper("lr", self.lr if lr_max is None else lr_max)
        rates = np.array([h["lr"] for h in self.opt.hypers])
        moments = self.moms if moms is None else moms
        cycles = {"lr": one_cycle(pct_start, rates / div, rates, rates / div_final)}
        if "mom" in self.opt.hypers[-1]:  # torch's Adagrad, for one, has none
            cycles["mom"] = one_cycle(pct_start, *moments)
        self.fit(n_epoch, cbs=[ParamScheduler(cycles), *L(cbs)], reset_opt=reset_opt, wd=wd, start_epoch=start_epoch)


_INNER = frozenset(_inner_loop)


class SmoothLoss(AvgSmoothLoss):
    """fastai's smoothed loss, which stays on the model's device: to copy it to the host is to wait for every batch."""

    def accumulate(self, learn: Learner) -> None:
        """Add one batch's loss (with several processes that of all, see ``DataParallel``)."""
        loss = learn.loss.detach().as_subclass(torch.Tensor)
        loss = loss.mean() if loss.ndim else loss
        self.count += 1
        self.val = torch.lerp(loss, self.val.to(loss.device, loss.dtype), self.beta)


def _to_host(losses: list[torch.Tensor]) -> None:
    away = [i for i, loss in enumerate(losses) if loss.device.type != "cpu"]
    if away:
        here = torch.stack([losses[i] for i in away]).cpu()
        for i, loss in zip(away, here, strict=True):
            losses[i] = loss


def plain_loss(loss_func: BaseLoss, pred: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Compute fastai's flattening loss without casting its inputs to a tensor subclass."""
    pred, target = (
        x.transpose(loss_func.axis, -1).contiguous() if isinstance(x, torch.Tensor) else x for x in (pred, target)
    )
    if loss_func.floatify and target.dtype != torch.float16:
        target = target.float()
    if target.dtype in (torch.int8, torch.int16, torch.int32):
        target = target.long()
    if loss_func.flatten:
        pred = pred.view(-1, pred.shape[-1]) if loss_func.is_2d else pred.view(-1)
        target = target.view(-1)
    return loss_func.func(pred, target, **kwargs)


def one_cycle(pct: float, start: Any, middle: Any, end: Any) -> Callable[[float], Any]:
    """Return a schedule from ``start`` to ``middle`` to ``end`` along half cosines.

    Returns:
        A function of the share of the way that has been gone, 0 to 1.
    """

    def at(done: float) -> Any:
        done = float(done)
        first, last, share = (
            (start, middle, done / pct) if done < pct else (middle, end, (done - pct) / max(1 - pct, 1e-12))
        )
        return first + (1 + math.cos(math.pi * (1 - share))) * (last - first) / 2

    return at
