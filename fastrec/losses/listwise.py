"""``ListwiseSoftmax``: the softmax over a list's candidates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastrec.losses._checks import Reduction, _dense_ids, _flat, _like, _reduce, _same_length, _split_targets


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

    def denominator(self, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Count the lists with a positive, over which ``'mean'`` is taken, a scalar.

        By it the means of several processes' batches become one mean.

        Args:
            targets, groups: as for the loss.
        """
        if groups is None:
            targets, groups = _split_targets(targets)
        lists = _dense_ids(_flat(groups, "groups"))
        total = torch.zeros(len(lists), device=lists.device).index_add_(0, lists, _flat(targets, "targets").float())
        return (total > 0).sum()

    def forward(self, scores: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Compute the loss.

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


def _log_sum_exp(scores: Tensor, lists: Tensor) -> Tensor:
    """Return ``[b]``: by list id, the logarithm of the sum of its rows' exponentials; 0 if no row has the id."""
    rough = scores.detach()
    top = torch.zeros_like(rough).scatter_reduce_(0, lists, rough, "amax", include_self=False)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    sums = torch.zeros_like(scores).index_add(0, lists, (scores - top[lists]).exp())
    return torch.where(sums > 0, sums, torch.ones_like(sums)).log() + top
