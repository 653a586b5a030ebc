"""``SavedRecipe``: a run's recipe as its directory knows it, to be carried out again on other rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from fastrec.competition.data import CompetitionData
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.predict import SavedRun
from fastrec.competition.recipe import Competition
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, MissingFileError
from fastrec.estimators import Estimator
from fastrec.features import FeatureSet
from fastrec.metrics import Metric
from fastrec.stacking import Stack, StackModel
from fastrec.table import Table, concat
from fastrec.validate import Folds, Rows, Target


class SameBlend(Stack):
    """The kind of blend that a stack has chosen, where the base models are the same; else it is chosen anew.

    Args:
        chosen: the stack.
    """

    def __init__(self, chosen: StackModel) -> None:
        super().__init__(extra=chosen.extra)
        self.chosen = chosen

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        """Return that blend alone, unfitted."""
        blend = self.chosen.blends[0].fresh()
        asked, had = set(models), set(self.chosen.models)
        constant = had - asked if data.task != "ranking" else set()  # it joins the models where it is of use
        same = asked | constant == had and len(constant) < 2 and blend.name not in constant
        return [blend] if same else super().blends(models, data, metric)


class SavedRecipe(Competition):
    """What a run learned from and with: its features, models and columns, without the recipe's code.

    The second level is the blend that the run has chosen, fitted anew; with the recipe itself it is the recipe's.

    Args:
        saved: the run.
        found: the rows.
        folds: how they are validated.
        trust: modules of generators of one's own that may be imported.
        warm: models that can begin with what the run's have learned.
        cold_folds: folds whose rows the run has learned from: their models begin from nothing all the same, lest the
            second level take what they know by heart for skill.
        recipe: the recipe where its code is at hand: its features, models and stack are taken, not the run's.
    """

    refit = True

    def __init__(
        self,
        saved: SavedRun,
        found: CompetitionData,
        folds: Folds,
        *,
        trust: Sequence[str] = (),
        warm: bool = False,
        cold_folds: Collection[int] = (),
        recipe: Competition | None = None,
    ) -> None:
        self.saved, self.found, self._folds = saved, found, folds
        self._trust, self._warm, self._recipe = tuple(trust), warm, recipe
        self.cold_folds = tuple(cold_folds)
        self.asked: list[str] = []  # models that learn
        self.warmed: list[str] = []  # those that can begin with what the run's have learned
        config = saved.config
        self.name, self.task, self.metric = config["competition"], saved.task, config["metric"]
        self.ids, self.history = tuple(config.get("ids", ())), bool(config["history"])
        self.reading, self.events = saved.reading, saved.events
        self.submission: SubmissionFormat | ValueForm | None = saved.form
        for name, value in config.get("recipe", {}).items():
            setattr(self, name, value)
        if saved.target is None:
            self.list_column, self.item, self.label = (config[n] for n in ("list_column", "item", "label"))
        if recipe is not None:
            self.metric = recipe.metric or self.metric

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        """Return the given rows."""
        return self.found

    def find_target(self, train: Table) -> Target | None:
        """Return the run's target; a multiclass one with the known classes and new ones."""
        known = self.saved.target
        if known is None:
            return None
        positive = known.classes.values[1].as_py() if known.task == "binary" and known.classes is not None else None
        if known.task == "multiclass" and known.classes is not None:  # a window may lack a class
            own = Table({known.names[0]: known.classes.values.to_pylist()}).to(train.device)
            train = concat([train.select(known.names), own])
        found = Target.fit(train, known.names, known.task, positive=positive, scale=known.scale)
        self._grow_form(known, found)
        return found

    def _grow_form(self, known: Target, found: Target) -> None:
        """Let a submission with a column for each class have one for each that has joined.

        Raises:
            DataError: its columns have names of their own.
        """
        form = self.submission
        joined = [n for n in found.outputs if n not in known.outputs]
        if not joined or not isinstance(form, ValueForm) or len(form.values) < 2:
            return
        if list(form.values) != known.outputs:
            raise DataError(
                f"the new rows have classes that the run did not know ({', '.join(joined)}), and the columns of its "
                f"submission ({', '.join(form.values)}) have names of their own", column=found.names[0],
                remedy="Leave these rows out, or run the recipe with a form of its own for all classes",
            )  # fmt: skip
        self.submission = replace(form, values=tuple(found.outputs))

    def features(self) -> FeatureSet | None:
        """Return the run's features, unfitted."""
        if self._recipe is not None:
            return self._recipe.features()
        state = self.saved.folder / "features"
        return FeatureSet.load(state, trust=self._trust) if state.is_dir() else None

    @property
    def categories(self) -> Sequence[str]:
        """The columns that the run's models see as categories."""
        return self.saved.cats if self._recipe is None else self._recipe.categories

    @property
    def plain(self) -> Sequence[str]:
        """The columns of the files that they see as numbers."""
        if self._recipe is not None:
            return self._recipe.plain
        made = set() if self.saved.features is None else set(self.saved.features.outputs)
        return [n for n in self.saved.conts if n not in made]

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        """Return the given folds."""
        return self._folds

    def baselines(self) -> Sequence[Estimator]:
        """Return the run's rules."""
        return [m.fresh() for m in self._trained if not m.learns] if self._recipe is None else self._recipe.baselines()

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        """Return the run's models, untrained; warm ones continue from what they have learned."""
        known = {m.name: m for m in self._trained if m.learns}
        asked = [m.fresh() for m in known.values()] if self._recipe is None else list(self._recipe.models(bs=bs))
        self.asked = [m.name for m in asked]
        Scorer.of(self.metric, self.saved.target).suit(asked)
        if self._warm:
            self.warmed = [m.name for m in asked if m.name in known and m.start_from(known[m.name])]
        return asked

    def stack(self) -> Stack:
        """Return the second level: the kind of blend that the run has chosen."""
        return SameBlend(self.saved.stack) if self._recipe is None else self._recipe.stack()

    @cached_property
    def _trained(self) -> list[Estimator]:
        """The run's models, of all rows or of its first fold."""
        made = []
        for name in self.saved.names:
            folder = self.saved.folder / "models" / name / "fold0"
            if not folder.is_dir():
                raise MissingFileError("the model is not there", file=folder, remedy="Give a complete run directory")
            made.append(Estimator.load(folder))
        return made
