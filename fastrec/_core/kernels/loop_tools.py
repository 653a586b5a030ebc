"""How loops are compiled, and what several of them need."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload


def _can_cache() -> bool:
    """Tell whether there is a folder to cache compiled loops in: with their source, or the user's."""
    try:
        njit(cache=True)(lambda x: x)
    except RuntimeError:
        return False
    return True


# Sums may be taken in any order, as a vector unit does; infinities and NaN are kept. Dividing by 0 raises nothing.
LOOP = {
    "nogil": True, "error_model": "numpy", "cache": _can_cache(), "fastmath": {"contract", "reassoc", "arcp", "nsz"},
}  # fmt: skip
# Inside a parallel loop little is turned into vector instructions: such loops only call others, part by part.
PARALLEL = {**LOOP, "parallel": True}


@intrinsic
def pointer(context, address):
    """Return an address as a pointer."""

    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), code


_u32 = np.uint32


def as_float32(x):
    """Read a float32, or the bits of a bfloat16."""


@overload(as_float32, inline="always")
def _read_as(x):
    return (lambda x: x) if isinstance(x, types.Float) else lambda x: _u32(_u32(x) << _u32(16)).view(np.float32)


def like(x, out):
    """Return a float32 as the array holds it: the bits of the nearest bfloat16 (ties to even), or itself."""


@overload(like, inline="always")
def _written_as(x, out):
    def bits_of(x, out):
        bits = np.float32(x).view(_u32)
        near = _u32(bits + _u32(0x7FFF) + _u32(_u32(bits >> _u32(16)) & _u32(1))) >> _u32(16)
        return np.uint16(near) if _u32(bits & _u32(0x7FFFFFFF)) <= _u32(0x7F800000) else np.uint16(0x7FC0)  # NaN

    return (lambda x, out: x) if isinstance(out.dtype, types.Float) else bits_of
