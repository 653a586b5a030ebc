"""Columns of lists and of vectors, which are not in the packed rows, and their form in a batch.

A batch is ``(x_cat, x_cont, *extras, y)``: for each list column a ``ListBatch``, for each vector column float32
``[b, d]``, in the order of ``list_names`` and then of ``vector_names``. Both are tensors with one entry per row, so
that fastai moves, joins, reorders and detaches them as it does any other.

- List elements are coded as categorical columns are, by the frame's ``Categorify`` (which counts elements, not rows):
  0 = missing or never seen. Without ``Categorify`` they are whole numbers that are codes already.
- A missing list and an empty one hold nothing, and ``missing`` tells them apart; a list of one missing value holds
  one 0.
- Missing vectors, and missing elements of vectors, are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError
from fastrec.table import Coded, Column, ListBatch, Table, Vocab, as_column, column_names
from fastrec.table.read import check_names
from fastrec.tabular.columns import coded_of, training_part
from fastrec.tabular.procs.procs import Categorify


class Extras:
    """List and vector columns of some rows, in a batch's order: name → ``ListBatch`` ``[n]`` or float32 ``[n, d]``."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)
        self._copies: dict[torch.device, Extras] = {}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of a batch of these rows between ``x_cont`` and ``y``."""
        return tuple(self.columns.values())

    def as_lists(self) -> dict[str, list]:
        """Return name → one list of codes, or one numpy vector, for each row."""
        return {n: t.tolist() if isinstance(t, ListBatch) else list(t.cpu().numpy()) for n, t in self.columns.items()}

    def rows(self, start: int, stop: int) -> Extras:
        """Return rows ``start`` up to ``stop``, sharing memory."""
        return self._map(lambda t: t[start:stop])

    def take(self, rows: Tensor) -> Extras:
        """Return the rows at ``rows`` (int64 ``[m]``), copied."""
        return self._map(lambda t: t.index_select(0, rows.to(t.device)))

    def on(self, device: torch.device) -> Extras:
        """Return the rows on another device; the copy is cached for the next call."""
        if all(t.device == device for t in self.tensors):
            return self
        if device not in self._copies:
            self._copies[device] = self._map(lambda t: t.to(device))
        return self._copies[device]

    def clone(self) -> Extras:
        """Copy the rows."""
        return self._map(Tensor.clone)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Extras:
        return Extras({name: change(t) for name, t in self.columns.items()})

    def __getstate__(self) -> dict[str, Any]:
        # A slice would save all rows, and a copy on another device would be saved too.
        return {"columns": self.clone().columns, "_copies": {}}


@dataclass
class ExtraColumns:
    """Which columns hold lists and vectors, and what was learnt of them."""

    lists: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The columns in the order of a batch."""
        return self.lists + self.vectors

    def read(self, frame: Any) -> dict[str, Column]:
        """Read the columns of any frame."""
        check_names(list(column_names(frame)) if self.names else [], self.names)
        return {name: _read(frame, name) for name in self.names}

    def make(
        self, table: Table, categorify: Categorify | None, *, dtype: torch.dtype, fit_rows: int | None = None
    ) -> Extras | None:
        """Prepare the columns of a table's rows; return None if there are no columns.

        Codes and widths are learnt from the first ``fit_rows`` rows. Without ``categorify`` elements are codes already.
        """
        made = {n: _coded_lists(table[n], categorify, dtype=dtype, fit_rows=fit_rows) for n in self.lists}
        for name in self.vectors:
            if fit_rows is not None:
                self.widths[name] = _width_of(table[name], fit_rows)
            if name not in self.widths:
                raise NotFittedError(f"the vectors of column {name!r} were not seen yet", remedy="Fit the frame first")
            made[name] = _vectors(table[name], self.widths[name])
        return Extras(made) if made else None

    def empty(self, dtype: torch.dtype) -> Extras | None:
        """Return the columns of no rows."""
        made: dict[str, Tensor] = {n: ListBatch.of([], dtype=dtype) for n in self.lists}
        made |= {n: torch.zeros((0, self.widths.get(n, 0))) for n in self.vectors}
        return Extras(made) if made else None

    def of_row(self, row: Any, dtype: torch.dtype) -> list[Tensor]:
        """Return a batch's tensors of one prepared row (column → codes or numbers)."""
        lists = [ListBatch.of([None if row[n] is None else list(row[n])], dtype=dtype) for n in self.lists]
        return lists + [torch.as_tensor(np.asarray(row[n], dtype=np.float32))[None] for n in self.vectors]

    def decode(self, extras: Extras, categorify: Categorify | None, name_codes: Callable[[Vocab, Tensor], Any]) -> dict:
        """Return name → one list of values, or one vector, for each row."""
        made = extras.as_lists()
        for name in self.lists if categorify is not None else []:
            column = extras.columns[name]
            made[name] = column.nest(name_codes(categorify.vocab_of(name), column.values))
        return made

    def shorten(self, frame: Any) -> Any:
        """Shorten long lists and vectors of a pandas frame to texts for display."""
        import pandas as pd

        for name in (n for n in self.names if n in frame):
            short = pd.Series([_short(v) for v in frame[name]], index=frame.index, dtype=object)
            frame = frame.assign(**{name: short})
        return frame


def _read(frame: Any, name: str) -> Column:
    try:
        return Table.read(frame, [name])[name]
    except DataError as error:
        row = _mixed_row(frame[name])
        if row is None:
            raise
        remedy = "Make all elements strings, or all of them numbers"
        raise DataError("holds lists of values of several types", column=name, row=row, remedy=remedy) from error


def _mixed_row(values: Iterable[Any]) -> int | None:
    """Return the first row whose list has an element of another type than those before it."""
    first = None
    for row, value in enumerate(values):
        for element in () if isinstance(value, str | bytes) or not isinstance(value, Iterable) else value:
            number = isinstance(element, Number) and not isinstance(element, bool)
            kind = "number" if number else type(element).__name__
            if element is not None and element == element and kind != (first := first or kind):
                return row
    return None


def _short(value: Any) -> Any:
    if value is None or isinstance(value, str) or not hasattr(value, "__len__"):
        return value
    words = [f"{v:.4g}" if isinstance(v, float | np.floating) else str(v) for v in value[: limits.SHOWN_ENTRIES]]
    return f"[{', '.join(words)}{f', … ({len(value)})' if len(value) > limits.SHOWN_ENTRIES else ''}]"


def _first(rows: Tensor) -> int | None:
    found = rows.nonzero()
    return int(found[0]) if len(found) else None


def _coded_lists(
    column: Column, categorify: Categorify | None, *, dtype: torch.dtype, fit_rows: int | None
) -> ListBatch:
    name, lists = column.name, column.as_lists()
    if lists is None:
        problem = f"is among list_names and holds {column.held}, no lists"
        remedy = "Name it in cat_names or cont_names, or split its text into lists first"
        raise DataError(problem, column=name, row=_first(~column.is_missing()), remedy=remedy)
    offsets, missing = lists.values, lists.missing
    missing = missing if missing is not None and bool(missing.any()) else None
    elements = as_column(lists.elements, name=name)
    try:
        if categorify is None:
            values = torch.where(elements.is_missing(), 0, _whole(elements)).to(dtype)
        else:
            coded = coded_of(elements)
            if fit_rows is not None:
                categorify.fit(training_part(elements, coded, int(offsets[fit_rows])))
            every = Coded(torch.arange(coded.size, device=coded.codes.device), coded.keys)
            values = categorify.encode(name, every).to(dtype)[coded.codes]
    except DataError as error:
        at = error.row if error.row is not None else _first(~elements.is_missing())
        row = None if at is None else int(torch.searchsorted(offsets, at, right=True)) - 1
        problem = error.problem.replace("holds", "holds lists of", 1)
        raise DataError(problem, column=error.column, row=row, remedy=error.remedy) from error
    return ListBatch(values, offsets, missing)


def _whole(elements: Column) -> Tensor:
    if elements.kind == "category":
        problem = "holds values that are no codes yet"
        remedy = "Add Categorify to procs"
        raise DataError(problem, column=elements.name, row=_first(elements.values > 0), remedy=remedy)
    if elements.kind == "number" and elements.values.is_floating_point():  # whole numbers that met a missing one
        whole = elements._as_whole(elements.is_missing())
        return elements.integer() if whole is None else whole
    return elements.integer()


def _width_of(column: Column, rows: int) -> int:
    if column.kind in ("list", "vector"):
        if column.kind == "vector" or not bool(column.is_missing()[:rows].all()):
            return column.vector_width(rows)
    elif not bool(column.is_missing().all()):
        raise _no_vectors(column)
    raise DataError("holds no vector in any training row", column=column.name, remedy="Leave it out of vector_names")


def _no_vectors(column: Column) -> DataError:
    problem = f"is among vector_names and holds {column.held}, no vectors"
    remedy = "Name it in cat_names or cont_names"
    return DataError(problem, column=column.name, row=_first(~column.is_missing()), remedy=remedy)


def _vectors(column: Column, width: int) -> Tensor:
    missing = column.is_missing()
    if bool(missing.all()):
        return torch.zeros((len(column), width), device=missing.device)
    if column.kind not in ("list", "vector"):
        raise _no_vectors(column)
    if not width:
        problem, remedy = "holds a vector of 0 numbers, and there is nothing in it to learn from", "Leave it out"
        raise DataError(problem, column=column.name, row=_first(~missing), remedy=remedy)
    made = column.vectors(width).float().nan_to_num(0.0, torch.inf, -torch.inf)
    return made.masked_fill_(missing[:, None], 0.0)  # a missing element counts as a missing vector does
