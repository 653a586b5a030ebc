"""Nets over sessions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastrec.errors import DataError
from fastrec.sequences.session_net import (
    AttentionBias,
    Bias,
    ByteDropout,
    HSTUBlock,
    ItemTower,
    LiGRBlock,
    SessionNet,
    Task,
    TransformerBlock,
    padding_mask,
)


class SASRec(SessionNet):
    """Self-attentive sequential recommendation (arXiv 1808.09781).

    Args:
        blocks, heads: of attention.
        attention_dropout: dropout of attention; None: ``dropout``. 0 is faster for long sessions.
        bias: of attention, by the distance of events, see ``AttentionBias``; ``'time'`` and ``'both'`` read times.
        items, codings, options: see ``SessionNet``.

    Raises:
        DataError: an unknown bias, or a bidirectional net.
    """

    block: type[nn.Module] = TransformerBlock

    def __init__(
        self,
        items: ItemTower,
        codings: Any = (),
        *,
        blocks: int = 1,
        heads: int = 1,
        attention_dropout: float | None = None,
        bias: Bias | None = None,
        **options: Any,
    ) -> None:
        super().__init__(items, codings, **options)
        if bias is not None and self.task != "causal":
            raise DataError(f"{type(self).__name__} has no bias={bias!r}", remedy="Use a net that tells the next item")
        shares = {"dropout": self.dropout.p, "attention_dropout": attention_dropout}
        self.places = nn.Parameter(torch.zeros(self.max_len, items.width))
        self.bias = None if bias is None else AttentionBias(bias, blocks, heads, self.max_len)
        self.timed = bias in ("time", "both")
        self.blocks = nn.ModuleList(self.block(items.width, heads, **shares) for _ in range(blocks))
        self.norm = nn.LayerNorm(items.width)

    def hidden(self, inputs: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]`` and, for a ``timed`` net, times ``[b, L]``."""
        x, mask = inputs + self.places[: inputs.shape[1]], self._mask(lengths, inputs.shape[1])
        place = torch.arange(inputs.shape[1], device=inputs.device)
        masks: Any = [mask] * len(self.blocks) if self.bias is None else self.bias(place, times)
        for block, own in zip(self.blocks, masks, strict=True):
            x = block(x, own)
        return self.norm(x)

    def _mask(self, lengths: Tensor, width: int) -> Tensor | None:
        return None  # an event sees those before it


class ESASRec(SASRec):
    """SASRec with LiGR blocks (eSASRec, arXiv 2508.06450)."""

    block = LiGRBlock


class HSTU(SASRec):
    """SASRec with HSTU's blocks (arXiv 2402.17152), made to be used with a ``bias``."""

    block = HSTUBlock


class PooledSASRec(SASRec):
    """SASRec plus a weighted mean of the session's item vectors, for logs in which items come back.

    The mean is CORE's (arXiv 2204.11067), but every event has weights for the events up to it, which also depend on
    their distance, so that all positions are trained at once. A learned share of SASRec's output is added, because a
    mean of seen items is never nearest to another item. If items do not come back, SASRec alone is better. Arguments
    are those of ``SASRec``.
    """

    def __init__(self, items: ItemTower, codings: Any = (), **options: Any) -> None:
        super().__init__(items, codings, **options)
        self.ask, self.offer = nn.Linear(items.width, items.width), nn.Linear(items.width, items.width)
        nn.init.zeros_(self.ask.weight)
        nn.init.zeros_(self.ask.bias)  # weights begin as the distance's alone
        self.ago = nn.Parameter(-0.5 * torch.arange(self.max_len, dtype=torch.float32))
        self.share = nn.Parameter(torch.zeros(()))

    def hidden(self, inputs: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Return outputs ``[b, L, width]``, see ``SASRec``."""
        x = super().hidden(inputs, lengths, times)
        place = torch.arange(inputs.shape[1], device=inputs.device)
        apart = place.unsqueeze(1) - place
        near = self.ago[apart.clamp_min(0)].masked_fill(apart < 0, -torch.inf)
        read = (t.unsqueeze(1) for t in (self.ask(x), self.offer(x), inputs))  # one head
        return F.scaled_dot_product_attention(*read, attn_mask=near).squeeze(1) + self.share * x


class HiddenEventNet(SessionNet):
    """A net that predicts hidden events; the next item is an event hidden behind the last one."""

    task: ClassVar[Task] = "masked"

    @property
    def reads(self) -> int:
        """Number of events that it can read to predict the next one."""
        return self.max_len - 1

    def last(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return the query of the next item: ``[b, width]``."""
        items = torch.cat([items, items.new_zeros(items.shape[0], 1)], 1)
        items = items.scatter(1, lengths.unsqueeze(1), self.items.codes)
        return super().last(items, lengths + 1, *[torch.cat([s, s.new_zeros(s.shape[0], 1)], 1) for s in sides])


class BERT4Rec(HiddenEventNet, SASRec):
    """Bidirectional transformer (arXiv 1904.06690); arguments are those of ``SASRec``, with more attention."""

    def __init__(self, items: ItemTower, codings: Any = (), *, blocks: int = 2, heads: int = 2, **options: Any) -> None:
        super().__init__(items, codings, blocks=blocks, heads=heads, **options)

    def _mask(self, lengths: Tensor, width: int) -> Tensor | None:
        return padding_mask(lengths, width)


class XLNet(HiddenEventNet):
    """A bidirectional transformer with relative positions (arXiv 1906.08237, Transformers4Rec).

    With the loader's ``task='masked'``, hidden events are predicted from all others (XLNet-MLM, the best of
    Transformers4Rec for sessions). With ``'permuted'``, a hidden event also sees the hidden ones before it in a random
    order: one stream holds the events, another the queries, which see only earlier events. A learned number per
    distance is added to the attention logits. Arguments are those of ``BERT4Rec``.
    """

    permutes: ClassVar[bool] = True

    def __init__(self, items: ItemTower, codings: Any = (), *, blocks: int = 2, heads: int = 2, **options: Any) -> None:
        super().__init__(items, codings, **options)
        self.start = nn.Parameter(torch.randn(items.width) * 0.02)
        self.apart = nn.Parameter(torch.zeros(blocks, heads, 2 * self.max_len + 1))
        dropout = self.dropout.p
        self.blocks = nn.ModuleList(TransformerBlock(items.width, heads, dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(items.width)

    def forward(self, items: Tensor, lengths: Tensor, *sides: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]``, meaningful at hidden events.

        Args:
            items: codes int64 ``[b, L]``.
            lengths: int64 ``[b]``.
            *sides: of the events; one more gives the order of hidden events, int64 ``[b, L]``, 0 for others. Without
                it, events with the mask's code are hidden, and none sees another.
        """
        mask = self.items.codes
        known = sides[: len(self.codings)]
        order = sides[-1] if len(sides) > len(known) else (items == mask).long()
        # a first event visible to all: attention to nothing is NaN
        content = torch.cat([self.start.expand(items.shape[0], 1, -1), self.input(items, *known)], 1)
        asked = self.input(torch.full_like(items, mask), *known)
        then = torch.cat([order.new_full((order.shape[0], 1), -1), order], 1)
        inside = padding_mask(lengths + 1, then.shape[1])
        keys = then[:, None, None, :]
        by_content, by_asked = inside & (keys <= then[:, None, :, None]), inside & (keys < order[:, None, :, None])
        place = torch.arange(then.shape[1], device=then.device)
        distance = place.unsqueeze(0) - place.unsqueeze(1) + self.max_len
        for block, apart in zip(self.blocks, self.apart, strict=True):
            logits = apart[:, distance]  # [heads, L, L]
            told = block(asked, logits[:, 1:].masked_fill(~by_asked, -torch.inf), content)
            content = block(content, logits.masked_fill(~by_content, -torch.inf))
            asked = told
        return self.norm(asked)


class GRU4Rec(SessionNet):
    """Gated recurrent units (arXiv 1511.06939), with the state projected to the items' space.

    Args:
        state: width of the recurrent state; None: the items'.
        layers: number of layers.
        items, codings, options: see ``SessionNet``.
    """

    def __init__(
        self, items: ItemTower, codings: Any = (), *, state: int | None = None, layers: int = 1, **options: Any
    ) -> None:
        super().__init__(items, codings, **options)
        state = state or items.width
        self.gru = nn.GRU(items.width, state, layers, batch_first=True)
        self.out = nn.Sequential(ByteDropout(self.dropout.p), nn.Linear(state, items.width))

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        return self.out(self.gru(inputs)[0])


class NARM(SessionNet):
    """Neural attentive recommendation machine (arXiv 1711.04725): the last state and a mean of all states so far.

    Args:
        state: width of the recurrent state; None: the items'.
        items, codings, options: see ``SessionNet``.
    """

    def __init__(self, items: ItemTower, codings: Any = (), *, state: int | None = None, **options: Any) -> None:
        super().__init__(items, codings, **options)
        state = state or items.width
        self.gru = nn.GRU(items.width, state, batch_first=True)
        self.of_now, self.of_then = nn.Linear(state, state), nn.Linear(state, state, bias=False)
        self.weigh = nn.Linear(state, 1, bias=False)
        self.out = nn.Sequential(ByteDropout(self.dropout.p), nn.Linear(2 * state, items.width, bias=False))

    def hidden(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs ``[b, L, width]`` of inputs ``[b, L, width]``."""
        states = self.gru(inputs)[0]
        length = states.shape[1]
        weight = self.weigh(torch.sigmoid(self.of_now(states).unsqueeze(2) + self.of_then(states).unsqueeze(1)))
        seen = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
        local = weight.squeeze(3).masked_fill(~seen, 0.0) @ states  # no softmax, as in the paper
        return self.out(torch.cat([states, local], 2))
