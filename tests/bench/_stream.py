"""A stream of Parquet rows: how far its process grows, and what a sorted file costs in AUC.

    python tests/bench/_stream.py memory --files DIR --buffer 200000 [--cache DIR]
    python tests/bench/_stream.py converge --order time --seeds 20

``memory`` says how far a process grew beyond what it held after its imports,
while it learned from files of ten times the buffer and streamed two epochs. ``converge`` trains on a sorted file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401 - gives every Learner fit_one_cycle, no_bar
import numpy as np
import pyarrow as pa
import pyarrow.dataset  # else the first file read would import it, and time be taken of that
import pyarrow.parquet as pq
import torch
from _timing import resident, use_threads
from fastai.data.block import CategoryBlock

from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame, TabularFrame


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes that the process grew by, and those of the buffer."""
    procs = [Categorify, FillMissing, Normalize]
    before = resident()
    names = [f"c{i}" for i in range(8)], [f"x{i}" for i in range(10)]
    frame = ParquetFrame(options.files, procs, *names, "y", CategoryBlock, cache=options.cache)
    loader = frame.dataloaders(4096, buffer_rows=options.buffer, drop_last=False).train
    for _ in range(2):
        assert sum(len(y) for _, _, y in loader) == len(frame)
    row = frame.train.layout.words * 4
    return {"grown": resident(peak=True) - before, "buffer": options.buffer * row, "rows": len(frame), "row": row}


def write_wide(folder: Path, rows: int, group: int) -> None:
    """Eight categoricals (half of them text) and ten numbers, a tenth of these missing, in Parquet."""
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(8)], [f"x{i}" for i in range(10)]
    for part, start in enumerate(range(0, rows, 1_000_000)):
        n = min(1_000_000, rows - start)
        columns: dict[str, Any] = {}
        for i, name in enumerate(names[0]):
            codes = rng.integers(0, (100, 1_000, 10_000, 100_000)[i % 4], n)
            columns[name] = pa.array(codes) if i < 4 else pa.array(np.char.add("v", codes.astype(str)))
        for name in names[1]:
            columns[name] = pa.array(rng.normal(size=n).astype(np.float32), mask=rng.random(n) < 0.1)
        columns["y"] = pa.array(rng.integers(0, 2, n))
        pq.write_table(pa.table(columns), folder / f"part{part:03d}.parquet", row_group_size=group)


def converge(options: argparse.Namespace) -> dict[str, Any]:
    """AUC of training in memory and of streaming a sorted file through a buffer of a tenth of it."""
    import pandas as pd
    from fastai.tabular.learner import tabular_learner
    from sklearn.metrics import roc_auc_score

    rng, n = np.random.default_rng(1), 12_000
    when, a, b, city = np.sort(rng.random(n)), rng.normal(size=n), rng.normal(size=n), rng.integers(0, 20, n)
    # What a says changes with the time, so that a net that sees the end last learns something else.
    chance = 1 / (1 + np.exp(-(1.5 * a * np.sign(when - 0.5) + b + rng.normal(size=20)[city])))
    df = pd.DataFrame({"time": when, "a": a, "b": b, "city": city, "y": (rng.random(n) < chance).astype(int)})
    held = rng.random(n) < 0.25
    train, test = df[~held].sort_values("y" if options.order == "target" else "time", kind="stable"), df[held]
    names = (["city"], ["time", "a", "b"], "y", CategoryBlock)
    procs = [Categorify, FillMissing, Normalize]

    def score(dls: Any, seed: int) -> float:
        torch.manual_seed(seed)
        learn = tabular_learner(dls, layers=[32])
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(1, 0.02)
            scores, _ = learn.get_preds(dl=dls.test_dl(test))
        return float(roc_auc_score(test["y"], scores[:, 1]))

    with tempfile.TemporaryDirectory() as folder:
        train.to_parquet(Path(folder) / "train.parquet", row_group_size=len(train) // 400)
        inside, stream = TabularFrame(train, procs, *names), ParquetFrame(folder, procs, *names)
        found = {"memory": [], "stream": []}
        for seed in range(options.seeds):
            found["memory"].append(score(inside.dataloaders(128, seed=seed), seed))
            found["stream"].append(score(stream.dataloaders(128, buffer_rows=len(train) // 10, seed=seed), seed))
    return found


def main() -> None:
    """One measurement, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "converge"))
    parser.add_argument("--files")
    parser.add_argument("--buffer", type=int, default=500_000)
    parser.add_argument("--cache")
    parser.add_argument("--order", choices=("time", "target"), default="time")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    use_threads(options.threads)
    print(json.dumps({"memory": memory, "converge": converge}[options.what](options)))


if __name__ == "__main__":
    main()
