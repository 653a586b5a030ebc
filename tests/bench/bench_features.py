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

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import _eight
import _nvtabular
import numpy as np
from _logs import event_log
from _timing import NVTABULAR, Options, Record, check_same, race, record, run_cases
from _timing import nvtabular as nvtabular_command

System = tuple[str, Callable[[], Any]]  # the fastrec system that it is measured by, and what to run


def nvtabular(options: Options) -> Iterator[Record]:
    """Fit and transform from Parquet."""
    peer = nvtabular_command(options.peer_python)
    stages = {} if peer is None else _nvtabular.compare(options.rows, options.repeats, options.threads, peer)
    for stage, timings in stages.items():
        for system, timing in timings.items():
            yield record(f"nvtabular, {stage}", system, options.rows, timing, timings["fastrec"])


def eight(options: Options) -> Iterator[Record]:
    """Eight features on shared keys, from every frame."""
    rows = options.rows
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
        case = f"eight, {keys}, {'sorted' if ordered else 'unsorted'}"
        yield from _beside(case, rows, systems, _eight.NAMES, options)


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


def has(module: str) -> bool:
    """Whether an optional library is there; what needs it is left out otherwise."""
    return find_spec(module) is not None


if __name__ == "__main__":
    run_cases(
        __doc__, {"nvtabular": nvtabular, "eight": eight}, "features", title="fastrec's features beside others",
        rows={"type": int, "default": 2_000_000, "help": "of every case"},
        repeats={"type": int, "default": 5, "help": "timed runs of every system"},
        peer_python=NVTABULAR,
    )  # fmt: skip
