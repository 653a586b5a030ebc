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
from fastrec.estimators.base import Wrapper
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
    """Compute the columns' gains beside shuffled copies of them all, and the gains of these copies: gains by chance.

    Columns' gains are means of ``repeats`` models, copies' gains are lists (Kursa and Rudnicki 2010, section 2: shadow
    attributes). On shuffled targets instead, gains are of another size: beside one strong column no other was kept.
    """
    if rows.label is None:
        raise DataError("rows without labels have no target to learn", remedy="Give training rows")
    if (taken := next((n for n in rows.names if n.startswith("__shuffled__")), None)) is not None:
        raise DataError("shuffled copies of columns have such names", column=taken, remedy="Rename the column")
    gains, nulls = ({n: [] for n in rows.names} for _ in range(2))
    copies, draw = {n: f"__shuffled__{n}" for n in rows.names}, torch.Generator().manual_seed(seed)
    both = [*copies, *copies.values()]
    for _ in range(repeats):
        order = torch.randperm(len(rows), generator=draw).to(rows.table.device)
        table = rows.table.with_columns({c: rows.table[n].take(order) for n, c in copies.items()})
        # of equal splits trees take the first column's
        mixed, one = [both[i] for i in torch.randperm(len(both), generator=draw)], model.fresh()
        inner = one.model if isinstance(one, Wrapper) else one
        named = [rows.cats, rows.conts, *(getattr(inner, kind, None) for kind in ("columns", "keys"))]
        cats, conts, *own = (names and [n for n in mixed if n.removeprefix("__shuffled__") in names] for names in named)
        vars(inner).update({kind: names for kind, names in zip(("columns", "keys"), own) if names is not None})
        some = replace(rows, table=table, cats=cats, conts=conts)
        importance = one.fit(some, None, seed=seed, device=device).trace.importance
        if not importance:
            raise DataError(f"{model.name} has no gains", remedy="Use XGBoost, LightGBM or CatBoost")
        for name, copy in copies.items():
            gains[name].append(float(importance.get(name, 0.0)))
            nulls[name].append(float(importance.get(copy, 0.0)))
    return {n: sum(values) / repeats for n, values in gains.items()}, nulls


Method = Literal["null", "permutation"]


@dataclass(frozen=True)
class FeatureWorth:
    """The importance of one column."""

    name: str  #: the column
    #: by ``'null'``: its gain; by ``'permutation'``: by how much the metric is worse if it is shuffled
    importance: float
    #: by ``'null'``: the 5 % quantile of its shuffled copies' gains; by ``'permutation'``: of its 95 % interval
    low: float
    high: float  #: the other end: the 95 % quantile, or of the interval
    #: by ``'null'``: the empirical p-value of the gain among its copies', at least 1 / (repeats + 1); None by
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

    ``'null'`` keeps a column if its gain has a p-value of at most .1 among those of its ``repeats`` shuffled copies.
    ``'permutation'`` shuffles one column at a time among the rows that a fold scores, and keeps it if the metric is
    worse and 0 is outside the 95 % interval. Of redundant columns ``'null'`` keeps all and ``'permutation'`` may drop
    all: ``try_features(drop=…)`` measures the loss without them. Targets of all rows choose: a run with these columns
    alone is flattered out of fold.

    Args:
        of: a run directory, or rows with labels.
        method: see above.
        model: the run's model by its name, or an estimator; None: as ``try_features``.
        repeats: number of shuffled copies of each column, 9 or more; a model is trained beside each.
        folds: for ``'permutation'`` of rows, not of a run; None: five folds, of whole groups if the rows have groups.
        metric: for ``'permutation'`` of rows, not of a run; None: the task's default.
        max_rows: for ``'null'``: draw about so many of more rows, whole lists in a ranking.
        seed: of shuffles and models.
        device: where to train.

    Raises:
        DataError: the method is unknown, repeats are too few, or the model has no gains.
        MissingFileError: the run or its parts are missing.
    """
    if method not in ("null", "permutation"):
        raise DataError(f"there is no method {method!r}", remedy="Use 'null' or 'permutation'")
    if method == "null" and repeats < 9:  # the least p-value is 1 / (repeats + 1)
        problem = f"{repeats} shuffled copies: no column could be kept, whatever the data"
        raise DataError(problem, remedy="Use 9 or more for a level of .1")
    where = resolve_device(device)
    sides: Iterator[FoldRows]
    if isinstance(of, Rows):
        if isinstance(model, str):
            raise DataError(f"rows have no model {model!r}", remedy="Give an estimator")
        chosen = model or (XGBRanker("xgb") if of.task == "ranking" else XGBModel("xgb"))
        score, restore, clusters = get_metric(metric or default_metric(of.task)), None, of.groups
        if method == "permutation" and folds is None:
            folds = Folds.kfold(len(of)) if of.groups is None else Folds.group(len(of), of.groups)
        sides = ((inside, of.take(outside), of.take(inside)) for outside, inside in folds or ())
    else:
        kept = KeptRows(of)
        scorer, counted = scorer_of(kept), kept.tensors["counted"]
        chosen = model if isinstance(model, Estimator) else reference_model(kept, model, full=True)
        score, restore, clusters = scorer.for_choosing(), scorer.restore, kept.tensors.get("clusters")
        columns = RunColumns(kept, beside=columns_named_by(chosen, kept))
        sides = (
            (inside[counted[inside]], train.take(), valid.take(counted[inside].nonzero().squeeze(1)))
            for (_, inside), (train, valid) in zip(kept.folds, columns.folds(), strict=True)
        )
    if method == "null":
        rows = of if isinstance(of, Rows) else columns.rows()
        some = thinned(len(rows), rows.groups if rows.task == "ranking" else None, max_rows, seed)
        rows = rows if some is None else rows.take(some)
        gains, nulls = null_importance(lighter(chosen, stop=False), rows, repeats=repeats, seed=seed, device=where)
        worths, measure = [], "gain"
        for name in rows.names:
            by_chance = np.array(nulls[name])
            p = (1 + int((by_chance >= gains[name]).sum())) / (1 + len(by_chance))
            low, high = np.quantile(by_chance, [0.05, 0.95])
            # at .1, 2 to 8 % of simulated columns of noise are kept, and most weak columns beside strong ones
            worths.append(FeatureWorth(name, gains[name], float(low), float(high), p, p <= 0.1))
    else:
        measure = score.name
        losses = permuted_losses(lighter(chosen), sides, score, restore, clusters, seed=seed, device=where)
        worths = [FeatureWorth(n, d.mean, d.low, d.high, None, d.low > 0) for n, d in losses.items()]
    worths.sort(key=lambda w: (not w.kept, -w.importance, w.name))
    return Selection(method, measure, tuple(worths))
