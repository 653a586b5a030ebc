"""``Lamb``: Adam's step for each layer, rescaled to the layer's own norm."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastrec._core.kernels import compiled, shared, steps, view
from fastrec.errors import DataError
from fastrec.optim.row_sparse import Places, Rows, RowState
from fastrec.optim.torch_adamw import fused_step, without_sparse

__all__ = ["Lamb"]

_BLOCK = 1 << 19  # numbers: blocks of five such tensors stay in a CPU's last cache between the passes over them
_LOOPED = 1 << 16  # numbers: smaller parameters take their step together
_NEVER_BIASED = 1e9  # a step so late that running means have forgotten their start


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam's step for each layer, rescaled to the layer's own norm (arXiv 1904.00962, algorithm 2).

    Weight decay stands inside the trust ratio, as in the paper. A parameter that carries ``segments`` (row bounds
    ``(0, …, rows)``, as fused embedding tables do) is one layer per segment. Of row-sparse gradients only the batch's
    rows are updated, and are what both norms of the trust ratio are taken over.

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
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise DataError(
                f"LAMB with lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}",
                remedy="lr, eps and weight_decay must be ≥ 0, betas from 0 up to, not including, 1",
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "clamp": clamp, "debias": debias, "adapt_1d": adapt_1d})
        self._steps: Tensor | None = None
        self._small: dict[Any, tuple[Tensor, list[Tensor]]] = {}
        self._places = Places()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._steps, self._small, self._places = None, {}, Places()  # room for a step, which is not saved

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over all parameters that have a gradient.

        Args:
            closure: computes the loss anew, where wanted.

        Returns:
            The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with without_sparse(self.param_groups) as sparse:
            for group in self.param_groups:
                self._step_group(group)
        for p, grad, group in sparse:
            self._step_rows(p, grad, group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        alike: dict[Any, list[Tensor]] = defaultdict(list)
        worth = compiled(sum(p.numel() for p in group["params"]))
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self._state(p)
            state["step"] += 1
            plain = p.device.type == "cpu" and p.dtype == p.grad.dtype == torch.float32 and p.is_contiguous()
            loops = plain and worth
            if plain and p.numel() > (_LOOPED if loops else _BLOCK):
                _step_compiled(p, state, group) if loops else self._step_in_blocks(p, state, group)
            else:
                alike[p.device, p.dtype, state["step"], loops].append(p)
        for (device, _, _, loops), params in alike.items():
            states = [self.state[p] for p in params]
            if loops:
                _step_small_compiled(params, states, group)
            elif device.type == "cpu":
                _step_small(params, states, self._room_for(params), group)
            else:
                _step_together(params, states, group)

    def _step_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        rows, state = Rows.of(grad, self._places), RowState(self.state[p], p)
        step = state.begin(0.0)
        order = torch.argsort(rows.ids)
        ids, grads = rows.ids.index_select(0, order), rows.grads.index_select(0, order)
        weights, mean, square = state.take(ids, group["betas"], decays=False)
        moves = torch.zeros_like(weights)
        rate = _direction([moves], [grads], [mean], [square], [weights], step, group)
        bounds = torch.tensor(getattr(p, "segments", None) or (0, len(p)), device=ids.device)
        sizes = torch.diff(torch.searchsorted(ids, bounds)).tolist()
        for move, weight in zip(moves.split(sizes), weights.split(sizes), strict=True):
            if len(move):
                weight.add_(move, alpha=rate * _trust(move.norm().item(), weight.norm().item(), group))
        state.put(ids, weights, mean, square, momentum=bool(group["betas"][0]))

    def _step_in_blocks(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """The step of one large parameter, layer by layer, each in two passes over the memory.

        With a rate of ``1 / d`` and a decay of ``d`` torch's fused AdamW first wipes what stands in the memory for the
        step u, and leaves ``m = -u / d`` there. LAMB's direction is then ``d (w - m)``, whose norm follows from three
        products, and its step goes from w towards m.
        """
        whole = [t.view(-1) for t in (p, p.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"])]
        width, decay = p.numel() // len(p), group["weight_decay"]
        count, rate = _count_and_rate(state["step"], group)
        d = decay or 1.0
        wipes = 1 - (1 / d) * d == 0  # not for every d: what is left of the step before would tint this one
        for start, stop in pairwise(getattr(p, "segments", None) or (0, len(p))):
            layer = [t[start * width : stop * width] for t in whole]
            moves = self._room(layer[0])
            move_move = weight_move = weight_weight = 0.0
            for weights, grads, mean, square, move in zip(*(t.split(_BLOCK) for t in (*layer, moves)), strict=True):
                if not wipes:
                    move.zero_()
                fused_step([move], [grads], [mean], [square], count, 1 / d, group["betas"], group["eps"], d)
                move_move += float(move.dot(move))
                weight_weight += float(weights.dot(weights))
                weight_move += float(weights.dot(move)) if decay else 0.0
            norm = decay * math.sqrt(max(weight_weight - 2 * weight_move + move_move, 0.0)) if decay else move_move**0.5
            adapts = group["adapt_1d"] or p.ndim > 1
            step = rate * (_trust(norm, math.sqrt(weight_weight), group) if adapts else 1.0)
            layer[0].lerp_(moves, step * decay) if decay else layer[0].add_(moves, alpha=step)
            if not math.isfinite(move_move):
                moves.zero_()  # nought times infinity would stay there

    def _room(self, like: Tensor) -> Tensor:
        """Memory for the step of one layer, kept from step to step: fetching it anew takes longer than the step."""
        if self._steps is None or len(self._steps) < len(like):
            self._steps = torch.zeros_like(like)
        return self._steps[: len(like)]

    def _room_for(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Zeros in the shapes of small parameters: parts of one block, as one call wipes that."""
        key = params[0].dtype, *(p.shape for p in params)
        if key not in self._small:
            block = torch.empty(sum(p.numel() for p in params), dtype=params[0].dtype)
            parts = block.split([p.numel() for p in params])
            self._small[key] = block, [part.view(p.shape) for part, p in zip(parts, params, strict=True)]
        block, parts = self._small[key]
        block.zero_()
        return parts

    def _state(self, p: Tensor) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


def _trust(move: float, weight: float, group: dict[str, Any]) -> float:
    """The trust ratio of a layer whose step and weights have these norms."""
    weight = weight if group["clamp"] is None else min(weight, group["clamp"])
    return weight / move if weight > 0 and move > 0 else 1.0


def _direction(
    moves: Sequence[Tensor],
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    weights: Sequence[Tensor],
    step: int,
    group: dict[str, Any],
) -> float:
    """Adam's steps with weight decay, at a rate of -1, added to ``moves`` (zeros); the rate they are to be taken at.

    torch's fused AdamW, given zeros for weights, leaves Adam's step in their place: one pass in place of ten.
    """
    count, rate = _count_and_rate(step, group)
    fused_step(moves, grads, means, squares, count, 1.0, group["betas"], group["eps"])
    if group["weight_decay"]:
        torch._foreach_add_(moves, weights, alpha=-group["weight_decay"])
    return rate


def _count_and_rate(step: int, group: dict[str, Any]) -> tuple[float, float]:
    """Which step Adam's correction is told that it is, and the rate before the trust ratio."""
    (beta1, beta2), debias, rate = group["betas"], group["debias"], group["lr"]
    count = step if debias == "paper" else _NEVER_BIASED
    return count, rate * math.sqrt(1 - beta2**step) / (1 - beta1**step) if debias is True else rate


def _step_compiled(p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """The step of one large parameter by compiled loops, layer by layer: one pass for the norms and one to go."""
    loops, width = steps(), p.numel() // len(p)
    held = p, p.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"]
    whole = [view(t).reshape(-1) for t in held]
    rest = _for_loops(state["step"], group)
    adapts = group["adapt_1d"] or p.ndim > 1
    for start, stop in pairwise(getattr(p, "segments", None) or (0, len(p))):
        layer = [x[start * width : stop * width] for x in whole]
        shared(loops.lamb_layer, *layer, *rest, adapts, numbers=len(layer[0]))
    torch.autograd.graph.increment_version(p)


def _step_small_compiled(params: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]) -> None:
    """The step of many small parameters by one compiled loop."""
    grads = [p.grad.contiguous() for p in params]
    addresses, sizes, adapts = [], [], []
    for p, grad, state in zip(params, grads, states, strict=True):
        width = 4 * (p.numel() // max(len(p), 1)) if p.ndim else 4  # bytes
        held = p.data_ptr(), grad.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr()
        for start, stop in pairwise(getattr(p, "segments", None) or (0, len(p) if p.ndim else 1)):
            addresses.append([at + start * width for at in held])
            sizes.append((stop - start) * width // 4)
            adapts.append(group["adapt_1d"] or p.ndim > 1)
    rest = _for_loops(states[0]["step"], group)
    steps().lamb_layers(np.array(addresses), np.array(sizes), np.array(adapts), *rest)
    for p in params:
        torch.autograd.graph.increment_version(p)


def _for_loops(step: int, group: dict[str, Any]) -> tuple[float, ...]:
    """Betas; what corrects the running means, ε and the decay; the rate before the trust ratio, and the clamp."""
    (beta1, beta2), (count, rate) = group["betas"], _count_and_rate(step, group)
    clamp = math.inf if group["clamp"] is None else group["clamp"]
    fixes = 1 / (1 - beta1**count), 1 / (1 - beta2**count)
    return tuple(map(float, (beta1, beta2, *fixes, group["eps"], group["weight_decay"], rate, clamp)))


def _step_small(params: list[Tensor], states: list[dict[str, Any]], moves: list[Tensor], group: dict[str, Any]) -> None:
    """The step of many small parameters on a CPU, where it is the number of calls that takes the time.

    Args:
        params, states: of one dtype and one count of steps.
        moves: zeros in their shapes.
        group: their hyper-parameters.
    """
    means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
    rate = _direction(moves, [p.grad for p in params], means, squares, params, states[0]["step"], group)
    layers = [pair for m, p in zip(moves, params, strict=True) for pair in _layers(m, p)]
    adapts = [group["adapt_1d"] or p.ndim > 1 for _, p in layers]
    adapted = [layer for layer, wanted in zip(layers, adapts, strict=True) if wanted]
    norms = torch._foreach_norm([t for pair in adapted for t in pair]) if adapted else []
    known = iter(torch.stack(norms).tolist() if norms else [])
    trusts = [_trust(next(known), next(known), group) * rate if wanted else rate for wanted in adapts]
    if trusts:
        torch._foreach_mul_([m for m, _ in layers], trusts)
    torch._foreach_add_(params, moves)


def _step_together(params: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]) -> None:
    """The step of parameters on a GPU, in one call for each operation; nothing waits for the device."""
    means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
    moves = [torch.zeros_like(p) for p in params]
    rate = _direction(moves, [p.grad for p in params], means, squares, params, states[0]["step"], group)
    adapted = [p.ndim > 1 or group["adapt_1d"] for p in params]
    plain = [m for m, adapts in zip(moves, adapted, strict=True) if not adapts]
    layers = [pair for m, p, adapts in zip(moves, params, adapted, strict=True) if adapts for pair in _layers(m, p)]
    if plain:
        torch._foreach_mul_(plain, rate)
    if layers:
        move_norm = torch.stack(torch._foreach_norm([m for m, _ in layers]))
        weight_norm = torch.stack(torch._foreach_norm([p for _, p in layers]))
        if group["clamp"] is not None:
            weight_norm = weight_norm.clamp(max=group["clamp"])
        usable = (weight_norm > 0) & (move_norm > 0)
        trust = torch.where(usable, weight_norm / torch.where(usable, move_norm, 1.0), 1.0) * rate
        torch._foreach_mul_([m for m, _ in layers], list(trust.unbind()))
    torch._foreach_add_(params, moves)


def _layers(step: Tensor, p: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A parameter's layers: its own segments, or the whole."""
    bounds = getattr(p, "segments", None) or (0, len(p) if p.ndim else 1)
    sizes = [b - a for a, b in pairwise(bounds)]
    return iter([(step, p)]) if len(sizes) == 1 else zip(step.split(sizes), p.split(sizes), strict=True)
