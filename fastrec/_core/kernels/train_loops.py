"""Loops of a training step on a CPU, compiled: embedding lookups, LAMB over a layer, AdamW over the rows of a batch.

Arrays are float32 views of tensors, scalars come as Python floats and are made float32 here.
"""

import math

import numpy as np
from numba import carray, njit, prange, types
from numba.extending import overload

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL, pointer

# Places are unsigned: for others the compiler has to allow for negative ones, which count from the end.
_f32, _u32, _u64 = np.float32, np.uint32, np.uint64

# A lookup's plan has a row for each column of ids: first and last row of its table in the parameter, floats of a
# vector, its place in a row of the result, the address of the parameter or of its gradient (0: none is wanted), and,
# where the gradient has the batch's rows only, how many vectors each has and which is this column's.
START, STOP, WIDTH, PLACE, ADDRESS, VECTORS, VECTOR = range(7)


def as_float32(x):
    """Read a float32, or the bits of a bfloat16."""


@overload(as_float32, inline="always")
def _read_as(x):
    return (lambda x: x) if isinstance(x, types.Float) else lambda x: _u32(_u32(x) << _u32(16)).view(_f32)


def like(x, out):
    """Return a float32 as the array holds it: the bits of the nearest bfloat16 (ties to even), or itself."""


@overload(like, inline="always")
def _written_as(x, out):
    def bits_of(x, out):
        bits = _f32(x).view(_u32)
        near = _u32(bits + _u32(0x7FFF) + _u32(_u32(bits >> _u32(16)) & _u32(1))) >> _u32(16)
        return np.uint16(near) if _u32(bits & _u32(0x7FFFFFFF)) <= _u32(0x7F800000) else np.uint16(0x7FC0)  # NaN

    return (lambda x, out: x) if isinstance(out.dtype, types.Float) else bits_of


@njit(**LOOP)
def _gather_column(ids, j, plan, out, lo, hi):
    width, wide, place, filled = _u64(plan[WIDTH]), _u64(out.shape[1]), _u64(plan[PLACE]), out.ravel()
    table, start = carray(pointer(plan[ADDRESS]), plan[STOP] * plan[WIDTH], np.float32), plan[START]
    size, good = plan[STOP] - start, True
    for i in range(_u64(lo), _u64(hi)):
        found = np.int64(ids[i, j])
        known = 0 <= found < size
        good &= known
        source, target = _u64(start + (found if known else 0)) * width, i * wide + place
        for d in range(width):
            filled[target + d] = like(table[source + d], filled)
    return good


@njit(**PARALLEL)
def gather(ids, plan, out, parts):
    """Look columns up, each vector into its place in the result; return whether all ids are in their tables.

    Args:
        ids: ``[b, columns]``, integers.
        plan: int64 ``[columns, 7]``, see above.
        out: float32, or the bits of bfloat16, ``[b, ·]``, changed.
        parts: how many threads.
    """
    good = np.ones(parts, np.bool_)
    for part in prange(parts):
        for j in range(len(plan)):
            good[part] &= _gather_column(ids, j, plan[j], out, len(ids) * part // parts, len(ids) * (part + 1) // parts)
    return good.all()


@njit(**LOOP)
def _scatter_column(ids, j, plan, grad):
    width, wide, place, source = _u64(plan[WIDTH]), _u64(grad.shape[1]), _u64(plan[PLACE]), grad.ravel()
    vectors, vector, start = _u64(plan[VECTORS]), _u64(plan[VECTOR]), plan[START]
    rows = len(ids) * plan[VECTORS] if vectors else plan[STOP]
    target = carray(pointer(plan[ADDRESS]), rows * plan[WIDTH], np.float32)
    for i in range(_u64(len(ids))):
        if vectors:
            for d in range(width):
                target[(i * vectors + vector) * width + d] = as_float32(source[i * wide + place + d])
        else:
            to = _u64(start + np.int64(ids[i, j])) * width
            for d in range(width):
                target[to + d] += as_float32(source[i * wide + place + d])


@njit(**PARALLEL)
def scatter(ids, plan, grad, parts):
    """Add the gradients ``[b, ·]`` of what ``gather`` looked up to those of its tables; a column is one thread's."""
    for part in prange(parts):
        for j in range(part, len(plan), parts):
            if plan[j, ADDRESS]:
                _scatter_column(ids, j, plan[j], grad)


_FETCHED = 64  # rows that are fetched ahead
_SHARED = 1 << 17  # numbers of a layer that several threads share: for fewer they take longer to start
_BLOCK = 8192  # numbers whose squares are added up in float32; blocks are added up in float64


@njit(**LOOP)
def _lamb_block(weights, grads, means, squares, beta1, beta2, new1, new2, fix1, fix2, eps, decay):
    # a function of its own: inside a parallel loop the compiler does not turn it into vector instructions
    weight_weight = _f32(0.0)
    move_move = _f32(0.0)
    for i in range(len(weights)):
        grad = grads[i]
        weight = weights[i]
        mean = beta1 * means[i] + new1 * grad
        square = beta2 * squares[i] + new2 * grad * grad
        means[i] = mean
        squares[i] = square
        move = mean * fix1 / (np.sqrt(square * fix2) + eps) + decay * weight
        weight_weight += weight * weight
        move_move += move * move
    return weight_weight, move_move


@njit(**LOOP)
def _lamb_move(weights, means, squares, fix1, fix2, eps, decay, rate):
    for i in range(len(weights)):
        weights[i] -= rate * (means[i] * fix1 / (np.sqrt(squares[i] * fix2) + eps) + decay * weights[i])


@njit(**LOOP)
def _lamb_means(weights, grads, means, squares, beta1, beta2, fix1, fix2, eps, decay, lo, hi):
    weight_weight, move_move = 0.0, 0.0
    for start in range(lo, hi, _BLOCK):
        end = min(start + _BLOCK, hi)
        found = _lamb_block(
            weights[start:end],
            grads[start:end],
            means[start:end],
            squares[start:end],
            _f32(beta1),
            _f32(beta2),
            _f32(1.0 - beta1),  # from the double: 1 - .999 of floats is wrong in its fifth digit
            _f32(1.0 - beta2),
            _f32(fix1),
            _f32(fix2),
            _f32(eps),
            _f32(decay),
        )
        weight_weight += found[0]
        move_move += found[1]
    return weight_weight, move_move


@njit(**LOOP)
def _trust(weight_weight, move_move, clamp, adapts):
    weight, move = min(math.sqrt(weight_weight), clamp), math.sqrt(move_move)
    return weight / move if adapts and weight > 0.0 and move > 0.0 else 1.0


@njit(**PARALLEL)
def _lamb_shared(weights, grads, means, squares, beta1, beta2, fix1, fix2, eps, decay, rate, clamp, adapts, parts):
    """Do LAMB's step of one layer in two passes: update and measure the running means, then apply."""
    n = len(weights)
    found = np.zeros((parts, 2))
    for part in prange(parts):
        lo, hi = n * part // parts, n * (part + 1) // parts
        found[part] = _lamb_means(weights, grads, means, squares, beta1, beta2, fix1, fix2, eps, decay, lo, hi)
    step = rate * _trust(found[:, 0].sum(), found[:, 1].sum(), clamp, adapts)
    for part in prange(parts):
        lo, hi = n * part // parts, n * (part + 1) // parts
        _lamb_move(
            weights[lo:hi], means[lo:hi], squares[lo:hi], _f32(fix1), _f32(fix2), _f32(eps), _f32(decay), _f32(step)
        )


@njit(**LOOP)
def lamb_layers(addresses, sizes, adapts, beta1, beta2, fix1, fix2, eps, decay, rate, clamp, parts):
    """Do LAMB's step of layers, large ones by several threads.

    Args:
        addresses: where weights, gradients, means and mean squares of each layer begin, int64 ``[layers, 4]``; float32.
        sizes: numbers of each layer, int64 ``[layers]``.
        adapts: whether its step is rescaled to its norm, bool ``[layers]``.
        beta1, beta2: what the means fade by.
        fix1, fix2: what corrects them for their start at zero, factors.
        eps: added to the root of the corrected square.
        decay: coefficient of the weights in the step, ``fix1 m / (√(fix2 v) + ε) + decay · w``.
        rate: the learning rate.
        clamp: largest weight norm that the trust ratio sees.
        parts: how many threads.
    """
    for layer in range(len(sizes)):
        n = sizes[layer]
        weights = carray(pointer(addresses[layer, 0]), n, np.float32)
        grads = carray(pointer(addresses[layer, 1]), n, np.float32)
        means = carray(pointer(addresses[layer, 2]), n, np.float32)
        squares = carray(pointer(addresses[layer, 3]), n, np.float32)
        if parts > 1 and n >= _SHARED:
            given = weights, grads, means, squares, beta1, beta2, fix1, fix2, eps, decay, rate, clamp
            _lamb_shared(*given, adapts[layer], parts)
            continue
        found = _lamb_means(weights, grads, means, squares, beta1, beta2, fix1, fix2, eps, decay, 0, n)
        step = rate * _trust(found[0], found[1], clamp, adapts[layer])
        _lamb_move(weights, means, squares, _f32(fix1), _f32(fix2), _f32(eps), _f32(decay), _f32(step))


@njit(inline="always")
def _part_of(row, parts):
    # 64 rows at a time: threads that write to one line of a cache wait for each other
    return _u64(_u64(row >> _u64(6)) * _u64(40503) >> _u64(8)) % _u64(parts)


@njit(inline="always")
def _exp(x):
    """Return e^x of a float32 up to 0, within 2e-7; the C library's call takes as long as the rest of a row."""
    x = max(x, _f32(-87.0))
    k = np.floor(x * _f32(1.44269504) + _f32(0.5))
    r = x - k * _f32(0.693359375) + k * _f32(2.12194440e-4)
    y = _f32(1.0 / 720.0)
    for term in (_f32(1.0 / 120.0), _f32(1.0 / 24.0), _f32(1.0 / 6.0), _f32(0.5), _f32(1.0), _f32(1.0)):
        y = y * r + term
    return y * _u32(_u32(np.int32(k) + np.int32(127)) << _u32(23)).view(_f32)


@njit(**LOOP)
def _fetch(ids, weights, squares, last, part, parts, lo, hi):
    """Touch each row, so that all of them are fetched from memory at a time, not one by one."""
    read = _f32(0.0)
    for i in range(_u64(lo), _u64(hi)):
        row = _u64(ids[i])
        if parts == 1 or _part_of(row, parts) == _u64(part):
            read += weights[row, 0] + squares[row, 0] + last[row]
    return read


@njit(**LOOP)
def _add_up(ids, grads, place, sums, part, parts):
    """Sum gradients of equal rows at each row's first place, only those of this part."""
    width, source, target = _u64(grads.shape[1]), grads.ravel(), sums.ravel()
    for i in range(_u64(len(ids))):
        row = _u64(ids[i])
        if parts > 1 and _part_of(row, parts) != _u64(part):
            continue
        first, at = _u64(place[row]), i * width
        if first < i and _u64(ids[first]) == row:  # what stands there may be of another batch
            to = first * width
            for d in range(width):
                target[to + d] += source[at + d]
        else:
            place[row] = i
            for d in range(width):
                target[at + d] = source[at + d]


@njit(**LOOP)
def _adamw_rows(arrays, numbers, part, parts):
    ids, grads, weights, squares, means, last, decays, place, sums = arrays
    step, rate, fix2, beta1, beta2, eps, momentum, decay = numbers
    rate, fix2, eps, width = _f32(rate), _f32(fix2), _f32(eps), _u64(weights.shape[1])
    b1, b2, new1, new2 = _f32(beta1), _f32(beta2), _f32(1.0 - beta1), _f32(1.0 - beta2)
    log1 = _f32(math.log(beta1)) if beta1 > 0 else _f32(-1e9)
    log2 = _f32(math.log(beta2)) if beta2 > 0 else _f32(-1e9)
    moments, summed, means_, weights_ = squares.ravel(), sums.ravel(), means.ravel(), weights.ravel()
    _add_up(ids, grads, place, sums, part, parts)
    fetched = _f32(0.0)
    for lo in range(0, len(ids), _FETCHED):
        hi = min(lo + _FETCHED, len(ids))
        fetched += _fetch(ids, weights, squares, last, part, parts, lo, hi)
        for i in range(_u64(lo), _u64(hi)):
            row = _u64(ids[i])
            if (parts > 1 and _part_of(row, parts) != _u64(part)) or _u64(place[row]) != i:
                continue
            missed = _f32(step - 1) - last[row]
            fade = b2 if missed == 0 else _exp(_f32((missed + _f32(1.0)) * log2))
            shrink = _exp(_f32(decays[step] - decays[_u64(last[row])])) if decay else _f32(1.0)
            last[row] = step
            at, to = i * width, row * width
            if momentum:
                fade1 = b1 if missed == 0 else _exp(_f32((missed + _f32(1.0)) * log1))
                for d in range(width):
                    means_[to + d] = fade1 * means_[to + d] + new1 * summed[at + d]
            for d in range(width):
                grad = summed[at + d]
                square = fade * moments[to + d] + new2 * grad * grad
                moments[to + d] = square
                mean = means_[to + d] if momentum else grad
                weights_[to + d] = shrink * weights_[to + d] - rate * mean / (np.sqrt(square * fix2) + eps)
    return fetched


@njit(**PARALLEL)
def adamw_rows(arrays, numbers, parts):
    """Do AdamW's step of a batch's rows (see ``fastrec.optim.torch_optimizers`` for the delayed part).

    Args:
        arrays: the gradient's rows, int64 ``[n]``, in any order, the same ones more than once; the gradient, float32
            ``[n, width]``; weights and mean squares, float32 ``[rows, width]``, changed; means, the same where there is
            momentum, else ``[0, width]``; the step that each row is up to, float32 ``[rows]``, changed; float32
            ``[steps]``, logarithm of what weights have decayed by after each step; int64 ``[rows]``, kept from step to
            step, with whatever in it; float32, room for ``[n, width]``.
        numbers: which step it is, from 1; the learning rate, by what corrects means for their start at zero; what
            corrects mean squares for it, a factor; both betas and eps; whether there is momentum, and decay.
        parts: how many threads.
    """
    fetched = np.empty(parts, np.float32)  # what is not used the compiler does not fetch
    for part in prange(parts):
        fetched[part] = _adamw_rows(arrays, numbers, part, parts)
    return fetched
