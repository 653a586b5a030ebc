"""Format a run's leaderboard for the terminal, and the report's figures."""

from __future__ import annotations

import re
from pathlib import Path

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fastrec.metrics import Interval
from fastrec.report.data import SPLITS, RunResults, Split, Standing, read_run

TITLES: dict[Split, str] = {"test": "Test", "oof": "Out of fold"}
_MINUS = "\u2212"


def leaderboard_table(run: str | Path, *, repeats: int = 2000) -> RichTable:
    """Build the leaderboard for a terminal, at most 80 characters wide for ordinary model names.

    Args:
        run: the run directory.
        repeats: bootstrap resamples of the sessions.

    Returns:
        A table to print with rich: the best model first, score and 95 % interval on the test lists and out of fold, the
        difference to the best model with its interval (out of fold if known), and other metrics.

    Raises:
        MissingFileError: no such directory, or no ``scores.json`` in it.
        UnreadableFileError: a file that is there cannot be read.
    """
    results = read_run(run, repeats=repeats)
    shown = [split for split in SPLITS if results.scores[split] or results.standings.get(split)]
    judged: Split = "oof" if results.standings.get("oof") else "test"
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(f"model\n({results.metric})", overflow="fold")
    for split in shown:
        table.add_column(split, justify="right", no_wrap=True)
        if results.standings.get(split):
            table.add_column("95 %", style="dim", no_wrap=True)
    if results.standings:
        table.add_column(f"to the best\n({judged})", justify="right", no_wrap=True)
    for metric in results.also:
        table.add_column(f"{metric}\n({also_of(results)})", justify="right", no_wrap=True)
    for name in all_models(results):
        cells = [Text(name)]  # not as markup: a name may hold brackets
        for split in shown:
            standing, score = standing_of(results, split, name), score_of(results, split, name)
            cells.append(Text("" if score is None else f"{score:.4f}"))
            if results.standings.get(split):
                cells.append(Text(_bare(ends(standing.score, 3)) if standing else ""))
        if results.standings:
            standing = standing_of(results, judged, name)
            gap = standing and standing.to_best
            cells.append(
                Text(
                    "best" if name == results.best else f"{signed(gap.mean, 4)} ({_bare(ends(gap, 3))})" if gap else ""
                )
            )
        cells += [Text(f"{m[name]:.4f}" if name in m else "") for m in results.also.values()]
        table.add_row(*cells, style="bold" if name == results.best else None)
    if results.oracle is not None and "test" in shown:
        table.add_row("oracle", f"{results.oracle:.4f}", style="dim")
    return table


def all_models(results: RunResults) -> list[str]:
    """List models in the order they are shown: the best first, those that only the lists name last."""
    extra = [name for split in SPLITS for name in results.standings.get(split, {}) if name not in results.models]
    return list(dict.fromkeys([*reversed(results.models), *extra]))


def also_of(results: RunResults) -> Split:
    """Return the split of other metrics."""
    return "test" if results.task == "next_item" else "oof"


def standing_of(results: RunResults, split: Split, name: str) -> Standing | None:
    """Return a model's standing on a split, None if its lists are unknown."""
    return results.standings.get(split, {}).get(name)


def score_of(results: RunResults, split: Split, name: str) -> float | None:
    """Return a model's score on a split: the reported one, or the mean over its lists."""
    standing = standing_of(results, split, name)
    return results.scores[split].get(name, standing.score.mean if standing else None)


def signed(value: float, decimals: int) -> str:
    """Format a difference with its sign; one that rounds to 0 has none."""
    text = f"{value:+.{decimals}f}"
    return (f"{0:.{decimals}f}" if float(text) == 0 else text).replace("-", _MINUS)


def ends(interval: Interval, decimals: int) -> str:
    """Format the two ends of an interval."""
    if interval.low < 0:
        return f"{signed(interval.low, decimals)} to {signed(interval.high, decimals)}"
    return f"{interval.low:.{decimals}f}\u2013{interval.high:.{decimals}f}"


def _bare(text: str) -> str:
    # a terminal has 80 columns: no zero before the point, as in .314
    return re.sub(r"(?<!\d)0\.", ".", text).replace(" to ", ", ")


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def total_seconds(results: RunResults) -> float | None:
    """Return the seconds of the whole run: as reported, or the sum of its stages."""
    stages = {stage: s for stage, s in results.seconds.items() if stage != "total"}
    return results.seconds.get("total", sum(stages.values())) if results.seconds else None


def count_lists(n: int | None) -> str:
    """Format a number of lists, empty for none."""
    return f"{n:,} list{'s' if n != 1 else ''}" if n else ""


def unit_of(results: RunResults) -> str:
    """Return the unit that is scored: lists or rows."""
    return "lists" if results.task == "ranking" else "rows"
