"""Tables that a group of generators is computed on, with the rows that it needs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task
from fastrec.features._dask.gathered import ByKey, gather
from fastrec.features._dask.in_time import ByTime
from fastrec.features._dask.plan import HERE, IN_TIME, Group, in_time
from fastrec.features._dask.spill import spill_folder
from fastrec.features._dask.states import share
from fastrec.features.base import Feature, Fitted
from fastrec.table import Table, concat


class Others:
    """The other tables that generators read.

    Args:
        tables: by name: partitions of a Dask frame, or a Table that every worker gets.
        given: the names of all tables that were given, for errors.
    """

    def __init__(self, tables: Mapping[str, Blocks | Table], given: Sequence[str]) -> None:
        self.tables, self.given = dict(tables), tuple(given)
        self._shared: dict[str, Any] = {}

    def whole(self, name: str) -> Any:
        """Return a task (or what every worker holds) that gives the whole table."""
        if name not in self._shared:
            table = self.tables[name]
            if isinstance(table, Blocks):
                whole = task(concat, table.select(table.names))
                # In one process that works bucket by bucket: once, not for every bucket.
                self._shared[name] = whole if spill_folder() is None else share(dask.compute(whole)[0])
            else:
                self._shared[name] = share(table)
        return self._shared[name]

    def gathered(self, name: str, key: Sequence[str], buckets: int) -> list[Any]:
        """Return the table's rows in the buckets of the main rows."""
        table = self.tables[name]
        blocks = table if isinstance(table, Blocks) else Blocks(table.names, [self.whole(name)])
        return gather(blocks, blocks.names, ByKey(key, buckets)).tables

    def in_parts(self, name: str) -> list[Any]:
        table = self.tables[name]
        assert isinstance(table, Blocks)
        return table.select(table.names)

    def partitions(self, name: str) -> int:
        """Return how many partitions the table has; 0: it is in memory."""
        table = self.tables.get(name)
        return len(table) if isinstance(table, Blocks) else 0

    def beside(self, name: str, blocks: Blocks, column: str) -> bool:
        """Tell whether the i-th partition of the table has all rows of the values in the i-th of the main rows."""
        table = self.tables.get(name)
        return isinstance(table, Blocks) and len(table) == len(blocks) and column in table.together


class Place:
    """The tables that a group of generators is computed on.

    Args:
        blocks: the rows.
        group: what is computed.
        names: the columns that it needs of the rows.
        others: the other tables.
    """

    def __init__(self, blocks: Blocks, group: Group, names: Sequence[str], others: Others) -> None:
        self._gathered = None
        here = group.key == HERE
        apart = {(s, t) for s in group.steps for t in s.table_inputs if _goes_along(s, t, group.key, blocks, others)}
        as_they_are = group.key is None or group.key == (IN_TIME,)
        if here or as_they_are or (len(blocks) == 1 and not apart):
            self.tables = blocks.select(names)
        else:
            buckets = min(max(len(blocks), *(others.partitions(t) for _, t in apart), 1), limits.MAX_BUCKETS)
            cut = ByTime(blocks, group.key[1], buckets) if in_time(group.key) else ByKey(group.key, buckets)
            self._gathered = gather(blocks, names, cut)
            self.tables = self._gathered.tables
        count = len(self.tables)
        split = {t: others.in_parts(t) if here else others.gathered(t, group.key, count) for t in {t for _, t in apart}}
        self._contexts = [
            {t: split[t] if (s, t) in apart else others.whole(t) for t in s.table_inputs if t in others.tables}
            for s in group.steps
        ]
        self._steps = group.steps

    def contexts(self, i: int, steps: Sequence[Feature]) -> list[dict[str, Any]]:
        """Return the other tables for the ``i``-th of ``tables``, for each of some steps of the group."""
        found = [self._contexts[self._steps.index(s)] for s in steps]
        return [{n: t[i] if isinstance(t, list) else t for n, t in tables.items()} for tables in found]

    def back(self, made: Sequence[Any]) -> list[Any]:
        return list(made) if self._gathered is None else self._gathered.back(made)


def stays(step: Feature, rows: Sequence[Blocks], others: Others) -> bool:
    """Tell whether rows that a generator needs together are in one partition already, in other tables too.

    Args:
        step: the generator.
        rows: training rows, and unlabeled ones where there are some.
        others: the other tables.
    """
    whole = isinstance(step, Fitted) and step.whole_groups
    for column in set(step.within or ()).intersection(*(blocks.together for blocks in rows)):
        read = [t for t, names in step.table_inputs.items() if column in names and t in others.tables]
        alone = {t for t in read if not (whole or others.partitions(t))}  # in memory: every partition gets it
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
