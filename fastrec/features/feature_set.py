"""``FeatureSet``: generators in a chain, fitted, applied and cross-fitted together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastrec.columns import as_column
from fastrec.convert import attach, take_rows
from fastrec.errors import DataError
from fastrec.features.base import Cells, Context, Feature, Fitted, Grouped, as_list
from fastrec.features.folds import INNER_SEED, given_folds, row_folds
from fastrec.features.keyed import sort_keys
from fastrec.features.naming import check_names, naming, naming_table
from fastrec.features.nesting import key_keeps_together, mixing_steps, tainted_steps
from fastrec.features.saving import index_of, read_features, replace_features, write_features
from fastrec.table import Column, Table, concat


class FeatureSet:
    """Several generators, applied in order; a generator may read what another makes.

    Args:
        features: generators (or other FeatureSets, taken apart); generators inside generators are computed first, and
            only the outputs of those listed here are returned.
        key: column(s) that say which rows belong together: a row's fold is a stable hash of them, so that it depends
            neither on the row's place nor on the other rows. None: the row's number.
        folds: how many inner folds training rows' out-of-fold values are made with, where a generator does not say.
    """

    def __init__(
        self, features: Sequence[Feature | FeatureSet], *, key: str | Sequence[str] | None = None, folds: int = 5
    ) -> None:
        self.features, self.key, self.folds = features, key, folds
        self.fitted_on_unlabeled = False
        if folds < 2:
            raise DataError(f"FeatureSet: {folds} folds leave nothing to learn from", remedy="Use 2 or more")

    @property
    def features(self) -> list[Feature]:
        """The generators whose outputs are returned."""
        return self._features

    @features.setter
    def features(self, given: Sequence[Feature | FeatureSet]) -> None:
        odd = next((f for f in as_list(given) if not isinstance(f, Feature | FeatureSet)), None)
        if odd is not None:
            name = odd.__name__ if isinstance(odd, type) else repr(odd)
            raise DataError(
                f"FeatureSet: {name} is not a generator", remedy="List generators, as in CountEncode('city')"
            )
        self._given = given
        self._features = [g for f in as_list(given) for g in (f.features if isinstance(f, FeatureSet) else [f])]
        check_names(self._features, self.steps)

    # Names -----------------------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> list[str]:
        """The names of the columns that are added."""
        return [n for f in self.features for n in f.outputs]

    @property
    def inputs(self) -> list[str]:
        """The columns that a frame to transform must have."""
        made = {n for s in self.steps for n in s.outputs}
        needed = [n for s in self.steps for n in s.inputs if n not in set(s.fit_only)]
        return list(dict.fromkeys(n for n in needed if n not in made))

    @property
    def fit_inputs(self) -> list[str]:
        """The columns that a frame to fit on must have: ``inputs``, targets, weights, fold columns and the key."""
        made = {n for s in self.steps for n in s.outputs}
        needed = [n for s in self.steps for n in (*s.inputs, *s.fit_only)] + as_list(self.key)
        return list(dict.fromkeys(n for n in needed if n not in made))

    @property
    def steps(self) -> list[Feature]:
        """All generators, those inside others included, in the order in which they are computed."""
        found: dict[tuple[type, str], Feature] = {}  # as ``same`` compares them

        def visit(feature: Feature) -> None:
            for source in feature.sources:
                if isinstance(source, Feature):
                    visit(source)
            found.setdefault((type(feature), repr(feature)), feature)

        for feature in self.features:
            visit(feature)
        return list(found.values())

    @property
    def transductive(self) -> list[str]:
        """Outputs whose statistics were fitted on unlabeled rows too (``scope='all'``)."""
        return [n for s in self.steps if s.scope == "all" for n in s.outputs] if self.fitted_on_unlabeled else []

    # Fitting and applying --------------------------------------------------------------------------------------------

    def fit(
        self, df: Any, y: Any = None, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> FeatureSet:
        """Learn from training rows.

        Args:
            df: training rows, in any supported library.
            y: the target, if it is not a column of ``df``.
            tables: other tables by name.
            unlabeled: rows without a target (the test rows) that ``scope='all'`` generators may count too.

        Returns:
            Itself.
        """
        read = {n for s in self.steps for n in s.inputs}  # other columns need not be made
        work = self._read(df, y)
        self._run(work, self._context(tables, work), unlabeled, wanted=read)
        return self

    def fit_transform(
        self, df: Any, y: Any = None, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> Any:
        """Learn from training rows and return them with out-of-fold or causal values: no row sees its own target.

        Args:
            df, y, tables, unlabeled: see ``fit``.

        Returns:
            The frame that was given, with the outputs added.
        """
        work = self._read(df, y)
        context = self._context(tables, work)
        work = self._run(work, context, unlabeled)
        work = self._nest(work, context, None)
        return attach(df, {n: work[n] for n in self.outputs})

    def transform(self, df: Any, *, tables: Mapping[str, Any] | None = None, history: Any = None) -> Any:
        """Give rows that were not trained on their values, from full statistics and without the target.

        Args:
            df: any rows.
            tables: other tables by name.
            history: earlier rows that grouped generators may look back to; not returned.

        Returns:
            The frame that was given, with the outputs added.

        Raises:
            NotFittedError: nothing was fitted.
        """
        work = Table.read(df, self.inputs)
        rows, past = len(work), 0
        if history is not None:
            before = Table.read(history, self.inputs, device=work.device)
            past = len(before)
            work = concat([before, work])
        context = self._context(tables, work)
        for step in self.steps:
            with naming(step):
                work = work.with_columns(_compute(step, work, context))
        if past:
            work = work.select(self.outputs).take(torch.arange(past, past + rows, device=work.device))
        return attach(df, {n: work[n] for n in self.outputs})

    def cross_fit(
        self, df: Any, folds: Any, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """For every outer fold, training and validation rows whose values hold nothing of that fold's targets.

        Rows of fold k are encoded from all other rows (prior included); the other rows are encoded out of fold among
        themselves. What ``fit`` has learned stays as it is.

        Args:
            df: training rows with their target.
            folds: integers ``[n]`` from 0, or the name of a column with them: the folds of the *model's* validation.
            tables, unlabeled: see ``fit``.

        Yields:
            ``(train, valid)``: the rows outside and inside fold 0, 1, …, with the outputs added.
        """
        work = self._read(df)
        context = self._context(tables, work)
        outer = given_folds(df, folds, work)
        tainted = tainted_steps(self.steps)
        extra = self._read_unlabeled(unlabeled, work)
        for step in self.steps:
            if step not in tainted:
                work, extra = self._fit_step(step, work, context, extra, learn=False)
        for k in range(int(outer.max()) + 1 if len(outer) else 0):
            inside = outer == k
            done = self._without(inside, work, context)
            done = self._nest(done, context, inside)
            full = attach(df, {n: done[n] for n in self.outputs})
            yield take_rows(full, (~inside).nonzero().squeeze(1)), take_rows(full, inside.nonzero().squeeze(1))

    # How a target is kept from its own rows --------------------------------------------------------------------------

    def _nest(self, work: Table, context: Context, hidden: torch.Tensor | None) -> Table:
        """Redo the mixing steps fold by fold, each fold's rows from encodings that hold none of that fold's targets.

        Args:
            work: all columns, the mixing steps' among them.
            context: see ``Context``.
            hidden: bool ``[n]``, rows of an outer fold whose values stay and whose targets are not seen; None: none.
        """
        key = as_list(self.key)
        together = key_keeps_together(self.steps, key, work, hidden)
        names = [n for step in mixing_steps(self.steps, key, together=together) for n in step.outputs]
        if not names or not len(work):
            return work
        hidden = torch.zeros(len(work), dtype=torch.bool, device=work.device) if hidden is None else hidden
        inner = row_folds(work, key, self.folds, seed=INNER_SEED)
        parts, places = [work.select(names).take(hidden)], [hidden.nonzero().squeeze(1)]
        for fold in range(self.folds):
            rows = ((inner == fold) & ~hidden).nonzero().squeeze(1)
            if len(rows):
                made = self._without((inner == fold) | hidden, work, context)
                parts.append(made.select(names).take(rows))
                places.append(rows)
        whole = concat(parts).take(torch.argsort(torch.cat(places)))
        return work.with_columns({n: whole[n] for n in names})

    def _without(self, hidden: torch.Tensor, work: Table, context: Context) -> Table:
        """The tainted steps with the targets of the ``hidden`` rows (bool ``[n]``) in no value."""
        for step in tainted_steps(self.steps):
            with naming(step):
                work = work.with_columns(self._step_without(step, hidden, work, context))
        return work

    def _step_without(self, step: Feature, hidden: torch.Tensor, work: Table, context: Context) -> dict[str, Column]:
        if not isinstance(step, Fitted):
            return _compute(step, work, context)
        by_fold = step.uses_target and not step.causal
        inner = self._inner_cells(step, work) if by_fold else Cells(_zeros(work), 1)
        # Cell 0 is the hidden rows; the others are the inner folds of the rest.
        cells = Cells(torch.where(hidden, 0, inner.codes + 1), inner.count + 1)
        excluded = torch.zeros(cells.count, cells.count, dtype=torch.bool)
        excluded[:, 0] = True
        if by_fold:
            excluded |= torch.eye(cells.count, dtype=torch.bool)
        return step.compute_out_of_cell(work, step.collect(work, cells), cells, excluded)

    def _run(self, work: Table, context: Context, unlabeled: Any, *, wanted: set[str] | None = None) -> Table:
        extra = self._read_unlabeled(unlabeled, work)
        for step in self.steps:
            used = wanted is None or bool(wanted & set(step.outputs))
            work, extra = self._fit_step(step, work, context, extra, used=used)
        self.fitted_on_unlabeled = unlabeled is not None
        return work

    def _fit_step(
        self,
        step: Feature,
        work: Table,
        context: Context,
        extra: Table | None,
        *,
        learn: bool = True,
        used: bool = True,
    ) -> tuple[Table, Table | None]:
        """One step's columns for training rows and, where ``scope='all'`` needs them, unlabeled ones (``extra``)."""
        read_by_all = extra is not None and self._feeds_all(step)
        with naming(step):
            if not isinstance(step, Fitted):
                made = _compute(step, work, context) if used else {}
                more = _compute(step, extra, context) if read_by_all else {}
            else:
                by_fold = step.uses_target and not step.causal
                cells = self._inner_cells(step, work) if by_fold else Cells(_zeros(work), 1)
                state = step.collect(work, cells)
                if step.scope == "all" and extra is not None:
                    state = step.merge(state, step.collect(extra))
                if learn:
                    step.learn(state)
                excluded = torch.eye(cells.count, dtype=torch.bool) & by_fold
                made = step.compute_out_of_cell(work, state, cells, excluded) if used else {}
                more = step.compute_from(extra, state) if read_by_all else {}
        return work.with_columns(made), extra.with_columns(more) if extra is not None else None

    def _all_steps(self) -> list[Feature]:
        """Steps that count unlabeled rows (``scope='all'``), and those that they read."""
        needed = [s for s in self.steps if s.scope == "all"]
        return FeatureSet(needed, folds=self.folds).steps if needed else []

    def _feeds_all(self, step: Feature) -> bool:
        outputs = set(step.outputs)
        return any(outputs & set(s.inputs) for s in self._all_steps())

    def _read_unlabeled(self, unlabeled: Any, work: Table) -> Table | None:
        steps = self._all_steps()
        if unlabeled is None or not steps:
            return None
        made = {n for s in steps for n in s.outputs}
        needed = [n for s in steps for n in s.inputs if n not in made and n not in s.fit_only]
        return Table.read(unlabeled, list(dict.fromkeys(needed)), device=work.device)

    def _inner_cells(self, step: Feature, work: Table) -> Cells:
        column = getattr(step, "fold_column", None)
        if column is not None:
            keys, codes = sort_keys(work.coded(column))
            if bool((codes == 0).any()):
                row = int((codes == 0).nonzero()[0])
                raise DataError("a row has no fold", column=column, row=row, remedy="Give every training row a fold")
            return Cells(codes - 1, max(len(keys), 1))
        count = getattr(step, "folds", None) or self.folds
        return Cells(row_folds(work, as_list(self.key), count, seed=INNER_SEED), count)

    def _read(self, df: Any, y: Any = None) -> Table:
        names = self.fit_inputs
        used = [t for s in self.steps if s.uses_target for t in as_list(getattr(s, "target", None))]
        targets = list(dict.fromkeys(used))
        if y is None or not targets:  # scikit-learn's pipelines pass y to every transformer
            return Table.read(df, names or None)
        if len(targets) != 1:
            raise DataError(
                f"y was given, but the generators use {len(targets)} targets", remedy="Give them as columns"
            )
        table = Table.read(df, [n for n in names if n != targets[0]])
        return table.with_columns({targets[0]: as_column(y, name=targets[0])})

    def _context(self, tables: Mapping[str, Any] | None, work: Table) -> Context:
        """The other tables that are read, on the device of the rows."""
        needed: dict[str, dict[str, None]] = {}
        for step in self.steps:
            for table, names in step.table_inputs.items():
                needed.setdefault(table, {}).update(dict.fromkeys(names))
        given = tables or {}
        read: dict[str, Table] = {}
        for name in (n for n in needed if n in given):
            with naming_table(name):
                read[name] = Table.read(given[name], list(needed[name]), device=work.device)
        return Context(read, tuple(given))

    # scikit-learn's manners, saving ----------------------------------------------------------------------------------

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """The names of the columns that are added (scikit-learn's name for ``outputs``)."""
        return self.outputs

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"features": self._given, "key": self.key, "folds": self.folds}

    def set_params(self, **params: Any) -> FeatureSet:
        """Change constructor's arguments in place."""
        for name, value in params.items():
            if name not in self.get_params():
                raise DataError(f"FeatureSet has no parameter {name!r}", remedy="See get_params()")
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> FeatureSet:
        made: list[Feature] = []  # generators that several others read are cloned once
        steps = self.steps
        for step in steps:
            made.append(type(step)(**replace_features(step.get_params(), lambda f: made[index_of(steps, f)])))
        return FeatureSet([made[index_of(steps, f)] for f in self.features], key=self.key, folds=self.folds)

    def save(self, folder: str | Path) -> None:
        """Write configuration and state as JSON and safetensors; an earlier save at ``folder`` is replaced whole."""
        steps = self.steps
        listed = [index_of(steps, f) for f in self.features]
        config = {
            "key": self.key,
            "folds": self.folds,
            "fitted_on_unlabeled": self.fitted_on_unlabeled,
            "listed": listed,
        }
        write_features(folder, steps, config)

    @classmethod
    def load(cls, folder: str | Path) -> FeatureSet:
        """Read what ``save`` wrote.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
        """
        return read_features(folder, cls._of)

    @classmethod
    def _of(cls, steps: list[Feature], config: dict[str, Any]) -> FeatureSet:
        made = cls([steps[i] for i in config["listed"]], key=config["key"], folds=config["folds"])
        made.fitted_on_unlabeled = config["fitted_on_unlabeled"]
        return made

    def __repr__(self) -> str:
        return f"FeatureSet({len(self.features)} generators, {len(self.outputs)} outputs)"


def _zeros(work: Table) -> torch.Tensor:
    return torch.zeros(len(work), dtype=torch.int64, device=work.device)


def _compute(step: Feature, work: Table, context: Context) -> dict[str, Column]:
    return step.compute(work, context) if isinstance(step, Grouped) else step.compute(work)
