"""Loader, precision, CUDA graphs, the embeddings' share of a step and how busy the device is, each beside its floor."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _frames import tabular, with_fastrec
from _gpu_trace import At, Profile, busy, picture, seconds_of, share, synchronize
from _timing import Record, Timing, bare, by_turns, record
from fastai.callback.core import Callback, CancelFitException, CancelValidException
from fastai.torch_core import set_seed

from fastrec.models import emb_sz_rule
from fastrec.optim import adamw
from fastrec.training import CudaGraph, rec_learner

LAYERS = [200, 100]
WARM_UP = 8  # batches: a graph is recorded in the fifth
_TABLES = re.compile(r"Embedding|IndexSelect|Gather|LookUp|Rows", re.IGNORECASE)  # nodes that write tables


class Window(Callback):
    """The seconds of ``counted`` batches after those ``skipped``, of the device, too; the training then ends."""

    order = -100

    def __init__(self, skipped: int, counted: int, device: torch.device, profile: Profile | None = None) -> None:
        super().__init__()
        self.profile = profile
        self.skipped, self.counted, self.where, self.seen, self.seconds = skipped, counted, device, 0, 0.0

    def before_batch(self) -> None:
        if self.seen == self.skipped:
            synchronize(self.where)
            if self.profile is not None:
                self.profile.start()
            self.begun = time.perf_counter()

    def after_batch(self) -> None:
        self.seen += 1
        if self.seen == self.skipped + self.counted:
            synchronize(self.where)
            self.seconds = time.perf_counter() - self.begun
            if self.profile is not None:
                self.profile.stop()
            raise CancelFitException

    def before_validate(self) -> None:
        raise CancelValidException


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
        clock = Window(WARM_UP, batches, device, profile)
        with learn.no_bar(), learn.no_logging():
            # one rate throughout, so that the optimizer's step can be a graph too
            learn.fit(-(-(WARM_UP + batches) // len(learn.dls.train)) + 1, 1e-3, cbs=clock)
    return clock.seconds / batches, learn.graph_reason if "graph" in way else None


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
