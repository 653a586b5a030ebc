"""Epochs of Parquet rows, by fastrec and by NVTabular's loader: the same files and batches, processes of their own.

    python tests/bench/_stream.py epochs --files DIR [--batch 65536] [--buffer 500000] [--epochs 2] [--cache DIR]
    python tests/bench/_stream.py memory --files DIR --buffer 200000 [--cache DIR]
    python tests/bench/_stream.py converge --order time --seeds 20

``epochs`` prints the seconds of shuffled epochs over what NVTabular's peer script has prepared and written (three
categoricals, seven numbers, a target). ``memory`` says how far a process grew beyond what it held after its imports,
while it learned from files of ten times the buffer and streamed two epochs. ``converge`` trains on a sorted file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401 - gives every Learner fit_one_cycle, no_bar
import numpy as np
import pyarrow as pa
import pyarrow.dataset  # else the first file read would import it, and time be taken of that
import pyarrow.parquet as pq
import torch
from _timing import Options, Timing, arguments, child, resident, use_threads
from fastai.data.block import CategoryBlock

from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame, TabularFrame

CATS = ["c0", "c1", "c2"]
CONTS = ["x0", "x1", "x2", "x3", "TE_c0_target", "TE_c1_target", "TE_c2_target"]
WIDE = [f"c{i}" for i in range(8)], [f"x{i}" for i in range(10)]


def epochs(options: Options) -> dict[str, Any]:
    """Time each epoch, one after the other in a fresh process."""
    files = sorted(Path(options.files).glob("*.parquet"))
    frame = ParquetFrame(files, None, CATS, CONTS, "label", cache=options.cache)
    loader = frame.dataloaders(options.batch, buffer_rows=options.buffer, drop_last=False).train
    taken = []
    for _ in range(options.epochs):
        start = time.perf_counter()
        rows = sum(len(y) for _, _, y in loader)
        taken.append(time.perf_counter() - start)
        assert rows == len(frame)
    return {"epochs": taken, "rows": len(frame)}


def memory(options: Options) -> dict[str, Any]:
    """Measure by how many bytes the process grows, and the buffer's size."""
    procs = [Categorify, FillMissing, Normalize]
    before = resident()
    frame = ParquetFrame(options.files, procs, *WIDE, "y", CategoryBlock, cache=options.cache)
    loader = frame.dataloaders(4096, buffer_rows=options.buffer, drop_last=False).train
    for _ in range(2):
        assert sum(len(y) for _, _, y in loader) == len(frame)
    row = frame.train.layout.words * 4
    return {"grown": resident(peak=True) - before, "buffer": options.buffer * row, "rows": len(frame), "row": row}


def write_wide(folder: Path, rows: int, group: int) -> None:
    """Write eight categoricals (half of them text) and ten numbers, a tenth of these missing, in Parquet."""
    rng = np.random.default_rng(0)
    for part, start in enumerate(range(0, rows, 1_000_000)):
        n = min(1_000_000, rows - start)
        columns: dict[str, Any] = {}
        for i, name in enumerate(WIDE[0]):
            codes = rng.integers(0, (100, 1_000, 10_000, 100_000)[i % 4], n)
            columns[name] = pa.array(codes) if i < 4 else pa.array(np.char.add("v", codes.astype(str)))
        for name in WIDE[1]:
            columns[name] = pa.array(rng.normal(size=n).astype(np.float32), mask=rng.random(n) < 0.1)
        columns["y"] = pa.array(rng.integers(0, 2, n))
        pq.write_table(pa.table(columns), folder / f"part{part:03d}.parquet", row_group_size=group)


def converge(options: Options) -> dict[str, Any]:
    """Compare the AUC of training in memory and of streaming a sorted file through a buffer of a tenth of it."""
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
    about = [Categorify, FillMissing, Normalize], ["city"], ["time", "a", "b"], "y", CategoryBlock

    def score(dls: Any, seed: int) -> float:
        torch.manual_seed(seed)
        learn = tabular_learner(dls, layers=[32])
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(1, 0.02)
            scores, _ = learn.get_preds(dl=dls.test_dl(test))
        return float(roc_auc_score(test["y"], scores[:, 1]))

    with tempfile.TemporaryDirectory() as folder:
        train.to_parquet(Path(folder) / "train.parquet", row_group_size=len(train) // 400)
        inside, stream = TabularFrame(train, *about), ParquetFrame(folder, *about)
        buffer = {"buffer_rows": len(train) // 10}
        return {
            "memory": [score(inside.dataloaders(128, seed=s), s) for s in range(options.seeds)],
            "stream": [score(stream.dataloaders(128, seed=s, **buffer), s) for s in range(options.seeds)],
        }


def compare(
    rows: int, repeats: int, threads: int, peer: Sequence[str], *, batch: int, buffer: int
) -> Iterator[tuple[str, str, Timing]]:
    """Yield case, system and medians of shuffled epochs by turns; of each process the better of two epochs counts."""
    with tempfile.TemporaryDirectory() as folder:
        theirs: list[float] = []
        ours: dict[str, list[float]] = {"stream, Parquet": [], "stream, packed cache": []}
        for _ in range(repeats):
            options = ["--rows", str(rows), "--batch", str(batch), "--json"]
            options += ["--raw", f"{folder}/raw", "--work", f"{folder}/nvt"]
            stages = child([*peer, *options], folder, threads, own=False)
            theirs.append(min(stages[f"load_shuffle1_epoch{e}"]["s"] for e in (0, 1)))
            for case, walls in ours.items():
                more = ["--cache", f"{folder}/cache"] if "cache" in case else []
                command = [sys.executable, __file__, "epochs", "--files", f"{folder}/nvt/proc", *more]
                command += ["--batch", str(batch), "--buffer", str(buffer)]
                walls.append(min(child(command, folder, threads)["epochs"]))
    for case, walls in ours.items():
        yield case, "fastrec, packed cache" if "cache" in case else "fastrec", Timing.of(walls)
        yield case, "NVTabular", Timing.of(theirs)


if __name__ == "__main__":
    programs = {"epochs": epochs, "memory": memory, "converge": converge}
    asked = arguments(
        __doc__,
        sys.argv[2:],
        files=(None, "the folder of Parquet files"),
        batch=(65_536, "rows"),
        buffer=(500_000, "rows"),
        epochs=(2, "that are timed"),
        cache=(None, "folder of packed rows"),
        order={"choices": ("time", "target"), "default": "time"},
        seeds=(20, "nets of each kind"),
        threads=(2, "of all"),
    )
    use_threads(asked.threads)
    print(json.dumps(programs[sys.argv[1]](asked)))
