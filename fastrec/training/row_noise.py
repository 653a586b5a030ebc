"""``SwapNoise`` and ``RowMixUp``: training rows changed anew in every batch, on its device; validation never is."""

from __future__ import annotations

from typing import Any

import torch
from fastai.callback.core import Callback
from torch import Tensor

from fastrec.errors import DataError

__all__ = ["RowMixUp", "SwapNoise", "swapped"]


class SwapNoise(Callback):
    """Values of training rows are replaced by those of other rows of the batch, cell by cell, targets staying.

    A column keeps its distribution. Lists and vectors stay as they are.

    Args:
        share: of the cells that are replaced (some by an equal value).

    Raises:
        DataError: ``share`` is not from 0 up to 1.

    Source: M. Jahrer's first place in Porto Seguro's Safe Driver Prediction (Kaggle 2017).
    """

    order, run_valid = 5, False

    def __init__(self, share: float = 0.1) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise DataError(f"a share of {share} of the cells", remedy="Give a number from 0 to 1")
        self.share = share

    def before_batch(self) -> None:
        """Swap cells."""
        learn: Any = self.learn
        cats, conts, *rest = learn.xb
        learn.xb = (swapped(cats, self.share), swapped(conts, self.share), *rest)


class RowMixUp(Callback):
    """Training rows are mixed with others of the batch, and the loss with that of the others' targets.

    Numbers are ``w x + (1 - w) x'``. A category is the row's own with chance ``w``, else the other's. The loss is
    ``w L(y) + (1 - w) L(y')``, whatever loss it is, if it is a mean over rows (not one of lists). One ``w`` a batch.

    Args:
        alpha: ``w`` is drawn from a beta distribution with both parameters this, and is the larger of it and ``1 - w``.

    Raises:
        DataError: ``alpha`` is not above 0.

    Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization".
    """

    order, run_valid = 6, False

    def __init__(self, alpha: float = 0.4) -> None:
        super().__init__()
        if not alpha > 0:
            raise DataError(f"alpha={alpha} is not above 0", remedy="Give a number above 0: 0.4, say")
        self.alpha = alpha
        self._loss: Any = None

    def before_batch(self) -> None:
        """Mix the rows, and set the loss for them."""
        self.after_loss()
        learn: Any = self.learn
        cats, conts, *rest = learn.xb
        weight = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        weight = max(weight, 1 - weight)
        other = torch.randperm(len(conts), device=conts.device)
        kept = torch.rand(cats.shape, device=cats.device) < weight
        mixed = weight * conts + (1 - weight) * conts[other]
        learn.xb = (torch.where(kept, cats, cats[other]), mixed, *rest)
        if len(learn.yb):
            own = self._loss = learn.loss_func

            def loss(pred: Tensor, *targets: Tensor) -> Tensor:
                return weight * own(pred, *targets) + (1 - weight) * own(pred, *(y[other] for y in targets))

            learn.loss_func = loss

    def after_loss(self) -> None:
        """Give the Learner its loss back."""
        if self._loss is not None:
            self.learn.loss_func, self._loss = self._loss, None

    # what breaks off between the two, such as Ctrl-C, leaves the loss of its batch behind
    before_fit = before_validate = after_cancel_batch = after_loss


def swapped(values: Tensor, share: float) -> Tensor:
    """Swap a share of the cells of rows ``[b, columns]`` with those of other rows, drawn for each cell."""
    if not values.numel():
        return values
    other = torch.randint(len(values), values.shape, device=values.device)
    return torch.where(torch.rand(values.shape, device=values.device) < share, values.gather(0, other), values)
