"""Bring rows of one key together from all partitions, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import dask
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task, tasks_of_pieces
from fastrec.features._dask.spill import Shelf, spill_folder
from fastrec.features._engine.folds import row_folds
from fastrec.table import Column, Table, concat


class BucketRule(Protocol):
    """Rule that gives each row a bucket.

    Attributes:
        columns: those that it reads.
        count: how many buckets there are.
    """

    columns: list[str]
    count: int

    def of(self, table: Table) -> torch.Tensor: ...


class ByKey:
    """Rule that puts rows of one key into one bucket.

    Args:
        columns: the key; empty: all rows come into one bucket.
        buckets: how many.
    """

    def __init__(self, columns: Sequence[str], buckets: int) -> None:
        self.columns, self.count = list(columns), buckets if columns else 1

    def of(self, table: Table) -> torch.Tensor:
        # Another seed than the folds': a bucket must not hold the rows of one fold alone.
        return row_folds(table, self.columns, self.count, seed=3)


class GatheredOnWorkers:
    """Pieces that travel from worker to worker when the tasks run; ``tables``: one task per bucket.

    Args:
        parts: one task per partition, each gives a Table.
        cut: which rows come together.
    """

    def __init__(self, parts: Sequence[Any], cut: BucketRule) -> None:
        count = cut.count
        split = [task(_split, part, cut, nout=count + 1) for part in parts]
        stacked = tasks_of_pieces(_stacked, split, range(count), nout=2)
        self.tables = [table for table, _ in stacked]
        self._sizes = [sizes for _, sizes in stacked]
        self._buckets = [s[count] for s in split]

    def back(self, made: Iterable[Any]) -> list[Any]:
        """Return columns of the buckets' rows, one task per bucket, as columns of the original partitions."""
        count = len(self._buckets)
        pieces = [task(_cut, table, sizes, nout=count) for table, sizes in zip(made, self._sizes, strict=True)]
        return tasks_of_pieces(_unsplit, pieces, range(count), beside=self._buckets)


class GatheredInFiles:
    """Pieces that wait in files, so that one partition or bucket at a time is in memory.

    Each partition is read, and each bucket made, by a computation of its own: where Dask sees them all it may well
    begin many before it ends one, and hold what they have made so far.

    Args:
        parts, cut: see ``GatheredOnWorkers``.
        folder: of the files.
    """

    def __init__(self, parts: Sequence[Any], cut: BucketRule, folder: str) -> None:
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
        return [task(_unsplit_from, shelf, i, buckets) for i, buckets in enumerate(self._buckets)]


Gathered = GatheredOnWorkers | GatheredInFiles


def gather(blocks: Blocks, names: Sequence[str], cut: BucketRule) -> Gathered:
    """Bring rows together: on the workers, or at once and through files while ``spilled`` is active.

    Args:
        blocks: the rows.
        names: the columns that are wanted.
        cut: which rows come together.
    """
    parts, folder = blocks.select([*names, *cut.columns]), spill_folder()
    # With files one partition or bucket at a time is in memory; workers have memory for more.
    if folder is not None:
        return GatheredInFiles(parts, cut, folder)
    return GatheredOnWorkers(parts, cut)


def _split(table: Table, cut: BucketRule) -> tuple[Any, ...]:
    """Split a partition's rows by bucket; also return each row's bucket (uint8 ``[n]``)."""
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


def _unsplit_from(shelf: Shelf, at: int, buckets: torch.Tensor) -> Table:
    return _unsplit(shelf.tables(at), buckets)


def compact(column: Column) -> Column:
    """Drop a category's distinct values that no row has, as they would travel too.

    Categories in an order of the user's stay as they are where the order says something (``ordered``), and where they
    are few; a thousand and more are ids that a library has made categories.
    """
    least = len(column) if column.ordered is None else max(len(column), limits.MANY_CATEGORIES)
    if column.kind != "category" or column.ordered or len(column.distinct) <= least:
        return column
    used, codes = torch.unique(column.values, return_inverse=True)
    none = not len(used) or int(used[0]) != 0
    kept = used if none else used[1:]
    distinct = column.distinct.take(pa.array((kept.long() - 1).numpy()))
    return replace(column, values=(codes + none).to(column.values.dtype), distinct=distinct)
