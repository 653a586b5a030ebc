"""The steps that train a run's models: their inputs, cross-fitting (fold by fold, or in a limit of time), refit."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from rich.table import Table as RichTable

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec._core.threads import on_free_threads
from fastrec._version import __version__
from fastrec.competition.reading import CompetitionData
from fastrec.competition.recipe import Competition
from fastrec.competition.resumable import KeptModels
from fastrec.competition.run_record import TableRun, shown_first
from fastrec.competition.scoring import click_weights, examination, some_rows
from fastrec.errors import DataError, FastrecError, OutOfTimeError
from fastrec.estimators import ConstantModel, Estimator
from fastrec.estimators._on_ranks import wanted_ranks
from fastrec.features._engine.digests import NoDigestError, class_digest, columns_digest, digest
from fastrec.metrics import Metric
from fastrec.stacking.stack import refuse_same_names
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, Predictions, Rows, Target, Trained

_INDEX = "__index_level_"  # prefix of the columns in which pandas stores a frame's index


def choose_inputs(run: TableRun) -> None:
    """Choose the columns that models see, and give the rows to estimators."""
    recipe, found, prepared = run.recipe, run.found, run.prepared
    run.cats, run.conts = choose_columns(recipe, found, run.target, prepared.outputs)
    inputs = [] if prepared.features is None else prepared.features.fit_inputs
    known = {*run.cats, *run.conts, *inputs, *_roles(recipe, run.target)}
    unused = [n for n in found.train.names if n not in known and not n.startswith(_INDEX)]
    if unused:
        more = f" and {len(unused) - 12} more" if len(unused) > 12 else ""
        run.stages.say(f"not learned from: {', '.join(unused[:12])}{more}")
    if lacking := [n for n in unused if found.test is not None and n not in found.test]:
        run.stages.say(f"the test rows lack {', '.join(lacking[:12])}")
    run.train = _as_rows(run, prepared.train, labelled=True)
    run.scorer.check(run.train.label)
    run.test = None if prepared.test is None else _as_rows(run, prepared.test, labelled=False)
    counted = torch.ones(len(run.train), dtype=torch.bool)
    if recipe.counted:
        counted = run.train.table[recipe.counted].number().cpu() > 0
    run.counted = counted & run.folds.scored
    rules, models = list(recipe.baselines()), list(recipe.models(bs=run.bs))
    run.scorer.suit([*rules, *models])
    for model in (*rules, *models):
        model.check_task(run.train)
        if model.reads_events and recipe.events is None:
            problem = f"{recipe.name}: the model {model.name} reads the events before a list, and the recipe names none"
            raise DataError(problem, remedy="Write events = EventsBefore('log', session=…, order=[…], item=…)")
    # Checked before hours of training, not after.
    refuse_same_names(recipe.stack().blends([m.name for m in models], run.train, run.scorer.for_choosing()))
    run.rules, run.models = rules, models


def choose_columns(
    recipe: Competition, found: CompetitionData, target: Target | None, made: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Choose the categories and the numbers that models see: those of the files, then of the features ``made``.

    By default they are all columns of the files that the test rows have.
    """
    apart = {*_roles(recipe, target), recipe.item} if target is None else _roles(recipe, target)
    own: dict[str, list[str]] = {"category": [], "number": []}
    for name in found.train.names:
        if name in apart or name.startswith(_INDEX) or (found.test is not None and name not in found.test):
            continue
        column = found.train[name].plain()
        is_flag = column.kind == "number" and column.values.dtype == torch.bool
        own.setdefault("category" if is_flag else column.kind, []).append(name)
    cats = own["category"] if recipe.categories is None else list(recipe.categories)
    plain = own["number"] if recipe.plain is None else list(recipe.plain)
    place = [recipe.position] if recipe.position and recipe.position_as == "feature" else []
    conts = [n for n in dict.fromkeys([*plain, *made, *place]) if n not in set(cats)]
    if not cats and not conts:
        problem = f"{recipe.name}: no column is left to learn from"
        raise DataError(problem, remedy="Name columns in the recipe, or make features")
    return cats, conts


def _roles(recipe: Competition, target: Target | None) -> set[str | None]:
    if target is not None:
        return {*recipe.ids, *recipe.drop, recipe.weight, recipe.fold_key, *target.names}
    session = None if recipe.events is None else recipe.events.session
    own = {recipe.list_column, recipe.label, recipe.counted, recipe.position, session}
    return {*recipe.ids, *recipe.drop, recipe.weight, recipe.fold_key, *own}


def _as_rows(run: TableRun, table: Table, *, labelled: bool, scored: bool = False) -> Rows:
    """Return a table as estimators take it; ``scored``: its labels are for scoring only."""
    recipe = run.recipe
    weight = table[recipe.weight].number().cpu() if recipe.weight and labelled else None
    groups = table[recipe.list_column].group_numbers().cpu() if run.target is None else None
    if recipe.position and labelled and recipe.position_as == "weights":  # by the examination of their clicks' places
        place, label = (table[n].number().cpu() for n in (recipe.position, recipe.label))
        examined = examination(table[recipe.item].coded().codes.cpu(), place, label)
        by_place = click_weights(groups, place, label, examined)
        weight = by_place if weight is None else weight * by_place
    if scored or not labelled:
        table = shown_first(table, run.place_of_scores)
    order = table[recipe.time].number().cpu() if recipe.time and recipe.time in table else None
    columns = {"cats": run.cats, "conts": run.conts, "weight": weight, "order": order}
    if run.target is None:
        label = table[recipe.label].number().cpu() if labelled else None
        return Lists(table, groups, label=label, events=run.events(labelled=labelled), **columns)
    key = recipe.fold_key
    return Rows(
        table,
        run.target.task,
        label=run.target.encode(table) if labelled else None,
        groups=table[key].coded().codes.cpu().long() if key and key in table else None,
        n_outputs=run.target.n_outputs,
        **columns,
    )


def fit_models(run: TableRun) -> None:
    """Cross-fit rules and models: all fold by fold, or one after the other in a limit of time."""
    both = [*run.rules, *run.models]
    keys = _model_keys(run, both) if run.parts is not None and run.prepared.digest else None
    run.kept_models = None if keys is None else KeptModels(run.parts, keys)
    if run.budget is not None:
        run.left_out = run.budget.left_out
        run.predictions = _cross_fit_in_time(run)
    else:
        cross = _cross_fit(run, both)
        total = sum(m.learns for m in both) * sum(len(outside) for outside, _ in run.folds)
        with run.stages.stage("models", total) as advance:
            cross.advance, cross.watch, cross.left_out = advance, LiveScores(run, run.stages), run.left_out
            for k in range(len(run.folds)):
                before = set(run.left_out)
                _train_fold(run, cross, k, _rows_of_fold(run, cross.models, k))
                for name in run.left_out.keys() - before:
                    run.stages.say(f"left out: {run.left_out[name]}")
        run.predictions = cross.finish()
    run.rules, run.models = ([m for m in part if m.name in run.predictions] for part in (run.rules, run.models))


def _cross_fit_in_time(run: TableRun) -> dict[str, Predictions]:
    """Cross-fit model by model, the best first, each in its share of the budget; drop one that exceeds it."""
    rules, models, done = run.rules, run.models, {}
    budget, folds, fits = run.budget, len(run.folds), len(run.folds) + run.refits
    total = len(models) * sum(len(outside) for outside, _ in run.folds)
    rows = len(run.train) + (0 if run.test is None else len(run.test))
    watch = LiveScores(run, run.stages)
    with run.stages.stage("models", total) as advance:
        if rules:
            cross = _cross_fit(run, rules)
            cross.watch = watch.note_first
            for k in range(folds):
                _train_fold(run, cross, k, _rows_of_fold(run, rules, k))
            done |= cross.finish()
        for i, model in enumerate(models):
            needed = not any(m.name in done for m in models)
            budget.keep_for_end(rows, run.train.n_scores, len(models), watch.seconds())
            cross = _cross_fit(run, [model])
            cross.advance, cross.watch = advance, watch
            ends = budget.clock() + budget.share(models[i:])  # includes the refit, which follows all models
            beside = last = 0.0
            try:
                budget.check_memory(model, run.train)
                with on_free_threads(budget.threads):
                    for k in range(folds):
                        about, began = {"fold": k, "folds": fits, "needed": needed}, budget.clock()
                        # before rows are computed in vain
                        limit = budget.begin(model, ends=ends, beside=beside, before=last, **about)
                        fold_rows = _rows_of_fold(run, [model], k)
                        if k == 0:  # only later folds know the time that rows take
                            limit = budget.begin(model, ends=ends, **about)
                        cross.time_limit, last = limit, limit or 0.0
                        _train_fold(run, cross, k, fold_rows)
                        del fold_rows  # before the next fold's are computed
                        took = budget.clock() - began
                        beside = max(took - (took if limit is None else limit), 0.0)
                        budget.check(model, took=took, **about)
                        if k == 0 and not needed:
                            watch.check(model, rules, done)
            except (OutOfTimeError, DataError) as error:
                if needed and i + 1 == len(models):
                    raise
                budget.left_out[model.name] = error.problem
                run.stages.say(f"left out: {error.problem}")
                continue
            done |= cross.finish()
            if run.refits:
                budget.keep_for_refit(model, took * len(run.train) / max(len(run.folds[-1][0]), 1))
    return done


def _cross_fit(run: TableRun, models: Sequence[Estimator]) -> CrossFit:
    options = {"seed": run.seed, "device": run.device, "store": run.kept_models}
    options |= {"scored": run.folds.scored, "repeated": run.folds.is_repeated}
    cross = CrossFit(models, len(run.train), 0 if run.test is None else len(run.test), **options)
    cross.cold_folds = run.recipe.cold_folds
    return cross


def _rows_of_fold(run: TableRun, models: Sequence[Estimator], k: int) -> dict[str, Rows] | None:
    """Return a fold's rows with its features; None: all its models are cached."""
    cached = run.kept_models is not None and all(run.kept_models.has(m.name, k) for m in models)
    if cached:
        run.prepared.still_used(k)
        if k or run.refits or run.unseen is not None:
            return None
    learned, scored = run.prepared.fold(k)
    rows = {"valid": _as_rows(run, scored, labelled=True, scored=True)}
    if k == 0:
        run.unseen = some_rows(rows["valid"], limits.PERMUTED_ROWS)
    if cached:
        return None
    rows["train"] = _as_rows(run, learned, labelled=True)
    if run.test is not None and any(m.wants_unlabeled for m in models):
        rows["unlabeled"] = _as_rows(run, run.prepared.unlabeled(k), labelled=False)
    return rows


def _train_fold(run: TableRun, cross: CrossFit, k: int, rows: dict[str, Rows] | None) -> None:
    outside, inside = run.folds[k]
    cross.fold(valid_rows=inside, test=run.test, train_rows=outside, **(rows or {"train": None, "valid": None}))


def refit(run: TableRun) -> None:
    """Train rules and models on all rows, if the recipe refits: they predict the test, and the folds score them."""
    if not run.refits:
        return
    run.refitted, models, store = True, [*run.rules, *run.models], run.kept_models
    with run.stages.stage("refit", len(run.train) * sum(m.learns for m in models)) as advance:
        for i, model in enumerate(models):
            trained = None if store is None else store.find(model.name, len(run.folds))
            if trained is None:
                fresh = model.fresh()
                more = {"unlabeled": run.test} if model.wants_unlabeled and run.test is not None else {}
                try:
                    if run.budget is not None and model.learns:
                        fresh.time_limit = run.budget.refit(models[i:])
                    fitted = fresh.fit(run.train, None, seed=run.seed, device=run.device, **more)
                except (OutOfTimeError, DataError) as error:
                    run.stages.say(f"not refitted: {error.problem}")
                    continue
                test = run.predictions[model.name].test if run.test is None else fitted.predict(run.test)
                trained = Trained(fitted, torch.zeros(0, dtype=torch.float64), test)
                if store is not None:
                    store.keep(model.name, len(run.folds), trained)
            run.predictions[model.name] = replace(
                run.predictions[model.name], test=trained.test, models=[trained.model]
            )
            if model.learns:
                advance(len(run.train))


def _model_keys(run: TableRun, models: Sequence[Estimator]) -> dict[str, str] | None:
    """Map each model to a digest of its folds' inputs; None: the rows have no digest."""
    recipe = run.recipe
    columns = (getattr(recipe, n) for n in ("position", "label", "weight", "time", "fold_key", "list_column"))
    names = [n for n in (str(recipe.position_as) if recipe.position else None, *columns) if n]
    minutes, threads = None, torch.get_num_threads()
    if run.budget is not None:
        minutes, threads = run.budget.minutes, run.budget.threads
    about = (__version__, run.prepared.digest, run.cats, run.conts, names, run.seed, run.device.type, str(run.target))
    about = (*about, minutes, *([] if wanted_ranks() == 1 else [f"{wanted_ranks()} ranks"]))
    try:
        rows = columns_digest(run.found.train, run.found.train.names)
    except (NoDigestError, DataError):
        return None
    keys = {}
    for model in models:
        with suppress(NoDigestError, DataError):  # without a digest it is trained in every run
            own = (class_digest(type(model)), str(_settings(model)), *([recipe.events] if model.reads_events else []))
            # Sums on several threads differ in their last bits.
            keys[model.name] = digest(rows, threads, *map(str, about), *own)[:20]
    return keys


def _settings(model: Estimator) -> dict[str, Any]:
    about = {n: v for n, v in vars(model).items() if not n.startswith("_") and n != "trace"}
    inner = {n: (class_digest(type(v)), _settings(v)) for n, v in about.items() if isinstance(v, Estimator)}
    return {"settings": model.settings(), **{n: _text(v) for n, v in sorted(about.items()) if n not in inner}, **inner}


def _text(value: Any) -> str:
    """Return a value's digest, else its ``repr``, unless that has an address, which changes from run to run."""
    try:
        return digest(value)
    except NoDigestError:
        text = repr(value)
        if " at 0x" in text:
            raise
        return text


def score_of(run: TableRun, metric: Metric, rows: torch.Tensor, prediction: torch.Tensor) -> float:
    """Score predictions ``[m]`` or ``[m, k]`` of ``rows`` (numbers, or bool ``[n]``); NaN if the score is undefined."""
    groups = run.train.groups[rows] if run.train.task == "ranking" else None
    own = run.scorer.restore or (lambda values: values)
    try:
        return metric(own(run.train.label[rows]), own(prediction), groups=groups)
    except FastrecError:
        return float("nan")


class LiveScores:
    """The out-of-fold score of each model over its finished folds, and of its first one: ``CrossFit``'s ``watch``.

    A metric of classes, whose thresholds are learned at the end, is replaced by the loss that stacks are chosen by.
    With quiet ``stages``, scores are computed only if there is a time limit.
    """

    def __init__(self, run: TableRun, stages: Stages) -> None:
        self.run, self.stages = run, stages
        self.metric = run.scorer.for_choosing()
        self.scores: dict[str, tuple[float, int]] = {}  # model → score, folds
        self.first: dict[str, float] = {}  # model → score of the first fold, in a limit of time
        self._sums: dict[str, torch.Tensor] = {}
        self._times: dict[str, torch.Tensor] = {}
        self._lock = Lock()  # trees are trained while nets are
        self._last = time.perf_counter()

    def __call__(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """Note a model's predictions of a fold's rows, float64 ``[m]`` or ``[m, k]``, and show its score."""
        if self.run.budget is not None:
            self.note_first(name, fold, oof)
        if self.stages.quiet:
            return
        with self._lock:
            folds = self.scores.get(name, (0.0, 0))[1] + 1
            self.scores[name] = self._score(name, fold, oof), folds
            self.stages.below = self.table()
            now, total = time.perf_counter(), len(self.run.folds)
            # A log gets a line for each model's last fold, and at most one in ten seconds for others.
            if not self.stages.has_bars and (folds >= total or now - self._last >= limits.PLAIN_EVERY):
                self._last = now
                done = f"{self.scores[name][0]:.5f} after {folds} of {total} folds"
                self.stages.say(f"  {name}: {self.metric.name} {done}")

    def _score(self, name: str, fold: int, oof: torch.Tensor) -> float:
        inside, n = self.run.folds[fold][1].cpu(), len(self.run.train)
        sums = self._sums.setdefault(name, torch.zeros((n, *oof.shape[1:]), dtype=torch.float64))
        times = self._times.setdefault(name, torch.zeros(n))
        level = self.metric.wants == "scores" and bool((oof == oof[:1]).all())  # a constant orders nothing
        sums[inside] += torch.zeros_like(oof) if level else oof
        times[inside] += 1
        known = self.run.counted & (times > 0)
        mean = sums[known] / times[known].reshape(-1, *[1] * (sums.dim() - 1))
        return score_of(self.run, self.metric, known, mean)

    def note_first(self, name: str, fold: int, oof: torch.Tensor) -> None:
        """Note the score of the first fold without showing it."""
        if fold:
            return
        rows = self.run.folds[0][1].cpu()
        counted = self.run.counted[rows]
        score = score_of(self.run, self.metric, rows[counted], oof[counted.to(oof.device)])
        if not math.isnan(score):
            self.first[name] = score

    def table(self) -> RichTable:
        """Return the models so far, the best first."""
        table = RichTable("model", f"{self.metric.name}, out of fold", "folds", box=None)
        sign = -1 if self.metric.greater_is_better else 1
        for name, (score, folds) in sorted(self.scores.items(), key=lambda s: (s[1][0] != s[1][0], sign * s[1][0])):
            table.add_row(name, f"{score:.5f}", f"{folds} of {len(self.run.folds)}")
        return table

    def seconds(self) -> float:
        """Measure the seconds that the metric takes on as many rows as a stack is fitted on."""
        from fastrec.stacking.stack import rows_of_a_blend

        n, k = len(self.run.train), self.run.train.n_scores
        rows = self.run.counted.nonzero().squeeze(1).cpu()[: rows_of_a_blend(k)]
        drawn = torch.rand((n, k) if k > 1 else n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        drawn = drawn / drawn.sum(1, keepdim=True) if self.run.train.task == "multiclass" else drawn
        began = time.perf_counter()
        score_of(self.run, self.metric, rows, drawn[rows])
        return time.perf_counter() - began

    def check(self, model: Estimator, rules: Collection[Estimator], done: Collection[str]) -> None:
        """Refuse a model that is far behind, if there is a constant among ``rules`` and another model ``done``.

        A model is dropped if its gain over the constant in the first fold is less than half of the best model's. No
        stack would use it, and the other folds would take four fifths of its time.
        """
        constant = next((r.name for r in rules if isinstance(r, ConstantModel)), None)
        learned = [n for n in done if n not in {r.name for r in rules} and n in self.first]
        if constant not in self.first or model.name not in self.first or not learned:
            return
        sign = 1 if self.metric.greater_is_better else -1
        best = max(learned, key=lambda name: sign * self.first[name])
        score, most, least = (self.first[n] for n in (model.name, best, constant))
        if sign * (most - least) > 0 and sign * (score - least) < 0.5 * sign * (most - least):
            raise OutOfTimeError(
                f"{model.name}: in the first fold its {self.metric.name} is {score:.5g}, that of {best} {most:.5g}, of "
                f"a constant {least:.5g}"
            )
