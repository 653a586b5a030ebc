"""``AdamW``: torch's fused AdamW, which also takes row-sparse gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fastrec.optim.row_optimizer import RowOptimizer, fused_step

__all__ = ["AdamW"]


class AdamW(RowOptimizer, torch.optim.AdamW):
    """Fused AdamW (arXiv 1711.05101); of row-sparse gradients only the batch's rows are updated (``RowOptimizer``).

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

    def _step_dense(self) -> None:
        if not self._step_on_cpu():
            torch.optim.AdamW.step(self)

    def _step_on_cpu(self) -> bool:
        """Step dense gradients on a CPU with a third of torch's Python; return whether it was possible."""
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
        grads, means, squares = ([p.grad for p in params], *([s[k] for s in states] for k in ("exp_avg", "exp_avg_sq")))
        fused_step(
            params, grads, means, squares, steps, group["lr"], group["betas"], group["eps"], group["weight_decay"]
        )
