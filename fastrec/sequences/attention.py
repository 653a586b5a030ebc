"""Blocks of attention over sessions, from stock parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec.sequences.byte_dropout import ByteDropout

__all__ = ["LiGRBlock", "SelfAttention", "TransformerBlock", "padding_mask"]


def padding_mask(lengths: Tensor, width: int) -> Tensor:
    """Return which positions each position may attend to where all of a session are seen: bool ``[b, 1, 1, width]``.

    An empty session sees its first position, which is padding: nothing at all would be no number.
    """
    place = torch.arange(width, device=lengths.device)
    return (place < lengths.clamp_min(1).unsqueeze(1))[:, None, None, :]


class SelfAttention(nn.Module):
    """Attention of a session's events to each other (``scaled_dot_product_attention``).

    Args:
        width: of inputs and outputs.
        heads: how many.
        dropout: share of attention that is dropped.
    """

    def __init__(self, width: int, heads: int = 1, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``; without a mask events see those before them and themselves.

        Args:
            x: ``[b, L, width]``.
            mask: of what is seen, or what is added to the logits, ``[b or 1, heads or 1, L, seen]``.
            other: what is looked at, ``[b, seen, width]``; None: ``x``.
        """
        b, length, width = x.shape
        if other is None:
            q, k, v = self.read(x).chunk(3, -1)
        else:
            q = F.linear(x, self.read.weight[:width], self.read.bias[:width])
            k, v = F.linear(other, self.read.weight[width:], self.read.bias[width:]).chunk(2, -1)
        q, k, v = (t.view(b, t.shape[1], self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=dropout)
        return self.write(found.transpose(1, 2).reshape(b, length, width))


class TransformerBlock(nn.Module):
    """Attention, then a small net at each position, each added to what it reads after a norm of it.

    Args:
        width, heads, dropout: see ``SelfAttention``.
        inner: width inside of the net; None: twice ``width``.
        attention_dropout: share of attention that is dropped; None: ``dropout``.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        inner: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
    ) -> None:
        super().__init__()
        inner = inner or 2 * width
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        of_attention = dropout if attention_dropout is None else attention_dropout
        self.attention = SelfAttention(width, heads, dropout=of_attention)
        self.net = nn.Sequential(nn.Linear(width, inner), nn.GELU(), ByteDropout(dropout), nn.Linear(inner, width))
        self.dropout = ByteDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``, see ``SelfAttention``."""
        other = None if other is None else self.before_attention(other)
        x = x + self.dropout(self.attention(self.before_attention(x), mask, other))
        return x + self.dropout(self.net(self.before_net(x)))


class LiGRBlock(nn.Module):
    """A block with learned gates on what is added, and SwiGLU as its net (LiGR, arXiv 2502.03417; eSASRec, 2508.06450).

    Args:
        width, heads, dropout: see ``SelfAttention``.
        inner: width inside of the net; None: four thirds of ``width``, so that it has about as many weights as a plain
            block's.
        attention_dropout: share of attention that is dropped; None: ``dropout``.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        inner: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
    ) -> None:
        super().__init__()
        inner = inner or 4 * width // 3
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        of_attention = dropout if attention_dropout is None else attention_dropout
        self.attention = SelfAttention(width, heads, dropout=of_attention)
        self.gate_attention, self.gate_net = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.dropout = ByteDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``."""
        gate = torch.sigmoid(self.gate_attention(x))
        x = x + self.dropout(gate * self.attention(self.before_attention(x), mask))
        gate = torch.sigmoid(self.gate_net(x))
        value, switch = self.up(self.before_net(x)).chunk(2, -1)
        return x + self.dropout(gate * self.down(F.silu(switch) * value))
