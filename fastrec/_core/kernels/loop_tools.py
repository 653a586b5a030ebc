"""How loops are compiled, and what several of them need."""

from __future__ import annotations

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


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
