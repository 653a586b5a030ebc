"""``BCE``: binary cross-entropy, with weights and smoothed labels."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.losses.lists import Reduction, _flat, _reduce, _same_length


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
