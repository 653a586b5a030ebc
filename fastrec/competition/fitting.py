"""A run's models: every estimator cross-fitted on frozen folds, and the stack of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastrec import __version__
from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.columns import choose_columns, not_learned_from
from fastrec.competition.data import CompetitionData
from fastrec.competition.parts import KeptModels, Parts
from fastrec.competition.permute import permutation_importance
from fastrec.competition.prepare import Prepared
from fastrec.competition.recipe import Competition
from fastrec.competition.scoring import Decision, Scorer
from fastrec.competition.submit import Form
from fastrec.competition.train_models import cross_fit_all, cross_fit_in_time
from fastrec.errors import DataError, DataWarning, OutOfTimeError
from fastrec.estimators import ConstantModel, Estimator
from fastrec.estimators._on_ranks import wanted_ranks
from fastrec.features._engine.counting import step_by_step
from fastrec.features._engine.digests import NoDigestError, class_digest, columns_digest, digest
from fastrec.stacking.choose import refuse_same_names
from fastrec.table import Table
from fastrec.validate import Folds, ListEvents, Lists, Predictions, Rows, Target, Trained

_SHOWN = 12  # names of columns in a line


@dataclass
class Fitted:
    """Everything that a run has learned, before it is written.

    Attributes:
        train, test: rows with features and, where they are known, labels; test rows carry no label.
        predictions: estimator → its predictions; ``stack`` is the last.
        tried: second-level candidate → out-of-fold score.
        stack: the second level as it was fitted.
        form: the form of the submission.
        decision: how classes are made of predictions.
        permutation: feature → by how much the best base model's score is worse where its values are shuffled.
        refitted: test rows were predicted by models of all training rows.
        left_out: model → why it is not in the run.
    """

    recipe: Competition
    found: CompetitionData
    folds: Folds
    target: Target | None
    scorer: Scorer
    prepared: Prepared
    cats: list[str]
    conts: list[str]
    train: Rows
    test: Rows | None
    counted: torch.Tensor
    predictions: dict[str, Predictions] = field(default_factory=dict)
    tried: dict[str, float] = field(default_factory=dict)
    stack: Any = None
    form: Form | None = None
    decision: Decision = field(default_factory=Decision)
    refitted: bool = False
    permutation: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _events: dict[bool, ListEvents] = field(default_factory=dict)

    def rows(self, table: Table, *, labelled: bool) -> Rows:
        """A table as estimators take it."""
        recipe = self.recipe
        weight = table[recipe.weight].number().cpu() if recipe.weight and labelled else None
        order = table[recipe.time].number().cpu() if recipe.time and recipe.time in table else None
        if self.target is None:
            label = table[recipe.label].number().cpu() if labelled and recipe.label in table else None
            groups = table[recipe.list_column].integer().cpu()
            columns = {"cats": self.cats, "conts": self.conts, "events": self.events(labelled=labelled)}
            return Lists(table, groups, label=label, weight=weight, order=order, **columns)
        key = recipe.fold_key
        return Rows(
            table,
            self.target.task,
            cats=self.cats,
            conts=self.conts,
            label=self.target.encode(table) if labelled else None,
            weight=weight,
            groups=table[key].coded().codes.cpu().long() if key and key in table else None,
            order=order,
            n_outputs=self.target.n_outputs,
        )

    def events(self, *, labelled: bool) -> ListEvents | None:
        """What was before the lists of the training rows, or of the test rows; None: the recipe names no events."""
        asked, found = self.recipe.events, self.found
        if asked is None:
            return None
        if labelled not in self._events:
            candidates = found.train if labelled else found.test
            self._events[labelled] = asked.of(candidates, self.recipe.list_column, found.tables)
        return self._events[labelled]


def fit_recipe(
    recipe: Competition,
    found: CompetitionData,
    target: Target | None,
    *,
    device: torch.device,
    seed: int,
    bs: int | None,
    stages: Stages,
    parts: Parts | None,
    budget: Budget | None = None,
    split: Callable[[Table | None], Any] | None = None,
) -> Fitted:
    """Features, base models and stack of a recipe.

    Args:
        recipe: the recipe.
        found: its rows; the test's do not show their target.
        target: what is predicted; None in a ranking task.
        device: where to train.
        seed: of everything random.
        bs: the nets' batch size; None: the recipe's.
        stages: progress.
        parts: where finished parts are kept; None: nowhere.
        budget: the time that the run may take; None: as much as it takes.
        split: what makes partitions of a table, on which a cluster's workers make the features; None: all is done here.

    Raises:
        FastrecError: the data do not fit the recipe, or a model cannot learn from them.
    """
    if target is not None:
        found = _with_targets(recipe, found, target)
    scorer = Scorer.of(recipe.metric, target)
    folds = recipe.folds(found, target)
    labels = [recipe.label] if target is None else target.names
    rows = len(found.train) + (0 if found.test is None else len(found.test))
    with stages.stage("features", rows) as advance:
        prepared = Prepared(recipe, found, folds, labels, parts, split)
        with step_by_step(advance, rows, prepared.passes):
            train, test = prepared.fit()
    cats, conts = choose_columns(recipe, found, target, prepared.outputs)
    used = [*cats, *conts, *([] if prepared.features is None else prepared.features.fit_inputs)]
    passed_over = not_learned_from(recipe, found, target, used)
    if passed_over:
        more = f" and {len(passed_over) - _SHOWN} more" if len(passed_over) > _SHOWN else ""
        stages.say(f"not learned from: {', '.join(passed_over[:_SHOWN])}{more}")
    made = Fitted(recipe, found, folds, target, scorer, prepared, cats, conts, None, None, None)
    made.train = made.rows(train, labelled=True)
    scorer.check(made.train.label)
    made.test = None if test is None else made.rows(test, labelled=False)
    made.counted = _counted(recipe, made.train) & folds.scored
    _fit_models(made, device=device, seed=seed, bs=bs, stages=stages, parts=parts, budget=budget)
    made.decision = Decision.learn(scorer, made.train.label, made.predictions["stack"].oof)
    return made


def _fit_models(
    made: Fitted,
    *,
    device: torch.device,
    seed: int,
    bs: int | None,
    stages: Stages,
    parts: Parts | None,
    budget: Budget | None,
) -> None:
    recipe, folds, train = made.recipe, made.folds, made.train
    rules, models = list(recipe.baselines()), list(recipe.models(bs=bs))
    made.scorer.suit([*rules, *models])
    for model in (*rules, *models):
        model.check_task(train)
        _check_events(recipe, model)
    # Found before hours of training, not after.
    refuse_same_names(recipe.stack().blends([m.name for m in models], train, made.scorer.for_choosing()))
    minutes = None if budget is None else budget.minutes
    keys = _keys(made, [*rules, *models], seed, device, minutes) if parts is not None and made.prepared.digest else None
    store = None if keys is None else parts.models(keys)
    if budget is None:
        made.predictions = cross_fit_all(made, [*rules, *models], device, seed, stages, store)
    else:
        made.left_out = budget.left_out
        limits = {"budget": budget, "refits": _refits(made)}
        made.predictions = cross_fit_in_time(made, rules, models, device, seed, stages, store, **limits)
    rules, models = ([m for m in part if m.name in made.predictions] for part in (rules, models))
    if _refits(made):
        _refit(made, [*rules, *models], device=device, seed=seed, store=store, stages=stages, budget=budget)
    with stages.stage("stack", len(train)) as advance:
        base = [made.predictions[m.name] for m in models]
        constant = next((r for r in rules if isinstance(r, ConstantModel)), None) if made.target is not None else None
        test = made.test if made.test is not None else train.take(torch.zeros(len(train), dtype=torch.bool))
        stack = recipe.stack()
        outcome = stack.fit(
            base,
            train,
            folds,
            test,
            metric=made.scorer.metric,
            counted=made.counted,
            seed=seed,
            restore=made.scorer.restore,
            constant=None if constant is None else made.predictions[constant.name],
        )
        made.predictions["stack"], made.stack, made.tried = outcome.predictions, outcome, outcome.tried
        advance(len(train))
    if not made.refitted:
        with stages.stage("permutation") as advance:
            rows = made.rows(made.prepared.fold(0)[1], labelled=True)
            model = made.predictions[made.stack.best_base].models[0]
            limit = {} if budget is None else {"most_rows": budget.rows_in_time(rows, model)}
            if limit.get("most_rows") != 0:
                made.permutation = permutation_importance(model, rows, made.scorer, seed=seed, **limit)
            advance(len(rows))


def _check_events(recipe: Competition, model: Estimator) -> None:
    if model.reads_events and recipe.events is None:
        raise DataError(
            f"{recipe.name}: the model {model.name} reads the events before a list, and the recipe names none",
            remedy="Write events = EventsBefore('log', session=…, order=[…], item=…)",
        )


def _refits(made: Fitted) -> bool:
    """Whether there are models of all training rows, which predict the test rows."""
    recipe = made.recipe
    return recipe.time is not None and made.test is not None if recipe.refit is None else recipe.refit


def _with_targets(recipe: Competition, found: CompetitionData, target: Target) -> CompetitionData:
    """The data without training rows whose target is missing: they are named, and nothing is learned from them."""
    known = target.known(found.train)
    if bool(known.all()):
        return found
    absent = ~known
    warnings.warn(
        f"{recipe.name}: {int(absent.sum())} training rows have no target (the first is row "
        f"{int(absent.nonzero()[0])}); they are left out",
        DataWarning,
        stacklevel=2,
    )
    rows = known.nonzero().squeeze(1).to(found.train.device)
    return replace(found, train=found.train.take(rows))


def _refit(
    made: Fitted,
    models: Sequence[Estimator],
    *,
    device: torch.device,
    seed: int,
    store: KeptModels | None,
    stages: Stages,
    budget: Budget | None = None,
) -> None:
    """Models of all training rows predict the test rows, in place of the mean of the folds' models."""
    made.refitted = True
    with stages.stage("refit", len(made.train) * sum(m.learns for m in models)) as advance:
        for i, model in enumerate(models):
            found = None if store is None else store.find(model.name, len(made.folds))
            if found is None:
                fresh = model.fresh()
                more = {"unlabeled": made.test} if model.wants_unlabeled and made.test is not None else {}
                try:
                    if budget is not None and model.learns:
                        fresh.time_limit = budget.refit(models[i:])
                    fitted = fresh.fit(made.train, None, seed=seed, device=device, **more)
                except (OutOfTimeError, DataError) as error:
                    stages.say(f"not refitted: {error.problem}")
                    continue
                test = made.predictions[model.name].test if made.test is None else fitted.predict(made.test)
                found = Trained(fitted, torch.zeros(0, dtype=torch.float64), test)
                if store is not None:
                    store.keep(model.name, len(made.folds), found)
            one = made.predictions[model.name]
            made.predictions[model.name] = replace(one, test=found.test, models=[found.model])
            if model.learns:
                advance(len(made.train))


def _counted(recipe: Competition, train: Rows) -> torch.Tensor:
    column = recipe.counted
    return train.table[column].integer().cpu() > 0 if column else torch.ones(len(train), dtype=torch.bool)


def _keys(
    made: Fitted, models: Sequence[Estimator], seed: int, device: torch.device, minutes: float | None
) -> dict[str, str] | None:
    """Model → a digest of all that its folds' models are made from, where there is one; None: the rows have none."""
    recipe = made.recipe
    used = [n for n in (recipe.label, recipe.weight, recipe.time, recipe.fold_key, recipe.list_column) if n]
    about = (__version__, made.prepared.digest, made.cats, made.conts, used, seed, device.type, str(made.target))
    about = (*about, minutes, *([] if wanted_ranks() == 1 else [f"{wanted_ranks()} ranks"]))
    try:
        rows = columns_digest(made.found.train, made.found.train.names)
    except (NoDigestError, DataError):
        return None
    keys = {}
    for model in models:
        with suppress(NoDigestError, DataError):  # it is trained every time, and the others are kept
            own = (class_digest(type(model)), str(_settings(model)), *([recipe.events] if model.reads_events else []))
            keys[model.name] = digest(rows, torch.get_num_threads(), *map(str, about), *own)[:20]
    return keys


def _settings(model: Estimator) -> dict[str, Any]:
    """What a model, and one that it holds, is made with; a net's architecture says it apart."""
    about = {n: v for n, v in vars(model).items() if not n.startswith("_") and n != "trace"}
    inner = {n: (class_digest(type(v)), _settings(v)) for n, v in about.items() if isinstance(v, Estimator)}
    return {"settings": model.settings(), **{n: _said(v) for n, v in sorted(about.items()) if n not in inner}, **inner}


def _said(value: Any) -> str:
    """A value's digest, which is the same in another process; its ``repr`` where it has none and says no address.

    Raises:
        NoDigestError: it has neither.
    """
    try:
        return digest(value)
    except NoDigestError:
        said = repr(value)
        if " at 0x" in said:
            raise
        return said
