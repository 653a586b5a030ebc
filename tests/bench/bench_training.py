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

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from _frames import CARDINALITIES, CATS, CONTS, Clock, tabular, with_fastai, with_fastrec
from _timing import Options, Record, Timing, by_turns, product_speed, race, record, run_cases
from fastai.tabular.learner import tabular_learner
from sklearn.metrics import roc_auc_score
from torch import nn

from fastrec._core import limits
from fastrec.optim import Lamb
from fastrec.training import rec_learner

LAYERS, LARGE, ROWS, STEPS = (200, 100), 65_536, 1_000_000, 5


def planted(rows: int) -> pd.DataFrame:
    """Draw the frame with a target that depends on ids of all sizes and on two numbers."""
    df, rng = tabular(rows, "int"), np.random.default_rng(1)
    score = 0.8 * df["x0"].fillna(0).to_numpy() - 0.05 * df["x1"].fillna(0).to_numpy() - 1
    for name, size in zip(CATS, CARDINALITIES, strict=True):
        effects = rng.normal(scale=0.5, size=size)
        score += effects[pd.factorize(df[name], sort=True)[0] % size]
    return df.assign(y=(np.random.default_rng(2).random(rows) < 1 / (1 + np.exp(-score))).astype("int64"))


def stock(df: pd.DataFrame, splits: Any, bs: int) -> Callable[[float], Any]:
    dls = with_fastai(df, [list(s) for s in splits]).dataloaders(bs, val_bs=LARGE)
    return lambda lr: tabular_learner(dls, layers=list(LAYERS), lr=lr)


def ours(df: pd.DataFrame, splits: Any, bs: int, **options: Any) -> Callable[[float], Any]:
    dls = with_fastrec(df, splits).dataloaders(bs, val_bs=LARGE)
    # the widths as they are: padding them would be other nets
    return lambda lr: rec_learner(dls, layers=list(LAYERS), lr=lr, pad=False, **options)


def run(make: Callable[[float], Any], lr: float, batches: int) -> tuple[float, float, float]:
    """Return wall and CPU seconds of one epoch's training part, and the validation AUC."""
    torch.manual_seed(0)
    learn, clock = make(lr), Clock(batches)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, lr, cbs=clock)
        probs, ys = learn.get_preds()
    return *clock.took, float(roc_auc_score(ys.view(-1).numpy(), probs[:, 1].numpy()))


def training(options: Options, *, bs: int, batches: int, lr: float) -> Iterator[Record]:
    """Train stock and ours by turns, so many batches of an epoch over a million rows."""
    case, df, rows = f"train, batch {bs:,}", planted(ROWS + ROWS // 10), bs * batches
    splits = (range(ROWS), range(ROWS, len(df)))
    makers = {
        "fastrec": ours(df, splits, bs, grads="rows"),
        "fastrec, bf16": ours(df, splits, bs, grads="rows", amp="bf16"),
        "fastrec, dense gradients": ours(df, splits, bs),
        "fastai": stock(df, splits, bs),
    }
    run(makers["fastrec"], lr, batches)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in makers}
    for _, name in by_turns(makers, options.repeats):
        found[name].append(run(makers[name], lr, batches))
    timings = {n: Timing.of([r[0] for r in f], [r[1] for r in f]) for n, f in found.items()}
    for name, timing in timings.items():
        auc = statistics.median(r[2] for r in found[name])
        yield record(case, name, rows, timing, timings["fastrec"], auc=round(auc, 4), notes=f"AUC {auc:.4f}")
    # what the products of the dense layers take at the speed of one large product
    widths = [min(600, round(1.6 * (n + 1) ** 0.56)) for n in (*CARDINALITIES, 2, 2, 2)]
    sizes = [sum(widths) + len(CONTS), *LAYERS, 2]
    flop, rate = 6 * rows * sum(a * b for a, b in pairwise(sizes)), product_speed(bs, *sizes[:2])
    notes = f"floor: {flop / 1e9:,.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s, where every row is multiplied"
    yield record(case, "products alone, float32", rows, Timing(flop / rate), timings["fastrec"], notes=notes)


def optimizer(options: Options) -> Iterator[Record]:
    def steps(opt: torch.optim.Optimizer) -> None:
        for _ in range(STEPS):
            opt.step()

    nets = {
        "tables, 100,000 × 64": [(100_000, 64)],
        "the frame's tables and layers": [(n, min(600, round(1.6 * n**0.56))) for n in CARDINALITIES]
        + [(200, 1_300), (200,), (100, 200), (100,), (2, 100), (2,)],
        "an article-sized net": [(50_000, 16), (20_000, 8), (64, 80), (64,), (32, 64), (32,), (1, 32), (1,)],
    }
    for name, shapes in nets.items():
        ours, fused = partial(Lamb, lr=1e-4, weight_decay=0.01), partial(torch.optim.AdamW, lr=1e-4, fused=True)
        systems = {}
        for s, opt in {"AdamW, fused": fused, "LAMB": ours, "LAMB, no numba": ours}.items():
            parameters = [nn.Parameter(torch.randn(*z) * 0.05) for z in shapes]
            for p in parameters:
                p.grad = torch.randn_like(p)
            systems[s] = partial(steps, opt(parameters))
        systems["LAMB, no numba"] = patch.object(limits, "LOOP_NUMBERS", 1 << 62)(systems["LAMB, no numba"])
        timings = {n: t.over(STEPS) for n, t in race(systems, 2 * options.repeats)[0].items()}
        rows = sum(int(np.prod(z)) for z in shapes)
        for s, timing in timings.items():
            times = timing.cpu_seconds / timings["AdamW, fused"].cpu_seconds
            notes = f"{times:.2f} × fused AdamW's CPU time" if "LAMB" in s else "rows: numbers"
            yield record(f"optimizer, {name}", s, rows, timing, timings["LAMB"], notes=notes)


if __name__ == "__main__":
    small, large = partial(training, bs=4_096, batches=40, lr=2e-3), partial(training, bs=LARGE, batches=15, lr=8e-3)
    run_cases(
        __doc__,
        {"small": small, "large": large, "optimizer": optimizer},
        "training",
        repeats=(3, "timed runs of every system"),
    )
