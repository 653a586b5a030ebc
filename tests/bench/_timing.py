"""Shared parts of benchmarks: their command lines, systems timed by turns in one run, tables of the results, and files.

A file of results is a list of records ``case system rows seconds rows_per_s ratio``: ``seconds`` is the median wall
time, ``ratio`` the system's seconds over fastrec's on the same input, so that 3.0 says that fastrec is three times as
fast. ``cpu_seconds`` (user and system, all threads and children) is there besides, since wall times waver on a busy
machine, and some cases have fields of their own.
"""

from __future__ import annotations

import argparse
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
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Record = dict[str, Any]
Options = argparse.Namespace
ROOT = Path(__file__).resolve().parents[2]


class Timing(NamedTuple):
    """Medians over the repeats: wall seconds, and those of all threads and children on the processor, if known."""

    seconds: float
    cpu_seconds: float | None = None

    @classmethod
    def of(cls, walls: Sequence[float], cpus: Sequence[float] = ()) -> Timing:
        return cls(statistics.median(walls), statistics.median(cpus) if cpus else None)

    def over(self, often: int) -> Timing:
        return Timing(self.seconds / often, None if self.cpu_seconds is None else self.cpu_seconds / often)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_time() -> float:
    """Return user and system seconds of this process and of its children that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in both)


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    gc.collect()
    cpu, wall = cpu_time(), time.perf_counter()
    made = run()
    return made, time.perf_counter() - wall, cpu_time() - cpu


def by_turns(names: Iterable[Any], repeats: int) -> Iterator[tuple[int, Any]]:
    """Yield every name once a turn; each turn begins with another, so that other load falls on all alike."""
    names = list(names)
    for turn in range(repeats):
        shift = turn % len(names)
        yield from ((turn, name) for name in names[shift:] + names[:shift])


def race(systems: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Time systems by turns, after each has run once to warm up: name → medians, name → what the warm-up returned."""
    outputs = {name: run() for name, run in systems.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for _, name in by_turns(systems, repeats):
        found[name].append(timed(systems[name])[1:])
    return {n: Timing.of(*zip(*seconds)) for n, seconds in found.items()}, outputs


def bare(case: str, system: str, rows: int, seconds: float | None = None, **more: Any) -> Record:
    """Make a record without a system to compare with."""
    about = {"case": case, "system": system, "rows": rows, "seconds": seconds}
    return about | {"rows_per_s": round(rows / seconds) if rows and seconds else None, "ratio": None, **more}


def record(case: str, system: str, rows: int, timing: Timing, own: Timing, **more: Any) -> Record:
    """Make a record compared with ``own``, fastrec's time for the same."""
    known = timing.cpu_seconds is not None and bool(own.cpu_seconds)
    return bare(case, system, rows, timing.seconds) | {
        "seconds": round(timing.seconds, 4),
        "ratio": round(timing.seconds / own.seconds, 2),
        "cpu_seconds": round(timing.cpu_seconds, 4) if known else None,
        "cpu_ratio": round(timing.cpu_seconds / own.cpu_seconds, 2) if known else None,
        **more,
    }


Columns = Mapping[str, np.ndarray]


def check_same(who: str, expected: Columns, found: Columns, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Stop the benchmark if two systems' columns differ: numbers must be close, all else equal."""
    for name, values in expected.items():
        both = found[name], values
        try:
            if all(v.dtype.kind in "iuf" for v in both):
                np.testing.assert_allclose(*both, rtol=rtol, atol=atol)
            else:
                np.testing.assert_array_equal(*(v.astype(str) for v in both))
        except AssertionError as error:
            raise SystemExit(f"{who} differ: {name}: {error}") from None


def use_threads(count: int) -> None:
    """Let every system use so many threads; call it before polars is imported."""
    import pyarrow as pa
    import torch

    torch.set_num_threads(count)
    pa.set_cpu_count(count)
    os.environ["POLARS_MAX_THREADS"] = str(count)


def child(command: Sequence[str], folder: str, threads: int, *, own: bool = True) -> Any:
    """Run a program, given ``--threads``; return the JSON of its last line.

    With ``own`` it is one of this repository; else it gets no ``PYTHONPATH``, having its own environment.
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
    """Measure a layer's float32 product: operations a second, the fastest of fifty."""
    import torch

    x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    seconds = timeit.repeat(lambda: torch.nn.functional.linear(x, w), number=1, repeat=50)
    return 2 * rows * inputs * outputs / min(seconds)


# What is shown and kept ----------------------------------------------------------------------------------------------


def versions(names: Iterable[str]) -> dict[str, str]:
    there = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {n: there[n] for n in names if n in there}


def machine() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = cpu or platform.processor() or "unknown processor"
    return f"{name}, {cores()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def command_line() -> str:
    """Return how this program was started, without this machine's folders."""
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    return " ".join([Path(sys.executable).name, os.path.relpath(sys.argv[0]), *words])


def heading() -> str:
    """Return date, machine, versions and command, one a line."""
    there = versions(("torch", "pyarrow", "pandas", "polars", "duckdb", "numpy", "numba"))
    libraries = ", ".join([f"Python {platform.python_version()}", *(f"{n} {v}" for n, v in there.items())])
    lines = {"date": now(), "machine": machine(), "versions": libraries, "command": command_line()}
    return "\n".join(f"{name:9s}{text}" for name, text in lines.items())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Set ``left`` columns of words, then numbers, below one another."""
    rows = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    cut = [[c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cut)


def cells(one: Mapping[str, Any], forms: Mapping[str, str]) -> list[str]:
    """Format fields of a record; missing ones are empty."""
    return ["" if one.get(field) is None else format(one[field], form) for field, form in forms.items()]


def put(path: Path, text: str) -> None:
    """Write a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write(path: Path, records: Sequence[Record], text: str | None = None) -> None:
    """Write the records as JSON, and the text beside them, which is printed."""
    put(path, json.dumps(list(records), indent=1) + "\n")
    if text is not None:
        put(path.with_suffix(".txt"), text + "\n")
        print(f"{text}\nwritten: {path} and {path.with_suffix('.txt')}")


def read(path: Path) -> list[Record]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


# The command ---------------------------------------------------------------------------------------------------------


def some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Make a reader of names with commas between."""

    def split(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := [name for name in found if name not in names]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(names)}")
        return found

    return split


def arguments(doc: str | None, argv: Sequence[str] | None = None, **options: Any) -> Options:
    """Read the command line.

    ``options`` are name → default and help, or what ``add_argument`` takes. A tuple as default is what there is to
    choose from, with commas between.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, how in options.items():
        if isinstance(how, tuple):
            default, text = how
            how = {"default": default, "help": text.replace("%", "%%")}
            if isinstance(default, tuple):
                how |= {"default": list(default), "type": some_of(default)}
                how["help"] = f"{text}: of {', '.join(default)}, with commas between"
            elif default is False:
                how["action"] = "store_true"
            elif default is not None:
                how["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args(argv)


def run_cases(
    doc: str | None,
    cases: Mapping[str, Callable[[Options], Iterable[Record]]],
    name: str,
    *,
    about: str = "",
    threads: int | None = None,
    **more: Any,
) -> None:
    """Run a benchmark: read its options, run the cases, print the table, write the files.

    ``cases`` are called with the options and yield records; ``name`` is the file's, ``about`` a line below the heading,
    ``threads`` how many every system may use (None: as many as there are cores), ``more`` further options, see
    ``arguments``.
    """
    options = arguments(
        doc,
        cases=(tuple(cases), "what is run"),
        threads=(threads or cores(), "that every system may use"),
        out=(Path(f"runs/bench/{name}.json"), "the file of results"),
        **more,
    )
    use_threads(options.threads)
    records: list[Record] = []
    for case in options.cases:
        for one in cases[case](options):
            records.append(one)
            seconds = "" if one["seconds"] is None else f"{one['seconds']:9.3f} s"
            print(f"  {one['case']:36s} {one['system']:28s} {seconds}  {one.get('notes', '')}", flush=True)
    if records:
        forms = {"case": "", "system": "", "rows": ",", "seconds": ".3f", "rows_per_s": ",", "ratio": ".2f"}
        forms |= {"cpu_seconds": ".3f", "cpu_ratio": ".2f", "notes": ""}
        shown = table([*forms], [cells(one, forms) for one in records], left=2)
        write(options.out, records, f"{heading()}\n{about}\n{shown}")


DATA = (Path(os.environ.get("FASTREC_DATA", "../shared/data")), "folder of data sets")
NVTABULAR: dict[str, Any] = {
    "default": os.environ.get("NVTABULAR_PYTHON", str(ROOT / ".venv-nvt" / "bin" / "python")),
    "help": "the Python that has NVTabular (or NVTABULAR_PYTHON)",
}
