"""What a device did while something ran: kernels and copies, from the trace that torch's profiler writes."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # what keeps a GPU busy
_ON_CPU = ("cpu_op",)  # stands in for kernels where there is no GPU, so that the same code runs


@dataclass(frozen=True)
class Event:
    """One kernel or copy.

    Args:
        kind: the profiler's category.
        name: of the kernel, or ``Memcpy DtoH (Device -> Pageable)``.
        start, seconds: on the trace's clock.
        size: bytes that were copied; None: no copy, or not known.
    """

    kind: str
    name: str
    start: float
    seconds: float
    size: int | None = None


def synchronize(device: torch.device | str) -> None:
    """Wait for a device."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], device: torch.device | str, repeats: int, *, inner: int = 1) -> float:
    """The shortest wall time of a run, the device waited for; it runs once before to warm up."""
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
    """The profiler, from ``start`` to ``stop``.

    Args:
        device: which is watched; of the CPU, its operations.

    ``events`` are those of the device in the order of time, after ``stop``.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device, self.events = torch.device(device), []
        self.on_gpu = self.device.type == "cuda"

    def start(self) -> None:
        """Begin, once the device has nothing more to do."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if self.on_gpu else []
        synchronize(self.device)
        self.profiler = torch.profiler.profile(activities=kinds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what it cannot see
            self.profiler.start()

    def stop(self) -> None:
        """Wait for the device, end, and read the trace."""
        synchronize(self.device)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            self.profiler.stop()
            path = Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        self.events = read(trace, WORK if self.on_gpu else _ON_CPU)

    def backward(self, names: Callable[[str], bool]) -> dict[str, float]:
        """Seconds on the device of each kind of node that the autograd engine ran and whose name is asked for.

        Args:
            names: whether a node of the backward pass is meant, by its name.
        """
        prefix, found = "autograd::engine::evaluate_function: ", {}
        field = "device_time_total" if self.on_gpu else "cpu_time_total"
        for e in self.profiler.key_averages():
            if e.key.startswith(prefix) and names(e.key.removeprefix(prefix)):
                found[e.key.removeprefix(prefix)] = getattr(e, field) / 1e6
        return found


def profiled(run: Callable[[], Any], device: torch.device | str) -> list[Event]:
    """The events of the device while something runs."""
    profile = Profile(device)
    profile.start()
    run()
    profile.stop()
    return profile.events


def read(trace: dict[str, Any], kinds: Sequence[str] = WORK) -> list[Event]:
    """The events of some categories in a trace in Chrome's form, by their beginning."""
    found = [
        Event(e["cat"], e.get("name", ""), e["ts"] / 1e6, e.get("dur", 0) / 1e6, _size(e.get("args", {})))
        for e in trace.get("traceEvents", [])
        if e.get("cat") in kinds and "ts" in e
    ]
    return sorted(found, key=lambda e: e.start)


def _size(args: dict[str, Any]) -> int | None:
    value = args.get("bytes", args.get("Bytes"))
    return None if value is None else int(value)


def to_host(events: Iterable[Event]) -> list[Event]:
    """The copies from the device to the host."""
    return [e for e in events if "memcpy" in e.name.lower() and "dtoh" in e.name.lower()]


def busy(events: Sequence[Event]) -> float:
    """Seconds in which at least one of the events went on (they are in the order of time)."""
    total, until = 0.0, float("-inf")
    for e in events:
        stop = e.start + e.seconds
        total += max(0.0, stop - max(e.start, until))
        until = max(until, stop)
    return total


def picture(path: Path, lanes: dict[str, Sequence[Event]], *, window: float = 5e-3) -> None:
    """Draw what the device did in the middle of each run: kernels above, copies below, white where it waited.

    Args:
        path: of the PNG.
        lanes: what is drawn above one another: title → events in the order of time.
        window: seconds drawn of each.
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
        axes.set_xlim(0, window * 1e3)
        axes.set_ylim(0, 2)
        axes.set_yticks([0.5, 1.5], ["copies", "kernels"])
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("milliseconds")
    figure.savefig(path)
