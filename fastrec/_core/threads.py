"""Work on several columns in parallel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fastrec._core import limits


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Restrict torch to the calling thread meanwhile.

    Pieces of some ten thousand rows wake torch's other threads for less work than waking them costs, and on a busy
    machine this thread then waits until each of them has had its turn.
    """
    with _threads(1):
        yield


@contextmanager
def on_free_threads(most: int | None = None) -> Iterator[None]:
    """Restrict torch, and the libraries of trees that ask it, to as many threads as there are free cores meanwhile.

    There are ``most`` threads at most; None: as many as torch has now.

    Where others run on all cores, one thread is several times as fast as two: each step of two waits, spinning, for the
    one without a core (LightGBM with two neighbours on two cores: .9 s, now and then 7 to 25 s).
    """
    with _threads(min(most or torch.get_num_threads(), max((os.cpu_count() or 1) - _others(), 1))):
        yield


def _others() -> int:
    """Return how many threads of other processes run or wait for a core now; 0 where the system does not say."""
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) != os.cpu_count():
        return 0  # others may be on other cores than ours
    try:
        seen = []
        for _ in range(limits.LOAD_SAMPLES):
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
            # This process's threads spin for a moment after a parallel step: Diginetica trained on one of two cores.
            for stat in Path("/proc/self/task").glob("*/stat"):
                with suppress(OSError):  # it has ended
                    running -= stat.read_text().rpartition(")")[2].split()[0] == "R"
            seen.append(max(running, 0))
            time.sleep(limits.LOAD_SECONDS)
    except (OSError, IndexError, ValueError):
        return 0
    return round(sum(seen) / len(seen))


def run_parallel(task: Callable[[Any], Any], over: Iterable[Any], *, rows: int) -> list[Any]:
    """Return ``[task(x) for x in over]``, on torch's number of threads if there are rows enough."""
    items, threads = list(over), torch.get_num_threads()
    if threads < 2 or rows < limits.PARALLEL_ROWS or len(items) < 2:
        return [task(x) for x in items]
    with shared_out(min(threads, len(items))) as pool:
        return list(pool.map(task, items))


@contextmanager
def shared_out(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of so many workers that share torch's threads; closing it restores the caller's number.

    A task with as many threads of its own as there are cores would only wait for the others' cores.
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
    """Halve torch's threads meanwhile, here and in new threads: for two that work side by side.

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
