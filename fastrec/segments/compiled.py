"""Ranks in small groups and the last event before a row by compiled loops, where numba is installed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, groups, shared, view

_TIES = ("min", "max", "average", "ordinal")  # in the order of the loops' numbers


def worth(rows: int) -> bool:
    """Tell whether compiled loops pay for so many rows."""
    return rows >= limits.COMPILED_ROWS and compiled(rows)


def rank_small_groups(values: Tensor, codes: Tensor, absent: Tensor, *, method: str) -> Tensor | None:
    """Rank rows whose groups are contiguous, ascending and small, as an item's list in most logs.

    Args:
        values: float64 or int64 ``[n]``.
        codes: groups, int64 ``[n]``.
        absent: bool ``[n]``: values that are missing.
        method: see ``fastrec.segments.rank_in_group``.

    Returns:
        float64 ``[n]``, NaN where the value is missing; None: the groups are others, or there is no compiler.
    """
    if method not in _TIES or not _can_compile(values, (torch.float64, torch.int64)):
        return None
    ranks = torch.empty(len(values), dtype=torch.float64)
    given = (view(x.contiguous()) for x in (values, codes, absent, ranks))
    good = shared(groups().rank_small_groups, *given, _TIES.index(method), numbers=len(values))
    return ranks if good else None


def last_before(keys: Sequence[Tensor], events: Sequence[Tensor], *, strict: bool) -> Tensor:
    """Find the place of the last event of each row's group that is before it.

    Args:
        keys: the rows' groups (0 = none) and order keys, int64 ``[q]`` each.
        events: those of the events, sorted, int64 ``[e]`` each; one event or more.
        strict: an event at exactly a row's place is not before it.

    Returns:
        int64 ``[q]``, -1 where there is none.
    """
    highest = max(int(events[0][-1]) - 1, 0)
    shift = max(
        0, highest.bit_length() - max(len(events[0]) // limits.EVENTS_A_BUCKET, limits.EVENT_BUCKETS).bit_length()
    )
    starts = torch.empty((highest >> shift) + 3, dtype=torch.int64)
    # Buckets bound the search of each row to a few events.
    groups().bucket_starts(view(events[0]), shift, view(starts))
    found = torch.empty_like(keys[0])
    given = (
        *map(view, (k[0].contiguous()[None] if len(k) == 1 else torch.stack(list(k)) for k in (keys, events))),
        shift,
        view(starts),
    )
    shared(groups().last_before, *given, strict, view(found), numbers=len(found))
    return found


def _can_compile(values: Tensor, dtypes: Sequence[torch.dtype]) -> bool:
    return values.device.type == "cpu" and values.dtype in dtypes and worth(len(values))
