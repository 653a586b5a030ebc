"""``select_features``: the columns that a model needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError
from fastrec.estimators import Estimator, XGBModel, XGBRanker
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.trials.reference import (
    FoldRows,
    RunColumns,
    columns_named_by,
    lighter,
    permuted_losses,
    reference_model,
    scorer_of,
    thinned,
)
from fastrec.validate import Folds, Rows


def null_importance(
    model: Estimator, rows: Rows, *, repeats: int = 20, seed: int = 0, device: torch.device | None = None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Compute a model's gains, and those with shuffled targets (Altmann et al. 2010, section 2.1: PIMP).

    A column with many values has gain by chance; its own gains on shuffled targets measure that. The model must not
    stop early: on a shuffled target it would stop at once and have no gain.
    """
    if rows.label is None:
        raise DataError("rows without labels have no target to shuffle", remedy="Give training rows")

    def gains(some: Rows) -> dict[str, float]:
        importance = model.fresh().fit(some, None, seed=seed, device=device).trace.importance
        if not importance:
            raise DataError(f"{model.name} has no gains", remedy="Use XGBoost, LightGBM or CatBoost")
        return {n: float(importance.get(n, 0.0)) for n in rows.names}

    true, draw = gains(rows), torch.Generator().manual_seed(seed)
    nulls: dict[str, list[float]] = {n: [] for n in rows.names}
    for _ in range(repeats):
        order = torch.randperm(len(rows), generator=draw)
        if rows.task == "ranking":
            assert rows.groups is not None
            # within each list: every list keeps its number of clicks
            order = order[torch.argsort(rows.groups[order], stable=True)]
        for name, gain in gains(replace(rows, label=rows.label[order])).items():
            nulls[name].append(gain)
    return true, nulls


Method = Literal["null", "permutation"]


@dataclass(frozen=True)
class FeatureWorth:
    """The importance of one column."""

    name: str  #: the column
    #: by ``'null'``: its gain; by ``'permutation'``: by how much the metric is worse if it is shuffled
    importance: float
    #: by ``'null'``: the 5 % quantile of its gains with shuffled targets; by ``'permutation'``: of its 95 % interval
    low: float
    high: float  #: the other end: the 95 % quantile, or of the interval
    #: by ``'null'``: the empirical p-value of the gain (Altmann et al. 2010), at least 1 / (repeats + 1); None by
    #: ``'permutation'``
    p: float | None
    kept: bool  #: whether it is kept


@dataclass(frozen=True)
class Selection:
    """The columns of a model, the most important first."""

    method: Method  #: how they were compared
    measure: str  #: of ``importance``: ``'gain'``, or the metric's name
    table: tuple[FeatureWorth, ...]  #: a line for each column

    @property
    def kept(self) -> list[str]:
        """The columns that are kept."""
        return [w.name for w in self.table if w.kept]

    @property
    def dropped(self) -> list[str]:
        """The other columns."""
        return [w.name for w in self.table if not w.kept]


def select_features(
    of: str | Path | Rows,
    *,
    method: Method = "null",
    model: str | Estimator | None = None,
    repeats: int = 20,
    folds: Folds | None = None,
    metric: str | Metric | None = None,
    max_rows: int = 50_000,
    seed: int = 0,
    device: DeviceLike = "auto",
) -> Selection:
    """Test every column that a model learns from, and select those to keep.

    ``'null'`` compares a column's gain with its gains on ``repeats`` shuffled targets. The column is kept if the
    p-value of its gain is at most .05. ``'permutation'`` trains the model on each fold and shuffles one column at a
    time among the rows that the fold scores. The column is kept if the metric is worse and 0 is outside the 95 %
    interval. Among redundant columns ``'null'`` keeps all and ``'permutation'`` may drop all: ``try_features(drop=…)``
    measures the loss without them.

    Args:
        of: a run directory, or rows with labels.
        method: see above.
        model: the run's model by its name, or an estimator; None: as ``try_features``.
        repeats: number of shuffled targets, 19 or more.
        folds: for ``'permutation'`` of rows; None: five folds, of whole groups if the rows have groups. A run has its
            own.
        metric: for ``'permutation'`` of rows; None: the task's default. A run has its own.
        max_rows: for ``'null'``: draw about so many of more rows, whole lists in a ranking.
        seed: of shuffles and models.
        device: where to train.

    Raises:
        DataError: the method is unknown, repeats are too few, or the model has no gains.
        MissingFileError: the run or its parts are missing.
    """
    if method not in ("null", "permutation"):
        raise DataError(f"there is no method {method!r}", remedy="Use 'null' or 'permutation'")
    if method == "null" and repeats < 19:  # the least p-value is 1 / (repeats + 1)
        problem = f"{repeats} shuffled targets: no column could be kept, whatever the data"
        raise DataError(problem, remedy="Use 19 or more for a level of .05")
    where = resolve_device(device)
    source = _OfRows(of, folds, metric) if isinstance(of, Rows) else _OfRun(of)
    chosen = source.model(model)
    if method == "null":
        rows = source.rows()
        some = thinned(len(rows), rows.groups if rows.task == "ranking" else None, max_rows, seed)
        rows = rows if some is None else rows.take(some)
        gains, nulls = null_importance(lighter(chosen, stop=False), rows, repeats=repeats, seed=seed, device=where)
        worths, measure = [], "gain"
        for name in rows.names:
            by_chance = np.array(nulls[name])
            p = (1 + int((by_chance >= gains[name]).sum())) / (1 + len(by_chance))
            low, high = np.quantile(by_chance, [0.05, 0.95])
            worths.append(FeatureWorth(name, gains[name], float(low), float(high), p, p <= 0.05))
    else:
        measure = source.metric.name
        losses = permuted_losses(
            lighter(chosen), source.sides(), source.metric, source.restore, source.clusters, seed=seed, device=where
        )
        worths = [FeatureWorth(n, d.mean, d.low, d.high, None, d.low > 0) for n, d in losses.items()]
    worths.sort(key=lambda w: (not w.kept, -w.importance, w.name))
    return Selection(method, measure, tuple(worths))


class _OfRun:
    def __init__(self, run: str | Path) -> None:
        self.kept = KeptRows(run)
        scorer = scorer_of(self.kept)
        self.metric, self.restore = scorer.for_choosing(), scorer.restore
        self.clusters = self.kept.tensors.get("clusters")

    def model(self, given: str | Estimator | None) -> Estimator:
        chosen = given if isinstance(given, Estimator) else reference_model(self.kept, given, full=True)
        self._columns = RunColumns(self.kept, beside=columns_named_by(chosen, self.kept))
        return chosen

    def rows(self) -> Rows:
        kept, names = self.kept, self._columns.names
        raw = [n for n in names if n not in kept.outputs]
        features = kept.made([n for n in names if n in kept.outputs])
        return kept.rows(kept.train(raw).with_columns({n: features[n] for n in features.names}) if raw else features)

    def sides(self) -> Iterator[FoldRows]:
        counted = self.kept.tensors["counted"]
        for (_, inside), (train, valid) in zip(self.kept.folds, self._columns.folds(), strict=True):
            yield inside[counted[inside]], train.take(), valid.take(counted[inside].nonzero().squeeze(1))


class _OfRows:
    restore = None

    def __init__(self, rows: Rows, folds: Folds | None, metric: str | Metric | None) -> None:
        self._rows, self._folds = rows, folds
        self.metric, self.clusters = get_metric(metric or default_metric(rows.task)), rows.groups

    def model(self, given: str | Estimator | None) -> Estimator:
        if isinstance(given, str):
            raise DataError(f"rows have no model {given!r}", remedy="Give an estimator")
        return given or (XGBRanker("xgb") if self._rows.task == "ranking" else XGBModel("xgb"))

    def rows(self) -> Rows:
        return self._rows

    def sides(self) -> Iterator[FoldRows]:
        rows = self._rows
        folds = self._folds or (Folds.kfold(len(rows)) if rows.groups is None else Folds.group(len(rows), rows.groups))
        for outside, inside in folds:
            yield inside, rows.take(outside), rows.take(inside)
