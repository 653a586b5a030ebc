"""Training rows changed anew in every batch, and pretraining on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fastai.callback.core import Callback
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models import TabularNet
from fastrec.optim import adamw
from fastrec.training.learner import LeanLearner
from fastrec.training.stop_on_nan import StopOnNaN


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


def pretrain_denoising(
    dls: Any, net: TabularNet, epochs: int = 10, *, share: float = 0.15, lr: float = 2e-3, wd: float = 0.01
) -> list[float]:
    """Train all layers but the last to reconstruct rows from swap noise.

    A linear layer on the last hidden one, which is thrown away afterwards, tells every category (cross-entropy over
    the logarithm of the column's codes, so that columns count alike) and every number (squared error over its variance
    in the batch). Validation rows and targets are not looked at. Train the net as usual then.

    Args:
        dls: tabular dataloaders; their training rows are learned from.
        net: with hidden layers; its weights are changed.
        epochs, lr, wd: as for ``fit_one_cycle``.
        share: of the cells that are swapped, see ``SwapNoise``.

    Returns:
        The loss of each batch.

    Raises:
        DataError: the net is no ``TabularNet``, or it has no hidden layer.

    Source: Vincent et al. 2008, "Extracting and Composing Robust Features with Denoising Autoencoders"; swap noise
    after M. Jahrer (Kaggle 2017).
    """
    if not isinstance(net, TabularNet) or len(net.layers) < 2:
        name = type(net).__name__
        raise DataError(f"{name} has no hidden layers that could be trained so", remedy="Give a TabularNet with layers")
    names = list(dls.cat_names)
    sizes = [len(dls.train_ds.classes[n]) for n in names] if names else []
    device = next(net.parameters()).device
    whole = _Denoiser(net, sizes).to(device)
    cbs = [_OwnRowsAsTargets(), SwapNoise(share), StopOnNaN(targets=False)]
    learn = LeanLearner(dls, whole, loss_func=_Reconstruction(sizes), opt_func=adamw, wd=wd, cbs=cbs)
    learn._do_epoch_validate = lambda *args, **kwargs: None  # nothing is chosen by it
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(epochs, lr)
    return [float(v) for v in learn.recorder.losses]


class _OwnRowsAsTargets(Callback):
    """The targets of a batch are its rows, before noise is put on them."""

    order = SwapNoise.order - 1

    def before_batch(self) -> None:
        learn: Any = self.learn
        learn.yb = tuple(learn.xb[:2])


class _Denoiser(nn.Module):
    """A net with a linear layer in place of its last."""

    def __init__(self, net: TabularNet, sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        hidden = next(m for m in net.layers[-1] if isinstance(m, nn.Linear)).in_features
        self.back = nn.Linear(hidden, sum(sizes) + net.n_cont)

    def forward(self, x_cat: Tensor, x_cont: Tensor, *extras: Tensor) -> Tensor:
        net = self.net
        pieces = net.embed_pieces(x_cat, extras) + net.dense_pieces(x_cont, extras)
        return self.back(net.layers[:-1](torch.cat(pieces, 1)))


class _Reconstruction(nn.Module):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, outputs: Tensor, cats: Tensor, conts: Tensor) -> Tensor:
        parts = outputs.split([*self.sizes, conts.shape[1]], 1)
        losses = [
            F.cross_entropy(p, cats[:, i].long()) / torch.tensor(float(max(n, 2))).log()
            for i, (n, p) in enumerate(zip(self.sizes, parts[:-1], strict=True))
        ]
        if conts.shape[1]:
            spread = conts.var(0, unbiased=False).clamp_min(1e-6)
            losses += list(((parts[-1] - conts).square() / spread).mean(0).unbind())
        return torch.stack(losses).mean()
