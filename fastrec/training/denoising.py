"""``pretrain_denoising``: a net's inputs and hidden layers learn from rows without their targets."""

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
from fastrec.training.lean_learner import LeanLearner
from fastrec.training.row_noise import SwapNoise
from fastrec.training.stop_on_nan import StopOnNaN

__all__ = ["pretrain_denoising"]


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
        epochs: how often every row is seen.
        share: of the cells that are swapped, see ``SwapNoise``.
        lr: the highest rate of one cycle.
        wd: weight decay.

    Returns:
        The loss of each batch.

    Raises:
        DataError: the net is no ``TabularNet``, or it has no hidden layer.

    Source: Vincent et al. 2008, "Extracting and Composing Robust Features with Denoising Autoencoders"; swap noise
    after M. Jahrer (Kaggle 2017).
    """
    if not isinstance(net, TabularNet) or len(net.layers) < 2:
        raise DataError(
            f"{type(net).__name__} has no hidden layers that could be trained so",
            remedy="Give a TabularNet with layers",
        )
    names = list(dls.cat_names)
    sizes = [len(dls.train_ds.classes[n]) for n in names] if names else []
    device = next(net.parameters()).device
    whole = _Denoiser(net, sizes).to(device)
    learn = LeanLearner(
        dls,
        whole,
        loss_func=_Reconstruction(sizes),
        opt_func=adamw,
        wd=wd,
        cbs=[_OwnRowsAsTargets(), SwapNoise(share), StopOnNaN(targets=False)],
    )
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

    def forward(self, said: Tensor, cats: Tensor, conts: Tensor) -> Tensor:
        parts = said.split([*self.sizes, conts.shape[1]], 1)
        losses = [
            F.cross_entropy(p, cats[:, i].long()) / torch.tensor(float(max(n, 2))).log()
            for i, (n, p) in enumerate(zip(self.sizes, parts[:-1], strict=True))
        ]
        if conts.shape[1]:
            spread = conts.var(0, unbiased=False).clamp_min(1e-6)
            losses += list(((parts[-1] - conts).square() / spread).mean(0).unbind())
        return torch.stack(losses).mean()
