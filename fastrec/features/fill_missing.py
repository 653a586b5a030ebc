"""``FillMissing``: missing numbers filled with one value learned from training rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from fastrec.features._engine.column_stats import (
    column_moments,
    count_values,
    merge_column_moments,
    merge_values,
    mode,
    quantiles,
    total_counts,
    total_moments,
)
from fastrec.features._engine.options import OfColumns, check_columns_of, check_scope, is_open
from fastrec.features._inputs import check_choices, number_of
from fastrec.features.base import Cells, Cols, Fitted, Scope, State, Tensors
from fastrec.table import Table


class FillMissing(OfColumns, Fitted):
    """The column with missing values filled by one learned from training rows, and a mask.

    The median is exact in any partitions. A column without any training value is filled with the constant. For a
    ``TabularFrame`` use ``fastrec.tabular.FillMissing``, which changes its columns in place.

    Args:
        cols: number columns, or generators.
        strategy: ``'median'`` (of an even number of values the mean of the middle two), ``'mean'`` (infinite values do
            not count), ``'mode'`` (among equals the smallest) or ``'constant'``.
        value: the constant, a number or column → number; a column that is not named gets 0.
        add_col: add ``{col}_na``, True where the value was missing, for every column.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    The outputs are float64, named ``filled_{col}``, and boolean, named ``{col}_na``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import FillMissing
        >>> made = FillMissing("age").fit_transform(pd.DataFrame({"age": [20.0, None, 30.0]}))
        >>> made[["filled_age", "age_na"]].values.tolist()
        [[20.0, False], [25.0, True], [30.0, False]]
    """

    def __init__(
        self,
        cols: Cols,
        strategy: Literal["median", "mean", "mode", "constant"] = "median",
        *,
        value: float | Mapping[str, float] = 0.0,
        add_col: bool = True,
        scope: Scope = "train",
    ) -> None:
        super().__init__()
        self.cols, self.strategy, self.value, self.add_col, self.scope = cols, strategy, value, add_col, scope
        check_scope(self)
        check_choices(self, "strategy", strategy, ("median", "mean", "mode", "constant"))
        if not is_open(cols):
            check_columns_of(self, "value", self.columns)

    @property
    def flags(self) -> list[str]:
        """The outputs that say where a value was missing."""
        return [f"{c}_na" for c in self.columns] if self.add_col else []

    @property
    def outputs(self) -> list[str]:
        return [o for c in self.columns for o in (f"filled_{c}", *((f"{c}_na",) if self.add_col else ()))]

    def _constant(self, name: str) -> float:
        return float(self.value.get(name, 0) if isinstance(self.value, Mapping) else self.value)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        count = {"mean": column_moments, "constant": lambda *_: {}}.get(self.strategy, count_values)
        return {"columns": [count(number_of(table, c, wanted_by=self), cells) for c in self.columns]}

    def merge(self, a: State, b: State) -> State:
        join = {"mean": merge_column_moments, "constant": lambda *_: {}}.get(self.strategy, merge_values)
        return {"columns": [join(x, y) for x, y in zip(a["columns"], b["columns"], strict=True)]}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        pairs = zip(self.columns, state["columns"], strict=True)
        return {
            name: self._fill(learned, keep).nan_to_num(self._constant(name), torch.inf, -torch.inf)
            for name, learned in pairs
        }

    def _fill(self, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        if self.strategy == "constant":
            return torch.tensor(torch.nan, dtype=torch.float64)
        if self.strategy == "mean":
            total = total_moments(learned, keep)
            return torch.where(total["count"] > 0, total["mean"], torch.nan)
        value, count = total_counts(learned, keep)
        return quantiles(value, count, [0.5])[0] if self.strategy == "median" else mode(value, count)

    def prepare(self, state: State, table: Table) -> Tensors:
        return {c: number_of(table, c, wanted_by=self) for c in self.columns}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            values, missing = tensors[name], tensors[name].isnan()
            made[f"filled_{name}"] = torch.where(missing, fit[name].to(values.device), values)
            if self.add_col:
                made[f"{name}_na"] = missing
        return made
