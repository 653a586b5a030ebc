"""Loader, precision, CUDA graphs, the embeddings' share of a step, how busy the device is, and copies to the host."""

from __future__ import annotations

import importlib.util
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from _frames import Clock, tabular, with_fastrec
from _gpu_trace import At, Event, Profile, busy, picture, profiled, seconds_of, share, to_host
from _timing import Record, Timing, bare, by_turns, record
from fastai.data.block import CategoryBlock
from fastai.torch_core import set_seed

from fastrec.estimators import XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode
from fastrec.models import emb_sz_rule
from fastrec.optim import adamw
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
from fastrec.training import CudaGraph, rec_learner
from fastrec.validate import Lists

LAYERS = [200, 100]
WARM_UP = 8  # batches: a graph is recorded in the fifth
_TABLES = re.compile(r"Embedding|IndexSelect|Gather|LookUp|Rows", re.IGNORECASE)  # nodes that write tables


def frame(rows: int, device: torch.device) -> Any:
    return with_fastrec(tabular(rows, "int")).to_device(device)


def learner(to: Any, bs: int, device: torch.device, way: str, layers: list[int]) -> Any:
    """Make a learner in ``float32``, ``bf16`` or ``fp16``, with ``, graph`` where steps are replayed."""
    set_seed(0)
    dtype, _, graph = way.partition(", ")
    # off CUDA a graph's code runs with steps that are simply done again
    again = None if device.type == "cuda" else (lambda run, _device, _warm_up: run)
    dls = to.dataloaders(bs=bs, device=device, drop_last=True)
    how = {"amp": None if dtype == "float32" else dtype, "cbs": [CudaGraph(record=again)] if graph else []}
    return rec_learner(dls, layers=layers, opt_func=adamw, **how)


def train(
    to: Any, bs: int, device: torch.device, batches: int, way: str = "float32", profile: Profile | None = None
) -> tuple[float, str | None]:
    """Return the seconds of a batch, and why no graph was used if one was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no graph is said in the record
        learn = learner(to, bs, device, way, LAYERS)
        clock = Clock(batches, skipped=WARM_UP, profile=profile)
        with learn.no_bar(), learn.no_logging():
            # one rate throughout, so that the optimizer's step can be a graph too
            learn.fit(-(-(WARM_UP + batches) // len(learn.dls.train)) + 1, 1e-3, cbs=clock)
    return clock.took[0] / batches, learn.graph_reason if "graph" in way else None


def loader(at: At, *, rows: int, batches: Sequence[int]) -> Iterator[Record]:
    """Time shuffled epochs of rows on the device, beside a bare loop of ``index_select``."""
    to, device = frame(rows, at.device), at.device
    packed, rows = to.packed, len(to)
    row = 4 * packed.layout.words
    moved = rows * (2 * row + 8 + 16)  # rows read and written, the order read, and drawn: written and read
    for bs in batches:
        dl = to.dataloaders(bs=bs, device=device, drop_last=True).train
        order = torch.randperm(rows, device=device)

        def loop(bs: int = bs, order: torch.Tensor = order) -> None:
            for start in range(0, rows // bs * bs, bs):
                packed.layout.views(packed.buffer.index_select(0, order[start : start + bs]))

        own = seconds_of(lambda dl=dl: sum(1 for _ in dl), device, 3)
        for system, seconds in (("fastrec", own), ("bare index_select", seconds_of(loop, device, 3))):
            one = record(f"loader, batch {bs:,}", system, rows, Timing(seconds), Timing(own), batch=bs, row_bytes=row)
            floor = moved / at.floors.copy if at.floors else None
            yield share(one, floor, f"{moved / 1e9:.3f} GB at the copy's speed")


def steps(at: At, *, rows: int, batches: Sequence[int], count: int, repeats: int) -> Iterator[Record]:
    """Time float32, 16 bits and CUDA graphs by turns, at every batch size."""
    to = frame(rows, at.device)
    ways = ["float32", "bf16", *(["fp16"] if at.device.type == "cuda" else []), "float32, graph", "bf16, graph"]
    for bs in batches:
        found: dict[str, list[float]] = {way: [] for way in ways}
        reasons: dict[str, str | None] = {}
        for _, way in by_turns(ways, repeats):
            seconds, reasons[way] = train(to, bs, at.device, count, way)
            found[way].append(seconds)
        medians = {way: Timing.of(values) for way, values in found.items()}
        for way, timing in medians.items():
            one = record(f"training step, batch {bs:,}", way, bs, timing, min(medians.values()), batch=bs)
            one |= {"seconds": timing.seconds, "speedup": round(medians["float32"].seconds / timing.seconds, 3)}
            reason = {"notes": f"no graph: {reasons[way]}"} if reasons[way] else {}
            yield (one if at.floors is None else _with_floor(one, to, bs, way, at)) | reason


def _with_floor(one: Record, to: Any, bs: int, way: str, at: At) -> Record:
    """Add the floor of a step: its products at a large one's speed, or its bytes at the copy's, whichever is more."""
    tables = [(len(to.classes[n]), emb_sz_rule(len(to.classes[n]))) for n in to.cat_names]
    sizes = [sum(width for _, width in tables) + len(to.cont_names), *LAYERS, 2]
    weights = sum(a * b for a, b in pairwise(sizes))
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(way.partition(",")[0], "float32")
    flops = at.floors.flops.get(dtype, at.floors.flops["float32"])
    # AdamW reads weight, gradient and two moments and writes three of them; a gradient is written once before
    moved = 4 * 8 * (weights + sum(n * width for n, width in tables))
    moved += bs * (2 * 4 * to.packed.layout.words + 4 * 4 * sizes[0])
    products, memory = 6 * bs * weights / flops, moved / at.floors.copy
    what = f"{6 * bs * weights / 1e9:.1f} GFLOP of products" if products > memory else f"{moved / 1e6:.1f} MB"
    return share(one, max(products, memory), what)


def embeddings(at: At, *, rows: int, batches: Sequence[int], count: int) -> Iterator[Record]:
    """Measure the embeddings' backward pass on the device as a share of a step.

    The profiler slows the host down, so the nodes' time on the device is set beside the wall time of a step that was
    not profiled.
    """
    to = frame(rows, at.device)
    for bs in batches:
        step, _ = train(to, bs, at.device, count)
        profile = Profile(at.device)
        train(to, bs, at.device, count, profile=profile)
        nodes = profile.backward(_TABLES.search)
        seconds = sum(nodes.values()) / count
        notes = ", ".join(sorted(nodes)) or "no such node in the backward pass"
        part = round(seconds / step, 4) if nodes else None
        more = {"batch": bs, "step_seconds": step, "share": part, "notes": notes}
        yield bare(f"embedding backward, batch {bs:,}", "fastrec", bs, seconds, **more)


def business(at: At, *, rows: int, batches: Sequence[int], count: int, image: Path | None = None) -> Iterator[Record]:
    """Measure for how much of a step the device is busy (see ``embeddings``), with a picture beside the report."""
    to, lanes = frame(rows, at.device), {}
    for bs in batches:
        for way in ("float32", "bf16, graph"):
            step, _ = train(to, bs, at.device, count, way)
            profile = Profile(at.device)
            train(to, bs, at.device, count, way, profile)
            worked = min(busy(profile.events) / count, step)
            lanes[f"{way}, batch {bs:,}: busy {worked / step:.0%} of {step * 1e3:.2f} ms a step"] = profile.events
            one = record(f"device busy, batch {bs:,}", way, bs, Timing(step), Timing(step), batch=bs)
            yield one | {"seconds": step, "busy": round(worked / step, 4), "busy_seconds": worked}
    report = image or at.options.report
    picture(report.with_name(f"{report.stem}-profile.png"), lanes)


# Copies from the device to the host ----------------------------------------------------------------------------------


class Allowed(NamedTuple):
    """The copies to the host that a stage may make, and why.

    All others are numbers that decide what comes next (how many rows, how many distinct values), and vocabularies.
    """

    large: int  # copies that hold a byte a row or more: values of rows
    per_batch: float | None  # copies of any size for each batch, each of which waits; None: any number of small ones
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
    price = rng.lognormal(4, 1, rows)
    price[rng.random(rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "list_id": np.arange(rows) // 20,
            "time": rng.permutation(rows).astype(np.int64),
            "city": rng.integers(0, 50, rows),
            "item": rng.integers(0, 500, rows),
            "word": np.array([f"word {i}" for i in range(200)], dtype=object)[rng.integers(0, 200, rows)],
            "price": price,
            "y": (rng.random(rows) < 0.1).astype(np.int64),
        }
    )


def on_the_way(df: pd.DataFrame, device: torch.device, *, bs: int, batches: int) -> dict[str, Callable[[], Any]]:
    """Return the stages from a ``source`` to trees, each of which goes on from the result of the one before."""
    given, made, cats, conts = df, {}, ["city", "item", "word"], ["price", "time"]
    groups, label = torch.from_numpy(df["list_id"].to_numpy()), torch.from_numpy(df["y"].to_numpy())
    if device.type == "cuda" and importlib.util.find_spec("cudf") is not None:
        import cudf

        given = cudf.from_pandas(df)

    def read() -> None:
        made["table"] = Table.read(given, device=device)

    def features() -> None:
        by_item = GroupStats("price", by="item", stats=["mean"])
        steps = [TargetEncode("city", "y"), CountEncode("item"), by_item, Lag("price", by="item", order="time")]
        made["features"] = FeatureSet(steps).fit_transform(made["table"])
        made["conts"] = [*conts, *(n for n in made["features"].names if n not in made["table"].names)]

    def prepare() -> None:
        procs = [Categorify, FillMissing, Normalize]
        made["to"] = TabularFrame(made["features"], procs, cats, made["conts"], "y", CategoryBlock, device=device)

    def load() -> None:
        for i, _ in enumerate(made["to"].dataloaders(bs=bs, device=device).train, 1):
            if i >= batches:
                break

    def train() -> None:
        learn = rec_learner(made["to"].dataloaders(bs=bs, device=device), layers=[64, 32])
        with learn.no_bar(), learn.no_logging():
            learn.fit(batches, 1e-3, cbs=Clock(batches))

    def trees() -> None:
        lists = Lists(made["features"], groups, conts=made["conts"], label=label.float())
        XGBRanker("trees", rounds=5).fit(lists, device=device).predict(lists)

    return dict(zip(ALLOWED, (read, features, prepare, load, train, trees), strict=True))


def copies(at: At, *, rows: int, bs: int, batches: int) -> Iterator[Record]:
    """Count the copies on the way frame → features → TabularFrame → loader → net → XGBoost, each stage once warm."""
    batches = min(batches, max(1, rows // bs))
    stages = on_the_way(source(rows), at.device, bs=bs, batches=batches)
    for run in stages.values():
        run()  # libraries load their kernels, which copies too
    for stage, run in stages.items():
        begun = time.perf_counter()
        events = profiled(run, at.device)
        yield counted(stage, events, rows=rows, batches=batches, seconds=time.perf_counter() - begun)


def counted(stage: str, events: list[Event], *, rows: int, batches: int, seconds: float) -> Record:
    """Count the copies of a stage, and those beyond what is allowed."""
    found, allowed = to_host(events), ALLOWED[stage]
    large = [e for e in found if e.size is None or e.size >= rows]  # of unknown size: taken for large
    beyond = max(0, len(large) - allowed.large)
    if allowed.per_batch is not None:
        beyond += max(0, len(found) - int(allowed.per_batch * batches) - 2)  # two an epoch: how many rows there are
    sizes = [e.size or 0 for e in found]
    more = {"copied_bytes": sum(sizes), "largest_bytes": max(sizes, default=0), "events": len(events)}
    more["notes"] = f"{len(found)} copies, {len(large)} large; allowed: {allowed.large} large, as {allowed.why}"
    more |= {"copies": len(found), "large": len(large), "beyond": beyond}
    return bare("copies to the host", stage, rows, round(seconds, 4), **more)
