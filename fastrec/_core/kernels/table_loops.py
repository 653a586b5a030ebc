"""Loops over groups of rows and over click logs on a CPU, compiled."""

import math

import numpy as np
from numba import njit, prange

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL

# Loops over groups of rows on a CPU, compiled: ranks among few rows, and the last event before a row.
#
# Tensors come as numpy views. Each thread has a stretch of the rows.

LONGEST = 128  # rows: each value of a group is compared with all others, so that long groups are better sorted
LOWEST, HIGHEST, MEAN, ROW_ORDER = range(4)  # which place ties get

_u32, _u64 = np.uint32, np.uint64


@njit(**LOOP)
def _rank_group(values, absent, out, lo, hi, ties):
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


# Loops over click logs: text to numbers, how often a value comes, values to codes. Each is for the thread that calls.
#
# A row is int32 words: the categories' 32-bit values, the numbers, then one word that holds the label in bit 0 and, in
# bit 1 + j, whether category j is missing. A table of values is open addressing over uint64 words: a value in the upper
# half, its count or its code (from 1) in the lower one; 0 is an empty place.

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio (Knuth, vol. 3, 6.4)
_LOW = np.uint64(0xFFFFFFFF)
_DIGITS = np.full(256, 0x80, dtype=np.uint8)
_DIGITS[48:58] = np.arange(10)
_DIGITS[97:103] = np.arange(10, 16)
_TAB, _LINE, _RETURN, _MINUS = 9, 10, 13, 45


@njit(**LOOP)
def parse_rows(text, at, stop, n_cat, n_cont, out, lows):
    """Parse whole lines ``label TAB numbers TAB categories``; ``lows`` takes each number's smallest value.

    Args:
        text: uint8, with 16 bytes more than ``stop`` at least.
        at, stop: where the first line begins, and where the last ends.
        n_cat, n_cont: how many there are of each.
        out: int32 ``[lines, n_cat + n_cont + 1]``.
        lows: int64 ``[n_cont]``.

    Returns:
        Row and field (from 0, in the file's order) of the first fault as ``row * 64 + field``; -1: there is none.
    """
    last = n_cat - 1
    for row in range(len(out)):
        label = text[at] - 48
        if label < 0 or label > 1 or text[at + 1] != _TAB:
            return row * 64
        at += 2
        for j in range(n_cont):
            value, first = 0, at
            negative = text[at] == _MINUS
            if negative:
                at += 1
                first = at
            digit = text[at] - 48
            while digit >= 0 and digit <= 9 and at - first < 11:
                value = value * 10 + digit
                at += 1
                digit = text[at] - 48
            if text[at] != _TAB or (negative and at == first) or value > 2147483647:
                return row * 64 + 1 + j
            at += 1
            value = -value if negative else value
            lows[j] = min(lows[j], value)
            out[row, n_cat + j] = value
        missing = 0
        for j in range(n_cat):
            end = _LINE if j == last else _TAB
            if j == last and text[at] == _RETURN and text[at + 1] == _LINE:
                at += 1
            if text[at] == end:
                missing |= 1 << j
                out[row, j] = 0
                at += 1
                continue
            value, odd = _u32(0), _u32(0)
            for k in range(8):
                digit = _u32(_DIGITS[text[at + k]])
                value = _u32(value << _u32(4)) | _u32(digit & _u32(15))
                odd |= digit
            at += 8
            if j == last and text[at] == _RETURN:
                at += 1
            if odd > _u32(15) or text[at] != end:
                return row * 64 + 1 + n_cont + j
            at += 1
            out[row, j] = np.int32(value)
        out[row, n_cat + n_cont] = np.int32(_u32(label) | _u32(_u32(missing) << _u32(1)))
    return -1 if at == stop else len(out) * 64


@njit(**LOOP)
def count_values(rows, start, column, table, used, limit, bits, part):
    """Count a category's values, of those whose mixed bits begin with ``part``; a table that is full ends it.

    Returns:
        The first row that was not counted, and how many places are used.
    """
    state, shift = rows.shape[1] - 1, _shift_of(table)
    mask = _u64(len(table) - 1)
    for i in range(start, len(rows)):
        if (_u32(rows[i, state]) >> _u32(column + 1)) & _u32(1):
            continue
        value = _u64(_u32(rows[i, column]))
        mixed = value * _MIX
        if bits and mixed >> _u64(64 - bits) != _u64(part):
            continue
        place = (mixed << _u64(bits)) >> shift
        while True:
            found = table[place]
            if found >> _u64(32) == value and found != 0:
                if found & _LOW != _LOW:
                    table[place] = found + _u64(1)
                break
            if found == 0:
                if used == limit:
                    return i, used
                table[place] = (value << _u64(32)) | _u64(1)
                used += 1
                break
            place = (place + _u64(1)) & mask
    return len(rows), used


@njit(**LOOP)
def _shift_of(table):
    bits = 0
    while (1 << bits) < len(table):
        bits += 1
    return _u64(64 - bits)


@njit(**LOOP)
def move_values(old, new, bits, part):
    """Copy values whose mixed bits begin with ``part`` to an empty table, and return their number."""
    shift, mask, used = _shift_of(new), _u64(len(new) - 1), 0
    for found in old:
        mixed = (found >> _u64(32)) * _MIX
        if found == 0 or (bits and mixed >> _u64(64 - bits) != _u64(part)):
            continue
        place = (mixed << _u64(bits)) >> shift
        while new[place] != 0:
            place = (place + _u64(1)) & mask
        new[place] = found
        used += 1
    return used


@njit(**LOOP)
def encode_rows(rows, n_cat, starts, tables, lows, logs):
    """Encode packed rows in place: codes, logarithms, and the label as a float32.

    Args:
        rows: int32 ``[n, n_cat + n_cont + 1]``: categories, numbers, and the label with the flags of missing values.
        n_cat: the number of categorical columns.
        starts: int64 ``[n_cat + 1]``: where the hash table of each of these columns begins in ``tables``.
        tables: uint64, the hash tables of all columns; an unknown value gets the code 1, a missing one 0.
        lows: int64 ``[n_cont]``: the minimum that is subtracted from each number before ``log(1 + x)``.
        logs: float32 ``[m]``: the logarithms ``log(1 + x)`` of 0, 1, …, m - 1, computed beforehand.
    """
    numbers = rows.view(np.float32)
    n_cont, known = rows.shape[1] - n_cat - 1, len(logs)
    shifts = np.empty(n_cat, np.uint64)
    for j in range(n_cat):
        shifts[j] = _shift_of(tables[starts[j] : starts[j + 1]])
    for i in range(len(rows)):
        state = _u32(rows[i, n_cat + n_cont])
        for j in range(n_cat):
            code = 0
            if not (state >> _u32(j + 1)) & _u32(1):
                value, code = _u64(_u32(rows[i, j])), 1
                mask, first = _u64(starts[j + 1] - starts[j] - 1), _u64(starts[j])
                place = (value * _MIX) >> shifts[j]
                while True:
                    found = tables[first + place]
                    if found == 0:
                        break
                    if found >> _u64(32) == value:
                        code = np.int64(found & _LOW)
                        break
                    place = (place + _u64(1)) & mask
            rows[i, j] = code
        for j in range(n_cont):
            value = max(np.int64(rows[i, n_cat + j]) - lows[j], 0)
            numbers[i, n_cat + j] = logs[value] if value < known else np.float32(math.log1p(value))
        numbers[i, n_cat + n_cont] = np.float32(state & _u32(1))
