"""The steps after the training: stack, permutation importance, decision, scores, explained rows."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.atomic import write_json
from fastrec.competition.explain import background_rows
from fastrec.competition.predict import SavedRun
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


def explain(run: TableRun) -> None:
    """Write the contributions to some predictions from low to high, if rows have a target and time is left.

    They are of the first fold's models: all folds' would take as many times as long.
    """
    if run.target is None:
        return
    budget, seconds, made = run.budget, limits.EXPLAINED_SECONDS, []
    if budget is not None:  # half of the remaining time, as for a permutation
        seconds = min(seconds, (budget.began + 60 * budget.minutes - budget.clock()) / 2)
    if seconds <= 0:
        return
    ends = time.monotonic() + seconds
    chosen = background_rows(run.predictions["stack"].oof, limits.EXPLAINED_ROWS)
    rows, count = run.found.train.take(chosen), len(chosen)
    # The lowest, the middle and the highest first, in case time runs out.
    order = sorted(range(count), key=lambda i: (i not in (0, count // 2, count - 1), 7 * i % count))
    with run.stages.stage("explain"):
        try:
            saved = SavedRun(run.part)
            of = run.target.names[0] if len(run.target.names) > 1 else None
            few, took = rows.slice(order[0], order[0] + 1), []
            for size in (1, 8):  # the time grows with the background rows
                began = time.monotonic()
                saved.explain(few, of=of, tables=run.found.tables, fold=0, background=size)
                took.append(time.monotonic() - began)
            if 3 * (took[0] + max(took[1] - took[0], 0) / 7 * len(saved.background())) > ends - time.monotonic():
                return
            for i in order:
                if len(made) > 2 and time.monotonic() > ends:
                    break
                made.append(saved.explain(rows.slice(i, i + 1), of=of, tables=run.found.tables, fold=0))
        except Exception as error:  # custom code, features of other rows: an error here must not cost the run
            run.stages.say(f"not explained: {error}")
            return
    found, names = pd.concat(made), list(made[0].columns[: len(saved.inputs)])
    about = {n: found[e].tolist() for n, e in zip(("base", "prediction", "class"), found.columns[len(names) :])}

    def text(value: Any) -> str:
        shown = f"{value:.4g}" if isinstance(value, float) else str(value).removesuffix(" 00:00:00")
        return "missing" if value is None else shown

    values = rows.take(torch.tensor(order[: len(made)])).select(names).to_arrow().to_pylist()
    about |= {"columns": names, "values": [list(map(text, row.values())) for row in values]}
    about |= {"background": len(saved.background()), "contributions": found[names].to_numpy().tolist()}
    write_json(run.part / "explanation.json", about)
