"""What all losses ask of their arguments."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fastrec.errors import DataError

Reduction = Literal["mean", "sum", "none"]


def _flat(x: Tensor, what: str) -> Tensor:
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1:
        raise DataError(f"{what} of shape {list(x.shape)}", remedy="Give [b] or [b, 1]: a model with one output")
    # sums of exponentials need more than half precision holds
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _same_length(x: Tensor, scores: Tensor, what: str) -> Tensor:
    x = _flat(x, what)
    if len(x) != len(scores):
        raise DataError(f"{len(x)} {what} for {len(scores)} scores", remedy="Give one for each row of the batch")
    return x


def _like(x: Tensor, scores: Tensor, what: str) -> Tensor:
    return _same_length(x, scores, what).to(scores.dtype)


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    return losses if reduction == "none" else losses.sum()


def _split_targets(targets: Tensor) -> tuple[Tensor, Tensor]:
    exact = not targets.is_floating_point() or targets.dtype == torch.float64
    if targets.ndim != 2 or targets.shape[1] != 2 or not exact:
        raise DataError(
            f"no list ids were given, and targets of shape {list(targets.shape)}, {targets.dtype} do not hold them",
            remedy="Give groups, or targets [b, 2] of integers or float64 with the list's id in the second column",
        )
    return targets[:, 0], targets[:, 1]


def _dense_ids(groups: Tensor) -> Tensor:
    ordered, order = torch.sort(groups)
    new = torch.zeros_like(order)
    new[1:] = (ordered[1:] != ordered[:-1]).long()
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))
