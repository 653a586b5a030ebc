"""The features of a run: of all rows, and of each fold, cached so that an interrupted run resumes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastrec._version import __version__
from fastrec.competition.reading import CompetitionData
from fastrec.competition.recipe import Competition
from fastrec.competition.resumable import Parts
from fastrec.competition.run_record import TableRun
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, DataWarning
from fastrec.features import CoVisit, FeatureSet
from fastrec.features._engine.chain import reads_target, step_by_step
from fastrec.features._engine.digests import NoDigestError, columns_digest, digest, generator_digest
from fastrec.features.columns import as_list
from fastrec.table import Table, concat, load_state
from fastrec.validate import Folds

Pair = tuple[Table, Table]
SIDES = ("train", "valid")  # of a fold: the rows it trains on, and those it scores


def cut_folds(run: TableRun) -> None:
    """Drop training rows without a target, and cut the others into the recipe's folds."""
    recipe, target, train = run.recipe, run.target, run.found.train
    if target is not None and len(kept := target.labelled(train, recipe.name)) < len(train):
        run.found = replace(run.found, train=train.take(kept.to(train.device)))
    run.scorer = Scorer.of(recipe.metric, target)
    run.folds, rows = recipe.folds(run.found, target), len(run.found.train)
    if not isinstance(run.folds, Folds) or run.folds.size != rows:
        given = run.folds if isinstance(run.folds, Folds) else f"a value of type {type(run.folds).__name__}"
        remedy = "Return Folds(codes), with a code for each row of found.train"
        raise DataError(f"{recipe.name}: folds() returns {given}, and {rows:,} rows have a target", remedy=remedy)


def make_features(run: TableRun) -> None:
    """Compute the features of all rows; those of a fold are computed when its models are trained."""
    targets = [run.recipe.label] if run.target is None else run.target.names
    rows = len(run.found.train) + (0 if run.found.test is None else len(run.found.test))
    with run.stages.stage("features", rows) as advance:
        run.prepared = RunFeatures(run.recipe, run.found, run.folds, targets, run.parts, run.split)
        steps = [] if run.prepared.features is None else run.prepared.features.steps
        with step_by_step(advance, rows, len(steps) * (1 + (run.found.test is not None))):
            run.prepared.fit()
        if not run.recipe.history and (seen := next((s for s in steps if reads_target(s, targets)), None)):
            problem = f"{type(seen).__name__} looks back at {', '.join(targets)}, which scored rows lack"
            warnings.warn(f"{problem}. Write history = True: they find the training rows", DataWarning, stacklevel=2)


class RunFeatures:
    """Rows with their features, fitted once and cached in a run's ``parts`` (None: not cached).

    ``found`` has the rows with known ``targets``, which are hidden from the features of scored rows. With ``split``,
    which partitions a table, a cluster's workers compute the features.
    """

    def __init__(
        self,
        recipe: Competition,
        found: CompetitionData,
        folds: Folds,
        targets: Sequence[str],
        parts: Parts | None,
        split: Callable[[Table | None], Any] | None = None,
    ) -> None:
        self._split = split if split is not None else _as_it_is
        self.recipe, self.found, self.folds, self.targets = recipe, found, folds, list(targets)
        self.features = self._unfitted()
        self.outputs: list[str] = []
        self.from_targets: list[str] = []  # features that depend on a target: they differ between folds
        self.transductive: list[str] = []
        self.digest = None if parts is None else _digest_of(found, folds, self.features)
        self.parts = parts if self.digest is not None else None
        self._pairs: Iterator[Pair] | None = None  # the next folds' features, in order
        self._next = 0
        self.train, self.test = found.train, found.test  # with features of all training rows, once they are fitted

    def _unfitted(self) -> FeatureSet | None:
        features = self.recipe.features()
        if features is not None:
            features.assume_target(self.targets)
        return features

    def fit(self) -> None:
        """Set ``train``, whose features are independent of their row's target, and ``test``."""
        features, found = self.features, self.found
        if features is None:
            return

        def read(place: Path) -> Pair | tuple[Table, None]:
            about, train = load_state(place / "about"), Table.read(place / "train.parquet")
            test = None if found.test is None else Table.read(place / "test.parquet")
            self.outputs, self.transductive = about["outputs"], about["transductive"]
            self.from_targets = about["from_targets"]
            full = found.train.with_columns(_columns(train, found.train))
            return full, None if test is None else found.test.with_columns(_columns(test, found.test))

        key = None if self.parts is None else self.digest[:20]
        made = None if key is None else self.parts.found("features", key, read)
        if made is not None:
            self.train, self.test = made
            return
        tables, unlabeled, rows = self._tables, self._split(found.test), self._split(found.train)
        if self._nested:
            codes = self.folds.codes.to(found.train.device)
            made = features.fit_transform_folds(rows, codes, tables=tables, unlabeled=unlabeled)
            self.train, self._pairs = made
        else:
            self.train = features.fit_transform(rows, tables=tables, unlabeled=unlabeled)
        if found.test is not None:
            self.test = self._transform(features, found.test, found.train)
        self.outputs, self.transductive = list(features.outputs), list(features.transductive)
        self.from_targets = features.from_targets
        if key is not None:
            about = {n: getattr(self, n) for n in ("outputs", "transductive", "from_targets")}
            test = None if self.test is None else self.test.select(self.outputs)
            self.parts.keep(
                "features", key, state=features, about=about, train=self.train.select(self.outputs), test=test
            )

    def fold(self, k: int) -> Pair:
        """Return fold ``k``'s training and scored rows, with features independent of the scored rows' targets."""
        train, folds = self.found.train, self.folds
        if self.features is None:
            return train.take(folds[k][0].to(train.device)), train.take(folds[k][1].to(train.device))

        def read(place: Path) -> Pair:
            made = [_columns(Table.read(place / f"{side}.parquet"), train) for side in SIDES]
            return tuple(train.take(r.to(train.device)).with_columns(m) for r, m in zip(folds[k], made, strict=True))

        pair = None if self.parts is None else self.parts.found("fold", self._key(k), read)
        if pair is not None:
            return pair
        if not self._nested:
            features, (before, scored) = self._unfitted(), (train.take(r.to(train.device)) for r in folds[k])
            rows, test = self._split(before), self._split(self.found.test)
            made = features.fit_transform(rows, tables=self._tables_before(scored), unlabeled=test)
            pair = made, self._transform(features, scored, before)
        elif self._pairs is not None and self._next == k:  # folds come in order, unless some are cached
            self._next += 1
            pair = next(self._pairs)
        else:
            rows, test = self._split(train), self._split(self.found.test)
            about = {"tables": self._tables, "unlabeled": test, "only": [k]}
            pair = next(self.features.cross_fit(rows, folds.codes.to(train.device), **about))
        if self.parts is not None:
            self.parts.keep("fold", self._key(k), **{n: t.select(self.outputs) for n, t in zip(SIDES, pair)})
        return pair

    def unlabeled(self, k: int) -> Table:
        """Return the test rows with features independent of the targets that fold ``k`` scores."""
        found, test = self.found, self.test
        # In nested folds, features without a target are computed from the inputs of all rows. (An encoding of such a
        # column is fitted on the fold's training rows: the difference contains no target.)
        names = self.from_targets if self._nested else self.outputs
        if not names:
            return test
        key = None if self.parts is None else self._key(k)
        made = None if key is None else self.parts.found("unlabeled", key, lambda p: Table.read(p / "rows.parquet"))
        if made is None:
            features, (before, scored) = self._unfitted(), (found.train.take(r.to(test.device)) for r in self.folds[k])
            features.fit(self._split(before), tables=self._tables_before(scored), unlabeled=self._split(found.test))
            made = self._transform(features, found.test, before).select(names)
            if key is not None:
                self.parts.keep("unlabeled", key, rows=made)
        return test.with_columns(_columns(made, test))

    def still_used(self, k: int) -> None:
        """Protect the cached rows of fold ``k``, which this run does not need, from ``clear``."""
        if self.parts is not None:
            for kind in ("fold", "unlabeled"):
                self.parts.folder_of(kind, self._key(k))

    @property
    def part_names(self) -> dict[str, Any] | None:
        """Name the parts with the features: of all rows, and of every fold."""
        if self.features is None:
            return None
        folds = [f"fold-{self._key(k)}" for k in range(len(self.folds))]
        return {"whole": f"features-{self.digest[:20]}", "folds": folds}

    def _key(self, k: int) -> str:
        return digest(self.digest, k)[:20]

    @property
    def _nested(self) -> bool:
        """Whether every fold trains on all rows that it does not score: then one pass over the rows serves all."""
        return self.folds.is_partition and bool(self.folds.scored.all()) and not self.recipe.time

    def _transform(self, features: FeatureSet, rows: Table, before: Table) -> Table:
        """Compute features of rows with unknown targets; ``before``: rows that a history looks back to."""
        about = {"tables": self._tables, "history": self._split(before) if self.recipe.history else None}
        return transform_unknown(features, rows, self.targets, split=self._split, **about)

    @property
    def _tables(self) -> dict[str, Any]:
        return {n: self._split(t) for n, t in self.found.tables.items()}

    def _tables_before(self, scored: Table) -> dict[str, Any]:
        """Return tables to fit on; with folds by time logs that are counted end before the first of the scored rows."""
        tables = dict(self.found.tables)
        for step in self.features.steps if self.recipe.time and self.recipe.last_of is None else ():
            if isinstance(step, CoVisit) and step.table is not None:
                (time, *_), log = as_list(step.order), tables[step.table]
                moment = concat([log.select([time]), scored.select([time])])[time].number(torch.float64)
                tables[step.table] = log.take(moment[: len(log)] < moment[len(log) :].nan_to_num(torch.inf).min())
        return {n: self._split(t) for n, t in tables.items()}


def _as_it_is(table: Table | None) -> Any:
    return table


def transform_unknown(
    features: FeatureSet,
    rows: Table,
    targets: Sequence[str],
    *,
    tables: Mapping[str, Any],
    history: Any,
    split: Callable[[Table | None], Any] = _as_it_is,
) -> Table:
    """Compute features of rows with unknown targets, looking back to ``history``, whose targets are known, if given.

    Targets that the rows have are hidden from the features. ``split`` partitions a table.
    """
    hidden = rows.drop(targets)
    if history is not None:
        hidden = hidden.with_columns({n: torch.full((len(rows),), torch.nan, dtype=torch.float64) for n in targets})
    made = features.transform(split(hidden), tables=tables, history=history)
    return made.drop(targets).with_columns({n: rows[n] for n in targets if n in rows})


def _columns(made: Table, beside: Table) -> dict[str, object]:
    return {n: made[n].to(beside.device) for n in made.names}


def _digest_of(found: CompetitionData, folds: Folds, features: FeatureSet | None) -> str | None:
    """Digest everything that features depend on; None: something has no digest, so nothing is cached."""
    tables = {"train": found.train, "test": found.test, **found.tables}
    try:
        parts = [v for n, t in tables.items() if t is not None for v in (n, columns_digest(t, t.names))]
        steps = [] if features is None else [*map(generator_digest, features.steps), str(features._options())]
        return digest(__version__, folds.digest, *parts, *steps)
    except NoDigestError:
        return None
