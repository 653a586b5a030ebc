"""Progress of a long run: bars in a terminal, plain lines elsewhere; and each stage's seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fastrec._core import limits

Advance = Callable[[int], None]
STAGE_NOTE = "in the stage: "


class Stages:
    """Timer of the stages of a run that shows their progress.

    Args:
        console: the console to print to; None: standard error.
        quiet: measure times, but show nothing.
    """

    def __init__(self, *, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.quiet, self._bar_shown = quiet, False
        self.seconds: dict[str, float] = {}  # of each stage; one entered twice adds up
        self.began = time.perf_counter()
        self.below: Any = None  # what a terminal shows below the bar, as rich draws it, until another begins

    @property
    def has_bars(self) -> bool:
        """Whether stages have bars, not lines."""
        return self.console.is_terminal and not self.quiet

    def say(self, text: str) -> None:
        """Show one line."""
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int | None = None, *, unit: str = "rows") -> Iterator[Advance]:
        """Time a block under a name, and show its progress; of stages inside each other only the outermost has a bar.

        Args:
            name: the stage.
            total: the number of units of work, if known.
            unit: what is counted.

        Yields:
            A function to call with the number of units just done.
        """
        start = time.perf_counter()
        bar = self.has_bars and not self._bar_shown
        done = 0
        if bar:
            self.below = None
        with _bar(self, name, total, unit) if bar else _lines(self.say, name, total, unit) as advance:

            def count(units: int) -> None:
                nonlocal done
                done += units
                advance(units)

            self._bar_shown |= bar
            try:
                yield count
            except Exception as error:
                error.add_note(f"{STAGE_NOTE}{name}")  # the innermost's comes first
                raise
            finally:
                self._bar_shown &= not bar
        took = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        self.say(f"{name}: {summary(done or total, unit, took)}")


def summary(units: int | None, unit: str, seconds: float) -> str:
    """Return ``'203,418 rows in 2.3 s (88,443 rows/s)'``."""
    if not units:
        return f"{seconds:.1f} s"
    return f"{units:,} {unit} in {seconds:.1f} s ({units / max(seconds, 1e-9):,.0f} {unit}/s)"


class _Bar(Progress):
    stages: Stages | None = None

    def get_renderables(self) -> Iterator[Any]:
        """Return the bar's line and what is below it."""
        yield self.make_tasks_table(self.tasks)
        if self.stages is not None and self.stages.below is not None:
            yield self.stages.below


@contextmanager
def _bar(stages: Stages, name: str, total: int | None, unit: str) -> Iterator[Advance]:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[so_far]}", markup=False), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    start = time.perf_counter()
    progress = _Bar(*columns, console=stages.console, transient=True)
    progress.stages = stages
    with progress:
        task = progress.add_task(name, total=total, so_far="")

        def advance(units: int) -> None:
            progress.advance(task, units)
            done = int(progress.tasks[0].completed)
            rate = done / max(time.perf_counter() - start, 1e-9)
            progress.update(task, so_far=f"{done:,} {unit}, {rate:,.0f} {unit}/s")

        yield advance


@contextmanager
def _lines(say: Callable[[str], None], name: str, total: int | None, unit: str) -> Iterator[Advance]:
    start = last = time.perf_counter()
    done = 0

    def advance(units: int) -> None:
        nonlocal done, last
        done += units
        now = time.perf_counter()
        if now - last < limits.PLAIN_EVERY:
            return
        last = now
        rate = done / (now - start)
        left = f", {max(total - done, 0) / rate:,.0f} s left" if total and rate else ""
        of = f" of {total:,}" if total else ""
        say(f"  {name}: {done:,}{of} {unit} ({rate:,.0f} {unit}/s{left})")

    yield advance
