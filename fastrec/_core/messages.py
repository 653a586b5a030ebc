"""Results for people and programs: tables that fit the terminal, JSON values, the name that was meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fastrec.errors import MissingColumnError

# Tables that fit a terminal: whole columns are dropped, no name or figure is cut.


@dataclass
class TableColumn:
    """A column of a table for a terminal."""

    head: str  # its heading
    cells: Sequence[str]  # a text for each row
    drop: int = 0  # the columns with the highest number are dropped first; 0: never
    fold: bool = False  # long texts continue on the next line; figures never do
    options: dict[str, Any] = field(default_factory=dict)  # further options of rich, such as ``justify``


def terminal_table(
    columns: Sequence[TableColumn],
    width: int | None,
    *,
    title: str | None = None,
    styles: Sequence[str | None] | None = None,
    plain: bool = False,
) -> Table:
    """Make a table; if it is wider than the terminal, the least needed columns are dropped and named below.

    Args:
        columns: all columns.
        width: characters of the terminal; None: no limit.
        title: a line above the table.
        styles: a style of rich for each row.
        plain: draw only one line, below the head.
    """
    shown, dropped = list(columns), []
    while True:
        look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)} if plain else {}
        table = Table(title=title, header_style="bold", **look)
        for c in shown:
            # rich measures single words, even of cells that may not wrap; a text may wrap to 16 characters.
            least = min(max(map(len, "\n".join([c.head, *c.cells]).split("\n"))), 16 if c.fold else 10_000)
            table.add_column(c.head, overflow="fold", no_wrap=not c.fold, **{"min_width": least, **c.options})
        for i, row in enumerate(zip(*(c.cells for c in shown), strict=True)):
            table.add_row(*map(Text, row), style=None if styles is None else styles[i])  # not markup: names have []
        if width is None or max((c.drop for c in shown), default=0) == 0:
            break
        console = Console(width=10_000)
        if Measurement.get(console, console.options, table).minimum <= width:
            break
        worst = max(range(len(shown)), key=lambda i: (shown[i].drop, i))
        dropped.insert(0, " ".join(shown.pop(worst).head.split()))
    if dropped:
        table.caption = f"not shown in {width} characters: {', '.join(dropped)}"
    return table


def plain(value: Any) -> Any:
    """Return a result as JSON values.

    Records become objects, pandas frames lists of rows, and paths text. NaN and infinity become None.
    """
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return plain(value.to_dict("records"))
    if is_dataclass(value) or hasattr(value, "_asdict"):
        names = [f.name for f in fields(value)] if is_dataclass(value) else value._fields
        return {n: plain(getattr(value, n)) for n in names}
    if isinstance(value, dict):
        return {str(n): plain(v) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar of some known names to one that is unknown; None: no one is. Case tells nothing."""
    # The time grows with the square of the length, and names come from outside.
    lowered = {k.casefold(): k for k in sorted(known)}
    close = difflib.get_close_matches(name[:100].casefold(), lowered, 1)
    return lowered[close[0]] if close else None


def refuse_absent(
    names: Iterable[str], there: Collection[str], problem: str, *, file: Any = None, remedy: str | None = None
) -> None:
    """Refuse columns that are not ``there`` (``MissingColumnError``): the first is named, with what may be meant."""
    absent = next((n for n in names if n not in there), None)
    if absent is not None:
        near = nearest(absent, there)
        remedy = remedy or f"Is {near!r} meant? " * (near is not None) + f"There are {', '.join(list(there)[:20])}"
        raise MissingColumnError(problem, file=file, column=absent, remedy=remedy)
