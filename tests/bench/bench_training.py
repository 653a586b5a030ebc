"""Training alone: fastai's tabular learner against fastrec's, on the same rows, widths, layers and batch sizes.

    python tests/bench/bench_training.py [--cases small,large,optimizer] [--repeats 3]

Cases:
  small      batch 4,096, fastai's default embedding widths (600 at most), layers 200-100, Adam(W): 40 batches.
  large      the same at batch 65,536: 15 batches.
  optimizer  one step of LAMB, with and without numba, and of torch's fused AdamW on the same parameters.

The frame is that of bench_loaders (8 categoricals of up to 100,000 values, 10 numbers) with a planted target, so that
the validation AUC shows whether a faster system has learnt as well. What is timed is so many batches of an epoch over
a million rows, loader included. The floor is what the multiplications of the dense layers take at the measured speed of
one large product. Prints a table and writes runs/bench/training.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _tabular import CARDINALITIES, CATS, CONTS, tabular
from _timing import Record, Timing, command_line, cores, cpu_time, heading, record, show, use_threads, write
from fastai.callback.core import Callback, CancelTrainException
from fastai.data.block import CategoryBlock
from rich.console import Console
from sklearn.metrics import roc_auc_score
from torch import nn

LAYERS, LARGE, ROWS = (200, 100), 65_536, 1_000_000


class Clock(Callback):
    """Times the training part of an epoch."""

    order = -100

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def before_train(self) -> None:
        self.wall, self.cpu = time.perf_counter(), cpu_time()

    def before_batch(self) -> None:
        if self.training and self.iter == self.batches:
            raise CancelTrainException

    def after_train(self) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, cpu_time() - self.cpu


def planted(rows: int, seed: int = 0) -> pd.DataFrame:
    """The frame with a target that depends on ids of all sizes and on two numbers."""
    df = tabular(rows, "int", seed=seed)
    rng = np.random.default_rng(1)
    score = 0.8 * df["x0"].fillna(0).to_numpy() - 0.05 * df["x1"].fillna(0).to_numpy() - 1
    for name, size in zip(CATS, CARDINALITIES, strict=True):
        effects = rng.normal(scale=0.5, size=size)
        score += effects[pd.factorize(df[name], sort=True)[0] % size]
    df["y"] = (np.random.default_rng(2).random(rows) < 1 / (1 + np.exp(-score))).astype("int64")
    return df


def stock(df: pd.DataFrame, splits: Any, bs: int) -> Callable[[float], Any]:
    """A maker of fastai's learner."""
    from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas
    from fastai.tabular.learner import tabular_learner

    to = TabularPandas(
        df,
        [Categorify, FillMissing, Normalize],
        list(CATS),
        list(CONTS),
        "y",
        CategoryBlock(),
        [list(s) for s in splits],
    )
    dls = to.dataloaders(bs, val_bs=LARGE)
    return lambda lr: tabular_learner(dls, layers=list(LAYERS), lr=lr)


def ours(df: pd.DataFrame, splits: Any, bs: int, **options: Any) -> Callable[[float], Any]:
    """A maker of fastrec's learner."""
    from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
    from fastrec.training import rec_learner

    to = TabularFrame(df, [Categorify, FillMissing, Normalize], CATS, CONTS, "y", CategoryBlock(), splits=splits)
    dls = to.dataloaders(bs, val_bs=LARGE)
    # the widths as they are: padding them would be other nets
    return lambda lr: rec_learner(dls, layers=list(LAYERS), lr=lr, pad=False, **options)


def run(make: Callable[[float], Any], lr: float, batches: int) -> tuple[float, float, float]:
    """Wall and CPU seconds of one epoch's training part, and the validation AUC."""
    torch.manual_seed(0)
    learn, clock = make(lr), Clock(batches)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, lr, cbs=clock)
        probs, ys = learn.get_preds()
    return clock.wall, clock.cpu, float(roc_auc_score(ys.view(-1).numpy(), probs[:, 1].numpy()))


def training(case: str, bs: int, batches: int, repeats: int, lr: float) -> Iterator[Record]:
    """Stock and ours by turns, so many batches of an epoch over a million rows (nearly all ids stand in them)."""
    df, rows = planted(ROWS + ROWS // 10), bs * batches
    splits = (range(ROWS), range(ROWS, len(df)))
    makers = {
        "fastrec": ours(df, splits, bs, grads="rows"),
        "fastrec, bf16": ours(df, splits, bs, grads="rows", amp="bf16"),
        "fastrec, dense gradients": ours(df, splits, bs),
        "fastai": stock(df, splits, bs),
    }
    run(makers["fastrec"], lr, batches)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in makers}
    for turn in range(repeats):
        names = list(makers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(run(makers[name], lr, batches))
    timings = {n: Timing.of([r[0] for r in f], [r[1] for r in f]) for n, f in found.items()}
    for name, timing in timings.items():
        auc = statistics.median(r[2] for r in found[name])
        yield record(case, name, rows, timing, timings["fastrec"], auc=round(auc, 4), notes=f"AUC {auc:.4f}")
    yield floor(case, rows, bs, timings["fastrec"])


def floor(case: str, rows: int, bs: int, own: Timing) -> Record:
    """What the products of the dense layers take at the speed of one large product."""
    widths = [min(600, round(1.6 * (n + 1) ** 0.56)) for n in CARDINALITIES] + [min(600, round(1.6 * 3**0.56))] * 3
    sizes = [sum(widths) + len(CONTS), *LAYERS, 2]
    flop = 6 * rows * sum(a * b for a, b in pairwise(sizes))
    x, w = torch.randn(bs, sizes[0]), torch.randn(sizes[1], sizes[0])
    times = []
    for _ in range(7):
        start = time.perf_counter()
        x @ w.T
        times.append(time.perf_counter() - start)
    rate = 2 * bs * sizes[0] * sizes[1] / min(times)
    seconds = Timing(flop / rate)
    notes = f"floor: {flop / 1e9:,.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s, where every row is multiplied"
    return record(case, "products alone, float32", rows, seconds, own, notes=notes)


def optimizer(repeats: int) -> Iterator[Record]:
    """A step of LAMB and of torch's fused AdamW."""
    from fastrec._core.kernels import without_compiled
    from fastrec.optim import Lamb

    nets = {
        "tables, 100,000 × 64": [(100_000, 64)],
        "the frame's tables and layers": [(n, min(600, round(1.6 * n**0.56))) for n in CARDINALITIES]
        + [(200, 1_300), (200,), (100, 200), (100,), (2, 100), (2,)],
        "an article-sized net": [(50_000, 16), (20_000, 8), (64, 80), (64,), (32, 64), (32,), (1, 32), (1,)],
    }
    for name, shapes in nets.items():
        systems = ("AdamW, fused", "LAMB", "LAMB, no numba")
        params = {s: [nn.Parameter(torch.randn(*z) * 0.05) for z in shapes] for s in systems}
        for ps in params.values():
            for p in ps:
                p.grad = torch.randn_like(p)
        opts = {
            s: Lamb(ps, lr=1e-4, weight_decay=0.01) if "LAMB" in s else torch.optim.AdamW(ps, lr=1e-4, fused=True)
            for s, ps in params.items()
        }
        rows, steps = sum(p.numel() for p in params["LAMB"]), 5
        walls: dict[str, list[float]] = {s: [] for s in opts}
        cpus: dict[str, list[float]] = {s: [] for s in opts}
        for turn in range(2 * repeats + 1):
            for s, opt in opts.items():
                start, cpu = time.perf_counter(), cpu_time()
                with without_compiled() if "no numba" in s else nullcontext():
                    for _ in range(steps):
                        opt.step()
                if turn:
                    walls[s].append((time.perf_counter() - start) / steps)
                    cpus[s].append((cpu_time() - cpu) / steps)
        timings = {s: Timing.of(w, cpus[s]) for s, w in walls.items()}
        for s, timing in timings.items():
            times = statistics.median(cpus[s]) / statistics.median(cpus["AdamW, fused"])
            notes = f"{times:.2f} × fused AdamW's CPU time" if "LAMB" in s else "rows: numbers"
            yield record(f"optimizer, {name}", s, rows, timing, timings["LAMB"], notes=notes)


def main() -> None:
    """Run the cases, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="small,large,optimizer", help="with commas between")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of every system")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/training.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    cases: dict[str, Callable[[], Iterator[Record]]] = {
        "small": lambda: training("train, batch 4,096", 4_096, 40, options.repeats, 2e-3),
        "large": lambda: training("train, batch 65,536", LARGE, 15, options.repeats, 8e-3),
        "optimizer": lambda: optimizer(options.repeats),
    }
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    records: list[Record] = []
    for name in options.cases.split(","):
        for one in cases[name]():
            records.append(one)
            print(
                f"  {one['case']:36s} {one['system']:28s} {one['seconds']:9.3f} s  {one.get('notes', '')}", flush=True
            )
    show(console, records, title="fastrec's training beside others")
    write(options.out, records, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
