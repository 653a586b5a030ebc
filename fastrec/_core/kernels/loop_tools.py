"""How loops are compiled, and what several of them need."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

_f32, _u16, _u32 = np.float32, np.uint16, np.uint32


def _can_cache() -> bool:
    """Tell whether there is a folder to cache compiled loops in: with their source, or the user's."""
    try:
        njit(cache=True)(lambda x: x)
    except RuntimeError:
        return False
    return True


# Sums may be taken in any order, as a vector unit does; infinities and NaN are kept. Dividing by 0 raises nothing.
LOOP = {
    "nogil": True,
    "error_model": "numpy",
    "cache": _can_cache(),
    "fastmath": {"contract", "reassoc", "arcp", "nsz"},
}
# Inside a parallel loop little is turned into vector instructions: such loops only call others, part by part.
PARALLEL = {**LOOP, "parallel": True}


@intrinsic
def pointer(context, address):
    """Return an address as a pointer."""

    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), code


def read(x):
    """Read a number of either kind as a float32."""


@overload(read, inline="always")
def _read_of(x):
    if isinstance(x, types.Float):
        return lambda x: x
    return lambda x: _u32(_u32(x) << _u32(16)).view(_f32)


def fit(x, out):
    """Convert a float32 to the array's type; to bfloat16 the nearest, ties to even."""


@overload(fit, inline="always")
def _fit_to(x, out):
    if isinstance(out.dtype, types.Float):
        return lambda x, out: x

    def as_bits(x, out):
        bits = _f32(x).view(_u32)
        rounded = _u32(bits + _u32(0x7FFF) + _u32(_u32(bits >> _u32(16)) & _u32(1))) >> _u32(16)
        return _u16(rounded) if _u32(bits & _u32(0x7FFFFFFF)) <= _u32(0x7F800000) else _u16(0x7FC0)

    return as_bits
