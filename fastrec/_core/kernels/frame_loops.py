"""Loops that prepare a frame's rows on a CPU, compiled: text coded, columns looked at, prepared rows packed.

A column is an address, since a frame's columns are of many types and a loop is compiled once for all of them. A piece
of it is read as float64 or int64 into a buffer that stays in the cache. Loops take a stretch of rows each, and have no
threads of their own.
"""

import numpy as np
from numba import carray, njit

from fastrec._core.kernels.loop_tools import LOOP, pointer

TYPES = tuple(np.dtype(t) for t in ("f8", "f4", "i8", "i4", "i2", "i1", "u1"))  # a column's type is a place in this
_F64, _F32, _I64, _I32, _I16, _I8, _U8 = range(7)
ADDRESS, TYPE, WORD, WIDE, IS_NUMBER, TABLE, LOW, HIGH, FLAG = range(9)  # fields of a column that is packed
FIELDS = 9
PIECE = 1024  # rows that are looked at together
_WORDS = 1 << 13  # 4-byte words of packed rows that are made before they are put in their places
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CODE = np.uint64(0xFFFFFFFF)  # of a place in a table of text
_u64 = np.uint64


@njit(inline="always")
def _copy(x, start, m, out):
    for i in range(_u64(m)):
        out[i] = x[_u64(start) + i]


@njit(**LOOP)
def _read(address, kind, start, m, out):
    """Read ``m`` numbers of a column from row ``start`` on into the type of ``out``."""
    n = start + m
    if kind == _F64:
        _copy(carray(pointer(address), n, np.float64), start, m, out)
    elif kind == _F32:
        _copy(carray(pointer(address), n, np.float32), start, m, out)
    elif kind == _I64:
        _copy(carray(pointer(address), n, np.int64), start, m, out)
    elif kind == _I32:
        _copy(carray(pointer(address), n, np.int32), start, m, out)
    elif kind == _I16:
        _copy(carray(pointer(address), n, np.int16), start, m, out)
    elif kind == _I8:
        _copy(carray(pointer(address), n, np.int8), start, m, out)
    else:
        _copy(carray(pointer(address), n, np.uint8), start, m, out)


@njit(**LOOP)
def count_whole(address, kind, chosen, n, low, counts):
    """Count how often each whole number occurs.

    Args:
        address, kind: the column.
        chosen: bool ``[n]``, the rows that count; of no length: all of them.
        n: how many rows there are.
        low: the smallest number.
        counts: int64 ``[high - low + 1]``, changed.
    """
    values, every = np.empty(PIECE, np.int64), len(chosen) == 0
    for start in range(0, n, PIECE):
        m = min(PIECE, n - start)
        _read(address, kind, start, m, values)
        for i in range(_u64(m)):
            counts[_u64(values[i] - low)] += every or chosen[_u64(start) + i]


@njit(**LOOP)
def look(address, kind, chosen, n, shift, first, last, between):
    """Sum a column's numbers, and collect those near two numbers for a median.

    Args:
        address, kind: the column.
        chosen: bool ``[n]``, the rows that count; of no length: all of them.
        n: how many rows there are.
        shift: a number near the mean.
        first, last: numbers below and above the median, in order.
        between: float64, changed: the numbers between the two, as far as there is room for them and one piece more.

    Returns:
        How many numbers are there, how many are missing, the sum of their distances from ``shift``, that of their
        squares, how many are below ``first``, at most ``first``, below ``last``, at most ``last``, and between them.
    """
    values, every = np.empty(PIECE, np.float64), len(chosen) == 0
    count, gaps, total, squares, held = 0, 0, 0.0, 0.0, 0
    below_first, to_first, below_last, to_last = 0, 0, 0, 0
    for start in range(0, n, PIECE):
        m = min(PIECE, n - start)
        _read(address, kind, start, m, values)
        k, here = _u64(0), 0
        for i in range(_u64(m)):
            x = values[i]
            values[k] = x
            counts = every or chosen[_u64(start) + i]
            here += counts
            k += _u64(counts & (x == x))
        count += np.int64(k)
        gaps += here - np.int64(k)
        one, two = 0.0, 0.0
        a, b, c, d = 0, 0, 0, 0
        for i in range(k):
            x = values[i]
            off = x - shift
            one += off
            two += off * off
            a += x < first
            b += x <= first
            c += x < last
            d += x <= last
        total += one
        squares += two
        below_first += a
        to_first += b
        below_last += c
        to_last += d
        if c > b and held + m <= len(between):
            for i in range(k):
                x = values[i]
                between[_u64(held)] = x
                held += (x > first) & (x < last)
    return count, gaps, total, squares, below_first, to_first, below_last, to_last, held


@njit(**LOOP)
def _write_whole(values, m, column, whole, long, words):
    """Write a column's codes into row-major rows."""
    low, high, at = column[LOW], column[HIGH], _u64(column[WORD])
    if column[TABLE] != 0:
        table = carray(pointer(column[TABLE]), high - low + 1, np.int32)
        for i in range(_u64(m)):
            values[i] = table[_u64(min(max(values[i], low), high) - low)]
    if column[WIDE] != 0:
        for i in range(_u64(m)):
            long[(i * words + at) >> _u64(1)] = values[i]
    else:
        for i in range(_u64(m)):
            whole[i * words + at] = values[i]


@njit(**LOOP)
def _write_numbers(values, m, column, scale, real, whole, long, words, shift, wide_codes):
    """Write a column's numbers, filled and scaled, into row-major rows, and where they were missing."""
    at, flag = _u64(column[WORD]), _u64(column[FLAG])
    fill, mean, sd = scale[0], scale[1], scale[2]
    if column[FLAG] >= 0:
        for i in range(_u64(m)):
            missing = (values[i] != values[i]) + shift
            if wide_codes:
                long[(i * words + flag) >> _u64(1)] = missing
            else:
                whole[i * words + flag] = missing
    if fill == fill:
        for i in range(_u64(m)):
            values[i] = values[i] if values[i] == values[i] else fill
    if column[WIDE] != 0:
        reals = long.view(np.float64)
        for i in range(_u64(m)):
            reals[(i * words + at) >> _u64(1)] = (values[i] - mean) / sd
    else:
        for i in range(_u64(m)):
            real[i * words + at] = (values[i] - mean) / sd


@njit(**LOOP)
def pack(columns, scales, shift, wide_codes, places, start, stop, out):
    """Prepare rows and write them whole to their places.

    Args:
        columns: int64 ``[c, FIELDS]``: address of row 0 and type; first word in a row; whether it has 8 bytes there;
            whether it is a number (else a code); address of an int32 table of codes, or 0, and the smallest and
            largest number that it has a place for; first word of the code that says whether it is missing, or -1.
        scales: float64 ``[c, 3]``: of numbers, what fills them (NaN: nothing), mean and standard deviation.
        shift: the code of a number that is there.
        wide_codes: whether that code has 8 bytes.
        places: int64 ``[n]``, where each row goes, past the end: nowhere; of no length: where it stands.
        start, stop: which rows.
        out: int32 ``[rows, words]``, changed.
    """
    words = _u64(out.shape[1])
    rows = max(_WORDS // out.shape[1], 16)
    whole = np.zeros(rows * out.shape[1] + 1 & ~1, np.int32)  # what pads a row stays 0
    real, long = whole.view(np.float32), whole.view(np.int64)
    numbers, codes = np.empty(rows, np.float64), np.empty(rows, np.int64)
    for lo in range(start, stop, rows):
        m = min(rows, stop - lo)
        for j in range(len(columns)):
            column = columns[j]
            if column[IS_NUMBER] != 0:
                _read(column[ADDRESS], column[TYPE], lo, m, numbers)
                _write_numbers(numbers, m, column, scales[j], real, whole, long, words, shift, wide_codes)
            else:
                _read(column[ADDRESS], column[TYPE], lo, m, codes)
                _write_whole(codes, m, column, whole, long, words)
        for i in range(_u64(m)):
            place = places[_u64(lo) + i] if len(places) else lo + np.int64(i)
            if place < len(out):
                row = out[_u64(place)]
                for w in range(words):
                    row[w] = whole[i * words + w]


@njit(**LOOP)
def _eight(address, at, size, end):
    """Read up to eight bytes from a place on, as a number; none from ``end`` on."""
    if at + 8 <= end:
        word = carray(pointer(address + at), 1, np.uint64)[0]
        return word if size >= 8 else word & ((_u64(1) << _u64(8 * size)) - _u64(1))
    data, word = carray(pointer(address), end, np.uint8), _u64(0)
    for b in range(min(size, 8)):
        word |= _u64(data[_u64(at + b)]) << _u64(8 * b)
    return word


@njit(**LOOP)
def _hash_of(address, at, size, end, word):  # the first eight bytes are in ``word``
    state = word ^ (_u64(size) * _FACTOR)
    state = (state ^ (state >> _u64(32))) * _FACTOR  # a product's low half knows nothing of the last letters
    for b in range(8, size, 8):
        state = ((state ^ (state >> _u64(29))) ^ _eight(address, at + b, size - b, end)) * _FACTOR
    return state ^ (state >> _u64(32))


@njit(**LOOP)
def _same(address, at, other, size, end):
    """Tell whether two values of one length are equal from the ninth byte on."""
    for b in range(8, size, 8):
        if _eight(address, at + b, size - b, end) != _eight(address, other + b, size - b, end):
            return False
    return True


@njit(**LOOP)
def _grow(slots, hashes, k):
    """Return a table of four times the size. A place has a word, and a value's length above its code."""
    more = np.zeros(4 * len(slots), np.uint64)
    mask, before = _u64(len(more) // 2 - 1), _u64(len(slots) // 2)
    for i in range(before):
        entry = slots[_u64(2) * i + _u64(1)]
        if entry == 0:
            continue
        place = hashes[(entry & _CODE) - _u64(1)] & mask
        while more[_u64(2) * place + _u64(1)] != 0:
            place = (place + _u64(1)) & mask
        more[_u64(2) * place], more[_u64(2) * place + _u64(1)] = slots[_u64(2) * i], entry
    rows_hashes = np.empty(len(more) // 4, np.uint64)
    rows_hashes[:k] = hashes[:k]
    return more, rows_hashes


@njit(**LOOP)
def code_text(offsets, address, valid, codes, rows):
    """Code text by its distinct values, in the order in which they first appear.

    Args:
        offsets: where each value starts and the last one ends, int32 or int64 ``[n + 1]``.
        address: where the bytes are.
        valid: bool ``[n]``, which values are there; of no length: all of them.
        codes: int32 ``[n]``, changed: 0 where missing, else from 1.
        rows: int64 ``[n]``, changed: first the rows in which the distinct values first stand.

    Returns:
        How many distinct values there are.
    """
    slots = np.zeros(2 << 12, np.uint64)
    hashes, k, end = np.empty(1 << 11, np.uint64), 0, np.int64(offsets[len(codes)])
    mask = _u64(len(slots) // 2 - 1)
    for i in range(_u64(len(codes))):
        if len(valid) and not valid[i]:
            codes[i] = 0
            continue
        at = np.int64(offsets[i])
        size = np.int64(offsets[i + _u64(1)]) - at
        word = _eight(address, at, size, end)
        hashed = _hash_of(address, at, size, end, word)
        place = hashed & mask
        while True:
            entry = slots[_u64(2) * place + _u64(1)]
            if entry == 0:
                rows[k], hashes[k] = i, hashed
                k += 1
                entry = (_u64(size) << _u64(32)) | _u64(k)
                slots[_u64(2) * place], slots[_u64(2) * place + _u64(1)] = word, entry
                if k == len(hashes):
                    slots, hashes = _grow(slots, hashes, k)
                    mask = _u64(len(slots) // 2 - 1)
                break
            if slots[_u64(2) * place] == word and entry >> _u64(32) == _u64(size):
                if size <= 8:
                    break
                if _same(address, at, np.int64(offsets[_u64(rows[(entry & _CODE) - _u64(1)])]), size, end):
                    break
            place = (place + _u64(1)) & mask
        codes[i] = np.int32(entry & _CODE)
    return k
