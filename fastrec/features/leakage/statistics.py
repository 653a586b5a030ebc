"""Statistics of leaks: rows that follow their own target in random runs, columns precomputed from targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features.leakage.frames import moved, typical
from fastrec.segments import segment_max, segment_min
from fastrec.table import Column

# Pairs of rows that must agree before chance is ruled out.
_LEAST_PAIRS = {"drawn": 500, "moved": 120, "static": 150}


def patterns(known: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw which runs change whose targets, bool ``[LEAK_DRAWS, n]``: each ``known`` one in some, but not all."""
    count = limits.LEAK_DRAWS
    numbers = torch.randint(1, (1 << count) - 1, (len(known),), generator=generator)
    return ((numbers >> torch.arange(count).unsqueeze(1)) & 1).bool() & known


def change(before: Column, after: Column, scale: float | None = None, *, exact: bool = False) -> torch.Tensor:
    """Return the size of each value's change: float64 ``[n]``, 0 if unchanged; 1 for values that are no numbers."""
    # exact: include changes that may be rounding
    odd = moved(before, after, scale).to("cpu")
    if not exact and not bool(odd.any()):
        return torch.zeros(len(odd), dtype=torch.float64)
    if before.kind != after.kind or before.kind not in ("number", "vector"):
        return odd.double()
    a, b = before.values.to("cpu").double(), after.values.to("cpu").double()
    if before.kind == "vector":  # a randomly weighted sum distinguishes vectors by one number
        if a.shape != b.shape:
            return odd.double()
        weights = torch.rand(a.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        delta = (b - a).nan_to_num(0, 0, 0) @ weights
    else:
        delta = (b - a).nan_to_num(0, 0, 0)
        gone, gone_too = before.is_missing().to("cpu"), after.is_missing().to("cpu")
        far = 10 * (1 + a.nan_to_num(0, 0, 0).abs().amax()) if len(a) else 1.0
        delta = torch.where(gone == gone_too, delta, torch.where(gone_too, far, -far))
        delta = torch.where(gone & gone_too, 0.0, delta)
    return delta if exact else torch.where(odd, delta, 0.0)


@dataclass(frozen=True)
class Followers:
    """Rows of a column that may follow their own target, the likeliest first: int64."""

    rows: torch.Tensor
    effects: torch.Tensor  # change of each row with its target
    exact: bool  # whether only the last digits change

    def left(self, delta: torch.Tensor, flipped: torch.Tensor) -> Followers:
        """Filter for rows that moved in a further run (``delta``) if, and only if, their target was ``flipped``."""
        stays = (delta[self.rows].abs() >= self.effects.abs() / 2) == flipped[self.rows]
        return Followers(self.rows[stays], self.effects[stays], self.exact)


def followers(deltas: torch.Tensor, flips: torch.Tensor, *, exact: bool) -> Followers:
    """Find rows whose value moves with their own target, over runs in which targets were changed at random."""
    # Each row's changes are drawn independently, so effects of other rows average out. A row counts if its moves with
    # and without its target changed (deltas, flips: [LEAK_DRAWS, n]) differ by many standard errors. By chance a row
    # that follows another one changed in the same runs counts too
    on, off = flips.sum(0).double().clamp_min(1), (~flips).sum(0).double().clamp_min(1)
    with_it, without = (deltas * flips).sum(0) / on, (deltas * ~flips).sum(0) / off
    effect = with_it - without
    rest = (deltas - torch.where(flips, with_it, without)).square().sum(0)
    error = (rest / (len(deltas) - 2) * (1 / on + 1 / off)).sqrt()
    ratio = effect.abs() / torch.maximum(error, 1e-9 * effect.abs())
    if exact:  # signs of such moves mean nothing; they must occur in the same runs
        effect, ratio = effect.abs(), torch.where(((deltas != 0) == flips).all(0), torch.inf, 0.0)
        effect = torch.where(effect == 0, deltas.abs().amax(0), effect)
    chosen = ((ratio >= limits.LEAK_ERRORS) & (effect != 0) & flips.any(0)).nonzero().squeeze(1)
    chosen = chosen[torch.argsort(ratio[chosen], descending=True, stable=True)][: limits.LEAK_FOLLOWERS]
    return Followers(chosen, effect[chosen], exact)


def movers(deltas: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Return the moved rows, those that move most with their own target first; none if 30 % of rows moved."""
    odd = deltas != 0
    rows = odd.any(0)
    if float(rows.double().mean()) > 0.3:
        return torch.zeros(0, dtype=torch.int64)
    score = (odd & flips).sum(0) - (odd & ~flips).sum(0)
    found = rows.nonzero().squeeze(1)
    return found[torch.argsort(score[found], descending=True, stable=True)]


def by_group(codes: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Order rows by group, then by target: int64 ``[n]``."""
    order = torch.argsort(y, stable=True)
    return order[torch.argsort(codes[order], stable=True)]


def told_within(
    codes: torch.Tensor, y: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[int, int]:
    """Count the pairs that reveal the target within groups: equal values for equal targets, else all higher or lower.

    Pairs are neighbours in groups of at least four rows and several targets, as folds leave out one row in smaller ones
    too. The count is 0 if one pair contradicts. The second number counts the pairs of equal targets.
    """
    order = by_group(codes, y) if order is None else order
    codes, y, values = codes[order], y[order], values[order]
    kept = ~(y.isnan() | values.isnan() | values.isinf())
    if not bool(kept.all()):
        codes, y, values = codes[kept], y[kept], values[kept]
    if not len(codes):
        return 0, 0
    together = codes[1:] == codes[:-1]
    rises = together & (y[1:] > y[:-1])
    step = values[1:] - values[:-1]
    allowed = limits.LEAK_RELATIVE * torch.maximum(values[1:].abs(), values[:-1].abs()) + limits.LEAK_ABSOLUTE
    up, down = step > allowed, step < -allowed
    if bool((rises & ~up).any()) and bool((rises & ~down).any()):
        return 0, 0
    several = torch.zeros(int(codes.max()) + 1, dtype=torch.bool)
    several[codes[1:][rises]] = True
    together &= several[codes[1:]]
    same = together & ~rises
    if bool((same & (up | down)).any()):
        return 0, 0
    together &= (torch.bincount(codes) >= 4)[codes[1:]]
    return int(together.sum()), int((same & together).sum())


def says_target(cases: Iterable[tuple[torch.Tensor, ...]], how: Literal["drawn", "moved", "static"]) -> bool:
    """Decide whether values reveal the target in all cases of ``told_within``, in more pairs than by chance.

    ``drawn``: all targets were changed at random; ``moved``: the rows that one target moves; ``static``: nothing was
    changed. For ``static`` most targets must be equal, as distinct numbers are weaker evidence.
    """
    pairs = equal = 0
    for case in cases:
        count, same = told_within(*case)
        if not count:
            return False
        pairs, equal = pairs + count, equal + same
    return pairs >= _LEAST_PAIRS[how] and (how != "static" or 2 * equal > pairs)


def scattered(before: Column, after: Column) -> bool:
    """Detect that one target's change moved many values in disorder: folds that depend on the targets."""
    # A statistic of the target moves rows of equal value alike; redrawn folds separate them.
    if before.kind != "number" or after.kind != "number":
        return False
    a, b = before.number().to("cpu"), after.number().to("cpu")
    if float(moved(before, after).double().mean()) < 0.3:
        return False
    order = torch.argsort(a, stable=True)
    a, b = a[order], b[order]
    allowed = limits.LEAK_RELATIVE * a[1:].abs() + limits.LEAK_ABSOLUTE * typical(before)
    apart = (b[1:] - b[:-1] < -allowed) | ((a[1:] - a[:-1] <= allowed) & ((b[1:] - b[:-1]).abs() > 10 * allowed))
    return float(apart.double().mean()) >= 0.05


# Columns computed from the target beforehand: no change of a target moves them.


@dataclass(frozen=True, eq=False)
class HeldTarget:
    """Target to compare columns with, in the checked rows and in all; ``rows``: numbers of the checked ones."""

    name: str
    target: Column
    whole: Column
    rows: torch.Tensor

    @cached_property
    def y(self) -> torch.Tensor:
        """The target as a number, NaN where missing: float64 ``[n]``."""
        return _place(self.target)

    @property
    def classes(self) -> list[torch.Tensor]:
        """All rows' target as numbers; for text, indicators of the first five classes."""
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
    """Describe a column whose values map one to one to the target's; None otherwise."""
    known = ~held.target.is_missing()
    try:
        a, b = held.target.coded().codes[known], column.coded().codes[known]
    except DataError:
        return None
    n, targets = len(a), len(torch.unique(a))
    if targets < 2 or n < limits.LEAK_LEAST_ROWS:
        return None
    if n - targets >= limits.LEAK_LEAST_ROWS:  # for repeated targets a map; else only a line is evidence
        if len(torch.unique(a * (int(b.max()) + 1) + b)) == targets == len(torch.unique(b)):
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
    """Describe a column of row numbers or ids in a frame sorted by the target; None otherwise."""
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
    if bool((values[order].diff() == 0).any()) or bool((values != values.round()).any()):
        return None
    place = _is_sorted(rows[order])
    dense = float(values.max() - values.min()) <= 2 * len(held.whole)
    if not dense:
        return None
    return f"it is {'the place of each row' if place else 'an id'}, and follows the order of {held.name!r} without fail"


def follows(column: Column, held: HeldTarget) -> str | None:
    """Describe a column that orders the rows as the target does, as a very good column may; None otherwise."""
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
    """Describe a column that is a statistic of the target over the rows of a key; None otherwise."""
    # keys: possible keys of one or two columns, as codes int64 [n], and their by_group order; whole_key returns the
    # codes of one in all rows
    values = numbers(column)
    if values is None:
        return None
    close, known = _close(column), ~values.isnan()
    for key, (codes, _) in keys.items():
        size = int(codes.max()) + 1
        low, high = (reduce(values[known], codes[known], size) for reduce in (segment_min, segment_max))
        there = high >= low
        # All rows of a key share one value, and keys differ.
        if bool((high[there] - low[there] > close * high[there].abs()).any()) or len(torch.unique(low[there])) < 2:
            continue
        first = torch.where(there, low, torch.nan)
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
    """Return the slope of ``y = a x + b`` if that fits up to rounding, with a slope; else None."""
    if len(x) < 3:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread, size = float(x.abs().max()), float(y.abs().max())
    if not spread > 0 or not size > 0:  # also false for NaN
        return None
    slope = float((x * y).sum() / (x * x).sum())
    return slope if slope and bool(((y - slope * x).abs() <= close * size).all()) else None


def _statistic(
    values: torch.Tensor,
    codes: torch.Tensor,
    whole_codes: torch.Tensor,
    rows: torch.Tensor,
    y: torch.Tensor,
    close: float,
) -> str | None:
    """Name the statistic of ``y`` by key that equals the checked rows' values (float64 ``[n]``, equal within keys)."""
    # whole_codes, y: keys and targets of all rows [m]; rows: int64 [n], numbers of the checked ones
    known = ~y.isnan()
    stats = _Stats.of(whole_codes[known], y[known], int(whole_codes.max()) + 1)
    first = segment_min(torch.arange(len(codes)), codes, int(codes.max()) + 1)
    first = first[(first < len(rows))]
    value, at = values[first], whole_codes[rows[first]]
    # Keys of one target are no evidence: every column that follows the target is its mean there.
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
        squares = blank.index_add(0, codes, (y - (total / n.clamp_min(1))[codes]).square())
        return cls(n, total, squares, segment_min(y, codes, size), segment_max(y, codes, size))

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "the mean", self.total / self.n
        yield "the sum", self.total
        yield "the standard deviation", (self.squares / (self.n - 1)).sqrt()
        yield "the population's standard deviation", (self.squares / self.n).sqrt()
        yield "the largest", self.high
        yield "the smallest", self.low


def _exact(value: torch.Tensor, at: torch.Tensor, stats: _Stats, close: float) -> Iterator[str]:
    """Yield the statistics that the values equal up to a factor, a shift and rounding."""
    for name, by_key in stats.named():
        stat = by_key[at]
        if not bool(stat.isfinite().all()) or len(torch.unique(stat)) < limits.LEAK_LEAST_KEYS:
            continue
        if _line(stat, value, close) is not None:
            yield name
    # Rounding must be small relative to the means' standard error: else a good estimate comes as close.
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
    """Test whether the values follow from a key's count and sum, but not from the count alone."""
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
    low, high = segment_min(value, groups, size), segment_max(value, groups, size)
    return bool((high - low > close * high.abs()).any())
