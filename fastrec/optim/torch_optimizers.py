"""torch's optimizers with row-wise updates of embedding tables: AdamW and LAMB."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import compiled, shared, steps, view
from fastrec.errors import DataError
from fastrec.models.placement.row_store import fade

# Optimizer steps for row-sparse gradients: only the rows of the batch are read and written.
#
# When a row next occurs, the effects of a dense optimizer since its last gradient are caught up. Its running means fade
# by β for every skipped step, and its weights decay by all the rates since then. Only the movement by momentum alone is
# omitted, as in torch's ``SparseAdam``.


class BatchPlaces:
    """Position in a batch of each of its ids, without sorting: one number per row of a table, never cleared."""

    def __init__(self) -> None:
        self._room: dict[torch.device, Tensor] = {}

    def of(self, ids: Tensor, rows: int) -> Tensor:
        """Return for every id, below ``rows``, the same position for all equal ids: int64 ``[n]``."""
        room = self.room(ids, rows)
        room.index_copy_(0, ids, torch.arange(len(ids), device=ids.device))  # one of equal ids wins, no matter which
        return room.index_select(0, ids)

    def room(self, ids: Tensor, rows: int) -> Tensor:
        """Return the numbers, int64, for at least ``rows`` rows; their values are left over from an earlier batch."""
        room = self._room.get(ids.device)
        if room is None or len(room) < rows:
            room = self._room[ids.device] = torch.zeros(rows, dtype=torch.int64, device=ids.device)
        return room


@dataclass(frozen=True)
class SparseRows:
    """The rows of a gradient without duplicates: ids ``[u]`` and gradients ``[u, width]``."""

    ids: Tensor
    grads: Tensor

    @classmethod
    def of(cls, grad: Tensor, places: BatchPlaces | None = None) -> SparseRows:
        """Return the rows of a sparse gradient ``[rows, width]``; gradients of equal rows are added."""
        ids, values = grad._indices()[0], grad._values()
        if grad.is_coalesced():
            return cls(ids, values)
        # without a sort, which costs more than the sums
        place = (places or BatchPlaces()).of(ids, grad.shape[0])
        first = (place == torch.arange(len(ids), device=ids.device)).nonzero().squeeze(1)
        if len(first) == len(ids):
            return cls(ids, values)  # in the batch's order: no sum, no copy
        sums = torch.zeros_like(values).index_add_(0, place, values)
        return cls(ids.index_select(0, first), sums.index_select(0, first))


class RowState:
    """The running means of one parameter ``[rows, width]`` with row-sparse gradients, in an optimizer's state."""

    def __init__(self, state: dict[str, Any], weight: Tensor) -> None:
        self.cache = cache_of(weight)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            # The step up to which each row is updated. Loading a state makes all its tensors float32.
            state["last"] = self._zeros(weight, "last", wide=False)
            state["exp_avg_sq"] = self._zeros(weight, "exp_avg_sq")
            state["decay"] = 0.0  # logarithm of the total weight decay
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
        # a row that occurs later decays by the difference of two of these
        state["decays"][step] = state["decay"]
        return step

    def take(self, ids: Tensor, betas: tuple[float, float], *, decays: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return copies of weights, means and mean squares of distinct rows as of this step: ``[u, width]``.

        Without momentum (β1 = 0) no mean is stored.
        """
        state, step = self.state, int(self.state["step"])
        weights, square = self.weight.index_select(0, ids), state["exp_avg_sq"].index_select(0, ids)
        last = state["last"].index_select(0, ids)
        left_out = (step - 1 - last).unsqueeze(1)
        mean = self.mean().index_select(0, ids) if betas[0] else torch.zeros_like(weights)
        fade({"exp_avg_sq": square, **({"exp_avg": mean} if betas[0] else {})}, left_out, betas)
        if decays:
            weights.mul_((state["decays"][step] - state["decays"].index_select(0, last.long())).exp_().unsqueeze(1))
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
        if self.cache is not None:  # the parameter does not hold all rows
            self.cache.settled(step, betas, state["decays"])
        left_out = (step - state["last"]).unsqueeze(1)
        if not bool((left_out > 0).any()):
            return
        if state["decay"]:
            since = state["decays"].index_select(0, state["last"].long())
            self.weight.mul_((state["decays"][step] - since).exp_().unsqueeze(1).to(self.weight.dtype))
        fade(state, left_out, betas)
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


class RowOptimizer(torch.optim.Optimizer):
    """An optimizer that also takes row-sparse gradients: Adam's step with decoupled weight decay.

    With such a gradient, only the batch's rows are updated. When a row next occurs, the fading of its running means and
    the decay of its weights are caught up. Only the movement by momentum alone is omitted. ``settle`` decays all rows
    up to now.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step over all parameters that have a gradient; return the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # torch's own step would reject sparse gradients
        given = [(p, p.grad, g) for g in self.param_groups for p in g["params"] if p.grad is not None]
        sparse = [one for one in given if one[1].is_sparse]
        for p, _, _ in sparse:
            p.grad = None
        try:
            self._step_dense()
        finally:
            for p, grad, _ in sparse:
                p.grad = grad
        for p, grad, group in sparse:
            self._step_rows(p, grad, group)
        return loss

    @torch.no_grad()
    def settle(self) -> None:
        """Decay all rows of tables with row-sparse gradients up to now."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p) or {}
                if "decays" in state:
                    RowState(state, p).settle(group["betas"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; for tables partly off the device, of all rows."""
        found = super().state_dict()
        for number, p in enumerate(self._parameters()):
            cache = cache_of(p)
            if cache is not None and "last" in found["state"].get(number, {}):
                found["state"][number] = cache.whole_state(found["state"][number])
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from ``state_dict``."""
        state, params = dict(state_dict["state"]), self._parameters()
        whole = {p: state.pop(i) for i, p in enumerate(params) if cache_of(p) is not None and i in state}
        super().load_state_dict({**state_dict, "state": state})
        for p, own in whole.items():
            self.state[p] = cache_of(p).set_whole_state(own)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _step_dense(self) -> None:
        raise NotImplementedError

    def _count_and_rate(self, step: int, group: dict[str, Any]) -> tuple[float, float]:
        return step, float(group["lr"])

    def _step_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, betas = RowState(self.state[p], p), group["betas"]
        count, rate = self._count_and_rate(int(state.state["step"]) + 1, group)
        step = state.begin(rate * group["weight_decay"])
        values = grad._values()
        if compiled(values.numel()) and p.ndim == 2 and _is_plain(p) and _is_plain(values):
            beta1, beta2 = betas
            ids = grad._indices()[0]
            place, sums = self._places.room(ids, len(p)), self._room(values.numel(), values.dtype).view(values.shape)
            mean = state.mean() if beta1 else sums[:0]
            held = (ids, values, p, state.state["exp_avg_sq"], mean, state.state["last"], state.state["decays"])
            rate, fix2 = rate / (1 - beta1**count), 1 / (1 - beta2**count)
            numbers = (step, rate, fix2, beta1, beta2, group["eps"], beta1 > 0, group["weight_decay"] > 0)
            shared(steps().adamw_rows, tuple(map(view, (*held, place, sums))), numbers, numbers=values.numel())
            torch.autograd.graph.increment_version(p)  # autograd does not see the loops' writes
            return
        rows = SparseRows.of(grad, self._places)
        weights, mean, square = state.take(rows.ids, betas, decays=bool(group["weight_decay"]))
        fused_step([weights], [rows.grads], [mean], [square], count, rate, betas, group["eps"])
        state.put(rows.ids, weights, mean, square, momentum=bool(betas[0]))

    @cached_property
    def _places(self) -> BatchPlaces:
        return BatchPlaces()

    @cached_property
    def _rooms(self) -> dict[torch.dtype, Tensor]:
        return {}

    def _room(self, numbers: int, dtype: torch.dtype) -> Tensor:
        # kept between steps: allocating memory takes longer than the step itself
        room = self._rooms.get(dtype)
        if room is None or len(room) < numbers:
            room = self._rooms[dtype] = torch.empty(numbers, dtype=dtype)
        return room[:numbers]


def fused_step(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Take Adam's step in one pass over the memory, changing all tensors except ``grads``."""
    steps = [torch.tensor(float(step), device=weights[0].device)] * len(weights)
    rest = {"beta1": betas[0], "beta2": betas[1], "weight_decay": 0.0, "eps": eps, "amsgrad": False, "maximize": False}
    torch._fused_adamw_(*map(list, (weights, grads, means, squares)), [], steps, lr=lr, **rest)


class AdamW(RowOptimizer, torch.optim.AdamW):
    """Fused AdamW (arXiv 1711.05101); with row-sparse gradients, only the batch's rows are updated (``RowOptimizer``).

    Args:
        params, lr, betas, eps, weight_decay: as for ``torch.optim.AdamW``; weights shrink by ``lr * weight_decay`` per
            step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    def _step_dense(self) -> None:
        torch.optim.AdamW.step(self)


class Lamb(RowOptimizer):
    """LAMB: Adam's step for each layer, rescaled to the layer's own norm (arXiv 1904.00962, algorithm 2).

    Weight decay is inside the trust ratio, as in the paper. A parameter with ``segments`` (row bounds ``(0, …, rows)``)
    counts as one layer per segment; embedding tables use this to share one parameter. With row-sparse gradients, only
    the batch's rows are updated, and both norms of the trust ratio use only these rows.

    Args:
        params, lr, betas, eps: as for ``AdamW``.
        weight_decay: coefficient of the weights in the step.
        clamp: upper limit of the weight norm in the trust ratio (10 in some implementations); None: no limit.
        debias: ``'paper'`` corrects the bias of both running means before the trust ratio is computed; False corrects
            nothing; True scales the step after the trust ratio by ``√(1 - β2^t) / (1 - β1^t)``, like
            ``torch_optimizer.Lamb``.
        adapt_1d: False gives biases and norms (parameters of one dimension) a trust ratio of 1, which is Adam's step: a
            bias starts at zero, and a step in proportion to its norm hardly leaves zero.
        adapt_tables: False gives parameters with ``segments`` a trust ratio of 1, which is AdamW's step.
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
            remedy = "lr, eps and weight_decay must be ≥ 0, betas from 0 up to, not including, 1"
            raise DataError(f"LAMB with lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}", remedy=remedy)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "clamp": clamp}
        super().__init__(params, {**defaults, "debias": debias, "adapt_1d": adapt_1d, "adapt_tables": adapt_tables})

    def _step_dense(self) -> None:
        for group in self.param_groups:
            alike: dict[Any, list[tuple[Tensor, ...]]] = defaultdict(list)
            worth = compiled(sum(p.numel() for p in group["params"] if p.grad is not None))
            # parameters of the same kind and step are updated together: few calls for many small layers
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
        """Return a parameter, its gradient, running mean and mean square in one layout, and the step number."""
        state, grad = self.state[p], p.grad
        if not state:
            zeros = partial(torch.zeros_like, p, memory_format=torch.preserve_format)
            state |= {"step": 0, "exp_avg": zeros(), "exp_avg_sq": zeros()}
        state["step"] += 1
        mean = state["exp_avg"]
        if mean.shape != p.shape:
            problem = f"a parameter is {list(p.shape)} and its running means, which were loaded, are {list(mean.shape)}"
            raise DataError(problem, remedy="Load the optimizer's state of the same model")
        if grad.stride() != mean.stride():
            grad = torch.empty_like(mean).copy_(grad)
        return (p, grad, mean, state["exp_avg_sq"]), state["step"]

    def _step_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        if not _layers(p, group):  # a trust ratio of 1 is AdamW's step
            super()._step_rows(p, grad, group)
            return
        rows, state = SparseRows.of(grad, self._places), RowState(self.state[p], p)
        step = state.begin(0.0)
        placed = getattr(p, "placed", None)  # the parameter holds only some of the tables' rows
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
        """Step by compiled loops on a CPU: one pass over each layer for the norms, one for the update.

        ``held`` is weights, gradients, running means and mean squares; ``layers`` is each parameter's ``_layers``.
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

        torch's fused AdamW subtracts Adam's step from its weights argument. Given ``-decay · w``, it returns the step
        that LAMB rescales. ``total`` sums norms over the rows of all ranks instead of the local ones.
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
        if not on_host(weights[0]):
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
    return on_host(t) and t.dtype == torch.float32 and t.is_contiguous()
