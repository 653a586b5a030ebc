"""The same work on several columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["half_the_threads", "run_parallel", "shared_out"]

_PARALLEL_FROM = 100_000  # rows: below, starting threads costs more than it saves


def run_parallel(task: Callable[[Any], Any], over: Iterable[Any], *, rows: int) -> list[Any]:
    """``[task(x) for x in over]``, on as many threads as torch may use where there are rows enough to be worth it."""
    items, threads = list(over), torch.get_num_threads()
    if threads < 2 or rows < _PARALLEL_FROM or len(items) < 2:
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
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)
