"""Compiled loops for training on CPUs, where numba is installed (``pip install fastrec-tabular[compiled]``).

Everything that uses them has a way without: torch's own calls, which give the same numbers and take longer. The first
use compiles, some seconds once; numba keeps the result on disk.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

__all__ = ["compiled", "net", "steps", "threads_for", "view", "without_compiled"]

_EACH = 1 << 16  # numbers that a thread should have to do
_off = 0


def compiled() -> bool:
    """Whether there are compiled loops to use: numba is installed, and nobody has asked to go without."""
    return not _off and _has_numba()


@cache
def _has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


@contextmanager
def without_compiled() -> Iterator[None]:
    """While it lasts, torch's own calls are used."""
    global _off
    _off += 1
    try:
        yield
    finally:
        _off -= 1


@cache
def net() -> ModuleType:
    """Loops of a net's step."""
    _start()
    from fastrec.kernels import net_loops

    return net_loops


@cache
def steps() -> ModuleType:
    """Loops of optimizer steps."""
    _start()
    from fastrec.kernels import step_loops

    return step_loops


@cache
def _start() -> None:
    """Start numba's threads: where both use one pool (OpenMP's), that would give torch as many, whatever was set."""
    import numba

    threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(threads)


def view(x: Tensor) -> np.ndarray:
    """A CPU tensor as the loops take it: numbers that share its memory; bfloat16 as bits."""
    x = x.detach()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def threads_for(numbers: int) -> int:
    """How many threads are to share a loop over so many numbers."""
    import numba

    threads = max(1, min(torch.get_num_threads(), numbers // _EACH, numba.config.NUMBA_NUM_THREADS))
    numba.set_num_threads(threads)
    return threads
