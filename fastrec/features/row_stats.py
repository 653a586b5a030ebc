"""``RowStats``: statistics of a row's own numbers, across many columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Literal, get_args

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns, is_open
from fastrec.features._inputs import as_columns, as_list, number_of
from fastrec.features.base import Cols, RowWise, Tensors
from fastrec.table import Column, Table

Stat = Literal["zeros", "missing", "negative", "nunique", "sum", "mean", "std", "min", "max"]
_STATS = get_args(Stat)


class RowStats(OfColumns, RowWise):
    """Statistics across a row's columns, for wide tables of anonymous columns.

    Missing values count in ``missing`` alone. A row without any value has the sum 0; its mean, std, min and max are
    missing, and so is the std of one value. Infinities are numbers, as in pandas.

    Args:
        cols: number columns (booleans and times are numbers too), selectors of them, or generators.
        stats: any of ``zeros``, ``missing``, ``negative``, ``nunique`` (counts, int64), ``sum``, ``mean``, ``std``
            (sample), ``min`` and ``max`` (float64). ``nunique`` costs more than all others: it sorts each row.
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
        cols: Cols,
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
        rows = _RowNumbers([tensors[c] for c in self.columns])
        return {name: getattr(rows, stat) for name, stat in zip(self.outputs, as_list(self.stats), strict=True)}

    def compute(self, table: Table) -> dict[str, Column]:
        # In blocks of rows: hundreds of columns would not fit as float64 all at once.
        table = table.select(dict.fromkeys(self.columns))
        # What is no plain number is converted, or refused, once and with its row's number in the whole table.
        odd = [n for n in table.names if table[n].kind not in ("number", "datetime")]
        table = table.with_columns({n: number_of(table, n, wanted_by=self) for n in odd})
        size = max(limits.ROW_STATS_NUMBERS // max(len(self.columns), 1), 1)
        starts = range(0, max(len(table), 1), size)
        parts = [self.apply(self.prepare(table.slice(s, min(s + size, len(table))))) for s in starts]
        return as_columns({n: torch.cat([p[n] for p in parts]) for n in self.outputs})


class _RowNumbers:
    """Statistics of rows, each computed at first use, of columns float64 ``[n]``, NaN where missing."""

    # Sums run from column to column: a reduction over a matrix would make a row's bits depend on the rows around it.

    def __init__(self, columns: list[torch.Tensor]) -> None:
        self.columns = columns
        self.gone = [x.isnan() for x in columns]

    def _filled(self, value: float) -> Iterator[torch.Tensor]:
        return (torch.where(gone, value, x) for gone, x in zip(self.gone, self.columns, strict=True))

    @cached_property
    def zeros(self) -> torch.Tensor:
        return _how_many(x == 0 for x in self.columns)

    @cached_property
    def missing(self) -> torch.Tensor:
        return _how_many(self.gone)

    @cached_property
    def negative(self) -> torch.Tensor:
        return _how_many(x < 0 for x in self.columns)

    @cached_property
    def nunique(self) -> torch.Tensor:
        ordered = torch.stack(self.columns, 1).sort(1).values  # NaN comes last
        new = (ordered[:, 1:] != ordered[:, :-1]) & ~ordered[:, 1:].isnan()
        return new.sum(1) + (~ordered[:, 0].isnan()).long()

    @cached_property
    def count(self) -> torch.Tensor:
        return len(self.columns) - self.missing

    @cached_property
    def sum(self) -> torch.Tensor:
        return reduce(torch.add, self._filled(0))

    @cached_property
    def mean(self) -> torch.Tensor:
        mean = self.sum / self.count
        # Equal values have themselves for a mean, to the last bit, and then no spread.
        return torch.where(mean.isinf(), mean, torch.clamp(mean, self.min, self.max))

    @cached_property
    def std(self) -> torch.Tensor:
        rests = (torch.where(gone, 0, x - self.mean) for gone, x in zip(self.gone, self.columns, strict=True))
        total = reduce(torch.add, (r * r for r in rests))
        return torch.where(self.count > 1, (total / (self.count - 1)).sqrt(), torch.nan)

    @cached_property
    def min(self) -> torch.Tensor:
        return torch.where(self.count > 0, reduce(torch.minimum, self._filled(torch.inf)), torch.nan)

    @cached_property
    def max(self) -> torch.Tensor:
        return torch.where(self.count > 0, reduce(torch.maximum, self._filled(-torch.inf)), torch.nan)


def _how_many(masks: Iterable[torch.Tensor]) -> torch.Tensor:
    # Added as bytes, as many as one holds: widening each mask first would take several times as long.
    ones = [mask.view(torch.int8) for mask in masks]
    parts = (reduce(torch.add, ones[i : i + 127]) for i in range(0, len(ones), 127))
    return reduce(torch.add, (part.long() for part in parts))
