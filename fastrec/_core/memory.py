"""Memory: reuse of freed blocks, and errors that name what did not fit."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError, DeviceMemoryError, FastrecError

# Freed memory is reused for the next intermediate column instead of being returned to the system.
#
# Each step over millions of rows makes dozens of columns that live for one operation. glibc gives blocks of such sizes
# back to the system at once, and so does every thread's own arena; fetching their pages again takes longer than the
# arithmetic on them (measured: ``a * 5 + a`` over 10 M int64 takes 12 ms instead of 103).
#
# The allocator is the whole process's, so its settings change only for who asks: ``FASTREC_KEEP_MEMORY=1`` in the
# environment, or ``with keep_memory():`` around the work. ``fastrec run`` and the benchmarks ask.

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)

_lock = threading.Lock()
_users = 0
_asked = 0
_changed = False
_waiting: threading.Timer | None = None


@contextmanager
def keep_memory() -> Iterator[None]:
    """Keep memory that features, frames and training on a CPU free, meanwhile: repeated calls are faster.

    It changes settings of the process's allocator (glibc's; elsewhere, or with ``FASTREC_KEEP_MEMORY=0``, it does
    nothing). What stays for the rest of the process: one arena for all threads, and a fixed threshold of 32 MB for
    blocks of their own. ``FASTREC_KEEP_MEMORY=1`` asks for it in the whole process.
    """
    global _asked
    with _lock:
        _asked += 1
    try:
        yield
    finally:
        with _lock:
            _asked -= 1
            last = not _asked
        if last and os.environ.get("FASTREC_KEEP_MEMORY") != "1":
            give_back()


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Keep freed blocks of any size, if enabled, and return them 10 s after the last use.

    Folds, and several frames, follow one another: each would fetch again what the previous one returned.
    """
    global _users, _waiting, _changed
    libc = _glibc() if _asked or os.environ.get("FASTREC_KEEP_MEMORY") == "1" else None
    if libc is None:
        yield
        return
    with _lock:
        _users += 1
        if _waiting is not None:
            _waiting.cancel()
            _waiting = None
        if _users == 1:
            _changed = True
            libc.mallopt(_ARENA_MAX, 1)
            # The largest threshold that mallopt takes: no block gets a mapping.
            libc.mallopt(_MMAP_THRESHOLD, 2**31 - 1)
            libc.mallopt(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                libc.mallopt(_MMAP_THRESHOLD, limits.LARGEST_MMAP_THRESHOLD)
                if libc.mallinfo2().arena > limits.MEMORY_MUCH:
                    _waiting = threading.Timer(limits.MEMORY_PAUSE, give_back)
                    _waiting.daemon = True
                    _waiting.start()
                else:
                    libc.mallopt(_TRIM_THRESHOLD, limits.MEMORY_LEFT)


def give_back() -> None:
    """Return at once what is kept for the next call, except 512 MB; nothing during a call."""
    libc = _glibc()
    with _lock:
        if libc is not None and _changed and not _users:
            libc.mallopt(_TRIM_THRESHOLD, limits.MEMORY_LEFT)
            libc.malloc_trim(limits.MEMORY_LEFT)


def give_all_back() -> None:
    """Return all free memory to the system: between stages that need much."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


class Growth:
    """Watch that returns free memory whenever the process has grown by ``much`` bytes.

    Of long work that makes and frees large blocks, with small ones between them that stay (a number for each batch):
    glibc then finds no place for a large block among what is free, takes more from the system, and never gives it back.
    """

    def __init__(self, much: int = limits.MEMORY_GROWN) -> None:
        self.much, self.least = much, held()

    def check(self) -> None:
        """Check the size and return memory."""
        if held() - self.least > self.much:
            libc = _glibc()
            if libc is not None:
                libc.malloc_trim(0)
            self.least = held()


def held() -> int:
    """Return the bytes of memory that this process holds; 0 if the system does not tell."""
    if _glibc() is None:
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_room(size: int, before: int) -> None:
    """Return freed memory before ``size`` bytes are allocated, if much came up since ``held`` was ``before``."""
    libc = _glibc()
    if libc is not None and size >= limits.MEMORY_BLOCK and held() - before > size // 8:
        pa.default_memory_pool().release_unused()
        libc.malloc_trim(0)


def _after_fork() -> None:
    """Reset timer and lock: a child has no timer, and the lock may be held by another thread."""
    global _lock, _users, _waiting
    _lock, _users, _waiting = threading.Lock(), 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Usage(ctypes.Structure):
    """Fields of mallinfo2(3); ``arena``: bytes fetched from the system except for separate blocks."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("arena", *map("word{}".format, range(9))))


@cache
def _glibc() -> Any:
    if not sys.platform.startswith("linux") or os.environ.get("FASTREC_KEEP_MEMORY") == "0":
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        libc.mallinfo2.restype = _Usage  # glibc 2.33 and later
        return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
    except (OSError, AttributeError):
        return None


FEWER_FEATURES = "Make them of a frame on the host, give fewer rows or generators, or go through Parquet files in parts"

# torch.OutOfMemoryError came with torch 2.5; it is the same class under its older name.
_TORCH_ERROR: type[Exception] = torch.cuda.OutOfMemoryError
# What libraries raise without a class of its own: torch on a CPU and while it pins, cuBLAS, cuDNN, XGBoost.
_TEXTS = re.compile(
    r"out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|bad_alloc", re.IGNORECASE
)
_ASKED = re.compile(
    r"(?:tried to allocate|unable to allocate|failed to allocate|requested memory:?)\s*([\d.,]+)\s*([KMGTP]?i?B|bytes)",
    re.IGNORECASE,
)
_GPU = re.compile(r"\bGPU (\d+)\b")
_POWERS = "KMGTP"


@contextmanager
def naming_out_of_memory(
    what: str | Callable[[], str], remedy: str, *, device: torch.device | str | None = None, need: int | None = None
) -> Iterator[None]:
    """Raise a ``DeviceMemoryError`` if anything inside runs out of memory.

    If several are nested, the innermost one names the task.

    Args:
        what: the task, to follow "while", such as ``'copying 40,000,000 rows to the device'``. A function is called
            only if memory does not suffice.
        remedy: what to lower, as a sentence without its full stop.
        device: where memory is needed; None: as the error says.
        need: bytes needed in all, if known; None: the bytes that the error names.
    """
    try:
        yield
    except DeviceMemoryError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        said, device = what if isinstance(what, str) else what(), _where(error, device)
        asked, free, found = None, free_memory(device), _ASKED.search(str(error))
        if found is not None:
            with suppress(DataError):
                asked = bytes_of(f"{found[1]} {found[2]}")
        wanted = [f"{shown_bytes(need)} needed"] if need is not None else []
        wanted += [f"{shown_bytes(asked)} asked for"] if asked is not None and asked != need else []
        wanted += [f"{shown_bytes(free[0])} free of {shown_bytes(free[1])}"] if free is not None else []
        amounts = f": {', '.join(wanted)}" if wanted else ""
        where = "the host" if on_host(device) else f"the device {device}"
        problem = f"{where} ran out of memory while {said}{amounts}"
        asked = need if asked is None else asked
        raise DeviceMemoryError(problem, remedy=remedy, asked=asked, free=free and free[0]) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch, numpy, RMM, cuDF, CuPy, Arrow or XGBoost is about memory."""
    if isinstance(error, MemoryError | _TORCH_ERROR):  # RMM's, CuPy's, Arrow's and numpy's are MemoryErrors
        return True
    if isinstance(error, FastrecError):  # its own message says what happened
        return False
    return isinstance(error, RuntimeError | ValueError) and bool(_TEXTS.search(str(error)))


def free_memory(device: torch.device | str) -> tuple[int, int] | None:
    """Return free and total memory of a CUDA device or of the host, in bytes, or None if they are unknown.

    Memory that torch caches is not free, because other libraries cannot use it.
    """
    device = torch.device(device)
    try:
        if device.type == "cuda":
            return torch.cuda.mem_get_info(device)
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    except (RuntimeError, AssertionError, ValueError, OSError, AttributeError):
        return None


def memory_limit() -> int | None:
    """Return the bytes that this process may hold: its control group's limit, else all of the host's; None: unknown."""
    host, found = free_memory("cpu"), []
    for path in map(Path, limits.CGROUP_FILES):
        with suppress(OSError, ValueError):  # "max": no limit
            found.append(int(path.read_text(encoding="ascii")))
    return min([*found, *(() if host is None else (host[1],))], default=None)


def bytes_of(text: str | float) -> int:
    """Return a size in bytes above 0: a number, or text such as ``'4GB'``, of powers of 1024."""
    size = r"\s*([\d.]+|\d{1,3}(?:,\d{3})+)\s*([KMGTP]?)(i?B|bytes)?\s*"
    found = re.fullmatch(size, str(text), re.IGNORECASE)
    with suppress(ValueError):
        count = float(found[1].rstrip(".").replace(",", "")) if found is not None else 0.0
        if found is not None and count > 0:
            return round(count * 1024 ** (_POWERS.find(found[2].upper()) + 1 if found[2] else 0))
    raise DataError(f"{text!r} is no size of memory", remedy="Give bytes, or text such as '4GB'")


def shown_bytes(count: int) -> str:
    """Format bytes for people: ``'20.0 GiB'``."""
    if count < 1024:
        return f"{count} bytes"
    power = min((int(count).bit_length() - 1) // 10, len(_POWERS))
    return f"{count / 1024**power:.1f} {_POWERS[power - 1]}iB"


def _where(error: Exception, device: torch.device | str | None) -> torch.device:
    """Return the device that ran out: numpy's and torch's host allocators name the host."""
    text = str(error)
    if "DefaultCPUAllocator" in text or type(error).__module__.split(".", 1)[0] in ("numpy", "pyarrow"):
        return torch.device("cpu")
    if device is not None:
        return torch.device(device)
    if found := _GPU.search(text):
        return torch.device("cuda", int(found[1]))
    return torch.device("cuda" if isinstance(error, _TORCH_ERROR) or torch.cuda.is_initialized() else "cpu")
