"""Counts and durations in the text form that Prometheus reads (exposition format 0.0.4)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

__all__ = ["CONTENT_TYPE", "SECONDS", "Gauge", "Histogram", "MetricCounter", "Metrics"]

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


class Gauge:
    """A number as it is when it is asked for."""

    kind = "gauge"

    def __init__(self, name: str, says: str, read: Callable[[], dict[tuple[tuple[str, str], ...], float]]) -> None:
        self.name, self.says, self._read = name, says, read

    def lines(self) -> Iterator[str]:
        """Yield one line for each set of labels."""
        for labels, value in self._read().items():
            yield f"{self.name}{_labels(labels)} {value}"


class Histogram:
    """How many values were at most as large as each of some bounds, one for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()) -> None:
        self.name, self.says, self._bounds, self._labels = name, says, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def see(self, value: float, *labels: str) -> None:
        """Count one value."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
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
    """All that a server counts.

    Args:
        waiting: reads requests and rows in the queue.
        model: reads name and version of the current export.
    """

    def __init__(self, waiting: Callable[[], tuple[int, int]], model: Callable[[], tuple[str, str]]) -> None:
        self.requests = MetricCounter("fastrec_requests_total", "Requests answered.", ("path", "status"))
        self.answers = MetricCounter(
            "fastrec_answers_total", "Requests by the version that scored.", ("version", "status")
        )
        self.seconds = Histogram("fastrec_request_seconds", "From body to answer.", SECONDS, ("path",))
        self.rows = MetricCounter("fastrec_rows_total", "Rows scored.")
        self.batch_rows = Histogram("fastrec_batch_rows", "Rows of a batch.", _ROWS)
        self.batch_jobs = Histogram("fastrec_batch_requests", "Requests of a batch.", _ROWS)
        self.batch_seconds = Histogram("fastrec_batch_seconds", "Time that a batch takes to score.", SECONDS)
        self.events = MetricCounter("fastrec_events_total", "Events taken in.", ("table",))
        self.reloads = MetricCounter("fastrec_reloads_total", "Reloads of the export.", ("outcome",))
        self.stages: Histogram | None = None  # of a recommender
        self._gauges = [
            Gauge("fastrec_queue_requests", "Requests that wait.", lambda: {(): waiting()[0]}),
            Gauge("fastrec_queue_rows", "Rows that wait.", lambda: {(): waiting()[1]}),
            Gauge("fastrec_model_info", "The export.", lambda: {tuple(zip(("name", "version"), model())): 1}),
        ]

    def batch(self, jobs: int, rows: int, seconds: float) -> None:
        """Count one batch."""
        self.rows.add(by=rows)
        self.batch_rows.see(rows)
        self.batch_jobs.see(jobs)
        self.batch_seconds.see(seconds)

    def text(self) -> str:
        """Return all of it, as Prometheus reads it."""
        lines: list[str] = []
        for one in [m for m in vars(self).values() if isinstance(m, (MetricCounter, Histogram))] + self._gauges:
            lines += [f"# HELP {one.name} {one.says}", f"# TYPE {one.name} {one.kind}", *one.lines()]
        return "\n".join(lines) + "\n"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    escaped = [(name, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, v in pairs]
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if escaped else ""
