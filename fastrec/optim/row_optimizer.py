"""``RowOptimizer``: what AdamW and LAMB share: a way for dense gradients, and Adam's step of a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fastrec._core.kernels import compiled, shared, steps, view
from fastrec.optim.row_sparse import BatchPlaces, RowState, SparseRows, cache_of

__all__ = ["RowOptimizer", "fused_step"]


class RowOptimizer(torch.optim.Optimizer):
    """An optimizer that also takes row-sparse gradients: Adam's step with decoupled decay, of the batch's rows alone.

    A row's running means fade and its weights decay by what it missed when it comes next, so that only the movement by
    momentum alone is left out (see ``fastrec.optim.row_sparse``). ``settle`` lets all rows decay up to now.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step over all parameters that have a gradient.

        Returns:
            The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # torch's own step would refuse sparse gradients
        with _without_sparse(self.param_groups) as sparse:
            self._step_dense()
        for p, grad, group in sparse:
            self._step_rows(p, grad, group)
        return loss

    @torch.no_grad()
    def settle(self) -> None:
        """Let all rows of tables with row-sparse gradients decay up to now."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p) or {}
                if "decays" in state:
                    RowState(state, p).settle(group["betas"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; of tables partly off the device, of all rows."""
        found = super().state_dict()
        for number, p in enumerate(self._parameters()):
            cache = cache_of(p)
            if cache is not None and "last" in found["state"].get(number, {}):
                found["state"][number] = cache.whole_state(found["state"][number])
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of ``state_dict``."""
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
        if compiled(grad._values().numel()) and _is_plain(p, grad):
            self._step_rows_compiled(state, grad, group, step, count, rate)
            return
        rows = SparseRows.of(grad, self._places)
        weights, mean, square = state.take(rows.ids, betas, decays=bool(group["weight_decay"]))
        fused_step([weights], [rows.grads], [mean], [square], count, rate, betas, group["eps"])
        state.put(rows.ids, weights, mean, square, momentum=bool(betas[0]))

    def _step_rows_compiled(
        self, state: RowState, grad: Tensor, group: dict[str, Any], step: int, count: float, rate: float
    ) -> None:
        p, (beta1, beta2) = state.weight, group["betas"]
        ids, values = grad._indices()[0], grad._values()
        place, sums = self._places.room(ids, len(p)), self._room(values.numel(), values.dtype).view(values.shape)
        mean = state.mean() if beta1 else sums[:0]
        held = (ids, values, p, state.state["exp_avg_sq"], mean, state.state["last"], state.state["decays"])
        rate, fix2 = rate / (1 - beta1**count), 1 / (1 - beta2**count)
        given = (*map(view, (*held, place, sums)), step, rate, fix2, beta1, beta2, group["eps"])
        shared(steps().adamw_rows, *given, beta1 > 0, group["weight_decay"] > 0, numbers=values.numel())
        torch.autograd.graph.increment_version(p)

    @cached_property
    def _places(self) -> BatchPlaces:
        return BatchPlaces()

    @cached_property
    def _rooms(self) -> dict[torch.dtype, Tensor]:
        return {}

    def _room(self, numbers: int, dtype: torch.dtype) -> Tensor:
        # kept from step to step: fetching memory anew takes longer than the step itself
        room = self._rooms.get(dtype)
        if room is None or len(room) < numbers:
            room = self._rooms[dtype] = torch.empty(numbers, dtype=dtype)
        return room[:numbers]


@contextmanager
def _without_sparse(groups: list[dict[str, Any]]) -> Iterator[list[tuple[Tensor, Tensor, dict[str, Any]]]]:
    """Remove sparse gradients within the block; yield their parameters, gradients and groups."""
    sparse = [(p, p.grad, g) for g in groups for p in g["params"] if p.grad is not None and p.grad.is_sparse]
    for p, _, _ in sparse:
        p.grad = None
    try:
        yield sparse
    finally:
        for p, grad, _ in sparse:
            p.grad = grad


def _is_plain(p: Tensor, grad: Tensor) -> bool:
    values = grad._values()
    return (
        p.device.type == "cpu"
        and p.ndim == 2
        and p.dtype == values.dtype == torch.float32
        and p.is_contiguous()
        and values.is_contiguous()
    )


def fused_step(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    step: float | Sequence[Tensor],
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """Take Adam's step in one pass over the memory: all tensors but ``grads`` are changed.

    Args:
        lr, betas, eps: as in ``AdamW``.
    """
    if isinstance(step, int | float):
        step = [torch.tensor(float(step), device=weights[0].device)] * len(weights)
    torch._fused_adamw_(
        list(weights),
        list(grads),
        list(means),
        list(squares),
        [],
        list(step),
        amsgrad=False,
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )
