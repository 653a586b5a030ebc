"""Copies from the device to the host on the way frame → features → TabularFrame → loader → net → XGBoost.

Every stage runs under the profiler once warm. A copy counts as *large* if it holds a byte a row or more: then values of
rows went to the host. ``ALLOWED`` says how many of them a stage may make, and why; all others are numbers that decide
what comes next (how many rows, how many distinct values), and vocabularies, which live on the host. In addition a stage
may make only so many copies of any size for each batch, as every one of them waits for the device.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from _gpu_trace import At, Event, profiled, to_host
from _gpu_training import Window
from _timing import Record, bare
from fastai.data.block import CategoryBlock

from fastrec.estimators import XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
from fastrec.training import rec_learner
from fastrec.validate import Lists

CATS, CONTS, LIST = ["city", "item", "word"], ["price", "time"], "list_id"


class Allowed(NamedTuple):
    """The copies to the host that a stage may make, and why."""

    large: int  # copies that hold a byte a row or more
    per_batch: float | None  # copies of any size for each batch; None: any number of small ones
    why: str


ALLOWED = {
    "frame": Allowed(0, None, "text's distinct values are kept on the host"),
    "features": Allowed(0, None, "counts of rows and groups decide what comes next"),
    "TabularFrame": Allowed(0, None, "vocabularies, means and medians are kept on the host"),
    "loader": Allowed(0, 0.1, "nothing has to come back"),
    "net": Allowed(0, 1.0, "the loss, which is shown and looked at, once a batch"),
    "XGBoost": Allowed(1, None, "scores, a number a row, are given on the host"),
}


def source(rows: int) -> pd.DataFrame:
    """Draw rows of integers, text, numbers with missing values, lists of twenty and a target."""
    rng = np.random.default_rng(0)
    words = np.array([f"word {i}" for i in range(200)], dtype=object)
    price = rng.lognormal(4, 1, rows)
    price[rng.random(rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            LIST: np.arange(rows) // 20,
            "time": rng.permutation(rows).astype(np.int64),
            "city": rng.integers(0, 50, rows),
            "item": rng.integers(0, 500, rows),
            "word": words[rng.integers(0, len(words), rows)],
            "price": price,
            "y": (rng.random(rows) < 0.1).astype(np.int64),
        }
    )


class Path:
    """The stages on a device, each on the result of the one before; ``df`` is a ``source``."""

    def __init__(self, df: pd.DataFrame, device: torch.device, *, bs: int, batches: int) -> None:
        self.device, self.bs, self.batches = device, bs, min(batches, max(1, len(df) // bs))
        self.groups, self.label = torch.from_numpy(df[LIST].to_numpy()), torch.from_numpy(df["y"].to_numpy())
        self.given: Any = df
        if device.type == "cuda" and importlib.util.find_spec("cudf") is not None:
            import cudf

            self.given = cudf.from_pandas(df)
        runs = (self.read, self.features, self.prepare, self.load, self.train, self.trees)
        self.stages = dict(zip(ALLOWED, runs, strict=True))

    def read(self) -> None:
        self.table = Table.read(self.given, device=self.device)

    def features(self) -> None:
        by_item = GroupStats("price", by="item", stats=["mean"])
        steps = [TargetEncode("city", "y"), CountEncode("item"), by_item, Lag("price", by="item", order="time")]
        self.made = FeatureSet(steps).fit_transform(self.table)
        self.conts = [*CONTS, *(n for n in self.made.names if n not in self.table.names)]

    def prepare(self) -> None:
        procs = [Categorify, FillMissing, Normalize]
        self.to = TabularFrame(self.made, procs, CATS, self.conts, "y", CategoryBlock, device=self.device)

    def load(self) -> None:
        loader = self.to.dataloaders(bs=self.bs, device=self.device).train
        for i, _ in enumerate(loader, 1):
            if i >= self.batches:
                break

    def train(self) -> None:
        learn = rec_learner(self.to.dataloaders(bs=self.bs, device=self.device), layers=[64, 32])
        with learn.no_bar(), learn.no_logging():
            learn.fit(self.batches, 1e-3, cbs=Window(0, self.batches, self.device))

    def trees(self) -> None:
        lists = Lists(self.made, self.groups, conts=self.conts, label=self.label.float())
        XGBRanker("trees", rounds=5).fit(lists, device=self.device).predict(lists)


def copies(at: At, *, rows: int, bs: int, batches: int) -> Iterator[Record]:
    path = Path(source(rows), at.device, bs=bs, batches=batches)
    for run in path.stages.values():
        run()  # libraries load their kernels, which copies too
    for stage, run in path.stages.items():
        begun = time.perf_counter()
        events = profiled(run, at.device)
        yield counted(stage, events, rows=rows, batches=path.batches, seconds=time.perf_counter() - begun)


def counted(stage: str, events: list[Event], *, rows: int, batches: int, seconds: float) -> Record:
    """Count the copies of a stage, and those beyond what is allowed."""
    found, allowed = to_host(events), ALLOWED[stage]
    large = [e for e in found if e.size is None or e.size >= rows]  # of unknown size: taken for large
    beyond = max(0, len(large) - allowed.large)
    if allowed.per_batch is not None:
        beyond += max(0, len(found) - int(allowed.per_batch * batches) - 2)  # two an epoch: how many rows there are
    return bare(
        "copies to the host",
        stage,
        rows,
        round(seconds, 4),
        copies=len(found),
        large=len(large),
        copied_bytes=sum(e.size or 0 for e in found),
        largest_bytes=max((e.size or 0 for e in found), default=0),
        events=len(events),
        beyond=beyond,
        notes=f"{len(found)} copies, {len(large)} large; allowed: {allowed.large} large, as {allowed.why}",
    )
