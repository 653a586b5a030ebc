"""From the raw files to validation scores, one improvement after the other: ``make bench-e2e``, or this file.

The task is that of "Accelerating recommender system training 15x with RAPIDS" (RecSys Challenge 2019) on simulated
files in the challenge's form. The rows of the table are ``SYSTEMS`` of ``_e2e_train.py``, each on top of the one
before. ``stock, tuned pandas`` is stock with three steps of its pandas in the fastest way that was found.

The net is the same throughout. Both sides' columns are compared first. Reading, features and preprocessing are timed
``--repeats`` times by turns, training and prediction once for each of ``--seeds`` by turns; the table has medians.
Learning rates are the best of a grid by the loss on the last training day (``tune``); no system's time has the search
in it. ``ratio`` is stock's seconds over the system's.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the simulation is a competition's, not the package's

import _e2e_data as data
import _e2e_fastrec as ours
import _e2e_stock as stock
import _e2e_train as training
import _timing
import numpy as np
import torch
from _e2e_data import CONTS, LAYERS
from _e2e_train import BATCH, EMB_SZS, SYSTEMS, UPDATES, Settings, System, Trained
from _timing import Options, Record

Made = dict[str, Any]  # what a system trains from → (tabular object, Prepared)
Seconds = dict[str, dict[str, list[float]]]  # way → stage → seconds of each run
TUNED = "stock, tuned pandas"
STAGES = ("read", "features", "preprocess", "train", "predict")
HEAD = ("system", *STAGES, "all, s", "× stock", "AUC", "MRR")
_BEGIN, _END = "<!-- bench-e2e -->", "<!-- /bench-e2e -->"


def prepare(folder: Path, *, repeats: int, device: str = "cpu") -> tuple[Seconds, Made]:
    """Time all that comes before training, each way so many times, by turns; return what systems train from, too."""
    seconds: Seconds = defaultdict(lambda: defaultdict(list))

    def clock(way: str, stage: str, run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def all_of_it() -> Any:
            made = run(*args, **options)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return made

        made, wall, _ = _timing.timed(all_of_it)
        seconds[way][stage].append(wall)
        return made

    def stocks(way: str) -> Made:
        tuned = way == "tuned"
        log, rows = clock(way, "read", stock.read, folder, tuned=tuned)
        made = clock(way, "features", stock.features, log, rows, tuned=tuned)
        del log, rows
        return {way: (clock(way, "preprocess", stock.preprocess, made), made)}

    def fastrecs() -> Made:
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

    ways = {"stock": partial(stocks, "stock"), "tuned": partial(stocks, "tuned"), "fastrec": fastrecs}
    made: dict[str, Made] = {}
    for _, name in _timing.by_turns(ways, repeats):
        made.pop(name, None)  # two at a time would need twice the memory
        made[name] = ways[name]()
    return seconds, {**made["stock"], **made["fastrec"]}


def compare(made: Made, *others: Any) -> None:
    """Stop where the sides' columns differ, in a sample of the rows: comparing text takes long."""
    step = max(1, len(made["stock"][1].clicked) // 200_000)
    found = ours.columns(made["frame"][1], step)
    for other in (made["stock"][1], *others):
        data.check_equal(found, stock.columns(other, step))


def train(made: Made, settings: Settings, seeds: int) -> dict[str, list[Trained]]:
    """Train every system with every seed, by turns: system's name → one result a seed."""
    systems = [s for s in SYSTEMS if s.data in made and not (s.name == "+ bf16" and settings.amp is None)]
    found: dict[str, list[Trained]] = {s.name: [] for s in systems}
    for seed, system in _timing.by_turns(systems, seeds):
        gc.collect()
        one = training.run(system, *made[system.data], settings, seed)
        found[system.name].append(one)
        print(
            f"  seed {seed}  {system.name:39s} train {one.train:7.2f} s  predict {one.predict:6.2f} s  "
            f"AUC {one.auc:.4f}  MRR {one.mrr:.4f}",
            flush=True,
        )
    return found


def records_of(seconds: Seconds, trained: Mapping[str, list[Trained]], settings: Settings, rows: int) -> list[Record]:
    found: list[Record] = []
    for system in SYSTEMS:
        if system.name in trained:
            found.append(_record(system, seconds, trained[system.name], settings, rows))
        elif system.data == "device":  # there is no other device than the host
            same = next(r for r in found if r["system"] == "+ extreme batch, LAMB")
            found.append({**same, "system": system.name, "notes": "as with LAMB: the host is the device"})
        if system.name == "stock":
            like = System(TUNED, "tuned", loader="stock", net="stock")
            found.append(_record(like, seconds, trained["stock"], settings, rows))
            found[-1]["notes"] = "trained as stock: the same rows"
    for one in found:
        one["ratio"] = round(found[0]["seconds"] / one["seconds"], 2)
    return found


def _record(system: System, seconds: Seconds, trained: list[Trained], settings: Settings, rows: int) -> Record:
    way = system.data
    times = seconds["frame" if way in ("features", "device") else way]
    stages = {stage: statistics.median(times[stage]) for stage in ("read", "features")}
    if way == "features":
        stages["features"] += statistics.median(seconds[way]["handing over"])
    stages["preprocess"] = statistics.median(seconds[way]["preprocess"])
    stages |= {s: statistics.median(getattr(t, s) for t in trained) for s in ("train", "predict")}
    more: Record = {"stages": {stage: round(s, 4) for stage, s in stages.items()}, "seeds": len(trained)}
    for score in ("auc", "mrr"):
        values = [getattr(t, score) for t in trained]
        more[f"{score}_mean"] = round(statistics.mean(values), 5)
        more[f"{score}_sd"] = round(statistics.stdev(values), 5) if len(values) > 1 else 0.0
    more |= {"batch": settings.batch(system), "lr": np.round(settings.lr(system), 6).tolist()}
    more["amp"] = settings.amp if system.half else None
    return _timing.bare("end to end", system.name, rows, round(sum(stages.values()), 4), **more)


def settings_of(options: Options, made: Made) -> Settings:
    """Return the extreme batch, learning rates and precision that all systems share."""
    prepared = made["frame"][1]
    rows = len(prepared.splits[0])
    batch = training.extreme_batch(rows)
    given = {rule: [*map(float, text.split(":"))] for rule, text in (p.split("=") for p in options.lr.split(",") if p)}
    lrs: dict[str, Any] = {rule: tuple(r) if len(r) > 1 else r[0] for rule, r in given.items()}
    if grids := {rule: grid for rule, grid in training.GRIDS.items() if rule not in lrs}:
        print("learning rates (at batch 4,096), by the loss on the last of the training days:", flush=True)
        frame = prepared.frame.take(torch.arange(rows))
        lrs |= training.tune(frame, shown=prepared.time[:rows], grids=grids, extreme=batch, device=options.device)
    plain = Settings(lrs, batch, None, options.device)
    amp = training.faster_amp(made["frame"][0], plain) if options.amp == "auto" else options.amp
    return Settings(lrs, batch, None if amp == "off" else amp, options.device)


def warm_up(options: Options) -> None:
    """Run everything once on small files, and compare the sides' columns row by row."""
    folder = data.files(10_000, root=options.data, parquet=options.format == "parquet")
    _, made = prepare(folder, repeats=1, device=options.device)
    compare(made, stock.features(*stock.read(folder, tuned=True), tuned=True))
    settings = Settings({"adamw": 0.01, "split": (0.02, 0.08), "lamb": 0.03}, 4_096, None, options.device)
    for system in SYSTEMS:
        if system.data in made:
            training.run(system, *made[system.data], settings, 0)


# The report ----------------------------------------------------------------------------------------------------------


def cells(one: Record) -> list[str]:
    stages = [f"{one['stages'][s]:.2f}" for s in STAGES]
    scores = [f"{one[f'{s}_mean']:.4f} ± {one[f'{s}_sd']:.4f}" for s in ("auc", "mrr")]
    return [one["system"], *stages, f"{one['seconds']:.2f}", f"{one['ratio']:.2f}", *scores]


def write_report(path: Path, records: Sequence[Record], sizes: tuple[int, int], settings: Settings) -> None:
    """Write the report, and its chart beside it; of a file with other sections only this one is replaced.

    ``sizes`` are the rows of training and of validation.
    """
    image = path.with_name(f"{path.stem}-e2e.png")
    chart(image, records)
    old = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n\n"
    before, begin, rest = old.partition(_BEGIN)
    after = rest.partition(_END)[2].lstrip("\n") if begin else ""
    section = f"{_BEGIN}\n{_section(records, image.name, *sizes, settings)}{_END}\n"
    _timing.put(path, f"{before.rstrip()}\n\n{section}" + (f"\n{after}" if after else ""))


def _section(records: Sequence[Record], image: str, train: int, valid: int, settings: Settings) -> str:
    lrs = ", ".join(f"{rule} {np.asarray(rates).tolist()}" for rule, rates in settings.lrs.items())
    lines = [
        "## End to end",
        "",
        f"`make bench-e2e`: simulated files of the RecSys Challenge 2019 (trivago), {train:,} candidates of training "
        f"sessions and {valid:,} of the sessions that begin on the last day, which validate; one epoch. Seconds by "
        f"stage (medians), means ± standard deviations over {records[0]['seeds']} seeds.",
        "",
        f"```\n{_timing.heading()}\n```",
        "",
        f"| {' | '.join(HEAD)} |",
        "|:---|" + "---:|" * (len(HEAD) - 1),
        *(f"| {' | '.join(cells(one))} |" for one in records),
        "",
        *(f"- *{one['system']}*: {one['notes']}." for one in records if "notes" in one),
        f"- Net: layers {'-'.join(map(str, LAYERS))}; {data.ABOUT}.",
        f"- Batches of {BATCH:,} ({train // BATCH:,} updates), and of {settings.extreme:,} where extreme "
        f"({train // settings.extreme:,} updates; the article's 204,800 made {UPDATES}). Learning rates at batch "
        f"{BATCH:,}, unless the command has them the best of a grid on the last of the training days: {lrs}; "
        "times the root of the batch's ratio beyond. From *embeddings without momentum* on AdamW has a rate for them "
        "and another for all else (*split*), and `1 - momentum` of all else goes with the batch.",
        "- Each row keeps what the rows above it have changed. Times by turns in one process, all cores for all.",
        "",
        f"![Seconds by stage]({image})",
        "",
    ]
    # what bounds the figure: the products of the dense layers at the speed that this machine reaches with them
    sizes = [sum(EMB_SZS.values()) + len(CONTS), *LAYERS, 2]
    flop, rate = 6 * train * sum(a * b for a, b in pairwise(sizes)), _timing.product_speed(BATCH, *sizes[:2])
    last = records[-1]
    shares = ", ".join(f"{s} {last['stages'][s] / last['seconds']:.0%}" for s in STAGES)
    floor = (
        f"Of the last row's time: {shares}. The products of the dense layers alone are {flop / 1e9:,.0f} GFLOP an "
        f"epoch in float32, {flop / rate:.2f} s at the {rate / 1e9:,.0f} GFLOP/s that the first layer reaches here."
    )
    return "\n".join([*lines, "", floor, ""])


def chart(path: Path, records: Sequence[Record]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.45 * len(records) + 1.3), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = np.zeros(len(records))
    for stage, colour in zip(STAGES, ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00"), strict=True):
        widths = np.array([one["stages"][stage] for one in records])
        axes.barh([one["system"] for one in records], widths, left=left, color=colour, label=stage, height=0.7)
        left = left + widths
    for i, one in enumerate(records):
        axes.text(left[i], i, f" {one['seconds']:.1f} s, {one['ratio']:.1f}×", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, left.max() * 1.14)
    axes.set_xlabel(f"seconds, {records[0]['rows']:,} candidates")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)


def parse(argv: Sequence[str] | None = None) -> Options:
    return _timing.arguments(
        __doc__,
        argv,
        rows=(3_000_000, "candidates at least"),
        seeds=(5, "nets trained by every system"),
        repeats=(3, "timed runs of what comes before training"),
        amp={"choices": ("auto", "bf16", "off"), "default": "auto", "help": "bfloat16, or not"},
        lr=("", "rates at batch 4,096 instead of the search: adamw=0.01,lamb=0.03,split=0.02:0.08"),
        threads=(_timing.cores(), "that every system may use (default: all cores)"),
        device=("cuda" if torch.cuda.is_available() else "cpu", "cpu or cuda"),
        data=(Path("runs/e2e-data"), "where simulated files are kept"),
        format={"choices": ("csv", "parquet"), "default": "csv", "help": "of the log that both sides read"},
        out=(Path("runs/bench/e2e.json"), "the file of results"),
        report=(Path("BENCHMARKS.md"), "the report; its chart lies beside"),
    )


def main(argv: Sequence[str] | None = None) -> list[Record]:
    options = parse(argv)
    _timing.use_threads(options.threads)
    folder = data.files(options.rows, root=options.data, parquet=options.format == "parquet")
    warm_up(options)
    seconds, made = prepare(folder, repeats=options.repeats, device=options.device)
    compare(made)
    settings = settings_of(options, made)
    trained = train(made, settings, options.seeds)
    records = records_of(seconds, trained, settings, len(made["stock"][1].clicked))
    notes = [f"{one['system']}: {one['notes']}" for one in records if "notes" in one]
    text = "\n".join([_timing.heading(), f"columns  {data.ABOUT}", _timing.table(HEAD, map(cells, records)), *notes])
    write_report(options.report, records, tuple(map(len, made["frame"][1].splits)), settings)
    _timing.write(options.out, records, text)
    return records


if __name__ == "__main__":
    main()
