"""The models of a run, cross-fitted: all fold by fold, or one after the other in a limit of time."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from threading import Lock

import torch
from rich.table import Table as RichTable

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec._core.threads import on_free_threads
from fastrec.competition.resumable import KeptModels
from fastrec.competition.run_record import TableRun
from fastrec.errors import DataError, FastrecError, OutOfTimeError
from fastrec.estimators import ConstantModel, Estimator
from fastrec.metrics import Metric
from fastrec.validate import CrossFit, Predictions


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


def cross_fit_all(run: TableRun, models: Sequence[Estimator], store: KeptModels | None) -> dict[str, Predictions]:
    """Cross-fit all rules and models, fold by fold; ``store`` caches trained models."""
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
    """Cross-fit model by model, the best first, each in its share of the budget; drop one that exceeds it."""
    done: dict[str, Predictions] = {}
    budget, folds, fits = run.budget, len(run.folds), len(run.folds) + run.refits
    total = len(models) * sum(len(outside) for outside, _ in run.folds)
    rows = len(run.train) + (0 if run.test is None else len(run.test))
    watch = LiveScores(run, run.stages)
    with run.stages.stage("models", total) as advance:
        if rules:
            cross = _cross_fit(run, rules, store)
            cross.watch = watch.note_first
            for k in range(folds):
                _Fold(run, rules, k, store).fit(cross)
            done |= cross.finish()
        for i, model in enumerate(models):
            needed = not any(m.name in done for m in models)
            budget.keep_for_end(rows, run.train.n_scores, len(models), watch.seconds())
            cross = _cross_fit(run, [model], store)
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
                        fold = _Fold(run, [model], k, store)
                        if k == 0:  # only later folds know the time that rows take
                            limit = budget.begin(model, ends=ends, **about)
                        cross.time_limit, last = limit, limit or 0.0
                        fold.fit(cross)
                        del fold  # frees its rows before the next fold's are computed
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


def _cross_fit(run: TableRun, models: Sequence[Estimator], store: KeptModels | None) -> CrossFit:
    options = {"seed": run.seed, "device": run.device, "store": store}
    options |= {"scored": run.folds.scored, "repeated": run.folds.is_repeated}
    cross = CrossFit(models, len(run.train), 0 if run.test is None else len(run.test), **options)
    cross.cold_folds = run.recipe.cold_folds
    return cross


class _Fold:
    def __init__(self, run: TableRun, models: Sequence[Estimator], k: int, store: KeptModels | None) -> None:
        self.run, self.k = run, k
        # If all of the fold's models are cached, its rows are not needed.
        self.cached = store is not None and all(store.has(m.name, k) for m in models)
        if not self.cached:
            learned, scored = run.prepared.fold(k)
            self.pair = [run.rows_of(learned, labelled=True), run.rows_of(scored, labelled=True, scored=True)]
            wanted = run.test is not None and any(m.wants_unlabeled for m in models)
            self.unlabeled = run.rows_of(run.prepared.unlabeled(k), labelled=False) if wanted else None

    def fit(self, cross: CrossFit) -> None:
        outside, inside = self.run.folds[self.k]
        if self.cached:
            cross.fold(None, None, inside, self.run.test, train_rows=outside)
            self.run.prepared.still_used(self.k)
        else:
            cross.fold(*self.pair, inside, self.run.test, train_rows=outside, unlabeled=self.unlabeled)
