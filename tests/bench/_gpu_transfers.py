"""Copies from the device to the host on the way frame → features → TabularFrame → loader → net → XGBoost.

Every stage runs under the profiler once warm. A copy counts as *large* if it holds a byte a row or more: then values of
rows went to the host. ``ALLOWED`` says how many of them a stage may make, and why; all others are numbers that decide
what comes next (how many rows, how many distinct values), and vocabularies, which live on the host. In addition a stage
may make only so many copies of any size for each batch, as every one of them waits for the device.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from _gpu_trace import Event, profiled, to_host
from _timing import Record
from fastai.data.block import CategoryBlock

from fastrec.estimators import XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
from fastrec.training import rec_learner
from fastrec.validate import Lists

CATS, CONTS, LIST = ["city", "item", "word"], ["price", "time"], "list_id"
_LISTED = 20  # candidates in a list


@dataclass(frozen=True)
class Allowed:
    """What a stage may copy to the host.

    Args:
        large: copies that hold a byte a row or more.
        per_batch: copies of any size for each batch; None: any number of small ones.
        why: the reason.
    """

    large: int
    per_batch: float | None
    why: str


ALLOWED = {
    "frame": Allowed(0, None, "text's distinct values are kept on the host"),
    "features": Allowed(0, None, "counts of rows and groups decide what comes next"),
    "TabularFrame": Allowed(0, None, "vocabularies, means and medians are kept on the host"),
    "loader": Allowed(0, 0.1, "nothing has to come back"),
    "net": Allowed(0, 1.0, "the loss, which is shown and looked at, once a batch"),
    "XGBoost": Allowed(1, None, "scores, a number a row, are given on the host"),
}


def source(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Rows of integers, text, numbers with missing values, lists and a target."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word {i}" for i in range(200)], dtype=object)
    price = rng.lognormal(4, 1, rows)
    price[rng.random(rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            LIST: np.arange(rows) // _LISTED,
            "time": rng.permutation(rows).astype(np.int64),
            "city": rng.integers(0, 50, rows),
            "item": rng.integers(0, 500, rows),
            "word": words[rng.integers(0, len(words), rows)],
            "price": price,
            "y": (rng.random(rows) < 0.1).astype(np.int64),
        }
    )


class Path:
    """The stages, each of which takes up what the one before it made.

    Args:
        df: see ``source``.
        device: where all of it is to stay.
        bs: rows in a batch.
        batches: that the net trains on.
    """

    def __init__(self, df: pd.DataFrame, device: torch.device, *, bs: int, batches: int) -> None:
        self.device, self.bs, self.batches = device, bs, min(batches, max(1, len(df) // bs))
        self.groups, self.label = torch.from_numpy(df[LIST].to_numpy()), torch.from_numpy(df["y"].to_numpy())
        self.with_cudf = device.type == "cuda" and importlib.util.find_spec("cudf") is not None
        self.given: Any = df
        if self.with_cudf:
            import cudf

            self.given = cudf.from_pandas(df)

    def stages(self) -> dict[str, tuple[Callable[[], Any], int]]:
        """Stage → what runs, and how many batches it goes through."""
        return {
            "frame": (self.read, 1),
            "features": (self.features, 1),
            "TabularFrame": (self.prepare, 1),
            "loader": (self.load, self.batches),
            "net": (self.train, self.batches),
            "XGBoost": (self.trees, 1),
        }

    def read(self) -> None:
        """The frame's columns as tensors on the device."""
        self.table = Table.read(self.given, device=self.device)

    def features(self) -> None:
        """Encodings of rows by a target, by counts, by groups and by time."""
        by_item = GroupStats("price", by="item", stats=["mean"])
        steps = [TargetEncode("city", "y"), CountEncode("item"), by_item, Lag("price", by="item", order="time")]
        self.made = FeatureSet(steps).fit_transform(self.table)
        self.names = [n for n in self.made.names if n not in self.table.names]

    def prepare(self) -> None:
        """Packed rows."""
        procs, conts = [Categorify, FillMissing, Normalize], [*CONTS, *self.names]
        self.to = TabularFrame(self.made, procs, CATS, conts, "y", CategoryBlock, device=self.device)

    def load(self) -> None:
        """Some batches of the loader."""
        loader = self.to.dataloaders(bs=self.bs, device=self.device).train
        for i, _ in enumerate(loader, 1):
            if i >= self.batches:
                break

    def train(self) -> None:
        """A net."""
        from _gpu_training import Window

        dls = self.to.dataloaders(bs=self.bs, device=self.device)
        learn = rec_learner(dls, layers=[64, 32])
        with learn.no_bar(), learn.no_logging():
            learn.fit(self.batches, 1e-3, cbs=Window(0, self.batches, self.device))

    def trees(self) -> None:
        """Trees that rank, and their scores."""
        conts = [*CONTS, *self.names]
        lists = Lists(self.made, self.groups, conts=conts, label=self.label.float())
        ranker = XGBRanker("trees", rounds=5)
        ranker.fit(lists, device=self.device)
        ranker.predict(lists)


def measure(device: torch.device, *, rows: int, bs: int, batches: int) -> Iterator[Record]:
    """One record for each stage."""
    path = Path(source(rows), device, bs=bs, batches=batches)
    for run, _ in path.stages().values():
        run()  # libraries load their kernels, which copies too
    for stage, (run, count) in path.stages().items():
        begun = time.perf_counter()
        events = profiled(run, device)
        yield record(stage, events, rows=rows, batches=count, seconds=time.perf_counter() - begun)


def record(stage: str, events: list[Event], *, rows: int, batches: int, seconds: float) -> Record:
    """What a stage's copies come to, beside what is allowed.

    Args:
        stage: its name.
        events: of the device.
        rows: that went through.
        batches: for which copies are counted.
        seconds: under the profiler.
    """
    copies, allowed = to_host(events), ALLOWED[stage]
    large = [e for e in copies if e.size is None or e.size >= rows]  # of unknown size: taken for large
    beyond = max(0, len(large) - allowed.large)
    if allowed.per_batch is not None:
        beyond += max(0, len(copies) - int(allowed.per_batch * batches) - 2)  # two an epoch: how many rows there are
    return {
        "case": "copies to the host",
        "system": stage,
        "rows": rows,
        "seconds": round(seconds, 4),
        "rows_per_s": round(rows / seconds),
        "ratio": None,
        "copies": len(copies),
        "large": len(large),
        "copied_bytes": sum(e.size or 0 for e in copies),
        "largest_bytes": max((e.size or 0 for e in copies), default=0),
        "events": len(events),
        "beyond": beyond,
        "notes": f"{len(copies)} copies, {len(large)} large; allowed: {allowed.large} large, as {allowed.why}",
    }
