"""``AdamW``: torch's fused AdamW, which also takes row-sparse gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fastrec._core.kernels import compiled, shared, steps, view
from fastrec.optim.row_sparse import Places, Rows, RowState

__all__ = ["AdamW"]


class AdamW(torch.optim.AdamW):
    """Fused AdamW (arXiv 1711.05101); of row-sparse gradients only the batch's rows are updated.

    A row's running means fade and its weights decay by what it missed when it comes next, so that only the movement by
    momentum alone is left out (see ``fastrec.optim.row_sparse``). ``settle`` lets all rows decay up to now.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the running square.
        weight_decay: decoupled weight decay; weights shrink by ``lr * weight_decay`` in a step.
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
        self._places, self._room = Places(), None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._places, self._room = Places(), None

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
            if not self._step_on_cpu():
                super().step()
        for p, grad, group in sparse:
            self._step_rows(p, grad, group)
        return loss

    def _step_on_cpu(self) -> bool:
        """The step of dense gradients on a CPU, as torch's own in a third of its Python; whether it was made."""
        if hasattr(self, "found_inf") or hasattr(self, "grad_scale"):  # a gradient scaler's
            return False
        ready = []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            unusual = group["amsgrad"] or group["maximize"] or not group["fused"] or torch.is_tensor(group["lr"])
            if unusual or any(p.device.type != "cpu" or p.dtype != torch.float32 for p in params):
                return False
            ready.append((group, params))
        for group, params in ready:
            if params:
                self._step_group(group, params)
        return True

    def _step_group(self, group: dict[str, Any], params: list[Tensor]) -> None:
        states = [self.state[p] for p in params]
        for p, state in zip(params, states, strict=True):
            if not state:  # as torch lays it out, so that either can go on from the other's
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        steps = [s["step"] for s in states]
        torch._foreach_add_(steps, 1.0)
        torch._fused_adamw_(
            params,
            [p.grad for p in params],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        lr, betas = float(group["lr"]), group["betas"]
        if compiled(grad._values().numel()) and _is_plain(p, grad):
            self._step_compiled(p, grad, group, lr)
            return
        rows, state = Rows.of(grad, self._places), RowState(self.state[p], p)
        step = state.begin(lr * group["weight_decay"])
        weights, mean, square = state.take(rows.ids, betas, decays=bool(group["weight_decay"]))
        fused_step([weights], [rows.grads], [mean], [square], step, lr, betas, group["eps"])
        state.put(rows.ids, weights, mean, square, momentum=bool(betas[0]))

    def _step_compiled(self, p: Tensor, grad: Tensor, group: dict[str, Any], lr: float) -> None:
        state, (beta1, beta2) = RowState(self.state[p], p), group["betas"]
        step = state.begin(lr * group["weight_decay"])
        ids, values = grad._indices()[0], grad._values()
        place, sums = self._places.room(ids, len(p)), self._sums(values)
        mean = state.mean() if beta1 else sums[:0]
        held = (ids, values, p, state.state["exp_avg_sq"], mean, state.state["last"], state.state["decays"])
        given = (*map(view, (*held, place, sums)), step, lr, beta1, beta2, group["eps"])
        shared(steps().adamw_rows, *given, beta1 > 0, group["weight_decay"] > 0, numbers=values.numel())
        torch.autograd.graph.increment_version(p)

    def _sums(self, like: Tensor) -> Tensor:
        """Room for as many sums, kept from step to step."""
        if self._room is None or self._room.numel() < like.numel():
            self._room = torch.empty(like.numel())
        return self._room[: like.numel()].view(like.shape)

    @torch.no_grad()
    def settle(self) -> None:
        """Let all rows of tables with row-sparse gradients decay up to now."""
        settle(self)


@contextmanager
def without_sparse(groups: list[dict[str, Any]]) -> Iterator[list[tuple[Tensor, Tensor, dict[str, Any]]]]:
    """While it lasts, parameters with a sparse gradient have none; gives these, their gradients and groups."""
    sparse = [(p, p.grad, g) for g in groups for p in g["params"] if p.grad is not None and p.grad.is_sparse]
    for p, _, _ in sparse:
        p.grad = None
    try:
        yield sparse
    finally:
        for p, grad, _ in sparse:
            p.grad = grad


def _is_plain(p: Tensor, grad: Tensor) -> bool:
    """Whether the compiled loop takes it: float32 matrices on a CPU."""
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
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """AdamW's step in one pass over the memory: all tensors but ``grads`` are changed.

    Args:
        weights, grads, means, squares: equally many tensors on one device, those of one place of one shape.
        step: which step it is, from 1.
        lr, betas, eps, weight_decay: as in ``AdamW``.
    """
    count = torch.tensor(float(step), device=weights[0].device)
    torch._fused_adamw_(
        list(weights),
        list(grads),
        list(means),
        list(squares),
        [],
        [count] * len(weights),
        amsgrad=False,
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Let all rows of an optimizer's row-sparse parameters decay up to now."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p) or {}
            if "decays" in state:
                RowState(state, p).settle(group["betas"])
