"""Losses for clicks and for ranked lists."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError

Reduction = Literal["mean", "sum", "none"]


class BCE(nn.Module):
    """Binary cross-entropy on logits, with label smoothing.

    ``loss = -(y' log σ(s) + (1 - y') log(1 - σ(s)))`` with ``y' = y (1 - ε) + ε / 2``
    (label smoothing: arXiv 1512.00567, section 7, for two classes).

    Args:
        smoothing: ε, from 0 up to, not including, 1.
        reduction: ``'mean'`` (by weight, where weights are given), ``'sum'`` or ``'none'``.

    Raises:
        DataError: ``smoothing`` out of its range.
    """

    n_out = 1

    def __init__(self, *, smoothing: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        if not 0 <= smoothing < 1:
            raise DataError(f"label smoothing of {smoothing}", remedy="Give a number from 0 up to, not including, 1")
        self.smoothing, self.reduction = smoothing, reduction

    def forward(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss.

        Args:
            scores: logits ``[b]`` or ``[b, 1]``, float.
            targets: 0, 1 or probabilities, ``[b]`` or ``[b, 1]``, bool, integer or float.
            weights: weight of each row ``[b]`` or ``[b, 1]``, ≥ 0; all 1 by default.

        Returns:
            A scalar, or ``[b]`` where the reduction is ``'none'``.

        Raises:
            DataError: scores, targets and weights are not equally many.
        """
        scores = _flat(scores, "scores")
        target = _like(targets, scores, "targets")
        losses = F.binary_cross_entropy_with_logits(
            scores, target * (1 - self.smoothing) + self.smoothing / 2, reduction="none"
        )
        if weights is None:
            return losses.mean() if self.reduction == "mean" else _reduce(losses, self.reduction)
        weight = _like(weights, scores, "weights")
        if self.reduction == "mean":
            return (losses * weight).sum() / weight.sum()
        return _reduce(losses * weight, self.reduction)

    def activation(self, scores: Tensor) -> Tensor:
        """Probabilities of a click, from logits of any shape."""
        return scores.sigmoid()

    def decodes(self, probabilities: Tensor) -> Tensor:
        """1 where the probability (``[b]`` or ``[b, 1]``) is at least one half, else 0; ``[b]``, int64."""
        return (_flat(probabilities, "probabilities") >= 0.5).long()


class ListwiseSoftmax(nn.Module):
    """Softmax cross-entropy over each list's candidates (ListNet's top-one loss; Cao et al., ICML 2007, section 5).

    For a list with scores s and targets y: ``-Σ_i y_i / Σ_j y_j · (s_i - log Σ_j exp s_j)``. Lists without a positive
    target count nothing. The softmax runs over those candidates of a list that are in the batch, so batches should
    hold whole lists.

    Args:
        reduction: ``'mean'`` over the lists with a positive, ``'sum'``, or ``'none'``: each row's share.
    """

    n_out = 1

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """The loss.

        Args:
            scores: ``[b]`` or ``[b, 1]``, float.
            targets: relevance ≥ 0, ``[b]`` or ``[b, 1]``; or, without ``groups``, ``[b, 2]`` of integers or float64:
                relevance and list id (what a loader makes of two target columns).
            groups: id of each row's list, ``[b]`` or ``[b, 1]``, integers, in any order.

        Returns:
            A scalar, or ``[b]`` where the reduction is ``'none'``.

        Raises:
            DataError: list ids are missing or not exact, or the lengths differ.
        """
        scores = _flat(scores, "scores")
        if groups is None:
            targets, groups = _split_targets(targets)
        target = _like(targets, scores, "targets")
        lists = _dense_ids(_same_length(groups, scores, "groups"))
        total = torch.zeros_like(scores).index_add_(0, lists, target)
        log_z = _log_sum_exp(scores, lists)
        share = target / torch.where(total > 0, total, torch.ones_like(total))[lists]
        losses = torch.where(share > 0, share * (log_z[lists] - scores), 0.0)  # a masked score of -inf costs nothing
        if self.reduction == "mean":
            return losses.sum() / (total > 0).sum().clamp(min=1)
        return _reduce(losses, self.reduction)


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
    """Ids from 0 up, less than the number of rows: without a count of lists there is no wait for the device."""
    ordered, order = torch.sort(groups)
    new = torch.zeros_like(order)
    new[1:] = (ordered[1:] != ordered[:-1]).long()
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))


def _log_sum_exp(scores: Tensor, lists: Tensor) -> Tensor:
    """``[b]``: by list id, the logarithm of the sum of its rows' exponentials; 0 where no row has the id."""
    rough = scores.detach()
    top = torch.zeros_like(rough).scatter_reduce_(0, lists, rough, "amax", include_self=False)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    sums = torch.zeros_like(scores).index_add(0, lists, (scores - top[lists]).exp())
    return torch.where(sums > 0, sums, torch.ones_like(sums)).log() + top
