"""Partitions as Tables: pandas' dtypes differ between partitions, ``Table`` joins them exactly."""

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
from fastrec.features.cache import size_of
from fastrec.table import Column, Keys, Table


def task(function: Callable[..., Any], *args: Any, nout: int | None = None) -> Any:
    """Return a delayed call."""
    return delayed(function, pure=False, nout=nout)(*args)


def tasks_of_pieces(
    function: Callable[..., Any],
    wholes: Sequence[Any],
    places: Sequence[int],
    beside: Sequence[Any] | None = None,
    nout: int | None = None,
) -> list[Any]:
    """Return one delayed call per place, with the place's part of every whole, all in one layer of the graph."""
    # task would walk the graph behind every piece of its list: too slow for the partitions × buckets pieces of a
    # shuffle. beside: a task per call, whose result is a further argument
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
    """Rows of a Dask frame as Tables: ``parts`` has a task per partition that returns the columns ``names``.

    All rows of one value of a ``together`` column are in one partition. ``read`` returns the tasks for a subset of the
    names.
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
        """Return one task per partition that returns a Table of these columns; other columns are not computed."""
        wanted, used = list(dict.fromkeys(names)), []
        left, exact = set(wanted), False  # exact: the used tables have no other columns
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
        # One source with exactly these columns needs no task to join them.
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
    # row numbers and folds are computed on the host
    device = next((t.device for t in tables if t.device.type != "cpu"), None)
    return Table({n: found[n] for n in names}, device=device)


# Sizes of tables and states, by which a Dask worker decides what to spill.


for _kind in (torch.Tensor, pa.Array, Keys, Column, Table):
    sizeof.register(_kind, lambda thing: limits.OBJECT_BYTES + size_of(thing))


# Cells of a partition's rows, and the rows that a fold hides; recomputed wherever the rows are.

ROW, OUTER = "\x00row", "\x00outer"  # internal columns: row number in the whole frame, outer fold


class Folding:
    """Folds of rows by their key, or (empty key) by their number in the whole frame."""

    def __init__(self, key: Sequence[str], count: int) -> None:
        self.key, self.count = list(key), count

    @property
    def columns(self) -> list[str]:
        return self.key or [ROW]

    def of(self, table: Table) -> torch.Tensor:
        if self.key:
            return row_folds(table, self.key, self.count, seed=INNER_SEED)
        return number_folds(table[ROW].values, self.count, INNER_SEED)


class Hidden:
    """Rows whose targets must not be seen: of an outer fold, of an inner one (folds, and its number), or of both."""

    def __init__(self, outer: int | None = None, inner: tuple[Folding, int] | None = None) -> None:
        self.outer, self.inner = outer, inner

    @property
    def columns(self) -> list[str]:
        return [*([] if self.outer is None else [OUTER]), *([] if self.inner is None else self.inner[0].columns)]

    def of(self, table: Table) -> torch.Tensor:
        rows = torch.zeros(len(table), dtype=torch.bool, device=table.device)
        if self.outer is not None:
            rows |= table[OUTER].values == self.outer
        if self.inner is not None:
            rows |= self.inner[0].of(table) == self.inner[1]
        return rows


class CellRule:
    """Rule that splits a generator's training rows into cells.

    Rows get values of other folds, by ``folding`` or by a ``column`` with its values. ``hidden`` rows are in cell 0,
    which no row sees.
    """

    def __init__(
        self, folding: Folding | None, column: tuple[str, Keys] | None = None, hidden: Hidden | None = None
    ) -> None:
        self.folding, self.column, self.hidden = folding, column, hidden

    @property
    def by_fold(self) -> bool:
        return self.folding is not None or self.column is not None

    @property
    def columns(self) -> list[str]:
        own = [self.column[0]] if self.column else self.folding.columns if self.folding else []
        return [*own, *(self.hidden.columns if self.hidden else [])]

    @property
    def count(self) -> int:
        inner = max(len(self.column[1]), 1) if self.column else self.folding.count if self.folding else 1
        return inner + (self.hidden is not None)

    def of(self, table: Table) -> Cells:
        if self.column is not None:
            codes = table.coded(self.column[0]).recode(self.column[1]) - 1
        else:
            one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
            codes = one if self.folding is None else self.folding.of(table)
        if self.hidden is not None:
            codes = torch.where(self.hidden.of(table), 0, codes + 1)
        return Cells(codes, self.count)

    def excluded(self) -> torch.Tensor:
        """Return the cells that rows must not see (see ``excluded_cells``)."""
        return excluded_cells(self.count, self.by_fold, self.hidden is not None)
