"""``BPR`` and ``PairwiseHinge``: losses over pairs of a list's candidates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.losses._checks import Reduction, _dense_ids, _flat, _reduce, _same_length, _split_targets


class _OverPairs(nn.Module):
    """A loss of the difference between two scores, over all pairs of a list of which one is more relevant."""

    n_out = 1

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def of_difference(self, difference: Tensor) -> Tensor:
        """Return the loss of each pair, from the better row's score less the other's."""
        raise NotImplementedError

    def of_pairs(self, better: Tensor, worse: Tensor) -> Tensor:
        """Compute the loss of given pairs.

        Args:
            better: scores of the more relevant rows, ``[p]`` or ``[p, 1]``, float.

        Returns:
            A scalar, or ``[p]`` where the reduction is ``'none'``.
        """
        better = _flat(better, "scores")
        losses = self.of_difference(better - _same_length(worse, better, "scores of worse rows"))
        return losses.mean() if self.reduction == "mean" else _reduce(losses, self.reduction)

    def forward(self, scores: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Compute the loss over all pairs of rows of one list, the first of them more relevant.

        Args:
            scores: ``[b]`` or ``[b, 1]``, float.
            targets: relevance ≥ 0, ``[b]`` or ``[b, 1]``; or, without ``groups``, ``[b, 2]`` of integers or float64:
                relevance and list id (what a loader makes of two target columns).
            groups: id of each row's list, ``[b]`` or ``[b, 1]``, integers, in any order.

        Returns:
            A scalar: the mean or the sum over pairs; or ``[b]`` where the reduction is ``'none'``: the sum over the
            pairs in which the row is the more relevant one. Without any pair it is 0.
        """
        scores = _flat(scores, "scores")
        if groups is None:
            targets, groups = _split_targets(targets)
        target = _same_length(targets, scores, "targets")
        better, worse = _pairs(target, _dense_ids(_same_length(groups, scores, "groups")))
        losses = self.of_difference(scores[better] - scores[worse])
        if self.reduction == "mean":
            return losses.sum() / max(len(losses), 1)
        if self.reduction == "sum":
            return losses.sum()
        return torch.zeros_like(scores).index_add(0, better, losses)

    def activation(self, scores: Tensor) -> Tensor:
        """Return scores unchanged: they rank, and are no probabilities."""
        return scores


class BPR(_OverPairs):
    """Bayesian personalised ranking: ``-log σ(s_i - s_j)`` of a more and a less relevant row (arXiv 1205.2618).

    Pairs are formed within a list, so batches should hold whole lists.

    Args:
        reduction: ``'mean'`` over pairs, ``'sum'``, or ``'none'``: each row's share.
    """

    def of_difference(self, difference: Tensor) -> Tensor:
        """Return ``-log σ(d)``."""
        return F.softplus(-difference)


class PairwiseHinge(_OverPairs):
    """``max(0, margin - (s_i - s_j))`` of a more and a less relevant row of a list.

    Args:
        margin: difference from which a pair costs nothing.
        reduction: ``'mean'`` over pairs, ``'sum'``, or ``'none'``: each row's share.
    """

    def __init__(self, margin: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def of_difference(self, difference: Tensor) -> Tensor:
        """Return ``max(0, margin - d)``."""
        return F.relu(self.margin - difference)


def _pairs(target: Tensor, lists: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (more relevant, less relevant) of every pair within a list."""
    order = torch.argsort(lists, stable=True)
    sizes = torch.bincount(lists)
    starts = sizes.cumsum(0) - sizes
    rows = (target > 0).nonzero().squeeze(1)  # only these are more relevant than any
    many = sizes[lists[rows]]
    better = rows.repeat_interleave(many)
    within = torch.arange(len(better), device=rows.device) - (many.cumsum(0) - many).repeat_interleave(many)
    worse = order[starts[lists[better]] + within]
    kept = target[better] > target[worse]
    return better[kept], worse[kept]
