"""Assignment of rows to folds: at random, by group, in time, or as given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError, refuse, refuse_rows, warn
from fastrec.features._engine.folds import row_folds
from fastrec.table import Column, Table, as_column, column_names
from fastrec.table.frames import row_count
from fastrec.table.keys import UNITS_PER_SECOND, is_text


def first_in_group(groups: torch.Tensor) -> torch.Tensor:
    """Return the number of the first row of each row's group, whose rows follow each other: int64 ``[n]``."""
    _, of, size = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
    return (size.cumsum(0) - size)[of]


def group_folds(table: Any, key: str | Sequence[str], folds: int = 5, *, seed: int = 0) -> torch.Tensor:
    """Assign each row its validation fold: rows with the same key share a fold, whatever else is in the table.

    Args:
        table: the rows: a ``Table``, or a frame of any supported library.
        key: the column(s) that must not be split (a session, a user).
        folds: the number of folds, at least 2.
        seed: other seeds give other folds.

    Returns:
        int64 ``[n]`` in ``0 … folds - 1`` on the CPU, from a stable hash of the key. Adding features, rows or models
        therefore changes no fold.

    Raises:
        DataError: fewer than two folds, or a fold would be empty.
    """
    if folds < 2:
        raise DataError(f"{folds} folds", remedy="Use at least 2")
    names = [key] if isinstance(key, str) else list(key)
    codes = row_folds(Table.read(table, names), names, folds, seed=seed).cpu()
    empty = (torch.bincount(codes, minlength=folds) == 0).nonzero()
    if len(empty):
        raise DataError(f"fold {int(empty[0])} of {folds} has no row", remedy="Use fewer folds, or more data")
    return codes


def random_folds(rows: int, folds: int, *, seed: int) -> torch.Tensor:
    """Assign folds int64 ``[n]`` at random; their sizes differ by one at most."""
    return stratified_folds(torch.zeros(rows, dtype=torch.int64), folds, seed=seed)


def stratified_folds(strata: torch.Tensor, folds: int, *, seed: int) -> torch.Tensor:
    """Assign folds int64 ``[n]`` at random with the same share of every stratum (int64 ``[n]``, from 0) in each.

    Each stratum's counts in two folds, and the sizes of two folds, differ by one at most.
    """
    # Dealing out shuffled rows in turn, by stratum, keeps counts within one of each other.
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(len(strata)))
    order = shuffled[torch.sort(strata[shuffled], stable=True).indices]
    codes = torch.empty(len(strata), dtype=torch.int64)
    codes[order] = torch.arange(len(strata)) % folds
    return codes


def stratified_group_folds(strata: torch.Tensor, groups: torch.Tensor, folds: int, *, seed: int) -> torch.Tensor:
    """Assign whole groups to folds, with about the same share of every stratum, and of all rows, in each.

    The method is greedy, like scikit-learn's ``StratifiedGroupKFold``. Groups are assigned in descending size, each to
    the fold where it adds least to a sum: the squared shares of each stratum's rows over folds and strata. (The sum is
    smallest for equal shares.) That is the fold whose current shares have the smallest inner product with the group's.
    All inputs are int64 ``[n]`` from 0; ``seed`` orders equal groups.
    """
    _, groups = torch.unique(groups, return_inverse=True)
    size, kinds = int(groups.max()) + 1, int(strata.max()) + 1
    if size < folds:
        raise DataError(f"{size} groups for {folds} folds", remedy="Use fewer folds, or more groups")
    counts = torch.bincount(groups * kinds + strata, minlength=size * kinds).view(size, kinds).double()
    counts = torch.cat([counts, counts.sum(1, keepdim=True)], 1)  # last column: rows of any stratum
    shares = (counts / counts.sum(0).clamp(min=1)).numpy()
    shuffled = np.random.default_rng(seed).permutation(size)
    # Large groups first: small ones can still balance the shares afterwards.
    order = shuffled[np.argsort(-np.square(shares[shuffled]).sum(1), kind="stable")]
    held, fold = np.zeros((folds, kinds + 1)), np.empty(size, dtype=np.int64)
    for group, share in zip(order.tolist(), shares[order], strict=True):
        best = int((held @ share).argmin())
        held[best] += share
        fold[group] = best
    return torch.from_numpy(fold)[groups]


def strata_of(column: Column, bins: int | None, folds: int) -> tuple[torch.Tensor, str]:
    """Turn a target into strata: its classes, or quantile bins of its numbers (``bins``: see ``Folds.stratified``).

    Returns int64 ``[n]`` from 0 on the CPU (missing targets form their own stratum), and a description of the strata.
    """
    coded = column.coded()
    if bins is None:
        # Whole numbers with few distinct values are more often classes than quantities.
        bins = 10 if column.kind == "number" and (has_fractions(column) or len(coded.keys) > 50) else 0
    if bins:
        if bins < 2:
            raise DataError(f"{bins} bins", column=column.name, remedy="Use 2 or more, or 0 for classes")
        values = column.number().cpu()
        return quantile_bins(values, ~values.isnan(), bins), f"{bins} quantile bins of {column.name}"
    codes = coded.codes.cpu()
    counts = torch.bincount(codes, minlength=coded.size)[1:]
    if len(counts) and int(counts.max()) < folds:
        remedy = "Add rows, or use fewer folds (n_folds in a recipe); of amounts ask for a regression, or give bins="
        raise DataError(f"no class has as many rows as there are folds ({folds})", column=column.name, remedy=remedy)
    few = counts < folds
    if bool(few.any()):
        rarest = int(torch.where(few, counts, counts.max() + 1).argmin())
        value = coded.keys.columns[0][rarest].as_py()
        count, rows = int(few.sum()), int(counts[rarest])
        told = "1 class has" if count == 1 else f"{count} classes have"
        told += f" fewer rows than the {folds} folds, class {value!r} {rows}: some folds are without "
        warn(f"column {column.name!r}: {told}{'it' if count == 1 else 'them'}")
    return codes, f"the classes of {column.name}"


def quantile_bins(values: torch.Tensor, known: torch.Tensor, bins: int) -> torch.Tensor:
    """Return each value's bin, of about equal counts: int64 ``[n]`` from 1; 0 if it is not ``known``."""
    inside = values[known].sort().values
    edges = inside[(torch.arange(1, bins) * len(inside)) // bins] if len(inside) else inside
    return torch.where(known, torch.searchsorted(edges, values, right=True) + 1, 0)


def has_fractions(column: Column) -> bool:
    """Return whether a number column contains fractions."""
    values = column.values
    return values.is_floating_point() and bool((values != values.floor())[~column.is_missing()].any())


Cut = tuple[torch.Tensor, dict[int, torch.Tensor]]  # fold int64 [n] (-1: never scored), fold → training rows bool [n]


def time_folds(
    ticks: torch.Tensor, folds: int, *, gap: float, window: float | None, horizon: float | None, name: str
) -> Cut:
    """Cut times int64 or float64 ``[n]`` into folds that train only on the past; see ``Folds.time_series``.

    Returns the fold in which each row is scored (-1: none) and each fold's training rows. ``name``: the column.
    """
    if horizon is None:
        codes = blocks(ticks, folds + 1, name=name) - 1
    else:
        codes = torch.full((len(ticks),), -1, dtype=torch.int64)
        for k in range(folds):
            until = ticks.max() - horizon * (folds - 1 - k)
            codes[(ticks > until - horizon) & (ticks <= until)] = k
    train = {}
    for k in range(folds):
        scored = ticks[codes == k]
        if not len(scored):
            remedy = "Use fewer folds, or another horizon"
            raise DataError(f"fold {k} of {folds} has no row to score", column=name, remedy=remedy)
        first = scored.min()
        train[k] = ticks < first - gap
        if window is not None:
            train[k] &= ticks >= first - gap - window
        if not bool(train[k].any()):
            remedy = "Use fewer folds, a smaller gap or horizon, or a larger window"
            raise DataError(f"fold {k} of {folds} has no row to train on", column=name, remedy=remedy)
    return codes, train


def purged_folds(start: torch.Tensor, end: torch.Tensor, folds: int, *, embargo: float, names: tuple[str, str]) -> Cut:
    """Cut blocks of time; each is scored by a model trained on rows whose labels do not overlap its own.

    Purging and embargo follow López de Prado (Advances in Financial Machine Learning, 2018, sections 7.4.1 and 7.4.2).
    A row's label depends on the time from ``start`` to ``end`` (ticks int64 or float64 ``[n]``). A training row is
    excluded if its closed span meets that of a scored row, or if it starts within ``embargo`` ticks after the end
    of the last scored span. ``names``: the two columns. Every row is scored.
    """
    about = {"column": names[1], "remedy": "Give the time at which the label is known, at or after the row's own"}
    problem = "the span ends at {}, before it starts at {}".format
    refuse_rows(end < start, lambda row: problem(end[row].item(), start[row].item()), **about)
    codes = blocks(start, folds, name=names[0])
    train = {}
    for k in range(folds):
        scored = codes == k
        train[k] = ((end < start[scored].min()) | (start > end[scored].max() + embargo)) & ~scored
        if not bool(train[k].any()):
            problem = f"fold {k} of {folds} has no row to train on: the labels of all others overlap its own"
            raise DataError(problem, column=names[0], remedy="Use fewer folds or a smaller embargo, or shorter spans")
    return codes, train


def blocks(ticks: torch.Tensor, count: int, *, name: str) -> torch.Tensor:
    """Cut consecutive blocks of about equal size, between distinct times: int64 ``[n]`` from 0."""
    _, place, sizes = torch.unique(ticks, return_inverse=True, return_counts=True)
    if len(sizes) < count:
        remedy = "Use fewer folds, or more rows"
        raise DataError(f"{len(sizes)} distinct times, and {count} are needed", column=name, remedy=remedy)
    before = (sizes.cumsum(0) - sizes).double()  # rows before each distinct time
    starts = torch.searchsorted(before, len(ticks) * torch.arange(count).double() / count).tolist()
    for i in range(1, count):  # one frequent time may span several cuts: each block has at least one distinct time
        starts[i] = min(max(starts[i], starts[i - 1] + 1), len(sizes) - (count - i))
    return torch.bucketize(place, torch.tensor(starts), right=True) - 1


_UNITS = {per_second: unit for unit, per_second in UNITS_PER_SECOND.items()}


def rows_in(data: Any) -> int:
    """Return the number of rows of a table of any library, a file or anything with a length, or the given number."""
    if isinstance(data, int):
        return data
    return row_count(Table.read(data) if isinstance(data, str | Path) else data)


def given_column(data: Any, what: Any, role: str) -> Column:
    """Return a column of ``data`` by its name, or ``[n]`` values as a column; ``role`` is its name if it has none."""
    if isinstance(what, str):
        return Table.read(data, [what])[what]
    column = as_column(what, name=str(getattr(what, "name", None) or role))
    rows = rows_in(data)
    if len(column) != rows:
        raise DataError(f"{len(column)} values for {rows} rows", column=column.name, remedy="Give one for every row")
    return column


def given_key(data: Any, what: Any, role: str) -> Table:
    """Return the column(s) of a key as a table; a list or tuple of column names is a key of several columns."""
    if isinstance(what, list | tuple) and what and all(isinstance(w, str) for w in what) and not isinstance(data, int):
        names = column_names(Table.read(data) if isinstance(data, str | Path) else data)
        if set(what) <= set(names):
            return Table.read(data, list(what))
    column = given_column(data, what, role)
    return Table({column.name: column})


class Times(NamedTuple):
    """Times of rows."""

    ticks: torch.Tensor  # int64 or float64 ``[n]`` on the CPU
    per_second: int | None  # ticks in a second; None: the column holds numbers, or ordered categories
    name: str  # the column's name

    def span(self, value: Any, role: str) -> int | float:
        """Convert a duration to ticks, rounded down to whole ones if times are whole.

        For a column of numbers it is a number. For dates it is a ``timedelta`` (of Python, numpy or pandas) or pandas'
        text for one (``'7D'``). Both allow 0.
        """
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, np.timedelta64)
        if self.per_second is None and not is_number:
            raise DataError(f"{role} is {value!r}, the times are numbers", column=self.name, remedy="Give a number")
        if self.per_second is not None and is_number and value != 0:
            problem = f"{role} is {value!r} and the times are dates: {value!r} of what?"
            raise DataError(problem, column=self.name, remedy="Give a timedelta, such as datetime.timedelta(days=7)")
        ticks = value
        if not is_number:
            import pandas as pd

            try:
                span = pd.Timedelta(value)
            except (ValueError, TypeError) as error:
                remedy = "Give a timedelta, or text as '7D'"
                raise DataError(f"{role} is {value!r}, no length of time", remedy=remedy) from error
            if span is pd.NaT:
                raise DataError(f"{role} is missing", remedy="Give a timedelta, or text as '7D'")
            ticks = span.as_unit("ns").value * self.per_second // 10**9
        if not ticks >= 0 or math.isinf(ticks):
            raise DataError(f"{role} is {value!r}", column=self.name, remedy="Give 0 or more")
        return float(ticks) if self.ticks.is_floating_point() else math.floor(ticks)

    def length(self, ticks: float) -> Any:
        """Convert ticks to a duration in the form that :meth:`span` takes."""
        return ticks if self.per_second is None else np.timedelta64(ticks, _UNITS[self.per_second])

    def shown(self, ticks: float) -> str:
        """Format a duration given in ticks."""
        if self.per_second is None:
            return f"{ticks:g}" if isinstance(ticks, float) else str(ticks)
        return str(timedelta(microseconds=ticks * 10**6 // self.per_second)).removesuffix(", 0:00:00")

    def moment(self, ticks: float) -> str:
        """Format a time given in ticks."""
        if self.per_second is None:
            return self.shown(ticks)
        at = np.datetime64(ticks, _UNITS[self.per_second])
        return str(next((d for d in map(at.astype, ("M8[D]", "M8[m]", "M8[s]")) if d == at), at)).replace("T", " ")


def times_of(column: Column) -> Times:
    """Return the times of a column of dates, numbers, ISO 8601 text or ordered categories."""
    column = column.plain()
    if column.kind == "category" and column.ordered:
        return Times(column.values.long().cpu(), None, column.name)
    if column.kind == "category" and is_text(column.distinct.type):
        for zone in (None, "UTC"):
            try:
                dates = column.distinct.cast(pa.timestamp("us", zone))
                break
            except pa.ArrowInvalid:
                continue
        else:
            remedy = "Give dates (2019-07-31), numbers or datetimes"
            raise DataError("holds text that is no date", column=column.name, remedy=remedy)
        table = torch.zeros(len(dates) + 1, dtype=torch.int64)
        table[1:] = torch.from_numpy(np.array(dates.cast(pa.int64())))
        return Times(table[column.values.long().cpu()], UNITS_PER_SECOND["us"], column.name)
    if column.kind == "datetime":
        return Times(column.values.cpu(), UNITS_PER_SECOND[column.unit], column.name)
    if column.kind == "number" and not column.values.is_floating_point():
        return Times(column.integer().cpu(), None, column.name)
    return Times(column.number().cpu(), None, column.name)


def given_times(data: Any, what: Any, role: str) -> Times:
    """Return times of rows, by column name or values (see ``given_column``); none may be missing."""
    column = given_column(data, what, role)
    refuse(column.is_missing(), column.name, "a time is missing", "Fill it, or leave the row out")
    times = times_of(column)
    refuse(~torch.isfinite(times.ticks), column.name, "a time is infinite", "Leave the row out")
    return times


def in_one_unit(times: Times, others: Times) -> tuple[Times, Times]:
    """Return times of two columns, both dates or both numbers, in the same ticks."""
    if (times.per_second is None) != (others.per_second is None):
        problem = f"one of {times.name!r} and {others.name!r} holds dates, the other numbers"
        raise DataError(problem, column=others.name, remedy="Give both in one form")
    # The finer unit represents the values of the coarser one exactly.
    if times.per_second is not None and others.per_second is not None:
        finest = max(times.per_second, others.per_second)
        one, other = (Times(t.ticks * (finest // t.per_second), finest, t.name) for t in (times, others))
        return one, other
    if times.ticks.dtype == others.ticks.dtype:
        return times, others
    return times._replace(ticks=times.ticks.double()), others._replace(ticks=others.ticks.double())
