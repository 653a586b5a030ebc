"""Cross-entropy of a linear layer with many outputs, block by block with its own gradient.

Autograd keeps the logits, their softmax and its gradient, ``[positions, items]`` each. Here a block of positions goes
all the way, from logits to the gradients of its inputs and of the weights, while it is in the processor's cache; only
the gradients stay. Memory is bounded by the block, whatever the number of items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastrec._core import limits

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    own: Tensor | None = None,
    half: bool = False,
) -> Tensor:
    """Return the mean of ``cross_entropy(hidden @ weight.T + bias, target)``.

    Args:
        hidden: ``[positions, width]``.
        weight: one row an item, ``[items, width]``.
        target: the right item of each position, int64 ``[positions]``.
        bias: added to the logits, ``[items]``; it gets no gradient.
        own: added to the logit of each position's own target, ``[positions]``; it gets no gradient.
        half: compute logits and their gradient in bfloat16, where the processor is several times faster at it.

    Returns:
        A number; 0 without positions.
    """
    return _LinearCrossEntropy.apply(hidden, weight, target, bias, own, half)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, own: Tensor | None, half: bool
    ) -> Tensor:
        learns = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden = torch.zeros_like(hidden) if learns else hidden
        grad_weight = torch.zeros_like(weight) if learns else weight
        h, w = (hidden.bfloat16(), weight.bfloat16()) if half else (hidden, weight)
        bias = None if bias is None else bias.to(h.dtype)
        positions, total = len(h), hidden.new_zeros(())
        rows = max(limits.CHUNKED_LOSS_FEWEST, limits.CHUNKED_LOSS_CELLS // max(len(w), 1))
        for a in range(0, positions, rows):
            b = min(a + rows, positions)
            logits = h[a:b] @ w.T
            if bias is not None:
                logits += bias
            place = target[a:b].unsqueeze(1)
            if own is not None:
                logits.scatter_add_(1, place, own[a:b].unsqueeze(1).to(logits.dtype))
            shares = torch.softmax(logits, 1)
            chance = shares.gather(1, place)
            total -= chance.to(hidden.dtype).clamp_min(limits.CHUNKED_LOSS_TINY).log().sum()
            if learns:
                shares.scatter_(1, place, chance - 1)
                torch.mm(shares, w, out=grad_hidden[a:b]) if not half else grad_hidden[a:b].copy_(shares @ w)
                grad_weight.addmm_(shares.T, h[a:b]) if not half else grad_weight.add_(shares.T @ h[a:b])
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.scale = 1.0 / max(positions, 1)
        return total * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad * ctx.scale
        wanted = ctx.needs_input_grad
        return (
            grad_hidden * scale if wanted[0] else None,
            grad_weight * scale if wanted[1] else None,
            None,
            None,
            None,
            None,
        )
