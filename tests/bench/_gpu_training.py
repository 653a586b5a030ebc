"""Loader, precision, CUDA graphs, the embeddings' share of a step and how busy the device is, each beside its floor."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from _gpu_floors import Floors, share
from _gpu_trace import Profile, busy, seconds_of, synchronize
from _tabular import tabular, with_fastrec
from _timing import Record, Timing, bare
from _timing import record as timed
from fastai.callback.core import Callback, CancelFitException, CancelValidException
from fastai.torch_core import set_seed

from fastrec.optim import adamw
from fastrec.training import CudaGraph, rec_learner

LAYERS = [200, 100]
WARM_UP = 8  # batches: a graph is recorded in the fifth
_TABLES = re.compile(r"Embedding|IndexSelect|Gather|LookUp|Rows", re.IGNORECASE)  # nodes that write tables


class Window(Callback):
    """The seconds of some batches in the middle of a training, which then ends.

    Args:
        skipped: batches before the clock starts.
        counted: batches until it stops.
        device: waited for at both ends.
        profile: watches the same batches, if given.
    """

    order = -100

    def __init__(self, skipped: int, counted: int, device: torch.device, profile: Profile | None = None) -> None:
        super().__init__()
        self.profile = profile
        self.skipped, self.counted, self.where, self.seen, self.seconds = skipped, counted, device, 0, 0.0

    def before_batch(self) -> None:
        """Start the clock."""
        if self.seen == self.skipped:
            synchronize(self.where)
            if self.profile is not None:
                self.profile.start()
            self.begun = time.perf_counter()

    def after_batch(self) -> None:
        """Stop it, after the last batch."""
        self.seen += 1
        if self.seen == self.skipped + self.counted:
            synchronize(self.where)
            self.seconds = time.perf_counter() - self.begun
            if self.profile is not None:
                self.profile.stop()
            raise CancelFitException

    def before_validate(self) -> None:
        """Nothing is validated."""
        raise CancelValidException


def frame(rows: int, device: torch.device) -> Any:
    """A prepared frame on the device."""
    return with_fastrec(tabular(rows, "int")).to_device(device)


def train(
    to: Any,
    bs: int,
    device: torch.device,
    batches: int,
    *,
    way: str = "float32",
    profile: Profile | None = None,
) -> tuple[float, str | None]:
    """Train on some batches.

    Args:
        to: the frame.
        bs: rows in a batch.
        device: where.
        batches: whose time is taken.
        way: ``float32``, ``bf16`` or ``fp16``, with ``, graph`` where steps are replayed.
        profile: watches these batches, if given.

    Returns:
        Seconds of a batch, and why no graph was used where one was asked for (else None).
    """
    set_seed(0)
    dtype, _, graph = way.partition(", ")
    cbs: list[Any] = []
    if graph:  # off CUDA its code runs with steps that are simply done again
        again = None if device.type == "cuda" else (lambda run, _device, _warm_up: run)
        cbs.append(CudaGraph(record=again))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no graph is said in the record
        dls = to.dataloaders(bs=bs, device=device, drop_last=True)
        amp = None if dtype == "float32" else dtype
        learn = rec_learner(dls, layers=LAYERS, opt_func=adamw, amp=amp, cbs=cbs)
        clock = Window(WARM_UP, batches, device, profile)
        with learn.no_bar(), learn.no_logging():
            # one rate throughout, so that the optimizer's step can be a graph too
            learn.fit(-(-(WARM_UP + batches) // len(dls.train)) + 1, 1e-3, cbs=clock)
    return clock.seconds / batches, learn.graph_reason if graph else None


# Loader --------------------------------------------------------------------------------------------------------------


def loader(to: Any, device: torch.device, floors: Floors | None, *, batches: Sequence[int]) -> Iterator[Record]:
    """Shuffled epochs of rows that are on the device, beside a bare loop of ``index_select``."""
    packed, rows = to.packed, len(to)
    row = 4 * packed.layout.words
    moved = rows * (2 * row + 8 + 16)  # rows read and written, the order read, and drawn: written and read
    for bs in batches:
        dl = to.dataloaders(bs=bs, device=device, drop_last=True).train
        order = torch.randperm(rows, device=device)

        def bare(bs: int = bs, order: torch.Tensor = order) -> None:
            for start in range(0, rows // bs * bs, bs):
                packed.layout.views(packed.buffer.index_select(0, order[start : start + bs]))

        own = seconds_of(lambda dl=dl: _through(dl), device, 3)
        for system, seconds in (("fastrec", own), ("bare index_select", seconds_of(bare, device, 3))):
            one = timed(f"loader, batch {bs:,}", system, rows, Timing(seconds), Timing(own), batch=bs)
            floor = moved / floors.copy if floors else None
            yield share(one, floor, f"{moved / 1e9:.3f} GB at the copy's speed") | {"row_bytes": row}


def _through(dl: Any) -> int:
    return sum(1 for _ in dl)


# Steps ---------------------------------------------------------------------------------------------------------------


def steps(
    to: Any, device: torch.device, floors: Floors | None, *, batches: Sequence[int], count: int, repeats: int
) -> Iterator[Record]:
    """float32, 16 bits and CUDA graphs by turns, at every batch size."""
    ways = ["float32", "bf16", *(["fp16"] if device.type == "cuda" else []), "float32, graph", "bf16, graph"]
    for bs in batches:
        found: dict[str, list[float]] = {way: [] for way in ways}
        reasons: dict[str, str | None] = {}
        for turn in range(repeats):
            shift = turn % len(ways)
            for way in ways[shift:] + ways[:shift]:
                seconds, reasons[way] = train(to, bs, device, count, way=way)
                found[way].append(seconds)
        medians = {way: Timing.of(values) for way, values in found.items()}
        best = min(medians.values(), key=lambda t: t.seconds)
        for way, timing in medians.items():
            one = timed(f"training step, batch {bs:,}", way, bs, timing, best, batch=bs)
            one["seconds"] = timing.seconds
            speedup = round(medians["float32"].seconds / timing.seconds, 3)
            reason = {"notes": f"no graph: {reasons[way]}"} if reasons[way] else {}
            yield _with_floor(one, to, bs, way, floors) | {"speedup": speedup, **reason}


def _with_floor(one: Record, to: Any, bs: int, way: str, floors: Floors | None) -> Record:
    """The floor of a step: its products at the speed of a large one, or its bytes at the copy's, whichever is more."""
    if floors is None:
        return one
    sizes = _sizes(to)
    weights = sum(a * b for a, b in pairwise(sizes))
    tables = sum(rows * width for rows, width in _tables(to))
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(way.partition(",")[0], "float32")
    flops = floors.flops.get(dtype, floors.flops["float32"])
    # AdamW reads weight, gradient and two moments and writes three of them; a gradient is written once before
    moved = 4 * 8 * (weights + tables) + bs * (2 * 4 * to.packed.layout.words + 4 * 4 * sizes[0])
    products, memory = 6 * bs * weights / flops, moved / floors.copy
    what = f"{6 * bs * weights / 1e9:.1f} GFLOP of products" if products > memory else f"{moved / 1e6:.1f} MB"
    return share(one, max(products, memory), what)


def _tables(to: Any) -> list[tuple[int, int]]:
    from fastrec.models import emb_sz_rule

    counts = [len(to.classes[name]) for name in to.cat_names]
    return [(n, emb_sz_rule(n)) for n in counts]


def _sizes(to: Any) -> list[int]:
    return [sum(width for _, width in _tables(to)) + len(to.cont_names), *LAYERS, 2]


# Where a step's time goes --------------------------------------------------------------------------------------------


def embeddings(to: Any, device: torch.device, *, batches: Sequence[int], count: int) -> Iterator[Record]:
    """The share of a step that the backward pass of the embeddings takes, on the device.

    The profiler slows the host down, so the nodes' time on the device is set beside the wall time of a step that was
    not profiled.
    """
    for bs in batches:
        step, _ = train(to, bs, device, count)
        profile = Profile(device)
        train(to, bs, device, count, profile=profile)
        nodes = profile.backward(lambda name: bool(_TABLES.search(name)))
        seconds = sum(nodes.values()) / count
        notes = ", ".join(sorted(nodes)) or "no such node in the backward pass"
        part = round(seconds / step, 4) if nodes else None
        more = {"batch": bs, "step_seconds": step, "share": part, "notes": notes}
        yield bare(f"embedding backward, batch {bs:,}", "fastrec", bs, seconds, **more)


def business(
    to: Any, device: torch.device, *, batches: Sequence[int], count: int, ways: Sequence[str]
) -> tuple[list[Record], dict[str, Any]]:
    """How much of a step's wall time the device works (see ``embeddings``), and its events for the pictures."""
    found, lanes = [], {}
    for bs in batches:
        for way in ways:
            step, _ = train(to, bs, device, count, way=way)
            profile = Profile(device)
            train(to, bs, device, count, way=way, profile=profile)
            worked = min(busy(profile.events) / count, step)
            lanes[f"{way}, batch {bs:,}: busy {worked / step:.0%} of {step * 1e3:.2f} ms a step"] = profile.events
            one = timed(f"device busy, batch {bs:,}", way, bs, Timing(step), Timing(step), batch=bs)
            found.append(one | {"seconds": step, "busy": round(worked / step, 4), "busy_seconds": worked})
    return found, lanes
