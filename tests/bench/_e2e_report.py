"""What the end-to-end benchmark leaves behind: the table on the screen, ``BENCHMARKS.md`` and its chart."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from _e2e_data import CONTS, LAYERS
from _e2e_train import BATCH, EMB_SZS, PHASES, UPDATES, Settings
from _timing import Record, product_speed
from rich.console import Console
from rich.table import Table as Grid

STAGES = {  # and their colours in the chart
    "read": "#0072B2",
    "features": "#56B4E9",
    "preprocess": "#009E73",
    "train": "#D55E00",
    "predict": "#E69F00",
}
_BEGIN, _END = "<!-- bench-e2e -->", "<!-- /bench-e2e -->"
_TITLE = "# Benchmarks\n\n"


@dataclass(frozen=True)
class Facts:
    """What the report says besides the records.

    Args:
        heading: date, machine, versions and command, one a line.
        columns: about the net's inputs.
        sizes: rows of training and of validation.
        settings: what all systems share.
        phases: system → phase → seconds of a training batch.
    """

    heading: str
    columns: str
    sizes: tuple[int, int]
    settings: Settings
    phases: Mapping[str, Mapping[str, float]]


def show(console: Console, records: Sequence[Record]) -> None:
    """Print the table."""
    grid = Grid(title="From raw files to validation scores", title_justify="left")
    grid.add_column("system", no_wrap=True)
    for name in (*STAGES, "all, s", "× stock", "AUC", "MRR"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in records:
        grid.add_row(one["system"], *_cells(one))
    console.print(grid)
    for one in records:
        if "notes" in one:
            console.print(f"{one['system']}: {one['notes']}", highlight=False)


def _cells(one: Record) -> list[str]:
    stages = [f"{one['stages'][s]:.2f}" for s in STAGES]
    scores = [f"{one[f'{s}_mean']:.4f} ± {one[f'{s}_sd']:.4f}" for s in ("auc", "mrr")]
    return [*stages, f"{one['seconds']:.2f}", f"{one['ratio']:.2f}", *scores]


def write(path: Path, records: Sequence[Record], facts: Facts) -> None:
    """Write the report, and its chart beside it; of a file with other sections only this one is replaced."""
    image = path.with_name(f"{path.stem}-e2e.png")
    chart(image, records)
    section = f"{_BEGIN}\n{_section(records, facts, image.name)}{_END}\n"
    old = path.read_text(encoding="utf-8") if path.exists() else _TITLE
    before, begin, rest = old.partition(_BEGIN)
    after = rest.partition(_END)[2].lstrip("\n") if begin else ""
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"{before.rstrip()}\n\n{section}" + (f"\n{after}" if after else ""), encoding="utf-8")
    os.replace(part, path)


def _section(records: Sequence[Record], facts: Facts, image: str) -> str:
    settings, (train, valid) = facts.settings, facts.sizes
    lrs = ", ".join(f"{rule} {np.asarray(rates).tolist()}" for rule, rates in settings.lrs.items())
    head = ["system", *STAGES, "all, s", "× stock", "AUC", "MRR"]
    lines = [
        "## End to end",
        "",
        f"`make bench-e2e`: simulated files of the RecSys Challenge 2019 (trivago), {train:,} candidates of training "
        f"sessions and {valid:,} of the sessions that begin on the last day, which validate; one epoch. Seconds by "
        f"stage (medians), means ± standard deviations over {records[0]['seeds']} seeds.",
        "",
        "```",
        facts.heading,
        "```",
        "",
        "| " + " | ".join(head) + " |",
        "|:---|" + "---:|" * (len(head) - 1),
        *("| " + " | ".join([one["system"], *_cells(one)]) + " |" for one in records),
        "",
        *(f"- *{one['system']}*: {one['notes']}." for one in records if "notes" in one),
        f"- Net: layers {'-'.join(map(str, LAYERS))}; {facts.columns}.",
        f"- Batches of {BATCH:,} ({train // BATCH:,} updates), and of {settings.extreme:,} where extreme "
        f"({train // settings.extreme:,} updates; the article's 204,800 made {UPDATES}). Learning rates at batch "
        f"{BATCH:,}, unless the command has them the best of a grid on the last of the training days: {lrs}; "
        "times the root of the batch's ratio beyond. From *embeddings without momentum* on AdamW has a rate for them "
        "and another for all else (*split*), and `1 - momentum` of all else goes with the batch.",
        "- Each row keeps what the rows above it have changed. Times by turns in one process, all cores for all.",
        "",
        f"![Seconds by stage]({image})",
        "",
        "Where a training batch's time goes, milliseconds, medians of batches:",
        "",
        "| system | " + " | ".join(PHASES) + " | all | rows/s |",
        "|:---|" + "---:|" * (len(PHASES) + 2),
        *(_phase_line(one, facts.phases[one["system"]]) for one in records if one["system"] in facts.phases),
        "",
        _floor(records, train),
        "",
    ]
    return "\n".join(lines)


def _phase_line(one: Record, phases: Mapping[str, float]) -> str:
    total = sum(phases.values())
    cells = [f"{phases[p] * 1e3:.2f}" for p in PHASES]
    speed = f"{one['batch'] / total:,.0f}" if total else ""  # an epoch of one batch, which warms up, has no phases
    return f"| {one['system']} | " + " | ".join(cells) + f" | {total * 1e3:.2f} | {speed} |"


def _floor(records: Sequence[Record], rows: int) -> str:
    """What bounds the figure: the products of the dense layers at the speed that this machine reaches with them."""
    sizes = [sum(EMB_SZS[n] for n in EMB_SZS) + len(CONTS), *LAYERS, 2]
    flop = 6 * rows * sum(a * b for a, b in pairwise(sizes))
    rate = product_speed(BATCH, *sizes[:2])
    last = records[-1]
    shares = ", ".join(f"{s} {last['stages'][s] / last['seconds']:.0%}" for s in STAGES)
    return (
        f"Of the last row's time: {shares}. The products of the dense layers alone are {flop / 1e9:,.0f} GFLOP an "
        f"epoch in float32, {flop / rate:.2f} s at the {rate / 1e9:,.0f} GFLOP/s that the first layer reaches here."
    )


def chart(path: Path, records: Sequence[Record]) -> None:
    """Bars of seconds by stage, one a system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.45 * len(records) + 1.3), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [one["system"] for one in records]
    left = [0.0] * len(records)
    for stage, colour in STAGES.items():
        widths = [one["stages"][stage] for one in records]
        axes.barh(names, widths, left=left, color=colour, label=stage, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for i, one in enumerate(records):
        axes.text(left[i], i, f" {one['seconds']:.1f} s, {one['ratio']:.1f}×", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * 1.14)
    axes.set_xlabel(f"seconds, {records[0]['rows']:,} candidates")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
