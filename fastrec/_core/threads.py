"""The same work on several columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["few_rows", "half_the_threads", "on_one_thread", "run_parallel", "shared_out"]

_PARALLEL_FROM = 100_000  # rows: below, starting threads costs more than it saves


def few_rows(rows: int) -> bool:
    """Whether there are too few rows for several threads to be worth it."""
    return rows < _PARALLEL_FROM


@contextmanager
def on_one_thread() -> Iterator[None]:
    """While it lasts, torch works on the calling thread alone; then it has as many threads as before.

    Pieces of some ten thousand rows wake torch's other threads for less work than waking them costs, and on a busy
    machine this thread then waits until each of them has had its turn.
    """
    with _threads(1):
        yield


def run_parallel(task: Callable[[Any], Any], over: Iterable[Any], *, rows: int) -> list[Any]:
    """``[task(x) for x in over]``, on as many threads as torch may use where there are rows enough to be worth it."""
    items, threads = list(over), torch.get_num_threads()
    if threads < 2 or few_rows(rows) or len(items) < 2:
        return [task(x) for x in items]
    with shared_out(min(threads, len(items))) as pool:
        return list(pool.map(task, items))


@contextmanager
def shared_out(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool among whose workers torch's threads are shared out; the caller has as many as before when it is closed.

    A task with as many threads of its own as there are cores would only wait for the others' cores.

    Args:
        workers: how many tasks run at once.

    Yields:
        The pool; it is closed, with all tasks done, at the end of the block.
    """
    threads = torch.get_num_threads()
    each = max(threads // workers, 1)
    try:
        with ThreadPoolExecutor(workers, "fastrec", initializer=lambda: torch.set_num_threads(each)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


@contextmanager
def half_the_threads() -> Iterator[None]:
    """Half of the threads for torch, here and in threads that begin meanwhile: for two that work side by side.

    More threads than free cores is much worse than fewer: each parallel step then waits for the thread without a core.
    """
    with _threads(max(1, torch.get_num_threads() // 2)):
        yield


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
