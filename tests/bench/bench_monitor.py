"""``monitor`` beside Evidently on drifts that were planted and on weeks in which nothing changes; rows a second.

Cases:
  verdicts  each planted drift and each clean week: what ``monitor`` finds, and which columns Evidently calls drifted.
            (Needs an environment with Evidently: --peer-python; left out with a message otherwise.)
  speed     a million rows of eight numeric columns beside a million others.

Fields of the JSON file: ``_timing.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from _timing import ROOT, Record, Timing, child, command_line, heading, race, record, show, use_threads, write
from rich.console import Console

sys.path.insert(0, str(ROOT))
from fastrec.monitor import monitor
from tests.monitor.test_monitor import drifts, week

Options = argparse.Namespace


def verdicts(options: Options) -> Iterator[Record]:
    """A record of each case: the columns that either names, and seconds."""
    python = Path(options.peer_python).absolute()
    if not python.exists():
        print(f"verdicts: without Evidently, there is no {python} (--peer-python or EVIDENTLY_PYTHON name another)")
        return
    reference = week(6000)
    cases = {name: change(week(seed=5)) for name, (_, _, change) in drifts().items()}
    cases |= {f"clean week {i}": week(seed=100 + i) for i in range(options.weeks)}
    with tempfile.TemporaryDirectory() as folder:
        reference.to_csv(Path(folder) / "reference.csv", index=False)
        for i, frame in enumerate(cases.values()):
            frame.to_csv(Path(folder) / f"{i:03d}.csv", index=False)
        peer = [str(python), str(Path(__file__).resolve().parent / "_monitor_peer.py"), "--data", folder]
        theirs = child(peer, folder, options.threads, own=False)["said"]
    for i, (name, frame) in enumerate(cases.items()):
        joint = name in drifts() and drifts()[name][1] == "joint"
        made, found = race({"fastrec": lambda f=frame, j=joint: monitor(reference, f, adversarial=j)}, 1)
        ours = sorted({f.about for f in found["fastrec"].findings})
        said = theirs[f"{i:03d}"]
        other = said.get("drifted", [said.get("raised", "")])
        rows, own = len(reference) + len(frame), made["fastrec"]
        yield record(name, "fastrec", rows, own, own, found=ours, notes=", ".join(ours))
        peer_took = Timing(said["seconds"], said["cpu_s"])
        yield record(name, "Evidently", rows, peer_took, own, found=other, notes=", ".join(other)[:60])


def speed(options: Options) -> Iterator[Record]:
    """Numbers, without trees."""
    rng = np.random.default_rng(0)
    old, new = (pd.DataFrame({f"x{j}": rng.normal(size=options.rows) for j in range(8)}) for _ in range(2))
    made, _ = race({"fastrec": lambda: monitor(old, new, adversarial=False)}, options.repeats)
    yield record("speed", "fastrec", 2 * options.rows, made["fastrec"], made["fastrec"])


CASES = {"verdicts": verdicts, "speed": speed}


def main() -> None:
    """Run the cases and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = os.environ.get("EVIDENTLY_PYTHON", str(ROOT / ".venv-evidently" / "bin" / "python"))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each side, for speed")
    parser.add_argument("--weeks", type=int, default=20, help="clean weeks")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-python", default=peer, help="Python of Evidently's environment")
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "bench" / "monitor.json")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=150)
    console.print(heading(command_line()))
    records = [one for name in options.cases for one in CASES[name](options)]
    show(console, records, title="New rows beside old ones")
    write(options.json, records, console.export_text())


if __name__ == "__main__":
    main()
