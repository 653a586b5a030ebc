"""Runs of a pipeline on changed copies of a frame, and the comparison of their values."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec._core.optional import library_of
from fastrec.errors import DataError
from fastrec.features._engine.saving import index_of, replace_features, selectors_of
from fastrec.features._inputs import as_list
from fastrec.features.base import Feature, Fitted
from fastrec.features.feature_set import FeatureSet
from fastrec.features.selectors import Selector, selector_from
from fastrec.table import Column, Table, as_column, attach, column_names, take_rows

Made = dict[str, Column]


class Runner(ABC):
    """A pipeline to run: after ``start``, ``listed`` names its new columns, ``passed_on`` the unchanged ones."""

    listed: list[str]
    passed_on: list[str]

    def __init__(self) -> None:
        self.listed, self.passed_on = [], []

    @abstractmethod
    def prepare(self, df: Any, names: Sequence[str]) -> Any:
        """Return the frame in the form that it runs on; the checks change the columns ``names``."""

    @abstractmethod
    def start(self, frame: Any) -> Made:
        """Run first, and learn which columns are new."""

    @abstractmethod
    def run(self, frame: Any, what: str) -> Made:
        """Return the new columns of a changed frame; ``what`` describes the change, for messages."""

    def columns(self, frame: Any) -> list[str]:
        """Return the columns of a prepared frame."""
        return column_names(frame)

    def fixed(self, frame: Any) -> Callable[[Any], Made] | None:
        """Return a function that transforms rows by the state fitted on ``frame``; None if nothing is fitted."""
        return None

    def learns_from_all(self, column: str) -> list[Feature]:
        """Return the steps behind a column that are fitted on all training rows, later ones included."""
        return []

    def maker(self, column: str, together: set[str]) -> Feature | None:
        """Return the first generator behind a column whose outputs are among those that leak ``together``."""
        return None


class SetRunner(Runner):
    """A FeatureSet with other ``tables``, run on clones of itself; the columns of all its steps are compared."""

    def __init__(self, features: FeatureSet, tables: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.given = features
        self.tables = {n: Table.read(t) for n, t in (tables or {}).items()}
        self.steps: list[Feature] = []

    def prepare(self, df: Any, names: Sequence[str]) -> Table:
        chooses = selectors_of(self.given.steps)  # among all columns
        return Table.read(df, None if chooses else list(dict.fromkeys([*self.given.fit_inputs, *names])))

    def start(self, frame: Table) -> Made:
        chosen = _clone(self.given)
        if selectors_of(chosen.steps):  # which columns they stand for is known once they were fitted
            chosen.fit(frame, tables=self.tables)
        self.listed, self.steps = chosen.outputs, _with_names(chosen.steps)
        return self.run(frame, "on the rows as they are")

    def run(self, frame: Table, what: str) -> Made:
        return self._made(self.whole().fit_transform(frame, tables=self.tables))

    def whole(self) -> FeatureSet:
        """Return a clone that returns the columns of all steps."""
        options = {n: v for n, v in self.given.get_params().items() if n not in ("features", "keep", "cache")}
        return _clone(FeatureSet(self.steps, **options))

    def fixed(self, frame: Table) -> Callable[[Table], Made] | None:
        if not any(isinstance(s, Fitted) and not s.causal for s in self.steps):
            return None
        fitted = self.whole().fit(frame, tables=self.tables)
        return lambda rows: self._made(fitted.transform(rows, tables=self.tables))

    def cross_fit(self, frame: Table, folds: torch.Tensor, k: int) -> tuple[Made, Made]:
        """Return the training and validation columns of outer fold ``k``, which has rows."""
        place = torch.unique(folds).tolist().index(k)
        pairs = self.whole().cross_fit(frame, folds, tables=self.tables)
        train, valid = next(pair for i, pair in enumerate(pairs) if i == place)
        return self._made(train), self._made(valid)

    def learns_from_all(self, column: str) -> list[Feature]:
        return [s for s in self._way(column) if isinstance(s, Fitted) and not s.causal]

    def maker(self, column: str, together: set[str]) -> Feature | None:
        return next((s for s in self._way(column) if set(s.outputs) & together), None)

    def _way(self, column: str) -> list[Feature]:
        """Return the steps that a column comes from, in order."""
        wanted, steps = {column}, []
        for step in reversed(self.steps):
            if wanted & set(step.outputs):
                wanted |= set(step.inputs)
                steps.append(step)
        return steps[::-1]

    def _made(self, table: Table) -> Made:
        return {n: table[n] for s in self.steps for n in s.outputs}


class FunctionRunner(Runner):
    """A user's function from frame to frame, called with copies.

    Args:
        function: the function; rows must come back in their order (or, from pandas, with a unique index).
        targets: columns that are no features.
        fixed: columns that reveal a changed order of rows.
    """

    def __init__(self, function: Callable[[Any], Any], targets: Sequence[str], fixed: Sequence[str]) -> None:
        super().__init__()
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
        except DataError:  # values that no Column holds: no feature either
            return True
        odd = moved(there, here)
        if not bool(odd.any()):
            self.passed_on.append(name)
            return True
        if name in self.fixed_names and same_values(there, here):
            raise DataError(
                "the pipeline returns its rows in another order",
                column=name,
                row=int(odd.nonzero()[0]),
                remedy="Return one row for every row given, in the order given",
            )
        return False

    def run(self, frame: Any, what: str) -> Made:
        result = self._call(frame, what)
        there = set(column_names(result))
        return {n: as_column(result[n], name=n) for n in self.listed if n in there}

    def _call(self, frame: Any, what: str) -> Any:
        given = copy_of(frame)
        try:
            result = self.function(given)
        except Exception as error:
            raise DataError(
                f"the pipeline failed {what}: {type(error).__name__}: {error}",
                remedy="Make it work on such rows too, or check a part of it",
            ) from error
        if result is None:
            raise DataError("the pipeline returns nothing", remedy="Return a frame with one row for every row given")
        result = in_order_of(frame, result)
        rows, wanted = count_rows(result), count_rows(frame)
        if rows != wanted:
            raise DataError(
                f"the pipeline returns {rows} rows for {wanted} ({what})",
                remedy="Return one row for every row given, in the order given",
            )
        return result


def _clone(features: FeatureSet) -> FeatureSet:
    from sklearn.base import clone

    made = clone(features)
    made.cache = None  # every run must compute
    return made


def _with_names(steps: Sequence[Feature]) -> list[Feature]:
    # Unfitted steps, their selectors fixed to the chosen columns: on changed rows they might choose others.
    made: list[Feature] = []

    def fresh(thing: Feature | Selector) -> Any:
        if isinstance(thing, Selector):
            return selector_from({"how": {"what": "columns", "listed": thing.names}, "names": thing.names})
        return made[index_of(steps, thing)]

    for step in steps:
        made.append(type(step)(**replace_features(step.get_params(), fresh)))
    return made


def copy_of(frame: Any) -> Any:
    """Copy a frame, unless it is immutable."""
    if isinstance(frame, Table | pa.Table | pa.RecordBatch) or library_of(frame) == "polars":
        return frame  # immutable
    return copy.deepcopy(frame) if isinstance(frame, Mapping) else frame.copy()


def count_rows(frame: Any) -> int:
    """Count the rows of a frame of any supported library."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.num_rows
    if isinstance(frame, Mapping):
        names = list(frame)
        return len(frame[names[0]]) if names else 0
    return len(frame)


def in_order_of(frame: Any, result: Any) -> Any:
    """Sort a pandas result's rows as the frame's, by a unique index; other results stay as they are."""
    if library_of(frame) != "pandas" or not hasattr(result, "index") or result.index.equals(frame.index):
        return result
    index = frame.index
    if not (index.is_unique and result.index.is_unique and len(index) == len(result.index)):
        return result
    places = result.index.get_indexer(index)
    return result.iloc[places] if (places >= 0).all() else result


def with_rows_of(frame: Any, source: Mapping[str, torch.Tensor]) -> Any:
    """Return the frame with values of ``source`` columns taken from other rows (int64 ``[n]``); all else stays."""
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
    """Mark the values of a column that differ, but for rounding: bool ``[n]``; missing equals missing.

    Args:
        before, after: the column, in the same rows.
        scale: the column's ``typical`` size; None: computed from ``before``.
    """
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
        if a.is_floating_point() or b.is_floating_point():
            return _far(a, b, scale)
        return a.long() != b.long()
    if kinds == ("datetime", "datetime") and before.unit == after.unit:
        return before.values != after.values.to(before.values.device)
    if kinds == ("datetime", "datetime"):
        return before.number() != after.number().to(before.values.device)
    if kinds == ("vector", "vector") and before.values.shape == after.values.shape:
        a, b = before.values, after.values.to(before.values.device)
        both_missing = a.isnan() & b.isnan()
        return (_far(a, b, scale) & ~both_missing).any(1)
    if kinds == ("list", "list"):
        return _different_lists(before, after, scale)
    return _different_arrow(before, after)


def _far(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    single = any(x.is_floating_point() and x.dtype != torch.float64 for x in (a, b))
    # float32 has seven digits
    relative, absolute = (2e-6, 1e-7) if single else (limits.LEAK_RELATIVE, limits.LEAK_ABSOLUTE)
    a, b = a.double(), b.double()
    allowed = relative * torch.maximum(a.abs(), b.abs()) + absolute * scale
    near = ((a - b).abs() <= allowed) & a.isfinite() & b.isfinite()
    return ~(near | (a == b))


def _different_lists(before: Column, after: Column, scale: float) -> torch.Tensor:
    lengths = before.values[1:] - before.values[:-1]
    other = (after.values[1:] - after.values[:-1]).to(lengths.device)
    different = lengths != other
    rows = (~different).nonzero().squeeze(1)
    a, b = before.take(rows).elements, after.take(rows.to(after.values.device)).elements
    if not len(a):
        return different
    gone, gone_too = a.is_missing(), b.is_missing().to(lengths.device)
    odd = (gone != gone_too) | (~gone & ~gone_too & _different(a, b, scale))
    owner = torch.repeat_interleave(rows, lengths[rows])
    different[owner[odd]] = True
    return different


def _different_arrow(before: Column, after: Column) -> torch.Tensor:
    a, b = before.to_arrow(), after.to_arrow()
    device = before.is_missing().device
    try:
        unequal = pc.not_equal(a, b).fill_null(False)
        return torch.from_numpy(np.array(unequal, dtype=bool)).to(device)
    except (pa.ArrowException, TypeError):  # values that Arrow does not compare (structs, text with numbers)
        unequal = [x != y for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)]
        return torch.tensor(unequal, dtype=torch.bool, device=device)


def same_values(a: Column, b: Column) -> bool:
    """Test whether two columns hold the same values, in any order."""
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


def as_features(pipeline: Any, key: Any) -> FeatureSet | None:
    """Return a FeatureSet, or a generator as one; None for anything else."""
    if isinstance(pipeline, FeatureSet):
        return pipeline
    return FeatureSet([pipeline], key=as_list(key) or None) if isinstance(pipeline, Feature) else None
