"""Sizes of tables and states, by which a Dask worker decides what to move to its disk."""

from __future__ import annotations

import pyarrow as pa
import torch
from dask.sizeof import sizeof

from fastrec._core import limits
from fastrec.table import Column, Keys, Table


@sizeof.register(torch.Tensor)
def _of_tensor(tensor: torch.Tensor) -> int:
    return limits.OBJECT_BYTES + tensor.nelement() * tensor.element_size()


@sizeof.register(pa.Array)
def _of_array(array: pa.Array) -> int:
    return limits.OBJECT_BYTES + array.nbytes


@sizeof.register(Keys)
def _of_keys(keys: Keys) -> int:
    return limits.OBJECT_BYTES + sum(c.nbytes for c in keys.columns)


@sizeof.register(Column)
def _of_column(column: Column) -> int:
    parts = (column.values, column.missing, column.distinct, column.elements)
    return limits.OBJECT_BYTES + sum(sizeof(p) for p in parts if p is not None)


@sizeof.register(Table)
def _of_table(table: Table) -> int:
    return limits.OBJECT_BYTES + sum(_of_column(table[n]) for n in table.names)
