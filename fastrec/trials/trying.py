"""``try_features``: measure the gain of new columns for a run, or the loss without some of its own."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import stdtrit

from fastrec._core import limits
from fastrec._core.atomic import now
from fastrec._core.device import DeviceLike, resolve_device
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError, DataWarning, MissingFileError, WriteError
from fastrec.metrics import Interval, Metric, bootstrap_metric
from fastrec.trials.ideas import NewColumns, read_idea
from fastrec.trials.reference import (
    RunColumns,
    columns_named_by,
    predict_sides,
    reference_model,
    scorer_of,
    without_random_splits,
)


def tries_file(run: str | Path) -> Path:
    """Return the path of a run's log."""
    run = Path(os.path.abspath(run))  # not in the run directory, which the next run replaces
    return run.with_name(f"{run.name}.tries.jsonl")


def note_try(run: str | Path, about: Mapping[str, Any]) -> None:
    """Add a line."""
    path = tries_file(run)
    line = (json.dumps(about, ensure_ascii=False) + "\n").encode()
    try:
        # one unbuffered write: two tries at the same time leave two whole lines
        with path.open("ab", buffering=0) as file:
            file.write(line)
    except OSError as error:
        raise WriteError(f"could not be written ({error.strerror})", file=path, remedy="Free disk space") from error


def list_tries(run: str | Path) -> list[dict[str, Any]]:
    """List the tries on a run, the first try first.

    Args:
        run: the run directory.

    Returns:
        For each try ``when``, ``file``, ``digest``, the fields of its ``Trial`` (``difference`` with ``low`` and
        ``high``), and ``rows``, which differs if the run was repeated in between.

    Raises:
        MissingFileError: there is no such run.
    """
    if not Path(run).is_dir():
        raise MissingFileError("there is no such folder", file=run, remedy="Give a run directory")
    path, tries = tries_file(run), []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else [], 1):
        try:
            tries.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            warnings.warn(f"{path}: line {number} cannot be read and is left out", DataWarning, stacklevel=2)
    return tries


Verdict = Literal["better", "no difference seen", "worse", "leak"]


@dataclass(frozen=True)
class Trial:
    """The result of a try."""

    columns: tuple[str, ...]  #: the new columns
    dropped: tuple[str, ...]  #: the run's columns that were left out
    #: ``'better'`` or ``'worse'`` if the interval excludes 0, else ``'no difference seen'``; ``'leak'`` if a new column
    #: leaks: then nothing was trained
    verdict: Verdict
    metric: str  #: the metric that was compared
    greater_is_better: bool  #: whether a higher metric is better
    before: float  #: the metric out of fold before the change, the mean over the seeds; NaN for a leak
    after: float  #: the same after the change
    difference: Interval  #: ``after`` less ``before``, with its 98 % interval (see ``compared``)
    leaks: Mapping[str, str] = field(default_factory=dict)  #: column → kind and detail
    #: new column → its share of the trees' total gain, if the model has gains
    gains: Mapping[str, float] = field(default_factory=dict)
    model: str = ""  #: the run's model that was trained
    seconds: float = 0.0  #: duration

    def __str__(self) -> str:
        named = [f"+ {n}" for n in self.columns] + [f"- {n}" for n in self.dropped]
        head = f"{self.verdict}: {', '.join(named)}"
        if self.verdict == "leak":
            return "\n".join([head, *(f"  {n}: {leak}" for n, leak in self.leaks.items())])
        d, way = self.difference, "" if self.greater_is_better else ", lower is better"
        text = f"  {self.metric} out of fold {self.before:.5f} → {self.after:.5f}{way}"
        text += f": {d.mean:+.5f} (98 % {d.low:+.5f} to {d.high:+.5f})"
        shares = ", ".join(f"{n} {100 * v:.1f} %" for n, v in self.gains.items())
        lines = [head, text, *([f"  share of the gain: {shares}"] if shares else [])]
        return "\n".join([*lines, f"  model {self.model}, {limits.TRY_REPEATS} seeds, {self.seconds:.1f} s"])


def try_features(
    features: Any = None,
    on: str | Path = "",
    *,
    drop: Sequence[str] = (),
    model: str | None = None,
    full: bool = False,
    data: str | Path | None = None,
    device: DeviceLike = "auto",
    note: bool = True,
) -> Trial:
    """Train one of a run's models with new columns, on the run's folds, and compare it with itself with them shuffled.

    Both sides have the same settings, columns, folds and seeds. New columns are checked for leaks first; if one leaks,
    nothing is trained.

    Args:
        features: a file of them (see ``fastrec.trials.ideas.read_idea``), generators, or a function from a pandas frame
            of the training rows without targets to new columns (a frame, a dict or a Series), whose statistics over
            rows are transductive. None: nothing is added.
        on: the run directory; it was made by ``fastrec run``, or ``run_competition(…, resume=True)``.
        drop: columns of the run's models to leave out: they are shuffled.
        model: the run's model to train; None: the best XGBoost or LightGBM model out of fold.
        full: use the model's settings and all rows. Otherwise trees are grown in fewer and larger steps, on at most
            10,000 rows of a fold in each repeat.
        data: the folder of the run's data, to check that they are the files of the run; None: no check.
        device: where to train.
        note: add a line to ``RUN.tries.jsonl``.

    Returns:
        The difference and the verdict. By chance about one of a hundred useless columns is called better.

    Raises:
        DataError: there is nothing to try, the new columns cannot be computed, or ``data`` are other files.
        MissingFileError: a file or the run's parts are missing.
    """
    began, started = time.perf_counter(), now()
    kept = KeptRows(on)
    if data is not None:
        kept.check_data(data)
    if features is None and not drop:
        raise DataError("there is nothing to try", remedy="Give features, or columns to drop")
    idea = None if features is None else read_idea(features)
    new = None if idea is None else NewColumns(kept, idea)
    reference = without_random_splits(reference_model(kept, model, full=full))
    columns = RunColumns(kept, drop, columns_named_by(reference, kept))
    metric = scorer_of(kept).for_choosing()
    leaks = {} if new is None else new.leaks()
    about: dict[str, Any] = {"dropped": tuple(drop), "metric": metric.name, "model": reference.name}
    about["greater_is_better"] = metric.greater_is_better
    if leaks:
        nan, nothing = math.nan, Interval(math.nan, math.nan, math.nan)
        trial = Trial(tuple(leaks), verdict="leak", before=nan, after=nan, difference=nothing, leaks=leaks, **about)
    else:
        names = () if new is None else tuple(new.names)
        if getattr(reference, "columns", None) is not None:  # a model of some columns must learn from the new ones too
            reference.columns = [*reference.columns, *names]
        run_on = {"device": resolve_device(device), "light": not full}
        folds = None if new is None else new.folds()
        sides, importance = predict_sides(kept, reference, columns, folds, **run_on)
        before, after, interval = compared(kept, metric, sides)
        total = sum(importance.values())
        gains = {n: importance.get(n, 0.0) / total for n in names} if total else {}
        low, high = interval[1:] if metric.greater_is_better else (-interval.high, -interval.low)
        verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "no difference seen"
        trial = Trial(names, verdict=verdict, before=before, after=after, difference=interval, gains=gains, **about)
    trial = replace(trial, seconds=time.perf_counter() - began)
    if note:
        numbers = {"before": trial.before, "after": trial.after, **trial.difference._asdict()}
        # JSON has no NaN
        numbers = {"difference" if n == "mean" else n: None if math.isnan(v) else v for n, v in numbers.items()}
        file, digest = (idea.file, idea.digest) if idea else (None, None)
        line = {
            "when": started, "file": file, "digest": digest, "columns": list(trial.columns),
            "dropped": list(trial.dropped), "model": trial.model, "metric": trial.metric, **numbers,
            "verdict": trial.verdict, "leaks": dict(trial.leaks), "seconds": round(trial.seconds, 2), "rows": kept.name,
        }  # fmt: skip
        note_try(kept.run, line)
    return trial


def compared(kept: KeptRows, metric: Metric, sides: torch.Tensor) -> tuple[float, float, Interval]:
    """Compare a metric before and after a change: means over the repeats, and the difference with its interval.

    The variance is a sum: over the rows that of a paired bootstrap of whole groups of the fold key, else lists, else
    rows; over the repeats that of their mean difference, plus the difference of the two sides' variances. The 98 %
    interval is Student's t (degrees of freedom: Satterthwaite 1946). ``sides``: predictions ``[2, repeats, n(, k)]``.
    """
    restore = scorer_of(kept).restore or (lambda values: values)
    rows = kept.scored
    # only rows that count: an unscored row has NaN
    groups = kept.tensors["groups"][rows] if kept.task == "ranking" else None
    clusters = kept.tensors["clusters"][rows] if "clusters" in kept.tensors else None
    label = restore(kept.tensors["label"])[rows]
    before, after = (np.array([metric(label, restore(p)[rows], groups=groups) for p in side]) for side in sides)
    both = {n: torch.stack([restore(p)[rows] for p in side]).mean(0) for n, side in zip("ba", sides)}
    draws = bootstrap_metric(metric, label, both, groups=groups, clusters=clusters).draws
    repeats = len(before)
    # a shuffled column varies by more than the seed, and the new column is a single draw of it
    spread = float(np.var(after - before, ddof=1)) / repeats
    spread += abs(float(np.var(before, ddof=1) - np.var(after, ddof=1)))
    variance, mean = spread + float(np.nanvar(draws["a"] - draws["b"], ddof=1)), float((after - before).mean())
    freedom = (repeats - 1) * (variance / spread) ** 2 if spread else np.inf
    half = float(stdtrit(freedom, 0.99)) * variance**0.5
    return float(before.mean()), float(after.mean()), Interval(mean, mean - half, mean + half)
