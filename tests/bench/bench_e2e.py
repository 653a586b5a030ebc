"""From the raw files to validation scores, one improvement after the other: ``make bench-e2e``, or this file.

The task is that of "Accelerating recommender system training 15x with RAPIDS" (RecSys Challenge 2019) on simulated
files in the challenge's form, simulated once for a number of rows. Rows of the table, each on top of the one before:

  stock                             pandas, TabularPandas, fastai's loader and tabular_learner, Adam, batch 4,096
  + features                        reading and features by fastrec, handed to TabularPandas
  + preprocessing                   TabularFrame in place of TabularPandas, under fastai's loader
  + loader                          TabularLoader
  + fused embeddings and optimizer  TabularNet, with compiled loops where numba is installed, and the fused AdamW
  + embeddings without momentum     and with a rate of their own; row-sparse
  + bf16                            products of matrices in bfloat16, where that is faster
  + batch of 8,192                  momentum scaled with the batch
  + extreme batch                   with LAMB; with AdamW, momentum scaled, beside it
  + data on the device              rows in the GPU's memory; on a CPU the host is the device already

``stock, tuned pandas`` is stock with three steps of its pandas in the fastest way that was found (see
``_e2e_stock.py``). The net is the same throughout. Both sides' columns are compared first. Reading, features and
preprocessing are timed ``--repeats`` times by turns, training and prediction once for each of ``--seeds`` by turns;
medians stand in the table. Learning rates, one for Adam, two for Adam with embeddings apart and one for LAMB, are the
best of a grid by the loss on the last training day, each at the batch that the rule enters the table with,
and go with the square root of the batch (``scale_lr``); the search is part of no system's times.

Each record has ``case``, ``system``, ``rows`` (training and validation), ``seconds`` (all stages), ``rows_per_s``,
``ratio`` (stock's seconds over the system's), ``stages`` (seconds by stage), means and standard deviations over seeds
``auc_mean auc_sd mrr_mean mrr_sd``, ``batch`` and ``lr``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the simulation is a competition's, not the package's

import _e2e_data as data
import _e2e_fastrec as ours
import _e2e_report as report
import _e2e_stock as stock
import _e2e_train as training
import numpy as np
import torch
from _e2e_train import SYSTEMS, Settings, System, Trained
from _timing import Record, command_line, cores, heading, use_threads, write
from rich.console import Console

Options = argparse.Namespace
Made = dict[str, Any]  # what a system trains from → (tabular object, Prepared)
Seconds = dict[str, dict[str, list[float]]]  # way → stage → seconds of each run
CASE = "end to end"
TUNED = "stock, tuned pandas"
_COMPARED = 200_000  # rows: text of more takes longer to compare than all the rest
_WARM_UP = 10_000  # rows


class Clock:
    """Seconds of every run of every stage: ``clock.seconds[way][stage]``."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    def __call__(self, way: str, stage: str, run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What ``run`` returns, timed."""
        gc.collect()
        start = time.perf_counter()
        made = run(*args, **options)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.setdefault(way, {}).setdefault(stage, []).append(time.perf_counter() - start)
        return made


def prepare(folder: Path, *, repeats: int, device: str = "cpu") -> tuple[Seconds, Made]:
    """Time all that comes before training.

    Args:
        folder: of the files.
        repeats: timed runs of each way, which take turns.
        device: where fastrec makes features.

    Returns:
        Way (``stock``, ``tuned``, ``features``, ``frame``, ``device``) → stage → seconds of each run; and what systems
        train from.
    """
    clock = Clock()
    ways: dict[str, Callable[[], Made]] = {
        "stock": lambda: _stock_way(clock, folder, tuned=False),
        "tuned": lambda: _stock_way(clock, folder, tuned=True),
        "fastrec": lambda: _our_way(clock, folder, device),
    }
    made: dict[str, Made] = {}
    for turn in range(repeats):
        names = list(ways)
        for name in names[turn % 3 :] + names[: turn % 3]:
            made.pop(name, None)  # two at a time would need twice the memory
            made[name] = ways[name]()
    return clock.seconds, {**made["stock"], **made["fastrec"]}


def _stock_way(clock: Clock, folder: Path, *, tuned: bool) -> Made:
    way = "tuned" if tuned else "stock"
    log, rows = clock(way, "read", stock.read, folder, tuned=tuned)
    made = clock(way, "features", stock.features, log, rows, tuned=tuned)
    del log, rows
    to = clock(way, "preprocess", stock.preprocess, made)
    return {way: (to, made)}


def _our_way(clock: Clock, folder: Path, device: str) -> Made:
    log, rows = clock("frame", "read", ours.read, folder, device=device)
    made = clock("frame", "features", ours.features, log, rows)
    del log, rows
    pandas = clock("features", "handing over", ours.as_pandas, made)
    found = {
        "features": (clock("features", "preprocess", stock.preprocess, pandas), pandas),
        "frame": (clock("frame", "preprocess", ours.preprocess, made), made),
    }
    if device != "cpu":
        found["device"] = (clock("device", "preprocess", ours.preprocess, made, device=device), made)
    return found


def stages_of(seconds: Seconds, way: str) -> dict[str, float]:
    """Median seconds of the stages before training."""
    shared = "frame" if way in ("features", "device") else way
    found = {stage: statistics.median(seconds[shared][stage]) for stage in ("read", "features")}
    if way == "features":
        found["features"] += statistics.median(seconds["features"]["handing over"])
    return found | {"preprocess": statistics.median(seconds[way]["preprocess"])}


def compare(made: Made, tuned: Any = None) -> None:
    """Stop where the sides' columns differ, in a sample of the rows."""
    step = max(1, len(made["stock"][1].clicked) // _COMPARED)
    found = ours.columns(made["frame"][1], step)
    for other in (made["stock"][1], *([] if tuned is None else [tuned])):
        data.check_equal(found, stock.columns(other, step))


def train(made: Made, settings: Settings, seeds: int) -> dict[str, list[Trained]]:
    """Train every system with every seed, by turns: system's name → one result a seed."""
    systems = [s for s in SYSTEMS if s.data in made and not (s.name == "+ bf16" and settings.amp is None)]
    found: dict[str, list[Trained]] = {s.name: [] for s in systems}
    for seed in range(seeds):
        shift = seed % len(systems)
        for system in systems[shift:] + systems[:shift]:
            gc.collect()
            one = training.run(system, *made[system.data], settings, seed)
            found[system.name].append(one)
            print(
                f"  seed {seed}  {system.name:39s} train {one.train:7.2f} s  predict {one.predict:6.2f} s  "
                f"AUC {one.auc:.4f}  MRR {one.mrr:.4f}",
                flush=True,
            )
    return found


def records_of(
    seconds: Seconds,
    trained: Mapping[str, list[Trained]],
    settings: Settings,
    rows: int,
) -> list[Record]:
    """The records, stock's first."""
    found: list[Record] = []
    for system in SYSTEMS:
        if system.name in trained:
            found.append(_record(system.name, system, seconds, trained[system.name], settings, rows))
        elif system.data == "device":  # there is no other device than the host
            same = next(r for r in found if r["system"] == "+ extreme batch, LAMB")
            found.append({**same, "system": system.name, "notes": "as with LAMB: the host is the device"})
        if system.name == "stock":
            like = System(TUNED, "tuned", loader="stock", net="stock")
            note = "trained as stock: the same rows"
            found.append({**_record(TUNED, like, seconds, trained["stock"], settings, rows), "notes": note})
    for one in found:
        one["ratio"] = round(found[0]["seconds"] / one["seconds"], 2)
    return found


def _record(
    name: str,
    system: System,
    seconds: Seconds,
    trained: list[Trained],
    settings: Settings,
    rows: int,
) -> Record:
    stages = stages_of(seconds, system.data)
    stages |= {s: statistics.median(getattr(t, s) for t in trained) for s in ("train", "predict")}
    total = sum(stages.values())
    scores = {}
    for score in ("auc", "mrr"):
        values = [getattr(t, score) for t in trained]
        scores[f"{score}_mean"] = round(statistics.mean(values), 5)
        scores[f"{score}_sd"] = round(statistics.stdev(values), 5) if len(values) > 1 else 0.0
    return {
        "case": CASE,
        "system": name,
        "rows": rows,
        "seconds": round(total, 4),
        "rows_per_s": round(rows / total),
        "ratio": 1.0,
        "stages": {stage: round(s, 4) for stage, s in stages.items()},
        **scores,
        "seeds": len(trained),
        "batch": settings.batch(system),
        "lr": np.round(settings.lr(system), 6).tolist(),
        "amp": settings.amp if system.half else None,
    }


def settings_of(options: Options, made: Made) -> Settings:
    """The extreme batch, learning rates and precision that all systems share."""
    prepared = made["frame"][1]
    rows = len(prepared.splits[0])
    batch = options.batch or training.extreme_batch(rows)
    lrs = dict(pair.split("=") for pair in options.lr.split(",") if pair)
    plain = Settings({n: _rates(v) for n, v in lrs.items()}, batch, None, options.device)
    grids = {opt: grid for opt, grid in training.GRIDS.items() if opt not in lrs}
    if grids:
        print("learning rates (at batch 4,096), by the loss on the last of the training days:", flush=True)
        table = prepared.frame.take(torch.arange(rows))
        found = training.tune(table, shown=prepared.time[:rows], grids=grids, extreme=batch, device=options.device)
        plain = Settings({**plain.lrs, **found}, batch, None, options.device)
    amp = training.faster_amp(made["frame"][0], plain) if options.amp == "auto" else options.amp
    return Settings(plain.lrs, batch, None if amp == "off" else amp, options.device)


def _rates(text: str) -> float | tuple[float, ...]:
    """A rate, or several with colons between them."""
    rates = tuple(map(float, text.split(":")))
    return rates if len(rates) > 1 else rates[0]


def warm_up(options: Options) -> None:
    """Run everything once on small files, and compare the sides' columns row by row."""
    folder = data.files(_WARM_UP, root=options.data, parquet=options.format == "parquet")
    _, made = prepare(folder, repeats=1, device=options.device)
    compare(made, stock.features(*stock.read(folder, tuned=True), tuned=True))
    settings = Settings({"adamw": 0.01, "split": (0.02, 0.08), "lamb": 0.03}, 4_096, None, options.device)
    for system in SYSTEMS:
        if system.data in made:
            training.run(system, *made[system.data], settings, 0)


def parse(argv: list[str] | None = None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000, help="candidates at least (default: 3,000,000)")
    parser.add_argument("--seeds", type=int, default=5, help="nets trained by every system")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of what comes before training")
    parser.add_argument(
        "--batch", type=int, default=None, help="the extreme batch (default: as many updates as theirs)"
    )
    parser.add_argument("--amp", choices=("auto", "bf16", "off"), default="auto", help="bfloat16, or not")
    parser.add_argument(
        "--lr", default="", help="rates at batch 4,096 instead of the search: adamw=0.01,lamb=0.03,split=0.02:0.08"
    )
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--data", type=Path, default=Path("runs/e2e-data"), help="where simulated files are kept")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv", help="of the log that both sides read")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/e2e.json"), help="the file of results")
    parser.add_argument("--report", type=Path, default=Path("BENCHMARKS.md"), help="the report; its chart lies beside")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[Record]:
    """Run the benchmark, print its table, write its files."""
    options = parse(argv)
    use_threads(options.threads)
    console = Console(record=True, width=200)
    console.print(heading(command_line()), highlight=False)
    console.print(f"columns  {data.ABOUT}", highlight=False)
    folder = data.files(options.rows, root=options.data, parquet=options.format == "parquet")
    warm_up(options)
    seconds, made = prepare(folder, repeats=options.repeats, device=options.device)
    compare(made)
    settings = settings_of(options, made)
    trained = train(made, settings, options.seeds)
    records = records_of(seconds, trained, settings, len(made["stock"][1].clicked))
    sizes = [len(s) for s in made["frame"][1].splits]
    where = {s.name: training.phases(s, made[s.data][0], settings, batches=40) for s in SYSTEMS if s.data in made}
    report.show(console, records)
    facts = report.Facts(heading(command_line()), data.ABOUT, (sizes[0], sizes[1]), settings, where)
    report.write(options.report, records, facts)
    write(options.out, records, console.export_text())
    print(f"written: {options.out}, {options.report} and its chart")
    return records


if __name__ == "__main__":
    main()
