"""The segment kernels that every feature shares: reductions by code, and shifts, running sums and ranks inside ordered groups.

All are plain torch and run unchanged on a CPU or a GPU. Codes are int64 ``[n]`` in ``0 … size - 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def segment_count(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of each code: int64 ``[size]``."""
    return torch.bincount(codes, minlength=size)


def segment_sum(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Sum of ``values`` (``[n]``) by code, in float64 for floats and int64 for integers: ``[size]``; 0 for an empty segment."""
    if values.is_floating_point() and not values.is_cuda:
        return torch.bincount(codes, weights=values.double(), minlength=size)
    wide = values.double() if values.is_floating_point() else values.long()
    return torch.zeros(size, dtype=wide.dtype, device=values.device).index_add_(0, codes, wide)


def segment_mean(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Mean of ``values`` (``[n]``) by code: float64 ``[size]``; NaN for an empty segment."""
    return segment_sum(values.double(), codes, size) / segment_count(codes, size)


def segment_variance(values: torch.Tensor, codes: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and sum of squared deviations by code, in two passes, so that values far from 0 keep their digits.

    Returns:
        mean float64 ``[size]`` (NaN for an empty segment) and sum of squared deviations from it float64 ``[size]``.
    """
    mean = segment_mean(values, codes, size)
    return mean, segment_sum((values.double() - mean[codes]) ** 2, codes, size)


def segment_min(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Smallest value by code: ``[size]``; +inf (floats) or the largest integer for an empty segment."""
    return _reduce(values, codes, size, "amin")


def segment_max(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Largest value by code: ``[size]``; -inf (floats) or the smallest integer for an empty segment."""
    return _reduce(values, codes, size, "amax")


def _reduce(values: torch.Tensor, codes: torch.Tensor, size: int, how: str) -> torch.Tensor:
    if values.is_floating_point():
        start = torch.inf if how == "amin" else -torch.inf
    else:
        start = torch.iinfo(values.dtype).max if how == "amin" else torch.iinfo(values.dtype).min
    result = torch.full((size,), start, dtype=values.dtype, device=values.device)
    return result.scatter_reduce_(0, codes, values, how)


def lexical_order(keys: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The stable permutation that sorts rows by the first key, then the second, and so on.

    Args:
        keys: numbers ``[n]`` each; NaN sorts last.

    Returns:
        int64 ``[n]``, or None where the rows are in that order already (nothing is sorted again).
    """
    key = _one_key(keys)
    if key is not None:
        if len(key) < 2 or bool((key[1:] >= key[:-1]).all()):
            return None
        return torch.sort(key, stable=True).indices
    order = None
    for key in reversed(keys):
        step = torch.sort(key if order is None else key[order], stable=True).indices
        order = step if order is None else order[step]
    return order


def _one_key(keys: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The integer keys as one int64 where their ranges fit, else None."""
    total, joined = 1, None
    for key in keys:
        if key.is_floating_point():
            return keys[0] if len(keys) == 1 else None
        if not len(key):
            return key.long()
        low, high = int(key.min()), int(key.max())
        total *= high - low + 1
        if total >= 1 << 62:
            return keys[0] if len(keys) == 1 else None
        part = key.long() - low
        joined = part if joined is None else joined * (high - low + 1) + part
    return joined


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows brought together by group and put in order within it.

    Args:
        order: int64 ``[n]``, the rows in sorted order; None = they are sorted already.
        codes: int64 ``[n]``, the group of each sorted row.
        start: int64 ``[n]``, for each sorted place the place of its group's first row.
    """

    order: torch.Tensor | None
    codes: torch.Tensor
    start: torch.Tensor

    @classmethod
    def of(cls, codes: torch.Tensor, *order: torch.Tensor) -> Groups:
        """Groups of rows with equal ``codes``, ordered by the ``order`` keys, ties by row number."""
        permutation = lexical_order([codes, *order])
        codes = codes if permutation is None else codes[permutation]
        places = torch.arange(len(codes), device=codes.device)
        if not len(codes):
            return cls(permutation, codes, places)
        first = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        first[1:] = codes[1:] != codes[:-1]
        return cls(permutation, codes, torch.cummax(torch.where(first, places, 0), 0).values)

    @property
    def place(self) -> torch.Tensor:
        """Place of each sorted row in its group, from 0: int64 ``[n]``."""
        return torch.arange(len(self.codes), device=self.codes.device) - self.start

    def sort(self, values: torch.Tensor) -> torch.Tensor:
        """Values in row order → in sorted order."""
        return values if self.order is None else values[self.order]

    def unsort(self, values: torch.Tensor) -> torch.Tensor:
        """Values in sorted order → in row order."""
        if self.order is None:
            return values
        result = torch.empty_like(values)
        result[self.order] = values
        return result


def shift_in_group(groups: Groups, periods: int) -> torch.Tensor:
    """The row that stands ``periods`` places before each row in its group (after it, where negative).

    Returns:
        int64 ``[n]`` row numbers in the input's row order, -1 where there is none.
    """
    places = torch.arange(len(groups.codes), device=groups.codes.device)
    source = places - periods
    inside = (source >= 0) & (source < len(places))
    source = source.clamp(0, max(len(places) - 1, 0))
    inside &= groups.codes[source] == groups.codes
    rows = source if groups.order is None else groups.order[source]
    return groups.unsort(torch.where(inside, rows, -1))


def cumsum_in_group(values: torch.Tensor, groups: Groups, *, inclusive: bool = False) -> torch.Tensor:
    """Running sum inside each group, in the group's order.

    Args:
        values: ``[n]`` in row order, without NaN.
        groups: the groups.
        inclusive: count the row itself too.

    Returns:
        int64 or float64 ``[n]`` in row order.
    """
    ordered = groups.sort(values)
    ordered = ordered.double() if ordered.is_floating_point() else ordered.long()
    total = torch.cumsum(ordered, 0)
    before = total - ordered
    result = (total if inclusive else before) - before[groups.start] if len(ordered) else ordered
    return groups.unsort(result)


def last_in_group(marks: torch.Tensor, groups: Groups, *, inclusive: bool = False) -> torch.Tensor:
    """The latest marked row before each row in its group.

    Args:
        marks: bool ``[n]`` in row order.
        groups: the groups.
        inclusive: a marked row may be its own answer.

    Returns:
        int64 ``[n]`` row numbers in row order, -1 where there is none.
    """
    ordered = groups.sort(marks)
    places = torch.arange(len(ordered), device=ordered.device)
    if not len(ordered):
        return places
    latest = torch.cummax(torch.where(ordered, places, -1), 0).values
    if not inclusive:
        latest = torch.cat([latest.new_full((1,), -1), latest[:-1]])
    found = latest >= groups.start
    rows = latest.clamp_min(0) if groups.order is None else groups.order[latest.clamp_min(0)]
    return groups.unsort(torch.where(found, rows, -1))


def rank_in_group(values: torch.Tensor, codes: torch.Tensor, *, method: str = "min") -> torch.Tensor:
    """Rank of each value among its group's values, from 1, smallest first; NaN has no rank.

    Args:
        values: floats ``[n]``.
        codes: groups, int64 ``[n]``.
        method: ties get the lowest (``min``), highest (``max``), mean (``average``) or successive (``ordinal``: row order) place,
            or places count distinct values only (``dense``). As pandas has them (its ``first`` is ``ordinal``).

    Returns:
        float64 ``[n]``, NaN where the value is NaN.
    """
    present = ~values.isnan()
    groups = Groups.of(codes, (~present).to(torch.int64), torch.where(present, values, 0))
    ordered = groups.sort(values)
    if not len(ordered):
        return values.double()
    places = torch.arange(len(ordered), device=values.device)
    new = torch.ones(len(ordered), dtype=torch.bool, device=values.device)
    new[1:] = (ordered[1:] != ordered[:-1]) | (groups.codes[1:] != groups.codes[:-1])
    first = torch.cummax(torch.where(new, places, 0), 0).values
    if method == "ordinal":
        rank = groups.place + 1
    elif method == "dense":
        run = torch.cumsum(new, 0)
        rank = run - run[groups.start] + 1
    else:
        low = first - groups.start + 1
        run = torch.cumsum(new, 0) - 1
        high = low + torch.bincount(run)[run] - 1
        rank = {"min": low, "max": high, "average": (low + high) / 2}[method]
    return groups.unsort(torch.where(groups.sort(present), rank.double(), torch.nan))


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
        int64 ``[q]``: the event's place in the sorted events, -1 where there is none; and the sorted events' ``Groups``.
    """
    q, e = len(codes), len(event_codes)
    events = Groups.of(event_codes, *event_order)
    # Queries and events are put into one order; an event at a query's own place comes after it (before it, if inclusive).
    is_query = torch.zeros(q + e, dtype=torch.int64, device=codes.device)
    is_query[:q] = 1
    tie = is_query if inclusive else 1 - is_query
    both = [torch.cat([a, b]) for a, b in zip([codes, *order], [event_codes, *event_order], strict=True)]
    merged = Groups.of(both[0], *both[1:], tie)
    query_first = merged.sort(is_query)
    seen = torch.cumsum(1 - query_first, 0)  # events up to here = one more than the last event's sorted place
    found = torch.empty(q + e, dtype=torch.int64, device=codes.device)
    rows = torch.arange(q + e, device=codes.device) if merged.order is None else merged.order
    found[rows] = seen - 1
    found = found[:q]
    inside = (found >= 0) & (codes > 0)
    if e:
        inside &= events.codes[found.clamp_min(0)] == codes
    return torch.where(inside, found, -1), events
