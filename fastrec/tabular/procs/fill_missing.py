"""``FillMissing``: missing values of continuous columns filled with one learnt from training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.tabular.procs.base import ContProc, _float64, _learnt, generator_of_that_name

__all__ = ["FillMissing"]


FillRule = Literal["median", "constant", "mode"]


class FillMissing(ContProc):
    """Missing values of continuous columns filled with one learnt from training rows.

    Args:
        fill_strategy: ``'median'`` (exact), ``'constant'``, ``'mode'`` (among equals the one seen first), or a function
            of a pandas Series and the column's entry in ``fill_vals``.
        add_col: add a categorical column ``<name>_na`` for every column with a value missing in training.
        fill_vals: column → constant; 0 where there is none.
    """

    order = 0

    def __init__(
        self,
        fill_strategy: FillRule | Callable[[Any, float], float] = "median",
        add_col: bool = True,
        fill_vals: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if not callable(fill_strategy) and fill_strategy not in ("median", "constant", "mode"):
            raise DataError(
                f"FillMissing, the proc: {fill_strategy!r} is no fill strategy",
                remedy=f"Use 'median', 'constant' or 'mode'. {generator_of_that_name(self)}",
            )
        self.fill_strategy, self.add_col, self.fill_vals = fill_strategy, add_col, dict(fill_vals or {})
        self.fills: dict[str, float] = {}
        self.was_missing: dict[str, bool] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and make ready to learn these columns."""
        self.fills, self.was_missing = dict.fromkeys(names, 0.0), dict.fromkeys(names, False)

    @property
    def na_dict(self) -> dict[str, float]:
        """Column → fill value, of the columns with a value missing in training."""
        return {n: self.fills[n] for n, missing in self.was_missing.items() if missing}

    @property
    def flagged(self) -> list[str]:
        """The columns that get a ``_na`` column beside them."""
        return list(self.na_dict) if self.add_col else []

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Learn a column's fill value."""
        # The sum tells at a tenth of the cost that nothing is missing.
        gaps = int(values.isnan().sum()) if bool(values.sum().isnan()) else 0
        self.was_missing[name] = gaps > 0
        if self.fill_strategy == "median":
            self.fills[name] = _median(values.cpu().numpy(), len(values) - gaps)
        else:
            self.fills[name] = self._fill_of(name, values[~values.isnan()] if gaps else values)

    def _fill_of(self, name: str, present: torch.Tensor) -> float:
        constant = float(self.fill_vals.get(name, 0))
        if self.fill_strategy == "constant":
            return constant
        if callable(self.fill_strategy):
            import pandas as pd

            return float(self.fill_strategy(pd.Series(present.cpu().numpy(), name=name), constant))
        return _mode(present.cpu().numpy()) if len(present) else 0.0

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The values with every missing one filled."""
        return values.nan_to_num(_learnt(self, self.fills, name), torch.inf, -torch.inf)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """One row of several columns."""
        return torch.where(values.isnan(), _float64(_learnt(self, self.fills, n) for n in names), values)

    def to_state(self) -> dict[str, Any]:
        """What was learnt; of a fill function its name."""
        rule = self.fill_strategy if isinstance(self.fill_strategy, str) else self.fill_strategy.__name__
        options = {"fill_strategy": rule, "add_col": self.add_col, "fill_vals": self.fill_vals}
        return {"kind": self.name, **options, "fills": dict(self.fills), "was_missing": dict(self.was_missing)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FillMissing:
        """The inverse of ``to_state``."""
        known = state["fill_strategy"] in ("median", "constant", "mode")
        proc = cls(state["fill_strategy"] if known else "median", state["add_col"], state["fill_vals"])
        proc.fill_strategy = state["fill_strategy"]
        proc.fills, proc.was_missing = dict(state["fills"]), dict(state["was_missing"])
        return proc


def _median(values: np.ndarray, present: int) -> float:
    """The median of the numbers that are ``present``; the others are NaN, which numpy ranks last."""
    if not present:
        return 0.0
    middle = present // 2
    ranked = np.partition(values, middle)
    upper = float(ranked[middle])
    return upper if present % 2 else (float(ranked[:middle].max()) + upper) / 2


def _mode(values: np.ndarray) -> float:
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    best = np.flatnonzero(counts == counts.max())
    return float(distinct[best[np.argmin(first[best])]])
