"""Generators that fill, clip and scale numbers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from fastrec.errors import DataError, refuse
from fastrec.features._engine import group_values
from fastrec.features._engine.options import OfColumns, ascending, check_columns_of, is_open
from fastrec.features.base import Cells, Cols, Fitted, RowWise, Scope, State, Tensors
from fastrec.features.columns import as_list, masked, names_of, number_of
from fastrec.table import Column, Table


class LearnsColumns(OfColumns, Fitted):
    """Generator that learns a statistic of each column, unless its options give it (``_given``)."""

    _given = False
    # the functions that collect a partition's statistic by cell and that merge two
    _counting: tuple[Callable[..., State], Callable[..., State]] = group_values.count_values, group_values.merge_values

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "row" if self._given else "fitted"

    online = kind  # type: ignore[assignment]

    @abstractmethod
    def _fit(self, name: str, learned: State, keep: torch.Tensor | None) -> Any:
        """Return the tensor of ``apply`` for a column from its statistic."""

    def _learned(self) -> tuple[State, State]:
        return ({}, self.finalize({})) if self._given else super()._learned()

    def learn(self, state: State) -> None:
        if not self._given:
            super().learn(state)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        count, names = self._counting[0], [] if self._given else self.columns
        return {"columns": [count(number_of(table, c, wanted_by=self), cells) for c in names]}

    def merge(self, a: State, b: State) -> State:
        return {"columns": [self._counting[1](x, y) for x, y in zip(a["columns"], b["columns"], strict=True)]}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        learned = [{}] * len(self.columns) if self._given else state["columns"]
        return {c: self._fit(c, found, keep) for c, found in zip(self.columns, learned, strict=True)}

    def prepare(self, state: State, table: Table) -> Tensors:
        return {c: number_of(table, c, wanted_by=self) for c in self.columns}


class Clip(LearnsColumns):
    """Values clipped to ``[low, high]`` (winsorised); missing stays missing.

    Without ``low`` and ``high`` the bounds of each column are exact quantiles of its training rows; a column without
    training values stays unchanged. If a bound is given, no fit is needed.

    Args:
        low: the lower bound, in the columns' unit (seconds since 1970 for times); None with ``high``: open.
        high: the upper bound; None with ``low``: open.
        quantiles: the shares of training values at the learned bounds.

    Outputs are float64; if the given bounds are whole numbers, columns of integers give int64.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Clip
        >>> df = pd.DataFrame({"price": [1.0, 5.0, 999.0]})
        >>> Clip("price", low=2, high=100).fit_transform(df)["clip_price"].tolist()
        [2.0, 5.0, 100.0]
        >>> Clip("price", quantiles=(0, 0.5)).fit_transform(df)["clip_price"].tolist()
        [1.0, 5.0, 5.0]
    """

    _word = "clip"

    def __init__(
        self,
        cols: Cols,
        low: float | None = None,
        high: float | None = None,
        *,
        quantiles: tuple[float, float] = (0.01, 0.99),
        scope: Scope = "train",
    ) -> None:
        if self._given:
            floor, ceiling = self._bounds()
            if not floor <= ceiling:
                raise DataError(f"Clip: nothing lies between {low} and {high}", remedy="Give low below high")
        elif len(quantiles) != 2 or not ascending(quantiles) or quantiles[0] < 0 or quantiles[1] > 1:
            raise DataError(f"Clip: {quantiles} are not two shares", remedy="Give a lower and an upper one from 0 to 1")

    @property
    def _given(self) -> bool:  # type: ignore[override]
        return self.low is not None or self.high is not None

    def _bounds(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def _fit(self, name: str, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        if self._given:
            return torch.tensor([float(b) for b in self._bounds()], dtype=torch.float64)
        bounds = group_values.quantiles(*group_values.total_counts(learned, keep), [float(q) for q in self.quantiles])
        open_ = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64, device=bounds.device)
        return torch.where(bounds.isnan(), open_, bounds)

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
            # A float bound would round large integers.
            limits = torch.iinfo(values.dtype)
            low, high = (None if b is None else max(limits.min, min(limits.max, int(b))) for b in (self.low, self.high))
            made[f"clip_{name}"] = values.clamp(low, high)
            made[f"missing {name}"] = tensors[f"missing {name}"]
        return made

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        names = {f"clip_{c}": tensors.get(f"missing {c}") for c in self.columns}
        return {output: masked(output, tensors[output], missing) for output, missing in names.items()}


class FillMissing(LearnsColumns):
    """Columns ``filled_{col}`` (float64) without missing values, and a mask ``{col}_na`` (bool) of each.

    The median is exact in any partitions. For a ``TabularFrame`` use ``fastrec.tabular.FillMissing``, which changes
    its columns in place.

    Args:
        strategy: ``'median'`` (the mean of the middle two for an even number of values), ``'mean'`` (without infinite
            values), ``'mode'`` (the smallest if there are several) or ``'constant'``, all of the training rows.
        value: the constant, also for columns without training values: a number, or column → number (0 if not named).
        add_col: add the masks.

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
        if not is_open(cols):
            check_columns_of(self, "value", self.columns)

    @property
    def flags(self) -> list[str]:
        """The names of the masks."""
        return [f"{c}_na" for c in self.columns] if self.add_col else []

    @property
    def outputs(self) -> list[str]:
        return [o for c in self.columns for o in (f"filled_{c}", *((f"{c}_na",) if self.add_col else ()))]

    @property
    def _counting(self) -> tuple[Callable[..., State], Callable[..., State]]:  # type: ignore[override]
        if self.strategy == "constant":
            return lambda *_: {}, lambda *_: {}
        if self.strategy == "mean":
            return group_values.column_moments, group_values.merge_column_moments
        return group_values.count_values, group_values.merge_values

    def _fit(self, name: str, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        constant = float(self.value.get(name, 0) if isinstance(self.value, Mapping) else self.value)
        return self._fill(learned, keep).nan_to_num(constant, torch.inf, -torch.inf)

    def _fill(self, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        if self.strategy == "constant":
            return torch.tensor(torch.nan, dtype=torch.float64)
        if self.strategy == "mean":
            total = group_values.total_moments(learned, keep)
            return torch.where(total["count"] > 0, total["mean"], torch.nan)
        counts = group_values.total_counts(learned, keep)
        return group_values.mode(*counts) if self.strategy == "mode" else group_values.quantiles(*counts, [0.5])[0]

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            values, missing = tensors[name], tensors[name].isnan()
            made[f"filled_{name}"] = torch.where(missing, fit[name].to(values.device), values)
            if self.add_col:
                made[f"{name}_na"] = missing
        return made


class Log1p(OfColumns, RowWise):
    """``log(1 + x)`` as float64; missing stays missing.

    A value of -1 or less raises an error that names its row, unless ``signed`` is set.

    Args:
        signed: return ``sign(x)·log(1 + |x|)``, which is defined everywhere and the same for ``x ≥ 0``.

    Source: the signed form is the "log-modulus" transformation of John and Draper 1980, "An alternative family of
    transformations", eq. 2.

    Example:
        >>> import math
        >>> import pandas as pd
        >>> from fastrec.features import Log1p
        >>> df = pd.DataFrame({"gain": [0.0, math.e - 1, 1 - math.e]})
        >>> Log1p("gain", signed=True).fit_transform(df)["signed_log1p_gain"].round(6).tolist()
        [0.0, 1.0, -1.0]
    """

    def __init__(self, cols: Cols, *, signed: bool = False) -> None: ...

    @property
    def _word(self) -> str:
        return "signed_log1p" if self.signed else "log1p"

    def prepare(self, table: Table) -> Tensors:
        tensors = {c: number_of(table, c, wanted_by=self) for c in self.columns}
        for name, values in tensors.items():
            if not self.signed:
                refuse(values <= -1, name, "Log1p: -1 and less have no log(1 + x)", "Use signed=True or Clip")
        return tensors

    def apply(self, tensors: Tensors) -> Tensors:
        made = {}
        for name, output in zip(self.columns, self.outputs, strict=True):
            values = tensors[name]
            made[output] = torch.sign(values) * torch.log1p(values.abs()) if self.signed else torch.log1p(values)
        return made


class Normalize(LearnsColumns):
    """``norm_{col} = (x - mean) / sd`` (float64) with the mean and population standard deviation of training rows.

    Statistics are exact in any partitions (1e8 ± 1 becomes ±1) and leave out missing and infinite values. Missing stays
    missing. A column constant in training has ``sd`` 1. For a ``TabularFrame`` use ``fastrec.tabular.Normalize``, which
    changes its columns in place.

    Args:
        cols: number columns, or generators; masks of ``FillMissing`` are not scaled.

    Source: Chan, Golub, LeVeque 1979, eq. 2.1.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Normalize
        >>> Normalize("x").fit_transform(pd.DataFrame({"x": [1e8 - 1, 1e8 + 1]}))["norm_x"].tolist()
        [-1.0, 1.0]
    """

    _word = "norm"
    _counting = (group_values.column_moments, group_values.merge_column_moments)

    def __init__(self, cols: Cols, *, scope: Scope = "train") -> None: ...

    @property
    def columns(self) -> list[str]:
        """The columns to scale, without the masks of ``FillMissing``."""
        return [n for c in as_list(self.cols) for n in names_of(c) if n not in getattr(c, "flags", ())]

    def _fit(self, name: str, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        total = group_values.total_moments(learned, keep)
        varies = total["max"] > total["min"]
        sd = (total["m2"] / total["count"].clamp_min(1)).sqrt()
        mean = torch.where(total["max"] == total["min"], total["min"], total["mean"])
        return torch.stack([mean, torch.where(varies & (sd > 0), sd, 1)])

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            mean, sd = fit[name].to(tensors[name].device)
            made[f"norm_{name}"] = (tensors[name] - mean) / sd
        return made
