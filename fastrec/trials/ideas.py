"""``read_idea``: the generators or the function to try on a run."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.messages import refuse_absent
from fastrec.competition.kept_rows import KeptRows, Pair
from fastrec.competition.run_features import transform_unknown
from fastrec.errors import DataError, FastrecError, MissingFileError
from fastrec.features import FeatureSet, check_leakage
from fastrec.features._engine.saving import selectors_of
from fastrec.features.base import Feature
from fastrec.table import Table


@dataclass(frozen=True)
class Idea:
    """Generators or a function to try, with the file's name and the digest of its text if it was read from one."""

    features: tuple[Feature, ...] = ()
    function: Callable[[Any], Any] | None = None
    file: str | None = None
    digest: str | None = None


def read_idea(given: Any) -> Idea:
    """Read the generators or the function to try, from a file or as they are given.

    A file has names of generators, lists of them or ``FeatureSet``s, or one function (helpers' names begin with ``_``).
    """
    if not isinstance(given, str | Path):
        features = _features(given)
        if features:
            return Idea(tuple(features))
        if callable(given) and not isinstance(given, type):
            return Idea(function=given)
        remedy = "Give a file, generators, a FeatureSet, or a function from a frame to its new columns"
        raise DataError(f"a {type(given).__name__} is nothing to try", remedy=remedy)
    path = Path(given)
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a Python file with generators")
    module = _run(path)
    named = [v for n, v in vars(module).items() if not n.startswith("_")]
    distinct = list({id(f): f for v in named for f in _features(v)}.values())
    # a generator that is part of another is fitted with it
    inner = {id(s) for f in distinct for s in FeatureSet([f]).steps if s is not f}
    features = [f for f in distinct if id(f) not in inner]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if features:
        return Idea(tuple(features), file=path.name, digest=digest)
    functions = [v for v in named if inspect.isfunction(v) and v.__module__ == module.__name__]
    if len(functions) != 1:
        names = ", ".join(f.__name__ for f in functions) or "none"
        problem = f"it holds no generator, and {len(functions)} functions ({names}) instead of one"
        remedy = "Write generators, or one function of a frame (the names of others begin with _)"
        raise DataError(problem, file=path, remedy=remedy)
    return Idea(function=functions[0], file=path.name, digest=digest)


def _features(value: Any) -> Sequence[Feature]:
    if isinstance(value, Feature):
        return [value]
    if isinstance(value, FeatureSet):
        return value.features
    if isinstance(value, list | tuple) and value and all(isinstance(v, Feature | FeatureSet) for v in value):
        return [f for v in value for f in _features(v)]
    return []


def _says(error: Exception, file: str) -> str:
    """Return an error's type and message, and the line of the file where it happened."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{type(error).__name__}: {error}" + (f", line {lines[-1]}" if lines else "")


def _run(path: Path) -> ModuleType:
    """Import the file anew; files in its folder can be imported meanwhile."""
    name = f"fastrec_try_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise DataError("it is no Python file", file=path, remedy="Give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # classes of the file must find their module while it runs
    before, folder = sys.modules.get(name), str(path.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"line {error.lineno} is no Python ({error.msg})", file=path, remedy="Correct it") from error
    except Exception as error:  # whatever a person's own code raises
        raise DataError(f"it fails ({_says(error, str(path.resolve()))})", file=path, remedy="Correct it") from error
    finally:
        sys.path.remove(folder)
        if before is None:
            sys.modules.pop(name)
        else:
            sys.modules[name] = before
    return module


class NewColumns:
    """New columns of a run's rows.

    Generators are fitted for every fold, nested, as the run's features are, on the recipe's columns and the run's
    features without targets. A function is called once with all rows (with folds by time: for each fold, with its rows)
    and never gets a target.
    """

    def __init__(self, kept: KeptRows, idea: Idea) -> None:
        self.kept, self.idea = kept, idea
        self.names: list[str] = []  # of the new columns, known after ``leaks``
        self._whole: dict[str, Any] = {}  # a function's columns of all rows
        self._features: FeatureSet | None = None
        if idea.function is None:
            self._features = FeatureSet(list(idea.features), key=kept.key or None, target=kept.targets, keep="outputs")
        self._table = self._read()

    def _read(self) -> Table:
        """Read the columns that the idea may use."""
        kept = self.kept
        clean = [n for n in kept.outputs if n not in kept.from_targets]
        # a function, or a selector of columns by type, may read any column
        if self._features is None or selectors_of(self._features.steps):
            return _beside(kept.train(), kept.made(clean))
        time = [] if kept.time is None else [kept.time]  # the search for leaks goes by it
        needed = list(dict.fromkeys([*self._features.fit_inputs, *kept.targets, *time]))
        odd = next((n for n in needed if n in kept.from_targets), None)
        if odd is not None:
            problem = "the run's feature holds targets and has other values in every fold"
            remedy = "Put the generator itself in the place of its column's name: it is fitted in every fold then"
            raise DataError(problem, column=odd, remedy=remedy)
        refuse_absent(needed, [*kept.columns, *clean], "the run's rows do not have it")
        own = [n for n in needed if n in kept.columns]
        return _beside(kept.train(own), kept.made([n for n in needed if n not in own]))

    def _tables(self) -> dict[str, Table]:
        return self.kept.tables(list({n for s in self._features.steps for n in s.table_inputs}))

    def leaks(self) -> dict[str, str]:
        """Find columns that leak: column → kind and detail."""
        table, targets = self._table, self.kept.targets
        if self._features is None:
            return self._leaks_of_function()
        self._features._resolve(table)
        self.names = self._features.outputs
        self._check_names()
        refused: dict[str, str] = {}
        for feature in self._features.features:  # one by one, to name the columns of each that reads its own target
            try:
                FeatureSet([feature], target=targets)._chain().check_targets()
            except DataError as error:
                refused |= dict.fromkeys(feature.outputs, error.problem)
        if refused:
            return refused
        codes = self.kept.folds.codes if self.kept.nested else None
        options = {"folds": codes, "tables": self._tables(), "max_rows": limits.TRY_LEAK_ROWS}
        report = check_leakage(self._features, table, targets, self.kept.time, **options)
        return {leak.column: f"{leak.kind}: {leak.detail}" for leak in report.leaks}

    def _leaks_of_function(self) -> dict[str, str]:
        frame, targets = self._table.to_pandas(), self.kept.targets
        function, kept = self._call, self.kept
        try:
            self._whole = function(frame.drop(columns=targets))
            self.names = list(self._whole)
        except DataError as error:
            # it may fail only because it reads the target: then that is the leak to name
            try:
                columns = function(frame)
            except DataError:
                raise error from None
            return dict.fromkeys(columns, "it is made with the target, which a function of a frame is not to see")
        self._check_names()
        options = {"key": kept.key or None, "max_rows": limits.TRY_LEAK_ROWS}
        report = check_leakage(
            lambda df: function(df.drop(columns=targets).reset_index(drop=True)), frame, targets, kept.time, **options
        )
        return {leak.column: f"{leak.kind}: {leak.detail}" for leak in report.leaks}

    def folds(self) -> Iterator[Pair]:
        """Yield for every fold the new columns of the rows that it trains on, and of those that it scores."""
        if self._features is None:
            return self._of_function()
        if self.kept.nested:
            options = {"tables": self._tables(), "unlabeled": self._unlabeled()}
            return self._features.cross_fit(self._table, self.kept.folds.codes, **options)
        return self._one_by_one()

    def _check_names(self) -> None:
        taken = next((n for n in self.names if n in {*self.kept.columns, *self.kept.outputs}), None)
        if taken is not None:
            raise DataError("the run has a column of this name", column=taken, remedy="Give the new one another name")

    def _one_by_one(self) -> Iterator[Pair]:
        # ``cross_fit`` wants folds that train on all other rows; others (by time) are fitted one by one
        tables = self._tables()
        for outside, inside in self.kept.folds:
            features = self._features.__sklearn_clone__()
            train, valid = self._table.take(outside), self._table.take(inside)
            columns = features.fit_transform(train, tables=tables, unlabeled=self._unlabeled())
            before = train if self.kept.history else None
            made = transform_unknown(features, valid, self.kept.targets, tables=tables, history=before)
            yield columns, made.drop(self.kept.targets)

    def _unlabeled(self) -> Table | None:
        return self.kept.test() if any(s.scope == "all" for s in self._features.steps) else None

    def _of_function(self) -> Iterator[Pair]:
        if self.kept.nested:
            columns = Table.read(pd.DataFrame(self._whole))
            for outside, inside in self.kept.folds:
                yield columns.take(outside), columns.take(inside)
            return
        frame = self._table.drop(self.kept.targets).to_pandas()
        for outside, inside in self.kept.folds:
            known = torch.sort(torch.cat([outside, inside])).values
            columns = Table.read(pd.DataFrame(self._call(frame.iloc[known.numpy()].reset_index(drop=True))))
            yield columns.take(torch.searchsorted(known, outside)), columns.take(torch.searchsorted(known, inside))

    def _call(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Call the function: its new columns by name, in the order of the frame's rows."""
        function = self.idea.function
        name = getattr(function, "__name__", "the function")
        try:
            # a shallow copy: the function may write into the frame, and its columns are compared below
            result = function(frame.copy(deep=False))
        except FastrecError:
            raise
        except Exception as error:  # any error of the user's code
            place = getattr(getattr(function, "__code__", None), "co_filename", "")
            remedy = "It gets a pandas frame without the targets and returns its new columns"
            raise DataError(f"{name} fails ({_says(error, place)})", file=self.idea.file, remedy=remedy) from error
        if isinstance(result, pd.Series):
            result = result.to_frame(result.name if isinstance(result.name, str) and result.name not in frame else name)
        if isinstance(result, Table):
            result = result.to_pandas()
        file, columns = self.idea.file, {}
        try:
            for column in (n for n in result if n not in frame.columns):
                values = result[column]
                # a dict's Series have indices of their own: values go by them, not by their place
                moved = isinstance(values, pd.Series | pd.DataFrame) and not values.index.equals(frame.index)
                if len(values) != len(frame) or (moved and set(values.index) != set(frame.index)):
                    problem = f"{name} returns other rows ({len(values)} values for {len(frame)} rows)"
                    remedy = "Return a value for every row, with the frame's index"
                    raise DataError(problem, file=file, column=str(column), remedy=remedy)
                columns[str(column)] = values.loc[frame.index] if moved else values
        except (TypeError, IndexError):
            remedy = "Return a frame, a dict of columns or a Series"
            raise DataError(f"{name} returns a {type(result).__name__}", file=file, remedy=remedy) from None
        if not columns:
            raise DataError(f"{name} returns no new column", file=file, remedy="Use names that the frame does not have")
        return columns


def _beside(table: Table, other: Table) -> Table:
    return table.with_columns({n: other[n] for n in other.names}) if other.names else table
