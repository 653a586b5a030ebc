"""The models of a run, cross-fitted: all fold by fold, or one after the other in a limit of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.first_fold import FirstFold
from fastrec.competition.live_scores import LiveScores
from fastrec.competition.parts import KeptModels
from fastrec.errors import DataError, OutOfTimeError
from fastrec.estimators import Estimator
from fastrec.validate import CrossFit, Predictions, Rows

if TYPE_CHECKING:
    from fastrec.competition.fitting import Fitted


def cross_fit_all(
    made: Fitted,
    models: Sequence[Estimator],
    device: torch.device,
    seed: int,
    stages: Stages,
    store: KeptModels | None,
) -> dict[str, Predictions]:
    """All models, fold by fold.

    Args:
        made: the run's rows and folds.
        models: what to train.
        device: where to train.
        seed: of everything random.
        stages: progress.
        store: keeps what is trained; None: nothing does.
    """
    total = sum(m.learns for m in models) * sum(len(outside) for outside, _ in made.folds)
    cross = _crossing(made, models, device, seed, store)
    with stages.stage("models", total) as advance:
        cross.advance, cross.watch, cross.left_out = advance, LiveScores(made, stages), made.left_out
        for k in range(len(made.folds)):
            said = set(made.left_out)
            _fit_fold(made, cross, k, _rows_of_fold(made, cross.models, k, store))
            for name in made.left_out.keys() - said:
                stages.say(f"left out: {made.left_out[name]}")
    return cross.finish()


def cross_fit_in_time(
    made: Fitted,
    rules: Sequence[Estimator],
    models: Sequence[Estimator],
    device: torch.device,
    seed: int,
    stages: Stages,
    store: KeptModels | None,
    budget: Budget,
    *,
    refits: bool,
) -> dict[str, Predictions]:
    """Model by model, each in its share of the time; one that does not fit into it is left out.

    Args:
        made: the run's rows and folds.
        rules: what there is nothing to train of.
        models: what to train, the best first.
        device: where to train.
        seed: of everything random.
        stages: progress.
        store: keeps what is trained; None: nothing does.
        budget: the time.
        refits: there will be a model of all rows, too, of each.
    """
    done: dict[str, Predictions] = {}
    folds, fits = len(made.folds), len(made.folds) + refits
    total = len(models) * sum(len(outside) for outside, _ in made.folds)
    budget.keep_for_end(
        len(made.train) + (0 if made.test is None else len(made.test)), made.train.n_scores, len(models)
    )
    watch, first = LiveScores(made, stages), FirstFold(made)

    def note(name: str, fold: int, oof: torch.Tensor) -> None:
        watch(name, fold, oof)
        first.note(name, fold, oof)

    with stages.stage("models", total) as advance:
        if rules:
            cross = _crossing(made, rules, device, seed, store)
            cross.watch = first.note
            for k in range(folds):
                _fit_fold(made, cross, k, _rows_of_fold(made, rules, k, store))
            done |= cross.finish()
        for i, model in enumerate(models):
            needed = not any(m.name in done for m in models)
            cross = _crossing(made, [model], device, seed, store)
            cross.advance, cross.watch = advance, note
            ends = budget.clock() + budget.share(models[i:])  # of a refit too, which comes when all are done
            beside = 0.0
            try:
                for k in range(folds):
                    about, began = {"fold": k, "folds": fits, "needed": needed}, budget.clock()
                    limit = budget.begin(model, ends=ends, beside=beside, **about)  # before rows are made for nothing
                    rows = _rows_of_fold(made, [model], k, store)
                    if k == 0:  # what rows take is known of the later ones
                        limit = budget.begin(model, ends=ends, **about)
                    cross.time_limit = limit
                    _fit_fold(made, cross, k, rows)
                    del rows  # while the next fold's are made
                    took = budget.clock() - began
                    beside = max(took - (took if limit is None else limit), 0.0)
                    budget.check(model, took=took, **about)
                    if k == 0 and not needed:
                        first.check(model, rules, done)
            except (OutOfTimeError, DataError) as error:
                if needed and i + 1 == len(models):
                    raise
                budget.left_out[model.name] = error.problem
                stages.say(f"left out: {error.problem}")
                continue
            done |= cross.finish()
            if refits:
                budget.keep_for_refit(model, took * len(made.train) / max(len(made.folds[-1][0]), 1))
    return done


def _crossing(
    made: Fitted, models: Sequence[Estimator], device: torch.device, seed: int, store: KeptModels | None
) -> CrossFit:
    crossing = CrossFit(
        models,
        len(made.train),
        0 if made.test is None else len(made.test),
        seed=seed,
        device=device,
        scored=made.folds.scored,
        repeated=made.folds.is_repeated,
        store=store,
    )
    crossing.cold_folds = made.recipe.cold_folds
    return crossing


_FoldRows = tuple[list[Rows], Rows | None]


def _rows_of_fold(made: Fitted, models: Sequence[Estimator], k: int, store: KeptModels | None) -> _FoldRows | None:
    """Fold ``k``'s rows to learn from and to predict, and such without targets; None: its models are all kept."""
    if store is not None and all(store.has(m.name, k) for m in models):
        return None
    return [made.rows(t, labelled=True) for t in made.prepared.fold(k)], _unlabeled(made, models, k)


def _fit_fold(made: Fitted, cross: CrossFit, k: int, rows: _FoldRows | None) -> None:
    outside, inside = made.folds[k]
    if rows is None:
        cross.fold(None, None, inside, made.test, train_rows=outside)
        made.prepared.still_used(k)
        return
    pair, more = rows
    cross.fold(*pair, inside, made.test, train_rows=outside, unlabeled=more)


def _unlabeled(made: Fitted, models: Sequence[Estimator], k: int) -> Rows | None:
    """The test rows as fold ``k``'s models may learn from them, where one wants them."""
    if made.test is None or not any(m.wants_unlabeled for m in models):
        return None
    return made.rows(made.prepared.unlabeled(k), labelled=False)
