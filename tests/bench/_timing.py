"""What benchmarks share: systems timed by turns in one run, tables of the results, and files of them.

A file of results is a list of records. Each has ``case``, ``system``, ``rows``, ``seconds`` (median wall time),
``rows_per_s`` and ``ratio``: the system's seconds over fastrec's on the same input, so that 3.0 says that fastrec is
three times as fast; fastrec's own ratio is 1.0. ``cpu_seconds`` (user and system, all threads and children) is there
besides, since wall times waver on a busy machine, and some cases have fields of their own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

Record = dict[str, Any]
Options = argparse.Namespace
ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("torch", "pyarrow", "pandas", "polars", "duckdb", "numpy", "numba")


@dataclass(frozen=True)
class Timing:
    """Medians over the repeats.

    Args:
        seconds: wall time.
        cpu_seconds: user and system time of this process, its threads and its children; None: not known.
    """

    seconds: float
    cpu_seconds: float | None = None

    @classmethod
    def of(cls, walls: Sequence[float], cpus: Sequence[float] = ()) -> Timing:
        """The medians of several runs."""
        return cls(statistics.median(walls), statistics.median(cpus) if cpus else None)

    def over(self, often: int) -> Timing:
        """Of one of so many calls that were timed together."""
        return Timing(self.seconds / often, None if self.cpu_seconds is None else self.cpu_seconds / often)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_time() -> float:
    """User and system seconds of this process and of its children that have ended."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def race(systems: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Time systems by turns, so that what else the machine does falls on all of them alike.

    Every system runs once to warm up; then all run in turn, ``repeats`` times, each round starting with another one.
    What a run returns is freed after the clock has stopped.

    Args:
        systems: name → what to time.
        repeats: timed runs of each.

    Returns:
        name → medians, and name → what the warm-up returned.
    """
    outputs = {name: run() for name, run in systems.items()}
    walls: dict[str, list[float]] = {name: [] for name in systems}
    cpus: dict[str, list[float]] = {name: [] for name in systems}
    names = list(systems)
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            cpu, wall = cpu_time(), time.perf_counter()
            made = systems[name]()
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(cpu_time() - cpu)
            del made
    return {n: Timing.of(walls[n], cpus[n]) for n in names}, outputs


def record(case: str, system: str, rows: int, timing: Timing, own: Timing, **more: Any) -> Record:
    """One record of the file of results (see the top of this module).

    Args:
        case: what was done.
        system: who did it.
        rows: to how many rows.
        timing: how long it took.
        own: how long fastrec took for the same; ``timing`` itself where this is fastrec.
        more: further fields.
    """
    known = timing.cpu_seconds is not None and bool(own.cpu_seconds)
    return {
        "case": case,
        "system": system,
        "rows": rows,
        "seconds": round(timing.seconds, 4),
        "rows_per_s": round(rows / timing.seconds),
        "ratio": round(timing.seconds / own.seconds, 2),
        "cpu_seconds": round(timing.cpu_seconds, 4) if known else None,
        "cpu_ratio": round(timing.cpu_seconds / own.cpu_seconds, 2) if known else None,
        **more,
    }


def bare(case: str, system: str, rows: int, seconds: float | None = None, **more: Any) -> Record:
    """A record of what no other system is set beside."""
    speed = round(rows / seconds) if rows and seconds else None
    return {
        "case": case,
        "system": system,
        "rows": rows,
        "seconds": seconds,
        "rows_per_s": speed,
        "ratio": None,
        **more,
    }


def check_same(case: str, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], *, system: str) -> None:
    """Stop the benchmark where two systems did not do the same work: values to nine digits, missing ones alike.

    Args:
        case, system: for the message.
        expected: name → float64 ``[n]``, NaN where missing.
        found: likewise; other columns are not looked at.
    """
    for name, values in expected.items():
        other = found[name]
        close = np.isclose(other, values, rtol=1e-9, atol=1e-12, equal_nan=True)
        if len(other) != len(values) or not close.all():
            row = int(np.flatnonzero(~close)[0])
            raise SystemExit(f"{case}: {system} gives {name}[{row}] = {other[row]}, fastrec gives {values[row]}")


def use_threads(count: int) -> None:
    """Let every system use so many threads. To be called before polars is imported."""
    import pyarrow as pa
    import torch

    torch.set_num_threads(count)
    pa.set_cpu_count(count)
    os.environ["POLARS_MAX_THREADS"] = str(count)


def child(command: Sequence[str], folder: str, threads: int, *, own: bool = True) -> Any:
    """Run a program that prints JSON as its last line.

    Args:
        command: with absolute paths.
        folder: where it runs.
        threads: that it may use; passed on as ``--threads``.
        own: it is one of this repository; else it gets no ``PYTHONPATH``, having its own environment.

    Returns:
        What it says.
    """
    command = [*command, "--threads", str(threads)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "POLARS_MAX_THREADS": str(threads)}
    given = env.pop("PYTHONPATH", "")
    if own:
        env["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), given) if p)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def product_speed(rows: int, inputs: int, outputs: int) -> float:
    """Operations a second that a layer's product of float32 matrices reaches here, the fastest of fifty."""
    import torch

    x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        torch.nn.functional.linear(x, w)
        times.append(time.perf_counter() - start)
    return 2 * rows * inputs * outputs / min(times)


# Memory --------------------------------------------------------------------------------------------------------------


def resident(peak: bool = False) -> int:
    """Bytes of memory that this process holds now, or at most since ``forget_peak`` (Linux only)."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {wanted}")


def forget_peak() -> None:
    """Give freed memory back to the system, and let the peak start from what is held now (Linux only)."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


# What is shown and kept ----------------------------------------------------------------------------------------------


def heading(command: Sequence[str]) -> str:
    """Date, machine, versions and command, one a line."""
    versions = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = (
        ("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("machine", f"{_processor()}, {cores()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"),
        ("versions", ", ".join(versions)),
        ("command", " ".join(command)),
    )
    return "\n".join(f"{name:9s}{text}" for name, text in lines)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or "unknown processor"


def show(console: Console, records: Sequence[Record], *, title: str) -> None:
    """Print records as a table, the cases apart."""
    grid = Grid(title=title, title_justify="left")
    for name, side in (("case", "left"), ("system", "left"), *((n, "right") for n in _NUMBERS)):
        grid.add_column(name, justify=side, no_wrap=True)
    for before, one in zip([None, *records], records):
        first = before is None or before["case"] != one["case"]
        if first and before is not None:
            grid.add_section()
        style = "bold" if one["system"].startswith("fastrec") else None
        cells = [_shown(one, n) for n in _NUMBERS]
        grid.add_row(one["case"] if first else "", one["system"], *cells, style=style)
    console.print(grid)


_NUMBERS = ("rows", "seconds", "rows/s", "ratio", "CPU s", "CPU ratio", "notes")
_FIELDS = {"rows/s": "rows_per_s", "CPU s": "cpu_seconds", "CPU ratio": "cpu_ratio"}
_FORMS = {"rows": ",", "rows/s": ",", "seconds": ".3f", "CPU s": ".3f", "ratio": ".2f", "CPU ratio": ".2f"}


def _shown(one: Record, name: str) -> str:
    value = one.get(_FIELDS.get(name, name))
    return "" if value is None else format(value, _FORMS.get(name, ""))


def write(path: Path, records: Sequence[Record], text: str) -> None:
    """Write the records as JSON at ``path``, and what was printed beside it as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in ((path, json.dumps(list(records), indent=1) + "\n"), (path.with_suffix(".txt"), text)):
        part = target.with_name(target.name + ".part")
        part.write_text(content, encoding="utf-8")
        os.replace(part, target)


def run_cases(
    doc: str | None,
    cases: Mapping[str, Callable[[Options], Iterable[Record]]],
    name: str,
    *,
    title: str,
    about: str = "",
    threads: int | None = None,
    **more: dict[str, Any],
) -> None:
    """A benchmark's whole command: read its options, run the cases, print the table, write the files.

    Args:
        doc: of the program.
        cases: name → what yields the records; called with the options.
        name: of the file of results.
        title: of the table.
        about: a line below the heading.
        threads: that every system may use; None: as many as there are cores.
        more: further options, as ``add_argument`` takes them.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(cases), help=f"of {', '.join(cases)}, with commas between")
    parser.add_argument("--threads", type=int, default=threads or cores(), help="that every system may use")
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench/{name}.json"), help="the file of results")
    for option, how in more.items():
        parser.add_argument(f"--{option.replace('_', '-')}", **how)
    options = parser.parse_args()
    names = [c for c in options.cases.split(",") if c]
    if unknown := [c for c in names if c not in cases]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(cases)}")
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()) + (f"\n{about}" if about else ""), highlight=False)
    records: list[Record] = []
    for case in names:
        for one in cases[case](options):
            records.append(one)
            seconds = "" if one["seconds"] is None else f"{one['seconds']:9.3f} s"
            print(f"  {one['case']:36s} {one['system']:28s} {seconds}  {one.get('notes', '')}", flush=True)
    if records:
        show(console, records, title=title)
        write(options.out, records, console.export_text())
        print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


NVTABULAR: dict[str, Any] = {
    "default": os.environ.get("NVTABULAR_PYTHON", str(ROOT / ".venv-nvt" / "bin" / "python")),
    "help": "the Python that has NVTabular (or NVTABULAR_PYTHON)",
}


def nvtabular(python: str) -> list[str] | None:
    """The command that starts NVTabular's peer script; None, and a message, where it or its Python is not there."""
    script = Path(os.environ.get("FASTREC_PEERS", ROOT.parent / "shared" / "peers")) / "nvtabular" / "run.py"
    command = [Path(python).absolute(), script.absolute()]
    absent = next((path for path in command if not path.exists()), None)
    if absent is not None:
        print(
            f"NVTabular: left out, there is no {absent} (FASTREC_PEERS, --peer-python or NVTABULAR_PYTHON name others)"
        )
        return None
    return [str(path) for path in command]


def command_line() -> list[str]:
    """How this program was started, without this machine's folders."""
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    return [Path(sys.executable).name, os.path.relpath(sys.argv[0]), *words]
