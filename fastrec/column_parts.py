"""Parts of columns: training rows that know only their own values, blocks of rows, quick codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from fastrec.keys import Coded, Keys
from fastrec.table import Column

_NARROW = 4096  # rows: below, hashing costs nothing worth saving


def coded_of(column: Column) -> Coded:
    """A column as a key, for looking its values up; its keys may hold values that do not occur.

    Whole numbers in a narrow range are their own codes: nothing is hashed. A category's codes stay as they are, int32.
    """
    if column.kind == "category":
        return Coded(column.values, Keys((column.distinct,), (column.name,)))
    whole = column.kind == "number" and not column.values.is_floating_point() and column.values.dtype != torch.bool
    if not whole or column.missing is not None or len(column) < _NARROW or "coded" in column._cache:
        return column.coded()
    low, high = (int(v) for v in torch.aminmax(column.values))
    if high - low >= len(column) // 4:
        return column.coded()
    dtype = pa.from_numpy_dtype(str(column.values.dtype).removeprefix("torch."))
    keys = pa.array(np.arange(low, high + 1), dtype)
    return Coded(column.values.long() - (low - 1), Keys((keys,), (column.name,)))


def training_part(column: Column, coded: Coded, rows: int) -> Column:
    """The first ``rows`` rows of a coded column as a category that knows these rows' values only."""
    codes, keys = coded.codes[:rows], coded.keys.columns[0]
    if column.ordered is not None:  # a categorical keeps its categories, as in fastai
        return Column("category", codes, name=column.name, distinct=keys, ordered=column.ordered)
    used = torch.bincount(codes, minlength=coded.size)[1:] > 0
    if not bool(used.all()):
        table = torch.zeros(coded.size, dtype=torch.int64, device=codes.device)
        table[1:] = torch.cumsum(used, 0) * used
        codes, keys = table[codes], keys.filter(pa.array(used.cpu().numpy()))
    part = Column("category", codes, name=column.name, distinct=keys)
    part._cache["coded"] = Coded(codes, Keys((keys,), (column.name,)))
    return part


def part_of(column: Column, start: int, stop: int) -> Column:
    """Rows ``start`` up to ``stop`` of a number, time or category column, sharing memory."""
    missing = None if column.missing is None else column.missing[start:stop]
    return replace(column, values=column.values[start:stop], missing=missing, _cache={})
