"""``CachedStep``: a cache's entry of one step on given rows."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastrec._core.device import DeviceLike
from fastrec._version import __version__
from fastrec.errors import DataError
from fastrec.features._engine.digests import NoDigestError, columns_digest, digest, remember
from fastrec.features.base import Context, Feature, State
from fastrec.features.columns import as_list, names_of
from fastrec.table import Column, Table
from fastrec.table.keys import is_numeric

if TYPE_CHECKING:
    from fastrec.features.cache import FeatureCache


class CachedStep:
    """A cache's entry of one step on given rows; without cache or digest (``key``) everything is computed."""

    def __init__(self, cache: FeatureCache | None = None, key: str | None = None, device: DeviceLike = None) -> None:
        self.cache, self.key, self.device = cache, key, device

    @classmethod
    def of(
        cls,
        cache: FeatureCache | None,
        step: Feature,
        work: Table,
        context: Context,
        *,
        key: tuple[str, ...] = (),
        also: tuple[Any, ...] = (),
    ) -> CachedStep:
        """Look a step up in a cache."""
        # key: columns beside the step's inputs that count, those of the folds' key; also: whatever else the result
        # depends on: numbers of folds, hidden rows, other tables
        if cache is None:
            return cls()
        names = dict.fromkeys([*step.inputs, *key])
        tables = [
            (n, columns_digest(context.tables[n], cols)) for n, cols in step.table_inputs.items() if n in context.tables
        ]
        try:
            found = digest(__version__, step, columns_digest(work, names), tables, list(key), list(also))
        except NoDigestError as error:
            cache.tell(step, error)
            return cls()
        return cls(cache, found, work.device)

    def state(self, make: Callable[[], State]) -> State:
        """Return the step's statistics, cached or computed."""
        if self.cache is None or self.key is None:
            return make()
        key = digest(self.key, "state")
        found = self.cache.get(key)
        state = found["state"] if found is not None else make()
        if found is None:
            self.cache.put(key, {"state": state})
        return state

    def columns(self, what: str, make: Callable[[], Mapping[str, Column]]) -> dict[str, Column]:
        """Return the step's columns, cached or computed; ``what``: which of those that it makes of these rows."""
        if self.cache is None or self.key is None:
            return dict(make())
        key = digest(self.key, what)
        found = self.cache.get(key)
        made = dict(make()) if found is None else found["columns"]
        # What is kept in memory is shared with nobody, who might change it in place.
        copies = {n: c.copy() for n, c in made.items()} if self.cache.folder is None else made
        if found is None:
            self.cache.put(key, {"columns": copies})
        else:
            made = copies
        made = {n: c.to(self.device) for n, c in made.items()}
        for name, column in made.items():
            # Later steps digest these columns by origin instead of contents.
            remember(column, digest(key, name))
        return made


class _Function(Feature):
    """Base of generators from functions: names, call, and how the function is located again."""

    function: Callable[..., Any]
    cols: str | Feature | Sequence[str | Feature]
    columns: str | Sequence[str]

    @property
    def outputs(self) -> list[str]:
        return as_list(self.columns)

    @property
    def signature(self) -> str:
        return f"{self!r} at {id(self.function)}"

    def _values(self, table: Table) -> list[Any]:
        values = [_value(table[n]) for c in as_list(self.cols) for n in names_of(c)]
        try:
            taken = inspect.signature(self.function)
        except ValueError:  # a built-in function may not say what it takes
            return values
        try:
            taken.bind(*range(len(values)), **{n: None for n in taken.parameters if n == "groups"})
        except TypeError as error:
            problem = f"{_path(self.function)} cannot be called with {len(values)} columns ({error})"
            raise DataError(problem, remedy="Name one for each argument") from error
        return values

    def _results(self, made: Any, size: int | None) -> list[Any]:
        """Split the function's result by output; ``size``: rows that each must have; None: any."""
        if isinstance(made, Mapping):
            made = [made[n] for n in self.outputs if n in made]
        results = list(made) if isinstance(made, list | tuple) and len(self.outputs) > 1 else [made]
        if len(results) != len(self.outputs):
            problem = f"{_path(self.function)} returned {len(results)} columns for {len(self.outputs)} outputs"
            raise DataError(problem, remedy=f"Return one value for each of {', '.join(self.outputs)}")
        if size is None:
            return results
        for name, result in zip(self.outputs, results, strict=True):
            found = len(result) if hasattr(result, "__len__") and getattr(result, "ndim", 1) else None
            if found != size:
                raise DataError(
                    f"{_path(self.function)} returned {'one value' if found is None else f'{found} values'} for "
                    f"{size} rows",
                    column=name,
                    remedy="Return one value per row, in the rows' order",
                )
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        params = {n: v for n, v in self.get_params().items() if n != "function" and v not in (None, False)}
        return f"{type(self).__name__}({_path(self.function)}, {', '.join(f'{n}={v!r}' for n, v in params.items())})"


def function_name(feature: Feature) -> str:
    """Return ``module:name`` of a generator's function."""
    function = feature.function
    where = f"{function.__module__}:{function.__qualname__}"
    try:
        found = function_at(where)
    except (DataError, ValueError):
        found = None
    if found is not function or function.__module__ == "__main__":
        problem = f"{_path(function)} cannot be found again when it is loaded"
        raise DataError(problem, remedy="Define it with @feature at the top of a module that can be imported")
    return where


def function_at(where: str, trust: Collection[str] = ()) -> Callable[..., Any]:
    """Return the function of the generator that ``module:name`` names."""
    # Of modules that trust does not name only those are looked at that are imported already
    module, _, name = where.partition(":")
    if module not in sys.modules and module not in trust:
        raise DataError(
            f"the function {name!r} is in the module {module!r}, which is not imported: to import it runs its code",
            remedy=f"Import {module} first, or load with trust={module!r} if you trust it",
        )
    try:
        found = vars(importlib.import_module(module)).get(name)
    except Exception as error:
        raise ValueError(f"the module {module!r} cannot be imported ({error})") from error
    if not isinstance(found, _Function):
        raise ValueError(f"there is no generator {name!r} in {module!r}")
    return found.function


def _value(column: Column) -> Any:
    if column.kind in ("number", "datetime") or (column.kind == "category" and is_numeric(column.distinct.type)):
        return column.number()
    return column.to_arrow().to_pylist()


def _path(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).replace("<locals>.", "")
