"""What generators read: names of sources, and columns as numbers or as values to order by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features.selectors import Selector
from fastrec.table import Column, Table

if TYPE_CHECKING:
    from fastrec.features.base import Feature, Tensors


def as_columns(tensors: Tensors) -> dict[str, Column]:
    """Plain tensors as number columns."""
    return {n: Column("number", t, name=n) for n, t in tensors.items()}


def names_of(source: str | Feature | Selector) -> list[str]:
    """The column names that a source stands for: itself, what a selector chose, or what a generator makes.

    Raises:
        DataError: it is something else.
    """
    if isinstance(source, str):
        return [source]
    if isinstance(source, Selector):
        return source.names
    if not hasattr(type(source), "outputs"):  # no generator
        raise no_column(source)
    return source.outputs


def no_column(source: Any) -> DataError:
    """The error about what stands where a column should be named."""
    return DataError(f"{source!r} is no column's name", remedy="Name columns by text, or give generators")


def name_of(source: str | Feature) -> str:
    """The one column name that a source stands for.

    Raises:
        DataError: the generator makes several columns.
    """
    names = names_of(source)
    if len(names) != 1:
        raise DataError(f"{source!r} makes {len(names)} columns where one is needed", remedy="Choose one by its name")
    return names[0]


def as_list(value: Any) -> list[Any]:
    """A list from one thing or several; None gives the empty list, a selector the columns that it chose."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    things = list(value) if isinstance(value, list | tuple) else [value]
    if not any(isinstance(t, Selector) for t in things):
        return things
    # An open selector stands for itself until the training rows are seen.
    found = [n for t in things for n in (t.names_ or [t] if isinstance(t, Selector) else [t])]
    return list(dict.fromkeys(found))


def number_of(table: Table, name: str, *, wanted_by: Feature) -> torch.Tensor:
    """A column as float64 ``[n]``, NaN where missing, with the generator's name in the error if it is none."""
    column = table[name]
    try:
        return column.number()
    except DataError as error:
        raise DataError(
            f"{type(wanted_by).__name__}: {error.problem}", column=name, row=error.row, remedy=error.remedy
        ) from error


def comparable(table: Table, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A column to compare values by: integers and times as int64, exact to 64 bits, others as float64.

    Returns:
        The values ``[n]`` and bool ``[n]``, True where one is missing (the value there means nothing).
    """
    column = table[name].plain()
    if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
        return column.integer(), column.is_missing()
    values = column.number()
    return values, values.isnan()


def order_keys(table: Table, names: Sequence[str]) -> list[torch.Tensor]:
    """Order columns as sortable tensors: integers and times exactly, floats as they are.

    Raises:
        DataError: an order value is missing: it would have no place in time.
    """
    if len(table) > limits.REQUEST_ROWS:  # of larger tables it takes less time than others' memory is worth
        return [_order_key(table, name) for name in names]
    return [table.remember(("order", n), [n], partial(_order_key, table, n)) for n in names]


def _order_key(table: Table, name: str) -> torch.Tensor:
    values, missing = comparable(table, name)
    if bool(missing.any()):
        raise DataError(
            "an order value is missing",
            column=name,
            row=int(missing.nonzero()[0]),
            remedy="Fill or drop such rows first",
        )
    return values


def given_rows(df: Any) -> Any:
    """The rows that were given; of a path, a folder or a pattern of files what is read there, as a pandas frame."""
    return Table.read(df).to_pandas() if isinstance(df, str | Path) else df
