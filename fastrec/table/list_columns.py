"""List columns: vectors as lists, and elements without gaps."""

from __future__ import annotations

from dataclasses import replace

import torch

from fastrec.table.column import Column
from fastrec.table.offsets import offsets_of


def of_vectors(column: Column) -> Column:
    """Convert vectors to lists of equal length; a missing one is a missing list."""
    missing = column.is_missing()
    lengths = torch.where(missing, 0, column.values.shape[1])
    kept = column.values if column.missing is None else column.values[~missing]
    elements = Column("number", kept.reshape(-1), name=column.name)
    return Column("list", offsets_of(lengths), name=column.name, missing=column.missing, elements=elements)


def packed(column: Column) -> Column:
    """Return a list column whose first list begins at element 0 and whose last ends at the last element."""
    first, last = (int(v) for v in column.values[[0, -1]])
    if first == 0 and last == len(column.elements):
        return column
    elements = column.elements.take(torch.arange(first, last, device=column.values.device))
    return replace(column, values=column.values - first, elements=elements)
