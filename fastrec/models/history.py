"""Nets that score candidates by the events before their list: BST, DIN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.fields import Activation, FieldNet, InputOptions, mlp


class EventBatch(NamedTuple):
    """The events before some lists, a list a row, filled up behind."""

    lists: Tensor  # int64 ``[n]``: each candidate's list, a row of the others
    items: Tensor  # codes ``[lists, T]``, by the vocabulary of the candidates' items
    cats: Tensor  # codes ``[lists, T, k]``
    conts: Tensor  # numbers ``[lists, T, c]``
    listed: Tensor  # int64 ``[lists, T]``: the batch's candidate that is the event's item; -1: none is
    steps: Tensor  # int64 ``[lists, T]``: how many events came after; -1: there is no event


class EventNet(FieldNet):
    """A multi-layer perceptron on a candidate's columns and what it reads (``read``) from the session's events.

    An event's vector is the sum of the vectors of its item, its categories, its numbers, the number of later events
    and, if its item is in the list, that candidate's columns. A candidate's vector is the sum of its item's and its
    columns'.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column; the last one is the item, whose vectors candidates and
            events share.
        event_szs: codes of each categorical column of events.
        n_event_cont: number of continuous columns of events.
        max_events: maximum of events per list.
        width: width of the vectors of events and candidates.
        ids: items have vectors; False: only the candidate's columns describe an item. Vectors of rare items overfit.
        n_cont, out_sz, layers, ps, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (128, 64),
        *,
        event_szs: Sequence[int] = (),
        n_event_cont: int = 0,
        max_events: int = 20,
        width: int = 32,
        ids: bool = True,
        ps: float | Sequence[float] | None = 0.2,
        act_cls: Activation = nn.SiLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        if not emb_szs or max_events < 1:
            raise DataError("a net of events without a column of items, or without room", remedy="Give both")
        names = inputs.pop("cat_names", None)
        super().__init__(emb_szs[:-1], n_cont, cat_names=names and list(names)[:-1], **inputs)
        own = self.n_emb + self.n_dense
        self.width, self.max_events = width, max_events
        self.item = _table(emb_szs[-1][0], width) if ids else None
        self.row = nn.Linear(own, width)
        self.kinds = nn.ModuleList([_table(rows, width) for rows in event_szs])
        self.numbers = nn.Linear(n_event_cont, width) if n_event_cont else None
        self.step = _table(max_events, width)
        self.event_norm, self.candidate_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.layers = mlp([own + 2 * width, *layers, out_sz], ps=ps, use_bn=False, act_cls=act_cls)

    def forward(self, x_cat: Tensor, x_cont: Tensor | None, *events: Tensor) -> Tensor:
        """Return the outputs ``[n, out_sz]`` of a batch of whole lists.

        Args:
            x_cat: codes ``[n, categorical columns]``; the last column is the item.
            x_cont: numbers ``[n, n_cont]``.
            *events: the tensors of an ``EventBatch``, in its order.
        """
        given = EventBatch(*events)
        columns = self.all_inputs(x_cat[:, :-1], x_cont)
        rows = self.row(columns)
        candidate = self.candidate_norm(rows + self._of(x_cat[:, -1].long()))
        there = given.steps >= 0
        known = (given.listed >= 0)[..., None]
        # the list's own words on an event's item, if it stands there
        event = self._of(given.items) + torch.where(known, rows[given.listed.clamp_min(0)], 0.0)
        event = event + self.step(given.steps.clamp(0, self.max_events - 1))
        for i, table in enumerate(self.kinds):
            event = event + table(given.cats[..., i])
        if self.numbers is not None:
            event = event + self.numbers(given.conts)
        event = self.event_norm(event)
        # an event about the candidate itself
        asked = torch.arange(x_cat.shape[0], device=x_cat.device)
        same = (given.listed[given.lists] == asked[:, None]).to(event.dtype)[..., None]
        return self.layers(torch.cat([columns, candidate, self.read(candidate, event, same, there, given.lists)], 1))

    def _of(self, items: Tensor) -> Tensor | float:
        return 0.0 if self.item is None else self.emb_drop(self.item(items))

    def read(self, candidate: Tensor, event: Tensor, same: Tensor, there: Tensor, lists: Tensor) -> Tensor:
        """Return what each candidate reads from the events before its list: ``[n, width]``.

        Args:
            candidate: the candidates' vectors, ``[n, width]``.
            event: the events' vectors, ``[lists, T, width]``.
            same: ``[n, T, 1]``, 1 if the event is about the candidate, else 0.
            there: bool ``[lists, T]``, whether there is an event.
            lists: int64 ``[n]``, each candidate's list.
        """
        raise NotImplementedError


def _table(rows: int, width: int) -> nn.Embedding:
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=0.05)
    return table


class BST(EventNet):
    """Behaviour sequence transformer: a transformer layer over the events and the candidate, read at the candidate.

    Keys and values of events are computed once per list.

    Args:
        *sizes: ``emb_szs``, ``n_cont``, ``out_sz`` and ``layers`` of ``EventNet``.
        heads: attention heads; they must divide the width.
        drop: dropout on the outputs of attention and feed-forward net.
        **options: the other options of ``EventNet``.

    Source: Chen et al. 2019, "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", section 2.
    """

    def __init__(self, *sizes: Any, heads: int = 4, drop: float = 0.1, **options: Any) -> None:
        super().__init__(*sizes, **options)
        if self.width % heads:
            raise DataError(f"{heads} heads do not divide a width of {self.width}", remedy="Choose another number")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(self.width, self.width) for _ in range(3))
        self.near = nn.Parameter(torch.zeros(heads))  # what an event about the candidate itself has more
        self.about = nn.Parameter(torch.zeros(self.width))
        self.out = nn.Linear(self.width, self.width)
        self.wide = nn.Sequential(nn.Linear(self.width, 2 * self.width), nn.LeakyReLU(), nn.Dropout(drop))
        self.back = nn.Linear(2 * self.width, self.width)
        self.first, self.second, self.drop = nn.LayerNorm(self.width), nn.LayerNorm(self.width), nn.Dropout(drop)

    def read(self, candidate: Tensor, event: Tensor, same: Tensor, there: Tensor, lists: Tensor) -> Tensor:
        """Return the layer's output at the candidate's place, see ``EventNet.read``."""
        n, (heads, each) = candidate.shape[0], (self.heads, self.width // self.heads)
        query = self.query(candidate).view(n, 1, heads, each)
        key = self.key(event)[lists].unflatten(2, (heads, each))
        value = (self.value(event)[lists] + same * self.about).unflatten(2, (heads, each))
        own_key, own_value = (f(candidate).view(n, 1, heads, each) for f in (self.key, self.value))
        scores = (query * key).sum(3) / math.sqrt(each) + same * self.near
        # places without an event have no share
        scores = scores.masked_fill(~there[lists][..., None], -torch.inf)
        share = torch.cat([scores, (query * own_key).sum(3) / math.sqrt(each)], 1).softmax(1)[..., None]
        heard = (share * torch.cat([value, own_value], 1)).sum(1).flatten(1)
        attended = self.first(candidate + self.drop(self.out(heard)))
        return self.second(attended + self.drop(self.back(self.wide(attended))))


class DIN(EventNet):
    """Deep interest network: a small net weighs each event by the event and the candidate.

    The weights do not sum to 1: many similar events count more than one.

    Args:
        *sizes: ``emb_szs``, ``n_cont``, ``out_sz`` and ``layers`` of ``EventNet``.
        hidden: width of the weighing net.
        **options: the other options of ``EventNet``.

    Source: Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction", section 4.3.
    """

    def __init__(self, *sizes: Any, hidden: int = 32, **options: Any) -> None:
        super().__init__(*sizes, **options)
        # A layer of (event, candidate, event * candidate, same) in parts: that of an event is had once a list.
        self.of_event = nn.Linear(self.width, hidden)
        self.of_candidate = nn.Linear(self.width, hidden, bias=False)
        self.of_both = nn.Linear(self.width + 1, hidden, bias=False)
        self.weigh = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 1))
        self.about = nn.Parameter(torch.zeros(self.width))

    def read(self, candidate: Tensor, event: Tensor, same: Tensor, there: Tensor, lists: Tensor) -> Tensor:
        """Return the weighted sum of the events, see ``EventNet.read``."""
        mine = event[lists]
        both = torch.cat([mine * candidate[:, None], same], 2)
        hidden = self.of_event(event)[lists] + self.of_candidate(candidate)[:, None] + self.of_both(both)
        weight = self.weigh(hidden) * there[lists][..., None]
        return (weight * (mine + same * self.about)).sum(1)
