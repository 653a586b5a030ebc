"""``@feature``: your own function as a generator."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.features._engine.order import ordered_groups
from fastrec.features.base import Cols, Context, Feature, Grouped, Names, RowWise, Tensors
from fastrec.features.columns import as_list, names_of
from fastrec.segments import Groups
from fastrec.table import Column, Table, as_column
from fastrec.table.keys import is_numeric


class _Function(Feature):
    """Base of generators from functions: names, call, and how the function is located again."""

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
        try:
            taken = inspect.signature(self.function)
        except ValueError:  # a built-in function may not say what it takes
            return values
        try:
            taken.bind(*range(len(values)), **{n: None for n in taken.parameters if n == "groups"})
        except TypeError as error:
            problem = f"{_path(self.function)} cannot be called with {len(values)} columns ({error})"
            raise DataError(problem, remedy="Name one for each argument") from error
        return values

    def _results(self, made: Any, size: int | None) -> list[Any]:
        """Split the function's result by output; ``size``: rows that each must have; None: any."""
        if isinstance(made, Mapping):
            made = [made[n] for n in self.outputs if n in made]
        results = list(made) if isinstance(made, list | tuple) and len(self.outputs) > 1 else [made]
        if len(results) != len(self.outputs):
            problem = f"{_path(self.function)} returned {len(results)} columns for {len(self.outputs)} outputs"
            raise DataError(problem, remedy=f"Return one value for each of {', '.join(self.outputs)}")
        if size is None:
            return results
        for name, result in zip(self.outputs, results, strict=True):
            found = len(result) if hasattr(result, "__len__") and getattr(result, "ndim", 1) else None
            if found != size:
                count = "one value" if found is None else f"{found} values"
                problem = f"{_path(self.function)} returned {count} for {size} rows"
                raise DataError(problem, column=name, remedy="Return one value per row, in the rows' order")
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        params = {n: v for n, v in self.get_params().items() if n != "function" and v not in (None, False)}
        return f"{type(self).__name__}({_path(self.function)}, {', '.join(f'{n}={v!r}' for n, v in params.items())})"


def function_name(feature: Feature) -> str:
    """Return ``module:name`` of a generator's function."""
    function = feature.function
    where = f"{function.__module__}:{function.__qualname__}"
    try:
        found = function_at(where)
    except (DataError, ValueError):
        found = None
    if found is not function or function.__module__ == "__main__":
        problem = f"{_path(function)} cannot be found again when it is loaded"
        raise DataError(problem, remedy="Define it with @feature at the top of a module that can be imported")
    return where


def function_at(where: str, trust: Collection[str] = ()) -> Callable[..., Any]:
    """Return the function of the generator that ``module:name`` names."""
    # Of modules that trust does not name only those are looked at that are imported already
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


class RowFunction(_Function, RowWise):
    """A function of a row's values, called with all rows; built by ``@feature``.

    Args:
        function: takes one argument per column and returns one value per row (several outputs: a tuple or a dict).
            Numbers, booleans and times (seconds since 1970 in UTC) are float64 tensors ``[n]``, NaN where missing; text
            is a list, None where missing.
        cols: the columns it reads, in the order of its arguments, or generators.
        columns: the name(s) of the columns it makes.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RowFunction
        >>> double = RowFunction(lambda price: 2 * price, "price", "twice")
        >>> double.fit_transform(pd.DataFrame({"price": [1, 2]}))["twice"].tolist()
        [2.0, 4.0]
    """

    def __init__(self, function: Callable[..., Any], cols: Cols, columns: Names) -> None: ...

    def prepare(self, table: Table) -> Tensors:
        names = (n for c in as_list(self.cols) for n in names_of(c))
        return dict(zip(names, self._values(table), strict=True))

    def apply(self, tensors: Tensors) -> Tensors:
        return dict(zip(self.outputs, self._results(self.function(*tensors.values()), None), strict=True))

    def compute(self, table: Table) -> dict[str, Column]:
        results = self._results(self.function(*self._values(table)), len(table))
        return {n: as_column(r, name=n).to(table.device) for n, r in zip(self.outputs, results, strict=True)}


class GroupFunction(_Function, Grouped):
    """A function of the rows of a row's group, in order; built by ``@feature(by=…)``.

    Args:
        function: called for each group with its rows' values in order (see ``RowFunction``); returns one value per row,
            or one for the group. A function with an argument ``groups`` (``fastrec.segments.Groups``) is called once,
            for all rows in their own order: many times faster with many groups.
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

    _reads = ("cols", "by", "order")

    def __init__(
        self,
        function: Callable[..., Any],
        cols: Cols,
        columns: Names,
        *,
        by: Names,
        order: Names | None = None,
        uses_future: bool = False,
    ) -> None: ...

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
        """Call the function group by group: one float64 tensor ``[n]`` per output."""
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
                    problem = f"{_path(self.function)} returned {len(result)} values for a group of {len(rows)} rows"
                    raise DataError(problem, row=int(rows[0]), remedy="Return one value per row, or one for the group")
                into[rows] = result.cpu()
        return made


def feature(
    *, inputs: Cols, outputs: Names, by: Names | None = None, order: Names | None = None, uses_future: bool = False
) -> Callable[[Callable[..., Any]], RowFunction | GroupFunction]:
    """Make a generator of a function of the row or, with ``by``, of its group.

    A module's function can be saved, by the names of both. Loading looks into imported modules, and imports those that
    ``trust=`` names. Test it for leaks by ``check_leakage``.

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
