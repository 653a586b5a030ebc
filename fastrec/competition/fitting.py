"""The fitting steps of a run over tables: features, cross-fitted models, refit, stack, permutation, decision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from fastrec._version import __version__
from fastrec.competition.recipe import choose_columns, not_learned_from
from fastrec.competition.resumable import KeptModels, RunFeatures
from fastrec.competition.run_record import TableRun
from fastrec.competition.scoring import Decision, Scorer
from fastrec.competition.train_models import cross_fit_all, cross_fit_in_time
from fastrec.errors import DataError, OutOfTimeError, warn
from fastrec.estimators import ConstantModel, Estimator
from fastrec.estimators._on_ranks import wanted_ranks
from fastrec.features._engine.chain import step_by_step
from fastrec.features._engine.digests import NoDigestError, class_digest, columns_digest, digest
from fastrec.stacking.stack import refuse_same_names
from fastrec.validate import Rows, Trained


def permutation_importance(
    model: Estimator, rows: Rows, scorer: Scorer, *, seed: int = 0, most_rows: int = 4_000, most: int = 40
) -> dict[str, float]:
    """Measure the drop of a score if one feature's values are shuffled among rows (Breiman 2001, section 10).

    The labelled ``rows`` are unseen by the model; about ``most_rows`` are used (whole lists), and ``most`` features,
    those of the highest gain if the model reports gains.
    """
    rows = _some(rows, most_rows)
    gains = model.trace.importance
    names = sorted(rows.names, key=lambda n: -gains.get(n, 0.0))[:most]
    sign = 1.0 if scorer.metric.greater_is_better else -1.0
    one = torch.zeros(len(rows), dtype=torch.int64)  # thresholds of classes are fitted on other parts of these rows
    whole = scorer(rows, model.predict(rows), folds=one)
    draw, made = torch.Generator().manual_seed(seed), {}
    for name in names:
        order = torch.randperm(len(rows), generator=draw).to(rows.table.device)
        shuffled = rows.table.with_columns({name: rows.table[name].take(order)})
        made[name] = sign * (whole - scorer(rows, model.predict(rows.with_table(shuffled)), folds=one))
    return made


def _some(rows: Rows, most: int) -> Rows:
    if len(rows) <= most:
        return rows
    if rows.task != "ranking":
        return rows.take(torch.linspace(0, len(rows) - 1, most).long())
    return rows.take((rows.groups <= rows.groups[most - 1]).nonzero().squeeze(1))


def make_features(run: TableRun) -> None:
    """Compute the features of all rows and choose the columns that models see."""
    recipe, target = run.recipe, run.target
    known = None if target is None else target.known(run.found.train)
    if known is not None and not bool(known.all()):
        absent = ~known
        warn(
            f"{recipe.name}: {int(absent.sum())} training rows have no target (the first is row "
            f"{int(absent.nonzero()[0])}); they are left out"
        )
        kept = known.nonzero().squeeze(1).to(run.found.train.device)
        run.found = replace(run.found, train=run.found.train.take(kept))
    run.scorer = Scorer.of(recipe.metric, target)
    run.folds = recipe.folds(run.found, target)
    labels = [recipe.label] if target is None else target.names
    rows = len(run.found.train) + (0 if run.found.test is None else len(run.found.test))
    with run.stages.stage("features", rows) as advance:
        run.prepared = RunFeatures(recipe, run.found, run.folds, labels, run.parts, run.split)
        with step_by_step(advance, rows, run.prepared.passes):
            train, test = run.prepared.fit()
    run.cats, run.conts = choose_columns(recipe, run.found, target, run.prepared.outputs)
    inputs = [] if run.prepared.features is None else run.prepared.features.fit_inputs
    unused = not_learned_from(recipe, run.found, target, [*run.cats, *run.conts, *inputs])
    if unused:
        more = f" and {len(unused) - 12} more" if len(unused) > 12 else ""
        run.stages.say(f"not learned from: {', '.join(unused[:12])}{more}")
    run.train = run.rows_of(train, labelled=True)
    run.scorer.check(run.train.label)
    run.test = None if test is None else run.rows_of(test, labelled=False)
    counted = torch.ones(len(train), dtype=torch.bool)
    if recipe.counted:
        counted = run.train.table[recipe.counted].integer().cpu() > 0
    run.counted = counted & run.folds.scored


def fit_models(run: TableRun) -> None:
    """Cross-fit rules and models on the folds, refit them on all rows if the recipe refits, and fit the stack."""
    recipe = run.recipe
    rules, models = list(recipe.baselines()), list(recipe.models(bs=run.bs))
    run.scorer.suit([*rules, *models])
    for model in (*rules, *models):
        model.check_task(run.train)
        if model.reads_events and recipe.events is None:
            problem = f"{recipe.name}: the model {model.name} reads the events before a list, and the recipe names none"
            raise DataError(problem, remedy="Write events = EventsBefore('log', session=…, order=[…], item=…)")
    # Checked before hours of training, not after.
    refuse_same_names(recipe.stack().blends([m.name for m in models], run.train, run.scorer.for_choosing()))
    keys = _model_keys(run, [*rules, *models]) if run.parts is not None and run.prepared.digest else None
    store = None if keys is None else KeptModels(run.parts, keys)
    if run.budget is None:
        run.predictions = cross_fit_all(run, [*rules, *models], store)
    else:
        run.left_out = run.budget.left_out
        run.predictions = cross_fit_in_time(run, rules, models, store)
    # Without those that were left out.
    rules, models = ([m for m in part if m.name in run.predictions] for part in (rules, models))
    # After the folds, which score the models: models of all rows only predict the test.
    if run.refits:
        _refit(run, [*rules, *models], store)
    train = run.train
    with run.stages.stage("stack", len(train)) as advance:
        constant = next((r for r in rules if isinstance(r, ConstantModel)), None) if run.target is not None else None
        test = run.test if run.test is not None else train.take(torch.zeros(len(train), dtype=torch.bool))
        options = {"metric": run.scorer.metric, "counted": run.counted, "seed": run.seed, "restore": run.scorer.restore}
        options["constant"] = None if constant is None else run.predictions[constant.name]
        options |= {} if run.budget is None else {"late": lambda: run.budget.late}
        base = [run.predictions[m.name] for m in models]
        run.outcome = recipe.stack().fit(base, train, run.folds, test, **options)
        run.predictions["stack"] = run.outcome.predictions
        advance(len(train))


def permute(run: TableRun) -> None:
    """Measure the permutation importance of the best base model's features on the rows that its fold scores."""
    if run.refitted:  # a model of all rows has no unseen rows to be scored on
        return
    with run.stages.stage("permutation") as advance:
        rows = run.rows_of(run.prepared.fold(0)[1], labelled=True, scored=True)
        model = run.predictions[run.outcome.best_base].models[0]
        limit = {} if run.budget is None else {"most_rows": run.budget.rows_in_time(rows, model)}
        if limit.get("most_rows") != 0:
            run.permutation = permutation_importance(model, rows, run.scorer, seed=run.seed, **limit)
        advance(len(rows))


def decide(run: TableRun) -> None:
    """Fit the conversion of out-of-fold predictions to classes, or of a ranking's scores to probabilities."""
    oof, how = run.predictions["stack"].oof, run.recipe.calibrate
    if run.target is not None or how is None:
        run.decision = Decision.learn(run.scorer, run.train.label, oof)
        return
    counted = run.counted & ~oof.isnan()
    run.decision = Decision.calibrated(how, run.train.label[counted], oof[counted])
    # Each fold by the others, for the report.
    run.chances = torch.full_like(oof, torch.nan)
    for _, rows in run.folds:
        inside = torch.zeros_like(counted)
        inside[rows] = True
        others = counted & ~inside
        run.chances[inside] = Decision.calibrated(how, run.train.label[others], oof[others]).chances(oof[inside])


def _refit(run: TableRun, models: Sequence[Estimator], store: KeptModels | None) -> None:
    run.refitted = True
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
