"""Scores of all items by a net, session by session of equal length."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_net import SessionNet

__all__ = ["item_keys", "net_scores", "padded"]


def padded(sessions: SessionFrame, max_len: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the last events of sessions as codes int64 ``[b, L]``, 0 behind the end, their lengths and side
    features.
    """
    ends = sessions.offsets[1:]
    starts = torch.maximum(sessions.offsets[:-1], ends - max_len)
    lengths = ends - starts
    place = torch.arange(max(int(lengths.max()), 1) if len(lengths) else 1)
    inside = place < lengths.unsqueeze(1)
    if not len(sessions.values):
        return (
            torch.zeros(inside.shape, dtype=torch.int64),
            lengths,
            [torch.zeros(inside.shape, dtype=v.dtype) for v in sessions.sides.values()],
        )
    index = torch.where(inside, starts.unsqueeze(1) + place, 0)
    found = [v[index].masked_fill_(~inside, 0) for v in (sessions.values, *sessions.sides.values())]
    return found[0], lengths, found[1:]


@torch.no_grad()
def item_keys(net: SessionNet) -> Tensor:
    """Return all items' vectors as they are compared with queries, ``[width, codes]``."""
    return net.keys(net.items.all()).T.contiguous()


@torch.no_grad()
def net_scores(net: SessionNet, sessions: SessionFrame, keys: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the numbers of some sessions and their scores of all codes, float32 on the CPU, until all have come.

    Args:
        net: in whatever mode; it is left in the same.
        sessions: coded as the net was trained.
        keys: what ``item_keys`` gave, if it is known.
    """
    device = net.items.table.weight.device
    training = net.training
    net.eval()
    try:
        order = torch.argsort(sessions.lengths.clamp_max(net.reads), stable=True)
        keys = item_keys(net) if keys is None else keys
        for rows in order.split(max(1, limits.NET_SCORES_CELLS // max(net.items.codes, 1))):
            items, lengths, sides = padded(sessions.take(rows), net.reads)
            query = net.query(net.last(items.to(device), lengths.to(device), *(s.to(device) for s in sides)))
            scores = (query @ keys).float().cpu()
            scores[:, 0] = -torch.inf
            yield rows, scores
    finally:
        net.train(training)
