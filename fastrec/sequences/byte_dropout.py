"""``ByteDropout``: dropout whose draws are bytes, several times as fast on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ByteDropout"]


class ByteDropout(nn.Dropout):
    """``nn.Dropout``; on a CPU a number's fate is one byte, eight of which are drawn at once.

    PyTorch draws a number of 32 or 64 bits for each: in a small net over long sessions that is a quarter of a training
    step. The share that is dropped is the nearest multiple of 1/256, and what stays is divided by just what is kept,
    so that the mean is right.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with some numbers 0 and the others larger; while it does not train, ``x``."""
        level = round(self.p * 256)
        if not self.training or x.device.type != "cpu" or not 0 < level < 256:
            return F.dropout(x, self.p, self.training)
        count = x.numel()
        drawn = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
        kept = (drawn[:count].view(x.shape) >= level).to(x.dtype)
        return x * kept.mul_(256 / (256 - level))
