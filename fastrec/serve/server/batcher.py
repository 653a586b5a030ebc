"""A queue of requests: those that wait while the workers are busy are scored together.

A free worker takes all waiting requests at once, so that batches grow under load. With ``max_wait`` a batch that is not
full waits that long for more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from fastrec.competition.explain import BACKGROUND
from fastrec.errors import UnreadableFileError
from fastrec.serve.server.bodies import columns_of_arrays
from fastrec.serve.server.call import Refusal
from fastrec.serve.server.columns import (
    DTYPES,
    RequestColumns,
    arrays_together,
    event_arrays,
    filled,
    from_values,
    lists_together,
)
from fastrec.serve.server.spec import Spec, read_spec
from fastrec.serve.session import FILE, cannot, open_session

Outcome: TypeAlias = "list[np.ndarray] | Exception"
Seen: TypeAlias = Callable[[int, int, float], None]  # jobs and rows of a batch, and the seconds that it took


@dataclass(eq=False)
class Job:
    """One request's rows."""

    graph: Any  # scores them (``score_all``): the export that was current when the request came
    columns: RequestColumns
    timeout: float  # seconds from ``came``
    came: float = field(default_factory=time.monotonic)
    done: asyncio.Future[list[np.ndarray]] = field(init=False)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.columns.rows


class Batcher:
    """A bounded queue of jobs, and threads that score them. All but the scoring happens in the event loop.

    ``seen`` is called after every batch with its jobs, its rows and the seconds it took; for the rest see ``Limits``.
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
        """Estimate the whole seconds until all waiting rows are scored, from the last batches."""
        return max(1, math.ceil(self.rows_waiting * self._row_seconds / self._workers))

    def close(self) -> None:
        """Stop the threads after their current batch."""
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
            batch.append(self._queue.popleft())  # in their order: nothing overtakes
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


_ONNX = {
    "tensor(string)": "string", "tensor(int64)": "int64", "tensor(double)": "float64", "tensor(float)": "float32",
    "tensor(bool)": "bool",
}  # fmt: skip


class Scorer:
    """An export in memory that scores columns by onnxruntime; several threads may call it at once.

    Args:
        folder: an export of ``fastrec export``: ``model.onnx`` and ``serving.json``.
        threads: threads of one call; 1 leaves the other cores to other calls.
        device: ``'cpu'``, ``'cuda'`` or ``'tensorrt'``.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or the graph does not take what ``serving.json`` says.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.version: int | None = None  # its number in a registry
        self.events: Any = None  # the ``Online`` that computes its columns from events
        self.spec: Spec = read_spec(folder)
        path = self.folder / BACKGROUND  # rows that others are compared with to be explained
        table = pq.read_table(path) if path.is_file() else None
        self.background = table and {n: table[n].to_numpy() for n in table.column_names}
        self._session = open_session(self.spec.model, threads=threads, device=device)
        self._takes = {i.name: _ONNX.get(i.type, i.type) for i in self._session.get_inputs()}
        self._gives = [o.name for o in self.spec.outputs]
        declared = {i.name: i.type for i in self.spec.inputs}
        declared |= {} if self.spec.events_count is None else {self.spec.events_count: "int64"}
        gives = {o.name for o in self._session.get_outputs()}
        wrong = [f"{n} ({t}, {FILE} says {declared.get(n)})" for n, t in self._takes.items() if declared.get(n) != t]
        wrong += [f"{n} (no such output)" for n in self._gives if n not in gives]
        wrong += [] if self._gives else ["no output at all"]
        if wrong:
            why = f"it does not fit {FILE}: {', '.join(wrong)}"
            raise UnreadableFileError(why, file=self.spec.model, remedy="Export the run anew")
        self._listed = self.spec.list if self.spec.list in self._takes else None

    @property
    def label(self) -> str:
        """The version in answers: the number in a registry, else the beginning of the file's hash."""
        return self.spec.version[:12] if self.version is None else str(self.version)

    def score(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Score rows: float64 ``[n]``, or ``[n, width]`` if the task has several scores a row.

        Args:
            columns: raw columns by name, arrays or lists ``[n]``, as in the training files. Without the column of
                lists all rows are one list.

        Raises:
            Refusal: a column is missing, unknown or of another type.
        """
        return self.score_all([columns_of_arrays(self.spec, columns)])[0][0].astype(np.float64, copy=False)

    def score_all(self, batch: Sequence[RequestColumns]) -> list[list[np.ndarray]]:
        """Score several requests together; a refused value's row is right only for a single request."""
        feeds = {name: values for name, values in arrays_together(batch).items() if name in self._takes}
        if self._listed is not None:
            feeds[self._listed] = lists_together(batch)
        outputs = self.run(feeds)
        if len(batch) == 1:
            return [outputs]
        ends = list(accumulate(one.rows for one in batch))
        return [[o[end - one.rows : end] for o in outputs] for one, end in zip(batch, ends)]

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph on inputs ``[n]`` of the declared types; outputs come in the order of ``spec.outputs``."""
        if not len(next(iter(feeds.values()))):
            return [np.empty((0,) if o.width == 1 else (0, o.width), DTYPES[o.type]) for o in self.spec.outputs]
        return self._session.run(self._gives, feeds)

    def warm(self, *rows: int) -> None:
        """Score rows of missing values, so that the first request is not slow."""
        for n in rows or (1, 64):
            empty = {i.name: filled(i, n) for i in self.spec.inputs if i.events is None}
            empty |= {} if self.spec.events_count is None else event_arrays(self.spec, {}, n, from_values)
            empty = {name: values for name, values in empty.items() if name in self._takes}
            with cannot(f"it cannot score {n} rows of missing values", self.spec.model):
                self.run(empty)
