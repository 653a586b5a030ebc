"""Loops over groups of rows on a CPU, compiled: ranks among few rows, and the last event before a row.

Tensors come as numpy views. Each thread has a stretch of the rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL

LONGEST = 128  # rows: each value of a group is compared with all others, so that long groups are better sorted
LOWEST, HIGHEST, MEAN, ROW_ORDER = range(4)  # which place ties get

_u64 = np.uint64


@njit(**LOOP)
def _rank_group(values, absent, out, lo, hi, ties):
    """Rank rows ``lo`` to ``hi``, which are one group."""
    for i in range(_u64(lo), _u64(hi)):
        if absent[i]:
            out[i] = np.nan
            continue
        x, less, equal = values[i], 0, 0
        for j in range(_u64(lo), _u64(hi)):
            there = ~absent[j]
            less += there & (values[j] < x)
            equal += there & (values[j] == x)
        if ties == ROW_ORDER:
            equal = 1
            for j in range(_u64(lo), i):
                equal += ~absent[j] & (values[j] == x)
        if ties == LOWEST:
            out[i] = less + 1
        elif ties == MEAN:
            out[i] = less + (equal + 1) / 2
        else:
            out[i] = less + equal


@njit(**LOOP)
def _rank_part(values, codes, absent, out, ties, lo, hi):
    n, i = len(codes), lo
    while 0 < i < hi and codes[i] == codes[i - 1]:  # the stretch before has this group
        i += 1
    while i < hi:
        end = i + 1
        while end < n and codes[end] == codes[i]:
            end += 1
        if end - i > LONGEST or (end < n and codes[end] < codes[i]):
            return False
        _rank_group(values, absent, out, i, end, ties)
        i = end
    return True


@njit(**PARALLEL)
def rank_small_groups(values, codes, absent, out, ties, parts):
    """Rank every value in its group; groups are contiguous, ascending and small.

    Args:
        values: float64 or int64 ``[n]``.
        codes: the groups, int64 ``[n]``.
        absent: bool ``[n]``: no values, which get no rank.
        out: float64 ``[n]``, changed.
        ties: which place they get, see above.
        parts: how many threads.

    Returns:
        Whether the groups are as they have to be; if not, ``out`` is not all ranks.
    """
    n = len(codes)
    good = np.ones(parts, np.bool_)
    for part in prange(parts):
        good[part] = _rank_part(values, codes, absent, out, ties, n * part // parts, n * (part + 1) // parts)
    return good.all()


@njit(**LOOP)
def _is_less(keys, i, others, j):
    """Tell whether row ``i`` of some keys comes before row ``j`` of others."""
    for k in range(len(keys)):
        if keys[k, i] != others[k, j]:
            return keys[k, i] < others[k, j]
    return False


@njit(**LOOP)
def _bucket(code, shift):
    """Return a group's bucket: its number without the last bits, the first one for no group."""
    return ((code - 1) >> shift) + 1 if code > 0 else 0


@njit(**LOOP)
def bucket_starts(codes, shift, starts):
    """Return where each bucket of sorted groups starts.

    Args:
        codes: int64 ``[n]``, ascending.
        shift: see ``_bucket``.
        starts: int64 ``[buckets + 1]``, changed: the events of bucket ``b`` are ``starts[b]`` up to ``starts[b + 1]``.
    """
    b = 0
    starts[0] = 0
    for i in range(len(codes)):
        own = _bucket(codes[i], shift)
        while b < own:
            b += 1
            starts[b] = i
    while b < len(starts) - 1:
        b += 1
        starts[b] = len(codes)


@njit(**LOOP)
def _last_before(keys, events, shift, starts, strict, out, lo, hi):
    buckets = len(starts) - 1
    for i in range(lo, hi):
        code = keys[0, i]
        b = _bucket(code, shift)
        out[i] = -1
        if not 0 < b < buckets:
            continue
        first, last = starts[b], starts[b + 1]
        while first < last:  # events up to ``first`` are before the row, those from ``last`` on are not
            middle = (first + last) // 2
            if _is_less(events, middle, keys, i) or not (strict or _is_less(keys, i, events, middle)):
                first = middle + 1
            else:
                last = middle
        if first > starts[b] and events[0, first - 1] == code:
            out[i] = first - 1


@njit(**PARALLEL)
def last_before(keys, events, shift, starts, strict, out, parts):
    """Find the last event of each row's group that is before the row.

    Args:
        keys: the rows' groups and order keys, int64 ``[k, q]``; group 0 and below = none.
        events: those of the events, in their order, int64 ``[k, e]``.
        shift, starts: their buckets, see ``bucket_starts``.
        strict: an event at exactly a row's place is not before it.
        out: int64 ``[q]``, changed: -1 where there is none.
        parts: how many threads.
    """
    q = keys.shape[1]
    for part in prange(parts):
        _last_before(keys, events, shift, starts, strict, out, q * part // parts, q * (part + 1) // parts)
