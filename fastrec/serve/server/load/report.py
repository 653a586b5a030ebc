"""What a load test came to: a table, a file, a plot."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.table import Table

from fastrec._core.atomic import atomic_file
from fastrec.serve.server.load.rounds import Figures

__all__ = ["figures_table", "write_figures", "write_plot"]


def figures_table(figures: Figures) -> Table:
    """One line for each rate."""
    sent = f"{figures.rows} rows" if figures.rows is not None else "a body"
    title = f"{figures.url}{figures.path}: {sent}, {figures.body_bytes:,} bytes, {figures.seconds:g} s each"
    table = Table(title=title, title_justify="left")
    for name in ("sent/s", "answered/s", "p50 ms", "p90 ms", "p99 ms", "slowest ms", "failed"):
        table.add_column(name, justify="right")
    for r in figures.rounds:
        times = [f"{v:.2f}" for v in (r.p50, r.p90, r.p99, r.slowest)]
        failed = ", ".join(f"{n} × {s or 'no answer'}" for s, n in sorted(r.statuses.items()) if s != 200)
        table.add_row(f"{r.rate:g}", f"{r.answered:.1f}", *times, failed or "0")
    return table


def write_figures(figures: Figures, file: Path) -> None:
    """The figures as JSON; where no request of a rate was answered, its times are null."""
    said = figures.as_dict()
    for one in said["rounds"]:
        one.update({k: None for k, v in one.items() if isinstance(v, float) and math.isnan(v)})
    with atomic_file(file) as path:
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def write_plot(figures: Figures, file: Path) -> None:
    """Times against requests answered a second."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(7, 4.5), layout="constrained")
    axes = made.subplots()
    rounds = [r for r in figures.rounds if not math.isnan(r.p50)]
    for name in ("p50", "p90", "p99"):
        axes.plot([r.answered for r in rounds], [getattr(r, name) for r in rounds], marker="o", label=name)
    axes.set(xlabel="requests answered a second", ylabel="milliseconds", yscale="log", xlim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    made.savefig(file)
