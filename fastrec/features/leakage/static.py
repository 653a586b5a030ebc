"""Columns that no change of a target moves, held to the targets by statistics: what was made from them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fastrec.errors import DataError
from fastrec.features.leakage.draws import says_target
from fastrec.table import Column

_LEAST_ROWS, _LEAST_KEYS = 20, 8
_CHANCE = 1e-9
_CLOSE, _CLOSE_SINGLE = 1e-9, 5e-7  # of the size: what a statistic may differ by rounding
_MOST_CLASSES = 5


@dataclass(frozen=True, eq=False)
class Held:
    """A target that columns are held to.

    Args:
        name: its name.
        target: its values in the checked rows.
        whole: its values in all rows that were given.
        rows: int64 ``[n]``, the numbers of the checked rows among all.
    """

    name: str
    target: Column
    whole: Column
    rows: torch.Tensor

    @cached_property
    def y(self) -> torch.Tensor:
        """The target as a number, NaN where it is missing: float64 ``[n]``."""
        return _place(self.target)

    @property
    def classes(self) -> list[torch.Tensor]:
        """All rows' target as numbers: of text, whether it is a class, for each of the first."""
        if self.whole.kind in ("number", "datetime"):
            return [_place(self.whole)]
        codes = self.whole.coded().codes
        wanted = range(1, min(int(codes.max()), _MOST_CLASSES) + 1) if len(codes) else []
        return [torch.where(codes == 0, torch.nan, (codes == k).double()) for k in wanted]


def _place(column: Column) -> torch.Tensor:
    if column.kind in ("number", "datetime"):
        return column.number()
    codes = column.coded().codes
    return torch.where(codes == 0, torch.nan, codes.double())


def one_to_one(column: Column, held: Held) -> str | None:
    """What says that a column is the target in other words: each value stands for one of the target's, row by row."""
    known = ~held.target.is_missing()
    try:
        a, b = held.target.coded().codes[known], column.coded().codes[known]
    except DataError:
        return None
    n, targets = len(a), len(torch.unique(a))
    if targets < 2 or n < _LEAST_ROWS:
        return None
    if n - targets >= _LEAST_ROWS:
        pairs = torch.unique(a * (int(b.max()) + 1) + b)
        if len(pairs) == targets == len(torch.unique(b)):
            return f"its {targets} values stand one to one for those of {held.name!r}"
        return None
    values = numbers(column)
    if (
        values is None
        or bool(values[known].isnan().any())
        or _line(held.y[known], values[known], _close(column)) is None
    ):
        return None
    return f"it is {held.name!r}, times a number, plus a number"


def row_order(column: Column, held: Held) -> str | None:
    """What says that a column is a row's place, or its id, and that rows come in the order of the target."""
    known = ~held.target.is_missing()
    values = numbers(column)
    if values is None or column.kind != "number":
        return None
    y, values, rows = held.y[known], values[known], held.rows[known]
    order = torch.argsort(values)
    several = torch.unique(y, return_counts=True)[1]
    enough = len(several) > 1 and len(y) >= _LEAST_ROWS and (len(several) > 5 or int(several.min()) >= 5)
    if not enough or not bool(torch.isfinite(values).all()) or not _is_sorted(y[order]):
        return None
    steps = values[order].diff()
    if bool((steps == 0).any()) or bool((values != values.round()).any()):
        return None
    place = _is_sorted(rows[order])
    dense = float(values.max() - values.min()) <= 2 * len(held.whole)
    if not dense:
        return None
    return f"it is {'the place of each row' if place else 'an id'}, and follows the order of {held.name!r} without fail"


def follows(column: Column, held: Held) -> str | None:
    """What says that a column orders the rows as the target does, which a very good column may do by right."""
    values = numbers(column)
    if values is None or column.kind == "category":
        return None
    known = ~(held.target.is_missing() | values.isnan())
    y, values = held.y[known], values[known]
    order = torch.argsort(values, stable=True)
    several = torch.unique(y, return_counts=True)[1]
    if not _is_sorted(y[order]) or len(several) < 2 or len(y) < _LEAST_ROWS:
        return None
    steps, targets = values[order].diff(), y[order].diff()
    if bool(((steps == 0) & (targets != 0)).any()) or (len(several) == 2 and int(several.min()) < _LEAST_ROWS):
        return None
    return f"orders the rows as {held.name!r} does, without fail: is it known when the rows are scored?"


def of_key(
    column: Column,
    keys: Mapping[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]],
    whole_key: Callable[[tuple[str, ...]], torch.Tensor],
    held: Held,
) -> str | None:
    """What says that a column is a statistic of the target over the rows of a key.

    Args:
        column: the column.
        keys: columns that may be keys, one or two, as codes int64 ``[n]``, and the order that ``by_group`` gives.
        whole_key: gives the codes of one of them in all rows.
        held: the target.
    """
    values = numbers(column)
    if values is None:
        return None
    close = _close(column)
    for key, (codes, _) in keys.items():
        first = _by_key(values, codes, close)
        if first is None:
            continue
        for y in held.classes:
            found = _statistic(first[codes], codes, whole_key(key), held.rows, y, close)
            if found:
                rows = "over the rows that were given, made beforehand"
                return f"for each {_named(key)} it is {found} of {held.name!r} {rows}"
    for key, (codes, order) in keys.items():
        if says_target([(codes, held.y, values, order)], "static"):
            return f"within each {_named(key)} it says {held.name!r}, as leave-one-out means do"
    return None


def _named(key: Sequence[str]) -> str:
    return " and ".join(repr(n) for n in key)


def numbers(column: Column) -> torch.Tensor | None:
    """A column's numbers on the CPU, NaN where missing; None of what holds none."""
    try:
        return column.number().to("cpu") if column.kind in ("number", "datetime", "category") else None
    except DataError:
        return None


def _is_sorted(values: torch.Tensor) -> bool:
    steps = values.diff()
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def _close(column: Column) -> float:
    single = column.kind == "number" and column.values.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return _CLOSE_SINGLE if single else _CLOSE


def _line(x: torch.Tensor, y: torch.Tensor, close: float) -> float | None:
    """The slope of ``y = a x + b`` where that holds but for rounding, and there is one."""
    if len(x) < 3:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread, size = float(x.abs().max()), float(y.abs().max())
    if not spread > 0 or not size > 0:  # nor where one is missing
        return None
    slope = float((x * y).sum() / (x * x).sum())
    return slope if slope and bool(((y - slope * x).abs() <= close * size).all()) else None


def _by_key(values: torch.Tensor, codes: torch.Tensor, close: float) -> torch.Tensor | None:
    """Each key's value, where all its rows have one, and keys have several: float64 ``[number of codes]``."""
    size = int(codes.max()) + 1
    known = ~values.isnan()
    low = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce_(0, codes[known], values[known], "amin")
    high = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, codes[known], values[known], "amax")
    there = high >= low
    if bool((high[there] - low[there] > close * high[there].abs()).any()) or len(torch.unique(low[there])) < 2:
        return None
    return torch.where(there, low, torch.nan)


def _statistic(
    values: torch.Tensor,
    codes: torch.Tensor,
    whole_codes: torch.Tensor,
    rows: torch.Tensor,
    y: torch.Tensor,
    close: float,
) -> str | None:
    """Which statistic of ``y`` by key the values are, in words.

    Args:
        values: float64 ``[n]``, the checked rows' values, equal within keys.
        codes: int64 ``[n]``, the checked rows' keys.
        whole_codes, y: int64 and float64 ``[m]``, keys and targets of all rows.
        rows: int64 ``[n]``, the numbers of the checked rows among all.
        close: what may be rounding, of the values' size.
    """
    known = ~y.isnan()
    stats = _Stats.of(whole_codes[known], y[known], int(whole_codes.max()) + 1)
    first = torch.full((int(codes.max()) + 1,), len(rows), dtype=torch.int64)
    first.scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
    first = first[(first < len(rows))]
    value, at = values[first], whole_codes[rows[first]]
    # Keys of one target say nothing: there every column that follows the target is its mean.
    told = (stats.high[at] > stats.low[at]) & value.isfinite() & (at > 0)
    value, at = value[told], at[told]
    if len(value) < _LEAST_KEYS or len(torch.unique(value)) < 2:
        return None
    return next(_exact(value, at, stats, close), None) or _of_counts(value, at, stats, close)


@dataclass(frozen=True, eq=False)
class _Stats:
    n: torch.Tensor
    total: torch.Tensor
    squares: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def of(cls, codes: torch.Tensor, y: torch.Tensor, size: int) -> _Stats:
        blank = torch.zeros(size, dtype=torch.float64)
        n = torch.bincount(codes, minlength=size).double()
        total = blank.index_add(0, codes, y)
        mean = total / n.clamp_min(1)
        squares = blank.index_add(0, codes, (y - mean[codes]).square())
        low = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce_(0, codes, y, "amin")
        high = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, codes, y, "amax")
        return cls(n, total, squares, low, high)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "the mean", self.total / self.n
        yield "the sum", self.total
        yield "the standard deviation", (self.squares / (self.n - 1)).sqrt()
        yield "the population's standard deviation", (self.squares / self.n).sqrt()
        yield "the largest", self.high
        yield "the smallest", self.low


def _exact(value: torch.Tensor, at: torch.Tensor, stats: _Stats, close: float) -> Iterator[str]:
    """Statistics that the values are, but for a factor, a shift and rounding."""
    for name, by_key in stats.named():
        stat = by_key[at]
        if not bool(stat.isfinite().all()) or len(torch.unique(stat)) < _LEAST_KEYS:
            continue
        if _line(stat, value, close) is not None:
            yield name
    # Steps must be small beside what a mean varies by from one sample to the next: else a good guess comes as near.
    error = (stats.squares / (stats.n - 1) / stats.n).sqrt()[at].median()
    for digits in range(1, 7):
        near = (value - (stats.total / stats.n)[at]).abs() <= 0.50001 * 10.0**-digits
        if bool(near.all()) and 2.5 * 10.0**-digits <= error and _has_digits(value, digits):
            yield "the mean, rounded,"
    # (S + m p) / (n + m) = v for some m and p: then v n - S = m p - m v, which is a line in v.
    n, total = stats.n[at], stats.total[at]
    rest = value * n - total
    if len(torch.unique(total / n)) >= _LEAST_KEYS and len(torch.unique(value)) >= _LEAST_KEYS:
        slope = _line(value, rest, close)
        if slope is not None and slope < 0 and len(torch.unique(n)) > 1:
            yield "a smoothed mean"


def _has_digits(value: torch.Tensor, digits: int) -> bool:
    """Whether values are rounded to so many digits after the point, and several."""
    scaled = value * 10.0**digits
    several = len(torch.unique(value)) >= _LEAST_KEYS
    return several and bool(((scaled - scaled.round()).abs() <= 1e-6 * scaled.abs().clamp_min(1)).all())


def _of_counts(value: torch.Tensor, at: torch.Tensor, stats: _Stats, close: float) -> str | None:
    """Whether the values follow from how many rows and which sum a key has, and not from how many alone."""
    _, places, sizes = torch.unique(
        torch.stack([stats.n[at], stats.total[at]]), dim=1, return_inverse=True, return_counts=True
    )
    again = int((sizes - 1).sum())
    level = torch.unique(value, return_inverse=True, return_counts=True)[2].double() / len(value)
    chance = float(level.square().sum())
    if not again or chance**again > _CHANCE or _varies_within(value, places, close):
        return None
    alone = torch.unique(stats.n[at], return_inverse=True)[1]
    return "a function of the count and the sum" if _varies_within(value, alone, close) else None


def _varies_within(value: torch.Tensor, groups: torch.Tensor, close: float) -> bool:
    size = int(groups.max()) + 1
    low = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce_(0, groups, value, "amin")
    high = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, groups, value, "amax")
    return bool((high - low > close * high.abs()).any())
