"""Statistics that find columns computed from the target beforehand: no change of a target moves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features.leakage.draws import says_target
from fastrec.table import Column


@dataclass(frozen=True, eq=False)
class HeldTarget:
    """A target to compare columns with, in the checked rows and in all; ``rows``: the numbers of the former."""

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
        """All rows' target as numbers; of text, 0/1 for each of the first five classes."""
        if self.whole.kind in ("number", "datetime"):
            return [_place(self.whole)]
        codes = self.whole.coded().codes
        wanted = range(1, min(int(codes.max()), 5) + 1) if len(codes) else []
        return [torch.where(codes == 0, torch.nan, (codes == k).double()) for k in wanted]


def _place(column: Column) -> torch.Tensor:
    if column.kind in ("number", "datetime"):
        return column.number()
    codes = column.coded().codes
    return torch.where(codes == 0, torch.nan, codes.double())


def one_to_one(column: Column, held: HeldTarget) -> str | None:
    """Describe a column whose values map one to one to the target's; None: it is none."""
    known = ~held.target.is_missing()
    try:
        a, b = held.target.coded().codes[known], column.coded().codes[known]
    except DataError:
        return None
    n, targets = len(a), len(torch.unique(a))
    if targets < 2 or n < limits.LEAK_LEAST_ROWS:
        return None
    if n - targets >= limits.LEAK_LEAST_ROWS:  # repeated targets: a map; else only a line tells
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


def row_order(column: Column, held: HeldTarget) -> str | None:
    """Describe a column of row numbers or ids in a frame sorted by the target; None: it is none."""
    known = ~held.target.is_missing()
    values = numbers(column)
    if values is None or column.kind != "number":
        return None
    y, values, rows = held.y[known], values[known], held.rows[known]
    order = torch.argsort(values)
    several = torch.unique(y, return_counts=True)[1]
    enough = len(several) > 1 and len(y) >= limits.LEAK_LEAST_ROWS and (len(several) > 5 or int(several.min()) >= 5)
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


def follows(column: Column, held: HeldTarget) -> str | None:
    """Describe a column that orders the rows as the target does, as a very good column may; None: it is none."""
    values = numbers(column)
    if values is None or column.kind == "category":
        return None
    known = ~(held.target.is_missing() | values.isnan())
    y, values = held.y[known], values[known]
    order = torch.argsort(values, stable=True)
    several = torch.unique(y, return_counts=True)[1]
    if not _is_sorted(y[order]) or len(several) < 2 or len(y) < limits.LEAK_LEAST_ROWS:
        return None
    steps, targets = values[order].diff(), y[order].diff()
    if bool(((steps == 0) & (targets != 0)).any()) or (
        len(several) == 2 and int(several.min()) < limits.LEAK_LEAST_ROWS
    ):
        return None
    return f"orders the rows as {held.name!r} does, without fail: is it known when the rows are scored?"


def of_key(
    column: Column,
    keys: Mapping[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]],
    whole_key: Callable[[tuple[str, ...]], torch.Tensor],
    held: HeldTarget,
) -> str | None:
    """Describe a column that is a statistic of the target over the rows of a key; None: it is none."""
    # keys: columns that may be keys, one or two, as codes int64 [n], and their by_group order; whole_key returns the
    # codes of one in all rows
    values = numbers(column)
    if values is None:
        return None
    close = _close(column)
    for key, (codes, _) in keys.items():
        first = _by_key(values, codes, close)
        if first is None:
            continue
        for y in held.classes:
            statistic = _statistic(first[codes], codes, whole_key(key), held.rows, y, close)
            if statistic:
                names = " and ".join(map(repr, key))
                return f"for each {names} it is {statistic} of {held.name!r} over all rows, made beforehand"
    for key, (codes, order) in keys.items():
        if says_target([(codes, held.y, values, order)], "static"):
            return f"within each {' and '.join(map(repr, key))} it says {held.name!r}, as leave-one-out means do"
    return None


def numbers(column: Column) -> torch.Tensor | None:
    """Return a column's numbers on the CPU, NaN where missing; None if it has none."""
    try:
        return column.number().to("cpu") if column.kind in ("number", "datetime", "category") else None
    except DataError:
        return None


def _is_sorted(values: torch.Tensor) -> bool:
    steps = values.diff()
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def _close(column: Column) -> float:
    single = column.kind == "number" and column.values.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return 5e-7 if single else 1e-9  # the relative rounding of a statistic


def _line(x: torch.Tensor, y: torch.Tensor, close: float) -> float | None:
    """Return the slope of ``y = a x + b`` if that holds but for rounding, with a slope; else None."""
    if len(x) < 3:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread, size = float(x.abs().max()), float(y.abs().max())
    if not spread > 0 or not size > 0:  # nor where one is missing
        return None
    slope = float((x * y).sum() / (x * x).sum())
    return slope if slope and bool(((y - slope * x).abs() <= close * size).all()) else None


def _by_key(values: torch.Tensor, codes: torch.Tensor, close: float) -> torch.Tensor | None:
    """Return each key's value, float64 ``[number of codes]``, if all its rows share one and keys differ; else None."""
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
    """Name the statistic of ``y`` by key that the checked rows' values (float64 ``[n]``, equal within keys) are."""
    # whole_codes, y: keys and targets of all rows [m]; rows: int64 [n], the checked ones' numbers
    known = ~y.isnan()
    stats = _Stats.of(whole_codes[known], y[known], int(whole_codes.max()) + 1)
    first = torch.full((int(codes.max()) + 1,), len(rows), dtype=torch.int64)
    first.scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
    first = first[(first < len(rows))]
    value, at = values[first], whole_codes[rows[first]]
    # Keys of one target say nothing: there every column that follows the target is its mean.
    told = (stats.high[at] > stats.low[at]) & value.isfinite() & (at > 0)
    value, at = value[told], at[told]
    if len(value) < limits.LEAK_LEAST_KEYS or len(torch.unique(value)) < 2:
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
    """Yield the statistics that the values are, but for a factor, a shift and rounding."""
    for name, by_key in stats.named():
        stat = by_key[at]
        if not bool(stat.isfinite().all()) or len(torch.unique(stat)) < limits.LEAK_LEAST_KEYS:
            continue
        if _line(stat, value, close) is not None:
            yield name
    # Rounding steps must be small next to the means' standard error: else a good guess comes as near.
    several = len(torch.unique(value)) >= limits.LEAK_LEAST_KEYS
    error = (stats.squares / (stats.n - 1) / stats.n).sqrt()[at].median()
    for digits in range(1, 7):
        near = (value - (stats.total / stats.n)[at]).abs() <= 0.50001 * 10.0**-digits
        scaled = value * 10.0**digits
        rounded = bool(((scaled - scaled.round()).abs() <= 1e-6 * scaled.abs().clamp_min(1)).all())
        if bool(near.all()) and 2.5 * 10.0**-digits <= error and rounded and several:
            yield "the mean, rounded,"
    # (S + m p) / (n + m) = v for some m and p: then v n - S = m p - m v, which is a line in v.
    n, total = stats.n[at], stats.total[at]
    rest = value * n - total
    if len(torch.unique(total / n)) >= limits.LEAK_LEAST_KEYS and several:
        slope = _line(value, rest, close)
        if slope is not None and slope < 0 and len(torch.unique(n)) > 1:
            yield "a smoothed mean"


def _of_counts(value: torch.Tensor, at: torch.Tensor, stats: _Stats, close: float) -> str | None:
    """Test whether the values follow from a key's count and sum, and not from the count alone."""
    _, places, sizes = torch.unique(
        torch.stack([stats.n[at], stats.total[at]]), dim=1, return_inverse=True, return_counts=True
    )
    again = int((sizes - 1).sum())
    level = torch.unique(value, return_inverse=True, return_counts=True)[2].double() / len(value)
    chance = float(level.square().sum())
    if not again or chance**again > 1e-9 or _varies_within(value, places, close):
        return None
    alone = torch.unique(stats.n[at], return_inverse=True)[1]
    return "a function of the count and the sum" if _varies_within(value, alone, close) else None


def _varies_within(value: torch.Tensor, groups: torch.Tensor, close: float) -> bool:
    size = int(groups.max()) + 1
    low = torch.full((size,), torch.inf, dtype=torch.float64).scatter_reduce_(0, groups, value, "amin")
    high = torch.full((size,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, groups, value, "amax")
    return bool((high - low > close * high.abs()).any())
