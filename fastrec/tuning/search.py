"""``tune_run``: a search for the settings of one of a run's models, by its score on the run's frozen folds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastrec import __version__
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.optional import require
from fastrec._core.progress import Stages
from fastrec.errors import DataError, UnreadableFileError
from fastrec.estimators import Estimator
from fastrec.features._engine.digests import digest
from fastrec.tuning.fold_rows import FoldRows
from fastrec.tuning.spaces import Dim, as_line, has_space, is_tree, space_of, with_settings

_OWN = "own"  # marks the trial of the run's own settings


@dataclass(frozen=True)
class Tuned:
    """A trial.

    Args:
        number: which one; None: the run's own settings.
        settings: setting → value; of the run's own settings none.
        score: the metric out of fold; of a pruned trial on the folds that it has seen.
        folds: how many folds it has seen.
        pruned: it was given up, as other trials were ahead after as many folds.
        line: the model as a line of a recipe.
    """

    number: int | None
    settings: dict[str, float]
    score: float
    folds: int
    pruned: bool
    line: str


@dataclass(frozen=True)
class TuneResult:
    """What a search has found.

    Args:
        model: the model's name.
        metric: what is searched by.
        greater_is_better: whether more of it is better.
        trials: all trials of this and earlier searches, the best first, pruned ones last.
        new: how many trials this search has made.
        storage: the file that the next search goes on from.
    """

    model: str
    metric: str
    greater_is_better: bool
    trials: list[Tuned]
    new: int
    storage: Path

    @property
    def best(self) -> Tuned:
        """The best trial; it may be the run's own settings."""
        return self.trials[0]

    @property
    def own(self) -> Tuned:
        """The run's own settings."""
        return next(t for t in self.trials if t.number is None)


class _OutOfTime(Exception):
    """The search has no time for another fold."""


def tune_run(
    run: str | Path,
    *,
    minutes: float,
    model: str | None = None,
    data: str | Path | None = None,
    device: DeviceLike = "auto",
    stages: Stages | None = None,
) -> TuneResult:
    """Search for better settings of one of a run's models, and keep what was tried in ``RUN.tune.db`` beside the run.

    Every trial is trained on the run's frozen folds with the run's seeds, and scored out of fold by the run's metric;
    test rows are not looked at. After each fold a trial that is behind the median of the others is given up (Optuna's
    ``MedianPruner``; settings by its ``TPESampler``). A second search goes on from the first. The best of many trials
    is flattered: a run with its settings says what they are worth in the stack.

    Args:
        run: the run directory; it was made by ``fastrec run``, or ``run_competition(…, resume=True)``.
        minutes: how long; a fold that has begun is finished.
        model: the run's model; None: of its trees the best out of fold, and where it has none the best net.
        data: the folder of the run's data, to be held against what the run has read; None: it is not looked at.
        device: where to train.
        stages: progress; None: shown on standard error.

    Returns:
        The trials, best first.

    Raises:
        MissingPackageError: Optuna is not installed.
        MissingFileError, UnreadableFileError: the run's parts, or the file of trials, cannot be read.
        DataError: the run has no such model, nothing is known of its settings, or there was no time for one trial.
    """
    optuna = require("optuna", "Optuna", "pip install 'fastrec-tabular[tune]'")
    if not minutes > 0:
        raise DataError(f"{minutes:g} minutes are no time to search in", remedy="Give a number above 0")
    until, stages = time.monotonic() + 60 * minutes, stages or Stages()
    rows = FoldRows(run)
    if data is not None:
        rows.kept.check_data(data)
    chosen = _model_of(rows, model)
    dims = space_of(chosen, next(iter(rows))[0])
    search = _Search(rows, chosen, dims, resolve_device(device), until, stages)
    storage = rows.kept.run.absolute().with_name(f"{rows.kept.run.absolute().name}.tune.db")
    with _study(optuna, storage, search) as study, stages.stage("tune", unit="folds") as advance:
        search.advance = advance
        before = _finished(study)
        if not any(_OWN in t.user_attrs for t in before):
            _add_own(optuna, study, search)
        while time.monotonic() < until:
            _try(optuna, study, search)
        found = _finished(study)
    trials = [_tuned(t, search) for t in found]
    metric = rows.scorer.metric
    sign = -1 if metric.greater_is_better else 1
    trials.sort(key=lambda t: (t.pruned, -t.folds if t.pruned else 0, sign * t.score))
    return TuneResult(chosen.name, metric.name, metric.greater_is_better, trials, len(found) - len(before), storage)


@dataclass
class _Search:
    """What every trial needs."""

    rows: FoldRows
    model: Estimator
    dims: tuple[Dim, ...]
    device: torch.device
    until: float
    stages: Stages
    advance: Any = None

    @property
    def name(self) -> str:
        """Of the study: trials of other rows, folds, settings or versions are not of it."""
        said = [__version__, self.rows.kept.name, self.rows.kept.folds.digest, self.rows.scorer.name, str(self.dims)]
        return f"{self.model.name}-{digest(*said, as_line(self.model))[:16]}"

    def scores(self, model: Estimator) -> Iterator[float]:
        """Train a model on one fold after the other: the metric out of fold over the folds so far.

        Raises:
            _OutOfTime: the time is up before a fold.
        """
        kept = self.rows.kept
        total, times = None, torch.zeros(len(kept))
        for k, (train, scored, inside) in enumerate(self.rows):
            if time.monotonic() > self.until:
                raise _OutOfTime
            predicted = model.fresh().fit(train, None, seed=kept.seed + k, device=self.device).predict(scored)
            if total is None:
                total = torch.zeros((len(kept), *predicted.shape[1:]), dtype=torch.float64)
            total[inside] += predicted
            times[inside] += 1
            self.advance(1)
            yield self.rows.score(total / times.reshape(-1, *[1] * (total.dim() - 1)), times > 0)


def _model_of(rows: FoldRows, name: str | None) -> Estimator:
    """One of a run's models, untrained."""
    kept = rows.kept
    names = list(kept.config["models"])
    if name is not None and name not in names:
        raise DataError(f"the run has no model {name!r}", file=kept.run, remedy=f"It has {', '.join(names)}")
    if name is not None:
        return Estimator.load(kept.run / "models" / name / "fold0").fresh()
    scores = json.loads((kept.run / "scores.json").read_text(encoding="utf-8"))["oof"]
    sign = 1 if rows.scorer.metric.greater_is_better else -1
    models = [Estimator.load(kept.run / "models" / n / "fold0").fresh() for n in names]
    known = [m for m in models if has_space(m)]
    if not known:
        raise DataError("the run has no model whose settings can be searched", file=kept.run, remedy="Add one")
    return max(known, key=lambda m: (is_tree(m), sign * scores[m.name]))


@contextmanager
def _study(optuna: Any, path: Path, search: _Search) -> Iterator[Any]:
    """The study in its file."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    except Exception as error:  # SQLAlchemy's, SQLite's and Optuna's classes
        raise UnreadableFileError(
            f"it is no file of trials ({str(error).splitlines()[0]})", file=path, remedy="Delete it to begin anew"
        ) from error
    direction = "maximize" if search.rows.scorer.metric.greater_is_better else "minimize"
    with closing(_Engine(storage)):
        study = optuna.create_study(
            storage=storage, study_name=search.name, direction=direction, load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(),
        )  # fmt: skip
        # a search that goes on does not draw again what was drawn
        study.sampler = optuna.samplers.TPESampler(seed=search.rows.kept.seed + len(study.get_trials(deepcopy=False)))
        yield study


@dataclass
class _Engine:
    """A storage whose connections can be closed."""

    storage: Any

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()


def _finished(study: Any) -> list[Any]:
    """Trials that have a score: not those that the clock has cut, or a kill."""
    return [t for t in study.get_trials(deepcopy=False) if t.state.name in ("COMPLETE", "PRUNED")]


def _add_own(optuna: Any, study: Any, search: _Search) -> None:
    """The run's own settings as a trial, for the others to be measured by."""
    try:
        scores = list(search.scores(search.model))
    except _OutOfTime:
        raise DataError(
            "there was no time to train the model once", remedy="Give more minutes, or a lighter --model"
        ) from None
    steps = dict(enumerate(scores))
    study.add_trial(
        optuna.trial.create_trial(value=scores[-1], intermediate_values=steps, user_attrs={_OWN: True, "settings": {}})
    )
    search.stages.say(f"  the run's own settings: {search.rows.scorer.name} {scores[-1]:.5f}")


def _try(optuna: Any, study: Any, search: _Search) -> None:
    """One trial: what it is told of is a score, that it was given up, or that the clock has cut it."""
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
    better = score > best if search.rows.scorer.metric.greater_is_better else score < best
    if better:
        search.stages.say(f"  trial {trial.number}: {search.rows.scorer.name} {score:.5f}, the best so far")


def _tuned(trial: Any, search: _Search) -> Tuned:
    own = _OWN in trial.user_attrs
    settings = dict(trial.user_attrs["settings"])
    steps = trial.intermediate_values
    model = search.model if own else with_settings(search.model, search.dims, settings)
    score = steps[max(steps)] if trial.value is None or trial.state.name == "PRUNED" else trial.value
    return Tuned(
        None if own else trial.number, settings, score, len(steps), trial.state.name == "PRUNED", as_line(model)
    )
