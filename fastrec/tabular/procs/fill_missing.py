"""``FillMissing``: missing values of continuous columns filled with one learnt from training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.tabular.moments import Moments
from fastrec.tabular.procs.base import ContProc, _float64, _learnt, generator_of_that_name
from fastrec.tabular.training_rows import Summary

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
        """Forget what was learnt and prepare to fit these columns."""
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
        """Fit a column's fill value."""
        gaps = 0 if bool(values.sum().isfinite()) else int(values.isnan().sum())
        fill = None
        if self.fill_strategy == "median":
            fill = _median(values.cpu().numpy(), len(values) - gaps)
        elif self.fill_strategy == "mode" and gaps < len(values):
            fill = _mode((values[~values.isnan()] if gaps else values).cpu().numpy())
        elif callable(self.fill_strategy):
            import pandas as pd

            present = values[~values.isnan()] if gaps else values
            fill = float(self.fill_strategy(pd.Series(present.cpu().numpy(), name=name), self._constant(name)))
        self.learn(name, Summary(Moments(), gaps, fill))

    def learn(self, name: str, summary: Summary) -> None:
        """Fit a column by its summary, which is then that of the filled column."""
        fill = summary.fill
        if fill is None:
            fill = 0.0 if self.fill_strategy == "mode" else self._constant(name)
        self.was_missing[name], self.fills[name] = summary.gaps > 0, fill
        summary.moments.add_equal(fill, summary.gaps)

    def _constant(self, name: str) -> float:
        return float(self.fill_vals.get(name, 0))

    def fill_of(self, name: str) -> float:
        """Return a column's fill value."""
        return _learnt(self, self.fills, name)

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Fill missing values; return the input itself if none is missing."""
        value = _learnt(self, self.fills, name)
        return values if _none_missing(values) else values.nan_to_num(value, torch.inf, -torch.inf)

    def apply_block(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Fill several columns."""
        fills = _float64(_learnt(self, self.fills, n) for n in names).to(values.device)
        return values if _none_missing(values) else torch.where(values.isnan(), fills[:, None], values)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Fill one row of several columns."""
        return torch.where(values.isnan(), _float64(_learnt(self, self.fills, n) for n in names), values)

    def to_state(self) -> dict[str, Any]:
        """Return the fitted state; of a fill function its name."""
        rule = self.fill_strategy if isinstance(self.fill_strategy, str) else self.fill_strategy.__name__
        options = {"fill_strategy": rule, "add_col": self.add_col, "fill_vals": self.fill_vals}
        return {"kind": self.name, **options, "fills": dict(self.fills), "was_missing": dict(self.was_missing)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FillMissing:
        """Make the proc of a state."""
        known = state["fill_strategy"] in ("median", "constant", "mode")
        proc = cls(state["fill_strategy"] if known else "median", state["add_col"], state["fill_vals"])
        proc.fill_strategy = state["fill_strategy"]
        proc.fills, proc.was_missing = dict(state["fills"]), dict(state["was_missing"])
        return proc


def _none_missing(values: torch.Tensor) -> bool:
    """Return whether a sum, at a tenth of a scan's cost, tells that nothing is missing."""
    return not values.is_cuda and bool(values.sum().isfinite())


def _median(values: np.ndarray, present: int) -> float:
    if not present:
        return 0.0
    values = values if present == len(values) else values[~np.isnan(values)]
    upper = present // 2
    lower = upper if present % 2 else upper - 1
    low, high = _ranked_near(values, lower, upper) or _ranked(values, lower, upper)
    return high if present % 2 else (low + high) / 2


def _ranked(values: np.ndarray, lower: int, upper: int) -> tuple[float, float]:
    """Return the numbers of two ranks, from 0, of which the second is the first or its successor."""
    ranked = np.partition(values, upper)
    high = float(ranked[upper])
    return (high if lower == upper else float(ranked[:upper].max())), high


def _ranked_near(values: np.ndarray, lower: int, upper: int) -> tuple[float, float] | None:
    """Find ``_ranked`` of the middle ranks: a sample tells a narrow interval, and counts whether it holds them.

    Only what lies between is sorted. Partitioning takes ten times as long where numbers differ, and three hundred
    times where most are equal, as counts are.

    Returns:
        The two numbers; None where the sample did not come near.
    """
    if len(values) < 4 * limits.MEDIAN_SAMPLE:
        return None
    sample = np.sort(values[:: min(len(values) // limits.MEDIAN_SAMPLE, limits.MEDIAN_SAMPLED)])
    middle, off = len(sample) // 2, 2 * int(len(sample) ** 0.5)  # four standard deviations of the middle's rank
    first, last = sample[middle - off], sample[middle + off]
    low = values <= first
    to_first = np.count_nonzero(low)
    if upper < to_first:
        return (float(first), float(first)) if np.count_nonzero(values < first) <= lower else None
    high = values < last
    to_last = np.count_nonzero(high)
    if lower >= to_last:
        return (float(last), float(last)) if np.count_nonzero(values <= last) > upper else None
    if lower < to_first or upper >= to_last:
        return None
    between = np.sort(values[np.not_equal(low, high, out=high)])  # what is low is below ``last`` too
    return float(between[lower - to_first]), float(between[upper - to_first])


def _mode(values: np.ndarray) -> float:
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    best = np.flatnonzero(counts == counts.max())
    return float(distinct[best[np.argmin(first[best])]])
