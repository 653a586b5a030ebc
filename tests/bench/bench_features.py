"""Time fastrec's features beside what one would use today: ``make bench-features``, or this file with options.

Cases:
  nvtabular  fit and transform of NVTabular's peer script, from the same Parquet files, each in a process of its own
             (needs the script and its environment: see --peer-python; left out with a message otherwise).
  eight      one FeatureSet of eight features on shared keys, fit_transform, beside pandas, polars (lazy) and DuckDB;
             integer and text keys, sorted and unsorted input.

Systems are timed by turns, from their own frames in memory and with all cores; what they make is compared once, before
the clock starts. The table goes to the screen and beside the JSON file, whose fields ``_timing.py`` explains: ``ratio``
is a peer's seconds over fastrec's on the same frame (DuckDB's: over fastrec's on an Arrow table).

Cases of single generators, of ten times the rows and of peak memory are in the history:
``git show cbd11c7:tests/bench/bench_features.py``.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _eight
import _nvtabular
import numpy as np
from _logs import event_log
from _timing import (
    ROOT,
    Record,
    check_same,
    command_line,
    cores,
    heading,
    race,
    record,
    show,
    use_threads,
    write,
)
from rich.console import Console

Options = argparse.Namespace
System = tuple[str, Callable[[], Any]]  # the fastrec system that it is measured by, and what to run


def nvtabular(options: Options) -> Iterator[Record]:
    """Fit and transform from Parquet."""
    rows = options.rows or 2_000_000
    script = Path(os.environ.get("FASTREC_PEERS", ROOT.parent / "shared" / "peers")) / "nvtabular" / "run.py"
    python = Path(options.peer_python).absolute()
    absent = next((path for path in (script, python) if not path.exists()), None)
    if absent is not None:
        print(
            f"nvtabular: left out, there is no {absent} (FASTREC_PEERS, --peer-python or NVTABULAR_PYTHON name others)"
        )
        return
    stages = _nvtabular.compare(rows, options.repeats, options.threads, [str(python), str(script.absolute())])
    for stage, timings in stages.items():
        for system, timing in timings.items():
            yield record(f"nvtabular, {stage}", system, rows, timing, timings["fastrec"])


def eight(options: Options) -> Iterator[Record]:
    """Eight features on shared keys, from every frame."""
    rows = options.rows or 2_000_000
    for keys, ordered in itertools.product(("int", "str"), (True, False)):
        log = event_log(rows, keys=keys, ordered=ordered)
        # Each library's frame in memory of its own, with the fastrec system that runs on the same frame.
        frames = {"pandas": log.to_pandas().copy()}
        if has("polars"):
            import polars as pl

            frames["polars"] = pl.from_arrow(log, rechunk=True)
        systems: dict[str, System] = {}
        for library, frame in frames.items():
            own, peer = f"fastrec, {library}", "polars lazy" if library == "polars" else library
            systems[own] = (own, partial(_eight.with_fastrec, frame))
            systems[peer] = (own, partial(getattr(_eight, f"with_{library}"), frame, ordered=ordered))
        by_fold = partial(_eight.with_pandas, frames["pandas"], ordered=ordered, by_fold=True)
        systems["pandas, fold by fold"] = ("fastrec, pandas", by_fold)
        systems["fastrec, Arrow"] = ("fastrec, Arrow", partial(_eight.with_fastrec, log))
        if has("duckdb"):
            connection = _eight.duckdb_log(log, options.threads)
            systems["DuckDB"] = ("fastrec, Arrow", partial(_eight.with_duckdb, connection))
        yield from _beside(f"eight, {keys}, {in_order(ordered)}", rows, systems, _eight.NAMES, options)


def _beside(
    case: str, rows: int, systems: Mapping[str, System], names: Sequence[str], options: Options
) -> Iterator[Record]:
    """Time systems that make the same columns, and check that they do."""
    timings, made = race({n: run for n, (_, run) in systems.items()}, options.repeats)
    expected: dict[str, np.ndarray] = {}
    for name in list(made):
        found = as_floats(made.pop(name), names)
        check_same(case, expected or found, found, system=name)
        expected = expected or found
    for name, (own, _) in systems.items():
        yield record(case, name, rows, timings[name], timings[own])


def as_floats(frame: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a frame of any library as float64, NaN where missing, in the order of its column ``row``."""
    library = type(frame).__module__.split(".")[0]
    if library == "pyarrow":
        columns = {n: frame[n].to_pandas() for n in ("row", *names)}
    elif library == "polars":
        columns = {n: frame[n].to_arrow().to_pandas() for n in ("row", *names)}
    else:
        columns = {n: frame[n] for n in ("row", *names)}
    place = np.argsort(columns.pop("row").to_numpy(), kind="stable")
    return {n: c.to_numpy(dtype=np.float64, na_value=np.nan)[place] for n, c in columns.items()}


def in_order(ordered: bool) -> str:
    """A word for a case's name."""
    return "sorted" if ordered else "unsorted"


def has(module: str) -> bool:
    """Whether an optional library is there; what needs it is left out otherwise."""
    return find_spec(module) is not None


CASES: dict[str, Callable[[Options], Iterator[Record]]] = {
    "nvtabular": nvtabular,
    "eight": eight,
}


def parse() -> Options:
    """The command line."""
    peer = os.environ.get("NVTABULAR_PYTHON", str(ROOT / ".venv-nvt" / "bin" / "python"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="rows of every case (default: each case's own, 1 or 2 million)")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}, with commas between")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of every system")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/features.json"), help="the file of results")
    parser.add_argument("--peer-python", default=peer, help="the Python that has NVTabular (or NVTABULAR_PYTHON)")
    options = parser.parse_args()
    options.cases = [c for c in options.cases.split(",") if c]
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {unknown.pop()!r}; there are {', '.join(CASES)}")
    return options


def main() -> None:
    """Run the cases, print the table, write the files."""
    options = parse()
    use_threads(options.threads)
    console = Console(record=True, width=150)
    console.print(heading(command_line()), highlight=False)
    records: list[Record] = []
    for name in options.cases:
        for one in CASES[name](options):
            records.append(one)
            print(f"  {one['case']:32s} {one['system']:22s} {one['seconds']:9.3f} s", flush=True)
    if not records:
        return
    show(console, records)
    write(options.out, records, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
