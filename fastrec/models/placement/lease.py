"""``Leases``: which rows on the device a gradient may still come for, so that they have to stay."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import TrainingError

__all__ = ["Lease", "Leases"]


class Lease:
    """The rows that one lookup used: they stay until its backward pass has run, or its graph is gone.

    Args:
        slots: their places on the device, int64 ``[n]``.
    """

    def __init__(self, slots: Tensor) -> None:
        self.slots, self.spent = slots, False


class Leases:
    """The leases of one parameter.

    A forward pass need not be followed by a backward one: a lease ends as well when nothing holds its graph any more.
    """

    def __init__(self) -> None:
        self._open: list[weakref.ref[Lease]] = []

    def take(self, weight: Tensor, slots: Tensor) -> Tensor:
        """Lease the parameter for a lookup at some places; its graph holds them."""
        if not torch.is_grad_enabled() or not weight.requires_grad:
            return weight
        lease = Lease(slots)
        self._open = [ref for ref in self._open if (one := ref()) is not None and not one.spent]
        self._open.append(weakref.ref(lease))
        return _Leased.apply(weight, lease)

    def held(self, weight: Tensor) -> list[Tensor]:
        """Return the places that must stay: of open leases, and of gradients without a step yet."""
        found = [one.slots for ref in self._open if (one := ref()) is not None and not one.spent]
        if weight.grad is not None:
            found.append(weight.grad._indices()[0].cpu())
        return found


class _Leased(torch.autograd.Function):
    """The parameter itself; its gradient is let through once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, lease: Lease) -> Tensor:
        ctx.lease = lease
        return weight.data  # no view: the parameter may be changed while this graph is alive

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.lease.spent:
            raise TrainingError(
                "a second backward pass through embedding tables that do not lie on the device",
                remedy="Their rows may have gone since; add the losses up before one backward pass",
            )
        ctx.lease.spent = True
        return grad, None
