"""Input columns of generators: selectors, names, and conversion to tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError, refuse
from fastrec.table import Column, Table

# Selectors in place of column names. ``fit`` resolves them on the training rows. They never choose targets, weights,
# fold columns or the set's key.


class Selector:
    """Columns chosen by type or name when a generator is fitted.

    Combine selectors and names by ``|``, ``&`` and ``-``: ``number() - ['price']``.
    """

    def __init__(self, *parts: Selector, **how: Any) -> None:
        self.parts, self.how = parts, how
        self.names_: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """The chosen columns, in the frame's order; NotFittedError before fitting."""
        if self.names_ is None:
            problem = f"which columns {self!r} stands for is known once the training rows were seen"
            raise NotFittedError(problem, remedy="Call fit or fit_transform first")
        return self.names_

    def resolve(self, table: Table, excluded: Collection[str]) -> None:
        """Choose among the table's columns except ``excluded``; raise DataError if none matches."""
        chosen = self.choose(table)
        self.names_ = [n for n in table.names if n in chosen and n not in excluded]
        if not self.names_:
            problem = f"no column is chosen by {self!r}; there are {', '.join(map(repr, table.names)) or 'none'}"
            raise DataError(problem, remedy="Choose otherwise, or name the columns")

    def choose(self, table: Table) -> set[str]:
        """Return the names of the matching columns."""
        if self.parts:
            a, b = (part.choose(table) for part in self.parts)
            return {"|": a | b, "&": a & b, "-": a - b}[self.how["what"]]
        if self.how["what"] == "columns":
            return {n for n in self.how["listed"] if table[n] is not None}  # raises for an absent name
        return {n for n in table.names if self._fits(table, n)}

    def _fits(self, table: Table, name: str) -> bool:
        column, how = table[name], self.how
        if how["what"] == "matching":
            return re.search(how["pattern"], name) is not None
        is_bool = column.kind == "number" and column.values.dtype == torch.bool
        if how["what"] == "temporal":
            return column.kind == "datetime"
        if how["what"] == "number":
            return column.kind == "number" and not is_bool
        whole = how["integers"] and column.kind == "number" and not column.values.is_floating_point()
        if not (column.kind == "category" or is_bool or whole):
            return False
        low, high = how["min_card"], how["max_card"]
        if low is None and high is None:  # coding a long column is slow
            return True
        count = column.coded().size - 1
        return (low is None or count >= low) and (high is None or count <= high)

    def __or__(self, other: Selector | str | Sequence[str]) -> Selector:
        return Selector(self, _as_selector(other), what="|")

    def __and__(self, other: Selector | str | Sequence[str]) -> Selector:
        return Selector(self, _as_selector(other), what="&")

    def __sub__(self, other: Selector | str | Sequence[str]) -> Selector:
        return Selector(self, _as_selector(other), what="-")

    def config(self) -> dict[str, Any]:
        """Return the selector and its chosen names as JSON values."""
        return {"how": self.how, "names": self.names_, "parts": [part.config() for part in self.parts]}

    def __repr__(self) -> str:
        if self.parts:
            return f"({self.parts[0]!r} {self.how['what']} {self.parts[1]!r})"
        if self.how["what"] == "columns":
            return repr(self.how["listed"])
        given = {n: v for n, v in self.how.items() if n != "what" and v not in (None, False)}
        shown = repr(given["pattern"]) if "pattern" in given else ", ".join(f"{n}={v!r}" for n, v in given.items())
        return f"{self.how['what']}({shown})"


def category(*, min_card: int | None = None, max_card: int | None = None, integers: bool = False) -> Selector:
    """Select columns of text, categories and booleans.

    Args:
        min_card: the least number of distinct values (without missing) in the training rows.
        max_card: the largest such number.
        integers: select columns of integers (ids and codes) too.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode, category
        >>> df = pd.DataFrame({"city": ["x", "y", "x"], "sex": ["f", "f", "f"], "age": [1.0, 2.0, 3.0]})
        >>> CountEncode(category(min_card=2)).fit_transform(df).columns.tolist()
        ['city', 'sex', 'age', 'count_city']
    """
    return Selector(what="category", min_card=min_card, max_card=max_card, integers=integers)


def number() -> Selector:
    """Select columns of numbers, without booleans.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupRank, number
        >>> df = pd.DataFrame({"list": ["a", "a"], "price": [3.0, 2.0], "age": [1, 2]})
        >>> GroupRank(number(), by="list").fit_transform(df).columns.tolist()
        ['list', 'price', 'age', 'rank_price__list', 'rank_age__list']
    """
    return Selector(what="number")


def temporal() -> Selector:
    """Select columns of times.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Diff, temporal
        >>> df = pd.DataFrame({"t": pd.to_datetime(["2024-01-01", "2024-01-02"]), "x": [1, 2]})
        >>> Diff(temporal()).fit_transform(df)["diff1_t"].tolist()
        [nan, 86400.0]
    """
    return Selector(what="temporal")


def matching(pattern: str) -> Selector:
    """Select columns whose name matches a regular expression.

    Args:
        pattern: a pattern of ``re.search``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode, matching
        >>> df = pd.DataFrame({"user_id": [1, 1], "item_id": [1, 2], "age": [3, 4]})
        >>> CountEncode(matching("_id$")).fit_transform(df).columns.tolist()
        ['user_id', 'item_id', 'age', 'count_user_id', 'count_item_id']
    """
    return Selector(what="matching", pattern=pattern)


def selector_from(config: dict[str, Any]) -> Selector:
    """Restore a selector from its ``config()``."""
    selector = Selector(*map(selector_from, config["parts"]), **config["how"])
    selector.names_ = config["names"]
    return selector


def _as_selector(value: Selector | str | Sequence[str]) -> Selector:
    if isinstance(value, Selector):
        return value
    return Selector(what="columns", listed=[value] if isinstance(value, str) else list(value))


def as_columns(tensors: Mapping[str, torch.Tensor]) -> dict[str, Column]:
    """Wrap plain tensors as number columns."""
    return {n: Column("number", t, name=n) for n, t in tensors.items()}


def names_of(source: Any) -> list[str]:
    """Return the column names of a source: a name, a selector or a generator."""
    if isinstance(source, str):
        return [source]
    if isinstance(source, Selector):
        return source.names
    if not hasattr(type(source), "outputs"):
        raise no_column(source)
    return source.outputs


def no_column(source: Any) -> DataError:
    """Return the error for a source that names no column."""
    return DataError(f"{source!r} is no column's name", remedy="Name columns by text, or give generators")


def name_of(source: Any) -> str:
    """Return the column name of a source; raise DataError if it has several."""
    names = names_of(source)
    if len(names) != 1:
        raise DataError(f"{source!r} makes {len(names)} columns where one is needed", remedy="Choose one by its name")
    return names[0]


def as_list(value: Any) -> list[Any]:
    """Return one value or several as a list; None gives an empty list, a resolved selector its columns."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    things = list(value) if isinstance(value, list | tuple) else [value]
    if not any(isinstance(t, Selector) for t in things):
        return things
    # An unresolved selector stays in the list.
    return list(dict.fromkeys(n for t in things for n in (t.names_ or [t] if isinstance(t, Selector) else [t])))


def number_of(table: Table, name: str, *, wanted_by: object) -> torch.Tensor:
    """Return a column as float64 ``[n]``, NaN where missing; errors name the generator."""
    column = table[name]
    try:
        return column.number()
    except DataError as error:
        problem = f"{type(wanted_by).__name__}: {error.problem}"
        raise DataError(problem, column=name, row=error.row, remedy=error.remedy) from error


def masked(name: str, values: torch.Tensor, missing: torch.Tensor | None, kind: str = "number", **parts: Any) -> Column:
    """Return a column with a mask (masked numbers are 0), or without one if nothing is missing."""
    if missing is None or not bool(missing.any()):
        return Column(kind, values, name=name, **parts)
    values = values.masked_fill(missing, 0) if kind == "number" else values
    return Column(kind, values, name=name, missing=missing, **parts)


def comparable(table: Table, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values ``[n]`` to compare (int64 for integers and times, else float64), and their missing mask."""
    column = table[name].plain()
    if column.kind == "datetime" or (column.kind == "number" and not column.values.is_floating_point()):
        return column.integer(), column.is_missing()
    values = column.number()
    return values, values.isnan()


def order_keys(table: Table, names: Sequence[str], where: str = "") -> list[torch.Tensor]:
    """Return order columns as sortable tensors (see ``comparable``); errors end in ``where``: " in the log"."""
    if len(table) > limits.REQUEST_ROWS:  # recomputing costs less than memory
        return [_order_key(table, name, where) for name in names]
    return [table.remember(("order", n), [n], partial(_order_key, table, n, where)) for n in names]


def _order_key(table: Table, name: str, where: str) -> torch.Tensor:
    try:
        values, missing = comparable(table, name)
    except DataError as error:
        raise DataError(f"the order {error.problem}", column=name, row=error.row, remedy=error.remedy) from error
    refuse(missing, name, f"an order value is missing{where}", "Fill or drop such rows")
    return values


def given_rows(df: Any) -> Any:
    """Return the frame, or read a file, a folder or a pattern of files into a pandas frame."""
    sizes = {n: len(v) for n, v in df.items() if hasattr(v, "__len__")} if isinstance(df, Mapping) else {}
    if len(set(sizes.values())) > 1:
        raise DataError(f"columns of unequal length: {sizes}", remedy="Give every column the same number of rows")
    return Table.read(df).to_pandas() if isinstance(df, str | Path) else df
