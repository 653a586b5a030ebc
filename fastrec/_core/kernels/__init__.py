"""Compiled loops for CPUs if numba is installed.

Every user has a path without them: torch's calls, with the same numbers. The first use compiles for some 15 s; numba
caches the result on disk.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits

_off = False  # in a forked child
_told: list[bool] = []  # that loops are being compiled, in this process


def compiled(numbers: int, least: int = 0) -> bool:
    """Tell whether compiled loops go over so many numbers, ``least`` or more: numba is there, and can be used."""
    return not _off and numbers >= max(least, limits.LOOP_NUMBERS) and _has_numba()


@cache
def _has_numba() -> bool:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0") or importlib.util.find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except (ImportError, OSError, MemoryError) as error:  # made for another numpy; or there is no room to load it
        warnings.warn(f"numba cannot be used, fastrec goes on without: {error}", UserWarning, stacklevel=2)
        return False
    return True


def shared(loop: Callable[..., Any], *given: Any, numbers: int) -> Any:
    """Run a parallel loop, which takes ``given`` and the number of its parts; few ``numbers`` are one thread's."""
    import numba

    threads = threads_for(numbers)
    with _turn():
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        return loop(*given, threads)


@cache
def _start() -> str:
    """Start numba's threads, and return their kind."""
    import numba

    _tell_of_compiling()
    threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(threads)  # where both use one pool (OpenMP's) numba has given torch as many as itself
    return numba.threading_layer()


@cache
def _tell_of_compiling() -> None:
    """Log once that loops are being compiled; loops cached on disk are only read."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, happening: Any) -> None:
            function = getattr(happening.data.get("dispatcher"), "py_func", None)
            if _told or not getattr(function, "__module__", "").startswith("fastrec."):
                return
            _told.append(True)
            print("fastrec: compiling loops with numba; some seconds, once (they are kept on disk)", file=sys.stderr)

        def on_end(self, happening: Any) -> None:
            pass

    event.register("numba:compile", Listener())


def _loops(module: str, before: Callable[[], object]) -> Callable[[], ModuleType]:
    # imported at the first use: numba, and what it has compiled or cached, take seconds
    @cache
    def load() -> ModuleType:
        before()
        return import_module(f"{__name__}.{module}")

    return load


steps = _loops("train_loops", _start)  # optimizer steps
groups = _loops("table_loops", _start)  # groups of rows
sessions = _loops("session_loops", _start)
# these run on the thread that calls them: numba's own threads need not start
click_logs = _loops("table_loops", _tell_of_compiling)
frames = _loops("frame_loops", _tell_of_compiling)


def _after_fork() -> None:
    """Switch off numba in a child of a process whose threads have run: GNU's OpenMP would end it."""
    global _off
    _off = _off or bool(_start.cache_info().currsize)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _turn() -> AbstractContextManager[Any]:
    """Let one caller at a time use numba's workqueue threads, which end the process on a second one."""
    return Lock() if _start() == "workqueue" else nullcontext()


def view(x: Tensor) -> np.ndarray:
    """Return a CPU tensor as numpy numbers that share its memory; bfloat16 as its bits."""
    x = x.detach()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def threads_for(numbers: int) -> int:
    """Return how many threads share a loop over so many numbers."""
    return max(1, min(torch.get_num_threads(), numbers // limits.LOOP_NUMBERS_A_THREAD))
