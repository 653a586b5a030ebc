"""``as_of``: the last event of a row's group that is before the row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.segments.groups import Groups, float_order, last_before, lexical_order, worth


def as_of(
    codes: torch.Tensor,
    order: Sequence[torch.Tensor],
    event_codes: torch.Tensor,
    event_order: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, Groups]:
    """Find each query row's last event of the same group that is strictly earlier.

    Args:
        codes: the queries' groups, int64 ``[q]``; 0 = in no group.
        order: the queries' order keys, each ``[q]``; the first key is the primary one.
        event_codes: the events' groups, int64 ``[e]``; events of group 0 are never found.
        event_order: the events' order keys, as many as the queries have.

    Returns:
        int64 ``[q]``: the event's position in the sorted events, -1 if there is none; and those events' ``Groups``.
    """
    if on_host(codes) and len(event_codes) and worth(len(codes) + len(event_codes)):
        # Only the events are sorted.
        pairs = [(codes, event_codes), *(_alike(a, b) for a, b in zip(order, event_order, strict=True))]
        sorting = lexical_order([b for _, b in pairs])
        groups = Groups.arranged(event_codes, torch.arange(len(event_codes)) if sorting is None else sorting)
        events = [groups.codes, *(groups.sort(b) for _, b in pairs[1:])]
        return last_before([a for a, _ in pairs], events), groups
    if few(codes, event_codes):
        return FewMerged(codes, order, event_codes, event_order).last()
    q, e = len(codes), len(event_codes)
    # One stable sort of both: with equal keys, queries come before events, as in the input.
    both = zip((codes, *order), (event_codes, *event_order), strict=True)
    merged = lexical_order([torch.cat(pair) for pair in both])
    merged = torch.arange(q + e, device=codes.device) if merged is None else merged
    is_event = merged >= q
    events = Groups.arranged(event_codes, merged[is_event] - q)
    found = torch.empty(q, dtype=torch.int64, device=codes.device)
    seen = torch.cumsum(is_event, 0)  # events up to here = one more than the last event's sorted position
    found[merged[~is_event]] = seen[~is_event] - 1
    inside = (found >= 0) & (codes > 0)
    if e:
        inside &= events.codes[found.clamp_min(0)] == codes
    return torch.where(inside, found, -1), events


def few(codes: torch.Tensor, event_codes: torch.Tensor) -> bool:
    """Tell whether rows and events (``[q]``, ``[e]``) are so few that the overhead per call matters."""
    return codes.shape[0] + event_codes.shape[0] <= limits.REQUEST_ROWS and on_host(codes)


class FewMerged:
    """A request's rows and events in one order, for ``as_of`` over all events or some of them.

    The arguments are those of ``as_of``, at most ``REQUEST_ROWS`` rows, on the CPU.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        order: Sequence[torch.Tensor],
        event_codes: torch.Tensor,
        event_order: Sequence[torch.Tensor],
    ) -> None:
        q = len(codes)
        keys = zip((codes, *order), (event_codes, *event_order), strict=True)
        pairs = [torch.cat(pair).numpy() for pair in keys]  # torch's promotion of two types
        merged = np.lexsort(pairs[::-1])
        is_event = merged >= q
        self.events = merged[is_event] - q
        self.before = np.empty(q, dtype=np.int64)  # the number of events before each row
        self.before[merged[~is_event]] = np.cumsum(is_event)[~is_event]
        self.codes, self.theirs = codes.numpy(), event_codes.numpy()[self.events]

    def last(self, counted: np.ndarray | None = None) -> tuple[torch.Tensor, Groups]:
        """Return the result of ``as_of`` with the counted events only (bool ``[e]``; None: all)."""
        events, theirs, before = self.events, self.theirs, self.before
        if counted is not None:
            kept = counted[events]
            events, theirs = events[kept], theirs[kept]
            before = np.concatenate([[0], np.cumsum(kept)])[before]
        e = len(events)
        found = before - 1
        inside = (found >= 0) & (self.codes > 0)
        if e:
            inside &= theirs[np.maximum(found, 0)] == self.codes
        first = np.ones(e, dtype=bool)
        first[1:] = theirs[1:] != theirs[:-1]
        start = np.maximum.accumulate(np.where(first, np.arange(e), 0))
        groups = Groups(*(torch.from_numpy(x) for x in (events, theirs, start)))
        return torch.from_numpy(np.where(inside, found, -1)), groups


def _alike(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two order keys as int64 that compare as the numbers do, NaN last."""
    kind = torch.result_type(a, b)
    if not kind.is_floating_point:
        return a.long(), b.long()
    return float_order(a.to(kind).double()), float_order(b.to(kind).double())
