"""The contract of a feature generator, and its three kinds: ``RowWise``, ``Fitted`` and ``Grouped``."""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.features.columns import as_columns, as_list, names_of
from fastrec.table import Column, Table

State = dict[str, Any]
Tensors = dict[str, torch.Tensor]

# The library's generators by class name, registered when their modules are imported. Saved features refer to them.
GENERATORS: dict[str, type[Feature]] = {}


def generator_named(name: str) -> type[Feature] | None:
    """Return the library's generator of that name, or None."""
    if name not in GENERATORS:
        getattr(import_module("fastrec.features"), name, None)  # the first use of a public name registers it
    return GENERATORS.get(name)


@dataclass(frozen=True, eq=False)
class Cells:
    """Cell (a fold, or an outer and an inner fold) of each training row: int64 ``[n]`` in ``0 … count - 1``."""

    codes: torch.Tensor
    count: int


@dataclass(frozen=True, eq=False)
class Context:
    """Other tables by name, such as an event log. ``given`` names all tables passed, for errors."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    def table(self, name: str, *, wanted_by: str) -> Table:
        """Return the table of that name, or raise DataError."""
        if name not in self.tables:
            given = ", ".join(map(repr, self.given or self.tables)) or "none"
            problem = f"{wanted_by} needs the table {name!r}, and the tables given are: {given}"
            raise DataError(problem, remedy=f"Pass tables={{{name!r}: …}} to fit_transform and transform")
        return self.tables[name]


class Parameters:
    """Constructor arguments, stored unchanged under their names as in scikit-learn.

    Constructors of the library store arguments and check options first. A ``Literal`` must be one of its values, an
    option in ``_least`` (or each of its elements) at least that number.
    """

    _least: ClassVar[dict[str, float]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Not wrapped for a user's class: digests read the code of its constructor.
        if cls.__module__.startswith("fastrec.features.") and "__init__" in vars(cls):
            cls.__init__ = _storing(cls.__init__)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in declared_parameters(type(self))}

    def set_params(self, **params: Any) -> Any:
        """Change constructor arguments in place."""
        for name, value in params.items():
            if name not in self.get_params():
                raise DataError(f"{type(self).__name__} has no parameter {name!r}", remedy="See get_params()")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {n: _as_shown(p.default) for n, p in declared_parameters(type(self)).items()}
        params = {n: _as_shown(v) for n, v in self.get_params().items()}
        shown = [f"{n}={v!r}" for n, v in params.items() if v is not defaults[n] and v != defaults[n]]
        return f"{type(self).__name__}({', '.join(shown)})"


class Feature(Parameters, ABC):
    """Generator of columns whose inputs and outputs are known before any data is seen.

    Subclasses implement ``outputs``, the methods of their kind, and ``sources`` unless ``_reads`` covers it.
    ``uses_future``: later rows may change a value. ``own_row``: the row's values may (a lag's do not, so it may read a
    target). ``sees_ties``: earlier rows with the same order value may. ``online``: a new row's value needs the ``row``
    alone, the ``fitted`` state, or the ``history``. ``codes``: outputs are codes of categories, not quantities.
    """

    kind: ClassVar[Literal["row", "fitted", "grouped"]]
    online: ClassVar[Literal["row", "fitted", "history"]]
    uses_target: bool = False
    uses_future: bool = False
    own_row: bool = True
    sees_ties: bool = False
    codes: ClassVar[bool] = False
    # Set by the module of FeatureSet: importing it here would be circular.
    _set_class: ClassVar[type[Any]]
    scope: Scope = "train"
    # Arguments that name inputs, and arguments that name columns of the log if ``table`` is given.
    _reads: ClassVar[tuple[str, ...]] = ("cols", "col")
    _of_log: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("fastrec.features."):
            GENERATORS[cls.__name__] = cls
            if "Args:" in (cls.__doc__ or ""):
                cls.__doc__ = with_shared_arguments(cls)

    @property
    def sources(self) -> list[Col]:
        """The column names and generators that it reads."""
        own = self._of_log if getattr(self, "table", None) is None else ()
        return [s for word in (*self._reads, *own) for s in as_list(getattr(self, word, None))]

    @property
    @abstractmethod
    def outputs(self) -> list[str]:
        """The names of its output columns."""

    @property
    def inputs(self) -> list[str]:
        """The columns it reads, including outputs of other generators."""
        return list(dict.fromkeys(n for s in self.sources for n in names_of(s)))

    @property
    def fit_only(self) -> list[str]:
        """Inputs that only fitting needs, such as the target."""
        return []

    @property
    def within(self) -> list[str] | None:
        """The columns of the groups whose rows it reads together; None: it reads one row or all rows."""
        return None

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        """The columns it reads from other tables, by table name."""
        table = getattr(self, "table", None) if self._of_log else None
        words = () if table is None else (*self._reads, *self._of_log)
        return {table: [n for word in words for n in as_list(getattr(self, word))]} if words else {}

    def fit(self, df: Any, y: Any = None, **options: Any) -> Feature:
        """Fit on training rows (see ``FeatureSet.fit``)."""
        self._alone(options).fit(df, y, **options)
        return self

    def fit_transform(self, df: Any, y: Any = None, **options: Any) -> Any:
        """Fit and return out-of-fold or causal values of the training rows (see ``FeatureSet.fit_transform``)."""
        return self._alone(options).fit_transform(df, y, **options)

    def transform(self, df: Any, **options: Any) -> Any:
        """Transform other rows without a target (see ``FeatureSet.transform``)."""
        return self._alone(options).transform(df, **options)

    def cross_fit(self, df: Any, folds: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        """Yield training and validation rows of every outer fold (see ``FeatureSet.cross_fit``)."""
        return self._alone(options).cross_fit(df, folds, **options)

    def _alone(self, options: dict[str, Any]) -> Any:
        return self._set_class([self], key=options.pop("key", None))

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """Return ``outputs``."""
        return self.outputs

    @property
    def signature(self) -> str:
        """The text that two generators share if and only if they compute the same values."""
        return repr(self)

    def get_state(self) -> State:
        """Return the fitted state: tensors, keys and JSON values; empty if nothing is learned."""
        return {}

    def set_state(self, state: State) -> None:
        """Restore the state of ``get_state``."""

    def save(self, folder: str | Path) -> None:
        """Write configuration and state as JSON and safetensors; replace ``folder`` in one step."""
        self._set_class([self]).save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, trust: str | Sequence[str] = ()) -> Any:
        """Read what ``save`` wrote (see ``FeatureSet.load``)."""
        return cls._set_class.load(folder, trust=trust).features[0]


# Types of arguments: one column, one or more columns, one or more names.
Col = str | Feature
Cols = str | Feature | Sequence[str | Feature]
Names = str | Sequence[str]
# The rows that statistics are learned from: training rows, or the unlabeled rows of ``fit`` too.
Scope = Literal["train", "all"]


class RowWise(Feature):
    """Generator that reads the row alone and learns nothing."""

    kind = "row"
    online = "row"

    @abstractmethod
    def prepare(self, table: Table) -> Tensors:
        """Return the inputs as tensors."""

    @abstractmethod
    def apply(self, tensors: Tensors) -> Tensors:
        """Map inputs to outputs by tensor operations only, so that it can be exported."""

    def compute(self, table: Table) -> dict[str, Column]:
        """Return the output columns."""
        return as_columns(self.apply(self.prepare(table)))


class Fitted(Feature):
    """Generator that learns statistics from training rows.

    Statistics are collected per partition, merged in any order, and stored by *cell*. Those without a fold are sums
    over the other cells; nothing is subtracted.

    ``causal``: training rows get values from earlier rows, not from other folds. Such a generator overrides
    ``compute_out_of_cell``, whose cells are then the outer folds. If it has ``compute_after``, Dask gives it rows in
    ranges of its ``order``, each with the state of the ranges before.
    ``by_key``: names of the state's keys (or lists of keys), each followed by the parts with one entry per key in
    their last dimension. Dask merges such a state in buckets if there are many keys, any other state whole.
    ``whole_groups``: it learns from the rows of a group together, so partitions must contain whole groups (``within``).
    ``by_row``: the tensors of ``prepare`` have one entry per row (those of lists do not).
    """

    kind = "fitted"
    online = "fitted"
    by_key: tuple[tuple[str, ...], ...] = ()
    causal: ClassVar[bool] = False
    whole_groups: ClassVar[bool] = False
    by_row: ClassVar[bool] = True
    # The parts of ``fit_`` to save: a decomposition on another machine may differ in rounding or signs.
    _saved: ClassVar[tuple[str, ...]] = ()

    state_: State | None = None
    fit_: State | None = None

    @contextmanager
    def using(self, context: Context) -> Iterator[None]:
        """Set ``self.context`` inside a ``with`` block."""
        self._context = context
        try:
            yield
        finally:
            self._context = None

    @property
    def context(self) -> Context:
        """The other tables; empty outside of ``using``."""
        return getattr(self, "_context", None) or Context()

    @abstractmethod
    def collect(self, table: Table, cells: Cells | None = None) -> State:
        """Return one partition's statistics by cell."""

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """Merge two partitions' statistics; associative and commutative."""

    @abstractmethod
    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return the tensors of ``apply`` from the cells where ``keep`` (bool ``[cells]``) is True; None: all."""

    @abstractmethod
    def prepare(self, state: State, table: Table) -> Tensors:
        """Return the inputs as tensors: codes of the learned keys, numbers as floats."""

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        """Map inputs to outputs by tensor operations only, so that it can be exported."""
        codes = {name: tensors[key] for name, key in self.lookups().items()}
        return {name: fit[name].to(c.device).index_select(0, c) for name, c in codes.items()}

    def lookups(self) -> dict[str, str] | None:
        """Map each output to the tensor of ``prepare`` with its codes; None if ``apply`` is more than a look-up.

        Look-ups gather from the concatenated tables of all folds at once.
        """
        return None

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        """Return output tensors as columns."""
        return as_columns(tensors)

    def learn(self, state: State) -> None:
        """Store merged statistics as the fitted state."""
        self.state_, self.fit_ = state, self.finalize(state)

    def compute(self, table: Table) -> dict[str, Column]:
        """Return the output columns of rows not trained on."""
        return self.compute_from(table, self._learned()[0])

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        """Return the output columns from the given statistics."""
        # The state just learned is not finalized again: some generators decompose a matrix.
        fit = self.fit_ if state is self.state_ and self.fit_ is not None else self.finalize(state)
        return self.wrap(self.apply(fit, self.prepare(state, table)))

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        """Return the output columns of training rows, each from the cells that its cell does not exclude.

        ``excluded``: bool ``[cells, cells]``, True if rows in the cell of that row must not see the cell of the column.
        """
        if not bool(excluded.any()):
            return self.compute_from(table, state)
        tensors = self.prepare(state, table) if self.by_row else {}
        results: Tensors = {}
        # Rows whose cells exclude the same cells share one finalized state.
        patterns, pattern_of = torch.unique(excluded, dim=0, return_inverse=True)
        of_row = pattern_of.to(cells.codes.device).index_select(0, cells.codes)
        lookups = self.lookups()
        if lookups is not None:
            fits = [self.finalize(state, ~p) for p in patterns]
            for name, codes in lookups.items():
                tables = torch.cat([fit[name].to(of_row.device) for fit in fits])
                places = (of_row * (len(tables) // len(fits))).add_(tensors[codes])
                results[name] = tables.index_select(0, places)
            return self.wrap(results)
        for i, pattern in enumerate(patterns):
            rows = (of_row == i).nonzero().squeeze(1)
            if not len(rows):
                continue
            if self.by_row:
                part = {n: t[rows] for n, t in tensors.items()}
            else:
                part = self.prepare(state, table.select(self.inputs).take(rows))
            for name, values in self.apply(self.finalize(state, ~pattern), part).items():
                if name not in results:
                    results[name] = values.new_empty(len(table), *values.shape[1:])
                results[name].index_copy_(0, rows, values)
        return self.wrap(results) if results else self.compute_from(table, state)

    def get_state(self) -> State:
        state, fit = self._learned()
        return {**state, **{n: fit[n] for n in self._saved}}

    def set_state(self, state: State) -> None:
        if not self._saved:
            return self.learn(state)
        self.state_ = {n: v for n, v in state.items() if n not in self._saved}
        self.fit_ = {n: state[n] for n in self._saved}

    def _learned(self) -> tuple[State, State]:
        if self.state_ is None or self.fit_ is None:
            raise NotFittedError(f"{self!r} has not been fitted", remedy="Call fit or fit_transform first")
        return self.state_, self.fit_


class Grouped(Feature):
    """Generator that reads other rows of a row's group, or a log's events, in order."""

    kind = "grouped"
    online = "history"

    @property
    def within(self) -> list[str] | None:
        """The columns of ``by``."""
        return as_list(getattr(self, "by", None))

    @abstractmethod
    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        """Return the output columns of a table of whole groups."""


def _as_shown(value: Any) -> Any:
    # Tuples become lists: JSON has no tuples, and a loaded generator must have the same repr as the saved one.
    return [_as_shown(v) for v in value] if isinstance(value, list | tuple) else value


def _storing(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @wraps(init)
    def store(self: Parameters, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # raises the same error with the name of the class
            raise
        given.apply_defaults()
        kind, choices = type(self).__name__, _choices(init)
        for name, value in list(given.arguments.items())[1:]:
            setattr(self, name, value)
            values, known = [value] if value is None else as_list(value), choices.get(name)
            wrong = [] if known is None else [v for v in values if v not in known]
            if wrong:
                problem = f"{kind} has no {'statistic' if name == 'stats' else name} {wrong[0]!r}"
                raise DataError(problem, remedy=f"Use one of {', '.join(map(repr, known))}")
            least = self._least.get(name)
            if least is not None:
                numbers = value.values() if isinstance(value, Mapping) else values
                if not all(v is None or least <= v < math.inf for v in numbers):
                    raise DataError(f"{kind}: {name} is {value}", remedy=f"Use {least} or more")
        init(self, *args, **kwargs)

    return store


@cache
def _choices(init: Callable[..., None]) -> dict[str, tuple[Any, ...]]:
    """Return the allowed values of each option whose type is made of ``Literal`` (or None)."""
    found = {}
    for name, hint in get_type_hints(init).items():
        parts = (hint,) if get_origin(hint) is Literal else get_args(hint)
        parts = [get_args(p)[0] if get_origin(p) is Sequence else p for p in parts]
        if parts and all(p is NoneType or get_origin(p) is Literal for p in parts):
            found[name] = tuple(dict.fromkeys(v for p in parts for v in (get_args(p) or [None])))
    return found


# Arguments of many generators: docstrings that leave them out get these lines.
_SHARED = {
    "cols": "number columns, or generators.",
    "by": "the columns of the group.",
    "order": "the columns that order a group's rows, ties by row number; None: the order of the frame.",
    "scope": "``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).",
    "table": "the name of the log in ``tables``; None: the frame's rows are the events.",
    "name": "the outputs' first word.",
}


def with_shared_arguments(cls: type[Feature]) -> str:
    """Return a class's docstring with the arguments that many generators share, where it tells of none."""
    text = inspect.cleandoc(cls.__doc__) + "\n"
    at = text.index("Args:\n") + len("Args:\n")
    for name in declared_parameters(cls):
        said = re.search(rf"^    (?:\w+, )*{name}(?:, \w+)*: .*\n(?:     .*\n)*", text, re.MULTILINE)
        if said is None and name in _SHARED:
            text = f"{text[:at]}    {name}: {_SHARED[name]}\n{text[at:]}"
            at = text.index("\n", at) + 1
        at = at if said is None else said.end()
    return text


@cache
def declared_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor."""
    parameters = inspect.signature(cls.__init__).parameters.items()
    return {n: p for n, p in parameters if n != "self" and p.kind is not inspect.Parameter.VAR_POSITIONAL}
