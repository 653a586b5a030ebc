"""Rows in partitions as Tables: pandas' dtypes differ from partition to partition, ``Table`` joins them exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any
from uuid import uuid4

import pyarrow as pa
import torch
from dask import delayed
from dask._task_spec import List, Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof

from fastrec._core import limits
from fastrec.features._engine.chain import excluded_cells
from fastrec.features._engine.folds import INNER_SEED, number_folds, row_folds
from fastrec.features.base import Cells
from fastrec.table import Column, Keys, Table


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
    """Return one delayed call per place, with what every whole has there, all in one layer of the graph."""
    # task would walk the graph behind every piece of its list: too long for the pieces of a shuffle, which are as many
    # as partitions times buckets. beside: a task for each call, whose result it gets too
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
    """Rows of a Dask frame as Tables: ``parts`` has a task for each partition, which gives the columns ``names``.

    ``together`` are columns of which all rows of one value are in one partition; ``read`` makes, of some of the names,
    the tasks that read those alone.
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
        """The columns that there are."""
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
        """Return the partitions from the ``i``-th on."""
        made = copy.copy(self)
        made._layers = [(names, parts[i:]) for names, parts in self._layers]
        if self._read is not None:
            made._read = lambda names: self._read(names)[i:]
        return made


def _joined(names: list[str], lists: list[list[str]], *tables: Table) -> Table:
    found = {n: table[n] for own, table in zip(lists, tables, strict=True) for n in own}
    # rows' numbers and folds are made on the host
    device = next((t.device for t in tables if t.device.type != "cpu"), None)
    return Table({n: found[n] for n in names}, device=device)


# Sizes of tables and states, by which a Dask worker decides what to move to its disk.


_WEIGHTS: dict[type, Callable[[Any], int]] = {
    torch.Tensor: lambda tensor: tensor.nelement() * tensor.element_size(),
    pa.Array: lambda array: array.nbytes,
    Keys: lambda keys: sum(c.nbytes for c in keys.columns),
    Column: lambda column: sum(map(sizeof, (column.values, column.missing, column.distinct, column.elements))),
    Table: lambda table: sum(sizeof(table[n]) for n in table.names),
}
for _kind, _weight in _WEIGHTS.items():
    sizeof.register(_kind, lambda thing, weight=_weight: limits.OBJECT_BYTES + weight(thing))


# The cell of each row of a partition, and the rows that a fold hides; recomputed wherever the rows are.

ROW, OUTER = "\x00row", "\x00outer"  # columns of ours: the row's number in the whole frame, its outer fold


class Folding:
    """Folds of rows by their key, or by their number in the whole frame (an empty key)."""

    def __init__(self, key: Sequence[str], count: int) -> None:
        self.key, self.count = list(key), count

    @property
    def columns(self) -> list[str]:
        return self.key or [ROW]

    def of(self, table: Table) -> torch.Tensor:
        """Return each row's fold: int64 ``[n]``."""
        if self.key:
            return row_folds(table, self.key, self.count, seed=INNER_SEED)
        return number_folds(table[ROW].values, self.count, INNER_SEED)


class Hidden:
    """Rows whose targets must not be seen: of an outer fold, of an inner one (folds, and one's number), or of both."""

    def __init__(self, outer: int | None = None, inner: tuple[Folding, int] | None = None) -> None:
        self.outer, self.inner = outer, inner

    @property
    def columns(self) -> list[str]:
        return [*([] if self.outer is None else [OUTER]), *([] if self.inner is None else self.inner[0].columns)]

    def of(self, table: Table) -> torch.Tensor:
        """Return which rows are hidden: bool ``[n]``."""
        rows = torch.zeros(len(table), dtype=torch.bool, device=table.device)
        if self.outer is not None:
            rows |= table[OUTER].values == self.outer
        if self.inner is not None:
            rows |= self.inner[0].of(table) == self.inner[1]
        return rows


class CellRule:
    """The rule by which a generator's training rows are split into cells.

    Rows get their values from other folds by ``folding``, or by a ``column`` of folds (and all its values). ``hidden``
    rows are in a cell of their own, the first, which no row sees.
    """

    def __init__(
        self, folding: Folding | None, column: tuple[str, Keys] | None = None, hidden: Hidden | None = None
    ) -> None:
        self.folding, self.column, self.hidden = folding, column, hidden

    @property
    def by_fold(self) -> bool:
        """Whether rows get their values from other folds."""
        return self.folding is not None or self.column is not None

    @property
    def columns(self) -> list[str]:
        own = [self.column[0]] if self.column else self.folding.columns if self.folding else []
        return [*own, *(self.hidden.columns if self.hidden else [])]

    @property
    def count(self) -> int:
        """The number of cells."""
        inner = max(len(self.column[1]), 1) if self.column else self.folding.count if self.folding else 1
        return inner + (self.hidden is not None)

    def of(self, table: Table) -> Cells:
        """Return the rows' cells."""
        if self.column is not None:
            codes = table.coded(self.column[0]).recode(self.column[1]) - 1
        else:
            one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
            codes = one if self.folding is None else self.folding.of(table)
        if self.hidden is not None:
            codes = torch.where(self.hidden.of(table), 0, codes + 1)
        return Cells(codes, self.count)

    def excluded(self) -> torch.Tensor:
        """Return which cells rows must not see (see ``excluded_cells``)."""
        return excluded_cells(self.count, self.by_fold, self.hidden is not None)
