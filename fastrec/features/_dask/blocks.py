"""Rows in partitions as Tables: pandas' dtypes differ from partition to partition, ``Table`` joins them exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any
from uuid import uuid4

from dask import delayed
from dask._task_spec import List, Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from fastrec.table import Table


def task(function: Callable[..., Any], *args: Any, nout: int | None = None) -> Any:
    """Return a delayed call that Dask may run whenever it likes."""
    return delayed(function, pure=False, nout=nout)(*args)


def tasks_of_pieces(
    function: Callable[..., Any],
    wholes: Sequence[Any],
    places: Sequence[int],
    beside: Sequence[Any] | None = None,
    nout: int | None = None,
) -> list[Any]:
    """Return one delayed call per place, with what every whole has there, all in one layer of the graph.

    ``task`` would walk the graph behind every piece of its list: too long for the pieces of a shuffle, which are as
    many as partitions times buckets.

    Args:
        function: what is called.
        wholes: tasks that give tuples.
        places: which elements of the tuples; a call each.
        beside: a task for each call, whose result it gets too; None: none.
        nout: how many results a call has; None: one.
    """
    name = f"{function.__name__.strip('_')}-{uuid4().hex}"
    layer: dict[Any, Any] = {}
    for at in places:
        keys = [(f"piece-{name}", at, i) for i in range(len(wholes))]
        layer |= {key: Task(key, getitem, TaskRef(whole.key), at) for key, whole in zip(keys, wholes)}
        more = [] if beside is None else [TaskRef(beside[at].key)]
        layer[name, at] = Task((name, at), function, List(*map(TaskRef, keys)), *more)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[*wholes, *(beside or [])])
    return [Delayed((name, at), graph, length=nout, layer=name) for at in places]


class Blocks:
    """Rows of a Dask frame as Tables, one task per partition.

    Args:
        names: the columns of ``parts``.
        parts: one task per partition, each gives a Table.
        together: columns of which all rows of one value are in one partition.
        read: from some of ``names`` the tasks that read those alone; None: columns are taken from ``parts``.
    """

    def __init__(
        self,
        names: Sequence[str],
        parts: Sequence[Any],
        together: Sequence[str] = (),
        read: Callable[[list[str]], list[Any]] | None = None,
    ) -> None:
        self._layers = [(list(names), list(parts))]
        self.together, self._read = tuple(together), read

    def __len__(self) -> int:
        return len(self._layers[0][1])

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(n for names, _ in self._layers for n in names))

    def with_layer(self, names: Sequence[str], parts: Sequence[Any]) -> Blocks:
        """Return the same rows with more columns, which replace those of the same name."""
        made = copy.copy(self)
        made._layers = [*self._layers, (list(names), list(parts))]
        return made

    def select(self, names: Sequence[str]) -> list[Any]:
        """Return one task per partition that gives a Table of these columns; other columns are not computed."""
        wanted, used = list(dict.fromkeys(names)), []
        left, exact = set(wanted), False  # exact: what is used has no other columns
        # Later layers replace columns of earlier ones.
        for i in reversed(range(len(self._layers))):
            own, parts = self._layers[i]
            here = [n for n in own if n in left]
            if not here:
                continue
            if i == 0 and self._read is not None:
                parts, exact = self._read(here), here == wanted
            used.append((here, parts))
            left -= set(here)
        # One source with just these columns in this order needs no task to join them.
        if len(used) == 1 and (exact or used[0][0] == wanted == self._layers[0][0]):
            return list(used[0][1])
        lists = [here for here, _ in used]
        return [task(_joined, wanted, lists, *(parts[i] for _, parts in used)) for i in range(len(self))]

    def from_task(self, i: int) -> Blocks:
        made = copy.copy(self)
        made._layers = [(names, parts[i:]) for names, parts in self._layers]
        if self._read is not None:
            made._read = lambda names: self._read(names)[i:]
        return made


def _joined(names: list[str], lists: list[list[str]], *tables: Table) -> Table:
    found = {n: table[n] for own, table in zip(lists, tables, strict=True) for n in own}
    return Table({n: found[n] for n in names})
