"""An exported run by onnxruntime on the device: raw columns to score, and the net alone from codes to score."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu_floors import Floors, share
from _timing import Record, bare
from bench_serving import Planted, planted

from fastrec._core.progress import Stages
from fastrec.competition import run_competition
from fastrec.serve import export_run
from fastrec.serve.export import feeds_of
from fastrec.serve.session import open_session
from fastrec.serve.verify import read_about
from fastrec.table import Table

BATCH = 16_384


def measure(device: torch.device, floors: Floors | None, *, rows: int, batch: int, calls: int) -> Iterator[Record]:
    """Seconds of a call, their median and 99th percentile: copies to the device and back are in it.

    Args:
        device: where.
        floors: the machine's, if known.
        rows: to train on; the net's size does not go by it.
        batch: rows of a call.
        calls: that are timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        export, about = _exported(Path(folder), rows)
        feeds = feeds_of(about, Table.read(planted(batch, 1).drop(columns="y")))
        parts = {p["name"]: p for p in about["parts"]}
        net = next(p for name, p in parts.items() if name.startswith("net"))
        features = open_session(export / parts["features"]["file"])
        codes = _run(features, feeds)
        whole = open_session(export / about["model"]["file"], device=device.type)
        alone = open_session(export / net["file"], device=device.type)
        inputs = {c["name"]: codes[c["name"]] for c in net["inputs"]}
        moved = sum(v.nbytes for v in inputs.values())
        for system, call in (
            ("graph, raw columns", lambda: _run(whole, feeds)),
            ("net, codes", lambda: alone.run(None, inputs)),
        ):
            one = _record(system, batch, _times(call, calls))
            floor = moved / floors.to_device if floors and system == "net, codes" else None
            yield share(one, floor, f"{moved / 1e6:.1f} MB on the way to the device") if floor else one


def _exported(folder: Path, rows: int) -> tuple[Path, dict[str, Any]]:
    data = folder / "data"
    data.mkdir()
    planted(rows, 0).to_parquet(data / "train.parquet")
    planted(1_000, 1).drop(columns="y").to_parquet(data / "test.parquet")
    run = run_competition(Planted(), data, folder / "run", device="cpu", stages=Stages(quiet=True))
    made = export_run(run, folder / "export", fold=0, parts=True)
    return made.folder, read_about(made.folder)


def _run(session: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a session gives, by the names of its outputs, for those of the feeds that it takes."""
    taken = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {n: v for n, v in feeds.items() if n in taken}), strict=True))


def _times(call: Callable[[], Any], calls: int) -> np.ndarray:
    for _ in range(5):
        call()
    times = np.empty(calls)
    for i in range(calls):
        begun = time.perf_counter()
        call()
        times[i] = time.perf_counter() - begun
    return times


def _record(system: str, batch: int, times: np.ndarray) -> Record:
    seconds, p99 = float(np.median(times)), float(np.quantile(times, 0.99))
    return bare(f"serving, batch {batch:,}", system, batch, seconds, batch=batch, p99_seconds=p99)
