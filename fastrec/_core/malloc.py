"""Freed memory kept for the next intermediate column, instead of being given back to the system and fetched anew.

Each step over millions of rows makes dozens of columns that live for one operation. glibc gives blocks of such sizes
back to the system at once, and so does every thread's own arena; fetching their pages again takes longer than the
arithmetic on them (measured: ``a * 5 + a`` over 10 M int64 takes 12 ms instead of 103).

The allocator is the whole process's, so its settings change only for who asks: ``FASTREC_KEEP_MEMORY=1`` in the
environment, or ``with keep_memory():`` around the work. ``fastrec run`` and the benchmarks ask.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pyarrow as pa

from fastrec._core import limits

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

    Folds, and several frames, come one after the other: each would fetch anew what the one before has given back.
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
    """Watch that returns free memory whenever the process has grown by a given size.

    Of long work that makes and frees large blocks, with small ones between them that stay (a number for each batch):
    glibc then finds no place for a large block among what is free, takes more from the system, and never gives it back.

    Args:
        much: bytes.
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
    """Return freed memory before a block of ``size`` bytes is allocated, if much came up since.

    Args:
        size: bytes.
        before: what was ``held`` when the work began whose freed memory this is.
    """
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
