"""``CompetitionData``: a competition's rows, laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastrec.table import Table
from fastrec.table.column_types import as_types, shared_types, types_of

_ALIKE = {"text", "number", "bool", "clock"}


@dataclass
class CompetitionData:
    """A competition's data: rows to learn from and rows to predict, and what their features are made from.

    Args:
        train: labelled rows. In a ranking task candidates: lists stand together, in ascending order of the list column.
        test: the rows to predict, without their target; in a ranking task one list per target row. None: there are
            none, and the submission has the training rows with their out-of-fold predictions.
        targets: the id columns of the submission. In a ranking task whose form has one line per list, one row per test
            list, in the order of the lists; else one row per test row. None: the test rows' own columns.
        tables: other tables by name (an event log, item properties).
        truth: what ``test`` is scored by, where it is known; for the final score only: labels float64 ``[n_test]`` of a
            ranking task, else a table with the target column(s).
        oracle: the expected score of the true probabilities, where they are known.
        types: table → column → type (see ``fastrec.table.column_types``), where the files say more than the tables.
    """

    train: Table
    test: Table | None = None
    targets: Table | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    truth: Any = None
    oracle: float | None = None
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def settle_types(self, known: Mapping[str, Mapping[str, str]]) -> None:
        """Learn the types of all columns, and make those of train and test the same.

        Args:
            known: types that are known already: those of a run whose recipe is carried out again.

        Raises:
            DataError: times have a zone in one of the two, and none in the other.
        """
        made = {"train": shared_types(self.train, self.test), **{n: types_of(t) for n, t in self.tables.items()}}
        self.types = {n: {**own, **self.types.get(n, {}), **known.get(n, {})} for n, own in made.items()}
        self.train, self.test = (None if t is None else _alike(t, self.types["train"]) for t in (self.train, self.test))
        self.tables = {n: _alike(t, self.types[n]) for n, t in self.tables.items()}


def _alike(table: Table, types: Mapping[str, str]) -> Table:
    """Give columns the types that train and test share, if their values fit."""
    own = types_of(table)
    fits = [n for n, t in types.items() if own.get(n, t) == t or {own[n], t} <= _ALIKE or own[n][:4] == t[:4] == "time"]
    return as_types(table, types, fits)
