"""Rows that ``check_leakage`` checks and changes, and the times at which it cuts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec._core.imports import library_of
from fastrec.errors import DataError, refuse
from fastrec.features._engine.chain import steps_behind
from fastrec.features._engine.order import TimeRanks
from fastrec.features._engine.saving import clone_steps, selectors_of
from fastrec.features.base import Feature, Fitted
from fastrec.features.columns import Selector, selector_from
from fastrec.features.feature_set import FeatureSet
from fastrec.table import Column, Table, as_column, attach, column_names, take_rows
from fastrec.table.column import lengths_of
from fastrec.table.frames import row_count


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """Targets, order and key of the checked rows, and the seed of every choice."""

    table: Table
    targets: list[str]
    order: list[str]
    keys: list[str]
    seed: int

    @classmethod
    def of(cls, df: Any, targets: Sequence[str], order: Sequence[str], keys: Sequence[str], seed: int) -> CheckedRows:
        table = Table.read(df, list(dict.fromkeys([*targets, *order, *keys]))).to("cpu")
        return cls(table, list(targets), list(order), list(keys), seed)

    def take(self, rows: torch.Tensor) -> CheckedRows:
        return replace(self, table=self.table.take(rows))

    @cached_property
    def rank(self) -> torch.Tensor:
        """The rank of each row's order value among the distinct ones, from 0: int64 ``[n]``."""
        return TimeRanks.of(self.table, self.order).rank

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def other_targets(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return, per target, the row whose value each row takes: a distant value for ``rows``, else its own."""
        source = {}
        for name in self.targets:
            taken = torch.arange(len(self.table))
            low, high, position = self._ends(name)
            taken[rows] = torch.where(position[rows] > (position[low] + position[high]) / 2, low, high)
            taken[self.table[name].is_missing()] = torch.arange(len(taken))[self.table[name].is_missing()]
            source[name] = taken
        return source

    def one_target(self, chosen: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return as ``other_targets``, but all ``chosen`` rows (bool ``[n]``) take one value: the most distant."""
        source = {}
        for name in self.targets:
            low, high, position = self._ends(name)
            rows = chosen & ~self.table[name].is_missing()
            far_from_low = (position[rows] - position[low]).sum() >= (position[high] - position[rows]).sum()
            source[name] = torch.where(rows, low if bool(far_from_low) else high, torch.arange(len(rows)))
        return source

    def _ends(self, name: str) -> tuple[int, int, torch.Tensor]:
        """Return the rows with the two most distant values, and each row's value as a number: float64 ``[n]``."""
        column = self.table[name]
        known = ~column.is_missing()
        position = column.number() if column.kind in ("number", "datetime") else column.coded().codes.double()
        order = torch.where(known, position, torch.nan)
        low = int(torch.where(known, order, torch.inf).argmin()) if len(order) else 0
        high = int(torch.where(known, order, -torch.inf).argmax()) if len(order) else 0
        if not bool(known.any()) or bool(position[low] == position[high]):
            problem = "check_leakage: the target has one value only in the rows that are checked: nothing can change"
            raise DataError(problem, column=name, remedy="Give rows with several target values, or raise max_rows")
        return low, high, order.nan_to_num(0)

    def mixed_future(self, cut: int, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return, per column, the rows whose values each row takes: rows from a cut on are shuffled."""
        # Whole rows are shuffled, so their columns stay together. Targets are shuffled apart; order columns stay.
        later = (self.rank >= cut).nonzero().squeeze(1)
        random = self.generator()
        rows, targets = torch.arange(len(self.rank)), torch.arange(len(self.rank))
        rows[later] = later[torch.randperm(len(later), generator=random)]
        targets[later] = later[torch.randperm(len(later), generator=random)]
        return {n: targets if n in self.targets else rows for n in names if n not in self.order}


def sample_rows(choice: CheckedRows, most: int) -> torch.Tensor:
    """Choose at most ``most`` rows, in row order: all, whole keys, the earliest, or random ones."""
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


def key_codes(frame: Any, choice: CheckedRows) -> dict[str, torch.Tensor]:
    """Return possible key columns as codes int64 ``[n]``, 0 where missing."""
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
        if 2 <= int((torch.bincount(codes)[1:] > 0).sum()) < len(codes):
            found[name] = codes
    return found


def key_pairs(frame: Any, choice: CheckedRows) -> dict[tuple[str, ...], torch.Tensor]:
    """Return possible key columns, and pairs of the first of them, as codes int64 ``[n]``, 0 where missing."""
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


def probe_rows(choice: CheckedRows, sizes: Sequence[torch.Tensor], count: int) -> list[int]:
    """Choose rows whose target to change: of rare, usual and frequent keys, with small and large targets."""
    random = choice.generator()
    known = torch.ones(len(choice.table), dtype=torch.bool)
    for name in choice.targets:
        known &= ~choice.table[name].is_missing()
    rows = known.nonzero().squeeze(1)
    rows = rows[torch.randperm(len(rows), generator=random)]
    low, high, position = choice._ends(choice.targets[0])
    is_high = position[rows] > (position[low] + position[high]) / 2
    chosen: list[int] = []
    wishes = [(wish, size) for wish in (0.5, 0.0, 1.0, -1.0) for size in sizes]
    for place in range(max(count, 1)):
        free = torch.ones(len(rows), dtype=torch.bool)
        free[torch.isin(rows, torch.tensor(chosen, dtype=torch.int64))] = False
        wanted = free & (is_high if place % 2 else ~is_high)
        wanted = wanted if bool(wanted.any()) else free
        if not bool(wanted.any()):
            break
        candidates = rows[wanted]
        # Half of the rows are chosen by their keys, the others at random.
        if place < (count + 1) // 2 and place < len(wishes):
            wish, size = wishes[place]
            candidates = _by_size(candidates, size[candidates], wish)
        chosen.append(int(candidates[0]))
    return chosen


def _by_size(rows: torch.Tensor, sizes: torch.Tensor, wish: float) -> torch.Tensor:
    """Sort rows by the distance of their key's size to the ``wish`` quantile of sizes above 1; below 0: single rows."""
    if wish < 0:
        return rows[torch.argsort((sizes != 1).long(), stable=True)]
    several = sizes[sizes > 1]
    if not len(several):
        return rows
    away = torch.where(sizes > 1, (sizes - torch.quantile(several.double(), wish)).abs(), torch.inf)
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


# Runs of a pipeline on changed copies of a frame, and the comparison of their values.

Made = dict[str, Column]


class SetRunner:
    """FeatureSet with other ``tables``, run on clones; the columns of all its steps are compared."""

    def __init__(self, features: FeatureSet, tables: Mapping[str, Any] | None) -> None:
        self.given, self.listed, self.passed_on = features, [], []
        self.tables = {n: Table.read(t) for n, t in (tables or {}).items()}
        self.steps: list[Feature] = []

    def prepare(self, df: Any, names: Sequence[str]) -> Table:
        chooses = selectors_of(self.given.steps)  # resolved among all columns
        return Table.read(df, None if chooses else list(dict.fromkeys([*self.given.fit_inputs, *names])))

    def start(self, frame: Table) -> Made:
        chosen = _clone(self.given)
        if selectors_of(chosen.steps):  # their columns are known only after fit
            chosen.fit(frame, tables=self.tables)
        # Selectors are replaced by the chosen columns: on changed rows they might choose others.

        def fix(s: Selector) -> Selector:
            return selector_from({"how": {"what": "columns", "listed": s.names}, "names": s.names, "parts": []})

        self.listed, self.steps = chosen.outputs, clone_steps(chosen.steps, fix)
        return self.run(frame, "on the rows as they are")

    def run(self, frame: Table, what: str) -> Made:
        return self._made(self.whole().fit_transform(frame, tables=self.tables))

    def whole(self) -> FeatureSet:
        options = {n: v for n, v in self.given.get_params().items() if n not in ("features", "keep", "cache")}
        return _clone(FeatureSet(self.steps, **options))

    def fixed(self, frame: Table) -> Callable[[Table], Made] | None:
        if not any(isinstance(s, Fitted) and not s.causal for s in self.steps):
            return None
        fitted = self.whole().fit(frame, tables=self.tables)
        return lambda rows: self._made(fitted.transform(rows, tables=self.tables))

    def cross_fit(self, frame: Table, folds: torch.Tensor, k: int) -> tuple[Made, Made]:
        """Return the training and validation columns of outer fold ``k``, which is not empty."""
        train, valid = next(self.whole().cross_fit(frame, folds, tables=self.tables, only=[k]))
        return self._made(train), self._made(valid)

    def learns_from_all(self, column: str) -> list[Feature]:
        return [s for s in steps_behind([column], self.steps) if isinstance(s, Fitted) and not s.causal]

    def maker(self, column: str, together: set[str]) -> Feature | None:
        return next((s for s in steps_behind([column], self.steps) if set(s.outputs) & together), None)

    def _made(self, table: Table) -> Made:
        return {n: table[n] for s in self.steps for n in s.outputs}


class FunctionRunner:
    """User's function from frame to frame, called with copies."""

    # Rows must come back in order (or, from pandas, with a unique index). targets are no features; the unchanged
    # columns fixed reveal a changed order of rows

    def __init__(self, function: Callable[[Any], Any], targets: Sequence[str], fixed: Sequence[str]) -> None:
        self.listed, self.passed_on = [], []
        self.function, self.targets, self.fixed_names = function, list(targets), list(fixed)

    def prepare(self, df: Any, names: Sequence[str]) -> Any:
        return df

    def start(self, frame: Any) -> Made:
        result = self._call(frame, "on the rows as they are")
        made: Made = {}
        for name in column_names(result):
            if name in self.targets or self._passes_on(name, frame, result):
                continue
            made[name] = as_column(result[name], name=name)
        self.listed = list(made)
        return made

    def _passes_on(self, name: str, frame: Any, result: Any) -> bool:
        if name not in column_names(frame):
            return False
        try:
            there, here = as_column(frame[name], name=name), as_column(result[name], name=name)
        except DataError:  # a Column cannot hold the values: no feature either
            return True
        odd = moved(there, here)
        if not bool(odd.any()):
            self.passed_on.append(name)
            return True
        if name in self.fixed_names and same_values(there, here):
            problem = "the pipeline returns its rows in another order"
            refuse(odd, name, problem, "Return one row for every row given, in the order given")
        return False

    def run(self, frame: Any, what: str) -> Made:
        result = self._call(frame, what)
        there = set(column_names(result))
        return {n: as_column(result[n], name=n) for n in self.listed if n in there}

    def _call(self, frame: Any, what: str) -> Any:
        given = frame
        if not isinstance(frame, Table | pa.Table | pa.RecordBatch) and library_of(frame) != "polars":  # mutable
            given = copy.deepcopy(frame) if isinstance(frame, Mapping) else frame.copy()
        try:
            result = self.function(given)
        except Exception as error:
            problem = f"the pipeline failed {what}: {type(error).__name__}: {error}"
            raise DataError(problem, remedy="Make it work on such rows too, or check a part of it") from error
        if result is None:
            raise DataError("the pipeline returns nothing", remedy="Return a frame with one row for every row given")
        result = in_order_of(frame, result)
        rows, wanted = row_count(result), row_count(frame)
        if rows != wanted:
            problem = f"the pipeline returns {rows} rows for {wanted} ({what})"
            raise DataError(problem, remedy="Return one row for every row given, in the order given")
        return result

    def fixed(self, frame: Any) -> None:
        return None  # a function is not fitted

    def learns_from_all(self, column: str) -> list[Feature]:
        return []

    def maker(self, column: str, together: set[str]) -> None:
        return None


Runner = SetRunner | FunctionRunner


def _clone(features: FeatureSet) -> FeatureSet:
    from sklearn.base import clone

    made = clone(features)
    made.cache = None  # every run must compute
    return made


def in_order_of(frame: Any, result: Any) -> Any:
    """Sort a pandas result's rows as the frame's, by a unique index; other results stay unchanged."""
    if library_of(frame) != "pandas" or not hasattr(result, "index") or result.index.equals(frame.index):
        return result
    index = frame.index
    if not (index.is_unique and result.index.is_unique and len(index) == len(result.index)):
        return result
    places = result.index.get_indexer(index)
    return result.iloc[places] if (places >= 0).all() else result


def with_rows_of(frame: Any, source: Mapping[str, torch.Tensor]) -> Any:
    """Return the frame with ``source`` columns taken from other rows (int64 ``[n]``); all else stays."""
    if isinstance(frame, Table):
        return frame.with_columns({n: frame[n].take(rows.to(frame.device)) for n, rows in source.items()})
    if isinstance(frame, Mapping):
        return {**frame, **{n: take_rows({n: frame[n]}, rows)[n] for n, rows in source.items()}}
    numbers = {n: rows.cpu().numpy() for n, rows in source.items()}
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        for name, rows in numbers.items():
            at = frame.schema.get_field_index(name)
            frame = frame.set_column(at, frame.schema.field(at), frame[name].take(pa.array(rows)))
        return frame
    if library_of(frame) == "polars":
        return frame.with_columns(*[frame[n][rows] for n, rows in numbers.items()])
    if library_of(frame) in ("pandas", "cudf"):
        frame = frame.copy()
        for name, rows in numbers.items():
            values = frame[name].iloc[rows]
            values.index = frame.index
            frame[name] = values
        return frame
    return attach(frame, {n: as_column(frame[n], name=n).take(rows) for n, rows in source.items()})


def moved(before: Column, after: Column, scale: float | None = None) -> torch.Tensor:
    """Mark the values of a column that differ beyond rounding: bool ``[n]``; missing equals missing."""
    # scale: the column's typical size; None: computed from before
    gone = before.is_missing()
    gone_too = after.is_missing().to(gone.device)
    different = _different(before, after, typical(before) if scale is None else scale)
    return (gone != gone_too) | (~gone & ~gone_too & different)


def typical(column: Column) -> float:
    """Return the median absolute value of a column's non-zero numbers, or 0: the scale of rounding."""
    if column.kind == "vector":
        values = column.values.double().reshape(-1)
    elif column.kind == "list":
        return typical(column.elements)
    elif column.kind == "number":
        values = column.values.double()
    else:
        return 0.0
    values = values[values.isfinite() & (values != 0)].abs()
    return float(values.median()) if len(values) else 0.0


def _different(before: Column, after: Column, scale: float) -> torch.Tensor:
    kinds = (before.kind, after.kind)
    if kinds == ("number", "number"):
        a, b = before.values, after.values.to(before.values.device)
        return _far(a, b, scale) if a.is_floating_point() or b.is_floating_point() else a.long() != b.long()
    if kinds == ("datetime", "datetime") and before.unit == after.unit:
        return before.values != after.values.to(before.values.device)
    if kinds == ("datetime", "datetime"):
        return before.number() != after.number().to(before.values.device)
    if kinds == ("vector", "vector") and before.values.shape == after.values.shape:
        a, b = before.values, after.values.to(before.values.device)
        return (_far(a, b, scale) & ~(a.isnan() & b.isnan())).any(1)
    if kinds == ("list", "list"):
        lengths = lengths_of(before.values)
        different = lengths != lengths_of(after.values).to(lengths.device)
        rows = (~different).nonzero().squeeze(1)
        a, b = before.take(rows).elements, after.take(rows.to(after.values.device)).elements
        if len(a):
            different[torch.repeat_interleave(rows, lengths[rows])[moved(a, b, scale)]] = True
        return different
    a, b = before.to_arrow(), after.to_arrow()
    try:
        unequal = np.array(pc.not_equal(a, b).fill_null(False), dtype=bool)
    except (pa.ArrowException, TypeError):  # Arrow cannot compare (structs, text with numbers)
        unequal = np.array([x != y for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)], dtype=bool)
    return torch.from_numpy(unequal).to(before.is_missing().device)


def _far(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    single = any(x.is_floating_point() and x.dtype != torch.float64 for x in (a, b))
    # float32 has seven digits
    relative, absolute = (2e-6, 1e-7) if single else (limits.LEAK_RELATIVE, limits.LEAK_ABSOLUTE)
    a, b = a.double(), b.double()
    allowed = relative * torch.maximum(a.abs(), b.abs()) + absolute * scale
    near = ((a - b).abs() <= allowed) & a.isfinite() & b.isfinite()
    return ~(near | (a == b))


def same_values(a: Column, b: Column) -> bool:
    """Test whether two columns hold the same values in any order."""
    try:
        left, right = a.coded(), b.coded()
    except DataError:
        return False
    codes = right.recode(left.keys)
    return torch.equal(torch.bincount(left.codes, minlength=left.size), torch.bincount(codes, minlength=left.size))


def shown(column: Column, row: int) -> str:
    """Format one value for messages."""
    value = column.take(torch.tensor([row], device=column.is_missing().device)).to_arrow()[0].as_py()
    if value is None or (isinstance(value, float) and value != value):
        return "missing"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
