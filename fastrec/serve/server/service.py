"""The service behind all addresses: the current export, its queue, its events and its metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError
from fastrec.serve.online import Online
from fastrec.serve.server.batcher import Batcher, Job, Scorer
from fastrec.serve.server.call import Limits, Refusal
from fastrec.serve.server.columns import RequestColumns, from_arrow
from fastrec.serve.server.versions import EVENTS_REMEDY, NO_EVENTS, Canary, RegistryEvents, Source, takes_canary

# Counts and durations in the text form that Prometheus reads (exposition format 0.0.4).

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = tuple(float(4**i) for i in range(9))  # 1 … 65,536


class MetricCounter:
    """A number that only grows, one for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, says: str, labels: tuple[str, ...] = ()) -> None:
        self.name, self.says, self._labels = name, says, labels
        self._values: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, *labels: str, by: int = 1) -> None:
        """Count ``by`` more for these values of the labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def lines(self) -> Iterator[str]:
        """Yield one line for each set of labels."""
        for values, count in self._values.items():
            yield f"{self.name}{_labels(zip(self._labels, values))} {count}"


class Histogram:
    """How many values were at most as large as each of some bounds, one for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()) -> None:
        self.name, self.says, self._bounds, self._labels = name, says, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def see(self, value: float, *labels: str) -> None:
        """Count one value."""
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def within(self, share: float) -> dict[tuple[str, ...], tuple[int, float]]:
        """For each set of labels how many values there are, and the bound that this share of them does not exceed."""
        found = {}
        for labels, counts in self._counts.items():
            place = bisect_left(list(accumulate(counts)), share * sum(counts))
            found[labels] = sum(counts), (*self._bounds, math.inf)[place]
        return found

    def lines(self) -> Iterator[str]:
        """Yield the cumulative counts, the sum and the number of values of each set of labels."""
        for values, counts in self._counts.items():
            labels, total = list(zip(self._labels, values)), 0
            for bound, count in zip((*self._bounds, None), counts):
                total += count
                edge = "+Inf" if bound is None else f"{bound:g}"
                yield f"{self.name}_bucket{_labels([*labels, ('le', edge)])} {total}"
            yield f"{self.name}_sum{_labels(labels)} {self._sums[values]!r}"
            yield f"{self.name}_count{_labels(labels)} {total}"


class Metrics:
    """All that a server counts; ``waiting`` reads requests and rows in the queue, ``model`` name and version."""

    def __init__(self, waiting: Callable[[], tuple[int, int]], model: Callable[[], tuple[str, str]]) -> None:
        self.requests = MetricCounter("fastrec_requests_total", "Requests answered.", ("path", "status"))
        by_version = "Requests by the version that scored."
        self.answers = MetricCounter("fastrec_answers_total", by_version, ("version", "status"))
        self.seconds = Histogram("fastrec_request_seconds", "From body to answer.", SECONDS, ("path",))
        self.rows = MetricCounter("fastrec_rows_total", "Rows scored.")
        self.batch_rows = Histogram("fastrec_batch_rows", "Rows of a batch.", _ROWS)
        self.batch_jobs = Histogram("fastrec_batch_requests", "Requests of a batch.", _ROWS)
        self.batch_seconds = Histogram("fastrec_batch_seconds", "Time that a batch takes to score.", SECONDS)
        self.events = MetricCounter("fastrec_events_total", "Events taken in.", ("table",))
        self.reloads = MetricCounter("fastrec_reloads_total", "Reloads of the export.", ("outcome",))
        self.stages: Histogram | None = None  # of a recommender
        self._waiting, self._model = waiting, model

    def batch(self, jobs: int, rows: int, seconds: float) -> None:
        """Count one batch."""
        self.rows.add(by=rows)
        self.batch_rows.see(rows)
        self.batch_jobs.see(jobs)
        self.batch_seconds.see(seconds)

    def text(self) -> str:
        """Return all of it, as Prometheus reads it."""
        lines: list[str] = []
        for one in (m for m in vars(self).values() if isinstance(m, (MetricCounter, Histogram))):
            lines += [f"# HELP {one.name} {one.says}", f"# TYPE {one.name} {one.kind}", *one.lines()]
        jobs, rows = self._waiting()
        model = f"fastrec_model_info{_labels(zip(('name', 'version'), self._model()))}"
        for name, says, value in (
            ("fastrec_queue_requests", "Requests that wait.", jobs),
            ("fastrec_queue_rows", "Rows that wait.", rows),
            (model, "The export.", 1),
        ):
            plain = name.partition("{")[0]
            lines += [f"# HELP {plain} {says}", f"# TYPE {plain} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    escaped = [(name, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, v in pairs]
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if escaped else ""


_log = logging.getLogger("fastrec.serve")
_T = TypeVar("_T")


class Service:
    """The export that is served; of a registry the current version, and the next one from when it is promoted."""

    def __init__(
        self,
        folder: str | Path,
        *,
        events: Online | None = None,
        limits: Limits | None = None,
        canary: Canary | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.events = events
        self.source, self.canary = Source(folder), canary
        self._handed = None if self.source.registry is None else RegistryEvents(self.source.registry)
        self.scorer = self._load(*self.source.current())
        self.addresses: list[Any] = []  # the addresses that it serves
        self._canary = None if canary is None else self._load(self.source.version(canary.version), canary.version)
        self.metrics = Metrics(
            lambda: (self.batcher.jobs_waiting, self.batcher.rows_waiting),
            lambda: (self.scorer.spec.name, self.scorer.spec.version),
        )
        # A container may use fewer cores than the machine has.
        usable = getattr(os, "sched_getaffinity", None)
        cores = len(usable(0)) if usable else os.cpu_count() or 1
        self.batcher = Batcher(
            workers=self.limits.workers or cores,
            max_rows=self.limits.batch_rows,
            max_wait=self.limits.max_wait,
            queue_rows=self.limits.queue_rows,
            seen=self.metrics.batch,
        )
        self.stopping = False
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parse")  # large bodies do not block the loop
        self._history = ThreadPoolExecutor(1, thread_name_prefix="events")  # one: events keep their order
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")  # a reload takes seconds
        self._reloading = False

    def choose(self, request_id: object) -> Scorer:
        """Return the export that answers a request: the current one, or by the request's id the canary."""
        if self._canary is None or self.canary is None or request_id is None:
            return self.scorer
        return self._canary if takes_canary(str(request_id), self.canary) else self.scorer

    async def watch(self) -> None:
        """Load versions that are promoted in a registry, until the server stops."""
        failed: int | None = None
        said = ""  # the last error of the registry, logged once
        while self.source.registry is not None:
            await asyncio.sleep(limits.REGISTRY_POLL)
            try:
                state = await asyncio.get_running_loop().run_in_executor(self._loader, self.source.current)
            except Exception as error:  # such as a version without an export: the old one stays
                if str(error) != said:
                    said = str(error)
                    _log.error("the registry cannot be read: %s", error)
                continue
            said = ""
            if state[1] == self.scorer.version:
                failed = None
            elif state[1] != failed:
                try:
                    await self.reload()
                except Refusal as refusal:  # logged once; 409: another reload runs
                    failed = state[1] if refusal.status == 500 else None

    async def parse(self, size: int, parse: Callable[[], _T]) -> _T:
        """Call ``parse()`` for a body of ``size`` bytes; on a thread if it is large."""
        if size <= limits.PARSE_INLINE:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._parser, parse)

    async def score(self, scorer: Scorer, columns: RequestColumns, timeout: float, came: float) -> list[np.ndarray]:
        """Score the rows of one request by the export that was current when it came.

        ``came`` is when it came, by ``time.monotonic``; ``timeout`` is in seconds from then.
        """
        if columns.rows == 0:
            return scorer.score_all([columns])[0]
        if scorer.spec.made:
            made = await self._in_order(scorer.events.features, columns.table())
            columns.made = {i.name: from_arrow(i, made[i.name]) for i in scorer.spec.made}
        return await self.batcher.submit(Job(scorer, columns, timeout, came))

    async def observe(self, events: pa.Table, table: str) -> None:
        """Store events; they are on disk on return."""
        if self.scorer.events is None:  # an export that takes none came while they were read
            raise Refusal(404, "this export takes no events")
        observe = self.scorer.events.observe
        if self._handed is not None and self.scorer.version is not None:
            observe = partial(self._handed.observe, checked_by=self.scorer.version)
        await self._in_order(observe, events, table)
        self.metrics.events.add(table, by=events.num_rows)

    async def reload(self) -> str:
        """Load the export's folder (of a registry its current version's) anew, warm it, and then replace the old one.

        Requests that came before are scored by the old one. Returns the hash of the new one's graph.
        """
        if self._reloading:
            raise Refusal(409, "a reload is going on")
        self._reloading = True
        try:
            loop, load = asyncio.get_running_loop(), lambda: self._load(*self.source.current())
            new = await loop.run_in_executor(self._loader, load)
            if new.spec.events != self.scorer.spec.events or bool(new.spec.made) != bool(self.scorer.spec.made):
                why = "its events are others than before"
                raise DataError(why, file=self.source.folder, remedy="Start the server anew")
        except Exception as error:  # of the library, the file system or onnxruntime
            self.metrics.reloads.add("failed")
            _log.error("reload failed, the old export goes on: %s", error)
            raise Refusal(500, f"the reload failed, the old export goes on: {error}") from None
        finally:
            self._reloading = False
        self.scorer = new
        if self._handed is not None:
            self._handed.keep({new.version, None if self.canary is None else self.canary.version})
        self.metrics.reloads.add("done")
        _log.info("reloaded %s, version %s", new.spec.name, new.spec.version[:12])
        return new.spec.version

    def close(self) -> None:
        """Stop all threads after their current work."""
        self.batcher.close()
        for pool in (self._parser, self._history, self._loader):
            pool.shutdown(wait=True)
        if self._handed is not None:
            self._handed.close()

    def _load(self, folder: str | Path, version: int | None = None) -> Scorer:
        scorer = Scorer(folder, threads=self.limits.threads, device=self.limits.device)
        scorer.version = version
        scorer.events = self.events
        if self._handed is not None and scorer.spec.events is not None:
            scorer.events = self._handed.state_of(self.source.registry.version(version))
        if scorer.spec.made and scorer.events is None:
            names = ", ".join(i.name for i in scorer.spec.made[:5])
            raise DataError(NO_EVENTS, file=folder, column=names, remedy=EVENTS_REMEDY)
        scorer.warm()
        return scorer

    async def _in_order(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call the state of events after earlier calls; its errors are the client's."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._history, call, *arguments)
        except (DataError, MissingColumnError) as error:
            raise Refusal(422, error.problem, column=error.column, row=error.row, remedy=error.remedy) from None
