"""Generators whose rows see the rows before them: tables follow one another, each gets what was before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import torch

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task
from fastrec.features._dask.spill import spill_folder
from fastrec.features._engine.look_back import LooksBack
from fastrec.features._engine.running import Clock
from fastrec.features.base import Fitted
from fastrec.table import Table


class ByTime:
    """Rule that puts rows into ranges of equal size by their value; equal values stay together.

    Args:
        blocks: the rows; a pass over them looks at the column.
        column: of numbers or times, none missing.
        ranges: how many, at most.
    """

    def __init__(self, blocks: Blocks, column: str, ranges: int) -> None:
        self.columns = [column]
        looks = [task(_points, table, column) for table in blocks.select([column])]
        one_by_one = spill_folder() is not None  # Dask may begin many before it ends one
        seen = [dask.compute(look)[0] for look in looks] if one_by_one else dask.compute(*looks)
        values, weights = (torch.cat([s[i] for s in seen]) for i in (0, 1))
        order = torch.argsort(values, stable=True)
        below = torch.cumsum(weights[order], 0)
        wanted = below[-1:] * torch.arange(1, ranges, dtype=torch.float64) / ranges if len(below) else below
        found = values[order][torch.searchsorted(below, wanted).clamp_max(max(len(below) - 1, 0))]
        self.bounds = torch.unique(found)  # a range begins with each
        self.count = len(self.bounds) + 1

    def of(self, table: Table) -> torch.Tensor:
        values = _place_in_time(table, self.columns[0])
        return torch.bucketize(values, self.bounds.to(values.device), right=True)


def _points(table: Table, column: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return evenly spread values of a partition, and how many rows each represents."""
    values = _place_in_time(table, column).sort().values.cpu()
    if len(values) > limits.RANGE_POINTS:
        values = values[((torch.arange(limits.RANGE_POINTS) + 0.5) * len(values) / limits.RANGE_POINTS).long()]
    return values, torch.full((len(values),), len(table) / max(len(values), 1), dtype=torch.float64)


def _place_in_time(table: Table, column: str) -> torch.Tensor:
    """Return float64 ``[n]`` that rises with the column whatever its unit or type; ties stay ties."""
    clock = Clock.of(table, column)
    return clock.whole.double() + clock.part


def in_turn(
    count: int,
    made: Callable[[int, Any], Any],
    collected: Callable[[int], Any],
    merged: Callable[[Any, Any], Any],
) -> Iterator[Any]:
    """Compute the columns of each table, which gets what the tables before it have collected.

    On workers they are tasks, which Dask runs when it likes: collecting goes side by side, only merging one after the
    other. While there is a folder to spill to, each table is worked on now, as it is asked for.

    Args:
        count: how many tables there are.
        made: makes of a table's number and what was collected before it (None: nothing) the task of its columns.
        collected: makes of a table's number the task of what it collects.
        merged: makes of two states, the earlier first, the task of both.
    """
    now, before = spill_folder() is not None, None
    for i in range(count):
        columns = made(i, before)
        own = None if i + 1 == count else collected(i)
        if now:
            columns, own = dask.compute(columns, own)
        yield columns
        if own is not None:
            before = own if before is None else merged(before, own)
            if now:
                before = dask.compute(before)[0]


def is_causal(step: Any) -> bool:
    return isinstance(step, Fitted) and step.causal and hasattr(step, "compute_after")


def looks_back(step: Any) -> bool:
    return isinstance(step, LooksBack) and step.looks_back
