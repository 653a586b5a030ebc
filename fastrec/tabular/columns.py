"""Columns as they are taken in: read one at a time and in parts; training rows that know only their own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.device import on_host, resolve_device
from fastrec._core.imports import library_of
from fastrec._core.kernels import compiled, frames
from fastrec.table import Coded, Column, Keys, Table, as_column

_PLAIN = frozenset({"int8", "uint8", "int16", "int32", "int64", "float32", "float64"})

Rows = slice | torch.Tensor


class FrameColumns:
    """Named columns of a frame, read at each access and not cached.

    ``order`` (int64 ``[m]``) are the rows that count. ``device`` None: the GPU where any is already, else
    ``FASTREC_DEVICE``.
    """

    def __init__(
        self,
        frame: Any,
        names: Sequence[str],
        size: int,
        *,
        ready: Mapping[str, Column] | None = None,
        order: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.frame, self.ready, self.size, self.order = frame, dict(ready or {}), size, order
        self.names = list(dict.fromkeys([*names, *self.ready]))
        self._known = frozenset(self.names)
        self._ascending: dict[int, Rows] = {}
        if device is None and isinstance(frame, Table):
            device = frame.device
        elif device is None and library_of(frame) == "cudf":
            from fastrec.table import cudf

            device = cudf.device()
        elif device is None:
            held = [frame[n] for n in self.names if n in frame] if isinstance(frame, Mapping) else []
            held = [v.values if isinstance(v, Column) else v for v in held]
            away = (v.device for v in held if isinstance(v, torch.Tensor) and not on_host(v))
            device = next(away, resolve_device(None))
        self.device = device

    @classmethod
    def of(cls, table: Table | FrameColumns) -> FrameColumns:
        """Wrap a table's columns."""
        return table if isinstance(table, FrameColumns) else cls(table, table.names, len(table))

    def __len__(self) -> int:
        return self.size if self.order is None else len(self.order)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Column:
        column = self.raw(name)
        if self.order is None:
            return column
        by_row = column.kind in ("number", "datetime", "category")
        return rows_of(column, self._order_here) if by_row else column.take(self._order_here)

    def raw(self, name: str) -> Column:
        """Return a column with all of the frame's rows, in the frame's order."""
        if name in self.ready:
            return self.ready[name]
        if isinstance(self.frame, Table):
            return self.frame[name]
        return as_column(self.frame[name], name=name).to(self.device)

    def shares(self, name: str) -> bool:
        """Return whether reading a column of numbers makes no copy, so that holding it is free."""
        if name in self.ready or isinstance(self.frame, Table):
            return True
        return on_host(self) and _is_plain(self.frame[name])

    def rows(self, start: int, stop: int) -> Rows:
        """Return the places of rows ``start`` up to ``stop`` in the frame."""
        return slice(start, stop) if self.order is None else self._order_here[start:stop]

    @cached_property
    def _order_here(self) -> torch.Tensor:
        return self.order.to(self.device)

    @cached_property
    def places(self) -> np.ndarray | None:
        """Place of each frame row among those that count, int64 ``[size]``; their number if it does not count.

        None if all rows are in the frame's order, or if one counts twice.
        """
        if self.order is None:
            return None
        order, n = self.order.cpu().numpy(), len(self.order)
        places = np.full(self.size, n, dtype=np.int64)
        places[order] = np.arange(n)
        return places if np.count_nonzero(places < n) == n else None

    def ascending(self, stop: int) -> Rows:
        """Return the places of the first ``stop`` rows in the frame, from front to back if no row counts twice.

        Reading memory from front to back is several times as fast, for results that do not depend on the order of rows.
        """
        if self.order is None:
            return slice(0, stop)
        if stop not in self._ascending:
            front = None if self.places is None else torch.from_numpy(np.flatnonzero(self.places < stop))
            self._ascending[stop] = self.order[:stop] if front is None else front
        return self._ascending[stop]

    def take(self, rows: torch.Tensor) -> FrameColumns:
        """Return the same columns of the rows at ``rows`` (int64 ``[m]``)."""
        order = rows if self.order is None else self.order[rows]
        return FrameColumns(self.frame, self.names, self.size, ready=self.ready, order=order, device=self.device)

    def as_they_stand(self) -> FrameColumns:
        """Return the columns in the frame's order, without a gather, if each of its rows counts once; else these.

        Use them only for results that do not depend on the order of rows.
        """
        # a gathered and scattered target made a frame of a million rows take a sixth longer
        if not on_host(self) or self.places is None or len(self.order) < self.size:
            return self
        return FrameColumns(self.frame, self.names, self.size, ready=self.ready, device=self.device)

    def coded(self, names: Sequence[str]) -> Coded:
        """Encode several columns together as a key (see ``Table.coded``)."""
        return Table({n: self[n] for n in names}).coded(names)


def _is_plain(values: Any) -> bool:
    """Return whether values are numbers in one piece, none missing, of a type that tensors have."""
    if isinstance(values, torch.Tensor | Column):
        return True
    if library_of(values) == "pandas":
        values = values.to_numpy() if isinstance(values.dtype, np.dtype) else None
    if isinstance(values, np.ndarray):
        return values.dtype.name in _PLAIN and values.dtype.isnative and values.flags.c_contiguous
    if library_of(values) == "polars":
        return str(values.dtype).lower() in _PLAIN and values.n_chunks() == 1 and not values.null_count()
    if isinstance(values, pa.ChunkedArray):
        numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        plain = numeric and np.dtype(values.type.to_pandas_dtype()).name in _PLAIN
        return plain and values.num_chunks == 1 and not values.null_count
    return False


def rows_of(column: Column, rows: Rows) -> Column:
    """Return rows of a number, time or category column, sharing memory where they are a slice."""
    missing = None if column.missing is None else take_values(column.missing, rows)
    return replace(column, values=take_values(column.values, rows), missing=missing)


def take_values(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return rows of a tensor, sharing memory where they are a slice."""
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows.to(values.device))


def plain_numbers(column: Column) -> np.ndarray | None:
    """Return a column's numbers if they are an unmasked array on the host, else None."""
    plain = column.kind == "number" and column.missing is None and on_host(column.values)
    return column.values.numpy() if plain else None


def numbers_of(column: Column, rows: Rows) -> torch.Tensor:
    """Return rows of a column as float64, NaN where missing."""
    if column.kind == "number" and column.missing is None:
        return take_values(column.values, rows).to(torch.float64)
    if column.kind in ("number", "datetime"):
        return rows_of(column, rows).number()
    return take_values(as_number(column).values, rows)


def as_number(column: Column) -> Column:
    """Return a category of decimals as a column of their values; numbers and times as they are."""
    return column if column.kind in ("number", "datetime") else Column("number", column.number(), name=column.name)


def coded_of(column: Column) -> Coded:
    """Encode a column as a key for lookups; its keys may hold values that do not occur.

    Whole numbers in a narrow range are their own codes, so that nothing is hashed. A category's codes stay as they are.
    """
    if column.kind == "category":
        return Coded(column.values, Keys((column.distinct,), (column.name,)))
    whole = column.kind == "number" and not column.values.is_floating_point() and column.values.dtype != torch.bool
    if not whole or column.missing is not None or len(column) < 4096 or "coded" in column._cache:
        return column.coded()
    low, high = (int(v) for v in torch.aminmax(column.values))
    if high - low >= len(column) // 4:
        return column.coded()
    keys = pa.array(np.arange(low, high + 1), pa.from_numpy_dtype(str(column.values.dtype).removeprefix("torch.")))
    return Coded(column.values.long() - (low - 1), Keys((keys,), (column.name,)))


def training_part(column: Column, coded: Coded, rows: int) -> Column:
    """Return the first ``rows`` rows of a coded column as a category with these rows' values only."""
    codes, keys = coded.codes[:rows], coded.keys.columns[0]
    if column.ordered is not None:  # a categorical keeps its categories, as in fastai
        return Column("category", codes, name=column.name, distinct=keys, ordered=column.ordered)
    used = torch.bincount(codes, minlength=coded.size)[1:] > 0
    if not bool(used.all()):
        table = torch.zeros(coded.size, dtype=torch.int64, device=codes.device)
        table[1:] = torch.cumsum(used, 0) * used
        codes, keys = table[codes], keys.filter(pa.array(used.cpu().numpy()))
    part = Column("category", codes, name=column.name, distinct=keys)
    part._cache["coded"] = Coded(codes, Keys((keys,), (column.name,)))
    return part


@dataclass
class Moments:
    """Count, mean, spread, smallest and largest of numbers, by merging blocks (Chan, Golub, LeVeque 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: np.ndarray, *, extremes: bool = True) -> None:
        """Add float64 ``[m]``, none missing; ``extremes``: the smallest and largest too."""
        if not len(values):
            return
        mean = values.mean()
        rest = values - mean
        more = rest.mean()  # what the first look's rounding left
        rest *= rest
        self.merge(len(values), float(mean + more), float(rest.sum() - more * more * len(rest)))
        if extremes:
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Add ``count`` numbers of this mean and sum of squares about it."""
        if not count:
            return
        total, gap = self.count + count, mean - self.mean
        self.squares += squares + gap * gap * self.count * count / total
        self.mean += gap * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Standard deviation over all of them (divided by their number)."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


# What procs learn of a column's training rows by compiled loops: in the frame's order, without a copy of them.


def address_of(values: np.ndarray) -> tuple[int, int] | None:
    """Return an array's address and its type's number for the loops; None if they do not take it."""
    if values.dtype not in frames().TYPES or not values.flags.c_contiguous:
        return None
    return values.ctypes.data, frames().TYPES.index(values.dtype)


@dataclass(frozen=True)
class Summary:
    """Statistics of a column's training rows, of which procs learn: from tensors, compiled loops and streams alike.
    ``fill``: median or mode.
    """

    moments: Moments
    gaps: int
    fill: float | None = None


class TrainingRows:
    """The training rows of a frame's columns; without ``columns`` the first ``count`` rows, and no compiled loops."""

    def __init__(self, count: int, columns: FrameColumns | None = None) -> None:
        self.rows = slice(0, count) if columns is None else columns.ascending(count)
        self.count, self.by_loops = count, False
        if columns is None or not on_host(columns):
            return
        if not compiled(columns.size * len(columns.names), limits.LOOPS_FROM):
            return
        places = columns.places
        self.by_loops = columns.order is None or places is not None
        self.chosen = np.empty(0, np.bool_) if places is None else places < count
        self.size = count if places is None else columns.size

    @cached_property
    def _sample(self) -> slice | np.ndarray:
        # Every so many rows, not the first ones: logs are sorted by time, and numbers drift.
        step = max(min(self.count // limits.MEDIAN_SAMPLE, limits.MEDIAN_SAMPLED), 1)
        return slice(0, self.count, step) if isinstance(self.rows, slice) else self.rows.numpy()[::step]

    def numbers(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values that a loop covers: all of the frame's, or the first ones."""
        return values[: self.size]

    def count_whole(self, values: torch.Tensor, low: int, size: int) -> torch.Tensor | None:
        """Count each of the ``size`` whole numbers from ``low`` on: int64 ``[size]``, or None if no loop takes them."""
        found = address_of(values.numpy()) if self.by_loops else None
        if found is None:
            return None
        counts = np.zeros(size, np.int64)
        frames().count_whole(*found, self.chosen, self.size, low, counts)
        return torch.from_numpy(counts)

    def summary(self, values: np.ndarray, *, median: bool) -> Summary | None:
        """Summarize numbers ``[n]`` in the frame's order, NaN = missing, in one compiled loop.

        Returns None if another way is needed. This is so if no loop takes them, if they are too few or nearly equal, if
        one is infinite, or if the bounds of a sample miss the median.
        """
        found = address_of(values) if self.by_loops and self.count >= 4 * limits.MEDIAN_SAMPLE else None
        if found is None:
            return None
        sample = values[self._sample].astype(np.float64)
        sample = np.sort(sample[~np.isnan(sample)])
        if len(sample) < limits.MEDIAN_SAMPLE // 2 or not np.isfinite(sample[[0, -1]]).all():
            return None
        first, last = sample_bounds(sample) if median else (np.nan, np.nan)
        room = self.count // 4 + frames().PIECE if median else 0
        between, shift = np.empty(room), float(sample.mean())
        count, gaps, total, squares, *ranks = frames().look(*found, self.chosen, self.size, shift, first, last, between)
        mean, squares = total / count, squares - total * (total / count)
        if not np.isfinite(squares) or mean * mean * count > limits.MEAN_FAR * squares:
            return None
        # the extremes are not computed: constant columns do not come here
        moments = Moments(count, shift + mean, squares, -np.inf, np.inf)
        if moments.std <= limits.NEARLY_CONSTANT * abs(moments.mean):
            return None
        middle = median_between(count, first, last, ranks, between) if median else None
        return None if median and middle is None else Summary(moments, gaps, middle)


def sample_bounds(sample: np.ndarray) -> tuple[float, float]:
    """Return numbers of a sorted sample below and above the median, four standard deviations of its rank away."""
    middle, off = len(sample) // 2, 2 * int(len(sample) ** 0.5)
    return float(sample[max(middle - off, 0)]), float(sample[min(middle + off, len(sample) - 1)])


def median_between(count: int, first: float, last: float, ranks: Sequence[int], between: np.ndarray) -> float | None:
    """Return the median of ``count`` numbers, or None if it is not from ``first`` to ``last``, the bounds of a sample.

    ``ranks`` are how many are below and at most ``first``, below and at most ``last``, and in ``between``. The latter
    holds those above ``first`` and below ``last``, in any order.
    """
    below_first, to_first, below_last, to_last, held = ranks
    upper = count // 2
    lower = upper if count % 2 else upper - 1
    if below_first <= lower and upper < to_first:
        return first
    if below_last <= lower and upper < to_last:
        return last
    if lower < to_first or upper >= below_last or held < below_last - to_first:
        return None
    ordered = np.sort(between[:held])
    low, high = float(ordered[lower - to_first]), float(ordered[upper - to_first])
    return high if count % 2 else (low + high) / 2
