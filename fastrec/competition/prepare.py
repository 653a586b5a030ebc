"""A recipe's features: of all training rows, of the test rows, and of every fold without its targets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from fastrec import __version__
from fastrec._core.atomic import atomic_folder
from fastrec.competition.data import CompetitionData
from fastrec.competition.parts import Parts
from fastrec.competition.recipe import Competition
from fastrec.errors import FastrecError
from fastrec.features import FeatureSet
from fastrec.features._engine.digests import NoDigestError, columns_digest, digest, generator_digest
from fastrec.table import Table
from fastrec.validate import Folds

Pair = tuple[Table, Table]


class Prepared:
    """Rows with their features, fitted once and kept among a run's parts.

    Args:
        recipe: says the features.
        found: the rows; training rows without a target have been dropped.
        folds: the folds of the model's validation.
        targets: the target columns, which rows that are scored do not show.
        parts: where finished parts are kept; None: nowhere.
    """

    def __init__(
        self, recipe: Competition, found: CompetitionData, folds: Folds, targets: Sequence[str], parts: Parts | None
    ) -> None:
        self.recipe, self.found, self.folds, self.targets = recipe, found, folds, list(targets)
        self.features = recipe.features()
        self.outputs: list[str] = []
        self.transductive: list[str] = []
        self.holding_targets: list[str] = []  # outputs through which a target passes: they differ from fold to fold
        self.digest = None if parts is None else _digest_of(found, folds, self.features)
        self.parts = parts if self.digest is not None else None
        self._pairs: Iterator[Pair] | None = None  # those of the folds to come, in order
        self._next = 0

    @property
    def passes(self) -> int:
        """How many times a generator makes its columns in ``fit``: once for each table that has rows."""
        return 0 if self.features is None else len(self.features.steps) * (1 + (self.found.test is not None))

    def fit(self) -> Pair | tuple[Table, None]:
        """The training rows, with values that hold nothing of their own targets, and the test rows."""
        found = self.found
        if self.features is None:
            return found.train, found.test
        kept = self._read_whole()
        if kept is not None:
            return kept
        tables, unlabeled = found.tables, found.test
        if self._nested:
            codes = self.folds.codes.to(found.train.device)
            made = self.features.fit_transform_folds(found.train, codes, tables=tables, unlabeled=unlabeled)
            train, self._pairs = made
        else:
            train = self.features.fit_transform(found.train, tables=tables, unlabeled=unlabeled)
        test = None if found.test is None else self._transform(self.features, found.test, found.train)
        self.outputs, self.transductive = list(self.features.outputs), list(self.features.transductive)
        through = {n for step in self.features._chain().tainted for n in step.outputs}
        self.holding_targets = [n for n in self.outputs if n in through]
        self._keep_whole(train, test)
        return train, test

    def fold(self, k: int) -> Pair:
        """The rows that fold ``k`` trains on and those that it scores, whose values hold nothing of their targets."""
        outside, inside = self.folds[k]
        train = self.found.train
        if self.features is None:
            return train.take(outside.to(train.device)), train.take(inside.to(train.device))
        if self.parts is None:
            return self._make_fold(k)
        made: Pair | None = None

        def half(i: int) -> Table:
            nonlocal made
            made = made or self._make_fold(k)
            return made[i].select(self.outputs)

        pair = [self.parts.table(key, lambda i=i: half(i)) for i, key in enumerate(self._keys(k))]
        if made is not None:
            return made
        rows = [train.take(r.to(train.device)) for r in (outside, inside)]
        return rows[0].with_columns(_columns(pair[0], train)), rows[1].with_columns(_columns(pair[1], train))

    def still_used(self, k: int) -> None:
        """Fold ``k``'s rows are not needed in this run, and are kept for the next."""
        if self.parts is not None:
            for key in self._keys(k):
                self.parts.folder_of("table", key)

    @property
    def part_names(self) -> dict[str, Any] | None:
        """Where among the parts the features lie: of all rows, and of the two sides of every fold."""
        if self.features is None:
            return None
        folds = [[f"table-{key}" for key in self._keys(k)] for k in range(len(self.folds))]
        return {"whole": f"features-{self.digest[:20]}", "folds": folds}

    def _keys(self, k: int) -> list[str]:
        return [digest(self.digest, k, i)[:20] for i in (0, 1)]

    @property
    def _nested(self) -> bool:
        """Whether every fold trains on all rows that it does not score: then one pass over the rows does for all."""
        return self.folds.is_partition and bool(self.folds.scored.all()) and not self.recipe.time

    def _make_fold(self, k: int) -> Pair:
        assert self.features is not None
        found = self.found
        if not self._nested:
            outside, inside = (r.to(found.train.device) for r in self.folds[k])
            features = self.recipe.features()
            assert features is not None
            train = found.train.take(outside)
            made = features.fit_transform(train, tables=found.tables, unlabeled=found.test)
            return made, self._transform(features, found.train.take(inside), train)
        if self._pairs is not None and self._next == k:  # folds come in order, unless some were kept
            self._next += 1
            return next(self._pairs)
        codes = self.folds.codes.to(found.train.device)
        made = self.features.cross_fit(found.train, codes, tables=found.tables, unlabeled=found.test, only=[k])
        return next(made)

    def _transform(self, features: FeatureSet, rows: Table, before: Table) -> Table:
        """Values of rows whose targets are not known; ``before``: what features with a history look back to."""
        if not self.recipe.history:
            return features.transform(rows, tables=self.found.tables)
        unknown = {n: torch.full((len(rows),), torch.nan, dtype=torch.float64) for n in self.targets}
        made = features.transform(rows.with_columns(unknown), tables=self.found.tables, history=before)
        there = {n: rows[n] for n in self.targets if n in rows}
        return made.drop([n for n in self.targets if n not in rows]).with_columns(there)

    # Parts -----------------------------------------------------------------------------------------------------------

    def _read_whole(self) -> Pair | tuple[Table, None] | None:
        if self.parts is None:
            return None
        place = self.parts.folder_of("features", self.digest[:20])
        if not (place / "about.json").is_file():
            return None
        try:
            about = json.loads((place / "about.json").read_text(encoding="utf-8"))
            train = Table.read(place / "train.parquet")
            test = None if self.found.test is None else Table.read(place / "test.parquet")
            self.holding_targets = list(about["holding_targets"])
        except (FastrecError, OSError, ValueError, KeyError):
            shutil.rmtree(place, ignore_errors=True)
            return None
        self.outputs, self.transductive = about["outputs"], about["transductive"]
        self.parts.reused += 1
        found = self.found
        full = found.train.with_columns(_columns(train, found.train))
        return full, None if test is None else found.test.with_columns(_columns(test, found.test))

    def _keep_whole(self, train: Table, test: Table | None) -> None:
        if self.parts is None:
            return
        with atomic_folder(self.parts.folder_of("features", self.digest[:20])) as part:
            self.features.save(part / "state")
            for name, table in {"train": train, "test": test}.items():
                if table is not None:
                    pq.write_table(table.select(self.outputs).to_arrow(), part / f"{name}.parquet", compression="lz4")
            about = {"outputs": self.outputs, "transductive": self.transductive}
            about["holding_targets"] = self.holding_targets
            (part / "about.json").write_text(json.dumps(about), encoding="utf-8")

    def save(self, folder: Path) -> None:
        """Write the fitted features."""
        if self.features is None:
            return
        if self.parts is None:
            self.features.save(folder)
        else:
            shutil.copytree(self.parts.folder_of("features", self.digest[:20]) / "state", folder)


def _columns(made: Table, beside: Table) -> dict[str, object]:
    return {n: made[n].to(beside.device) for n in made.names}


def _digest_of(found: CompetitionData, folds: Folds, features: FeatureSet | None) -> str | None:
    """Of all that features are made from; None: something has no digest, and nothing is kept."""
    tables = {"train": found.train, "test": found.test, **found.tables}
    try:
        parts = [v for n, t in tables.items() if t is not None for v in (n, columns_digest(t, t.names))]
        steps = [] if features is None else [*map(generator_digest, features.steps), str(features._options())]
        return digest(__version__, folds.digest, *parts, *steps)
    except NoDigestError:
        return None
