"""The contract of a feature generator, and its three kinds.

A generator names its inputs and outputs before it sees data. ``RowWise`` needs nothing but the row. ``Fitted`` learns
statistics from training rows; they are collected per partition, merged in any order, and kept apart by *cell* (a fold,
or an outer fold and an inner one), so that statistics without a fold are sums over the other cells and nothing is ever
subtracted. ``Grouped`` looks at the other rows of a row's group, or at the events of a log, in order.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.table import Column, Table

if TYPE_CHECKING:
    from fastrec.features.feature_set import FeatureSet
from fastrec.features._inputs import as_columns, as_list, names_of

State = dict[str, Any]


Tensors = dict[str, torch.Tensor]

# Generators by class name: what saved features may name. Each of the library's own registers when it is defined.
GENERATORS: dict[str, type[Feature]] = {}


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cell of the training data each row is in.

    Args:
        codes: int64 ``[n]`` in ``0 … count - 1``.
        count: how many cells there are.
    """

    codes: torch.Tensor
    count: int


@dataclass(frozen=True, eq=False)
class Context:
    """What a generator may use besides the frame itself.

    Args:
        tables: other tables by name, for instance an event log.
        given: the names of all tables that were given, for errors.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    def table(self, name: str, *, wanted_by: str) -> Table:
        """The table of that name.

        Raises:
            DataError: it was not given.
        """
        if name not in self.tables:
            given = ", ".join(map(repr, self.given or self.tables)) or "none"
            raise DataError(
                f"{wanted_by} needs the table {name!r}, and the tables given are: {given}",
                remedy=f"Pass tables={{{name!r}: …}} to fit_transform and transform",
            )
        return self.tables[name]


class Feature(ABC):
    """A generator of columns.

    Subclasses store their constructor's arguments unchanged under the same names (as scikit-learn asks), and implement
    ``sources``, ``outputs`` and the methods of their kind. ``uses_future`` says that rows after a row may matter,
    ``own_row`` that its own values do (a lag's do not: it may read a target). ``online`` says what one new row's values
    are made of: the ``row`` alone, what was ``fitted`` too, or the ``history`` before it.
    """

    kind: ClassVar[Literal["row", "fitted", "grouped"]]
    online: ClassVar[Literal["row", "fitted", "history"]]
    uses_target: bool = False
    uses_future: bool = False
    own_row: bool = True
    # FeatureSet, which builds on this class and puts itself here
    _set_class: ClassVar[type[FeatureSet]]
    scope: Literal["train", "all"] = "train"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("fastrec.features."):
            GENERATORS[cls.__name__] = cls

    @property
    @abstractmethod
    def sources(self) -> list[str | Feature]:
        """What it reads: column names and other generators."""

    @property
    @abstractmethod
    def outputs(self) -> list[str]:
        """The names of the columns it makes."""

    @property
    def inputs(self) -> list[str]:
        """The columns it reads, those made by other generators among them."""
        return list(dict.fromkeys(n for s in self.sources for n in names_of(s)))

    @property
    def fit_only(self) -> list[str]:
        """Inputs that only fitting needs: the target, the weight."""
        return []

    @property
    def within(self) -> list[str] | None:
        """The columns of the groups whose rows it looks at together; None: it looks at one row, or at all."""
        return None

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        """Columns it reads from other tables, by table name."""
        return {}

    # What a user calls -----------------------------------------------------------------------------------------------

    def fit(self, df: Any, y: Any = None, **options: Any) -> Feature:
        """Learn from training rows (see ``FeatureSet.fit``)."""
        self._alone(options).fit(df, y, **options)
        return self

    def fit_transform(self, df: Any, y: Any = None, **options: Any) -> Any:
        """Learn from training rows; give them out-of-fold or causal values (see ``FeatureSet.fit_transform``)."""
        return self._alone(options).fit_transform(df, y, **options)

    def transform(self, df: Any, **options: Any) -> Any:
        """Give other rows their values, from full statistics and without the target (see ``FeatureSet.transform``)."""
        return self._alone(options).transform(df, **options)

    def cross_fit(self, df: Any, folds: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        """Nested values for every outer fold (see ``FeatureSet.cross_fit``)."""
        return self._alone(options).cross_fit(df, folds, **options)

    def _alone(self, options: dict[str, Any]) -> FeatureSet:
        return self._set_class([self], key=options.pop("key", None))

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """The names of the columns it makes (scikit-learn's name for ``outputs``)."""
        return self.outputs

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in declared_parameters(type(self))}

    def set_params(self, **params: Any) -> Feature:
        """Change constructor's arguments in place."""
        for name, value in params.items():
            if name not in declared_parameters(type(self)):
                raise DataError(f"{type(self).__name__} has no parameter {name!r}", remedy="See get_params()")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {n: _as_shown(p.default) for n, p in declared_parameters(type(self)).items()}
        params = {n: _as_shown(v) for n, v in self.get_params().items()}
        shown = [f"{n}={v!r}" for n, v in params.items() if v is not defaults[n] and v != defaults[n]]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def signature(self) -> str:
        """Text that two generators share if, and only if, they compute the same."""
        return repr(self)

    # What is saved ---------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """What it has learned: tensors, keys and JSON values; empty for a generator that learns nothing."""
        return {}

    def set_state(self, state: State) -> None:  # noqa: B027 - most generators learn nothing
        """The inverse of ``get_state``."""

    def save(self, folder: str | Path) -> None:
        """Write configuration and state as JSON and safetensors; what was at ``folder`` is replaced in one step."""
        self._set_class([self]).save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, trust: str | Sequence[str] = ()) -> Any:
        """Read what ``save`` wrote (see ``FeatureSet.load``)."""
        return cls._set_class.load(folder, trust=trust).features[0]


class RowWise(Feature):
    """A generator that needs nothing but the row itself, and learns nothing."""

    kind = "row"
    online = "row"

    @abstractmethod
    def prepare(self, table: Table) -> Tensors:
        """The inputs as tensors."""

    @abstractmethod
    def apply(self, tensors: Tensors) -> Tensors:
        """Inputs → outputs, by tensor operations only, so that it can be exported."""

    def compute(self, table: Table) -> dict[str, Column]:
        """The output columns of a table."""
        return as_columns(self.apply(self.prepare(table)))


class Fitted(Feature):
    """A generator that learns statistics from training rows.

    ``causal``: training rows get their values from the rows before them, not from other folds; such a generator
    overrides ``compute_out_of_cell``, whose cells are then only those that an outer fold hides. One that has
    ``compute_after``, too, gets the rows of a Dask frame in ranges of its ``order``, each with what it collected of
    the ranges before.
    ``by_key``: names of a state's keys (or list of keys), each followed by those of the parts whose last dimension the
    keys are. Dask merges such a state in buckets if the keys are many, any other state whole.
    ``whole_groups``: what it learns is made from rows of one group together, so that a partition, of rows and of other
    tables alike, must hold its groups (``within``) whole.
    """

    kind = "fitted"
    online = "fitted"
    by_key: tuple[tuple[str, ...], ...] = ()
    causal: ClassVar[bool] = False
    whole_groups: ClassVar[bool] = False

    def __init__(self) -> None:
        self.state_: State | None = None
        self.fit_: State | None = None

    @contextmanager
    def using(self, context: Context) -> Iterator[None]:
        """While it lasts, ``self.context`` holds the other tables, for a generator that learns from one."""
        self._context = context
        try:
            yield
        finally:
            self._context = None

    @property
    def context(self) -> Context:
        """The other tables given; none outside of ``using``."""
        return getattr(self, "_context", None) or Context()

    @abstractmethod
    def collect(self, table: Table, cells: Cells | None = None) -> State:
        """One partition's share of the statistics, kept apart by cell."""

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """Two partitions' statistics as one: associative and commutative."""

    @abstractmethod
    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """What ``apply`` needs, from the cells where ``keep`` (bool ``[cells]``) is True; None: from all."""

    @abstractmethod
    def prepare(self, state: State, table: Table) -> Tensors:
        """The inputs as tensors: keys as codes of the learned keys, numbers as floats."""

    @abstractmethod
    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        """Inputs → outputs, by tensor operations only: the same function in training and in an exported graph."""

    def lookups(self) -> dict[str, str] | None:
        """Output → the tensor of ``prepare`` that holds its rows' codes, where ``apply`` only looks them up in ``fit``.

        Then every fold's table is laid beside the others, and one gather serves all rows; None: ``apply`` does more.
        """
        return None

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        """Output tensors → columns."""
        return as_columns(tensors)

    def learn(self, state: State) -> None:
        """Take merged statistics as what was learned."""
        self.state_, self.fit_ = state, self.finalize(state)

    def compute(self, table: Table) -> dict[str, Column]:
        """The output columns of rows that were not trained on."""
        state, fit = self._learned()
        return self.wrap(self.apply(fit, self.prepare(state, table)))

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        """The output columns of a table from statistics that are not (yet) what was learned."""
        return self.wrap(self.apply(self.finalize(state), self.prepare(state, table)))

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        """The output columns of training rows, each from the cells that its own cell does not exclude.

        Args:
            table: the rows.
            state: statistics by cell.
            cells: each row's cell.
            excluded: bool ``[cells, cells]``: row ``c`` says which cells rows in cell ``c`` must not see.
        """
        if not bool(excluded.any()):
            return self.compute_from(table, state)
        tensors = self.prepare(state, table)
        results: Tensors = {}
        patterns, pattern_of = torch.unique(excluded, dim=0, return_inverse=True)
        of_row = pattern_of.to(cells.codes.device).index_select(0, cells.codes)
        lookups = self.lookups()
        if lookups is not None:
            return self.wrap(_look_up([self.finalize(state, ~p) for p in patterns], lookups, of_row, tensors))
        for i, pattern in enumerate(patterns):
            rows = (of_row == i).nonzero().squeeze(1)
            if not len(rows):
                continue
            made = self.apply(self.finalize(state, ~pattern), {n: t[rows] for n, t in tensors.items()})
            for name, values in made.items():
                if name not in results:
                    results[name] = values.new_empty(len(table), *values.shape[1:])
                results[name].index_copy_(0, rows, values)
        return self.wrap(results) if results else self.wrap(self.apply(self.finalize(state), tensors))

    def get_state(self) -> State:
        return dict(self._learned()[0])

    def set_state(self, state: State) -> None:
        self.learn(state)

    def _learned(self) -> tuple[State, State]:
        if self.state_ is None or self.fit_ is None:
            raise NotFittedError(f"{self!r} has not been fitted", remedy="Call fit or fit_transform first")
        return self.state_, self.fit_


class Grouped(Feature):
    """A generator that looks at the other rows of a row's group, or at a log's events, in order."""

    kind = "grouped"
    online = "history"

    @property
    def within(self) -> list[str] | None:
        """See ``Feature.within``; the columns of ``by`` unless a generator looks further."""
        return as_list(getattr(self, "by", None))

    @abstractmethod
    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        """The output columns of a table whose groups are whole."""


def _look_up(fits: list[State], lookups: dict[str, str], of_row: torch.Tensor, tensors: Tensors) -> Tensors:
    """Every row's outputs from the table that is its own: ``of_row`` int64 ``[n]`` says which of ``fits``."""
    places: Tensors = {}
    made = {}
    for name, codes in lookups.items():
        tables = [fit[name].to(of_row.device) for fit in fits]
        if codes not in places:
            places[codes] = (of_row * len(tables[0])).add_(tensors[codes])
        made[name] = torch.cat(tables).index_select(0, places[codes])
    return made


def _as_shown(value: Any) -> Any:
    """Tuples as lists: what was saved and loaded again looks as it did."""
    return [_as_shown(v) for v in value] if isinstance(value, list | tuple) else value


@cache
def declared_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The parameters of a generator's constructor."""
    found = inspect.signature(cls.__init__).parameters.items()
    return {n: p for n, p in found if n != "self" and p.kind is not inspect.Parameter.VAR_POSITIONAL}
