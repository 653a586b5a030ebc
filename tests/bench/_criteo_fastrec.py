"""Click logs to packed rows by fastrec, in a process of its own: what ``bench_criteo.py`` runs beside NVTabular.

    python tests/bench/_criteo_fastrec.py --data DIR --work DIR [--threads 2]

The process imports all and packs a few lines, so that loops are compiled; then it packs all lines of all days as
training rows, cold: nothing of them is there. Prints seconds, and the most memory that it held, as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

from _timing import cpu_time, forget_peak, resident, use_threads

from fastrec.tabular import ClickLogFrame, LogPart


def main() -> None:
    """Pack once, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1 << 30)
    options = parser.parse_args()
    use_threads(options.threads)
    files = sorted(Path(options.data).glob("day_*.tsv"), key=lambda f: int(f.stem[4:]))
    shutil.rmtree(options.work, ignore_errors=True)
    ClickLogFrame(LogPart(files[0], 0, 1 << 20), cache=f"{options.work}/warm")
    forget_peak()
    before, cpu, wall = resident(), cpu_time(), time.perf_counter()
    frame = ClickLogFrame(files, cache=f"{options.work}/all", memory=options.memory)
    seconds, cpu = time.perf_counter() - wall, cpu_time() - cpu
    values = sum(map(len, frame.train.encoder.values))
    peak = (resident(peak=True) - before) // 2**20
    said = {"seconds": seconds, "cpu_s": cpu, "rows": len(frame), "passes": frame.train.passes, "values": values}
    print(json.dumps({**said, "grew_mb": peak, "folder": str(frame.train.folder)}))


if __name__ == "__main__":
    main()
