"""``@feature``: your own function as a generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.features._engine.order import ordered_groups
from fastrec.features._engine.saving import _Function, _path
from fastrec.features.base import Cols, Context, Grouped, Names, RowWise, Tensors
from fastrec.features.columns import as_list, names_of
from fastrec.segments import Groups
from fastrec.table import Column, Table, as_column


class RowFunction(_Function, RowWise):
    """Function of a row's values, built by ``@feature``.

    Args:
        function: called with one argument per column for all rows; returns one value per row (several outputs: a tuple
            or a dict). Numbers, booleans and times (seconds since 1970 in UTC) are float64 tensors ``[n]``, NaN where
            missing; text is a list, None where missing.
        cols: the columns, or generators, in the order of the arguments.
        columns: the name(s) of the outputs.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RowFunction
        >>> double = RowFunction(lambda price: 2 * price, "price", "twice")
        >>> double.fit_transform(pd.DataFrame({"price": [1, 2]}))["twice"].tolist()
        [2.0, 4.0]
    """

    def __init__(self, function: Callable[..., Any], cols: Cols, columns: Names) -> None: ...

    def prepare(self, table: Table) -> Tensors:
        return dict(zip((n for c in as_list(self.cols) for n in names_of(c)), self._values(table), strict=True))

    def apply(self, tensors: Tensors) -> Tensors:
        return dict(zip(self.outputs, self._results(self.function(*tensors.values()), None), strict=True))

    def compute(self, table: Table) -> dict[str, Column]:
        results = self._results(self.function(*self._values(table)), len(table))
        return {n: as_column(r, name=n).to(table.device) for n, r in zip(self.outputs, results, strict=True)}


class GroupFunction(_Function, Grouped):
    """Function of the rows of a group, in order; built by ``@feature(by=…)``.

    Args:
        function: called for each group with its rows' values in order (see ``RowFunction``); returns one value per row,
            or one for the group. A function with an argument ``groups`` (``fastrec.segments.Groups``) is called once
            for all rows in the order of the frame, which is many times faster with many groups.
        cols: the columns, or generators, in the order of the arguments.
        columns: the name(s) of the outputs.
        by: the columns of the group. Rows without a group get missing values.
        uses_future: whether a row's value depends on later rows.

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
    """Turn a function of the row or, with ``by``, of its group into a generator.

    A function of a module is saved by the names of both. Loading searches imported modules, and imports those in
    ``trust=``. Test it for leaks by ``check_leakage``.

    Args:
        inputs: the columns, or generators, in the order of the arguments.
        outputs: the name(s) of the outputs.
        by: the columns of the group; None: each row's value depends on that row alone.
        order: the columns that order a group's rows.
        uses_future: whether a row's value depends on later rows.

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
