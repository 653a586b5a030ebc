"""Click logs in Criteo's form: packing beside NVTabular, training from the packed rows, AUC beside the best there is.

Cases:
  pack   text to packed rows, beside NVTabular's fit and transform of the same files (to Parquet), each in a process of
         its own, by turns. (Needs NVTabular's environment: see --peer-python; left out with a message otherwise.)
  train  an epoch of the recipe's DLRM from the packed rows, beside the same net, rows and batches from memory.
  auc    the recipe's run, on the last day; the best AUC that there can be is known.

Files are simulated where --data holds none. Fields of the JSON file: ``_timing.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _timing import (
    ROOT,
    Record,
    Timing,
    child,
    command_line,
    cores,
    cpu_time,
    forget_peak,
    heading,
    record,
    resident,
    show,
    use_threads,
    write,
)
from rich.console import Console

sys.path.insert(0, str(ROOT))
from fastai.callback.core import CancelFitException
from fastai.torch_core import set_seed

from competitions.criteo.competition import Criteo
from competitions.criteo.simulate import simulate
from fastrec._core.progress import Stages
from fastrec.competition import run_competition
from fastrec.competition.streamed.clicks import train_streamed
from fastrec.tabular import ClickLogFrame
from fastrec.tabular.loader import TabularLoader
from fastrec.tabular.packed import Packed

Options = argparse.Namespace


def pack(options: Options, data: Path, work: Path) -> Iterator[Record]:
    """Text to packed rows."""
    here, python = Path(__file__).resolve().parent, Path(options.peer_python).absolute()
    ours = [sys.executable, str(here / "_criteo_fastrec.py"), "--data", str(data), "--work", str(work / "ours")]
    few, few_rows = first_of_days(data, options.peer_rows, work / "few")
    theirs = [str(python), str(here / "_criteo_peer.py"), "--data", str(few), "--work", str(work / "theirs")]
    peers = {"NVTabular, from text": theirs, "NVTabular, by way of Parquet": [*theirs, "--convert"]}
    if not python.exists():
        print(f"pack: without NVTabular, there is no {python} (--peer-python or NVTABULAR_PYTHON name another)")
        peers = {}
    made: dict[str, list[Any]] = {"fastrec": [], **{n: [] for n in peers}}
    for _ in range(options.repeats):
        made["fastrec"].append(child(ours, str(work), options.threads))
        for name, command in peers.items():
            made[name].append(child(command, str(work), options.threads, own=False))
    first = made["fastrec"][0]
    own = Timing.of([m["seconds"] for m in made["fastrec"]], [m["cpu_s"] for m in made["fastrec"]])
    more = {k: first[k] for k in ("passes", "values", "grew_mb")} | {"notes": f"{first['grew_mb']} MiB"}
    yield record("pack", "fastrec", first["rows"], own, own, **more)
    for name in peers:
        found = Timing.of([sum(m["seconds"].values()) for m in made[name]], [m["cpu_s"] for m in made[name]])
        stages = {k: statistics.median(m["seconds"][k] for m in made[name]) for k in made[name][0]["seconds"]}
        rows = few_rows or first["rows"]
        compared = Timing(own.seconds * rows / first["rows"], own.cpu_seconds * rows / first["rows"])
        yield record("pack", name, rows, found, compared, stages=stages, peak_rss_mb=made[name][0]["peak_rss_mb"])


def first_of_days(data: Path, rows: int | None, to: Path) -> tuple[Path, int]:
    """The first lines of each day, in a folder of their own (the whole folder, and 0, where ``rows`` is None)."""
    if rows is None:
        return data, 0
    to.mkdir()
    days = sorted(data.glob("day_*.tsv"))
    for day in days:
        with day.open("rb") as lines, (to / day.name).open("wb") as kept:
            kept.writelines(islice(lines, rows // len(days)))
    return to, rows // len(days) * len(days)


def train(options: Options, data: Path, work: Path) -> Iterator[Record]:
    """An epoch, or its first rows, from the packed rows and from memory by turns; ratio: memory's over the stream's."""
    frame = Criteo().frame(data, work / "cache", rows=None, stages=Stages(quiet=True))
    held = InMemory(frame)
    asks, device = Criteo().nets()["dlrm"], torch.device(options.device)
    walls: dict[str, list[tuple[float, float]]] = {"stream": [], "memory": []}
    for turn in range(options.repeats):
        for name, rows in list({"stream": frame, "memory": held}.items())[:: 1 if turn % 2 else -1]:
            set_seed(0)
            cpu, wall = cpu_time(), time.perf_counter()
            first = options.train_rows and UpTo(options.train_rows)
            train_streamed(rows, asks, name, device=device, buffer_rows=options.buffer_rows, advance=first or None)
            walls[name].append((time.perf_counter() - wall, cpu_time() - cpu))
    timings = {n: Timing.of([w for w, _ in found], [c for _, c in found]) for n, found in walls.items()}
    for name, system in (("stream", "fastrec, packed rows on disk"), ("memory", "fastrec, rows in memory")):
        rows = min(options.train_rows or len(frame), len(frame))
        yield record("train", system, rows, timings[name], timings["stream"], frame_rows=len(frame))


class UpTo:
    """Ends a training after so many rows, as an epoch's end would.

    Args:
        rows: how many.
    """

    def __init__(self, rows: int) -> None:
        self.left = rows

    def __call__(self, done: int) -> None:
        self.left -= done
        if self.left <= 0:
            raise CancelFitException


class InMemory(ClickLogFrame):
    """The training rows of a frame, all of them in memory."""

    def __init__(self, frame: ClickLogFrame) -> None:
        self.__dict__.update(frame.__dict__)
        words = frame.train.layout.words
        rows = torch.from_file(str(frame.train.folder / "rows.bin"), size=len(frame) * words, dtype=torch.int32)
        self._held = Packed(rows.view(-1, words).clone(), frame.train.layout)

    def dataloaders(self, bs: int = 64, **options: Any) -> Any:
        """Loaders of the rows in memory; the validation rows stay a stream."""
        dls = super().dataloaders(bs, **options)
        full = self._frame(0, with_y=True)
        full._packed = self._held
        full._split = len(self._held)
        loader = TabularLoader(full, bs=bs, shuffle=True, drop_last=True, seed=options.get("seed"), device=dls.device)
        dls.loaders[0] = loader
        return dls


def auc(options: Options, data: Path, work: Path) -> Iterator[Record]:
    """The recipe's run, and by how much the process grew meanwhile."""
    forget_peak()
    before, cpu, wall = resident(), cpu_time(), time.perf_counter()
    run = run_competition(Criteo(), data, work / "run", device=options.device)
    took = Timing(time.perf_counter() - wall, cpu_time() - cpu)
    grew_mb = (resident(peak=True) - before) // 2**20
    scores = json.loads((run / "scores.json").read_text())
    best = json.loads((data / "bayes.json").read_text())
    for name, score in scores["models"].items():
        loss = scores["also"]["logloss"][name]
        more = {"auc": round(score, 5), "bayes_auc": round(best["auc"], 5), "logloss": round(loss, 5)}
        note = f"AUC {score:.4f} of {best['auc']:.4f}"
        more |= {"bayes_logloss": round(best["logloss"], 5), "seconds_of": scores["seconds"], "grew_mb": grew_mb}
        more["notes"] = f"{note}, {grew_mb} MiB"
        yield record("auc", name, scores["rows"]["train rows"], took, took, **more)


CASES = {"pack": pack, "train": train, "auc": auc}


def main() -> None:
    """Run the cases and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = os.environ.get("NVTABULAR_PYTHON", str(ROOT / ".venv-nvt" / "bin" / "python"))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, default=1_000_000, help="lines to simulate")
    parser.add_argument("--data", type=Path, help="where the files are, or are to be; else a temporary folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train-rows", type=int, help="case train: end after so many rows of the epoch")
    parser.add_argument("--buffer-rows", type=int, default=1_000_000)
    parser.add_argument("--peer-python", default=peer, help="Python of NVTabular's environment")
    parser.add_argument("--peer-rows", type=int, help="NVTabular gets the first lines of each day, so many in all")
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "bench" / "criteo.json")
    options = parser.parse_args()
    use_threads(options.threads)
    console, records = Console(record=True, width=150), []
    console.print(heading(command_line()))
    with tempfile.TemporaryDirectory(dir=options.data.parent if options.data else None) as folder:
        work, data = Path(folder), options.data or Path(folder) / "data"
        if not (data / "bayes.json").is_file():
            simulate(options.rows, data)
        for name in options.cases:
            (work / name).mkdir()
            records += list(CASES[name](options, data.resolve(), work / name))
    show(console, records, title="Click logs in Criteo's form")
    write(options.json, records, console.export_text())


if __name__ == "__main__":
    main()
