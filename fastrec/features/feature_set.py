"""``FeatureSet``: a chain of generators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

import torch

from fastrec._core.imports import is_dask
from fastrec.errors import DataError, warn
from fastrec.features._engine.chain import Chain, check_names, checked_sources, naming_table
from fastrec.features._engine.folds import given_folds
from fastrec.features._engine.saving import (
    clone_steps,
    described,
    index_of,
    reading_features,
    restored,
    selectors_of,
    write_features,
)
from fastrec.features.base import Context, Feature, Names, Parameters, generator_named
from fastrec.features.cache import FeatureCache
from fastrec.features.columns import Selector, as_list, given_rows
from fastrec.table import Column, Table, as_column, attach, column_names, concat, select_columns, take_rows, to_library
from fastrec.table.frames import row_count


class FeatureSet(Parameters):
    """Chain of generators, fitted and applied in order; a generator may read outputs of others.

    Args:
        features: generators, or FeatureSets (flattened). Generators inside generators are computed first, but their
            outputs are not returned unless they are listed.
        key: the column(s) of rows that belong together. A row's fold is a stable hash of them and does not depend on
            other rows. None: the row's number.
        folds: the number of inner folds for out-of-fold values, unless a generator sets its own.
        target: the target column(s), besides those that generators name. A generator that would give rows their own
            target raises an error; one that reads earlier targets (``Lag``) is nested in ``cross_fit``; selectors skip
            them. None: those of the frame or recipe that uses the set, if any; []: none.
        keep: ``'all'``: return the frame with the outputs added; ``'outputs'``: the outputs alone; or the names of
            columns to return before the outputs.
        cache: a ``FeatureCache``, or a folder for one: only new or changed generators are fitted again.
    """

    _least: ClassVar = {"folds": 2}
    _assumed: Names | None = None  # the target that a frame or a recipe names; absent in older pickles

    def __init__(
        self,
        features: Sequence[Feature | FeatureSet],
        *,
        key: Names | None = None,
        folds: int = 5,
        target: Names | None = None,
        keep: Literal["all", "outputs"] | Sequence[str] = "all",
        cache: FeatureCache | str | Path | None = None,
    ) -> None:
        FeatureCache.of(cache)  # raises for a wrong argument
        self.fitted_on_unlabeled = False
        self._library: str | None = None
        if isinstance(keep, str) and keep not in ("all", "outputs"):
            raise DataError(f"FeatureSet: cannot keep {keep!r}", remedy="Use 'all', 'outputs' or a list of names")

    @property
    def features(self) -> list[Feature]:
        """The generators whose outputs are returned."""
        return self._features

    @features.setter
    def features(self, given: Sequence[Feature | FeatureSet]) -> None:
        odd = next((f for f in as_list(given) if not isinstance(f, Feature | FeatureSet)), None)
        if odd is not None:
            name, kind = (odd.__name__, odd) if isinstance(odd, type) else (repr(odd), type(odd))
            remedy = "List generators, as in CountEncode('city')"
            # Procs of fastrec.tabular have the names of generators.
            if not issubclass(kind, Feature) and generator_named(kind.__name__):
                remedy = f"Use the generator: from fastrec import features, then features.{kind.__name__}('city')"
            raise DataError(f"FeatureSet: {name} is not a generator", remedy=remedy)
        self._given = given
        self._features = [g for f in as_list(given) for g in (f.features if isinstance(f, FeatureSet) else [f])]
        if all(selector.names_ for selector in selectors_of(self.steps)):
            check_names(self._features, self.steps)

    @property
    def outputs(self) -> list[str]:
        """The names of the output columns."""
        return [n for f in self.features for n in f.outputs]

    @property
    def inputs(self) -> list[str]:
        """The columns that ``transform`` needs."""
        made = {n for s in self.steps for n in s.outputs}
        needed = [n for s in self.steps for n in s.inputs if n not in set(s.fit_only)]
        return list(dict.fromkeys(n for n in needed if n not in made))

    @property
    def fit_inputs(self) -> list[str]:
        """The columns that ``fit`` needs: ``inputs``, targets, weights, fold columns and the key."""
        made = {n for s in self.steps for n in s.outputs}
        needed = [n for s in self.steps for n in (*s.inputs, *s.fit_only)] + as_list(self.key)
        return list(dict.fromkeys(n for n in needed if n not in made))

    @property
    def steps(self) -> list[Feature]:
        """All generators in the order of computation, including those inside others."""
        found: dict[tuple[type, str], Feature] = {}
        for feature in self.features:
            _add_step(found, feature)
        return list(found.values())

    @property
    def transductive(self) -> list[str]:
        """The outputs with statistics of unlabeled rows (``scope='all'``)."""
        return [n for s in self.steps if s.scope == "all" for n in s.outputs] if self.fitted_on_unlabeled else []

    @property
    def from_targets(self) -> list[str]:
        """The outputs computed from a target, whose values differ by fold."""
        tainted = {n for s in self._chain().tainted for n in s.outputs}
        return [n for n in self.outputs if n in tainted]

    def fit(
        self, df: Any, y: Any = None, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> FeatureSet:
        """Fit on training rows and return the set.

        Args:
            df: training rows of any supported library; or a file, a folder of Parquet files, or a pattern of files
                (``'train/part-*.parquet'``), read into a pandas frame.
            y: the target, if it is not a column of ``df``.
            tables: other tables by name.
            unlabeled: rows without a target (test rows) for generators with ``scope='all'``.
        """
        self._job(df, y, tables, unlabeled).learn(wanted={n for s in self.steps for n in s.inputs})
        return self

    def fit_transform(
        self, df: Any, y: Any = None, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> Any:
        """Fit (see ``fit``) and return the rows with out-of-fold or causal values: no row sees its target."""
        job = self._job(df, y, tables, unlabeled)
        return job.nested(job.learn())

    def transform(self, df: Any, *, tables: Mapping[str, Any] | None = None, history: Any = None) -> Any:
        """Return rows not trained on with the outputs added, from statistics of all training rows, without a target.

        Args:
            df: the rows.
            tables: other tables by name.
            history: earlier rows for grouped generators, not returned. Without an order they precede all of ``df``.

        Raises:
            DataError: a generator would give a row the target of a row of ``history`` at the same time, which may be
                the same row (not checked for Dask frames).
            NotFittedError: the set is not fitted.
        """
        df = given_rows(df)
        if is_dask(df):
            return _on_dask().transform(self, df, tables, history)
        work = self._read_rows(df)
        rows, past = len(work), 0
        if history is not None:
            before = self._read_rows(history, device=work.device)
            past = len(before)
            work = concat([before, work])
        work = self._chain().apply(work, self._context(tables, work))
        if past:
            self._chain().check_history(work, past)
            work = work.select(self.outputs).take(torch.arange(past, past + rows, device=work.device))
        return self._out(df, work)

    def cross_fit(
        self,
        df: Any,
        folds: Any,
        *,
        tables: Mapping[str, Any] | None = None,
        unlabeled: Any = None,
        only: Collection[int] | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield training and validation rows of every outer fold, computed without that fold's targets.

        Rows of fold k are encoded from all other rows (prior included), the other rows out of fold without fold k. The
        fitted state does not change.

        Args:
            df: training rows with their target.
            folds: the folds of the *model's* validation: ``Folds`` (not by time), integers ``[n]`` from 0, or a
                column's name.
            tables, unlabeled: see ``fit``.
            only: the numbers of the outer folds to yield; None: all.

        Yields:
            ``(train, valid)``: the rows outside and inside each non-empty fold, with the outputs added.
        """
        job = self._job(df, None, tables, unlabeled, folds)
        yield from job.outer_folds(job.clean(), only)

    def fit_transform_folds(
        self, df: Any, folds: Any, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> tuple[Any, Iterator[tuple[Any, Any]]]:
        """Return the results of ``fit_transform`` and ``cross_fit``, with target-free columns computed once."""
        job = self._job(df, None, tables, unlabeled, folds)
        learned = job.learn(again=True)
        return job.nested(learned), job.outer_folds(learned)

    def _job(self, df: Any, *given: Any) -> Any:
        df = given_rows(df)
        of_dask = is_dask(df)
        job = (_on_dask().Job if of_dask else _Job)(self, df, *given)
        own = map(str, df.columns) if of_dask else column_names(df)
        there = set(own if self.keep == "all" else as_list(self.keep))
        lost = next((n for n in self.outputs if n in there), None)
        if lost is not None:
            warn(f"column {lost!r}: a generator's output of this name replaces it. Rename it if it is to be kept.")
        return job

    def _table(self, source: Any, names: Sequence[str] | None, *, device: Any = None) -> Table:
        # With a cache columns are digested again: shared memory may have changed.
        table = Table.read(source, names, device=device)
        return table if self.cache is None else Table({n: table[n].anew() for n in table.names})

    def _chain(self) -> Chain:
        cache = FeatureCache.of(self.cache)
        return Chain(self.steps, key=as_list(self.key), folds=self.folds, targets=self.targets, cache=cache)

    @property
    def targets(self) -> list[str]:
        """The target columns: ``target``, and those that generators name."""
        used = [t for s in self.steps if s.uses_target for t in as_list(getattr(s, "target", None))]
        return list(dict.fromkeys([*as_list(self._options()["target"]), *used]))

    def assume_target(self, names: Names | None) -> None:
        """Set the target column(s) of a frame or a recipe, used if ``target`` is None."""
        self._assumed = names

    def _read(self, df: Any, y: Any = None) -> Table:
        self._resolve(df)
        self._chain().check_targets()
        names = self.fit_inputs
        if y is None or not set(self.targets) & set(names):  # scikit-learn's pipelines pass y to all transformers
            return self._table(df, names or None)
        target = self._one_target()
        table = self._table(df, [n for n in names if n != target])
        return table.with_columns({target: as_column(y, name=target).anew()})

    def _one_target(self) -> str:
        assumed = as_list(self._assumed) if self.target is None else []
        targets = [t for t in self.targets if t not in assumed] or self.targets
        if len(targets) != 1:
            problem = f"y was given, but the generators use {len(targets)} targets"
            raise DataError(problem, remedy="Give them as columns")
        return targets[0]

    def _read_rows(self, df: Any, *, device: Any = None) -> Table:
        """Read the columns that ``transform`` needs; a target that a lag reads may be absent, as it is unknown."""
        there = column_names(df)
        unknown = [n for n in self.inputs if n in self.targets and n not in there]
        work = self._table(df, [n for n in self.inputs if n not in unknown], device=device)
        blank = torch.full((row_count(df),), torch.nan, dtype=torch.float64, device=work.device)
        return work.with_columns({n: Column("number", blank, name=n) for n in unknown}) if unknown else work

    def _resolve(self, df: Any) -> None:
        """Resolve selectors among the frame's columns, without outputs of generators."""
        selectors = selectors_of(self.steps)
        if selectors:
            self._choose(selectors, self._table(df, None))

    def _choose(self, selectors: Sequence[Selector], table: Any) -> None:
        closed = {n for s in self.steps for n in s.fit_only} | {*as_list(self.key), *self.targets}
        for selector in selectors:
            selector.resolve(table, closed)
        check_names(self._features, self.steps)

    def _out(self, df: Any, work: Table) -> Any:
        outputs, kept = {n: work[n] for n in self.outputs}, self._kept(column_names(df))
        return to_library(attach(df if kept is None else select_columns(df, kept), outputs), self._library)

    def _kept(self, there: Sequence[str]) -> list[str] | None:
        """Return the columns of the frame to return (None: all), and store the names of the result."""
        kept = None if self.keep == "all" else [] if self.keep == "outputs" else as_list(self.keep)
        own, outputs = there if kept is None else kept, self.outputs
        self.feature_names_out_ = [*(n for n in own if n not in outputs), *outputs]
        return kept

    def _read_tables(self, tables: Mapping[str, Any] | None, read: Callable[[Any, list[str]], Any]) -> dict[str, Any]:
        needed: dict[str, dict[str, None]] = {}
        for step in self.steps:
            for table, names in step.table_inputs.items():
                needed.setdefault(table, {}).update(dict.fromkeys(names))
        found = {}
        for name in (n for n in needed if n in (tables or {})):
            with naming_table(name):
                found[name] = read(tables[name], list(needed[name]))
        return found

    def _context(self, tables: Mapping[str, Any] | None, work: Table) -> Context:
        read = self._read_tables(tables, lambda table, names: self._table(table, names, device=work.device))
        return Context(read, tuple(tables or {}))

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """Return the names of the columns that ``transform`` returns.

        Args:
            input_features: the input columns, for ``keep='all'``; None: those of the last call.
        """
        if self.keep == "outputs":
            return self.outputs
        passed_on = as_list(self.keep) if self.keep != "all" else input_features
        if passed_on is None:
            return list(getattr(self, "feature_names_out_", self.outputs))
        return [*(n for n in passed_on if n not in set(self.outputs)), *self.outputs]

    def set_output(self, *, transform: Literal["default", "pandas", "polars"] | None = None) -> FeatureSet:
        """Choose the library of the frames returned (scikit-learn's ``set_output``).

        Args:
            transform: ``'pandas'`` or ``'polars'``; ``'default'``: the library of the input; None: no change.
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise DataError(f"FeatureSet cannot return {transform!r}", remedy="Use 'default', 'pandas' or 'polars'")
        if transform is not None:
            self._library = None if transform == "default" else transform
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"features": self._given, **self._options(), "target": self.target, "cache": self.cache}

    def _options(self) -> dict[str, Any]:
        target = self._assumed if self.target is None else self.target
        return {"key": self.key, "folds": self.folds, "target": target, "keep": self.keep}

    def __sklearn_clone__(self) -> FeatureSet:
        steps = self.steps
        clones = clone_steps(steps)
        made = FeatureSet([clones[index_of(steps, f)] for f in self.features], **self._options(), cache=self.cache)
        made.target, made._assumed = self.target, self._assumed
        return made

    def __sklearn_is_fitted__(self) -> bool:
        return all(getattr(s, "state_", s) is not None for s in self.steps)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags(),
            input_tags=InputTags(string=True, categorical=True, allow_nan=True),
        )  # fmt: skip

    def save(self, folder: str | Path) -> None:
        """Write configuration and state as JSON and safetensors; replace ``folder`` in one step."""
        write_features(folder, self.to_state())

    def to_state(self) -> dict[str, Any]:
        """Return configuration (``config``) and learned ``states`` for ``fastrec.table.save_state``."""
        steps = self.steps
        listed = [index_of(steps, f) for f in self.features]
        config = {**self._options(), "fitted_on_unlabeled": self.fitted_on_unlabeled, "listed": listed}
        return described(steps, config)

    @classmethod
    def load(cls, folder: str | Path, *, trust: Names = ()) -> FeatureSet:
        """Read what ``save`` wrote.

        Args:
            folder: the folder.
            trust: the module(s) that may be imported for your own functions (``@feature``), which runs their code;
                other modules must be imported already.

        Raises:
            MissingFileError, UnreadableFileError: ``folder`` holds no readable set.
        """
        with reading_features(folder) as state:
            return cls.from_state(state, trust=trust)

    @classmethod
    def from_state(cls, state: dict[str, Any], *, trust: Names = ()) -> FeatureSet:
        """Restore a set from ``to_state``; for ``trust`` see ``load``."""
        steps, config = restored(state, trust), state["config"]
        options = {n: config[n] for n in ("key", "folds", "target", "keep")}
        features = cls([steps[i] for i in config["listed"]], **options)
        features.fitted_on_unlabeled = config["fitted_on_unlabeled"]
        return features

    def __repr__(self) -> str:
        return f"FeatureSet({len(self.features)} generators, {len(self.outputs)} outputs)"


class _Job:
    """Training rows in memory and the steps of a FeatureSet on them; ``_dask`` has one for partitions."""

    def __init__(
        self, fs: FeatureSet, df: Any, y: Any, tables: Mapping[str, Any] | None, unlabeled: Any, folds: Any = None
    ) -> None:
        self.fs, self.df, self.unlabeled = fs, df, unlabeled
        self.work, self.chain = fs._read(df, y), fs._chain()
        self.context = fs._context(tables, self.work)
        self.outer = None if folds is None else given_folds(df, folds, self.work)
        names = None if unlabeled is None else self.chain.unlabeled_columns()
        self.extra = None if names is None else fs._table(unlabeled, names, device=self.work.device)

    def learn(self, **options: Any) -> Table:
        """Fit all steps and return the rows with their columns."""
        work = self.chain.run(self.work, self.context, self.extra, **options)
        self.fs.fitted_on_unlabeled = self.unlabeled is not None
        return work

    def clean(self) -> Table:
        """Return the rows with the columns that depend on no target, without fitting."""
        return self.chain.run_clean(self.work, self.context, self.extra)

    def nested(self, work: Table) -> Any:
        """Return the user's frame with the outputs, those from targets computed by fold."""
        return self.fs._out(self.df, self.chain.nest(work, self.context, None))

    def outer_folds(self, work: Table, only: Collection[int] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield both sides of each outer fold; ``work`` has the columns that depend on no target."""
        made = [n for s in self.chain.tainted for n in s.outputs if n in work]
        work = work.drop(made) if made else work  # not copied without need: a copy loses the cached groups
        for k in torch.unique(self.outer).tolist():
            if only is not None and k not in only:
                continue
            inside = self.outer == k
            done = self.chain.nest(self.chain.without(inside, work, self.context), self.context, inside)
            full = self.fs._out(self.df, done)
            yield take_rows(full, (~inside).nonzero().squeeze(1)), take_rows(full, inside.nonzero().squeeze(1))


def _on_dask() -> ModuleType:
    # Imported with the first Dask frame, as Dask is an extra.
    from fastrec.features._dask import frames

    return frames


def _add_step(found: dict[tuple[type, str], Feature], feature: Feature) -> None:
    # Sources come first. No closure: a recursive one is a reference cycle that keeps the set alive.
    for source in checked_sources(feature):
        if isinstance(source, Feature):
            _add_step(found, source)
    found.setdefault((type(feature), feature.signature), feature)


Feature._set_class = FeatureSet  # a single generator fits and transforms as a set of one
