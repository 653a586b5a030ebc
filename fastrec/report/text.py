"""Format a run's leaderboard for the terminal, and the report's figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from fastrec._core.messages import TableColumn, terminal_table
from fastrec.metrics import Interval
from fastrec.report.data import SPLITS, Split, read_run

TITLES: dict[Split, str] = {"test": "Test", "oof": "Out of fold"}
_MINUS = "\u2212"


def leaderboard_table(run: str | Path, *, repeats: int = 2000, width: int | None = None) -> RichTable:
    """Return the leaderboard as a rich table, the best model first.

    It has score and 95 % interval on the test lists and out of fold, the difference to the best model with its interval
    (out of fold if known), and other metrics.

    Args:
        run: the run directory.
        repeats: bootstrap resamples of the sessions.
        width: characters of the terminal. Other metrics, then intervals, are dropped until the rest fits. None: all
            stay.

    Raises:
        MissingFileError: no such directory, or no ``scores.json`` in it.
        UnreadableFileError: a file cannot be read.
    """
    results = read_run(run, repeats=repeats)
    names = results.all_models
    shown = [split for split in SPLITS if results.scores[split] or results.standings.get(split)]
    judged: Split = "oof" if results.standings.get("oof") else "test"
    right = {"justify": "right"}
    columns = [TableColumn(f"model\n({results.metric})", names, fold=True)]
    for split in shown:
        scores = [results.score_of(split, name) for name in names]
        columns.append(TableColumn(split, ["" if s is None else f"{s:.4f}" for s in scores], options=right))
        if results.standings.get(split):
            stand = [results.standing_of(split, name) for name in names]
            cells = [_bare(ends(s.score, 3)) if s else "" for s in stand]
            columns.append(TableColumn("95 %", cells, drop=1, options={"style": "dim"}))
    if results.standings:
        gaps = {n: s.to_best for n in names if (s := results.standing_of(judged, n)) and s.to_best}
        texts = {n: f"{signed(gap.mean, 4)} ({_bare(ends(gap, 3))})" for n, gap in gaps.items()}
        cells = ["best" if n == results.best else texts.get(n, "") for n in names]
        columns.append(TableColumn(f"to the best\n({judged})", cells, drop=2, options=right))
    for metric, of in results.also.items():
        cells = [f"{of[name]:.4f}" if name in of else "" for name in names]
        columns.append(TableColumn(f"{metric}\n({results.also_of})", cells, drop=3, options=right))
    styles = ["bold" if name == results.best else None for name in names]
    if results.oracle is not None and "test" in shown:
        for c in columns:
            c.cells = [*c.cells, {"model": "oracle", "test": f"{results.oracle:.4f}"}.get(c.head.split("\n")[0], "")]
        styles.append("dim")
    return terminal_table(columns, width, styles=styles, plain=True)


def leaderboard_figures(run: str | Path, *, repeats: int = 2000) -> dict[str, Any]:
    """Return the plain values of ``leaderboard_table``, with its arguments and errors."""
    results, models = read_run(run, repeats=repeats), []
    for name in results.all_models:
        about: dict[str, Any] = {"model": name}
        for split in SPLITS:
            stand = results.standing_of(split, name)
            about[split] = results.score_of(split, name)
            about[f"{split}_interval"] = None if stand is None else list(stand.score[1:])
            about[f"{split}_to_best"] = None if stand is None else stand.to_best
        models.append(about | {"also": {m: of[name] for m, of in results.also.items() if name in of}})
    named = {"run": results.name, "metric": results.metric.lower(), "greater_is_better": results.greater_is_better}
    return {**named, "best": results.best, "oracle": results.oracle, "models": models}


def signed(value: float, decimals: int) -> str:
    """Format a difference with its sign, without one if it rounds to 0."""
    text = f"{value:+.{decimals}f}"
    return (f"{0:.{decimals}f}" if float(text) == 0 else text).replace("-", _MINUS)


def ends(interval: Interval, decimals: int) -> str:
    """Format the two ends of an interval."""
    if interval.low < 0:
        return f"{signed(interval.low, decimals)} to {signed(interval.high, decimals)}"
    return f"{interval.low:.{decimals}f}\u2013{interval.high:.{decimals}f}"


def _bare(text: str) -> str:
    # a terminal has 80 columns: drop the zero before the point, as in .314
    return re.sub(r"(?<!\d)0\.", ".", text).replace(" to ", ", ")


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def count_lists(n: int | None) -> str:
    """Format a number of lists, empty for none."""
    return f"{n:,} list{'s' if n != 1 else ''}" if n else ""
