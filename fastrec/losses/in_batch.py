"""``InBatchSoftmax``: every other row's item of the batch as a negative."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.losses._checks import Reduction, _like, _reduce, _same_length


class PairScores(Tensor):
    """The scores ``[b, 1]`` of a batch's own pairs, which know the vectors that they come from.

    It is a tensor as any other, and what is computed from it is a plain one.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    queries: Tensor
    items: Tensor
    ids: Tensor | None

    @classmethod
    def of(cls, queries: Tensor, items: Tensor, ids: Tensor | None = None) -> PairScores:
        """Scores of each row's own pair.

        Args:
            queries: ``[b, d]``, divided by the temperature.
            items: ``[b, d]``.
            ids: each row's item, integers ``[b]``; None: all differ.
        """
        scores = (queries * items).sum(1, keepdim=True).as_subclass(cls)
        scores.queries, scores.items, scores.ids = queries, items, ids
        return scores


class InBatchSoftmax(nn.Module):
    """Softmax cross-entropy in which a row's item competes with the items of the batch's other rows.

    For row i: ``-log(exp c_ii / Σ_j exp c_ij)`` with ``c_ij = s_ij - log q_j``, where q is the chance of item j to be
    in a batch: without it popular items, which come as others' negatives often, would be held down (Yi et al., RecSys
    2019, section 3). Rows with the same item are no negatives of each other.

    Args:
        log_q: logarithm of each item's frequency by id, ``[items]`` (``item_log_q``); None: no correction.
        reduction: ``'mean'`` over the rows that count (by weight), ``'sum'``, or ``'none'``.
    """

    n_out = 1

    def __init__(self, log_q: Tensor | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.register_buffer("log_q", log_q)
        self.reduction = reduction

    def forward(self, scores: Tensor, targets: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """Compute the loss.

        Args:
            scores: what ``TwoTower`` returns for a batch; or all scores ``[b, b]``, row i's own item in column i.
            targets: how much each row counts as a positive, ≥ 0, ``[b]`` or ``[b, 1]``; a row of 0 lends its item to
                others and has no loss of its own. None: all count 1.
            ids: each row's item, integers ``[b]``; None: as ``TwoTower`` has it, else all differ.

        Returns:
            A scalar, or ``[b]`` where the reduction is ``'none'``.

        Raises:
            DataError: scores of another form, targets or ids of another length, or ``log_q`` without ids.
        """
        matrix, ids = _all_scores(scores, ids)
        own = matrix.diagonal()
        weights = torch.ones_like(own) if targets is None else _like(targets, own, "targets")
        if ids is not None:
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

    def activation(self, scores: Tensor) -> Tensor:
        """Scores as they are: they rank, and are no probabilities."""
        return scores


def _all_scores(scores: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if isinstance(scores, PairScores):
        queries, items = scores.queries, scores.items
        exact = torch.promote_types(queries.dtype, torch.float32)  # bfloat16 would round scores of 20 to eighths
        with torch.autocast(scores.device.type, enabled=False):
            return queries.to(exact) @ items.to(exact).T, scores.ids if ids is None else ids
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise DataError(
            f"scores of shape {list(scores.shape)} do not compare every row with every item",
            remedy="Give what TwoTower returns, before anything is computed from it, or scores [b, b]",
        )
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores, ids
