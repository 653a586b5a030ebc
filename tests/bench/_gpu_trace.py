"""What a device did while something ran, from the profiler's trace, and what the machine itself reaches: the floors.

A floor is the seconds that a figure's bytes take at the measured speed, or its products at theirs, whichever is more.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _timing import Options, Record, bare

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # what keeps a GPU busy
_ON_CPU = ("cpu_op",)  # stands in for kernels where there is no GPU, so that the same code runs


class Event(NamedTuple):
    """One kernel or copy, on the trace's clock."""

    name: str  # of the kernel, or ``Memcpy DtoH (Device -> Pageable)``
    start: float
    seconds: float
    size: int | None = None  # bytes that were copied, if known


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], device: torch.device, repeats: int = 1, *, inner: int = 1) -> float:
    """Return the shortest wall time of a run with its device's work, after a warm-up."""
    run()
    synchronize(device)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            run()
        synchronize(device)
        best = min(best, (time.perf_counter() - start) / inner)
    return best


class Profile:
    """The profiler, from ``start`` to ``stop``, for a device; of the CPU it watches the operations.

    ``events`` are those of the device in the order of time, after ``stop``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.events, self.on_gpu = device, [], device.type == "cuda"

    def start(self) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if self.on_gpu else []
        synchronize(self.device)
        self.profiler = torch.profiler.profile(activities=kinds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what it cannot see
            self.profiler.start()

    def stop(self) -> None:
        synchronize(self.device)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            self.profiler.stop()
            path = Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        self.events = read(trace, WORK if self.on_gpu else _ON_CPU)

    def backward(self, names: Callable[[str], Any]) -> dict[str, float]:
        """Return the seconds on the device of each kind of node of the backward pass whose name is asked for."""
        prefix = "autograd::engine::evaluate_function: "
        field = "device_time_total" if self.on_gpu else "cpu_time_total"
        nodes = [e for e in self.profiler.key_averages() if e.key.startswith(prefix)]
        return {n: getattr(e, field) / 1e6 for e in nodes if names(n := e.key.removeprefix(prefix))}


def profiled(run: Callable[[], Any], device: torch.device) -> list[Event]:
    profile = Profile(device)
    profile.start()
    run()
    profile.stop()
    return profile.events


def read(trace: dict[str, Any], kinds: Sequence[str] = WORK) -> list[Event]:
    """Read the events of some categories in a trace in Chrome's form, by their beginning."""
    found = []
    for e in trace.get("traceEvents", []):
        if e.get("cat") in kinds and "ts" in e:
            size = e.get("args", {}).get("bytes", e.get("args", {}).get("Bytes"))
            times = e["ts"] / 1e6, e.get("dur", 0) / 1e6
            found.append(Event(e.get("name", ""), *times, None if size is None else int(size)))
    return sorted(found, key=lambda e: e.start)


def to_host(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.name.lower().startswith("memcpy dtoh")]


def busy(events: Sequence[Event]) -> float:
    """Return the seconds covered by at least one of the events, which are ordered by time."""
    total, until = 0.0, float("-inf")
    for e in events:
        stop = e.start + e.seconds
        total += max(0.0, stop - max(e.start, until))
        until = max(until, stop)
    return total


def picture(path: Path, lanes: dict[str, Sequence[Event]], *, window: float = 5e-3) -> None:
    """Draw what the device did in the middle of each run: kernels above, copies below, white where it waited.

    ``lanes`` are drawn above one another: title → events in the order of time; of each some seconds, the ``window``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 * len(lanes) + 0.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, events) in zip(figure.subplots(len(lanes), 1, squeeze=False)[:, 0], lanes.items(), strict=True):
        first = events[len(events) // 2].start if events else 0.0
        shown = [e for e in events if first <= e.start < first + window]
        for row, copies, colour in ((1, False, "#0072B2"), (0, True, "#D55E00")):
            own = [e for e in shown if ("memcpy" in e.name.lower()) is copies]
            bars = [((e.start - first) * 1e3, min(e.seconds, first + window - e.start) * 1e3) for e in own]
            axes.broken_barh(bars, (row + 0.1, 0.8), facecolors=colour)
        axes.set(xlim=(0, window * 1e3), ylim=(0, 2), yticks=[0.5, 1.5], yticklabels=["copies", "kernels"])
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("milliseconds")
    figure.savefig(path)


# Floors --------------------------------------------------------------------------------------------------------------


class Floors(NamedTuple):
    """Measured speeds."""

    copy: float  # bytes read and written a second by a copy on the device
    to_device: float  # bytes a second from pinned memory of the host
    flops: dict[str, float]  # operations a second of a large product of matrices, by dtype

    @classmethod
    def of(cls, records: list[Record]) -> Floors | None:
        """Read the floors from records; None if they have none."""
        found = {r["system"]: r["per_second"] for r in records if r.get("part") == "floors" and "per_second" in r}
        if not {"copy on the device", "host to device", "product, float32"} <= set(found):
            return None
        flops = {d: found[f"product, {d}"] for d in DTYPES if f"product, {d}" in found}
        return cls(found["copy on the device"], found["host to device"], flops)


class At(NamedTuple):
    """Where a part runs: the device, the machine's floors, if they are known, and the command's options."""

    device: torch.device
    floors: Floors | None = None
    options: Options | None = None


def floors(at: At, *, size: int, side: int, repeats: int) -> Iterator[Record]:
    """Measure speeds of copies of ``size`` bytes, of products of square matrices and of kernels of nothing."""
    device = at.device

    def speed(system: str, count: int, unit: str, run: Callable[[], Any], *often: int, inner: int = 1) -> Record:
        seconds = seconds_of(run, device, *often, inner=inner)
        rate = count / seconds
        shown = f"{rate / 1e9:,.1f} G{unit}" if rate > 1e9 else f"{rate:,.0f} {unit}"
        return bare("floors", system, count, seconds, per_second=rate, unit=unit, notes=shown)

    a, b = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    yield speed("copy on the device", 2 * size, "bytes/s", lambda: a.copy_(b), repeats)
    yield speed("host to device", size, "bytes/s", lambda: a.copy_(pinned, non_blocking=True), repeats)
    yield speed("device to host", size, "bytes/s", lambda: pinned.copy_(a, non_blocking=True), repeats)
    for name, dtype in DTYPES.items():
        if dtype != torch.float16 or device.type != "cpu":  # a CPU has no fast ones
            x, y = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
            yield speed(f"product, {name}", 2 * side**3, "FLOP/s", lambda x=x, y=y: x @ y, repeats)
    one = torch.zeros(1, device=device)
    yield speed("kernels", 1, "kernels/s", lambda: one.add_(1), 3, inner=100 * repeats)


def share(record: Record, floor: float | None, what: str) -> Record:
    """Add to a record its floor in seconds, the share of that speed that is reached, and the floor's work."""
    if floor is None or not record["seconds"]:
        return record
    return {**record, "floor_s": floor, "floor_share": round(floor / record["seconds"], 4), "floor_of": what}
