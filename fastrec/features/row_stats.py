"""``RowStats``: statistics of a row's own numbers, across many columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns, is_open
from fastrec.features._inputs import as_columns, as_list, number_of
from fastrec.features.base import Feature, RowWise, Tensors
from fastrec.table import Column, Table

Stat = Literal["zeros", "missing", "negative", "nunique", "sum", "mean", "std", "min", "max"]

_BLOCK = 1 << 21  # numbers laid side by side at a time: 16 MiB, whatever the table's size


class RowStats(OfColumns, RowWise):
    """How many of a row's numbers are 0, missing, below 0 or distinct, and their sum, mean, spread and range.

    For wide tables of columns without a name that says anything: there a row's zeros, or how alike its values are,
    often say more than any one column. Missing values count in ``missing`` alone. A row without any value has the sum
    0; its mean, std, min and max are missing, and so is the std of one value. Infinities are numbers, as in pandas.

    Args:
        cols: number columns (booleans and times are numbers too), selectors of them, or generators.
        stats: of ``zeros``, ``missing``, ``negative``, ``nunique`` (distinct values; int64 like the other counts),
            ``sum``, ``mean``, ``std`` (sample), ``min`` and ``max`` (float64). ``nunique`` sorts each row, which costs
            more than all others together.
        name: the outputs' first word: ``row_zeros``, ``row_mean``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RowStats, number
        >>> df = pd.DataFrame({"a": [0.0, 1.0], "b": [4.0, None], "c": [2, 3]})
        >>> RowStats(number(), ["zeros", "missing", "mean"]).fit_transform(df).iloc[:, 3:].values.tolist()
        [[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        stats: Stat | Sequence[Stat] = ("zeros", "missing", "mean", "std", "min", "max"),
        *,
        name: str = "row",
    ) -> None:
        self.cols, self.stats, self.name = cols, stats, name
        asked = as_list(stats)
        if not asked or len(set(map(str, asked))) < len(asked) or any(str(s) not in _STATS for s in asked):
            known = ", ".join(map(repr, _STATS))
            raise DataError(f"RowStats cannot make the statistics {stats!r}", remedy=f"Use some of {known}, each once")
        if not is_open(cols):
            self._check()

    def _check(self) -> None:
        if not self.columns:
            raise DataError("RowStats makes no statistic of no column", remedy="Name one or more")

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_{stat}" for stat in as_list(self.stats)]

    def prepare(self, table: Table) -> Tensors:
        self._check()  # a selector has chosen by now
        return {c: number_of(table, c, wanted_by=self) for c in self.columns}

    def apply(self, tensors: Tensors) -> Tensors:
        rows = torch.stack([tensors[c] for c in self.columns], 1)
        return {name: _STATS[stat](rows) for name, stat in zip(self.outputs, as_list(self.stats), strict=True)}

    def compute(self, table: Table) -> dict[str, Column]:
        """The statistics, by blocks of rows: side by side, hundreds of columns are held for one block only."""
        table = table.select(dict.fromkeys(self.columns))
        # What is no plain number is converted, or refused, once and with its row's number in the whole table.
        odd = [n for n in table.names if table[n].kind not in ("number", "datetime")]
        table = table.with_columns({n: number_of(table, n, wanted_by=self) for n in odd})
        size = max(_BLOCK // max(len(self.columns), 1), 1)
        starts = range(0, max(len(table), 1), size)
        parts = [self.apply(self.prepare(table.slice(s, min(s + size, len(table))))) for s in starts]
        return as_columns({n: torch.cat([p[n] for p in parts]) for n in self.outputs})


# Each from numbers float64 [n, columns], NaN where missing, to [n] ---------------------------------------------------


def _count(rows: torch.Tensor) -> torch.Tensor:
    return rows.shape[1] - rows.isnan().sum(1)


def _nunique(rows: torch.Tensor) -> torch.Tensor:
    ordered = rows.sort(1).values  # NaN comes last
    new = (ordered[:, 1:] != ordered[:, :-1]) & ~ordered[:, 1:].isnan()
    return new.sum(1) + (~ordered[:, 0].isnan()).long()


def _low(rows: torch.Tensor) -> torch.Tensor:
    return torch.where(_count(rows) > 0, torch.where(rows.isnan(), torch.inf, rows).amin(1), torch.nan)


def _high(rows: torch.Tensor) -> torch.Tensor:
    return torch.where(_count(rows) > 0, torch.where(rows.isnan(), -torch.inf, rows).amax(1), torch.nan)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    mean = rows.nansum(1) / _count(rows)
    # Equal values have themselves for a mean, to the last bit, and then no spread.
    return torch.where(mean.isinf(), mean, torch.clamp(mean, _low(rows), _high(rows)))


def _std(rows: torch.Tensor) -> torch.Tensor:
    count = _count(rows)
    rest = torch.where(rows.isnan(), 0, rows - _mean(rows)[:, None])
    return torch.where(count > 1, ((rest * rest).sum(1) / (count - 1)).sqrt(), torch.nan)


_STATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": lambda rows: (rows == 0).sum(1),
    "missing": lambda rows: rows.isnan().sum(1),
    "negative": lambda rows: (rows < 0).sum(1),
    "nunique": _nunique,
    "sum": lambda rows: rows.nansum(1),
    "mean": _mean,
    "std": _std,
    "min": _low,
    "max": _high,
}
