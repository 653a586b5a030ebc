"""Names of a generator's sources, and columns as numbers or as values to order by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features.selectors import Selector
from fastrec.table import Column, Table


def as_columns(tensors: Mapping[str, torch.Tensor]) -> dict[str, Column]:
    """Wrap plain tensors as number columns."""
    return {n: Column("number", t, name=n) for n, t in tensors.items()}


def names_of(source: Any) -> list[str]:
    """Return the column names of a source: a name, a selector's choice, or a generator's outputs."""
    if isinstance(source, str):
        return [source]
    if isinstance(source, Selector):
        return source.names
    if not hasattr(type(source), "outputs"):  # no generator
        raise no_column(source)
    return source.outputs


def no_column(source: Any) -> DataError:
    """Return the error about a source that names no column."""
    return DataError(f"{source!r} is no column's name", remedy="Name columns by text, or give generators")


def name_of(source: Any) -> str:
    """Return the one column name of a source."""
    names = names_of(source)
    if len(names) != 1:
        raise DataError(f"{source!r} makes {len(names)} columns where one is needed", remedy="Choose one by its name")
    return names[0]


def as_list(value: Any) -> list[Any]:
    """Return one thing or several as a list; None gives the empty list, a selector the columns that it chose."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    things = list(value) if isinstance(value, list | tuple) else [value]
    if not any(isinstance(t, Selector) for t in things):
        return things
    # A selector without a choice stays itself until the training rows are seen.
    return list(dict.fromkeys(n for t in things for n in (t.names_ or [t] if isinstance(t, Selector) else [t])))


def number_of(table: Table, name: str, *, wanted_by: object) -> torch.Tensor:
    """Return a column as float64 ``[n]``, NaN where missing; an error names the generator."""
    column = table[name]
    try:
        return column.number()
    except DataError as error:
        raise DataError(
            f"{type(wanted_by).__name__}: {error.problem}", column=name, row=error.row, remedy=error.remedy
        ) from error


def masked(name: str, values: torch.Tensor, missing: torch.Tensor | None, kind: str = "number", **parts: Any) -> Column:
    """Return a column with a mask, and numbers of 0 under it; without one if nothing is missing."""
    if missing is None or not bool(missing.any()):
        return Column(kind, values, name=name, **parts)
    values = values.masked_fill(missing, 0) if kind == "number" else values
    return Column(kind, values, name=name, missing=missing, **parts)


def comparable(table: Table, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values ``[n]`` to compare, and bool ``[n]`` where one is missing (the value there is undefined).

    Integers and times are int64, exact to 64 bits; others are float64.
    """
    column = table[name].plain()
    if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
        return column.integer(), column.is_missing()
    values = column.number()
    return values, values.isnan()


def order_keys(table: Table, names: Sequence[str]) -> list[torch.Tensor]:
    """Return order columns as sortable tensors: integers and times exactly, floats as they are."""
    if len(table) > limits.REQUEST_ROWS:  # large: computing again costs less than memory
        return [_order_key(table, name) for name in names]
    return [table.remember(("order", n), [n], partial(_order_key, table, n)) for n in names]


def _order_key(table: Table, name: str) -> torch.Tensor:
    values, missing = comparable(table, name)
    if bool(missing.any()):
        raise DataError(
            "an order value is missing", column=name, row=int(missing.nonzero()[0]), remedy="Fill or drop such rows"
        )
    return values


def given_rows(df: Any) -> Any:
    """Return the frame; a path, a folder or a pattern of files is read into a pandas frame."""
    return Table.read(df).to_pandas() if isinstance(df, str | Path) else df


def check_choices(generator: object, what: str, chosen: Any, known: Sequence[Any]) -> None:
    """Refuse options that are not among the known ones.

    Raises:
        DataError: naming the generator, the option's kind (``what``) and the first unknown choice.
    """
    unknown = [c for c in as_list(chosen) if c not in known]
    if unknown:
        raise DataError(
            f"{type(generator).__name__} has no {what} {unknown[0]!r}",
            remedy=f"Use one of {', '.join(map(repr, known))}",
        )
