"""Optimizer steps for row-sparse gradients: only the rows of the batch are read and written.

What a dense optimizer would have done to a row since its last gradient is made up for when the row comes next: its
running means fade by β for every step left out, and its weights decay by all the rates since then. What is left out is
the movement by momentum alone, as in torch's ``SparseAdam``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Places", "RowState", "Rows"]


class Places:
    """Where in a batch each of its ids stands, without sorting: a number for every row of a table, never cleared."""

    def __init__(self) -> None:
        self._room: dict[torch.device, Tensor] = {}

    def of(self, ids: Tensor, rows: int) -> Tensor:
        """For every id the place of one and the same of its equals: int64 ``[n]``.

        Args:
            ids: int64 ``[n]``, below ``rows``.
            rows: of the table.
        """
        room = self._room.get(ids.device)
        if room is None or len(room) < rows:
            room = self._room[ids.device] = torch.empty(rows, dtype=torch.int64, device=ids.device)
        room.index_copy_(0, ids, torch.arange(len(ids), device=ids.device))  # of equal ids one stays, whichever
        return room.index_select(0, ids)


@dataclass(frozen=True)
class Rows:
    """The rows of a gradient, each once.

    Args:
        ids: int64 ``[u]``.
        grads: ``[u, width]``.
    """

    ids: Tensor
    grads: Tensor

    @classmethod
    def of(cls, grad: Tensor, places: Places | None = None) -> Rows:
        """The rows of a sparse gradient ``[rows, width]``, gradients of equal rows added up.

        Args:
            grad: coalesced or not.
            places: kept from step to step where there are many.
        """
        ids, values = grad._indices()[0], grad._values()
        if grad.is_coalesced():
            return cls(ids, values)
        place = (places or Places()).of(ids, grad.shape[0])
        first = (place == torch.arange(len(ids), device=ids.device)).nonzero().squeeze(1)
        if len(first) == len(ids):
            return cls(ids, values)  # in the batch's order: no sum, no copy
        sums = torch.zeros_like(values).index_add_(0, place, values)
        return cls(ids.index_select(0, first), sums.index_select(0, first))


class RowState:
    """The running means of one parameter whose gradients are row-sparse, in an optimizer's state.

    Args:
        state: the parameter's entry in ``optimizer.state``: filled where it is empty.
        weight: the parameter ``[rows, width]``.
    """

    def __init__(self, state: dict[str, Any], weight: Tensor) -> None:
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["last"] = torch.zeros(len(weight), dtype=torch.float32, device=weight.device)  # step of the row
            state["decayed"] = torch.zeros(len(weight), dtype=torch.float32, device=weight.device)
            state["decay"] = 0.0  # logarithm of what weights have decayed by
        self.state, self.weight = state, weight

    def begin(self, rate: float) -> int:
        """Count one step in which weights decay by the factor ``1 - rate``; the number of steps."""
        self.state["step"] += 1
        if rate:
            self.state["decay"] += math.log1p(-min(rate, 0.99))
        return int(self.state["step"])

    def take(self, ids: Tensor, betas: tuple[float, float], *, decays: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and running means of some rows as they would stand before this step.

        Args:
            ids: the rows, int64 ``[u]``, each once.
            betas: what the running means fade by in a step.
            decays: weights decay, this step included.

        Returns:
            Weights, means and mean squares, ``[u, width]`` each: copies.
        """
        state, step = self.state, float(self.state["step"])
        weights, mean, square = (t.index_select(0, ids) for t in (self.weight, state["exp_avg"], state["exp_avg_sq"]))
        left_out = (step - 1 - state["last"].index_select(0, ids)).unsqueeze(1)
        if bool((left_out > 0).any()):
            for values, beta in zip((mean, square), betas, strict=True):
                values.mul_(torch.pow(beta, left_out) if beta else (left_out == 0).to(values.dtype))
        state["last"].index_fill_(0, ids, step)
        if decays:
            now = state["decay"]
            weights.mul_((now - state["decayed"].index_select(0, ids)).exp_().unsqueeze(1))
            state["decayed"].index_fill_(0, ids, now)
        return weights, mean, square

    def put(self, ids: Tensor, weights: Tensor, mean: Tensor, square: Tensor) -> None:
        """Write rows back."""
        for whole, rows in zip(
            (self.weight, self.state["exp_avg"], self.state["exp_avg_sq"]), (weights, mean, square), strict=True
        ):
            whole.index_copy_(0, ids, rows)

    def settle(self) -> None:
        """Let all rows decay up to now, which rows without a gradient have not."""
        behind = self.state["decay"] - self.state["decayed"]
        if bool((behind != 0).any()):
            self.weight.mul_(behind.exp_().unsqueeze(1).to(self.weight.dtype))
            self.state["decayed"].fill_(self.state["decay"])
