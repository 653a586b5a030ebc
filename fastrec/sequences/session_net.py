"""``SessionNet``: base of the nets that compare vectors of sessions with vectors of items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError
from fastrec.sequences.reading import Coding


class ByteDropout(nn.Dropout):
    """``nn.Dropout`` that on a CPU decides each number by one random byte, eight of them from one draw.

    PyTorch draws 32 or 64 bits per number, a quarter of a training step for a small net over long sessions. The dropped
    share is the nearest multiple of 1/256, and the rest is divided by exactly what is kept.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale in training; otherwise return ``x``."""
        level = round(self.p * 256)
        if not self.training or not on_host(x) or not 0 < level < 256:
            return F.dropout(x, self.p, self.training)
        count = x.numel()
        drawn = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
        return x * (drawn[:count].view(x.shape) >= level).to(x.dtype).mul_(256 / (256 - level))


class ItemTower(nn.Module):
    """Vectors of items by their codes; side features make one for an item in no session.

    Args:
        codes: number of codes, 0 included.
        width: of the vectors.
        extra: virtual items after the last code, such as a mask.
        codings, sides: side features of items, as in ``SessionFrame``.
        sparse: row-sparse gradients, for tables much larger than a batch.
    """

    def __init__(
        self,
        codes: int,
        width: int,
        *,
        extra: int = 0,
        codings: Mapping[str, Coding] | None = None,
        sides: Mapping[str, Tensor] | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.codes, self.width, self.codings = codes, width, dict(codings or {})
        self.table = nn.Embedding(codes + extra, width, sparse=sparse)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        with torch.no_grad():
            self.table.weight[0] = 0.0
        self.readers = nn.ModuleList()
        for i, (name, coding) in enumerate(self.codings.items()):
            self.readers.append(_reader(coding, width))
            values = (sides or {})[name]
            self.register_buffer(f"side_{i}", torch.cat([values, values.new_zeros(extra, *values.shape[1:])]))

    def forward(self, codes: Tensor) -> Tensor:
        """Return vectors ``[…, width]`` of codes ``[…]``."""
        vectors = self.table(codes)
        for i, reader in enumerate(self.readers):
            vectors = vectors + reader(getattr(self, f"side_{i}")[codes])
        return vectors

    def all(self) -> Tensor:
        """Return vectors of all codes but virtual items, ``[codes, width]``."""
        if not self.readers:
            return self.table.weight[: self.codes]
        return self(torch.arange(self.codes, device=self.table.weight.device))

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Set vectors ``[codes, at most width]``; rows of zeros, and further columns, keep their values."""
        known = (vectors != 0).any(1)
        self.table.weight[: self.codes][known, : vectors.shape[1]] = vectors[known].to(self.table.weight)


def _reader(coding: Coding, width: int) -> nn.Module:
    if coding.vocab is None:
        return _NumberInput(coding.width, width)
    table: Any = nn.Embedding(len(coding.vocab), width, padding_idx=0)
    nn.init.normal_(table.weight, std=0.02)
    with torch.no_grad():
        table.weight[0] = 0.0  # a missing value adds nothing
    return table


class _NumberInput(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(values if self.linear.in_features > 1 else values.unsqueeze(-1))


# Tasks: functions from sessions ``[b, L]``, padded with 0, and their lengths to inputs and targets of one shape.

Task = Literal["causal", "last", "masked", "permuted", "hidden last", "permuted last"]


@dataclass
class BatchTargets:
    """A batch's inputs and targets."""

    items: Tensor  # int64 ``[b, L]``
    lengths: Tensor  # how many of them count, int64 ``[b]``
    sides: list[Tensor]  # of the same events, ``[b, L]`` each
    target: Tensor  # int64 ``[b, L]``, 0 where nothing is asked


def causal(items: Tensor, lengths: Tensor, sides: list[Tensor], *_: Any) -> BatchTargets:
    """Predict the next item at every event."""
    place = torch.arange(items.shape[1] - 1, device=items.device)
    inputs = items[:, :-1].masked_fill(place >= (lengths - 1).unsqueeze(1), 0)
    return BatchTargets(inputs, lengths - 1, [s[:, :-1] for s in sides], items[:, 1:])


def last(items: Tensor, lengths: Tensor, sides: list[Tensor], *_: Any) -> BatchTargets:
    """Predict the last event from the one before."""
    asked = causal(items, lengths, sides)
    place = torch.arange(asked.items.shape[1], device=items.device)
    asked.target = asked.target.masked_fill(place != (lengths - 2).unsqueeze(1), 0)
    return asked


def masked(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """Hide some events by the code ``mask`` and predict them (Cloze, arXiv 1904.06690).

    At least one event is hidden per session; in every fifth session also the last one, as when predicting the next
    item.
    """
    draw = torch.rand(items.shape, generator=generator).to(items.device)
    place = torch.arange(items.shape[1], device=items.device)
    draw = draw.masked_fill(place >= lengths.unsqueeze(1), 2.0)
    often = torch.rand(len(items), 1, generator=generator).to(items.device) < 0.2
    hidden = (draw < share) | (draw == draw.min(1, keepdim=True).values)
    hidden |= (place == (lengths - 1).unsqueeze(1)) & often
    return BatchTargets(items.masked_fill(hidden, mask), lengths, sides, torch.where(hidden, items, 0))


def permuted(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """Choose events as ``masked`` does without replacing them; a last side gives the order of the hidden ones.

    It is int64 ``[b, L]``: 0 for others, then 1, 2, … in a random order.
    """
    asked = masked(items, lengths, sides, mask, share, generator)
    draw = torch.rand(items.shape, generator=generator).to(items.device)
    hidden = asked.target > 0
    rank = draw.masked_fill(~hidden, 2.0).argsort(1).argsort(1) + 1
    return BatchTargets(items, lengths, [*sides, rank.masked_fill(~hidden, 0)], asked.target)


def hidden_last(items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, *_: Any) -> BatchTargets:
    """Hide the last event and predict it."""
    end = torch.arange(items.shape[1], device=items.device) == (lengths - 1).unsqueeze(1)
    return BatchTargets(items.masked_fill(end, mask), lengths, sides, torch.where(end, items, 0))


def permuted_last(items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, *_: Any) -> BatchTargets:
    """Add to ``hidden_last`` the order that ``permuted`` gives."""
    asked = hidden_last(items, lengths, sides, mask)
    return BatchTargets(items, lengths, [*sides, (asked.target > 0).long()], asked.target)


Heads = Literal["shared", "mmoe", "ple"]


class GoalHeads(nn.Module):
    """Outputs per goal: experts, mixed by the goal's gate and added to the net's output.

    ``'shared'``: one own expert per goal (shared bottom). ``'mmoe'``: common experts (Ma et al. 2018). ``'ple'``:
    common experts and one own (one level of Tang et al. 2020).

    Args:
        kind: which of them.
        goals: number of goals.
        width: of the outputs.
        experts: number of common experts.

    Attributes:
        log_var: learned uncertainty of each goal's loss (Kendall, Gal, Cipolla 2018).
    """

    def __init__(self, kind: Heads, goals: int, width: int, experts: int = 3) -> None:
        super().__init__()
        if kind not in get_args(Heads):
            raise DataError(f"no heads {kind!r}", remedy=f"Choose one of {sorted(get_args(Heads))}")
        common = torch.ones(goals, 0 if kind == "shared" else experts, dtype=torch.bool)
        own = torch.eye(goals, 0 if kind == "mmoe" else goals, dtype=torch.bool)
        self.register_buffer("allowed", torch.cat([common, own], 1), persistent=False)
        count = self.allowed.shape[1]
        self.experts, self.gates = nn.Linear(width, count * width), nn.Linear(width, goals * count)
        self.towers = nn.ModuleList(nn.Linear(width, width) for _ in range(goals))
        for tower in self.towers:  # a goal begins with what the net says
            nn.init.zeros_(tower.weight)
            nn.init.zeros_(tower.bias)
        self.log_var = nn.Parameter(torch.zeros(goals))

    def forward(self, hidden: Tensor, goal: int) -> Tensor:
        """Return a goal's outputs ``[…, width]``."""
        count = self.allowed.shape[1]
        gate = self.gates(hidden).unflatten(-1, (-1, count))[..., goal, :]
        shares = gate.masked_fill(~self.allowed[goal], -torch.inf).softmax(-1)
        mixed = (shares.unsqueeze(-1) * F.gelu(self.experts(hidden)).unflatten(-1, (count, -1))).sum(-2)
        return hidden + self.towers[goal](mixed)


TASKS: dict[str, Callable[..., BatchTargets]] = {
    "causal": causal,
    "last": last,
    "masked": masked,
    "permuted": permuted,
    "hidden last": hidden_last,
    "permuted last": permuted_last,
}


class SessionNet(nn.Module):
    """A net whose outputs are compared with the item vectors that it reads (tied weights).

    Your own class defines ``hidden``: ``[b, L, width]`` of inputs ``[b, L, width]``, which must ignore padding.

    Args:
        items: vectors of the items.
        codings: of the events' side features.
        max_len: number of events that it can read.
        dropout: share of numbers dropped.
        cosine: scale of the cosine by which outputs and items are compared; None: their product.
    """

    task: ClassVar[Task] = "causal"  # what it learns from
    permutes: ClassVar[bool] = False  # whether it learns from permutations, too
    virtual: ClassVar[int] = 1  # codes behind the items' that it reads
    timed: bool = False  # whether it reads the events' times, after their side features

    def __init__(
        self,
        items: ItemTower,
        codings: Sequence[Coding] = (),
        *,
        max_len: int = 50,
        dropout: float = 0.25,
        cosine: float | None = 14.0,
    ) -> None:
        super().__init__()
        self.items, self.dropout = items, ByteDropout(dropout)
        self.readers = nn.ModuleList(_reader(c, items.width) for c in codings)
        self.max_len, self.cosine, self.codings = max_len, cosine, list(codings)
        self.heads: GoalHeads | None = None  # of a net with several goals
        self.goal = 0  # the one that it is asked for

    @property
    def reads(self) -> int:
        """Number of events that it can read to predict the next one."""
        return self.max_len

    def input(self, codes: Tensor, *sides: Tensor) -> Tensor:
        """Return the sums of events' item vectors and side features, ``[b, L, width]``; arguments are ``[b, L]``."""
        inputs = self.items(codes)
        for reader, side in zip(self.readers, sides, strict=True):
            inputs = inputs + reader(side)
        return self.dropout(inputs)

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        raise NotImplementedError

    def forward(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return outputs at every position, ``[b, L, width]``.

        Args:
            items: codes int64 ``[b, L]``, padded with 0.
            lengths: int64 ``[b]``.
            *sides: of the events, ``[b, L]`` each; for a ``timed`` net, then their times, float64.
        """
        known = len(self.codings)
        return self.hidden(self.input(items, *sides[:known]), lengths, *sides[known:])

    def last(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return the query of the next item, ``[b, width]``; zeros for an empty session."""
        found = self(items, lengths, *sides)
        place = (lengths - 1).clamp_min(0)
        return found[torch.arange(found.shape[0], device=found.device), place] * (lengths > 0).unsqueeze(1)

    def query(self, hidden: Tensor, goal: int | None = None) -> Tensor:
        """Return outputs as compared with ``keys``, for a goal (None: ``self.goal``)."""
        hidden = hidden if self.heads is None else self.heads(hidden, self.goal if goal is None else goal)
        return hidden if self.cosine is None else F.normalize(hidden, dim=-1)

    def keys(self, vectors: Tensor) -> Tensor:
        """Return items' vectors as compared with ``query``."""
        return vectors if self.cosine is None else self.cosine * F.normalize(vectors, dim=-1)

    def scores(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return scores of all codes for the next item, ``[b, codes]``."""
        return self.query(self.last(items, lengths, *sides)) @ self.keys(self.items.all()).T


Bias = Literal["position", "time", "both"]


class AttentionBias(nn.Module):
    """Learned additions to each block's attention logits by the distance of two events (HSTU, arXiv 2402.17152).

    Each head has a number per count of events between them, per size of the time between them, or both. Times are
    binned by logarithm: under 1.35 s, under 1.35² s, and so on. Later events are hidden.
    """

    def __init__(self, kind: Bias, blocks: int, heads: int, max_len: int) -> None:
        super().__init__()
        if kind not in get_args(Bias):
            raise DataError(f"no bias {kind!r}", remedy=f"Choose one of {sorted(get_args(Bias))}, or None")
        self.blocks, self.heads = blocks, heads
        sizes = {"position": max_len, "time": limits.TIME_GAPS}
        wanted = sizes if kind == "both" else {kind: sizes[kind]}
        self.tables = nn.ModuleDict({n: nn.Embedding(size, blocks * heads) for n, size in wanted.items()})
        for table in self.tables.values():
            nn.init.zeros_(table.weight)

    def forward(self, place: Tensor, times: Tensor | None = None) -> Tensor:
        """Return additions ``[blocks, b or 1, heads, L, L]`` from places ``[L]`` and times ``[b, L]`` in seconds."""
        apart = place.unsqueeze(1) - place
        found: Any = 0.0
        if "position" in self.tables:
            found = self.tables["position"](apart.clamp_min(0)).unsqueeze(0)
        if "time" in self.tables:
            found = found + self.tables["time"](gap_sizes(times.unsqueeze(2) - times.unsqueeze(1)))
        # finite, so that softmax and SiLU and their gradients are 0, not NaN
        found = found.masked_fill((apart < 0).unsqueeze(2), limits.HIDDEN_LOGIT)
        return found.unflatten(3, (self.blocks, self.heads)).permute(3, 0, 4, 1, 2)


def gap_sizes(gaps: Tensor) -> Tensor:
    """Return bins of time gaps in seconds, int64; 0 up to a second, and if negative or NaN."""
    size = torch.where(gaps > 1.0, gaps, 1.0).log() / limits.TIME_GAP_STEP
    return size.clamp_max(limits.TIME_GAPS - 1).long()  # an infinite number has no int64


def padding_mask(lengths: Tensor, width: int) -> Tensor:
    """Return the visible positions of bidirectional attention: bool ``[b, 1, 1, width]``."""
    place = torch.arange(width, device=lengths.device)
    # an empty session sees its first position, which is padding: attention to nothing is NaN
    return (place < lengths.clamp_min(1).unsqueeze(1))[:, None, None, :]


class SelfAttention(nn.Module):
    """Attention of a session's events to each other, with ``dropout``."""

    def __init__(self, width: int, heads: int = 1, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``; without a mask, events see themselves and those before.

        Args:
            x: ``[b, L, width]``.
            mask: bool, or additions to the logits, ``[b or 1, heads or 1, L, seen]``.
            other: attended events, ``[b, seen, width]``; None: ``x``.
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


class AttentionBlock(nn.Module):
    """Attention, then a subclass's net at each position, each on a norm of its input and added to it.

    ``attention_dropout``: of attention; None: ``dropout``.
    """

    def __init__(
        self, width: int, heads: int = 1, *, dropout: float = 0.0, attention_dropout: float | None = None
    ) -> None:
        super().__init__()
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        of_attention = dropout if attention_dropout is None else attention_dropout
        self.attention = SelfAttention(width, heads, dropout=of_attention)
        self.dropout = ByteDropout(dropout)


class TransformerBlock(AttentionBlock):
    """An ``AttentionBlock`` whose net has one layer of twice the width."""

    def __init__(self, width: int, heads: int = 1, *, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(width, heads, dropout=dropout, **options)
        into, out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.net = nn.Sequential(into, nn.GELU(), ByteDropout(dropout), out)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``, see ``SelfAttention``."""
        other = None if other is None else self.before_attention(other)
        x = x + self.dropout(self.attention(self.before_attention(x), mask, other))
        return x + self.dropout(self.net(self.before_net(x)))


class HSTUBlock(nn.Module):
    """A block of HSTU (arXiv 2402.17152): attention by SiLU at each pair of events, with a gated result.

    One projection gives gates, values, queries and keys. Attention is divided by the number of visible events, not by
    its sum, so that it reflects counts. Arguments are those of ``AttentionBlock``.
    """

    def __init__(
        self, width: int, heads: int = 1, *, dropout: float = 0.0, attention_dropout: float | None = None
    ) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.attention_dropout = ByteDropout(dropout if attention_dropout is None else attention_dropout)
        self.dropout = ByteDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``; ``mask`` is added to the logits and hides no earlier event."""
        gate, *read = F.silu(self.read(self.before(x))).chunk(4, -1)
        v, q, k = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in read)
        logits = q @ k.transpose(2, 3)
        shares = F.silu(logits if mask is None else logits + mask).tril()
        seen = torch.arange(1, x.shape[1] + 1, device=x.device).unsqueeze(1)
        found = (self.attention_dropout(shares / seen) @ v).transpose(1, 2).flatten(2)
        return x + self.dropout(self.write(gate * self.after(found)))


class LiGRBlock(AttentionBlock):
    """A block with learned gates on its additions and a SwiGLU net (LiGR, arXiv 2502.03417; eSASRec, 2508.06450).

    Arguments are those of ``AttentionBlock``.
    """

    def __init__(self, width: int, heads: int = 1, **options: Any) -> None:
        super().__init__(width, heads, **options)
        inner = 4 * width // 3  # about as many weights as a plain block's
        self.gate_attention, self.gate_net = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``."""
        gate = torch.sigmoid(self.gate_attention(x))
        x = x + self.dropout(gate * self.attention(self.before_attention(x), mask))
        gate = torch.sigmoid(self.gate_net(x))
        value, switch = self.up(self.before_net(x)).chunk(2, -1)
        return x + self.dropout(gate * self.down(F.silu(switch) * value))
