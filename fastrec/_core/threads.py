"""The same work on several columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["run_parallel"]

_PARALLEL_FROM = 100_000  # rows: below, starting threads costs more than it saves


def run_parallel(task: Callable[[Any], Any], over: Iterable[Any], *, rows: int) -> list[Any]:
    """``[task(x) for x in over]``, on as many threads as torch may use where there are rows enough to be worth it."""
    items, threads = list(over), torch.get_num_threads()
    if threads < 2 or rows < _PARALLEL_FROM or len(items) < 2:
        return [task(x) for x in items]
    workers = min(threads, len(items))
    each = max(threads // workers, 1)
    try:  # a task that started threads of its own would only wait for the others' cores
        with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(each)) as pool:
            return list(pool.map(task, items))
    finally:
        torch.set_num_threads(threads)
