"""``TableRun``: the record of a run over rows and lists in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fastrec.competition.reading import CompetitionData
from fastrec.competition.resumable import RunFeatures
from fastrec.competition.run_record import Run
from fastrec.competition.scoring import Decision, Scorer
from fastrec.competition.submit import Form
from fastrec.table import Table
from fastrec.validate import Folds, ListEvents, Lists, Predictions, Rows, Target


@dataclass(kw_only=True)
class TableRun(Run):
    """A run over rows and lists in memory. A field is absent until its step has set it.

    Attributes:
        found: the data; the test does not show its target.
        target: the target; None in a ranking task.
        form: the submission form.
        split: partitions a table for the workers of a cluster; None: features are computed here.
        prepared: the features.
        cats, conts: the columns that models see.
        train, test: rows with features; test rows carry no label.
        counted: the training rows that are scored.
        predictions: estimator → its predictions; ``stack`` is the last.
        outcome: the fitted second level.
        decision: how predictions become classes.
        permutation: feature → how much the best base model's score drops if its values are shuffled.
        refitted: test rows are predicted by models of all training rows.
        left_out: model → why it is not in the run.
    """

    found: CompetitionData = field(init=False)
    target: Target | None = field(init=False)
    form: Form = field(init=False)
    split: Callable[[Table | None], Any] | None = None
    folds: Folds = field(init=False)
    scorer: Scorer = field(init=False)
    prepared: RunFeatures = field(init=False)
    cats: list[str] = field(init=False)
    conts: list[str] = field(init=False)
    train: Rows = field(init=False)
    test: Rows | None = field(init=False)
    counted: torch.Tensor = field(init=False)
    predictions: dict[str, Predictions] = field(default_factory=dict)
    outcome: Any = field(init=False)
    decision: Decision = field(init=False)
    refitted: bool = False
    permutation: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _events: dict[bool, ListEvents] = field(default_factory=dict, repr=False)

    def rows_of(self, table: Table, *, labelled: bool) -> Rows:
        """Return a table as estimators take it."""
        recipe = self.recipe
        weight = table[recipe.weight].number().cpu() if recipe.weight and labelled else None
        order = table[recipe.time].number().cpu() if recipe.time and recipe.time in table else None
        columns = {"cats": self.cats, "conts": self.conts, "weight": weight, "order": order}
        if self.target is None:
            label = table[recipe.label].number().cpu() if labelled else None
            groups = table[recipe.list_column].group_numbers().cpu()
            return Lists(table, groups, label=label, events=self.events(labelled=labelled), **columns)
        key = recipe.fold_key
        return Rows(
            table,
            self.target.task,
            label=self.target.encode(table) if labelled else None,
            groups=table[key].coded().codes.cpu().long() if key and key in table else None,
            n_outputs=self.target.n_outputs,
            **columns,
        )

    def events(self, *, labelled: bool) -> ListEvents | None:
        """Return the events before the lists of the training or the test rows; None: the recipe names no events."""
        if self.recipe.events is None:
            return None
        if labelled not in self._events:
            candidates = self.found.train if labelled else self.found.test
            self._events[labelled] = self.recipe.events.of(candidates, self.recipe.list_column, self.found.tables)
        return self._events[labelled]

    @property
    def refits(self) -> bool:
        """Whether models of all training rows predict the test rows."""
        recipe = self.recipe
        return recipe.time is not None and self.test is not None if recipe.refit is None else recipe.refit
