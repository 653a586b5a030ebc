"""``tune_run``: search the settings of one of a run's models, by its score on the run's frozen folds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.imports import require
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, UnreadableFileError
from fastrec.estimators import Estimator
from fastrec.features._engine.digests import digest
from fastrec.table import Table
from fastrec.trials.reference import RunColumns, columns_named_by, scorer_of
from fastrec.tuning.spaces import Dim, as_line, has_space, is_tree, space_of, with_settings

_OWN = "own"  # marks the trial of the run's settings


@dataclass(frozen=True)
class Tuned:
    """A trial."""

    number: int | None  #: of the trial; None: the run's settings
    settings: dict[str, float]  #: setting → value; empty for the run's settings
    score: float  #: the metric out of fold; of a pruned trial on the folds that it was trained on
    folds: int  #: number of folds that it was trained on
    pruned: bool  #: whether it was stopped, as other trials were ahead after as many folds
    line: str  #: the model as a line of a recipe


@dataclass(frozen=True)
class TuneResult:
    """Trials of a search."""

    model: str  #: the model's name
    metric: str  #: the metric that trials are compared by
    greater_is_better: bool  #: whether a higher metric is better
    trials: list[Tuned]  #: all trials of this and earlier searches, the best first, pruned ones last
    new: int  #: number of trials of this search
    storage: Path  #: the file that the next search continues from

    @property
    def best(self) -> Tuned:
        """The best trial; it may be the run's settings."""
        return self.trials[0]

    @property
    def own(self) -> Tuned:
        """The trial of the run's settings."""
        return next(t for t in self.trials if t.number is None)


class _OutOfTime(Exception):
    pass


def tune_run(
    run: str | Path,
    *,
    minutes: float,
    model: str | None = None,
    data: str | Path | None = None,
    device: DeviceLike = "auto",
    stages: Stages | None = None,
) -> TuneResult:
    """Search for better settings of one of a run's models, and store the trials in ``RUN.tune.db`` beside the run.

    Every trial is trained on the run's folds with its seeds, and scored out of fold by its metric. After each fold a
    trial behind the median of the others is stopped (Optuna's ``MedianPruner`` and ``TPESampler``). A second search
    continues the first. The best of many trials is optimistic, and so is its run: only rows kept apart can check it.

    Args:
        run: the run directory; it was made by ``fastrec run``, or ``run_competition(…, resume=True)``.
        minutes: how long; a fold that has begun is finished.
        model: the run's model; None: the best trees out of fold, or the best net if the run has no trees.
        data: the folder of the run's data, to check that they are the files of the run; None: no check.
        device: where to train.
        stages: progress; None: shown on standard error.

    Raises:
        MissingPackageError: Optuna is not installed.
        MissingFileError, UnreadableFileError: the run's parts, or the file of trials, cannot be read.
        DataError: the run has no such model, it cannot be tuned, or there was no time for one trial.
    """
    optuna = require("optuna", "Optuna", "pip install 'fastrec-tabular[tune]'")
    if not minutes > 0:
        raise DataError(f"{minutes:g} minutes are no time to search in", remedy="Give a number above 0")
    until, stages = time.monotonic() + 60 * minutes, stages or Stages()
    kept = KeptRows(run)
    if data is not None:
        kept.check_data(data)
    scorer = scorer_of(kept)
    metric = scorer.metric
    chosen = _model_of(kept, metric.greater_is_better, model)
    columns = RunColumns(kept, beside=columns_named_by(chosen, kept))
    dims = space_of(chosen, next(columns.folds())[0].take())
    search = _Search(columns, scorer, chosen, dims, resolve_device(device), until, stages)
    storage = kept.run.absolute().with_name(f"{kept.run.absolute().name}.tune.db")
    with _study(optuna, storage, search) as study, stages.stage("tune", unit="folds") as advance:
        search.advance = advance
        before = _finished(study)
        own = next((t for t in before if _OWN in t.user_attrs), None)
        seconds = own.user_attrs["seconds"] if own is not None else _add_own(optuna, study, search)
        # at least, as trials that fall behind are stopped early
        left = max(until - time.monotonic(), 0.0)
        stages.say(f"  one trial took {seconds:.1f} s: at least {int(left / seconds)} fit in {left / 60:.1f} minutes")
        while time.monotonic() < until:
            _try(optuna, study, search)
        finished = _finished(study)
    trials = []
    for t in finished:
        is_own, pruned, settings = _OWN in t.user_attrs, t.state.name == "PRUNED", dict(t.user_attrs["settings"])
        steps, line = t.intermediate_values, as_line(chosen if is_own else with_settings(chosen, dims, settings))
        score = steps[max(steps)] if t.value is None or pruned else t.value
        trials.append(Tuned(None if is_own else t.number, settings, score, len(steps), pruned, line))
    sign = -1 if metric.greater_is_better else 1
    # pruned ones last: their scores are of fewer folds
    trials.sort(key=lambda t: (t.pruned, -t.folds if t.pruned else 0, sign * t.score))
    return TuneResult(chosen.name, metric.name, metric.greater_is_better, trials, len(finished) - len(before), storage)


@dataclass
class _Search:
    columns: RunColumns
    scorer: Scorer
    model: Estimator
    dims: tuple[Dim, ...]
    device: torch.device
    until: float
    stages: Stages
    advance: Any = None

    @property
    def name(self) -> str:
        # trials of other rows, folds, settings or versions belong to another study
        kept = self.columns.kept
        parts = [__version__, kept.name, kept.folds.digest, self.scorer.name, str(self.dims), as_line(self.model)]
        return f"{self.model.name}-{digest(*parts)[:16]}"

    def scores(self, model: Estimator) -> Iterator[float]:
        """Train a model on one fold after the other, until time is up, and yield the metric over the folds so far."""
        kept = self.columns.kept
        total, times = None, torch.zeros(len(kept))
        rows = kept.rows(Table({"row": torch.arange(len(kept))}))  # labels and groups, to score by
        for k, (train, valid) in enumerate(self.columns.folds()):
            if time.monotonic() > self.until:
                raise _OutOfTime
            fitted = model.fresh().fit(train.take(), None, seed=kept.seed + k, device=self.device)
            predicted = fitted.predict(valid.take())
            if total is None:
                total = torch.zeros((len(kept), *predicted.shape[1:]), dtype=torch.float64)
            total[valid.rows] += predicted
            times[valid.rows] += 1
            self.advance(1)
            oof = total / times.reshape(-1, *[1] * (total.dim() - 1))
            yield self.scorer(rows, oof, (times > 0) & kept.scored, folds=kept.folds.last_codes)


def _model_of(kept: KeptRows, greater_is_better: bool, name: str | None) -> Estimator:
    names = list(kept.config["models"])
    if name is not None and name not in names:
        raise DataError(f"the run has no model {name!r}", file=kept.run, remedy=f"It has {', '.join(names)}")
    models = [Estimator.load(kept.run / "models" / n / "fold0").fresh() for n in names]
    tunable = [m for m in models if has_space(m)]
    if not tunable:
        problem = f"the run has no model that can be tuned: it has {', '.join(names)}"
        remedy = "Add XGBoost, LightGBM, CatBoost or a net to the recipe's models and run it again"
        raise DataError(problem, file=kept.run, remedy=remedy)
    if name is None:
        scores = json.loads((kept.run / "scores.json").read_text(encoding="utf-8"))["oof"]
        sign = 1 if greater_is_better else -1
        return max(tunable, key=lambda m: (is_tree(m), sign * scores[m.name]))
    chosen = models[names.index(name)]
    if not has_space(chosen):
        problem = f"model {name!r} ({type(chosen).__name__}) cannot be tuned: no search space is defined for it"
        raise DataError(problem, file=kept.run, remedy=f"Use --model with one of {', '.join(m.name for m in tunable)}")
    return chosen


@contextmanager
def _study(optuna: Any, path: Path, search: _Search) -> Iterator[Any]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    except Exception as error:  # SQLAlchemy's, SQLite's and Optuna's classes
        problem = f"it is no file of trials ({str(error).splitlines()[0]})"
        raise UnreadableFileError(problem, file=path, remedy="Delete it to begin anew") from error
    try:
        study = optuna.create_study(
            storage=storage, study_name=search.name, load_if_exists=True, pruner=optuna.pruners.MedianPruner(),
            direction="maximize" if search.scorer.metric.greater_is_better else "minimize",
        )  # fmt: skip
        # the seed counts the trials, so that a continued search does not repeat earlier draws
        seed = search.columns.kept.seed + len(study.get_trials(deepcopy=False))
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        yield study
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _finished(study: Any) -> list[Any]:
    # trials that ran out of time, or whose process was killed, have no score
    return [t for t in study.get_trials(deepcopy=False) if t.state.name in ("COMPLETE", "PRUNED")]


def _add_own(optuna: Any, study: Any, search: _Search) -> float:
    """Score the run's settings as a trial, for comparison; return the seconds that it took."""
    began = time.monotonic()
    try:
        scores = list(search.scores(search.model))
    except _OutOfTime:
        remedy = "Give more minutes, or a lighter --model"
        raise DataError("there was no time to train the model once", remedy=remedy) from None
    seconds = time.monotonic() - began
    about = {_OWN: True, "settings": {}, "seconds": seconds}
    steps = dict(enumerate(scores))
    study.add_trial(optuna.trial.create_trial(value=scores[-1], intermediate_values=steps, user_attrs=about))
    search.stages.say(f"  the run's settings: {search.scorer.name} {scores[-1]:.5f}")
    return seconds


def _try(optuna: Any, study: Any, search: _Search) -> None:
    """Run one trial and tell the study its score, that it was pruned, or that it ran out of time."""
    trial, states = study.ask(), optuna.trial.TrialState
    settings = {d.name: d.suggest(trial) for d in search.dims}
    trial.set_user_attr("settings", settings)
    best, score = study.best_value, float("nan")
    try:
        for k, score in enumerate(search.scores(with_settings(search.model, search.dims, settings))):
            trial.report(score, k)
            if trial.should_prune():
                study.tell(trial, state=states.PRUNED)
                return
    except _OutOfTime:
        study.tell(trial, state=states.FAIL)
        study.enqueue_trial(trial.params)  # the next search begins with it
        return
    study.tell(trial, score)
    if score > best if search.scorer.metric.greater_is_better else score < best:
        search.stages.say(f"  trial {trial.number}: {search.scorer.name} {score:.5f}, the best so far")
