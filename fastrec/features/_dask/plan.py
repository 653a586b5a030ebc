"""Plan of which generators are computed together, and which rows each needs together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask

from fastrec._core import limits
from fastrec.features._dask.blocks import Blocks, task
from fastrec.features._dask.files import spill_folder
from fastrec.features._dask.gathered import ByKey, ByTime, gather, is_causal, looks_back
from fastrec.features._dask.states import share
from fastrec.features.base import Feature, Fitted
from fastrec.features.columns import as_list
from fastrec.table import Table, concat

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
        groups = _ready(pending, keys, training)
        _grow(groups, pending, keys, training)
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


def _ready(pending: list[Feature], keys: Keys, training: bool) -> list[Group]:
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
    return groups


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


def _grow(groups: list[Group], pending: list[Feature], keys: Keys, training: bool) -> None:
    """Add steps that can be computed where their inputs are, to avoid another shuffle."""
    taken = {id(s) for g in groups for s in g.steps}
    made = {n for step in pending for n in step.outputs}
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
        as_they_are = group.key is None or group.key == (IN_TIME,)
        if here or as_they_are or (len(blocks) == 1 and not apart):
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
