"""Bring rows of one key together from all partitions, and back; which generators are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task, tasks_of_pieces
from fastrec.features._dask.files import Shelf, spill_folder
from fastrec.features._dask.states import share
from fastrec.features._engine.folds import row_folds
from fastrec.features._engine.order import Clock, LooksBack
from fastrec.features.base import Feature, Fitted
from fastrec.features.columns import as_list
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
        stacked = tasks_of_pieces(lambda ts: (concat(ts), [len(t) for t in ts]), split, range(count), nout=2)
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
    return GatheredOnWorkers(parts, cut) if folder is None else GatheredInFiles(parts, cut, folder)


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


def _cut(table: Table, sizes: list[int]) -> tuple[Table, ...]:
    return tuple(table.slice(end - size, end) for end, size in zip(torch.tensor(sizes).cumsum(0).tolist(), sizes))


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


HERE = ("\x00here",)  # key of a group whose rows are in one partition already
# First in a group's key: each table holds a range of the next column's values. Alone: the tables are the consecutive
# partitions.
IN_TIME = "\x00in time"


Keys = dict[int, tuple[str, ...] | None]  # by the generator's id: ``rows_together``, or HERE


@dataclass(eq=False)
class Group:
    """Generators that are computed on the same tables."""

    # the columns whose rows of one key must be in one table; HERE: they are; None: any rows; empty: all; IN_TIME and a
    # column: tables follow one another by the column's values; IN_TIME alone: in partition order
    key: tuple[str, ...] | None
    steps: list[Feature] = field(default_factory=list)  # generators, each after its inputs

    @property
    def outputs(self) -> list[str]:
        return [n for step in self.steps for n in step.outputs]


def rounds(
    steps: Sequence[Feature], *, training: bool, here: Callable[[Feature], bool] = lambda step: False
) -> Iterator[list[Group]]:
    """Group generators by rounds: a step's inputs exist before its round, or its group computes them."""
    # here tells whether a generator's rows are together in the existing partitions
    keys = {}
    for step in steps:
        key = rows_together(step, training=training)
        keys[id(step)] = HERE if key and here(step) else key
    pending = list(steps)
    while pending:
        made = {n for step in pending for n in step.outputs}
        ready = [s for s in pending if not made & set(reads(s, training=training))]
        groups: list[Group] = []
        # Smallest keys first: rows that are together by user are so by user and city, too.
        for step in sorted(ready, key=lambda s: -1 if keys[id(s)] is None else len(keys[id(s)])):
            key = keys[id(step)]
            group = next((g for g in groups if _fits(key, g.key, same=True)), None)
            if group is None:
                groups.append(group := Group(key))
            group.steps.append(step)
        # Steps that can be computed where their inputs are need no other shuffle.
        taken = {id(s) for g in groups for s in g.steps}
        for step in pending:  # in order: its inputs have been handled
            if id(step) in taken or (training and learns(step)):
                continue
            read = made & set(reads(step, training=training))
            group = next((g for g in groups if read <= set(g.outputs)), None)
            if group is not None and in_time(group.key) and looks_back(step):
                continue  # its ``keep`` needs columns that exist beforehand
            if group is not None and _fits(keys[id(step)], group.key):
                group.steps.append(step)
                taken.add(id(step))
        yield groups
        done = {id(step) for group in groups for step in group.steps}
        pending = [step for step in pending if id(step) not in done]


def reads(step: Feature, *, training: bool) -> list[str]:
    """Return the input columns of a step, in training including those that only fitting needs."""
    return step.inputs if training else [n for n in step.inputs if n not in set(step.fit_only)]


def rows_together(step: Feature, *, training: bool) -> tuple[str, ...] | None:
    """Return the columns whose rows of one key a generator must see together; empty: it must see all rows."""
    if step.kind == "row":
        return None
    if isinstance(step, Fitted) and training and step.causal:
        return (IN_TIME, as_list(step.order)[0]) if is_causal(step) else ()
    if looks_back(step):
        return (IN_TIME, *as_list(step.order)[:1])
    return None if step.within is None else tuple(step.within)


def learns(step: Feature) -> bool:
    """Tell whether a generator learns from all rows, so that later steps wait for the end of the pass."""
    return isinstance(step, Fitted) and getattr(step, "over", None) != "group"


def in_time(key: tuple[str, ...] | None) -> bool:
    """Tell whether tables follow one another."""
    return bool(key) and key[0] == IN_TIME


def _fits(key: tuple[str, ...] | None, there: tuple[str, ...] | None, *, same: bool = False) -> bool:
    """Tell whether tables grouped by key ``there`` suffice; ``same``: and nothing simpler would."""
    if key is None or there is None:
        return key is None and (there is None or not same)
    if same and not there:
        return not key
    if in_time(there) or (there and in_time(key)):
        return key == there
    return set(there) <= set(key)


class Others:
    """The other tables that generators read: partitions of a Dask frame, or a Table that every worker gets."""

    # given: the names of all given tables, for errors

    def __init__(self, tables: Mapping[str, Blocks | Table], given: Sequence[str]) -> None:
        self.tables, self.given = dict(tables), tuple(given)
        self._shared: dict[str, Any] = {}

    def whole(self, name: str) -> Any:
        """Return the whole table: a task, or the value that every worker holds."""
        if name not in self._shared:
            table = self.tables[name]
            if isinstance(table, Blocks):
                whole = task(concat, table.select(table.names))
                # One process that works bucket by bucket loads it once, not per bucket.
                self._shared[name] = whole if spill_folder() is None else share(dask.compute(whole)[0])
            else:
                self._shared[name] = share(table)
        return self._shared[name]

    def gathered(self, name: str, key: Sequence[str], buckets: int) -> list[Any]:
        """Return the table's rows in the buckets of the main rows."""
        table = self.tables[name]
        blocks = table if isinstance(table, Blocks) else Blocks(table.names, [self.whole(name)])
        return gather(blocks, blocks.names, ByKey(key, buckets)).tables

    def partitions(self, name: str) -> int:
        """Return the number of partitions; 0: the table is in memory."""
        table = self.tables.get(name)
        return len(table) if isinstance(table, Blocks) else 0

    def beside(self, name: str, blocks: Blocks, column: str) -> bool:
        """Tell whether the table's i-th partition has all rows of the values in the main rows' i-th."""
        table = self.tables.get(name)
        return isinstance(table, Blocks) and len(table) == len(blocks) and column in table.together


class Place:
    """Tables on which a group of generators is computed; ``names``: the columns that it needs of the rows."""

    def __init__(self, blocks: Blocks, group: Group, names: Sequence[str], others: Others) -> None:
        self._gathered = None
        here = group.key == HERE
        apart = {(s, t) for s in group.steps for t in s.table_inputs if _goes_along(s, t, group.key, blocks, others)}
        if here or group.key is None or group.key == (IN_TIME,) or (len(blocks) == 1 and not apart):
            self.tables = blocks.select(names)
        else:
            buckets = min(max(len(blocks), *(others.partitions(t) for _, t in apart), 1), limits.MAX_BUCKETS)
            cut = ByTime(blocks, group.key[1], buckets) if in_time(group.key) else ByKey(group.key, buckets)
            self._gathered = gather(blocks, names, cut)
            self.tables = self._gathered.tables
        count = len(self.tables)
        split = {
            t: others.tables[t].select(others.tables[t].names) if here else others.gathered(t, group.key, count)
            for t in {t for _, t in apart}
        }
        self._contexts = [
            {t: split[t] if (s, t) in apart else others.whole(t) for t in s.table_inputs if t in others.tables}
            for s in group.steps
        ]
        self._steps = group.steps

    def contexts(self, i: int, steps: Sequence[Feature]) -> list[dict[str, Any]]:
        """Return the other tables for the ``i``-th of ``tables``, per step of the group."""
        found = [self._contexts[self._steps.index(s)] for s in steps]
        return [{n: t[i] if isinstance(t, list) else t for n, t in tables.items()} for tables in found]

    def back(self, made: Sequence[Any]) -> list[Any]:
        """Return columns of ``tables`` as columns of the rows' partitions."""
        return list(made) if self._gathered is None else self._gathered.back(made)


def stays(step: Feature, rows: Sequence[Blocks], others: Others) -> bool:
    """Tell whether a generator's rows are together in one partition already, in other tables too."""
    # rows: training rows, and unlabeled ones if any
    whole = isinstance(step, Fitted) and step.whole_groups
    for column in set(step.within or ()).intersection(*(blocks.together for blocks in rows)):
        read = [t for t, names in step.table_inputs.items() if column in names and t in others.tables]
        alone = {t for t in read if not (whole or others.partitions(t))}  # in memory: every partition gets them
        if all(t in alone or all(others.beside(t, blocks, column) for blocks in rows) for t in read):
            return True
    return False


def _goes_along(step: Feature, table: str, key: tuple[str, ...] | None, blocks: Blocks, others: Others) -> bool:
    if not key or table not in others.tables or step.within is None:
        return False
    if key == HERE:
        return any(others.beside(table, blocks, c) for c in set(step.within) & set(blocks.together))
    if not set(key) <= set(step.table_inputs[table]):
        return False
    return isinstance(others.tables[table], Blocks) or (isinstance(step, Fitted) and step.whole_groups)
