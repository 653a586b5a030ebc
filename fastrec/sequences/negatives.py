"""Items that are drawn to compare right ones with, and the chance that they had to be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BatchItems", "ItemDraw"]


@dataclass(frozen=True)
class BatchItems:
    """Items of a batch, each once.

    Args:
        codes: int64 ``[m]``.
        place: where among them each position's target stands, int64 ``[p]``.
        chance: that each was to be among them, ``[m]``, above 0.
    """

    codes: Tensor
    place: Tensor
    chance: Tensor


class ItemDraw:
    """Draws items for whole batches.

    Args:
        codes: how many codes there are; 0 is never drawn.
        counts: how often each code occurs in training, ``[codes]``; None: all alike.
        sampling: negatives by ``'uniform'`` chance, or by ``'popularity'``.
        device: where to.
    """

    def __init__(self, codes: int, counts: Tensor | None, sampling: str, *, device: torch.device) -> None:
        self.codes, self.device, self.sampling = codes, device, sampling
        counts = torch.ones(codes) if counts is None else counts.float()
        counts = counts.clone()
        counts[0] = 0.0
        self.shares = (counts / counts.sum().clamp_min(1e-12)).to(device)
        self.sums = self.shares.double().cumsum(0)

    def draw(self, negatives: int) -> Tensor:
        """Return codes int64 ``[negatives]``, with replacement."""
        if self.sampling == "popularity":
            point = torch.rand(negatives, device=self.device, dtype=torch.float64) * self.sums[-1]
            return torch.searchsorted(self.sums, point, right=True).clamp_(1, self.codes - 1)
        return torch.randint(1, max(self.codes, 2), (negatives,), device=self.device)

    def among(self, target: Tensor, negatives: int) -> BatchItems:
        """Return the batch's targets and drawn items together.

        The chance of an item: that it is one of as many targets, drawn by how often items occur, or one of the
        negatives.

        Args:
            target: int64 ``[p]``.
            negatives: how many are drawn.
        """
        drawn = torch.cat([target, self.draw(negatives)]) if negatives else target
        mark = torch.zeros(self.codes, dtype=torch.bool, device=self.device)
        mark[drawn] = True
        codes = mark.nonzero().squeeze(1)
        place = torch.empty(self.codes, dtype=torch.int64, device=self.device)
        place[codes] = torch.arange(len(codes), device=self.device)
        absent = torch.log1p(-self.shares[codes].clamp_max(0.999)) * len(target)
        if negatives and self.sampling == "popularity":
            absent += torch.log1p(-self.shares[codes].clamp_max(0.999)) * negatives
        elif negatives:
            absent += torch.log1p(torch.tensor(-1.0 / max(self.codes - 1, 2))) * negatives
        chance = (-torch.expm1(absent)).clamp_min(1e-6)
        return BatchItems(codes, place[target], chance)
