"""``explode``: one row per element of a row's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.columns import as_column
from fastrec.errors import DataError
from fastrec.features.base import as_list
from fastrec.table import Column, Table


def explode(
    source: Any,
    columns: str | Sequence[str] | Mapping[str, str],
    *,
    sep: str = "|",
    position: str | None = "position",
    row: str | None = None,
    numbers: Sequence[str] = (),
    file: str | None = None,
) -> Table:
    """One row per element of list columns, or of text columns that hold lists (``'a|b|c'``), several columns at once.

    Args:
        source: anything that ``Table.read`` takes.
        columns: the list column(s); as a mapping, the name that each column's elements get.
        sep: what separates the elements of a text.
        position: the name of a new column with each element's place in its list, from 1 (int64); None: none.
        row: the name of a new column with the number of the row that each element comes from (int64); None: none.
        numbers: the columns, by their old names, whose elements are to be numbers (float64).
        file: the file that the rows come from, for messages.

    Returns:
        A table of the other columns, repeated, with one element per row. A row with missing or empty lists gives none.

    Raises:
        DataError: lists of one row differ in length, or an element that is to be a number is not, naming column and
            row; or two columns of the result would have one name.

    Example:
        >>> from fastrec.features import explode
        >>> rows = explode({"id": [7, 8], "items": ["a|b", "c"]}, {"items": "item"})
        >>> rows.to_arrow().to_pydict()
        {'id': [7, 7, 8], 'item': ['a', 'b', 'c'], 'position': [1, 2, 1]}
    """
    table = source if isinstance(source, Table) else Table.read(source)
    names = dict(columns) if isinstance(columns, Mapping) else {c: c for c in as_list(columns)}
    _check_names(table, names, numbers, [n for n in (position, row) if n is not None])
    lists = {name: _as_list(table[name], sep, file) for name in names}
    lengths = _common_lengths(lists, file)
    origin = torch.repeat_interleave(torch.arange(len(table), device=lengths.device), lengths)
    kept = table.drop(names).take(origin)
    result: dict[str, Any] = {n: kept[n] for n in kept.names}
    for name, column in lists.items():
        elements = column.elements
        if name in numbers:
            elements = _as_number(elements, origin, name, file)
        result[names[name]] = replace(elements, name=names[name], _cache={})
    if position is not None:
        start = torch.cumsum(lengths, 0) - lengths
        result[position] = torch.arange(len(origin), device=lengths.device) - start[origin] + 1
    if row is not None:
        result[row] = origin
    return Table(result)


def _check_names(table: Table, names: Mapping[str, str], numbers: Sequence[str], made: Sequence[str]) -> None:
    if not names:
        raise DataError("explode was given no list columns", remedy="Name one or more")
    unknown = [n for n in as_list(numbers) if n not in names]
    if unknown:
        raise DataError(
            "is to hold numbers, but is not among the list columns",
            column=unknown[0],
            remedy="Use the column's old name",
        )
    result = [*(n for n in table.names if n not in names), *names.values(), *made]
    twice = sorted({n for n in result if result.count(n) > 1})
    if twice:
        raise DataError("two columns of the result have this name", column=twice[0], remedy="Choose another name")


def _common_lengths(lists: Mapping[str, Column], file: str | None) -> torch.Tensor:
    """The lengths (int64 ``[n]``) that the lists of every column have."""
    lengths, first = None, ""
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
    return lengths


def _as_list(column: Column, sep: str, file: str | None) -> Column:
    """A list column, or a text column split; missing gives an empty list."""
    if column.kind == "list":
        return column
    if bool(column.is_missing().all()):  # nothing to tell the type by
        nothing = as_column(pa.array([], pa.large_string()), name=column.name)
        offsets = torch.zeros(len(column) + 1, dtype=torch.int64, device=column.is_missing().device)
        return Column("list", offsets, name=column.name, elements=nothing.to(offsets.device))
    if column.kind != "category" or not pa.types.is_large_string(column.distinct.type):
        raise DataError(
            "holds neither lists nor text",
            file=file,
            column=column.name,
            row=int((~column.is_missing()).nonzero()[0]),
            remedy="Choose a column of lists or of separated text",
        )
    # Split each distinct text once; equal lists are common (the same list is shown again).
    split = pc.split_pattern(column.distinct, sep)
    empty = pc.equal(column.distinct, "")
    split = pc.if_else(empty, pa.scalar([], split.type), split) if pc.any(empty).as_py() else split
    known = as_column(pa.concat_arrays([pa.array([[]], split.type), split]), name=column.name)
    return known.to(column.values.device).take(column.values.long())


def _as_number(elements: Column, origin: torch.Tensor, name: str, file: str | None) -> Column:
    if elements.kind != "category" or not pa.types.is_large_string(elements.distinct.type):
        return Column("number", elements.number(), name=name)
    distinct = elements.distinct
    # A cast of the whole array would stop at the first bad text without saying where it is.
    usable = pc.match_substring_regex(distinct, r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")
    good = np.array(usable, dtype=bool)
    values = np.full(len(distinct) + 1, np.nan)
    values[1:][good] = [float(text) for text in distinct.filter(usable).to_pylist()]
    bad_codes = torch.from_numpy(np.concatenate([[False], ~good])).to(elements.values.device)
    bad = bad_codes[elements.values.long()].nonzero()
    if len(bad):
        at = int(bad[0])
        text = distinct[int(elements.values[at]) - 1].as_py()
        raise DataError(
            f"{text!r} is not a number",
            file=file,
            column=name,
            row=int(origin[at]),
            remedy="Mend the value, or drop the row",
        )
    return Column("number", torch.from_numpy(values).to(elements.values.device)[elements.values.long()], name=name)
