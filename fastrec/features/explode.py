"""Lists turned into rows, and a group's earlier rows collected into lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core.imports import library_of
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns
from fastrec.features._engine.order import EarlierEvents, earlier_events, run_begins
from fastrec.features.base import Cols, Context, Feature, Grouped, Names, Parameters
from fastrec.features.columns import as_list
from fastrec.segments.groups import run_starts
from fastrec.table import Column, Table, as_column, attach, column_names, select_columns, take_rows
from fastrec.table.column import lengths_of, of_vectors, offsets_of, packed
from fastrec.table.read import check_names


def explode(
    source: Any,
    columns: Names | Mapping[str, str],
    *,
    sep: str = "|",
    position: str | None = "position",
    row: str | None = None,
    numbers: Sequence[str] = (),
    file: str | None = None,
) -> Table:
    """Return a table with one row per element of list columns; see ``Explode``.

    Args:
        source: anything that ``Table.read`` takes.
        columns: the ``cols`` of ``Explode``.
        sep, position, row, numbers: as for ``Explode``.
        file: the file of the rows, for messages.

    Returns:
        The other columns, repeated, with one element per row. A row with missing or empty lists gives none.

    Raises:
        DataError: lists of a row differ in length, an element of ``numbers`` is no number, or a name is repeated.

    Example:
        >>> from fastrec.features import explode
        >>> rows = explode({"id": [7, 8], "items": ["a|b", "c"]}, {"items": "item"})
        >>> rows.to_arrow().to_pydict()
        {'id': [7, 7, 8], 'item': ['a', 'b', 'c'], 'position': [1, 2, 1]}
    """
    try:
        return Explode(columns, sep=sep, position=position, row=row, numbers=numbers).transform(Table.read(source))
    except DataError as error:
        raise error.of_file(file) from None


class Explode(Parameters):
    """Transformer to one row per element of list columns; other columns (and a pandas index) are repeated.

    Rows with missing or empty lists are dropped. As the number of rows changes, it cannot be part of a FeatureSet; take
    ``y`` from its result.

    Args:
        cols: the columns of lists, of vectors, or of text with lists (``'a|b|c'``); or column → name of its elements.
            The lists of a row must have equal lengths.
        sep: the separator of elements in text.
        position: the name of a new column with each element's place in its list, from 1 (int64); None: no column.
        row: the name of a new column with each element's row number (int64); None: no column.
        numbers: the columns (old names) whose elements are parsed as float64.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Explode
        >>> df = pd.DataFrame({"id": [7, 8], "items": ["a|b", "c"]})
        >>> Explode({"items": "item"}).fit_transform(df)[["id", "item", "position"]].values.tolist()
        [[7, 'a', 1], [7, 'b', 2], [8, 'c', 1]]
    """

    def __init__(
        self,
        cols: Names | Mapping[str, str],
        *,
        sep: str = "|",
        position: str | None = "position",
        row: str | None = None,
        numbers: Sequence[str] = (),
    ) -> None: ...

    def fit(self, df: Any, y: Any = None) -> Explode:
        """Check that the columns exist; ``y`` is ignored."""
        names = column_names(df)
        self.get_feature_names_out(names)
        self.feature_names_in_ = names
        return self

    def fit_transform(self, df: Any, y: Any = None) -> Any:
        """Fit, then transform."""
        return self.fit(df).transform(df)

    def transform(self, df: Any) -> Any:
        """Return a frame of the same library with one row per element; fitting is not needed."""
        self.get_feature_names_out(column_names(df))
        names = self._names()
        origin, made = _elements(Table.read(df, list(names)), names, self.sep, self.numbers)
        made |= _places(origin, self.position, self.row)
        # A polars frame without columns has no rows, unless its columns were dropped.
        others = [n for n in column_names(df) if n not in names]
        frame = df.drop(list(names)) if library_of(df) == "polars" else select_columns(df, others)
        return attach(take_rows(frame, origin), made)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """Return the result's columns for a frame with the columns ``input_features``; None: the columns of ``fit``."""
        given = list(getattr(self, "feature_names_in_", []) if input_features is None else input_features)
        names = self._names()
        made = [n for n in (self.position, self.row) if n is not None]
        check_names(given, list(names), file=None)
        if not names:
            raise DataError("explode was given no list columns", remedy="Name one or more")
        unknown = [n for n in as_list(self.numbers) if n not in names]
        if unknown:
            problem = "to hold numbers, but not among the list columns"
            raise DataError(problem, column=unknown[0], remedy="Use the old name")
        result = [*(n for n in given if n not in names), *names.values(), *made]
        twice = sorted({n for n in result if result.count(n) > 1})
        if twice:
            raise DataError("two columns of the result have this name", column=twice[0], remedy="Choose another name")
        return result

    def _names(self) -> dict[str, str]:
        return dict(self.cols) if isinstance(self.cols, Mapping) else {c: c for c in as_list(self.cols)}


def _elements(
    table: Table, names: Mapping[str, str], sep: str, numbers: Sequence[str]
) -> tuple[torch.Tensor, dict[str, Column]]:
    """Return each element's row number and the columns of elements."""
    found = run_parallel(lambda name: _as_list(table[name], sep), names, rows=len(table))
    lists = dict(zip(names, found, strict=True))
    first, *others = names
    lengths = lengths_of(lists[first].values)
    for name in others:
        own = lengths_of(lists[name].values)
        bad = (own != lengths).nonzero()
        if len(bad):
            row = int(bad[0])
            problem = f"has {int(own[row])} elements where {first!r} has {int(lengths[row])}"
            remedy = "Give the row lists of equal length, or drop it"
            raise DataError(problem, column=name, row=row, remedy=remedy)
    origin = torch.repeat_interleave(torch.arange(len(table), device=lengths.device), lengths)
    made = {}
    for name, column in lists.items():
        elements = column.elements
        if name in as_list(numbers):
            elements = _as_number(elements, origin, name)
        made[names[name]] = replace(elements, name=names[name])
    return origin, made


def _places(origin: torch.Tensor, position: str | None, row: str | None) -> dict[str, Column]:
    made = {}
    if position is not None:
        places = torch.arange(len(origin), device=origin.device)
        made[position] = Column("number", places - run_starts(run_begins(origin)) + 1, name=position)
    if row is not None:
        made[row] = Column("number", origin, name=row)
    return made


def _as_list(column: Column, sep: str) -> Column:
    """Return a column as lists, with text split and missing values as empty lists."""
    if column.kind == "list":
        return packed(column)
    if column.kind == "vector":
        return of_vectors(column)
    if bool(column.is_missing().all()):  # of unknown type
        nothing = as_column(pa.array([], pa.large_string()), name=column.name)
        offsets = offsets_of(column.is_missing().long() * 0)
        return Column("list", offsets, name=column.name, elements=nothing.to(offsets.device))
    if column.kind != "category" or not pa.types.is_large_string(column.distinct.type):
        row, remedy = int((~column.is_missing()).nonzero()[0]), "Choose a column of lists or of separated text"
        raise DataError("holds neither lists nor text", column=column.name, row=row, remedy=remedy)
    # Each distinct text is split once: logs repeat lists.
    split = pc.split_pattern(column.distinct, sep)
    empty = pc.equal(column.distinct, "")
    split = pc.if_else(empty, pa.scalar([], split.type), split) if pc.any(empty).as_py() else split
    known = as_column(pa.concat_arrays([pa.array([[]], split.type), split]), name=column.name)
    return known.to(column.values.device).take(column.values.long())


def _as_number(elements: Column, origin: torch.Tensor, name: str) -> Column:
    if elements.kind != "category" or not pa.types.is_large_string(elements.distinct.type):
        return Column("number", elements.number(), name=name)
    distinct = elements.distinct
    # A cast of the whole array would not give the row of a bad text.
    usable = pc.match_substring_regex(distinct, r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")
    good = np.array(usable, dtype=bool)
    values = np.full(len(distinct) + 1, np.nan)
    values[1:][good] = [float(text) for text in distinct.filter(usable).to_pylist()]
    bad_codes = torch.from_numpy(np.concatenate([[False], ~good])).to(elements.values.device)
    bad = bad_codes[elements.values.long()].nonzero()
    if len(bad):
        at = int(bad[0])
        text = distinct[int(elements.values[at]) - 1].as_py()
        row, remedy = int(origin[at]), "Correct it or drop the row"
        raise DataError(f"{text!r} is not a number", column=name, row=row, remedy=remedy)
    return Column("number", torch.from_numpy(values).to(elements.values.device)[elements.values.long()], name=name)


class Collect(OfColumns, Grouped):
    """List of the values of events strictly before the row in its group, latest last (ties by row number).

    Lists of several columns have equal lengths: a missing value is a missing element. The list is empty without earlier
    events or without a group.

    Args:
        cols: columns of numbers, times or text; or, without ``table``, generators.
        by: the columns of the group, in rows and log.
        order: the order columns of events and rows; None (only without ``table``): the order of the frame.
        max_len: the largest length of a list.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Collect
        >>> df = pd.DataFrame({"user": [1, 1, 2, 1], "t": [1, 2, 2, 3], "item": ["a", "b", "c", "d"]})
        >>> [list(v) for v in Collect("item", by="user", order="t").fit_transform(df)["past_item__user"]]
        [[], ['a'], [], ['a', 'b']]
    """

    own_row, _reads, _of_log = False, ("by", "order"), ("cols",)
    _least: ClassVar = {"max_len": 1}

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        order: Names | None = None,
        max_len: int = 20,
        table: str | None = None,
        name: str = "past",
    ) -> None:
        if table is not None and not as_list(order):
            raise DataError("Collect needs an order to compare rows with a log", remedy="Name its columns: order=")
        if table is not None and any(isinstance(c, Feature) for c in as_list(cols)):
            raise DataError(f"Collect: generators make no columns of the table {table!r}", remedy="Name its columns")

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        log = None if self.table is None else context.table(self.table, wanted_by="Collect")
        source = table if log is None else log
        for col in self.columns:
            column = source[col]
            if column.kind not in ("number", "datetime", "category"):
                known = (~column.is_missing()).nonzero()
                problem = f"Collect: holds {column.kind} values, which cannot be the elements of a list"
                row, remedy = int(known[0]) if len(known) else None, "Choose a column of numbers, times or text"
                raise DataError(problem, column=col, row=row, remedy=remedy)
        offsets, events = self._lists(earlier_events(table, log, as_list(self.by), as_list(self.order)))
        names = {self._name(c): c for c in self.columns}
        return {n: Column("list", offsets, name=n, elements=source[c].take(events)) for n, c in names.items()}

    def _lists(self, found: EarlierEvents) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lists' offsets (int64 ``[n + 1]``) and the row numbers of their events."""
        lengths = torch.where(found.last >= 0, found.last - found.start + 1, 0).clamp_max(self.max_len)
        offsets = offsets_of(lengths)
        # A list ends at ``last``; places grow by one inside it.
        shift = torch.repeat_interleave(found.last + 1 - offsets[1:], lengths)
        return offsets, found.events[shift + torch.arange(len(shift), device=shift.device)]
