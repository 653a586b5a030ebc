"""``@feature``: a function of one's own as a generator."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from fastrec.columns import as_column
from fastrec.errors import DataError
from fastrec.features.base import Context, Feature, Grouped, RowWise, Tensors, as_list, names_of
from fastrec.features.lag import ordered_groups
from fastrec.key_types import is_numeric
from fastrec.segments import Groups
from fastrec.table import Column, Table


class _Function(Feature):
    """What generators made of a function share: names, how it is called, how it is found again."""

    function: Callable[..., Any]
    cols: str | Feature | Sequence[str | Feature]
    columns: str | Sequence[str]

    @property
    def outputs(self) -> list[str]:
        return as_list(self.columns)

    @property
    def signature(self) -> str:
        return f"{self!r} at {id(self.function)}"

    def _values(self, table: Table) -> list[Any]:
        values = [_value(table[n]) for c in as_list(self.cols) for n in names_of(c)]
        _check_call(self.function, len(values))
        return values

    def _results(self, made: Any, size: int | None) -> list[Any]:
        """What the function returned, one value per output; ``size``: how many rows each must have."""
        if isinstance(made, Mapping):
            made = [made[n] for n in self.outputs if n in made]
        results = list(made) if isinstance(made, list | tuple) and len(self.outputs) > 1 else [made]
        if len(results) != len(self.outputs):
            raise DataError(
                f"{_path(self.function)} returned {len(results)} columns for {len(self.outputs)} outputs",
                remedy=f"Return one value for each of {', '.join(self.outputs)}",
            )
        for name, result in zip(self.outputs, results, strict=True):
            found = len(result) if hasattr(result, "__len__") and getattr(result, "ndim", 1) else None
            if size is not None and found != size:
                raise DataError(
                    f"{_path(self.function)} returned {'one value' if found is None else f'{found} values'} for "
                    f"{size} rows",
                    column=name,
                    remedy="Return one value per row, in the rows' order",
                )
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        params = {n: v for n, v in self.get_params().items() if n != "function" and v not in (None, False)}
        return f"{type(self).__name__}({_path(self.function)}, {', '.join(f'{n}={v!r}' for n, v in params.items())})"


def _check_call(function: Callable[..., Any], count: int) -> None:
    """Refuse a function that does not take as many arguments as there are columns."""
    try:
        taken = inspect.signature(function)
    except ValueError:  # a built-in one may not say
        return
    try:
        taken.bind(*range(count), **{n: None for n in taken.parameters if n == "groups"})
    except TypeError as error:
        raise DataError(
            f"{_path(function)} cannot be called with {count} columns ({error})", remedy="Name one for each argument"
        ) from error


class RowFunction(_Function, RowWise):
    """A function of a row's own values, of all rows at once; made by ``@feature``.

    Args:
        function: takes one argument per column and returns one value per row (several outputs: a tuple or a dict).
            Numbers, booleans and times (seconds since 1970 in UTC) arrive as float64 tensors ``[n]``, NaN where
            missing; text as a list, None where missing.
        cols: the columns it reads, in the order of its arguments, or generators.
        columns: the name(s) of the columns it makes.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RowFunction
        >>> double = RowFunction(lambda price: 2 * price, "price", "twice")
        >>> double.fit_transform(pd.DataFrame({"price": [1, 2]}))["twice"].tolist()
        [2.0, 4.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cols: str | Feature | Sequence[str | Feature],
        columns: str | Sequence[str],
    ) -> None:
        self.function, self.cols, self.columns = function, cols, columns

    @property
    def sources(self) -> list[str | Feature]:
        return as_list(self.cols)

    def prepare(self, table: Table) -> Tensors:
        names = [n for c in as_list(self.cols) for n in names_of(c)]
        return dict(zip(names, self._values(table), strict=True))

    def apply(self, tensors: Tensors) -> Tensors:
        return dict(zip(self.outputs, self._results(self.function(*tensors.values()), None), strict=True))

    def compute(self, table: Table) -> dict[str, Column]:
        results = self._results(self.function(*self._values(table)), len(table))
        return {n: as_column(r, name=n).to(table.device) for n, r in zip(self.outputs, results, strict=True)}


class GroupFunction(_Function, Grouped):
    """A function of the rows of a row's group, in order; made by ``@feature(by=…)``.

    Args:
        function: called once for each group with its rows' values in order (as ``RowFunction`` says); it returns one
            value per row, or one for the whole group. A function with an argument ``groups`` is called once for all
            rows in their own order, and gets a ``fastrec.segments.Groups``: many times faster with many groups.
        cols: the columns it reads, in the order of its arguments, or generators.
        columns: the name(s) of the columns it makes.
        by: the columns of the group. Rows without a group get missing values.
        order: the columns that order a group's rows, ties by row number; None: the rows' own order.
        uses_future: whether a row's value depends on rows after it.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupFunction
        >>> share = GroupFunction(lambda price: price / price.sum(), "price", "share", by="list")
        >>> df = pd.DataFrame({"list": [1, 2, 1], "price": [1.0, 5.0, 3.0]})
        >>> share.fit_transform(df)["share"].tolist()
        [0.25, 1.0, 0.75]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cols: str | Feature | Sequence[str | Feature],
        columns: str | Sequence[str],
        *,
        by: str | Sequence[str],
        order: str | Sequence[str] | None = None,
        uses_future: bool = False,
    ) -> None:
        self.function, self.cols, self.columns = function, cols, columns
        self.by, self.order, self.uses_future = by, order, uses_future

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *as_list(self.by), *as_list(self.order)]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        if "groups" in inspect.signature(self.function).parameters:
            made = self._results(self.function(*self._values(table), groups=groups), len(table))
        else:
            made = self._each(self._values(table), groups, outside)
        columns = {}
        for name, result in zip(self.outputs, made, strict=True):
            column = as_column(result, name=name).to(table.device)
            if column.kind == "number" and bool(outside.any()):
                column = Column("number", torch.where(outside, torch.nan, column.number()), name=name)
            columns[name] = column
        return columns

    def _each(self, values: list[Any], groups: Groups, outside: torch.Tensor) -> list[torch.Tensor]:
        """The function called group by group: one float64 tensor ``[n]`` per output."""
        n = len(groups.codes)
        order = torch.arange(n) if groups.order is None else groups.order.cpu()
        starts = (groups.place == 0).nonzero().squeeze(1).tolist() if n else []
        made = [torch.full((n,), torch.nan, dtype=torch.float64) for _ in self.outputs]
        for start, end in zip(starts, [*starts[1:], n]):
            rows = order[start:end]
            if bool(outside[rows[0]]):
                continue
            own = [v[rows] if isinstance(v, torch.Tensor) else [v[i] for i in rows.tolist()] for v in values]
            for into, result in zip(made, self._results(self.function(*own), None), strict=True):
                result = torch.as_tensor(result, dtype=torch.float64)
                if result.ndim and len(result) != len(rows):
                    raise DataError(
                        f"{_path(self.function)} returned {len(result)} values for a group of {len(rows)} rows",
                        row=int(rows[0]),
                        remedy="Return one value per row, or one for the group",
                    )
                into[rows] = result.cpu()
        return made


def feature(
    *,
    inputs: str | Feature | Sequence[str | Feature],
    outputs: str | Sequence[str],
    by: str | Sequence[str] | None = None,
    order: str | Sequence[str] | None = None,
    uses_future: bool = False,
) -> Callable[[Callable[..., Any]], RowFunction | GroupFunction]:
    """Make a generator of a function; a row's value may depend on the row alone or, with ``by``, on its group.

    A generator of a function that a module holds by its own name can be saved: the module's and the function's name are
    kept. Loading looks into modules that are imported, and imports those that ``trust=`` names. ``check_leakage`` tells
    whether it gives away a target or the future.

    Args:
        inputs: the columns it reads, in the order of its arguments, or generators.
        outputs: the name(s) of the columns it makes.
        by: the columns of the group whose rows it gets together; None: it gets all rows and treats each alone.
        order: the columns that order a group's rows.
        uses_future: whether a row's value depends on rows after it.

    Returns:
        A decorator that returns a ``RowFunction`` or a ``GroupFunction``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import FeatureSet, feature
        >>> @feature(inputs=["price", "nights"], outputs="total")
        ... def total(price, nights):
        ...     return price * nights
        >>> FeatureSet([total]).fit_transform(pd.DataFrame({"price": [50.0], "nights": [3]}))["total"].tolist()
        [150.0]
    """
    if by is None and order is not None:
        raise DataError("feature: order was given without by", remedy="Name the group whose rows are ordered with by=")

    def make(function: Callable[..., Any]) -> RowFunction | GroupFunction:
        if by is None:
            return RowFunction(function, inputs, outputs)
        return GroupFunction(function, inputs, outputs, by=by, order=order, uses_future=uses_future)

    return make


def function_name(feature: Feature) -> str:
    """Where the function of a generator is found again: ``module:name``.

    Raises:
        DataError: no module holds the generator by the function's own name.
    """
    function = feature.function
    where = f"{function.__module__}:{function.__qualname__}"
    try:
        found = function_at(where)
    except (DataError, ValueError):
        found = None
    if found is not function or function.__module__ == "__main__":
        raise DataError(
            f"{_path(function)} cannot be found again when it is loaded",
            remedy="Define it with @feature at the top of a module that can be imported",
        )
    return where


def function_at(where: str, trust: Collection[str] = ()) -> Callable[..., Any]:
    """The function of the generator that ``module:name`` names.

    Args:
        where: the name.
        trust: the modules that may be imported for it; of others only what is imported already is looked at.

    Raises:
        DataError: the module is neither imported nor trusted.
        ValueError: there is no such generator: nothing but what ``@feature`` made is taken.
    """
    module, _, name = where.partition(":")
    if module not in sys.modules and module not in trust:
        raise DataError(
            f"the function {name!r} is in the module {module!r}, which is not imported: to import it runs its code",
            remedy=f"Import {module} first, or load with trust={module!r} if you trust it",
        )
    try:
        found = vars(importlib.import_module(module)).get(name)
    except Exception as error:
        raise ValueError(f"the module {module!r} cannot be imported ({error})") from error
    if not isinstance(found, _Function):
        raise ValueError(f"there is no generator {name!r} in {module!r}")
    return found.function


def _value(column: Column) -> Any:
    if column.kind in ("number", "datetime") or (column.kind == "category" and is_numeric(column.distinct.type)):
        return column.number()
    return column.to_arrow().to_pylist()


def _path(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).replace("<locals>.", "")
