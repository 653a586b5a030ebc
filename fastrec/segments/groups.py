"""``Groups``: rows in ordered groups; shifts, running sums, ranks, sums and means in them, on CPU and GPU.

Codes are int64 ``[n]`` in ``0 … size - 1``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import compiled, groups, shared, view
from fastrec.table.coding import extremes, sort_rows

# Ranks in small groups and the last event before a row, by compiled loops if numba is installed.

_TIES = ("min", "max", "average", "ordinal")  # in the order of the loops' numbers


def rank_small_groups(values: Tensor, codes: Tensor, absent: Tensor, *, method: str) -> Tensor | None:
    """Rank values ``[n]`` whose groups are contiguous, ascending and small, like an item's list in most logs.

    Returns float64 ``[n]``, NaN where ``absent``; None: the groups are not like this, or there is no compiler.
    """
    plain = on_host(values) and values.dtype in (torch.float64, torch.int64)
    if method not in _TIES or not plain or not compiled(len(values), limits.COMPILED_ROWS):
        return None
    ranks = torch.empty(len(values), dtype=torch.float64)
    given = (view(x.contiguous()) for x in (values, codes, absent, ranks))
    return ranks if shared(groups().rank_small_groups, *given, _TIES.index(method), numbers=len(values)) else None


def last_before(keys: Sequence[Tensor], events: Sequence[Tensor]) -> Tensor:
    """Find the last event before each row in its group: int64 ``[q]``, its position, or -1 if there is none.

    ``keys``: the rows' groups (0 = none) and order keys, int64 ``[q]`` each. ``events``: the same for at least one
    event, sorted, int64 ``[e]``. An event with exactly a row's keys is not before it.
    """
    highest = max(int(events[0][-1]) - 1, 0)
    buckets = max(len(events[0]) // limits.EVENTS_A_BUCKET, limits.EVENT_BUCKETS)
    shift = max(0, highest.bit_length() - buckets.bit_length())
    starts = torch.empty((highest >> shift) + 3, dtype=torch.int64)
    # Buckets limit the search of each row to a few events.
    groups().bucket_starts(view(events[0]), shift, view(starts))
    found = torch.empty_like(keys[0])
    both = (view(k[0].contiguous()[None] if len(k) == 1 else torch.stack(list(k))) for k in (keys, events))
    shared(groups().last_before, *both, shift, view(starts), True, view(found), numbers=len(found))
    return found


def lexical_order(keys: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the stable permutation that sorts rows by the first key, then the second, and so on.

    Args:
        keys: numbers ``[n]`` each, one or more; NaN sorts last.

    Returns:
        int64 ``[n]``, or None if the rows are already in that order (no sort is needed).
    """
    if len(keys[0]) <= limits.REQUEST_ROWS and on_host(keys[0]):
        order = np.lexsort([key.numpy() for key in reversed(keys)])
        return None if (order[1:] > order[:-1]).all() else torch.from_numpy(order)
    keys = [_as_integer(key) for key in keys]
    joined = _one_key(keys)
    keys = keys if joined is None else [joined]
    if _in_order(keys):
        return None
    order = sort_rows(keys[-1])[0]
    for key in reversed(keys[:-1]):
        order = order.index_select(0, sort_rows(key.index_select(0, order))[0])
    return order


def _as_integer(key: torch.Tensor) -> torch.Tensor:
    """Return a key as int64 in the same order, NaN last; integers sort faster, small ones several times."""
    if not key.is_floating_point():
        return key.long()
    key = key.double()
    # Whole numbers, or numbers with two decimals (prices); a few rows tell if checking all of them pays.
    for scale in (1, 100):
        if _scaled(key[:1000], scale) is not None and (scaled := _scaled(key, scale)) is not None:
            return scaled
    return float_order(key)


def float_order(key: torch.Tensor) -> torch.Tensor:
    """Return float64 as int64 in the same order, NaN last."""
    bits = (key + 0.0).view(torch.int64)  # -0.0 and 0.0 are one value
    # Negative floats rise as their bits fall, so all bits but the sign are flipped.
    return torch.where(key.isnan(), torch.iinfo(torch.int64).max, torch.where(bits < 0, bits ^ ((1 << 63) - 1), bits))


def _scaled(key: torch.Tensor, scale: int) -> torch.Tensor | None:
    whole = torch.round(key * scale)
    gone = key.isnan()
    # A whole number represents one float, the nearest to number / scale: the order is the same.
    exact = (whole / scale == key) & (whole.abs() < 2.0**52)
    if not bool((exact | gone).all()):
        return None
    last = int(whole.nan_to_num(0).max()) + 1 if len(key) else 0
    return torch.where(gone, last, whole).long()


def _in_order(keys: Sequence[torch.Tensor]) -> bool:
    equal = torch.ones(max(len(keys[0]) - 1, 0), dtype=torch.bool, device=keys[0].device)
    for key in keys:
        if bool((equal & (key[1:] < key[:-1])).any()):
            return False
        equal &= key[1:] == key[:-1]
    return True


def _one_key(keys: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return integer keys as one int64 if their ranges fit, else None."""
    if len(keys) == 1 or not len(keys[0]):
        return keys[0]
    found = extremes(*keys)
    bounds = list(zip(found[::2], found[1::2], strict=True))
    if math.prod(high - low + 1 for low, high in bounds) >= 1 << 62:
        return None
    joined = keys[0] - bounds[0][0]
    for key, (low, high) in zip(keys[1:], bounds[1:], strict=True):
        joined = joined.mul_(high - low + 1).add_(key).sub_(low)
    return joined


def run_starts(first: torch.Tensor) -> torch.Tensor:
    """Return the start of each position's run; ``first`` marks starts: int64 ``[n]``, 0 before the first run."""
    places = torch.arange(len(first), device=first.device).masked_fill_(~first, 0)
    if on_host(first) and len(first) <= limits.REQUEST_ROWS:
        return torch.from_numpy(np.maximum.accumulate(places.numpy()))
    if not on_host(first):
        return torch.cummax(places, 0).values if len(first) else places
    for start in range(0, len(first), limits.RUN_BLOCK):
        block = places[start : start + limits.RUN_BLOCK]
        if start:
            block[0].clamp_(min=places[start - 1])
        block.copy_(torch.cummax(block, 0).values)
    return places


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows sorted by group and in order within it."""

    order: torch.Tensor | None  #: int64 ``[n]``, the rows in sorted order; None = they are already sorted
    codes: torch.Tensor  #: int64 ``[n]``, the group of each sorted row
    start: torch.Tensor  #: int64 ``[n]``, for each sorted position the position of its group's first row

    @classmethod
    def of(cls, codes: torch.Tensor, *order: torch.Tensor) -> Groups:
        """Group rows by ``codes`` and order them by the ``order`` keys, ties by row number."""
        return cls.arranged(codes, lexical_order([codes, *order]))

    @classmethod
    def arranged(cls, codes: torch.Tensor, permutation: torch.Tensor | None) -> Groups:
        """Group rows that a permutation (int64 ``[n]``; None: identity) puts in order."""
        codes = codes if permutation is None else codes.index_select(0, permutation)
        first = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        first[1:] = codes[1:] != codes[:-1]
        return cls(permutation, codes, run_starts(first))

    @property
    def place(self) -> torch.Tensor:
        """Position of each sorted row in its group, from 0: int64 ``[n]``."""
        return torch.arange(len(self.codes), device=self.codes.device) - self.start

    def sort(self, values: torch.Tensor) -> torch.Tensor:
        """Convert values from row order to sorted order."""
        return values if self.order is None else values.index_select(0, self.order)

    def unsort(self, values: torch.Tensor) -> torch.Tensor:
        """Convert values from sorted order to row order."""
        if self.order is None or values.ndim > 1:
            return values if self.order is None else torch.empty_like(values).index_copy_(0, self.order, values)
        return torch.empty_like(values).scatter_(0, self.order, values)  # faster


def shift_in_group(groups: Groups, periods: int) -> torch.Tensor:
    """Return the row ``periods`` positions before each row in its group (after it, if negative).

    Returns:
        int64 ``[n]`` row numbers in the input's row order, -1 if there is no such row.
    """
    codes = groups.codes
    n = len(codes)
    order = torch.arange(n, device=codes.device) if groups.order is None else groups.order
    rows = torch.full_like(codes, -1)
    here, there = slice(max(periods, 0), n + min(periods, 0)), slice(max(-periods, 0), n - max(periods, 0))
    if abs(periods) < n:
        rows[here] = order[there]
        rows[here].masked_fill_(codes[here] != codes[there], -1)
    return groups.unsort(rows)


def cumsum_in_group(values: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Sum the rows before each row in its group; values of one group do not affect another's rounding.

    Args:
        values: ``[n]`` in row order, without NaN.
        groups: the groups.

    Returns:
        int64 or float64 ``[n]`` in row order; a group's first row has 0.
    """
    ordered = groups.sort(values)
    ordered = ordered.double() if ordered.is_floating_point() else ordered.long()
    if not len(ordered):
        return ordered
    if ordered.is_floating_point():
        total = running_sum(ordered[None], groups.place)[0]
    else:  # integers wrap around both ways, so that subtracting the start is exact
        total = torch.cumsum(ordered, 0)
        total = total - (total - ordered)[groups.start]
    del ordered  # several columns of this size are in memory here: freeing one lowers the peak
    before = torch.empty_like(total)
    before[1:] = total[:-1]
    del total
    return groups.unsort(before.masked_fill_(groups.place == 0, 0))


def running_sum(values: torch.Tensor, place: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``y[i] = factor[i] · y[i - 1] + values[i]`` in each group, ``y = values`` in its first row: ``[c, n]``.

    Rows of a group are together, ``place`` is a row's in its group. A sum is formed from blocks (Blelloch 1990, "Prefix
    sums and their applications") by that place alone: neither later rows nor other groups touch its rounding.
    """
    if not len(place):
        return values
    longest = int(place.max()) + 1
    if longest <= limits.RUNNING_BLOCK or not on_host(values):  # on a device every level of blocks would be a wait
        return _short_sum(values, place, factor, longest)[0]
    inside = place % limits.RUNNING_BLOCK
    total, product = _short_sum(values, inside, factor, limits.RUNNING_BLOCK)
    goes_on = torch.zeros_like(place, dtype=torch.bool)
    goes_on[:-1] = (inside[:-1] == limits.RUNNING_BLOCK - 1) & (place[1:] > 0)
    ends = goes_on.nonzero().squeeze(1)
    blocks = running_sum(
        total.index_select(1, ends),
        place[ends] // limits.RUNNING_BLOCK,
        None if product is None else product.index_select(0, ends),
    )
    block = (torch.cumsum(goes_on, 0) - goes_on.long() - 1).clamp_min(0)  # the last one that ends before the row
    carried = blocks.index_select(1, block).masked_fill_(place < limits.RUNNING_BLOCK, 0)
    return total.add_(carried) if product is None else total.addcmul_(carried, product.expand_as(carried))


def _short_sum(
    values: torch.Tensor, inside: torch.Tensor, factor: torch.Tensor | None, longest: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum runs of at most ``longest`` rows by doubling steps; also multiply the factors."""
    total, product = values.clone(), None if factor is None else factor.clone()
    step = 1
    while step < longest:
        reaches = inside[step:] >= step
        before = torch.where(reaches, total[:, :-step], 0)
        if product is None:
            total[:, step:] += before
        else:
            total[:, step:] += before * product[step:]
            product[step:] = product[step:] * torch.where(reaches, product[:-step], 1)
        step *= 2
    return total, product


def last_in_group(marks: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Find the latest marked row before each row in its group.

    Args:
        marks: bool ``[n]`` in row order.
        groups: the groups.

    Returns:
        int64 ``[n]`` row numbers in row order, -1 if there is no such row.
    """
    ordered = groups.sort(marks)
    places = torch.arange(len(ordered), device=ordered.device)
    if not len(ordered):
        return places
    latest = torch.cummax(torch.where(ordered, places, -1), 0).values
    latest = torch.cat([latest.new_full((1,), -1), latest[:-1]])
    found = latest >= groups.start
    rows = latest.clamp_min(0) if groups.order is None else groups.order[latest.clamp_min(0)]
    return groups.unsort(torch.where(found, rows, -1))


def rank_in_group(
    values: torch.Tensor, codes: torch.Tensor, *, method: str = "min", missing: torch.Tensor | None = None
) -> torch.Tensor:
    """Rank each value in its group from 1, smallest first; NaN and missing values have no rank.

    Args:
        values: floats or integers ``[n]``.
        codes: groups, int64 ``[n]``.
        method: ties get the lowest (``min``), highest (``max``), mean (``average``) or successive ranks (``ordinal``:
            in row order); ``dense`` ranks count distinct values only. These are pandas' methods (its ``first`` is
            ``ordinal``).
        missing: bool ``[n]``; None: true for NaN.

    Returns:
        float64 ``[n]``, NaN if the value is missing.
    """
    if values.is_floating_point():
        absent = values.isnan() if missing is None else missing | values.isnan()
        if missing is not None and bool(missing.any()):
            values = torch.where(absent, torch.nan, values)
        keys = [values]  # NaN sorts last
    else:
        absent = torch.zeros_like(codes, dtype=torch.bool) if missing is None else missing
        keys = [values] if missing is None else [missing.long(), values]
    ranks = rank_small_groups(values, codes, absent, method=method)
    if ranks is not None:
        return ranks
    if len(codes) <= limits.PAIRED_ROWS and method in ("min", "max", "average") and on_host(codes):
        others = (codes[:, None] == codes) & ~absent  # of a request's list all pairs of values are compared
        counts = []
        if method != "max":
            counts.append((others & (values < values[:, None])).sum(1) + 1)
        if method != "min":
            counts.append((others & (values <= values[:, None])).sum(1))
        rank = counts[0] if len(counts) == 1 else (counts[0] + counts[1]) / 2
        return rank.double().masked_fill_(absent, torch.nan)
    groups = Groups.of(codes, *keys)
    del keys
    ordered, gone = groups.sort(values), groups.sort(absent)
    if not len(ordered):
        return values.double()
    new = torch.ones(len(ordered), dtype=torch.bool, device=values.device)
    new[1:] = (ordered[1:] != ordered[:-1]) | (groups.codes[1:] != groups.codes[:-1]) | (gone[1:] != gone[:-1])
    del ordered, gone
    first = run_starts(new)
    if method == "ordinal":
        rank = groups.place + 1
    elif method == "dense":
        run = torch.cumsum(new, 0)
        rank = run - run.index_select(0, groups.start) + 1
    else:
        rank = first.sub_(groups.start).add_(1)
        if method != "min":
            run = torch.cumsum(new, 0) - 1
            high = rank + torch.bincount(run).index_select(0, run) - 1
            rank = high if method == "max" else (rank + high) / 2
    rank, groups = rank.double(), replace(groups, codes=rank, start=rank)  # frees memory that is no longer needed
    del first
    return groups.unsort(rank).masked_fill_(absent, torch.nan)


def segment_count(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Count rows by code: int64 ``[size]``."""
    return torch.bincount(codes, minlength=size)


def segment_sum(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Sum ``values`` (``[n]``) by code: ``[size]``, float64 for floats, int64 for integers; 0 for an empty segment."""
    # Without rows bincount ignores the weights' type.
    if values.is_floating_point() and on_host(values) and len(values):
        return torch.bincount(codes, weights=values.double(), minlength=size)
    wide = values.double() if values.is_floating_point() else values.long()
    return torch.zeros(size, dtype=wide.dtype, device=values.device).index_add_(0, codes, wide)


def segment_mean(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Average ``values`` (``[n]``) by code: float64 ``[size]``; NaN for an empty segment."""
    return segment_sum(values.double(), codes, size) / segment_count(codes, size)


def segment_min(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Take the smallest value by code: ``[size]``; +inf (floats) or the largest integer for an empty segment."""
    return _reduce(values, codes, size, "amin")


def segment_max(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Take the largest value by code: ``[size]``; -inf (floats) or the smallest integer for an empty segment."""
    return _reduce(values, codes, size, "amax")


def _reduce(values: torch.Tensor, codes: torch.Tensor, size: int, how: str) -> torch.Tensor:
    if values.is_floating_point():
        start = torch.inf if how == "amin" else -torch.inf
    else:
        start = torch.iinfo(values.dtype).max if how == "amin" else torch.iinfo(values.dtype).min
    return torch.full((size,), start, dtype=values.dtype, device=values.device).scatter_reduce_(0, codes, values, how)


def as_of(
    codes: torch.Tensor, order: Sequence[torch.Tensor], event_codes: torch.Tensor, event_order: Sequence[torch.Tensor]
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
    if on_host(codes) and len(event_codes) and compiled(len(codes) + len(event_codes), limits.COMPILED_ROWS):
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

    The arguments are those of ``as_of``, with at most ``REQUEST_ROWS`` rows, on the CPU.
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
