"""``Clip``: numbers held between two bounds."""

from __future__ import annotations

import math

import torch

from fastrec.errors import DataError
from fastrec.features._engine.column_stats import count_values, merge_values, quantiles, total_counts
from fastrec.features._engine.options import OfColumns, ascending, check_scope
from fastrec.features._inputs import masked, number_of
from fastrec.features.base import Cells, Cols, Fitted, Scope, State, Tensors
from fastrec.table import Column, Table


class Clip(OfColumns, Fitted):
    """``min(max(x, low), high)``: outliers brought back to a bound (winsorised); missing stays missing.

    With ``low`` or ``high`` nothing is learned and nothing needs to be fitted; else both bounds of each column are
    exact quantiles of its training rows. A column without any training value is left as it is.

    Args:
        cols: number columns, or generators.
        low: the lower bound, in the columns' unit (seconds since 1970 for times); None: open, if ``high`` is given.
        high: the upper bound; None: open, if ``low`` is given.
        quantiles: the shares of the training values that the learned bounds stand at.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    The result is float64; with given bounds that are whole, columns of integers stay integers (int64).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Clip
        >>> df = pd.DataFrame({"price": [1.0, 5.0, 999.0]})
        >>> Clip("price", low=2, high=100).fit_transform(df)["clip_price"].tolist()
        [2.0, 5.0, 100.0]
        >>> Clip("price", quantiles=(0, 0.5)).fit_transform(df)["clip_price"].tolist()
        [1.0, 5.0, 5.0]
    """

    def __init__(
        self,
        cols: Cols,
        low: float | None = None,
        high: float | None = None,
        *,
        quantiles: tuple[float, float] = (0.01, 0.99),
        scope: Scope = "train",
    ) -> None:
        super().__init__()
        self.cols, self.low, self.high, self.quantiles, self.scope = cols, low, high, quantiles, scope
        check_scope(self)
        if self._given:
            floor, ceiling = self._bounds()
            if not floor <= ceiling:
                raise DataError(f"Clip: nothing lies between {low} and {high}", remedy="Give low below high")
        elif len(quantiles) != 2 or not ascending(quantiles) or quantiles[0] < 0 or quantiles[1] > 1:
            raise DataError(f"Clip: {quantiles} are not two shares", remedy="Give a lower and an upper one from 0 to 1")

    @property
    def _given(self) -> bool:
        return self.low is not None or self.high is not None

    def _bounds(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "row" if self._given else "fitted"

    @property
    def online(self) -> str:  # type: ignore[override]
        return self.kind

    @property
    def outputs(self) -> list[str]:
        return [f"clip_{c}" for c in self.columns]

    def _learned(self) -> tuple[State, State]:
        return ({}, self.finalize({})) if self._given else super()._learned()

    def learn(self, state: State) -> None:
        if not self._given:
            super().learn(state)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self._given:
            return {}
        return {"columns": [count_values(number_of(table, c, wanted_by=self), cells) for c in self.columns]}

    def merge(self, a: State, b: State) -> State:
        if self._given:
            return {}
        return {"columns": [merge_values(x, y) for x, y in zip(a["columns"], b["columns"], strict=True)]}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        if self._given:
            pair = torch.tensor([float(b) for b in self._bounds()], dtype=torch.float64)
            return dict.fromkeys(self.columns, pair)
        fit = {}
        for name, counts in zip(self.columns, state["columns"], strict=True):
            bounds = quantiles(*total_counts(counts, keep), [float(q) for q in self.quantiles])
            open_ = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64, device=bounds.device)
            fit[name] = torch.where(bounds.isnan(), open_, bounds)
        return fit

    def prepare(self, state: State, table: Table) -> Tensors:
        tensors = {}
        whole = self._given and all(b is None or float(b).is_integer() for b in (self.low, self.high))
        for name in self.columns:
            column = table[name].plain()
            if whole and column.kind == "number" and not column.values.is_floating_point():
                tensors[name], tensors[f"missing {name}"] = column.integer(), column.is_missing()
            else:
                tensors[name] = number_of(table, name, wanted_by=self)
        return tensors

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            values, bounds = tensors[name], fit[name]
            if values.is_floating_point():
                low, high = bounds.to(values.device)
                made[f"clip_{name}"] = torch.minimum(torch.maximum(values, low), high)
                continue
            # Integers are compared as integers: a float bound would round them.
            limits = torch.iinfo(values.dtype)
            low, high = (None if b is None else max(limits.min, min(limits.max, int(b))) for b in (self.low, self.high))
            made[f"clip_{name}"] = values.clamp(low, high)
            made[f"missing {name}"] = tensors[f"missing {name}"]
        return made

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        names = {f"clip_{c}": tensors.get(f"missing {c}") for c in self.columns}
        return {output: masked(output, tensors[output], missing) for output, missing in names.items()}
