"""``as_of``: the last event of a row's group that is before the row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec.segments.compiled import last_before, worth
from fastrec.segments.order import SMALL, Groups, float_order, lexical_order


def as_of(
    codes: torch.Tensor,
    order: Sequence[torch.Tensor],
    event_codes: torch.Tensor,
    event_order: Sequence[torch.Tensor],
    *,
    inclusive: bool = False,
) -> tuple[torch.Tensor, Groups]:
    """For each query row, the last event of the same group that is strictly earlier.

    Args:
        codes: the queries' groups, int64 ``[q]``; 0 = in no group.
        order: the queries' order keys, each ``[q]``; earlier keys decide first.
        event_codes: the events' groups, int64 ``[e]``; events of group 0 are never found.
        event_order: the events' order keys, as many as the queries'.
        inclusive: an event at exactly the query's place counts too.

    Returns:
        int64 ``[q]``: the event's place in the sorted events, -1 where there is none; and those events' ``Groups``.
    """
    found = _by_sorting_events(codes, order, event_codes, event_order, inclusive=inclusive)
    if found is not None:
        return found
    if len(codes) + len(event_codes) <= SMALL and codes.device.type == "cpu":
        return _of_few(codes, order, event_codes, event_order, inclusive=inclusive)
    q, e = len(codes), len(event_codes)
    # One stable sort of queries and events together: at equal keys, what stands first in the input comes first.
    first, second = (
        ([event_codes, *event_order], [codes, *order]) if inclusive else ([codes, *order], [event_codes, *event_order])
    )
    merged = lexical_order([torch.cat([a, b]) for a, b in zip(first, second, strict=True)])
    merged = torch.arange(q + e, device=codes.device) if merged is None else merged
    is_event = merged < e if inclusive else merged >= q
    event_rows = merged[is_event] - (0 if inclusive else q)
    events = Groups.arranged(event_codes, event_rows)
    found = torch.empty(q, dtype=torch.int64, device=codes.device)
    seen = torch.cumsum(is_event, 0)  # events up to here = one more than the last event's sorted place
    found[merged[~is_event] - (e if inclusive else 0)] = seen[~is_event] - 1
    inside = (found >= 0) & (codes > 0)
    if e:
        inside &= events.codes[found.clamp_min(0)] == codes
    return torch.where(inside, found, -1), events


def _of_few(
    codes: torch.Tensor,
    order: Sequence[torch.Tensor],
    event_codes: torch.Tensor,
    event_order: Sequence[torch.Tensor],
    *,
    inclusive: bool,
) -> tuple[torch.Tensor, Groups]:
    """``as_of`` of a request's rows, by the same one sort."""
    q, e = len(codes), len(event_codes)
    keys = zip((codes, *order), (event_codes, *event_order), strict=True)
    pairs = [torch.cat([b, a] if inclusive else [a, b]).numpy() for a, b in keys]  # of two types: as torch has it
    merged = np.lexsort(pairs[::-1])
    is_event = merged < e if inclusive else merged >= q
    events = merged[is_event] - (0 if inclusive else q)
    found = np.empty(q, dtype=np.int64)
    found[merged[~is_event] - (e if inclusive else 0)] = np.cumsum(is_event)[~is_event] - 1
    mine, theirs = codes.numpy(), event_codes.numpy()[events]
    inside = (found >= 0) & (mine > 0)
    if e:
        inside &= theirs[np.maximum(found, 0)] == mine
    first = np.ones(e, dtype=bool)
    first[1:] = theirs[1:] != theirs[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(e), 0))
    groups = Groups(*(torch.from_numpy(x) for x in (events, theirs, start)))
    return torch.from_numpy(np.where(inside, found, -1)), groups


def _by_sorting_events(
    codes: torch.Tensor,
    order: Sequence[torch.Tensor],
    event_codes: torch.Tensor,
    event_order: Sequence[torch.Tensor],
    *,
    inclusive: bool,
) -> tuple[torch.Tensor, Groups] | None:
    """``as_of`` by sorting the events alone; None where there is no compiler."""
    if codes.device.type != "cpu" or not len(event_codes) or not worth(len(codes) + len(event_codes)):
        return None
    pairs = [(codes, event_codes), *(_alike(a, b) for a, b in zip(order, event_order, strict=True))]
    events = [b for _, b in pairs]
    order = lexical_order(events)
    groups = Groups.arranged(event_codes, torch.arange(len(event_codes)) if order is None else order)
    events = [groups.codes, *(groups.sort(b) for b in events[1:])]
    return last_before([a for a, _ in pairs], events, strict=not inclusive), groups


def _alike(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two order keys as int64 that compare as the numbers do, NaN last."""
    kind = torch.result_type(a, b)
    if not kind.is_floating_point:
        return a.long(), b.long()
    return float_order(a.to(kind).double()), float_order(b.to(kind).double())
