"""Losses of rows (binary cross-entropy) and over lists (softmax, pairs, in-batch negatives), and their checks."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError

Reduction = Literal["mean", "sum", "none"]


def _flat(x: Tensor, what: str) -> Tensor:
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1:
        raise DataError(f"{what} of shape {list(x.shape)}", remedy="Give [b] or [b, 1]: a model with one output")
    # sums of exponentials need more precision than half floats have
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _same_length(x: Tensor, scores: Tensor, what: str) -> Tensor:
    x = _flat(x, what)
    if len(x) != len(scores):
        raise DataError(f"{len(x)} {what} for {len(scores)} scores", remedy="Give one for each row of the batch")
    return x


def _in_lists(scores: Tensor, targets: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and targets ``[b]`` of a loss of lists, and the number of each row's list."""
    scores = _flat(scores, "scores")
    if groups is None:
        targets, groups = _split_targets(targets)
    return scores, _same_length(targets, scores, "targets"), _dense_ids(_same_length(groups, scores, "groups"))


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
    # consecutive numbers from 0, so that sums by list are short
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))


class _RankingLoss(nn.Module):
    """A loss of scores that rank: the model has one output, and scores are no probabilities."""

    n_out = 1

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def activation(self, scores: Tensor) -> Tensor:
        """Return scores unchanged."""
        return scores


class ListwiseSoftmax(_RankingLoss):
    """Softmax cross-entropy over each list's candidates (ListNet's top-one loss; Cao et al., ICML 2007, section 5).

    For a list with scores s and targets y: ``-Σ_i y_i / Σ_j y_j · (s_i - log Σ_j exp s_j)``. Lists without a positive
    target are ignored. The softmax covers only the candidates of a list that are in the batch, so batches should
    contain whole lists.

    Args:
        reduction: ``'mean'`` over the lists with a positive, ``'sum'``, or ``'none'``: each row's share.
    """

    def denominator(self, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Count the lists with a positive, a scalar: the weight for combining the means of several processes."""
        if groups is None:
            targets, groups = _split_targets(targets)
        lists = _dense_ids(_flat(groups, "groups"))
        total = torch.zeros(len(lists), device=lists.device).index_add_(0, lists, _flat(targets, "targets").float())
        return (total > 0).sum()

    def forward(self, scores: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Compute the loss: a scalar, or ``[b]`` if the reduction is ``'none'``.

        Args:
            scores: ``[b]`` or ``[b, 1]``, float.
            targets: relevance ≥ 0, ``[b]`` or ``[b, 1]``; or, without ``groups``, ``[b, 2]`` of integers or float64:
                relevance and list id (as from a loader with two target columns).
            groups: id of each row's list, ``[b]`` or ``[b, 1]``, integers, in any order.
        """
        scores, target, lists = _in_lists(scores, targets, groups)
        target = target.to(scores.dtype)
        total = torch.zeros_like(scores).index_add_(0, lists, target)
        log_z = _log_sum_exp(scores, lists)
        share = target / torch.where(total > 0, total, torch.ones_like(total))[lists]
        losses = torch.where(share > 0, share * (log_z[lists] - scores), 0.0)  # a masked score of -inf adds nothing
        if self.reduction == "mean":
            return losses.sum() / (total > 0).sum().clamp(min=1)
        return _reduce(losses, self.reduction)


def _log_sum_exp(scores: Tensor, lists: Tensor) -> Tensor:
    """Return ``[b]``: by list id, the logarithm of the sum of its rows' exponentials; 0 if no row has the id."""
    rough = scores.detach()
    # minus the list's highest score, so that no exponential overflows
    top = torch.zeros_like(rough).scatter_reduce_(0, lists, rough, "amax", include_self=False)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    sums = torch.zeros_like(scores).index_add(0, lists, (scores - top[lists]).exp())
    return torch.where(sums > 0, sums, torch.ones_like(sums)).log() + top


class BPR(_RankingLoss):
    """Bayesian personalised ranking: ``-log σ(s_i - s_j)`` of a more and a less relevant row (arXiv 1205.2618).

    Pairs are formed within a list, so batches should contain whole lists.

    Args:
        reduction: ``'mean'`` over pairs, ``'sum'``, or ``'none'``: each row's share.
    """

    def forward(self, scores: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
        """Compute the loss over all pairs of rows in the same list, where the first row is more relevant.

        Args:
            scores, targets, groups: as for ``ListwiseSoftmax``.

        Returns:
            A scalar: the mean or the sum over pairs; or ``[b]`` if the reduction is ``'none'``: the sum over the pairs
            in which the row is the more relevant one. Without any pair it is 0.
        """
        scores, target, lists = _in_lists(scores, targets, groups)
        better, worse = _pairs(target, lists)
        losses = F.softplus(scores[worse] - scores[better])
        if self.reduction == "none":
            return torch.zeros_like(scores).index_add(0, better, losses)
        return losses.sum() / (max(len(losses), 1) if self.reduction == "mean" else 1)


def _pairs(target: Tensor, lists: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (more relevant, less relevant) of every pair within a list."""
    order = torch.argsort(lists, stable=True)
    sizes = torch.bincount(lists)
    starts = sizes.cumsum(0) - sizes
    rows = (target > 0).nonzero().squeeze(1)  # only these are more relevant than any other
    many = sizes[lists[rows]]
    better = rows.repeat_interleave(many)
    within = torch.arange(len(better), device=rows.device) - (many.cumsum(0) - many).repeat_interleave(many)
    worse = order[starts[lists[better]] + within]
    kept = target[better] > target[worse]  # equal relevance makes no pair
    return better[kept], worse[kept]


class PairScores(Tensor):
    """The scores ``[b, 1]`` of a batch's own pairs, with the vectors that they were computed from.

    It is a tensor like any other; results computed from it are plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    queries: Tensor
    items: Tensor
    ids: Tensor | None

    @classmethod
    def of(cls, queries: Tensor, items: Tensor, ids: Tensor | None = None) -> PairScores:
        """Score each row's own pair of queries ``[b, d]``, over the temperature, and items; ``ids``: each row's."""
        scores = (queries * items).sum(1, keepdim=True).as_subclass(cls)
        scores.queries, scores.items, scores.ids = queries, items, ids
        return scores


class InBatchSoftmax(_RankingLoss):
    """Softmax cross-entropy in which a row's item competes with the items of the batch's other rows.

    For row i: ``-log(exp c_ii / Σ_j exp c_ij)`` with ``c_ij = s_ij - log q_j``, where q_j is the probability of item j
    in a batch. Without this correction, popular items would score too low, because they are often negatives of other
    rows (Yi et al., RecSys 2019, section 3). Rows with the same item are not negatives of each other.

    Args:
        log_q: logarithm of each item's frequency by id, ``[items]`` (``item_log_q``); None: no correction.
        reduction: ``'mean'`` over the rows that count (by weight), ``'sum'``, or ``'none'``.
    """

    def __init__(self, log_q: Tensor | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("log_q", log_q)

    def forward(self, scores: Tensor, targets: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """Compute the loss: a scalar, or ``[b]`` if the reduction is ``'none'``.

        Args:
            scores: the output of ``TwoTower`` for a batch; or all scores ``[b, b]``, row i's own item in column i.
            targets: weight of each row as a positive, ≥ 0, ``[b]`` or ``[b, 1]``; a row of 0 only serves as a negative
                for others. None: all weights are 1.
            ids: each row's item, integers ``[b]``; ``log_q`` needs it. None: those of ``TwoTower``, or else all differ.
        """
        matrix, ids = _all_scores(scores, ids)
        own = matrix.diagonal()
        weights = torch.ones_like(own) if targets is None else _same_length(targets, own, "targets").to(own.dtype)
        if ids is not None:  # rows of the same item are not negatives of each other
            ids = _same_length(ids, own, "ids")
            twins = (ids[:, None] == ids).fill_diagonal_(False)
            matrix = matrix.masked_fill(twins, -torch.inf)
        if self.log_q is not None:
            if ids is None:
                raise DataError("log_q needs to know each row's item", remedy="Give ids, or use TwoTower(item_id=…)")
            matrix = matrix - self.log_q.to(matrix)[ids.long()]
        losses = torch.where(weights > 0, weights * (torch.logsumexp(matrix, 1) - matrix.diagonal()), 0.0)
        if self.reduction == "mean":
            total = weights.sum()
            return losses.sum() / torch.where(total > 0, total, torch.ones_like(total))
        return _reduce(losses, self.reduction)


def _all_scores(scores: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if isinstance(scores, PairScores):
        queries, items = scores.queries, scores.items
        exact = torch.promote_types(queries.dtype, torch.float32)  # bfloat16 would round scores of 20 to eighths
        with torch.autocast(scores.device.type, enabled=False):
            return queries.to(exact) @ items.to(exact).T, scores.ids if ids is None else ids
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        remedy = "Give what TwoTower returns, before anything is computed from it, or scores [b, b]"
        raise DataError(f"scores of shape {list(scores.shape)} do not compare every row with every item", remedy=remedy)
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores, ids


class BCE(nn.Module):
    """Binary cross-entropy on logits, with label smoothing.

    ``loss = -(y' log σ(s) + (1 - y') log(1 - σ(s)))`` with ``y' = y (1 - ε) + ε / 2``
    (label smoothing: arXiv 1512.00567, section 7, for two classes).

    Args:
        smoothing: ε, at least 0 and below 1.
        reduction: ``'mean'`` (weighted if weights are given), ``'sum'`` or ``'none'``.
    """

    n_out = 1

    def __init__(self, *, smoothing: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__()
        if not 0 <= smoothing < 1:
            raise DataError(f"label smoothing of {smoothing}", remedy="Give a number from 0 up to, not including, 1")
        self.smoothing, self.reduction = smoothing, reduction

    def forward(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the loss: a scalar, or ``[b]`` if the reduction is ``'none'``.

        Args:
            scores: logits ``[b]`` or ``[b, 1]``, float.
            targets: 0, 1 or probabilities, ``[b]`` or ``[b, 1]``, bool, integer or float.
            weights: weight of each row ``[b]`` or ``[b, 1]``, ≥ 0; all 1 by default.
        """
        scores = _flat(scores, "scores")
        target = _same_length(targets, scores, "targets").to(scores.dtype)
        target = target * (1 - self.smoothing) + self.smoothing / 2
        losses = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
        if weights is None:
            return losses.mean() if self.reduction == "mean" else _reduce(losses, self.reduction)
        weight = _same_length(weights, scores, "weights").to(scores.dtype)
        if self.reduction == "mean":
            return (losses * weight).sum() / weight.sum()
        return _reduce(losses * weight, self.reduction)

    def check(self, learn: Any) -> None:
        """Refuse targets in a learner's in-memory rows that this loss cannot take; ``RecLearner.fit`` calls it.

        The loss takes one target, with values from 0 to 1.
        """
        for data in (dl.dataset for dl in learn.dls.loaders):
            y = getattr(data, "y", None)
            if not isinstance(y, Tensor) or y.ndim != 2 or not y.numel():
                continue
            names, bad = list(data.y_names), ((y < 0) | (y > 1)).nonzero()
            if len(bad):
                problem = f"BCE takes targets of 0, 1 or probabilities, and this one is {y[tuple(bad[0])].item():.6g}"
                remedy = "Give two classes as y_block=CategoryBlock; of more, or of amounts, leave loss_func out"
                raise DataError(problem, column=names[int(bad[0, 1])], row=int(data.rows[bad[0, 0]]), remedy=remedy)
            if len(names) > 1:
                problem = f"BCE takes one target, and there are {len(names)}: {', '.join(names[:3])}"
                remedy = "Use fastai's BCEWithLogitsLossFlat()"
                raise DataError(problem, remedy=remedy)

    def activation(self, scores: Tensor) -> Tensor:
        """Convert logits of any shape to probabilities."""
        return scores.sigmoid()

    def decodes(self, probabilities: Tensor) -> Tensor:
        """Return 1 if the probability (``[b]`` or ``[b, 1]``) is at least one half, else 0; ``[b]``, int64."""
        return (_flat(probabilities, "probabilities") >= 0.5).long()
