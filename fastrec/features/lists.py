"""What the generators over lists share: any column as lists, their rows, and lists gathered from lists."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import torch

from fastrec.columns import as_column
from fastrec.errors import DataError
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors
from fastrec.keys import Coded
from fastrec.table import Column, Table


def list_of(table: Table, name: str, *, wanted_by: Feature) -> Column:
    """A column as a list column whose first list begins at element 0; one without any value holds missing lists.

    Args:
        table: the rows.
        name: a column of lists, of vectors, or of missing values only.
        wanted_by: the generator, for the error.

    Raises:
        DataError: the column holds something else, naming generator, column and row.
    """
    column = table[name]
    if column.kind == "list":
        return packed(column)
    if column.kind == "vector":
        return of_vectors(column)
    missing = column.is_missing()
    if bool(missing.all()):  # nothing to tell a type by
        missing = missing.to(table.device)
        nothing = as_column(pa.nulls(0), name=name).to(missing.device)
        return Column("list", offsets_of(missing.long() * 0), name=name, missing=missing, elements=nothing)
    raise DataError(
        f"{type(wanted_by).__name__} needs lists, and this column holds {_held(column)}",
        column=name,
        row=int((~missing).nonzero()[0]),
        remedy="Choose a column of lists, or make lists of text by Tokens",
    )


def _held(column: Column) -> str:
    words = {"number": "numbers", "datetime": "times", "opaque": "values of no usable type"}
    return words.get(column.kind) or f"values of type {column.distinct.type}"


def of_vectors(column: Column) -> Column:
    """Vectors as lists of equal length; a missing one is a missing list."""
    missing = column.is_missing()
    lengths = torch.where(missing, 0, column.values.shape[1])
    kept = column.values if column.missing is None else column.values[~missing]
    elements = Column("number", kept.reshape(-1), name=column.name)
    return Column("list", offsets_of(lengths), name=column.name, missing=column.missing, elements=elements)


def packed(column: Column) -> Column:
    """A list column whose first list begins at element 0, and whose last one ends at the last element."""
    first, last = (int(v) for v in column.values[[0, -1]])
    if first == 0 and last == len(column.elements):
        return column
    elements = column.elements.take(torch.arange(first, last, device=column.values.device))
    return replace(column, values=column.values - first, elements=elements, _cache={})


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Where each list begins, and the last one ends: int64 ``[n + 1]`` from lengths ``[n]``."""
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def lengths_of(offsets: torch.Tensor) -> torch.Tensor:
    """The lengths of lists: int64 ``[n]`` from offsets ``[n + 1]``."""
    return offsets[1:] - offsets[:-1]


def rows_of(offsets: torch.Tensor) -> torch.Tensor:
    """The row of every element: int64 ``[elements]``."""
    lengths = lengths_of(offsets)
    return torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)


def runs(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs of neighbouring elements, one after the other.

    Args:
        starts: where each run begins, int64 ``[n]``.
        lengths: how long it is, int64 ``[n]``.

    Returns:
        The offsets of the new lists, int64 ``[n + 1]``, and the place of each of their elements, int64.
    """
    offsets = offsets_of(lengths)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    return offsets, torch.arange(len(shift), device=starts.device) + shift


def coded_elements(column: Column, *, wanted_by: Feature) -> Coded:
    """A list column's elements as keys: codes int64 ``[elements]``, 0 = missing.

    Raises:
        DataError: they are no keys (lists of lists, say), naming generator, column and row.
    """
    try:
        return column.elements.coded()
    except DataError as error:
        row = None if error.row is None else int(torch.searchsorted(column.values, error.row, right=True)) - 1
        raise DataError(
            f"{type(wanted_by).__name__}: its lists hold no plain values",
            column=column.name or None,
            row=row,
            remedy="Choose a column with lists of text, numbers or times",
        ) from error


class FittedOnLists(Fitted):
    """A generator that learns from lists: its inputs have more or fewer entries than there are rows."""

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        if not bool(excluded.any()):
            return self.compute_from(table, state)
        results: Tensors = {}
        patterns, pattern_of = torch.unique(excluded, dim=0, return_inverse=True)
        of_row = pattern_of.to(cells.codes.device)[cells.codes]
        table = table.select(self.inputs)
        for i, pattern in enumerate(patterns):
            rows = (of_row == i).nonzero().squeeze(1)
            made = self.apply(self.finalize(state, ~pattern), self.prepare(state, table.take(rows)))
            for name, values in made.items():
                if name not in results:
                    results[name] = values.new_empty(len(table), *values.shape[1:])
                results[name].index_copy_(0, rows, values)
        return self.wrap(results)
