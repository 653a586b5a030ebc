"""Bring rows of one key together from all partitions, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import dask
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task, tasks_of_pieces
from fastrec.features._dask.files import Shelf, spill_folder
from fastrec.features._engine.folds import row_folds
from fastrec.features._engine.order import Clock, LooksBack
from fastrec.features.base import Fitted
from fastrec.table import Column, Table, concat


class ByKey:
    """Rule that assigns rows of one key (``columns``) to one bucket; without columns there is one bucket."""

    def __init__(self, columns: Sequence[str], buckets: int) -> None:
        self.columns, self.count = list(columns), buckets if columns else 1

    def of(self, table: Table) -> torch.Tensor:
        # The seed differs from the folds': a bucket must not hold only the rows of one fold.
        return row_folds(table, self.columns, self.count, seed=3)


class GatheredOnWorkers:
    """Pieces sent from worker to worker when the tasks run; ``tables``: one task per bucket."""

    def __init__(self, parts: Sequence[Any], cut: ByKey | ByTime) -> None:
        count = cut.count
        split = [task(_split, part, cut, nout=count + 1) for part in parts]
        stacked = tasks_of_pieces(_stacked, split, range(count), nout=2)
        self.tables = [table for table, _ in stacked]
        self._sizes = [sizes for _, sizes in stacked]
        self._buckets = [s[count] for s in split]

    def back(self, made: Iterable[Any]) -> list[Any]:
        """Return columns of the buckets' rows, a task per bucket, as columns of the original partitions."""
        count = len(self._buckets)
        pieces = [task(_cut, table, sizes, nout=count) for table, sizes in zip(made, self._sizes, strict=True)]
        return tasks_of_pieces(_unsplit, pieces, range(count), beside=self._buckets)


class GatheredInFiles:
    """Pieces that wait in files of ``folder``, so that one partition or bucket at a time is in memory."""

    # Each partition is read, and each bucket computed, by a computation of its own: given all of them, Dask would start
    # many before it ends one, and hold their results

    def __init__(self, parts: Sequence[Any], cut: ByKey | ByTime, folder: str) -> None:
        self._folder, self._sizes, self._buckets = folder, [], []
        shelf = Shelf(folder, cut.count)
        for part in parts:
            *pieces, buckets = _split(dask.compute(part)[0], cut)
            for at, piece in enumerate(pieces):
                shelf.put(at, piece)
            self._sizes.append([len(piece) for piece in pieces])
            self._buckets.append(buckets)
        self.tables = [task(lambda shelf, at: concat(shelf.tables(at)), shelf, at) for at in range(cut.count)]

    def back(self, made: Iterable[Any]) -> list[Any]:
        shelf = Shelf(self._folder, len(self._sizes))
        for at, columns in enumerate(made):
            for i, piece in enumerate(_cut(dask.compute(columns)[0], [sizes[at] for sizes in self._sizes])):
                shelf.put(i, piece)
        back = lambda shelf, i, buckets: _unsplit(shelf.tables(i), buckets)  # noqa: E731
        return [task(back, shelf, i, buckets) for i, buckets in enumerate(self._buckets)]


Gathered = GatheredOnWorkers | GatheredInFiles


def gather(blocks: Blocks, names: Sequence[str], cut: ByKey | ByTime) -> Gathered:
    """Gather rows (their columns ``names``) on the workers, or through files while ``spilled`` is active."""
    parts, folder = blocks.select([*names, *cut.columns]), spill_folder()
    # With files one partition or bucket at a time is in memory; workers have memory for more.
    if folder is not None:
        return GatheredInFiles(parts, cut, folder)
    return GatheredOnWorkers(parts, cut)


def _split(table: Table, cut: ByKey | ByTime) -> tuple[Any, ...]:
    count = cut.count
    if count == 1:
        return table, torch.zeros(len(table), dtype=torch.uint8, device=table.device)
    buckets = cut.of(table)
    order = torch.argsort(buckets, stable=True)
    ends = torch.cumsum(torch.bincount(buckets, minlength=count), 0).tolist()
    starts = [0, *ends[:-1]]
    pieces = [Table({n: compact(c) for n, c in table.take(order[a:b])._columns.items()}) for a, b in zip(starts, ends)]
    return *pieces, buckets.to(torch.uint8)


def _stacked(pieces: list[Table]) -> tuple[Table, list[int]]:
    return concat(pieces), [len(t) for t in pieces]


def _cut(table: Table, sizes: list[int]) -> tuple[Table, ...]:
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return tuple(table.slice(end - size, end) for end, size in zip(ends, sizes))


def _unsplit(pieces: list[Table], buckets: torch.Tensor) -> Table:
    whole = concat(pieces)
    # The stable sort by bucket is undone by sorting its permutation.
    return whole if len(pieces) == 1 else whole.take(torch.argsort(torch.argsort(buckets, stable=True)))


def compact(column: Column) -> Column:
    """Drop a category's unused values, which would be transferred too."""
    # Categories stay unchanged if their order matters (ordered) or if they are few. A thousand and more are ids that a
    # library has converted to categories
    least = len(column) if column.ordered is None else max(len(column), limits.MANY_CATEGORIES)
    if column.kind != "category" or column.ordered or len(column.distinct) <= least:
        return column
    used, codes = torch.unique(column.values, return_inverse=True)
    none = not len(used) or int(used[0]) != 0
    kept = used if none else used[1:]
    distinct = column.distinct.take(pa.array((kept.long() - 1).cpu().numpy()))
    return replace(column, values=(codes + none).to(column.values.dtype), distinct=distinct)


# Generators whose rows see earlier rows: tables follow one another, each gets the state of those before.


class ByTime:
    """Rule that cuts rows into equal ranges of a column without missing values; equal values stay together."""

    def __init__(self, blocks: Blocks, column: str, ranges: int) -> None:
        self.columns = [column]
        looks = [task(_points, table, column) for table in blocks.select([column])]
        one_by_one = spill_folder() is not None  # else Dask may start many before it ends one
        seen = [dask.compute(look)[0] for look in looks] if one_by_one else dask.compute(*looks)
        values, weights = (torch.cat([s[i] for s in seen]) for i in (0, 1))
        order = torch.argsort(values, stable=True)
        below = torch.cumsum(weights[order], 0)
        wanted = below[-1:] * torch.arange(1, ranges, dtype=torch.float64) / ranges if len(below) else below
        found = values[order][torch.searchsorted(below, wanted).clamp_max(max(len(below) - 1, 0))]
        self.bounds = torch.unique(found)  # the ranges' starts
        self.count = len(self.bounds) + 1

    def of(self, table: Table) -> torch.Tensor:
        values = _place_in_time(table, self.columns[0])
        return torch.bucketize(values, self.bounds.to(values.device), right=True)


def _points(table: Table, column: str) -> tuple[torch.Tensor, torch.Tensor]:
    values = _place_in_time(table, column).sort().values.cpu()
    if len(values) > limits.RANGE_POINTS:
        values = values[((torch.arange(limits.RANGE_POINTS) + 0.5) * len(values) / limits.RANGE_POINTS).long()]
    return values, torch.full((len(values),), len(table) / max(len(values), 1), dtype=torch.float64)


def _place_in_time(table: Table, column: str) -> torch.Tensor:
    """Return float64 ``[n]`` that increases with the column, whatever its unit or type; ties stay ties."""
    clock = Clock.of(table, column)
    return clock.whole.double() + clock.part


def in_turn(
    count: int, made: Callable[[int, Any], Any], collected: Callable[[int], Any], merged: Callable[[Any, Any], Any]
) -> Iterator[Any]:
    """Compute the columns of ``count`` consecutive tables, each with the merged state of those before it.

    On workers these are tasks: collecting runs in parallel, merging in sequence. With a folder to spill to, each table
    is computed when it is requested.
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
    """Tell whether training rows get their values from the state of earlier tables."""
    return isinstance(step, Fitted) and step.causal and hasattr(step, "compute_after")


def looks_back(step: Any) -> bool:
    """Tell whether rows need the ``keep`` of earlier tables."""
    return isinstance(step, LooksBack) and step.looks_back
