"""The same work on several columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["few_rows", "on_one_thread", "run_parallel"]

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
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_parallel(task: Callable[[Any], Any], over: Iterable[Any], *, rows: int) -> list[Any]:
    """``[task(x) for x in over]``, on as many threads as torch may use where there are rows enough to be worth it."""
    items, threads = list(over), torch.get_num_threads()
    if threads < 2 or few_rows(rows) or len(items) < 2:
        return [task(x) for x in items]
    workers = min(threads, len(items))
    each = max(threads // workers, 1)
    try:  # a task that started threads of its own would only wait for the others' cores
        with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(each)) as pool:
            return list(pool.map(task, items))
    finally:
        torch.set_num_threads(threads)
