"""Peak memory of the eight features in a process of its own (Linux only).

    python tests/bench/_memory.py --log FILE --system 'fastrec, pandas' [--threads 2]

The process reads the log, warms the system up on a small one, gives freed memory back, and runs once. What is
counted is the frame itself plus the most that the process grew by while it ran, over the bytes of the frame with its
new columns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import _eight
import pyarrow as pa
import pyarrow.ipc
from _logs import event_log
from _timing import child, forget_peak, resident, use_threads

SYSTEMS = ("fastrec, pandas", "pandas", "fastrec, polars", "polars lazy", "fastrec, Arrow")


def frame_of(log: pa.Table, system: str) -> Any:
    """The log as the system wants it, in memory of its own."""
    if system.endswith("Arrow"):
        return log
    if "polars" in system:
        import polars as pl

        return pl.from_arrow(log, rechunk=True)
    return log.to_pandas().copy()


def run(frame: Any, system: str) -> Any:
    """The frame with the eight features."""
    if system.startswith("fastrec"):
        return _eight.with_fastrec(frame)
    with_peer = _eight.with_polars if "polars" in system else _eight.with_pandas
    return with_peer(frame, ordered=False)


def size(frame: Any) -> int:
    """Bytes of a frame's values."""
    if isinstance(frame, pa.Table):
        return frame.nbytes
    if hasattr(frame, "estimated_size"):
        return frame.estimated_size()
    return int(frame.memory_usage(index=False, deep=True).sum())


def main() -> None:
    """One measurement, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True, help="the log as an Arrow file")
    parser.add_argument("--system", required=True, choices=SYSTEMS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    use_threads(options.threads)
    run(frame_of(event_log(20_000), options.system), options.system)
    with pa.OSFile(options.log) as file:
        frame = frame_of(pa.ipc.open_file(file).read_all(), options.system)
    given = size(frame)
    forget_peak()
    before, start = resident(), time.perf_counter()
    made = run(frame, options.system)
    seconds = time.perf_counter() - start
    grown = resident(peak=True) - before
    print(json.dumps({"seconds": seconds, "given": given, "made": size(made), "before": before, "grown": grown}))


def measure(log: pa.Table, system: str, threads: int, folder: str) -> dict[str, float]:
    """What a process of its own measures.

    Returns:
        ``seconds`` that the run took; bytes: ``given`` (the frame), ``made`` (the frame with the new columns),
        ``before`` (resident before the run), ``grown`` (most resident during the run, less ``before``).
    """
    path = Path(folder) / "log.arrow"
    if not path.exists():
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, log.schema) as writer:
            writer.write_table(log)
    program = str(Path(__file__).resolve())
    return child([sys.executable, program, "--log", str(path), "--system", system], folder, threads)


def measurable() -> bool:
    """Whether this system tells how much memory a process has held, and lets the peak be forgotten."""
    try:
        forget_peak()
        return resident(peak=True) > 0
    except (OSError, AttributeError):
        return False


if __name__ == "__main__":
    main()
