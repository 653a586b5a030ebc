"""Base of the generators over lists."""

from __future__ import annotations

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors
from fastrec.table import Coded, Column, Table, as_column
from fastrec.table.list_columns import of_vectors, packed
from fastrec.table.offsets import offsets_of


def list_of(table: Table, name: str, *, wanted_by: Feature) -> Column:
    """Return a column as a list column whose first list begins at element 0; no values: missing lists.

    Args:
        table: the rows.
        name: a column of lists, of vectors, or of missing values only.
        wanted_by: the generator, for the error.
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


def coded_elements(column: Column, *, wanted_by: Feature) -> Coded:
    """Code a list column's elements as keys: int64 ``[elements]``, 0 = missing."""
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
    """Generator that learns from lists: its inputs have more or fewer entries than rows."""

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        # Some decompose a matrix: what was just learned is not made again.
        fit = self.fit_ if state is self.state_ and self.fit_ is not None else self.finalize(state)
        return self.wrap(self.apply(fit, self.prepare(state, table)))

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
