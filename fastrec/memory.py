"""Freed memory kept for the next intermediate column, instead of being given back to the system and fetched anew.

Each step over millions of rows makes dozens of columns that live for one operation. glibc gives blocks of such sizes
back to the system at once, and so does every thread's own arena; fetching their pages again takes longer than the
arithmetic on them (measured: ``a * 5 + a`` over 10 M int64 takes 12 ms instead of 103).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_NEVER = 2**31 - 1
_LARGEST = 32 << 20  # the largest threshold that glibc itself would come to
_LEFT = 512 << 20  # bytes that stay at hand between calls
_MUCH = 1 << 30  # free bytes from which it is worth giving them back

_lock = threading.Lock()
_users = 0


@contextmanager
def keeping_memory() -> Iterator[None]:
    """While it lasts, freed blocks of any size are kept; afterwards they are given back where they are over 1 GB.

    Where glibc is not there, or ``FASTREC_KEEP_MEMORY=0`` is set, nothing changes. What stays for the rest of the
    process: one arena for all threads, and a fixed threshold of 32 MB for blocks of their own.
    """
    global _users
    libc = _glibc()
    if libc is None:
        yield
        return
    with _lock:
        _users += 1
        if _users == 1:
            libc.mallopt(_ARENA_MAX, 1)
            libc.mallopt(_MMAP_THRESHOLD, _NEVER)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
                libc.mallopt(_TRIM_THRESHOLD, _LEFT)
                if libc.mallinfo2().fordblks > _MUCH:
                    libc.malloc_trim(_LEFT)


class _Usage(ctypes.Structure):
    """What mallinfo2(3) tells; ``fordblks``: bytes in free blocks."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*map("word{}".format, range(8)), "fordblks", "keepcost"))


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
