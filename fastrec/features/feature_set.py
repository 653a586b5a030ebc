"""``FeatureSet``: generators in a chain, fitted, applied and cross-fitted together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fastrec.features as registry
from fastrec.convert import as_column, attach, column_names, take_rows
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError
from fastrec.features.base import Cells, Context, Feature, Fitted, Grouped, as_list, names_of
from fastrec.files import atomic_folder
from fastrec.state import load_state, save_state
from fastrec.table import Column, Table, concat
from fastrec.vocab import hash_codes

_INNER_SEED, FOLD_SEED = 1, 0


class FeatureSet:
    """Several generators, applied in order; a generator may read what another makes.

    Args:
        features: generators (or other FeatureSets, taken apart); generators inside generators are computed first, and only the
            outputs of those listed here are returned.
        key: column(s) that say which rows belong together: a row's fold is a stable hash of them, so that it depends neither on
            the row's place nor on the other rows. None: the row's number.
        folds: how many inner folds training rows' out-of-fold values are made with, where a generator does not say.
    """

    def __init__(self, features: Sequence[Feature | FeatureSet], *, key: str | Sequence[str] | None = None, folds: int = 5) -> None:
        self.features = [g for f in as_list(features) for g in (f.features if isinstance(f, FeatureSet) else [f])]
        self.key, self.folds = key, folds
        self.fitted_on_unlabeled = False
        _check_names(self.outputs)

    # Names -------------------------------------------------------------------------------------------------------------

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
        found: list[Feature] = []

        def visit(feature: Feature) -> None:
            for source in feature.sources:
                if isinstance(source, Feature):
                    visit(source)
            if not any(feature is other for other in found):
                found.append(feature)

        for feature in self.features:
            visit(feature)
        return found

    @property
    def transductive(self) -> list[str]:
        """Outputs whose statistics were fitted on unlabeled rows too (``scope='all'``)."""
        return [n for s in self.steps if s.scope == "all" for n in s.outputs] if self.fitted_on_unlabeled else []

    # Fitting and applying ----------------------------------------------------------------------------------------------

    def fit(self, df: Any, y: Any = None, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None) -> FeatureSet:
        """Learn from training rows.

        Args:
            df: training rows, in any supported library.
            y: the target, if it is not a column of ``df``.
            tables: other tables by name.
            unlabeled: rows without a target (the test rows) that ``scope='all'`` generators may count too.

        Returns:
            Itself.
        """
        self._run(self._read(df, y), self._context(tables), unlabeled=unlabeled, out_of_fold=True)
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
        work = self._run(self._read(df, y), self._context(tables), unlabeled=unlabeled, out_of_fold=True)
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
            before = Table.read(history, self.inputs)
            past = len(before)
            work = concat([before, work])
        context = self._context(tables)
        for step in self.steps:
            work = _add(work, step.compute(work, context) if isinstance(step, Grouped) else step.compute(work))
        if past:
            work = work.select(self.outputs).take(torch.arange(past, past + rows))
        return attach(df, {n: work[n] for n in self.outputs})

    def cross_fit(
        self, df: Any, folds: Any, *, tables: Mapping[str, Any] | None = None, unlabeled: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """For every outer fold, training and validation rows whose values hold nothing of that fold's targets.

        Rows of fold k are encoded from all other rows (prior included); the other rows are encoded out of fold among themselves.

        Args:
            df: training rows with their target.
            folds: integers ``[n]`` from 0, or the name of a column with them: the folds of the *model's* validation.
            tables, unlabeled: see ``fit``.

        Yields:
            ``(train, valid)``: the rows outside and inside fold 0, 1, …, with the outputs added.
        """
        work, context = self._read(df), self._context(tables)
        outer = _fold_codes(df, folds, work)
        shared = self._shared_steps()
        for step in self.steps:
            if step in shared:
                work = self._fit_step(step, work, context, unlabeled, out_of_fold=True)
        for k in range(int(outer.max()) + 1 if len(outer) else 0):
            done = work
            for step in self.steps:
                if step in shared:
                    continue
                done = self._cross_step(step, done, context, outer, k)
            inside = outer == k
            full = attach(df, {n: done[n] for n in self.outputs})
            yield take_rows(full, (~inside).nonzero().squeeze(1)), take_rows(full, inside.nonzero().squeeze(1))

    def _shared_steps(self) -> list[Feature]:
        """Steps that neither use a target nor read what one that does makes: the same in every fold."""
        tainted: set[str] = set()
        shared = []
        for step in self.steps:
            if step.uses_target or tainted & set(step.inputs):
                tainted |= set(step.outputs)
            else:
                shared.append(step)
        return shared

    def _run(self, work: Table, context: Context, *, unlabeled: Any, out_of_fold: bool) -> Table:
        for step in self.steps:
            work = self._fit_step(step, work, context, unlabeled, out_of_fold=out_of_fold)
        self.fitted_on_unlabeled = unlabeled is not None
        return work

    def _fit_step(self, step: Feature, work: Table, context: Context, unlabeled: Any, *, out_of_fold: bool) -> Table:
        if isinstance(step, Grouped):
            return _add(work, step.compute(work, context))
        if not isinstance(step, Fitted):
            return _add(work, step.compute(work))
        if not step.uses_target:
            state = step.collect(work)
            if step.scope == "all" and unlabeled is not None:
                state = step.merge(state, step.collect(Table.read(unlabeled, step.inputs)))
            step.learn(state)
            return _add(work, step.compute(work))
        cells = self._inner_cells(step, work)
        state = step.collect(work, cells)
        step.learn(state)
        return _add(work, step.compute_out_of_cell(work, state, cells, torch.eye(cells.count, dtype=torch.bool)))

    def _cross_step(self, step: Feature, work: Table, context: Context, outer: torch.Tensor, k: int) -> Table:
        """One step of outer fold ``k``: its targets reach no value."""
        if isinstance(step, Grouped):
            return _add(work, step.compute(work, context))
        if not isinstance(step, Fitted):
            return _add(work, step.compute(work))
        inner = self._inner_cells(step, work) if step.uses_target else Cells(torch.zeros_like(outer), 1)
        # Cell 0 is the outer fold itself; the others are the inner folds of the rest.
        cells = Cells(torch.where(outer == k, 0, inner.codes + 1), inner.count + 1)
        state = step.collect(work, cells)
        excluded = torch.zeros(cells.count, cells.count, dtype=torch.bool)
        excluded[:, 0] = True
        if step.uses_target:
            excluded |= torch.eye(cells.count, dtype=torch.bool)
        return _add(work, step.compute_out_of_cell(work, state, cells, excluded))

    def _inner_cells(self, step: Feature, work: Table) -> Cells:
        column = getattr(step, "fold_column", None)
        if column is not None:
            coded = work.coded(column)
            if bool((coded.codes == 0).any()):
                row = int((coded.codes == 0).nonzero()[0])
                raise DataError("a row has no fold", column=column, row=row, remedy="Give every training row a fold")
            return Cells(coded.codes - 1, coded.size - 1)
        count = getattr(step, "folds", None) or self.folds
        return Cells(row_folds(work, as_list(self.key), count, seed=_INNER_SEED), count)

    def _read(self, df: Any, y: Any = None) -> Table:
        names = self.fit_inputs
        targets = list(dict.fromkeys(s.target for s in self.steps if s.uses_target and isinstance(getattr(s, "target", None), str)))
        if y is None:
            return Table.read(df, names)
        if len(targets) != 1:
            raise DataError(f"y was given, but the generators use {len(targets)} targets", remedy="Give targets as columns")
        table = Table.read(df, [n for n in names if n != targets[0]])
        return table.with_columns({targets[0]: as_column(y, name=targets[0])})

    def _context(self, tables: Mapping[str, Any] | None) -> Context:
        needed: dict[str, dict[str, None]] = {}
        for step in self.steps:
            for table, names in step.table_inputs.items():
                needed.setdefault(table, {}).update(dict.fromkeys(names))
        given = tables or {}
        read = {n: Table.read(given[n], list(columns)) for n, columns in needed.items() if n in given}
        return Context(read, tuple(as_list(self.key)))

    # scikit-learn's manners, saving ------------------------------------------------------------------------------------

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> list[str]:
        """The names of the columns that are added (scikit-learn's name for ``outputs``)."""
        return self.outputs

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"features": self.features, "key": self.key, "folds": self.folds}

    def set_params(self, **params: Any) -> FeatureSet:
        """Change constructor's arguments in place."""
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def save(self, folder: str | Path) -> None:
        """Write configuration and learned state as JSON and safetensors; what was at ``folder`` is replaced in one step."""
        steps = self.steps
        config = {
            "key": self.key,
            "folds": self.folds,
            "fitted_on_unlabeled": self.fitted_on_unlabeled,
            "listed": [next(i for i, s in enumerate(steps) if s is f) for f in self.features],
            "steps": [{"class": type(s).__name__, "params": _plain(s.get_params(), steps)} for s in steps],
        }
        with atomic_folder(folder) as part:
            (part / "features.json").write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
            for i, step in enumerate(steps):
                try:
                    state = step.get_state()
                except NotFittedError:
                    continue
                if state:
                    save_state(part / f"{i:03d}_{type(step).__name__}", state)

    @classmethod
    def load(cls, folder: str | Path) -> FeatureSet:
        """Read what ``save`` wrote.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
        """
        folder = Path(folder)
        path = folder / "features.json"
        if not path.exists():
            raise MissingFileError("there is no such file", file=path, remedy="Save the features again")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            steps: list[Feature] = []
            for i, entry in enumerate(config["steps"]):
                step = _feature_class(entry["class"])(**_revive(entry["params"], steps))
                at = folder / f"{i:03d}_{entry['class']}"
                if at.exists():
                    step.set_state(load_state(at))
                steps.append(step)
        except (KeyError, ValueError, TypeError) as error:
            raise UnreadableFileError(f"the saved features cannot be read ({error})", file=path, remedy="Save them again") from error
        made = cls([steps[i] for i in config["listed"]], key=config["key"], folds=config["folds"])
        made.fitted_on_unlabeled = config["fitted_on_unlabeled"]
        return made

    def __repr__(self) -> str:
        return f"FeatureSet({len(self.features)} generators, {len(self.outputs)} outputs)"


def row_folds(table: Table, key: Sequence[str], folds: int, *, seed: int = FOLD_SEED) -> torch.Tensor:
    """The fold of each row: a stable hash of its key, wherever the row stands and whatever else is in the table.

    Args:
        table: the rows.
        key: column(s) of the key; empty: the row's number.
        folds: how many folds.
        seed: other seeds give other folds.

    Returns:
        int64 ``[n]`` in ``0 … folds - 1``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not key:
        rows = pa.array(range(len(table)), pa.int64()).cast(pa.large_string())
        return torch.from_numpy(hash_codes(rows, folds, seed=seed))
    coded = table.coded(list(key))
    text = [c.cast(pa.large_string()) for c in coded.keys.columns]
    joined = text[0] if len(text) == 1 else pc.binary_join_element_wise(*text, "\x1f")
    fold = torch.zeros(coded.size, dtype=torch.int64)  # rows without a key share fold 0
    fold[1:] = torch.from_numpy(hash_codes(joined, folds, seed=seed))
    return fold.to(coded.codes.device)[coded.codes]


def _fold_codes(df: Any, folds: Any, work: Table) -> torch.Tensor:
    if isinstance(folds, str):
        folds = Table.read(df, [folds])[folds].integer()
    codes = torch.as_tensor(folds).to(torch.int64).to(work.device)
    if codes.shape != (len(work),):
        raise DataError(f"{tuple(codes.shape)} folds for {len(work)} rows", remedy="Give one fold number per row")
    if len(codes) and int(codes.min()) < 0:
        row = int((codes < 0).nonzero()[0])
        raise DataError(f"fold {int(codes[row])} is below 0", row=row, remedy="Number the folds from 0")
    return codes


def _add(work: Table, columns: dict[str, Column]) -> Table:
    return work.with_columns(columns)


def _check_names(outputs: list[str]) -> None:
    twice = sorted({n for n in outputs if outputs.count(n) > 1})
    if twice:
        raise DataError(f"two generators make the column {twice[0]!r}", column=twice[0], remedy="Give one of them another name=")


def _feature_class(name: str) -> type[Feature]:
    if name not in registry.__all__:
        raise ValueError(f"there is no generator {name!r}")
    return getattr(registry, name)


def _plain(value: Any, steps: list[Feature]) -> Any:
    if isinstance(value, Feature):
        return {"$step": next(i for i, s in enumerate(steps) if s is value)}
    if isinstance(value, dict):
        return {k: _plain(v, steps) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, steps) for v in value]
    return value


def _revive(value: Any, steps: list[Feature]) -> Any:
    if isinstance(value, dict):
        return steps[value["$step"]] if "$step" in value else {k: _revive(v, steps) for k, v in value.items()}
    return [_revive(v, steps) for v in value] if isinstance(value, list) else value


__all__ = ["FOLD_SEED", "FeatureSet", "column_names", "names_of", "row_folds"]
