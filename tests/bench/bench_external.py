"""Training and predicting from Parquet files under a limit of memory: a net from the stream, XGBoost from its files.

``python tests/bench/bench_external.py FOLDER --rows 20000000 --memory 1.5`` writes the rows (row groups of 100,000) and
starts itself anew with the limit, for the net and then for the trees: a memory cgroup where this process may make one,
else all private memory asked for (of which the libraries alone have 1.4 GB, most of it never touched: give 2.5 then).
What is resident is printed after every step; the libraries alone have .5 GB, .2 of it their files' pages. XGBoost keeps
about 50 bytes a row while it grows trees (gradients, predictions, ranks, labels, each row's leaf): 1 GB of 20 M.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer
import xgboost as xgb
from _limit import run_limited
from torch.nn.functional import binary_cross_entropy_with_logits

from fastrec.metrics import mrr
from fastrec.scale import external_matrix, write_predictions
from fastrec.tabular import Categorify, Normalize, ParquetFrame
from fastrec.training import rec_learner

_GROUP, _LENGTH, _CONTS = 100_000, 20, 16
CONTS = [f"x{i}" for i in range(_CONTS)]
OPTIONS = {"device": "cpu", "y_dtype": torch.float64}


def write(path: Path, rows: int, seed: int) -> None:
    """Rows in lists of 20 candidates, one of them chosen."""
    rng = np.random.default_rng(seed)
    writer = None
    for start in range(0, rows, _GROUP):
        n = min(_GROUP, rows - start)
        x = rng.normal(size=(n, _CONTS)).astype(np.float32)
        city, item = rng.integers(0, 200, n), rng.integers(0, 20_000, n)
        score = (x[:, 0] + x[:, 1] * (city % 3 - 1) + rng.gumbel(size=n)).reshape(-1, _LENGTH)
        columns = {f"x{i}": x[:, i] for i in range(_CONTS)}
        columns |= {"city": city.astype(np.int32), "item": item.astype(np.int32)}
        columns |= {"clicked": (score == score.max(1, keepdims=True)).ravel().astype(np.float64)}
        columns |= {"list": (np.arange(start, start + n) // _LENGTH).astype(np.float64)}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=_GROUP)
    writer.close()


def peak() -> str:
    """The most memory that was resident, and the private memory that is now."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own = int(lines["RssAnon"].split()[0]) / 2**20
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{time.process_time():6.0f} CPU s  {resident:.2f} GB resident at most, {own:.2f} GB of its own now"


def score(out: Path, test: Path) -> float:
    """MRR of what was written, of the first lists."""
    truth = next(pq.ParquetFile(test).iter_batches(_GROUP, columns=["clicked", "list"]))
    found = next(pq.ParquetFile(out).iter_batches(_GROUP, columns=["prediction"]))
    values = [torch.from_numpy(c.to_numpy().copy()) for c in (found[0], truth[0], truth[1])]
    return mrr(values[0], values[1], values[2].long())


def work(folder: Path, bs: int, rounds: int, models: str) -> None:
    """Train and predict."""
    torch.set_num_threads(1)
    train, test, began = folder / "train.parquet", folder / "test.parquet", time.monotonic()

    def said(what: str) -> None:
        typer.echo(f"{time.monotonic() - began:7.0f} s  {peak()}  {what}")

    said("libraries")
    if "net" in models:
        _net(folder, train, test, bs, said)
    if "trees" in models:
        _trees(folder, train, test, rounds, said)


def _net(folder: Path, train: Path, test: Path, bs: int, said: Callable[[str], None]) -> None:
    frame = ParquetFrame(train, [Categorify, Normalize], ["city", "item"], CONTS, "clicked", **OPTIONS)
    said("the frame")
    learn = rec_learner(frame.dataloaders(bs=bs, buffer_rows=500_000, seed=0), layers=[64], n_out=1)
    learn.loss_func = lambda p, y: binary_cross_entropy_with_logits(p.squeeze(1), y.view(-1).float())
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, 5e-3)
    said("the net")
    write_predictions(learn, frame, test, folder / "net.parquet")
    said(f"its predictions, mrr {score(folder / 'net.parquet', test):.4f}")


def _trees(folder: Path, train: Path, test: Path, rounds: int, said: Callable[[str], None]) -> None:
    frame = ParquetFrame(train, [Categorify], ["city"], CONTS, ["clicked", "list"], **OPTIONS)
    matrix = external_matrix(frame, folder / "cache", lists="list")
    said("the matrix")
    trees = xgb.Booster({"objective": "rank:ndcg", "eta": 0.3, "max_depth": 6, "nthread": 1}, [matrix])
    for i in range(rounds):
        trees.update(matrix, i)
        said(f"{i + 1} trees")
    del matrix
    write_predictions(trees, frame, test, folder / "trees.parquet")
    said(f"their predictions, mrr {score(folder / 'trees.parquet', test):.4f}")


def main(
    folder: Path,
    rows: int = 20_000_000,
    memory: Annotated[float, typer.Option(help="GB that it may have; 0: no limit.")] = 0,
    bs: int = 4096,
    rounds: int = 20,
    models: Annotated[str, typer.Option(help="net, trees: each in a process of its own.")] = "net,trees",
    limited: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Write the rows where they are not there yet, and work in a process with the limit."""
    if limited:
        work(folder, bs, rounds, models)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", rows, 0), ("test", rows // 4, 1)):
        if not (folder / f"{name}.parquet").exists():
            write(folder / f"{name}.parquet", count, seed)
    sizes = {p.name: f"{p.stat().st_size / 2**30:.2f} GB" for p in folder.glob("*.parquet")}
    typer.echo(f"{rows:,} rows, {sizes}")
    command = [sys.executable, __file__, "--limited", "--bs", str(bs), "--rounds", str(rounds)]
    for model in models.split(","):
        typer.echo(run_limited([*command, "--models", model, str(folder)], int((memory or 1024) * 2**30)))


if __name__ == "__main__":
    typer.run(main)
