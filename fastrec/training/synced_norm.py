"""Batch norm over the batches of all ranks: what one process would compute of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastrec._core.ranks import summed

__all__ = ["synced_norms"]


@contextmanager
def synced_norms(model: nn.Module) -> Iterator[None]:
    """Take mean and variance of batch norms over all ranks' batches within the block.

    Modules stay the objects that they are. (torch's ``SyncBatchNorm`` is another class, for GPUs alone.)
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    for norm in norms:
        norm.forward = partial(_forward, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor:
    if not norm.training:
        return type(norm).forward(norm, x)
    given, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    over = [0, *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    rows = x.new_tensor([x.numel() // x.shape[1]])
    sums = _Sum.apply(torch.cat([x.sum(over), rows]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    # a second sum, of squares about the common mean, cancels less than E[x²] - E[x]²
    apart = x - mean.view(shape)
    var = _Sum.apply(apart.square().sum(over)) / count
    _note(norm, mean.detach(), var.detach(), count)
    y = apart * (var + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(given)


@torch.no_grad()
def _note(norm: _BatchNorm, mean: Tensor, var: Tensor, count: Tensor) -> None:
    if not norm.track_running_stats or norm.running_mean is None:
        return
    norm.num_batches_tracked += 1
    share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_((var * count / (count - 1).clamp(min=1)).to(norm.running_var.dtype), share)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().clone()
        summed([x], "normalising a batch")
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        summed([grad], "normalising a batch, backwards")
        return grad
