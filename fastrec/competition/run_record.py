"""``Run``: the record of a run, to which each step adds what later steps need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastrec._core.atomic import now
from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.forms.rows import SubmissionForm
from fastrec.competition.reading import CompetitionData
from fastrec.competition.resumable import KeptModels, Parts
from fastrec.competition.scoring import Decision, Scorer
from fastrec.estimators import Estimator
from fastrec.table import Table
from fastrec.validate import Folds, ListEvents, Predictions, Rows, Target


@dataclass(kw_only=True)
class Run:
    """The arguments of ``run_competition`` (see there), and the run's start."""

    recipe: Any
    data: Path
    out: Path
    device: torch.device
    stages: Stages
    rows: int | None = None
    seed: int = 0
    bs: int | None = None
    command: str | None = None
    parts: Parts | None = None  # finished parts of an interrupted run; None: nothing is cached
    budget: Budget | None = None  # the wall time of the whole run; None: no limit
    ranks: int = 1
    scheduler: str | None = None
    started: str = field(default_factory=now)
    scores: dict[str, Any] = field(default_factory=dict)  # of ``scores.json``
    # resources that end with the run, such as workers
    context: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def notes(self) -> dict[str, Any]:
        """The given options, as ``config.json`` has them."""
        ranks, minutes = self.ranks if self.ranks > 1 else None, None if self.budget is None else self.budget.minutes
        notes = {"started": self.started, "data": self.data.resolve().name, "command": self.command}
        notes |= {"device": str(self.device), "rows": self.rows, "seed": self.seed, "bs": self.bs}
        notes |= {"minutes": minutes, "ranks": ranks, "scheduler": self.scheduler}
        return {name: value for name, value in notes.items() if value is not None}


def shown_first(table: Table, place: Mapping[str, float]) -> Table:
    """Set the place of scores in all rows of a table; see ``TableRun.place_of_scores``."""
    number = {n: torch.full((len(table),), at, dtype=torch.float64, device=table.device) for n, at in place.items()}
    return table.with_columns(number) if number else table


@dataclass(kw_only=True)
class TableRun(Run):
    """A run over rows and lists in memory. A field is absent until its step has set it."""

    # the data, with the test's target hidden; ``train``, ``test`` are its rows with features
    found: CompetitionData = field(init=False)
    target: Target | None = field(init=False)  # None in a ranking task
    form: SubmissionForm = field(init=False)
    # partitions a table for the workers of a cluster; None: features are computed here
    split: Callable[[Table | None], Any] | None = None
    folds: Folds = field(init=False)
    scorer: Scorer = field(init=False)
    prepared: Any = field(init=False)  # ``RunFeatures``
    cats: list[str] = field(init=False)  # categorical features
    conts: list[str] = field(init=False)  # numerical features
    train: Rows = field(init=False)
    test: Rows | None = field(init=False)
    counted: torch.Tensor = field(init=False)  # the training rows that are scored
    rules: Sequence[Estimator] = ()  # the recipe's baselines and models, without those left out
    models: Sequence[Estimator] = ()
    kept_models: KeptModels | None = None  # the cache of trained models
    unseen: Rows | None = None  # some rows that the first fold scores
    # estimator → its predictions; ``stack``, of the fitted stack ``outcome``, is the last
    predictions: dict[str, Predictions] = field(default_factory=dict)
    outcome: Any = field(init=False)
    decision: Decision = field(init=False)  # how predictions become classes, or a ranking's scores chances
    chances: torch.Tensor | None = None  # of the training rows, each calibrated by the other folds
    refitted: bool = False  # test rows are predicted by models of all training rows
    # feature → how much the best base model's score drops if its values are shuffled
    permutation: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # model → why it is not in the run
    # of a blend: model → the run or the file that its predictions are from
    blended: dict[str, str] = field(default_factory=dict)
    part: Path = field(init=False)  # the folder that becomes the run directory when it is complete
    _events: dict[bool, ListEvents] = field(default_factory=dict, repr=False)

    @property
    def place_of_scores(self) -> dict[str, float]:
        """The position column, if it is a feature, and the place that rows are scored at; else empty."""
        recipe = self.recipe
        if not recipe.position or recipe.position_as != "feature":
            return {}
        return {recipe.position: float(self.found.train[recipe.position].number().min())}

    def events(self, *, labelled: bool) -> ListEvents | None:
        """Return the events before the lists of the training or the test rows; None: the recipe names no events."""
        if self.recipe.events is None:
            return None
        if labelled not in self._events:
            candidates = self.found.train if labelled else self.found.test
            self._events[labelled] = self.recipe.events.of(candidates, self.recipe.list_column, self.found.tables)
        return self._events[labelled]

    def known_test(self) -> Rows | None:
        """Return the test rows with labels, if the truth is known."""
        truth = self.found.truth
        if self.test is None or truth is None:
            return None
        if isinstance(truth, torch.Tensor):  # of a ranking, of a blend
            return replace(self.test, label=truth)
        label = self.target.encode(truth if isinstance(truth, Table) else Table.read(truth))
        return Rows(self.test.table, self.train.task, label=label, n_outputs=self.train.n_outputs)

    @property
    def refits(self) -> bool:
        """Whether models of all training rows predict the test rows."""
        recipe = self.recipe
        return recipe.time is not None and self.test is not None if recipe.refit is None else recipe.refit
