"""Independent steps of a chain in parallel threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

import torch

from fastrec._core import limits
from fastrec._core.malloc import keeping_memory
from fastrec._core.threads import shared_out
from fastrec.features._engine.counting import counted
from fastrec.features.base import Feature
from fastrec.table import Column, Table

Made = dict[str, Column]
Do = Callable[[Feature, Table, Table | None], tuple[Made, Made]]


def walk(
    steps: Sequence[Feature], work: Table, extra: Table | None, do: Do, *, release: bool = False
) -> tuple[Table, Table | None]:
    """Add every step's columns to the rows.

    Torch's number of threads says how many steps may run at once (``torch.set_num_threads``, ``OMP_NUM_THREADS``). Of
    more than a million rows each step has all threads to itself.

    Args:
        steps: the generators, those that others read before them.
        work: the rows.
        extra: other rows beside them (unlabeled ones); None: none.
        do: makes a step's columns for the rows and for the others.
        release: give back a column's codes and groups when its last reader is done, where they were not there before.

    Returns:
        Both tables with the columns added. The values do not depend on the number of threads.
    """
    do = counted(do)
    if work.device.type == "cpu" and len(work) >= limits.PARALLEL_STEPS_FROM:
        with keeping_memory():
            workers = min(torch.get_num_threads(), len(steps), limits.PARALLEL_STEPS)
            # A user's function may not be thread-safe; on many rows two steps at once hold too much memory.
            if len(work) > limits.PARALLEL_STEPS_TO or any(hasattr(s, "function") for s in steps):
                workers = 1
            return _walk(steps, work, extra, _releasing(steps, work, do) if release else do, workers)
    return _walk(steps, work, extra, do, 1)


def _releasing(steps: Sequence[Feature], work: Table, do: Do) -> Do:
    """Wrap ``do`` to drop columns that no other step reads any more."""
    kept = {n for n in work.names if "coded" in work[n]._cache}
    readers = Counter(n for step in steps for n in set(step.inputs))
    lock = Lock()

    def done(step: Feature, here: Table, there: Table | None) -> tuple[Made, Made]:
        made = do(step, here, there)
        with lock:
            readers.subtract(set(step.inputs))
            last = [n for n in set(step.inputs) if not readers[n] and n in here and n not in kept]
        for name in last:
            for table in (here, work) if name in work else (here,):
                table.forget(name)
        return made

    return done


def _walk(
    steps: Sequence[Feature], work: Table, extra: Table | None, do: Do, workers: int
) -> tuple[Table, Table | None]:
    if workers < 2:
        for step in steps:
            work, extra = _added(work, extra, do(step, work, extra))
        return work, extra

    def task(step: Feature, needed: list[Future]) -> tuple[Made, Made]:
        here, there = work, extra
        for future in needed:
            here, there = _added(here, there, future.result())
        return do(step, here, there)

    done: list[Future] = []
    with shared_out(workers) as pool:
        for step in steps:
            reads = set(step.inputs)
            # What a task waits for was handed in before it, so that it is done or under way.
            needed = [future for other, future in zip(steps, done) if reads & set(other.outputs)]
            done.append(pool.submit(task, step, needed))
    for future in done:  # the first error in the steps' order
        work, extra = _added(work, extra, future.result())
    return work, extra


def _added(work: Table, extra: Table | None, made: tuple[Made, Made]) -> tuple[Table, Table | None]:
    work = work.with_columns(made[0]) if made[0] else work
    return work, extra.with_columns(made[1]) if extra is not None and made[1] else extra
