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

__all__ = ["BatchPlaces", "RowState", "SparseRows", "cache_of"]


class BatchPlaces:
    """Where in a batch each of its ids stands, without sorting: a number for every row of a table, never cleared."""

    def __init__(self) -> None:
        self._room: dict[torch.device, Tensor] = {}

    def of(self, ids: Tensor, rows: int) -> Tensor:
        """Return for every id the place of one and the same of its equals: int64 ``[n]``.

        Args:
            ids: int64 ``[n]``, below ``rows``.
        """
        room = self.room(ids, rows)
        room.index_copy_(0, ids, torch.arange(len(ids), device=ids.device))  # of equal ids one stays, whichever
        return room.index_select(0, ids)

    def room(self, ids: Tensor, rows: int) -> Tensor:
        """Return the numbers, int64, for at least ``rows`` rows; their values are left over from a batch."""
        room = self._room.get(ids.device)
        if room is None or len(room) < rows:
            room = self._room[ids.device] = torch.zeros(rows, dtype=torch.int64, device=ids.device)
        return room


@dataclass(frozen=True)
class SparseRows:
    """The rows of a gradient, each once.

    Args:
        ids: int64 ``[u]``.
        grads: ``[u, width]``.
    """

    ids: Tensor
    grads: Tensor

    @classmethod
    def of(cls, grad: Tensor, places: BatchPlaces | None = None) -> SparseRows:
        """Return the rows of a sparse gradient ``[rows, width]``, adding up gradients of equal rows."""
        ids, values = grad._indices()[0], grad._values()
        if grad.is_coalesced():
            return cls(ids, values)
        place = (places or BatchPlaces()).of(ids, grad.shape[0])
        first = (place == torch.arange(len(ids), device=ids.device)).nonzero().squeeze(1)
        if len(first) == len(ids):
            return cls(ids, values)  # in the batch's order: no sum, no copy
        sums = torch.zeros_like(values).index_add_(0, place, values)
        return cls(ids.index_select(0, first), sums.index_select(0, first))


class RowState:
    """The running means of one parameter whose gradients are row-sparse, in an optimizer's state.

    Args:
        weight: the parameter ``[rows, width]``.
    """

    def __init__(self, state: dict[str, Any], weight: Tensor) -> None:
        self.cache = cache_of(weight)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            # The step that each row is up to. Loading a state makes all its tensors float32.
            state["last"] = self._zeros(weight, "last", wide=False)
            state["exp_avg_sq"] = self._zeros(weight, "exp_avg_sq")
            state["decay"] = 0.0  # logarithm of what weights have decayed by
            state["decays"] = torch.zeros(64, dtype=torch.float32, device=weight.device)  # the same after each step
        self.state, self.weight = state, weight

    def begin(self, rate: float) -> int:
        """Count one step in which weights decay by the factor ``1 - rate``; return the number of steps."""
        state = self.state
        state["step"] += 1
        step = int(state["step"])
        if rate:
            state["decay"] += math.log1p(-min(rate, 0.99))
        if step >= len(state["decays"]):
            state["decays"] = torch.cat([state["decays"], torch.zeros_like(state["decays"])])
        state["decays"][step] = state["decay"]
        return step

    def take(self, ids: Tensor, betas: tuple[float, float], *, decays: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights and running means of some rows as of this step.

        Args:
            ids: the rows, int64 ``[u]``, each once.
            betas: what the running means fade by in a step; without momentum (β1 = 0) no mean is kept.

        Returns:
            Weights, means and mean squares, ``[u, width]`` each: copies.
        """
        state, step = self.state, int(self.state["step"])
        weights, square = self.weight.index_select(0, ids), state["exp_avg_sq"].index_select(0, ids)
        last = state["last"].index_select(0, ids)
        left_out = (step - 1 - last).unsqueeze(1)
        square.mul_(_faded(betas[1], left_out))
        if betas[0]:
            mean = self.mean().index_select(0, ids).mul_(_faded(betas[0], left_out))
        else:
            mean = torch.zeros_like(weights)
        if decays:
            since = state["decays"].index_select(0, last.long())
            weights.mul_((state["decays"][step] - since).exp_().unsqueeze(1))
        state["last"].index_fill_(0, ids, step)
        return weights, mean, square

    def put(self, ids: Tensor, weights: Tensor, mean: Tensor, square: Tensor, *, momentum: bool = True) -> None:
        """Write rows back; ``momentum``: their means too."""
        self.weight.index_copy_(0, ids, weights)
        self.state["exp_avg_sq"].index_copy_(0, ids, square)
        if momentum:
            self.mean().index_copy_(0, ids, mean)

    def settle(self, betas: tuple[float, float]) -> None:
        """Decay the weights and means of all rows up to the current step."""
        state, step = self.state, int(self.state["step"])
        if self.cache is not None:  # the rows of the parameter are not all there are
            self.cache.settled(step, betas, state["decays"])
        left_out = (step - state["last"]).unsqueeze(1)
        if not bool((left_out > 0).any()):
            return
        if state["decay"]:
            since = state["decays"].index_select(0, state["last"].long())
            self.weight.mul_((state["decays"][step] - since).exp_().unsqueeze(1).to(self.weight.dtype))
        state["exp_avg_sq"].mul_(_faded(betas[1], left_out))
        if "exp_avg" in state:
            state["exp_avg"].mul_(_faded(betas[0], left_out))
        state["last"].fill_(step)

    def mean(self) -> Tensor:
        """Return the running mean of every row, allocated when momentum is first used."""
        if "exp_avg" not in self.state:
            self.state["exp_avg"] = self._zeros(self.weight, "exp_avg")
        return self.state["exp_avg"]

    def _zeros(self, weight: Tensor, name: str, *, wide: bool = True) -> Tensor:
        if self.cache is not None:
            return self.cache.begin_state(name, wide=wide)
        if not wide:
            return torch.zeros(len(weight), dtype=torch.float32, device=weight.device)
        return torch.zeros_like(weight, memory_format=torch.preserve_format)


def cache_of(weight: Tensor) -> Any:
    """Return the cache that brings a parameter's rows to the device; None if all rows are there."""
    placed = getattr(weight, "placed", None)
    return None if placed is None or placed.sharded else placed


def _faded(beta: float, steps: Tensor) -> Tensor:
    return torch.pow(beta, steps) if beta else (steps == 0).to(steps.dtype)
