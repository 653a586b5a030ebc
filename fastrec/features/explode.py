"""``explode``: one row per element of a row's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.convert import as_column
from fastrec.errors import DataError
from fastrec.table import Column, Table


def explode(
    source: Any,
    columns: Sequence[str] | Mapping[str, str],
    *,
    sep: str = "|",
    position: str | None = "position",
    row: str | None = None,
    numbers: Sequence[str] = (),
    file: str | None = None,
) -> Table:
    """One row per element of list columns, or of text columns that hold lists (``'a|b|c'``), several of equal length at once.

    Args:
        source: anything that ``Table.read`` takes.
        columns: the list columns; as a mapping, the name that each column's elements get.
        sep: what separates the elements of a text.
        position: the name of a new column with each element's place in its list, from 1 (int64); None: none.
        row: the name of a new column with the number of the row that each element comes from (int64); None: none.
        numbers: the columns whose elements are to be numbers (float64).
        file: the file that the rows come from, for messages.

    Returns:
        A table of the other columns, repeated, with one element per row. A row with missing or empty lists gives none.

    Raises:
        DataError: lists of one row differ in length, or an element that is to be a number is not; naming column and row.

    Example:
        >>> from fastrec.features import explode
        >>> rows = explode({"id": [7, 8], "items": ["a|b", "c"]}, {"items": "item"})
        >>> rows.to_arrow().to_pydict()
        {'id': [7, 7, 8], 'item': ['a', 'b', 'c'], 'position': [1, 2, 1]}
    """
    table = source if isinstance(source, Table) else Table.read(source)
    names = dict(columns) if isinstance(columns, Mapping) else {c: c for c in columns}
    lists = {name: _as_list(table[name], sep) for name in names}
    lengths: torch.Tensor | None = None
    first = ""
    for name, column in lists.items():
        own = column.values[1:] - column.values[:-1]
        if lengths is None:
            lengths, first = own, name
        elif not torch.equal(own, lengths):
            bad = int((own != lengths).nonzero()[0])
            raise DataError(
                f"has {int(own[bad])} elements where {first!r} has {int(lengths[bad])}",
                file=file,
                column=name,
                row=bad,
                remedy="Give the row lists of equal length, or drop it",
            )
    assert lengths is not None
    device = lengths.device
    origin = torch.repeat_interleave(torch.arange(len(table), device=device), lengths)
    result: dict[str, Any] = {n: c for n, c in table.select(n for n in table.names if n not in names).take(origin)._columns.items()}
    for name, column in lists.items():
        elements = column.elements
        if name in numbers:
            elements = _as_number(elements, origin, name, file)
        result[names[name]] = replace(elements, name=names[name], _cache={})
    if position is not None:
        start = torch.zeros(len(table), dtype=torch.int64, device=device)
        start[1:] = torch.cumsum(lengths, 0)[:-1]
        result[position] = torch.arange(len(origin), device=device) - start[origin] + 1
    if row is not None:
        result[row] = origin
    return Table(result)


def _as_list(column: Column, sep: str) -> Column:
    """A list column, or a text column split; missing gives an empty list."""
    if column.kind == "list":
        return column
    if column.kind != "category" or not (pa.types.is_large_string(column.distinct.type) or len(column.distinct) == 0):
        raise DataError("holds neither lists nor text", column=column.name, remedy="Choose a column of lists or of separated text")
    # Split each distinct text once; equal lists are common (the same list is shown again).
    split = pc.split_pattern(column.distinct.cast(pa.large_string()), sep)
    empty = pc.equal(column.distinct, "")
    split = pc.if_else(empty, pa.scalar([], split.type), split) if pc.any(empty).as_py() else split
    known = as_column(pa.concat_arrays([pa.array([[]], split.type), split]), name=column.name)
    return known.to(column.values.device).take(column.values.long())


def _as_number(elements: Column, origin: torch.Tensor, name: str, file: str | None) -> Column:
    if elements.kind == "number":
        return replace(elements, values=elements.number(), missing=None, _cache={})
    distinct = elements.distinct
    # A cast of the whole array would stop at the first bad text without saying where it is.
    usable = pc.match_substring_regex(distinct, r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")
    good = np.array(usable, dtype=bool)
    values = np.full(len(distinct) + 1, np.nan)
    values[1:][good] = pc.cast(pc.utf8_trim_whitespace(distinct.filter(usable)), pa.float64()).to_numpy(zero_copy_only=False)
    bad_codes = torch.from_numpy(np.concatenate([[False], ~good])).to(elements.values.device)
    bad = bad_codes[elements.values.long()].nonzero()
    if len(bad):
        at = int(bad[0])
        text = distinct[int(elements.values[at]) - 1].as_py()
        raise DataError(
            f"{text!r} is not a number", file=file, column=name, row=int(origin[at]), remedy="Mend the value, or drop the row"
        )
    return Column("number", torch.from_numpy(values).to(elements.values.device)[elements.values.long()], name=name)
