"""``select_features``: which columns a model can do without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError
from fastrec.estimators import Estimator, XGBModel, XGBRanker
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.trials.null_importance import null_importance
from fastrec.trials.permuted import Side, permuted_losses
from fastrec.trials.reference import RunColumns, columns_named_by, lighter, reference_model, scorer_of
from fastrec.validate import Folds, Rows

Method = Literal["null", "permutation"]
_MOST_ROWS = 50_000
_LEVEL = 0.05


@dataclass(frozen=True)
class FeatureWorth:
    """What one column is worth.

    Attributes:
        name: the column.
        importance: by ``'null'``: its gain; by ``'permutation'``: by how much the metric is worse where it is shuffled.
        low, high: by ``'null'``: what 90 % of its gains with shuffled targets lie between; by ``'permutation'``: the
            importance's 95 % interval.
        p: by ``'null'``: how probable a gain as high is by chance (Altmann et al. 2010, the empirical p-value, of which
            the smallest is 1 / (repeats + 1)); None by ``'permutation'``.
        kept: whether it is kept.
    """

    name: str
    importance: float
    low: float
    high: float
    p: float | None
    kept: bool


@dataclass(frozen=True)
class Selection:
    """The columns of a model, the most important first.

    Attributes:
        method: how they were weighed.
        measure: what ``importance`` is: ``'gain'``, or the metric's name.
        table: a line for each column.
    """

    method: Method
    measure: str
    table: tuple[FeatureWorth, ...]

    @property
    def kept(self) -> list[str]:
        """The names of the columns that are kept."""
        return [w.name for w in self.table if w.kept]

    @property
    def dropped(self) -> list[str]:
        """The names of the others."""
        return [w.name for w in self.table if not w.kept]


def select_features(
    of: str | Path | Rows,
    *,
    method: Method = "null",
    model: str | Estimator | None = None,
    repeats: int = 20,
    folds: Folds | None = None,
    metric: str | Metric | None = None,
    max_rows: int = _MOST_ROWS,
    seed: int = 0,
    device: DeviceLike = "auto",
) -> Selection:
    """Weigh every column that a model learns from, and say which to keep.

    ``'null'`` compares a column's gain with the gains that it has where the target is shuffled, ``repeats`` times; it
    is kept where a gain as high has a probability of at most .05 by chance. ``'permutation'`` trains the model on each
    fold and shuffles one column at a time among the rows that the fold scores; it is kept where the metric is worse,
    and 0 outside the 95 % interval. Of columns that say the same ``'null'`` keeps all, ``'permutation'`` may drop all:
    ``try_features(drop=…)`` says what is lost without them.

    Args:
        of: a run directory, or rows with labels.
        method: see above.
        model: the run's model by its name, or an estimator; None: as ``try_features``.
        repeats: how many shuffled targets.
        folds: for ``'permutation'`` of rows: their folds; None: five, of whole groups where the rows have some. A run's
            are its own.
        metric: for ``'permutation'`` of rows; None: the task's usual one. A run's is its own.
        max_rows: for ``'null'``: of more rows so many are taken, whole lists in a ranking.
        seed: of shuffles and models.
        device: where to train.

    Raises:
        DataError: the method is unknown, or the model says no gains.
        MissingFileError: the run, or what it has kept, is not there.
    """
    if method not in ("null", "permutation"):
        raise DataError(f"there is no method {method!r}", remedy="Use 'null' or 'permutation'")
    if repeats < 1:
        raise DataError(f"{repeats} shuffled targets", remedy="Use at least 1; 20 or more for a level of .05")
    where = resolve_device(device)
    source = _OfRows(of, folds, metric) if isinstance(of, Rows) else _OfRun(of)
    chosen = source.model(model)
    if method == "null":
        rows = _some(source.rows(), max_rows, seed)
        gains, nulls = null_importance(lighter(chosen, stop=False), rows, repeats=repeats, seed=seed, device=where)
        worths = [_by_chance(n, gains[n], np.array(nulls[n])) for n in rows.names]
        measure = "gain"
    else:
        measure = source.metric.name
        losses = permuted_losses(
            lighter(chosen), source.sides(), source.metric, source.restore, source.clusters, seed=seed, device=where
        )
        worths = [FeatureWorth(n, d.mean, d.low, d.high, None, d.low > 0) for n, d in losses.items()]
    worths.sort(key=lambda w: (not w.kept, -w.importance, w.name))
    return Selection(method, measure, tuple(worths))


def _by_chance(name: str, gain: float, nulls: np.ndarray) -> FeatureWorth:
    p = (1 + int((nulls >= gain).sum())) / (1 + len(nulls))
    low, high = np.quantile(nulls, [0.05, 0.95])
    return FeatureWorth(name, gain, float(low), float(high), p, p <= _LEVEL)


def _some(rows: Rows, most: int, seed: int) -> Rows:
    """About so many rows at random, whole lists in a ranking."""
    if len(rows) <= most:
        return rows
    draw = torch.Generator().manual_seed(seed)
    if rows.task != "ranking":
        return rows.take(torch.sort(torch.randperm(len(rows), generator=draw)[:most]).values)
    assert rows.groups is not None
    lists, codes = torch.unique_consecutive(rows.groups, return_inverse=True)
    chosen = torch.rand(len(lists), generator=draw) < most / len(rows)
    return rows.take(chosen[codes])


class _OfRun:
    """A run's rows, folds, metric and model."""

    def __init__(self, run: str | Path) -> None:
        self.kept = KeptRows(run)
        scorer = scorer_of(self.kept)
        self.metric, self.restore = scorer.for_choosing(), scorer.restore
        self.clusters = self.kept.tensors.get("clusters")

    def model(self, given: str | Estimator | None) -> Estimator:
        """The run's model of that name."""
        found = given if isinstance(given, Estimator) else reference_model(self.kept, given, full=True)
        self._columns = RunColumns(self.kept, beside=columns_named_by(found, self.kept))
        return found

    def rows(self) -> Rows:
        """All training rows with their features."""
        kept = self.kept
        names = self._columns.names
        own, made = [n for n in names if n not in kept.outputs], kept.made([n for n in names if n in kept.outputs])
        return kept.rows(kept.train(own).with_columns({n: made[n] for n in made.names}) if own else made)

    def sides(self) -> Iterator[Side]:
        """For every fold the rows that it scores and counts, what it trains on, and the rows again."""
        counted = self.kept.tensors["counted"]
        for (_, inside), (train, valid) in zip(self.kept.folds, self._columns.folds(), strict=True):
            yield inside[counted[inside]], train.take(), valid.take(counted[inside].nonzero().squeeze(1))


class _OfRows:
    """Rows that are given as they are."""

    restore = None

    def __init__(self, rows: Rows, folds: Folds | None, metric: str | Metric | None) -> None:
        self._rows, self._folds = rows, folds
        self.metric, self.clusters = get_metric(metric or default_metric(rows.task)), rows.groups

    def model(self, given: str | Estimator | None) -> Estimator:
        """An estimator."""
        if isinstance(given, str):
            raise DataError(f"rows have no model {given!r}", remedy="Give an estimator")
        return given or (XGBRanker("xgb") if self._rows.task == "ranking" else XGBModel("xgb"))

    def rows(self) -> Rows:
        """The rows."""
        return self._rows

    def sides(self) -> Iterator[Side]:
        """As for a run."""
        rows = self._rows
        cut = self._folds or (Folds.kfold(len(rows)) if rows.groups is None else Folds.group(len(rows), rows.groups))
        for outside, inside in cut:
            yield inside, rows.take(outside), rows.take(inside)
