"""Loops of a net's step on a CPU, compiled: embedding lookups and their gradients.

Each does in one pass over the memory what takes torch several calls: at a few thousand rows the calls, and the tensors
that go between them, cost more than the arithmetic. Tensors come as numpy views: 32-bit floats as such, bfloat16 as
its bits, ``uint16``; each function is compiled for either. Tables come as a plan: a row for each column of a batch,
with the addresses of what is read and written.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL, fit, pointer, read

# Places are unsigned: for others the compiler has to allow for negative ones, which count from the end.
_u64 = np.uint64
# A plan's columns: the column of ids; the first row of its table in the parameter, and how many rows are its own;
# floats of a vector; where the vector begins in a row of the result; the address of the parameter, or of the room for
# its gradient; where that is one of the batch's rows only (else 0), how many vectors a row of the batch has in it, and
# which this is; the thread that adds this column up.
COLUMN, START, SIZE, WIDTH, PLACE, ADDRESS, VECTORS, VECTOR, THREAD = range(9)


@njit(**LOOP)
def _gather_column(ids, plan, out, lo, hi):
    column, start, size, place = _u64(plan[COLUMN]), plan[START], plan[SIZE], _u64(plan[PLACE])
    width, wide, filled = _u64(plan[WIDTH]), _u64(out.shape[1]), out.ravel()
    table = carray(pointer(plan[ADDRESS]), (start + size) * plan[WIDTH], np.float32)
    good = True
    for i in range(_u64(lo), _u64(hi)):
        found = np.int64(ids[i, column])
        known = 0 <= found < size
        good &= known
        source, target = _u64(start + (found if known else 0)) * width, i * wide + place
        for d in range(width):
            filled[target + d] = fit(table[source + d], filled)
    return good


@njit(**PARALLEL)
def gather(ids, plan, out, parts):
    """Look columns up, each vector into its place in the result.

    Args:
        ids: ``[b, columns]``, integers from 0.
        plan: int64 ``[columns, 9]``, see above; parameters are float32 ``[rows, width]``.
        out: float32 or bfloat16 ``[b, ·]``, changed.
        parts: how many threads.

    Returns:
        Whether all ids are in their range.
    """
    b = len(ids)
    good = np.ones(parts, np.bool_)
    for part in prange(parts):
        for j in range(len(plan)):
            good[part] &= _gather_column(ids, plan[j], out, b * part // parts, b * (part + 1) // parts)
    return good.all()


@njit(**LOOP)
def _scatter_column(ids, plan, grad):
    b, vectors, start = len(ids), _u64(plan[VECTORS]), plan[START]
    width, wide, source = _u64(plan[WIDTH]), _u64(grad.shape[1]), grad.ravel()
    column, place, vector = _u64(plan[COLUMN]), _u64(plan[PLACE]), _u64(plan[VECTOR])
    rows = (b * plan[VECTORS]) if vectors else (start + plan[SIZE])
    target = carray(pointer(plan[ADDRESS]), rows * plan[WIDTH], np.float32)
    for i in range(_u64(b)):
        at = i * wide + place
        if vectors:
            to = (i * vectors + vector) * width
            for d in range(width):
                target[to + d] = read(source[at + d])
        else:
            to = _u64(start + np.int64(ids[i, column])) * width
            for d in range(width):
                target[to + d] += read(source[at + d])


@njit(**PARALLEL)
def scatter(ids, plan, grad, parts):
    """Add up the gradients of the vectors that ``gather`` looked up by row, or return them one by one.

    Args:
        ids, plan: as there, but with the addresses of the gradients.
        grad: of its result, float32 or bfloat16 ``[b, ·]``.
        parts: how many threads.
    """
    for part in prange(parts):
        for j in range(len(plan)):
            if plan[j, THREAD] % parts == part:
                _scatter_column(ids, plan[j], grad)
