"""Requests that wait while the workers are busy are scored together.

Timing goes one way: a worker that is free takes what is there, so that nothing waits for others to come, and under load
the batches grow by themselves. With ``max_wait`` a batch that is not full waits that long for more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from fastrec.serve.server.columns import RequestColumns
from fastrec.serve.server.refusal import Refusal

__all__ = ["BatchScorer", "Batcher", "Job"]

Outcome: TypeAlias = "list[np.ndarray] | Exception"
Seen: TypeAlias = Callable[[int, int, float], None]


class BatchScorer(Protocol):
    """What a batch is scored by: a ``Scorer``."""

    def score_all(self, batch: Sequence[RequestColumns]) -> list[list[np.ndarray]]:
        """Return the outputs ``[rows]`` or ``[rows, width]`` of each request of a batch."""


@dataclass(eq=False)
class Job:
    """One request's rows.

    Args:
        graph: what scores them: the export that was current when the request came.
        columns: the rows.
        timeout: seconds from ``came`` until the answer is of no use.
        came: when the request came, by ``time.monotonic``.
    """

    graph: BatchScorer
    columns: RequestColumns
    timeout: float
    came: float = field(default_factory=time.monotonic)
    done: asyncio.Future[list[np.ndarray]] = field(init=False)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.columns.rows


class Batcher:
    """A bounded queue of jobs, and threads that score them. All but the scoring happens in the event loop.

    Args:
        workers: batches that are scored at once, each on a thread.
        max_rows: rows of a batch; a larger job goes alone.
        max_wait: seconds that a batch which is not full waits for more; 0: none.
        queue_rows: rows that may wait; a job that finds more is refused.
        seen: called after every batch with its jobs, its rows and the seconds it took.
    """

    def __init__(
        self, *, workers: int, max_rows: int, max_wait: float, queue_rows: int, seen: Seen | None = None
    ) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="score")
        self._free, self._max_rows, self._max_wait = workers, max_rows, max_wait
        self._workers, self._queue_rows, self._seen = workers, queue_rows, seen
        self._queue: deque[Job] = deque()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._row_seconds = 0.0  # a moving mean, for Retry-After
        self.rows_waiting = 0

    @property
    def jobs_waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether anything waits or is being scored."""
        return bool(self._queue) or self._free < self._workers

    async def submit(self, job: Job) -> list[np.ndarray]:
        """Wait for the outputs of one job."""
        if self._queue and self.rows_waiting + job.rows > self._queue_rows:
            raise Refusal(503, "too many rows are waiting", remedy="Try again later", retry_after=self.retry_after())
        loop = asyncio.get_running_loop()
        job.done = loop.create_future()
        left = job.timeout - (time.monotonic() - job.came)
        alarm = loop.call_later(max(left, 0), self._give_up, job)
        self._queue.append(job)
        self.rows_waiting += job.rows
        self._wake()
        try:
            return await job.done
        finally:
            alarm.cancel()

    def retry_after(self) -> int:
        """Whole seconds until what waits now will have been scored, as far as the last batches tell."""
        return max(1, math.ceil(self.rows_waiting * self._row_seconds / self._workers))

    def close(self) -> None:
        """Stop the threads, after what they are at."""
        self._pool.shutdown(wait=True)

    def _give_up(self, job: Job) -> None:
        if not job.done.done():
            job.done.set_exception(Refusal(504, f"there was no answer within {job.timeout:g} s"))
            if job in self._queue:
                self._queue.remove(job)
                self.rows_waiting -= job.rows

    def _wake(self) -> None:
        """Look at the queue at the end of this turn of the loop: jobs of one turn go together."""
        if not self._woken and self._free:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._free and self._queue:
            waits = self._max_wait - (time.monotonic() - self._queue[0].came)
            if waits > 0 and self.rows_waiting < self._max_rows:
                self._timer = loop.call_later(waits, self._dispatch)
                return
            batch = self._take()
            self._free -= 1
            task = loop.run_in_executor(self._pool, _score, batch)
            task.add_done_callback(lambda t, batch=batch: self._finished(batch, t))

    def _take(self) -> list[Job]:
        batch, rows = [], 0
        while self._queue:
            job = self._queue[0]
            if batch and (rows + job.rows > self._max_rows or job.graph is not batch[0].graph):
                break
            batch.append(self._queue.popleft())
            rows += job.rows
        self.rows_waiting -= rows
        return batch

    def _finished(self, batch: list[Job], task: asyncio.Future[tuple[list[Outcome], float]]) -> None:
        self._free += 1
        self._wake()
        outcomes, seconds = task.result()
        for job, outcome in zip(batch, outcomes):
            if job.done.done():
                continue
            if isinstance(outcome, Exception):
                job.done.set_exception(outcome)
            else:
                job.done.set_result(outcome)
        rows = sum(job.rows for job in batch)
        if rows:
            self._row_seconds += 0.1 * (seconds / rows - self._row_seconds)
        if self._seen is not None:
            self._seen(len(batch), rows, seconds)


def _score(batch: list[Job]) -> tuple[list[Outcome], float]:
    began = time.monotonic()
    try:
        outcomes: list[Outcome] = list(batch[0].graph.score_all([job.columns for job in batch]))
    except Exception as error:
        outcomes = [error] if len(batch) == 1 else [o for job in batch for o in _score([job])[0]]
    return outcomes, time.monotonic() - began
