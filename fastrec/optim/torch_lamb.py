"""``Lamb``: Adam's step for each layer, rescaled to the layer's own norm."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, shared, steps
from fastrec.errors import DataError
from fastrec.optim.row_optimizer import RowOptimizer, fused_step
from fastrec.optim.row_sparse import RowState, SparseRows

__all__ = ["Lamb"]


class Lamb(RowOptimizer):
    """LAMB: Adam's step for each layer, rescaled to the layer's own norm (arXiv 1904.00962, algorithm 2).

    Weight decay stands inside the trust ratio, as in the paper. A parameter that carries ``segments`` (row bounds
    ``(0, …, rows)``, as embedding tables do, several of which are one parameter) is one layer per segment. Of
    row-sparse gradients only the batch's rows are updated, and are what both norms of the trust ratio are taken over.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the running square.
        weight_decay: coefficient of the weights in the step.
        clamp: largest weight norm that the trust ratio sees (10 in some implementations); None: no limit.
        debias: ``'paper'`` corrects both running means for their start at zero before the trust ratio is taken; False
            corrects nothing; True scales the step after the trust ratio by ``√(1 - β2^t) / (1 - β1^t)``, as
            ``torch_optimizer.Lamb`` does.
        adapt_1d: False gives biases and norms (parameters of one dimension) a trust ratio of 1, which is Adam's step:
            a bias starts at zero, and a step in proportion to its norm hardly leaves zero.
        adapt_tables: False gives parameters with ``segments`` a trust ratio of 1, which is AdamW's step.

    Raises:
        DataError: a setting out of its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        clamp: float | None = None,
        debias: Literal["paper"] | bool = "paper",
        adapt_1d: bool = True,
        adapt_tables: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise DataError(
                f"LAMB with lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}",
                remedy="lr, eps and weight_decay must be ≥ 0, betas from 0 up to, not including, 1",
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "clamp": clamp}
        super().__init__(params, {**defaults, "debias": debias, "adapt_1d": adapt_1d, "adapt_tables": adapt_tables})

    def _step_dense(self) -> None:
        for group in self.param_groups:
            alike: dict[Any, list[tuple[Tensor, ...]]] = defaultdict(list)
            worth = compiled(sum(p.numel() for p in group["params"] if p.grad is not None))
            for p in group["params"]:
                if p.grad is not None:
                    held, step = self._held(p)
                    loops = worth and all(_is_plain(t) for t in held)
                    alike[p.device, p.dtype, step, loops].append(held)
            for (_, _, step, loops), held in alike.items():
                layers = [_layers(p, group) for p, *_ in held]
                given = [list(kind) for kind in zip(*held, strict=True)], layers, step, group
                self._step_by_loops(*given) if loops else self._step_by_calls(*given)

    def _held(self, p: Tensor) -> tuple[tuple[Tensor, ...], int]:
        """Return a parameter, its gradient, running mean and mean square, in one layout; and the step number."""
        state, grad = self.state[p], p.grad
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["step"] += 1
        mean = state["exp_avg"]
        if mean.shape != p.shape:
            raise DataError(
                f"a parameter is {list(p.shape)} and its running means, which were loaded, are {list(mean.shape)}",
                remedy="Load the optimizer's state of the same model",
            )
        if grad.stride() != mean.stride():
            grad = torch.empty_like(mean).copy_(grad)
        return (p, grad, mean, state["exp_avg_sq"]), state["step"]

    def _step_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        if not _layers(p, group):
            super()._step_rows(p, grad, group)
            return
        rows, state = SparseRows.of(grad, self._places), RowState(self.state[p], p)
        step = state.begin(0.0)
        placed = getattr(p, "placed", None)  # the parameter's rows are some of the tables' only
        numbers = rows.ids if placed is None else placed.rows_of(rows.ids)
        numbers, order = torch.sort(numbers)
        ids, grads = rows.ids.index_select(0, order), rows.grads.index_select(0, order)
        weights, mean, square = state.take(ids, group["betas"], decays=False)
        bounds = torch.tensor(getattr(p, "segments", None) or (0, len(p)), device=ids.device)
        sizes = torch.diff(torch.searchsorted(numbers, bounds)).tolist()
        total = placed.total_norms if placed is not None and placed.sharded else None
        self._step_by_calls([[weights], [grads], [mean], [square]], [sizes], step, group, total)
        state.put(ids, weights, mean, square, momentum=bool(group["betas"][0]))

    def _count_and_rate(self, step: int, group: dict[str, Any]) -> tuple[float, float]:
        (beta1, beta2), debias, rate = group["betas"], group["debias"], float(group["lr"])
        count = step if debias == "paper" else limits.UNBIASED_STEP
        return count, rate * math.sqrt(1 - beta2**step) / (1 - beta1**step) if debias is True else rate

    def _step_by_loops(
        self, held: list[list[Tensor]], layers: list[list[int]], step: int, group: dict[str, Any]
    ) -> None:
        """Step by compiled loops on a CPU: over each layer once for the norms and once to update.

        Args:
            held: weights, gradients, running means and mean squares, equally many each.
            layers: for each parameter what ``_layers`` gives.
            step: which it is.
            group: their hyper-parameters.
        """
        addresses, sizes, adapts = [], [], []
        for tensors, rows in zip(zip(*held, strict=True), layers, strict=True):
            numbers, at = tensors[0].numel(), np.array([t.data_ptr() for t in tensors])
            width = numbers // max(sum(rows), 1)
            for size in [n * width for n in rows] or [numbers]:
                addresses.append(at)
                sizes.append(size)
                adapts.append(bool(rows))
                at = at + 4 * size
        (beta1, beta2), (count, rate) = group["betas"], self._count_and_rate(step, group)
        fixes, clamp = (1 / (1 - beta1**count), 1 / (1 - beta2**count)), group["clamp"]
        rest = beta1, beta2, *fixes, group["eps"], group["weight_decay"], rate, math.inf if clamp is None else clamp
        given = np.array(addresses), np.array(sizes), np.array(adapts), *map(float, rest)
        shared(steps().lamb_layers, *given, numbers=max(sizes))
        for p in held[0]:
            torch.autograd.graph.increment_version(p)

    def _step_by_calls(
        self,
        held: list[list[Tensor]],
        layers: list[list[int]],
        step: int,
        group: dict[str, Any],
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Step by torch's calls for all parameters at once, without waiting for a GPU.

        torch's fused AdamW subtracts Adam's step from what it takes for weights. From ``-decay · w`` it makes the step
        that LAMB rescales. ``total`` makes norms over the rows here those over the rows of all ranks.
        """
        weights, grads, means, squares = held
        count, rate = self._count_and_rate(step, group)
        moves = self._shrinkage(weights, means, group["weight_decay"])
        fused_step(moves, grads, means, squares, count, 1.0, group["betas"], group["eps"])
        plain = [(m, p) for m, p, rows in zip(moves, weights, layers, strict=True) if not rows]
        if plain:
            torch._foreach_add_([p for _, p in plain], [m for m, _ in plain], alpha=rate)
        parts = [
            pair
            for m, p, rows in zip(moves, weights, layers, strict=True)
            for pair in ([(m, p)] if len(rows) == 1 else zip(m.split(rows), p.split(rows), strict=True) if rows else [])
        ]
        if parts:
            moves, weights = [m for m, _ in parts], [p for _, p in parts]
            norms = torch.stack(torch._foreach_norm([*moves, *weights]))
            move, weight = (norms if total is None else total(norms)).chunk(2)
            if group["clamp"] is not None:
                weight = weight.clamp(max=group["clamp"])
            trust = torch.where((weight > 0) & (move > 0), weight / move, 1.0) * rate
            torch._foreach_addcmul_(weights, moves, list(trust.unbind()))

    def _shrinkage(self, weights: Sequence[Tensor], like: Sequence[Tensor], decay: float) -> list[Tensor]:
        if weights[0].device.type != "cpu":
            return list(torch._foreach_mul(list(weights), -decay))
        room, at, moves = self._room(sum(p.numel() for p in weights), weights[0].dtype), 0, []
        for p, t in zip(weights, like, strict=True):
            moves.append(torch.mul(p, -decay, out=room.as_strided(t.shape, t.stride(), at)))
            at += p.numel()
        return moves


def _layers(p: Tensor, group: dict[str, Any]) -> list[int]:
    bounds = getattr(p, "segments", None)
    if not (group["adapt_tables"] if bounds else group["adapt_1d"] or p.ndim > 1):
        return []
    return [b - a for a, b in pairwise(bounds)] if bounds else [len(p) if p.ndim else 1]


def _is_plain(t: Tensor) -> bool:
    return t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous()
