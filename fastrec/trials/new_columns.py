"""``NewColumns``: an idea's columns for the two sides of every fold of a run, and whether they leak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch

from fastrec.competition.kept_rows import KeptRows, Pair
from fastrec.errors import DataError, FastrecError, MissingColumnError
from fastrec.features import FeatureSet, check_leakage
from fastrec.features._engine.saving import selectors_of
from fastrec.table import Table
from fastrec.trials.ideas import Idea

_CHECKED = 3000  # rows that the search for leaks is run on, or somewhat more where keys are whole


class NewColumns:
    """What an idea makes of a run's rows.

    Generators are fitted for every fold as the run's own are: nested. They read the columns of the recipe's rows and
    those that the run's features make, but for such as hold targets: these differ from fold to fold. A function is
    called once with all rows (with folds by time: once for each fold, with the rows that the fold knows and scores) and
    never sees a target.

    Args:
        kept: the run's rows.
        idea: the generators or the function.
    """

    def __init__(self, kept: KeptRows, idea: Idea) -> None:
        self.kept, self.idea = kept, idea
        self.names: list[str] = []  # of the new columns, known once ``leaks`` was asked
        self._whole: dict[str, Any] = {}  # what a function makes of all rows
        self._features: FeatureSet | None = None
        if idea.function is None:
            self._features = FeatureSet(list(idea.features), key=kept.key or None, target=kept.targets, keep="outputs")
        self._table = self._read()

    # What is read ----------------------------------------------------------------------------------------------------

    def _read(self) -> Table:
        """The rows' columns that the idea may read."""
        kept = self.kept
        clean = [n for n in kept.outputs if n not in kept.from_targets]
        if self._features is None or selectors_of(self._features.steps):
            return _beside(kept.train(), kept.made(clean))
        time = [] if kept.time is None else [kept.time]  # the search for leaks goes by it
        needed = list(dict.fromkeys([*self._features.fit_inputs, *kept.targets, *time]))
        odd = next((n for n in needed if n in kept.from_targets), None)
        if odd is not None:
            raise DataError(
                "the run's feature holds targets and has other values in every fold", column=odd,
                remedy="Put the generator itself in the place of its column's name: it is fitted in every fold then",
            )  # fmt: skip
        absent = next((n for n in needed if n not in kept.columns and n not in clean), None)
        if absent is not None:
            raise MissingColumnError(
                "the run's rows do not have it", column=absent, remedy=f"They have {', '.join([*kept.columns, *clean])}"
            )
        own = [n for n in needed if n in kept.columns]
        return _beside(kept.train(own), kept.made([n for n in needed if n not in own]))

    def _tables(self) -> dict[str, Table]:
        assert self._features is not None
        return self.kept.tables(list({n for s in self._features.steps for n in s.table_inputs}))

    # Leaks -----------------------------------------------------------------------------------------------------------

    def leaks(self) -> dict[str, str]:
        """The columns that hold what they must not know → what was found."""
        table, targets = self._table, self.kept.targets
        if self._features is None:
            return self._leaks_of_function()
        self._features._resolve(table)
        self.names = self._features.outputs
        self._check_names()
        given = _giving_targets(self._features, targets)
        if given:
            return given
        codes = self.kept.folds.codes if self.kept.nested else None
        report = check_leakage(
            self._features, table, targets, self.kept.time, folds=codes, tables=self._tables(), max_rows=_CHECKED
        )
        return {leak.column: f"{leak.kind}: {leak.detail}" for leak in report.leaks}

    def _leaks_of_function(self) -> dict[str, str]:
        frame, targets = self._table.to_pandas(), self.kept.targets
        function, kept = self._call, self.kept
        try:
            self._whole = function(frame.drop(columns=targets))
            self.names = list(self._whole)
        except DataError as error:
            try:
                made = function(frame)
            except DataError:
                raise error from None
            return dict.fromkeys(made, "it is made with the target, which a function of a frame is not to see")
        self._check_names()
        key = kept.key or None
        report = check_leakage(
            lambda df: function(df.drop(columns=targets)), frame, targets, kept.time, key=key, max_rows=_CHECKED
        )
        return {leak.column: f"{leak.kind}: {leak.detail}" for leak in report.leaks}

    # Columns ---------------------------------------------------------------------------------------------------------

    def folds(self) -> Iterator[Pair]:
        """For every fold the new columns of the rows that it trains on, and of those that it scores."""
        make = self._of_function if self._features is None else self._nested if self.kept.nested else self._one_by_one
        return make()

    def _check_names(self) -> None:
        taken = next((n for n in self.names if n in {*self.kept.columns, *self.kept.outputs}), None)
        if taken is not None:
            raise DataError("the run has a column of this name", column=taken, remedy="Give the new one another name")

    def _nested(self) -> Iterator[Pair]:
        assert self._features is not None
        return self._features.cross_fit(
            self._table, self.kept.folds.codes, tables=self._tables(), unlabeled=self._unlabeled()
        )

    def _one_by_one(self) -> Iterator[Pair]:
        """Folds that train on some of the other rows: each is fitted on these alone."""
        assert self._features is not None
        tables, hidden = self._tables(), self.kept.targets
        for outside, inside in self.kept.folds:
            features = self._features.__sklearn_clone__()
            train, valid = self._table.take(outside), self._table.take(inside)
            made = features.fit_transform(train, tables=tables, unlabeled=self._unlabeled())
            unknown = {n: torch.full((len(valid),), torch.nan, dtype=torch.float64) for n in hidden}
            before = train if self.kept.history else None
            valid = valid.with_columns(unknown) if self.kept.history else valid.drop(hidden)
            yield made, features.transform(valid, tables=tables, history=before)

    def _unlabeled(self) -> Table | None:
        assert self._features is not None
        return self.kept.test() if any(s.scope == "all" for s in self._features.steps) else None

    def _of_function(self) -> Iterator[Pair]:
        if self.kept.nested:
            made = Table.read(pd.DataFrame(self._whole))
            for outside, inside in self.kept.folds:
                yield made.take(outside), made.take(inside)
            return
        frame = self._table.drop(self.kept.targets).to_pandas()
        for outside, inside in self.kept.folds:
            known = torch.sort(torch.cat([outside, inside])).values
            made = Table.read(pd.DataFrame(self._call(frame.iloc[known.numpy()].reset_index(drop=True))))
            yield made.take(torch.searchsorted(known, outside)), made.take(torch.searchsorted(known, inside))

    def _call(self, frame: pd.DataFrame) -> dict[str, Any]:
        """The new columns that the function makes, in the order of the frame's rows.

        The frame is the function's own, to write to.

        Raises:
            DataError: it fails, or returns no columns of as many rows.
        """
        function = self.idea.function
        assert function is not None
        name = getattr(function, "__name__", "the function")
        try:
            made = function(frame.copy(deep=False))  # the values are its own already, the columns are looked at after
        except FastrecError:
            raise
        except Exception as error:  # whatever a person's own code raises
            raise DataError(
                f"{name} fails ({type(error).__name__}: {error})", file=self.idea.file,
                remedy="It gets a pandas frame without the targets and returns its new columns",
            ) from error  # fmt: skip
        return _columns_of(made, frame, name)


def _columns_of(made: Any, frame: pd.DataFrame, name: str) -> dict[str, Any]:
    """What a function has returned, by name; columns of the frame itself are left out."""
    if isinstance(made, pd.Series):
        made = made.to_frame(made.name if isinstance(made.name, str) and made.name not in frame else name)
    if isinstance(made, Table):
        made = made.to_pandas()
    if isinstance(made, pd.DataFrame) and not made.index.equals(frame.index):
        if len(made) == len(frame) and made.index.is_unique and made.index.isin(frame.index).all():
            made = made.loc[frame.index]
        else:
            raise DataError(f"{name} returns other rows", remedy="Return a value for every row, with the frame's index")
    try:
        found = {str(n): made[n] for n in made if n not in frame.columns}
        wrong = next((n for n, v in found.items() if len(v) != len(frame)), None)
    except TypeError:
        raise DataError(
            f"{name} returns a {type(made).__name__}", remedy="Return a frame, a dict of columns or a Series"
        ) from None
    if wrong is not None:
        raise DataError(
            f"{name} returns {len(found[wrong])} values for {len(frame)} rows", column=wrong,
            remedy="Return a value for every row",
        )  # fmt: skip
    if not found:
        raise DataError(f"{name} returns no new column", remedy="Give new columns names that the frame does not have")
    return found


def _giving_targets(features: FeatureSet, targets: Sequence[str]) -> dict[str, str]:
    """The columns of generators that would give rows their own targets → how a set of features refuses them."""
    found: dict[str, str] = {}
    for feature in features.features:
        try:
            FeatureSet([feature], target=targets)._chain().check_targets()
        except DataError as error:
            found |= dict.fromkeys(feature.outputs, error.problem)
    return found


def _beside(table: Table, other: Table) -> Table:
    return table.with_columns({n: other[n] for n in other.names}) if other.names else table
