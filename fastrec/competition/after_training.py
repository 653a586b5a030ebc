"""The steps after the training: stack, permutation importance, decision, scores."""

from __future__ import annotations

import torch

from fastrec.competition.run_record import TableRun
from fastrec.competition.scoring import Decision, Scorer, permutation_importance
from fastrec.estimators import ConstantModel


def fit_stack(run: TableRun) -> None:
    """Blend the models' predictions; the folds that choose a blend do not score it."""
    train = run.train
    with run.stages.stage("stack", len(train)) as advance:
        constants = [r.name for r in run.rules if isinstance(r, ConstantModel) and run.target is not None]
        test = run.test if run.test is not None else train.take(torch.zeros(len(train), dtype=torch.bool))
        options = {"metric": run.scorer.metric, "counted": run.counted, "seed": run.seed, "restore": run.scorer.restore}
        options["constant"] = run.predictions[constants[0]] if constants else None
        options |= {} if run.budget is None else {"late": lambda: run.budget.late}
        base = [run.predictions[n] for n in run.predictions if n not in {r.name for r in run.rules}]
        run.outcome = run.recipe.stack().fit(base, train, run.folds, test, **options)
        run.predictions["stack"] = run.outcome.predictions
        advance(len(train))


def permute(run: TableRun) -> None:
    """Measure the permutation importance of the best base model's features on some rows that its fold scores."""
    if run.refitted:  # a model of all rows has no unseen rows to be scored on
        return
    rows, model = run.unseen, run.predictions[run.outcome.best_base].models[0]
    with run.stages.stage("permutation") as advance:
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


def score(run: TableRun) -> None:
    """Score every model out of fold, and on the test if its truth is known."""
    names, truth, ranking = list(run.predictions), run.known_test(), run.target is None
    decided = run.decision if run.scorer.wants_classes and run.train.task != "multiclass" else None
    rows: dict[str, int] = {}
    for split, some in {"train": run.train, "test": run.test}.items():
        rows[f"{split} {'candidates' if ranking else 'rows'}"] = 0 if some is None else len(some)
        if ranking:
            rows[f"{split} lists"] = 0 if some is None else len(torch.unique(some.groups))
    also = [Scorer.of(name, run.target) for name in run.recipe.also]
    test = {} if truth is None else {n: run.scorer(truth, run.predictions[n].test, decision=decided) for n in names}
    outcome, better = run.outcome, run.scorer.metric.greater_is_better
    run.scores = {"metric": run.scorer.name, "greater_is_better": better, "task": run.train.task, "models": test} | {
        "oof": {n: _oof_score(run, run.scorer, n) for n in names},
        "also": {scorer.name: {n: _oof_score(run, scorer, n) for n in names} for scorer in also},
        "oracle": run.found.oracle,
        "stack_tried": outcome.tried,
        "stack_choice": {"chosen": outcome.chosen, "of_folds": outcome.choices},
        "intervals": {n: list(i) for n, i in outcome.scores.items()},
        "stack_over_best": None if outcome.difference is None else list(outcome.difference),
        "transductive": run.prepared.transductive,
        "rows": {**rows, "features": len(run.cats) + len(run.conts)},
    }


def _oof_score(run: TableRun, scorer: Scorer, name: str) -> float:
    one = run.predictions[name]
    oof = one.oof
    if scorer.metric.wants == "scores" and one.models and isinstance(one.models[0], ConstantModel):
        oof = torch.zeros_like(oof)  # the folds' different constants are no order
    return scorer(run.train, oof, run.counted, folds=run.folds.last_codes)
