"""The rows that ``check_leakage`` checks, those it changes, and the times it cuts at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._inputs import order_keys
from fastrec.segments import Groups
from fastrec.table import Table, as_column, column_names


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """Targets, order and key of the checked rows.

    Args:
        table: these columns.
        targets, order, keys: their names.
        seed: the seed of every choice.
    """

    table: Table
    targets: list[str]
    order: list[str]
    keys: list[str]
    seed: int

    @classmethod
    def of(cls, df: Any, targets: Sequence[str], order: Sequence[str], keys: Sequence[str], seed: int) -> CheckedRows:
        """Read the columns of a frame of any supported library."""
        table = Table.read(df, list(dict.fromkeys([*targets, *order, *keys]))).to("cpu")
        return cls(table, list(targets), list(order), list(keys), seed)

    def take(self, rows: torch.Tensor) -> CheckedRows:
        """Return some of the rows."""
        return replace(self, table=self.table.take(rows))

    @cached_property
    def rank(self) -> torch.Tensor:
        """The rank of each row's order value among the distinct ones, from 0: int64 ``[n]``."""
        keys = order_keys(self.table, self.order)
        groups = Groups.of(torch.zeros(len(self.table), dtype=torch.int64), *keys)
        new = torch.zeros(len(self.table), dtype=torch.bool)
        for key in keys:
            key = groups.sort(key)
            new[1:] |= key[1:] != key[:-1]
        return groups.unsort(torch.cumsum(new, 0))

    def generator(self) -> torch.Generator:
        """Return a new generator of the seed."""
        return torch.Generator().manual_seed(self.seed)

    def other_targets(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return, for each target, the row whose value each row takes: for ``rows`` a far value, else its own."""
        source = {}
        for name in self.targets:
            taken = torch.arange(len(self.table))
            low, high, position = self._ends(name)
            middle = (position[low] + position[high]) / 2
            taken[rows] = torch.where(position[rows] > middle, low, high)
            taken[self.table[name].is_missing()] = torch.arange(len(taken))[self.table[name].is_missing()]
            source[name] = taken
        return source

    def one_target(self, chosen: torch.Tensor) -> dict[str, torch.Tensor]:
        """As ``other_targets``, but all ``chosen`` rows (bool ``[n]``) take one value: that which moves most."""
        source = {}
        for name in self.targets:
            low, high, position = self._ends(name)
            rows = chosen & ~self.table[name].is_missing()
            far_from_low = (position[rows] - position[low]).sum() >= (position[high] - position[rows]).sum()
            source[name] = torch.where(rows, low if bool(far_from_low) else high, torch.arange(len(rows)))
        return source

    def _ends(self, name: str) -> tuple[int, int, torch.Tensor]:
        """Return the rows with the two values farthest apart, and each row's value as a number: float64 ``[n]``."""
        column = self.table[name]
        known = ~column.is_missing()
        if column.kind in ("number", "datetime"):
            position = column.number()
        else:
            position = column.coded().codes.double()
        order = torch.where(known, position, torch.nan)
        low = int(torch.where(known, order, torch.inf).argmin()) if len(order) else 0
        high = int(torch.where(known, order, -torch.inf).argmax()) if len(order) else 0
        if not bool(known.any()) or bool(position[low] == position[high]):
            raise DataError(
                "check_leakage: the target has one value only in the rows that are checked, so that nothing can change",
                column=name,
                remedy="Give rows with several target values, or raise max_rows",
            )
        return low, high, order.nan_to_num(0)

    def mixed_future(self, cut: int, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return, for each column, the rows whose values each row takes: rows from a cut on are shuffled."""
        # Whole rows are shuffled, so columns of one row stay together; targets are shuffled apart, order columns stay.
        later = (self.rank >= cut).nonzero().squeeze(1)
        random = self.generator()
        rows, targets = torch.arange(len(self.rank)), torch.arange(len(self.rank))
        rows[later] = later[torch.randperm(len(later), generator=random)]
        targets[later] = later[torch.randperm(len(later), generator=random)]
        return {n: targets if n in self.targets else rows for n in names if n not in self.order}


def sample_rows(choice: CheckedRows, most: int) -> torch.Tensor:
    """Choose the rows to check, in their order: all, or whole keys, or the earliest, or random ``most``."""
    n = len(choice.table)
    if n <= most:
        return torch.arange(n)
    if choice.keys:
        codes = choice.table.coded(choice.keys).codes
        size = int(codes.max()) + 1
        shuffled = torch.randperm(size, generator=choice.generator())
        rows_up_to = torch.cumsum(torch.bincount(codes, minlength=size)[shuffled], 0)
        kept = torch.zeros(size, dtype=torch.bool)
        kept[shuffled[rows_up_to <= most]] = True
        rows = kept[codes].nonzero().squeeze(1)
        if len(rows) >= most // 4:
            return rows
    if choice.order:
        return torch.argsort(choice.rank, stable=True)[:most].sort().values
    return torch.randperm(n, generator=choice.generator())[:most].sort().values


def key_sizes(frame: Any, choice: CheckedRows) -> dict[str, torch.Tensor]:
    """Return, for columns that may be keys, how many rows have each row's value: int64 ``[n]``."""
    sizes = {}
    for name, codes in key_codes(frame, choice).items():
        sizes[name] = torch.where(codes > 0, torch.bincount(codes)[codes], 0)
    return sizes


def key_codes(frame: Any, choice: CheckedRows) -> dict[str, torch.Tensor]:
    """Return columns that may be keys, as codes int64 ``[n]``, 0 where missing."""
    found = {}
    odd = {*choice.targets, *choice.order}
    for name in [n for n in column_names(frame) if n not in odd][: limits.LEAK_KEYS]:
        try:
            column = as_column(frame[name], name=name).to("cpu")
        except DataError:
            continue
        if column.kind != "category" and (column.kind != "number" or column.values.is_floating_point()):
            continue
        codes = column.coded().codes
        counts = torch.bincount(codes)
        several = int((counts[1:] > 0).sum())
        if 2 <= several < len(codes):
            found[name] = codes
    return found


def key_pairs(frame: Any, choice: CheckedRows) -> dict[tuple[str, ...], torch.Tensor]:
    """Return columns that may be keys, and pairs of the first of them, as codes int64 ``[n]``, 0 where missing."""
    single = key_codes(frame, choice)
    found: dict[tuple[str, ...], torch.Tensor] = {(n,): codes for n, codes in single.items()}
    names = list(single)[: limits.LEAK_PAIRED_KEYS]
    for i, a in enumerate(names):
        for b in names[:i]:
            found[(b, a)] = paired([single[b], single[a]])
    return found


def paired(codes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the codes of several columns, 0 where one is missing: int64 ``[n]``."""
    if len(codes) == 1:
        return codes[0]
    known = torch.stack([c > 0 for c in codes]).all(0)
    joined = codes[0] * (int(codes[1].max()) + 1) + codes[1]
    return torch.where(known, torch.unique(joined, return_inverse=True)[1] + 1, 0)


def probe_rows(choice: CheckedRows, sizes: dict[str, torch.Tensor], count: int) -> list[int]:
    """Choose at most ``count`` rows to change the target of: of rare, usual and frequent keys, small and large targets.

    Args:
        choice: the rows.
        sizes: columns that may be keys (see ``key_sizes``).
        count: the largest number.
    """
    random = choice.generator()
    known = torch.ones(len(choice.table), dtype=torch.bool)
    for name in choice.targets:
        known &= ~choice.table[name].is_missing()
    rows = known.nonzero().squeeze(1)
    rows = rows[torch.randperm(len(rows), generator=random)]
    low, high, position = choice._ends(choice.targets[0])
    is_high = position[rows] > (position[low] + position[high]) / 2
    chosen: list[int] = []
    wishes = [(wish, size) for wish in (0.5, 0.0, 1.0, -1.0) for size in sizes.values()]
    for place in range(max(count, 1)):
        free = torch.ones(len(rows), dtype=torch.bool)
        free[torch.isin(rows, torch.tensor(chosen, dtype=torch.int64))] = False
        wanted = free & (is_high if place % 2 else ~is_high)
        wanted = wanted if bool(wanted.any()) else free
        if not bool(wanted.any()):
            break
        candidates = rows[wanted]
        # Half of the rows are chosen by their keys, the others by chance alone.
        if place < (count + 1) // 2 and place < len(wishes):
            wish, size = wishes[place]
            candidates = _by_size(candidates, size[candidates], wish)
        chosen.append(int(candidates[0]))
    return chosen


def _by_size(rows: torch.Tensor, sizes: torch.Tensor, wish: float) -> torch.Tensor:
    """Sort rows by a wish: first keys of few rows but not of one (0), of the median (.5), of most (1), of one (-1)."""
    if wish < 0:
        return rows[torch.argsort((sizes != 1).long(), stable=True)]
    several = sizes[sizes > 1]
    if not len(several):
        return rows
    aim = torch.quantile(several.double(), wish)
    away = torch.where(sizes > 1, (sizes - aim).abs(), torch.inf)
    return rows[torch.argsort(away, stable=True)]


def cut_places(choice: CheckedRows, frame: Any) -> list[int]:
    """Choose ranks to cut at: in each part of time the rank where most keys have rows on both sides."""
    rank, last = choice.rank, int(choice.rank.max()) if len(choice.rank) else 0
    if last < 1:
        return []
    spans = torch.zeros(last + 2, dtype=torch.float64)
    keys = [choice.table.coded(choice.keys).codes] if choice.keys else key_codes(frame, choice).values()
    for codes in keys:
        size = int(codes.max()) + 1
        first = torch.full((size,), last + 1, dtype=torch.int64).scatter_reduce_(0, codes, rank, "amin")
        final = torch.zeros(size, dtype=torch.int64).scatter_reduce_(0, codes, rank, "amax")
        share = ((final > first) & (torch.arange(size) > 0)).double() / size
        spans.index_add_(0, first.clamp_max(last) + 1, share)
        spans.index_add_(0, final + 1, -share)
    spans = torch.cumsum(spans, 0)
    shares = torch.quantile(rank.double(), torch.linspace(0.15, 0.95, limits.LEAK_CUTS + 1, dtype=torch.float64)).long()
    cuts = []
    for a, b in zip(shares[:-1].tolist(), shares[1:].tolist()):
        low, high = max(a, 1), max(b, max(a, 1) + 1)
        part = spans[low : min(high, last + 1)]
        if len(part):
            best = (part >= part.max() - 1e-12).nonzero().squeeze(1)
            cuts.append(low + int(best[len(best) // 2]))
    return sorted({min(c, last) for c in cuts})
