"""Outputs and the items that were right → one number: against all items, or against some that are drawn.

All take ``(hidden, target, net)``: outputs ``[b, L, width]``, codes ``[b, L]`` (0: not asked) and the net that made
them, whose item vectors they compare with.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec.errors import DataError
from fastrec.sequences.chunked_loss import linear_cross_entropy
from fastrec.sequences.negatives import ItemDraw
from fastrec.sequences.session_net import SessionNet

__all__ = ["GBCE", "BPRMax", "FullSoftmax", "SampledSoftmax", "SessionLoss"]

Sampling = Literal["uniform", "popularity", "in_batch"]


class SessionLoss(nn.Module):
    """A loss of a net's outputs at the positions that are asked.

    Attributes:
        counts: how often each code occurs in training, ``[codes]``; set by ``session_learner``.
    """

    counts: Tensor | None = None

    def forward(self, hidden: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the mean over the positions that are asked; 0 where none is."""
        asked = target > 0
        return self.of(net.query(hidden[asked]), target[asked], net)

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` whose right items are ``target`` ``[p]``."""
        raise NotImplementedError


class FullSoftmax(SessionLoss):
    """Cross-entropy over all items.

    Args:
        half: see ``linear_cross_entropy``.
    """

    def __init__(self, *, half: bool = False) -> None:
        super().__init__()
        self.half = half

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` whose right items are ``target`` ``[p]``."""
        return linear_cross_entropy(query, net.keys(net.items.all())[1:], target - 1, half=self.half)


class SampledSoftmax(SessionLoss):
    """Cross-entropy over the batch's right items and others that are drawn, the same for all positions.

    An item stands for those that were not drawn: its logit is less by the logarithm of its chance to be among the
    batch's items (logQ; arXiv 2507.09331 says why a position's own target has none).

    Args:
        negatives: how many are drawn, at most.
        sampling: ``'uniform'``, by ``'popularity'``, or only the batch's own (``'in_batch'``).
        log_q: whether logits are corrected.
        half: see ``linear_cross_entropy``.
    """

    def __init__(
        self, negatives: int = 2048, sampling: Sampling = "uniform", *, log_q: bool = True, half: bool = False
    ) -> None:
        super().__init__()
        self.negatives, self.sampling, self.log_q, self.half = negatives, sampling, log_q, half
        self.draw: ItemDraw | None = None

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` whose right items are ``target`` ``[p]``."""
        if self.draw is None:
            self.draw = ItemDraw(net.items.codes, self.counts, self.sampling, device=target.device)
        drawn = self.draw.among(target, self.negatives if self.sampling != "in_batch" else 0)
        keys = net.keys(net.items(drawn.codes))
        if not self.log_q:
            return linear_cross_entropy(query, keys, drawn.place, half=self.half)
        bias = -drawn.chance.log()
        return linear_cross_entropy(query, keys, drawn.place, bias=bias, own=-bias[drawn.place], half=self.half)


class GBCE(SessionLoss):
    """Binary cross-entropy of the right item and of drawn ones, made less sure of itself (gSASRec, arXiv 2308.07192).

    Args:
        negatives: how many items are drawn, the same for all positions.
        calibration: 0 = plain binary cross-entropy, 1 = probabilities are fully calibrated (``t`` in the paper).
    """

    def __init__(self, negatives: int = 256, calibration: float = 0.75) -> None:
        super().__init__()
        if not 0 <= calibration <= 1:
            raise DataError(f"calibration={calibration}", remedy="Give a number from 0 to 1")
        self.negatives, self.calibration = negatives, calibration
        self.draw: ItemDraw | None = None

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` whose right items are ``target`` ``[p]``."""
        self.draw = self.draw or ItemDraw(net.items.codes, None, "uniform", device=target.device)
        codes = self.draw.draw(self.negatives)
        share = min(len(codes) / max(net.items.codes - 1, 1), 1.0)
        beta = share * (self.calibration * (1 - 1 / share) + 1 / share)
        right = (query * net.keys(net.items(target))).sum(1)
        wrong = query @ net.keys(net.items(codes)).T
        wrong = wrong.masked_fill(codes == target.unsqueeze(1), -math.inf)
        return (-beta * F.logsigmoid(right) + F.softplus(wrong).sum(1)).sum() / max(len(target), 1)


class BPRMax(SessionLoss):
    """Pairs of the right item and drawn ones, those with high scores counting most (arXiv 1706.03847).

    Args:
        negatives: how many items are drawn, the same for all positions.
        decay: weight of the drawn items' squared scores.
    """

    def __init__(self, negatives: int = 512, decay: float = 0.01) -> None:
        super().__init__()
        self.negatives, self.decay = negatives, decay
        self.draw: ItemDraw | None = None

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` whose right items are ``target`` ``[p]``."""
        self.draw = self.draw or ItemDraw(net.items.codes, None, "uniform", device=target.device)
        codes = self.draw.draw(self.negatives)
        right = (query * net.keys(net.items(target))).sum(1, keepdim=True)
        wrong = query @ net.keys(net.items(codes)).T
        itself = codes == target.unsqueeze(1)
        shares = wrong.masked_fill(itself, -1e4).softmax(1).masked_fill(itself, 0.0)
        won = (shares * torch.sigmoid(right - wrong)).sum(1)
        kept = (shares * wrong.square()).sum(1)
        return (-(won + 1e-10).log() + self.decay * kept).sum() / max(len(target), 1)
