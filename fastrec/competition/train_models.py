"""The models of a run, cross-fitted: all fold by fold, or one after the other in a limit of time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.competition.first_fold import FirstFold
from fastrec.competition.live_scores import LiveScores
from fastrec.competition.parts import KeptModels
from fastrec.competition.table_record import TableRun
from fastrec.errors import DataError, OutOfTimeError
from fastrec.estimators import Estimator
from fastrec.validate import CrossFit, Predictions


def cross_fit_all(run: TableRun, models: Sequence[Estimator], store: KeptModels | None) -> dict[str, Predictions]:
    """Cross-fit all models, fold by fold.

    Args:
        run: the run.
        models: rules and models.
        store: caches trained models; None: nothing is cached.
    """
    total = sum(m.learns for m in models) * sum(len(outside) for outside, _ in run.folds)
    cross = _cross_fit(run, models, store)
    with run.stages.stage("models", total) as advance:
        cross.advance, cross.watch, cross.left_out = advance, LiveScores(run, run.stages), run.left_out
        for k in range(len(run.folds)):
            before = set(run.left_out)
            _Fold(run, cross.models, k, store).fit(cross)
            for name in run.left_out.keys() - before:
                run.stages.say(f"left out: {run.left_out[name]}")
    return cross.finish()


def cross_fit_in_time(
    run: TableRun, rules: Sequence[Estimator], models: Sequence[Estimator], store: KeptModels | None
) -> dict[str, Predictions]:
    """Cross-fit model by model, each in its share of the budget; a model that exceeds it is left out.

    Args:
        run: the run, with its budget.
        rules: estimators without parameters.
        models: models to train, the best first.
        store: caches trained models; None: nothing is cached.
    """
    done: dict[str, Predictions] = {}
    budget, folds, fits = run.budget, len(run.folds), len(run.folds) + run.refits
    total = len(models) * sum(len(outside) for outside, _ in run.folds)
    rows = len(run.train) + (0 if run.test is None else len(run.test))
    budget.keep_for_end(rows, run.train.n_scores, len(models))
    watch, first = LiveScores(run, run.stages), FirstFold(run)

    def note(name: str, fold: int, oof: torch.Tensor) -> None:
        watch(name, fold, oof)
        first.note(name, fold, oof)

    with run.stages.stage("models", total) as advance:
        if rules:
            cross = _cross_fit(run, rules, store)
            cross.watch = first.note
            for k in range(folds):
                _Fold(run, rules, k, store).fit(cross)
            done |= cross.finish()
        for i, model in enumerate(models):
            needed = not any(m.name in done for m in models)
            cross = _cross_fit(run, [model], store)
            cross.advance, cross.watch = advance, note
            ends = budget.clock() + budget.share(models[i:])  # with a refit, which comes after all models
            beside = 0.0
            try:
                for k in range(folds):
                    about, began = {"fold": k, "folds": fits, "needed": needed}, budget.clock()
                    limit = budget.begin(model, ends=ends, beside=beside, **about)  # before rows are made for nothing
                    fold = _Fold(run, [model], k, store)
                    if k == 0:  # the time that rows take is only known for later folds
                        limit = budget.begin(model, ends=ends, **about)
                    cross.time_limit = limit
                    fold.fit(cross)
                    del fold  # frees its rows before the next fold's are made
                    took = budget.clock() - began
                    beside = max(took - (took if limit is None else limit), 0.0)
                    budget.check(model, took=took, **about)
                    if k == 0 and not needed:
                        first.check(model, rules, done)
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


def _cross_fit(run: TableRun, models: Sequence[Estimator], store: KeptModels | None) -> CrossFit:
    cross = CrossFit(
        models,
        len(run.train),
        0 if run.test is None else len(run.test),
        seed=run.seed,
        device=run.device,
        scored=run.folds.scored,
        repeated=run.folds.is_repeated,
        store=store,
    )
    cross.cold_folds = run.recipe.cold_folds
    return cross


class _Fold:
    """Fold ``k``'s rows to learn from and to predict, and unlabelled ones if a model wants them."""

    def __init__(self, run: TableRun, models: Sequence[Estimator], k: int, store: KeptModels | None) -> None:
        self.run, self.k = run, k
        # If all of the fold's models are cached, its rows are not made.
        self.cached = store is not None and all(store.has(m.name, k) for m in models)
        if not self.cached:
            self.pair = [run.rows_of(t, labelled=True) for t in run.prepared.fold(k)]
            wanted = run.test is not None and any(m.wants_unlabeled for m in models)
            self.unlabeled = run.rows_of(run.prepared.unlabeled(k), labelled=False) if wanted else None

    def fit(self, cross: CrossFit) -> None:
        outside, inside = self.run.folds[self.k]
        if self.cached:
            cross.fold(None, None, inside, self.run.test, train_rows=outside)
            self.run.prepared.still_used(self.k)
        else:
            cross.fold(*self.pair, inside, self.run.test, train_rows=outside, unlabeled=self.unlabeled)
