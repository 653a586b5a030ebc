"""``QuickTrial``: a quick model on some of the training rows, with and without features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fastrec._core import limits
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem, feature_key
from fastrec.errors import DataError
from fastrec.estimators import LGBMModel, XGBModel
from fastrec.estimators.base import learnable
from fastrec.features import FeatureSet
from fastrec.features.base import Feature
from fastrec.metrics import bootstrap_metric, default_metric, get_metric
from fastrec.table import Table
from fastrec.validate import Folds, Rows, Target
from fastrec.validate.cuts import first_in_group, stratified_folds


@dataclass
class Family:
    """Features of one idea; ``gain``: of the trial's score, None: they are needed anyway and were not tried."""

    name: str
    features: list[Feature]
    gain: float | None = None
    error: float = 0.0
    kept: bool = True

    @property
    def figures(self) -> str:
        """The gain and its standard error in words."""
        if not self.gain and not self.error:  # too few rows: the trial's model learns nothing from any column
            return "nothing could be measured (the predictions stay the same)"
        return f"{self.gain:+.5f} ± {self.error:.5f}"


class QuickTrial:
    """A quick model on at most ``rows`` training rows in ``n_folds`` parts, with and without features.

    As in the run, models learn with the rows' weights, and scores count all rows alike.
    """

    def __init__(
        self, problem: Problem, base: Sequence[Feature], seconds: float, *, rows: int = 50_000, n_folds: int = 3
    ) -> None:
        self.problem, self.base, self.seconds, self.n_folds = problem, list(base), seconds, n_folds
        # The time is shared by all fits, and a few more than there are.
        self.hurried, self.time_limit = False, seconds / 24
        table = Table.read(problem.train)
        draw = torch.Generator().manual_seed(0)
        self.target: Target | None = None
        if problem.task == "ranking":
            if not problem.as_shown:  # as the recipe does it
                table = table.take(torch.randperm(len(table), generator=draw))
            codes = table[str(problem.lists)].coded().codes.long().cpu()
            table = table.take(torch.argsort(codes, stable=True))
            size = torch.bincount(codes)
            # whole groups, drawn at random; in turn one that counts and one that does not
            drawn = torch.randperm(len(size), generator=draw)
            if problem.asked.counted is not None:
                real = (torch.bincount(codes.sort().values, table[problem.asked.counted].number().cpu()) > 0)[drawn]
                drawn = drawn[torch.where(real, real.cumsum(0), (~real).cumsum(0)).argsort(stable=True)]
            few = torch.zeros(len(size), dtype=torch.bool)
            few[drawn[size[drawn].cumsum(0) <= max(rows, int(size.max()))]] = True
            self.table = table.take(few[codes.sort().values].nonzero().squeeze(1))
            self.label = self.table[problem.target[0]].number(torch.float64).cpu()
        else:
            self.target = Target.fit(table, problem.target, problem.task, positive=problem.positive)
            known = self.target.known(table).nonzero().squeeze(1)
            if len(known) > rows:
                # sorted again: rows in order of time stay so
                known = known[torch.randperm(len(known), generator=draw)[:rows].sort().values]
            self.table = table.take(known)
            self.label = self.target.encode(self.table)
        self.folds = self._cut()
        self.scored = self.folds.scored
        # A list made by hiding an event may show it: an item's difference from its usual counts gains .042 MRR over all
        # lists of XMarket, and loses .023 over those that count.
        if problem.asked.counted is not None:
            self.scored = self.scored & (self.table[problem.asked.counted].number().cpu() > 0)
        usual = {"multiclass": "logloss", "ranking": problem.metric}
        # Of amounts the metrics that quick trees can learn on any scale; the others are judged by squares.
        if problem.metric.partition("@")[0] in ("mae", "pinball"):
            usual["regression"] = problem.metric
        self.metric = get_metric(usual.get(problem.task) or default_metric(problem.task))
        self.tables = {n: Table.read(t) for n, t in problem.files.side.items()}
        # Columns that are one for a whole group have to pay, too.
        own = [c for c in problem.kinds("number", "category") if c.name not in problem.shared]
        self.cats, self.conts = ([c.name for c in own if c.kind == k] for k in ("category", "number"))
        self.weight = problem.asked.weight
        self.rows = self._rows(self.table, [])
        try:  # the run's folds may be others: where one of these has nothing to learn from, all rows count alike
            for outside, _ in self.folds if self.weight is not None else ():
                learnable(self.rows.take(outside), name="a trial")
        except DataError:
            self.weight = None
            self.rows = self._rows(self.table, [])
        self._score: tuple[torch.Tensor, float] | None = None

    def _cut(self) -> Folds:
        """Return folds like the run's: whole groups, blocks of time, or rows at random."""
        problem = self.problem
        if problem.last_of is not None:
            return Folds.last(self.table, problem.lists, problem.last_of, problem.time, self.n_folds)
        if problem.group is not None and problem.group in self.table:
            return Folds.group(self.table, problem.group, self.n_folds)
        if problem.time is not None and problem.time in self.table:
            times = self.table[problem.time].number(torch.float64).cpu()
            first = torch.arange(len(times))
            if problem.lists is not None:  # a group's is that of its first row
                first = first_in_group(self.table[problem.lists].coded().codes.cpu())
            block = times[first].argsort(stable=True).argsort(stable=True) * self.n_folds // len(times)
            return Folds(block[first], method="blocks of time")
        if problem.lists is not None:
            return Folds.group(self.table, problem.lists, self.n_folds)
        if problem.task in ("binary", "multiclass"):  # the run's folds tell of rare classes
            return Folds(stratified_folds(self.label.long(), self.n_folds, seed=0), method="stratified")
        return Folds.kfold(len(self.table), self.n_folds)

    @property
    def target_options(self) -> dict[str, Any] | None:
        """What a ``TargetEncode`` of the raw target is to be told; None: the target has no means."""
        if self.problem.task in ("regression", "ranking"):
            return {}
        if self.problem.task == "binary":
            one = self.problem.classes[-1]
            return {} if one in (1, True) and self.problem.classes[0] in (0, False) else {"classes": [one]}
        return {"classes": list(self.problem.classes)} if len(self.problem.classes) <= 10 else None

    def told_by(self, c: ColumnInfo) -> float:
        """Return the share of the target's variance between a column's values, adjusted for chance (adjusted η²)."""
        column, y = self.table[c.name], self.label.double().numpy()
        if self.rows.weight is not None:  # rows of weight 0 tell nothing
            taught = (self.rows.weight > 0).nonzero().squeeze(1)
            column, y = column.take(taught), y[taught]
        if c.kind == "category" or c.key:
            codes = column.coded().codes.cpu().numpy()
        else:  # 32 bins of as many rows, and one of the missing values
            values = column.number(torch.float64).cpu().numpy()
            finite = values[np.isfinite(values)]
            edges = np.unique(np.quantile(finite, np.linspace(0, 1, 33)[1:-1])) if len(finite) else np.zeros(0)
            codes = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
        y = y if y.ndim == 1 else y[:, 0]
        _, codes = np.unique(codes, return_inverse=True)
        count = np.bincount(codes)
        mean = np.bincount(codes, y) / count
        whole = ((y - y.mean()) ** 2).sum()
        between = (count * (mean - y.mean()) ** 2).sum()
        n, k = len(y), len(count)
        return float((between - (k - 1) * (whole - between) / max(n - k, 1)) / max(whole, 1e-12))

    def left_over(
        self, features: Sequence[Feature], columns: Sequence[str]
    ) -> tuple[list[dict[str, float]], dict[str, np.ndarray]]:
        """Return row-wise features' gains in quick trees of the model's residuals, and their values, float64 ``[n]``.

        The first gains are those of all rows, the others those of the rows outside each fold. ``columns``: numbers that
        the trees see, too: a feature that repeats them gains nothing. Several classes are learned one after the other
        while there is time, the one with the largest errors first; at most ``limits.LEFT_OVER_ROWS`` rows are used.
        """
        said, _ = self._base_score()
        label = self._scored(self.rows.label)
        if said.ndim == 2:
            label = torch.nn.functional.one_hot(label.long(), said.shape[1]).double()
        drawn = torch.randperm(len(said), generator=torch.Generator().manual_seed(0))[: limits.LEFT_OVER_ROWS]
        table = self.table.take(self.scored.nonzero().squeeze(1)[drawn])
        made: dict[str, Any] = {}
        for i in range(0, len(features), 100):  # the time of a set grows with the square of its generators
            part = FeatureSet(features[i : i + 100])
            new = part.fit_transform(table)
            made |= {n: new[n] for n in part.outputs}
        table = table.with_columns(made)
        residuals = (label - said)[drawn].reshape(len(drawn), -1)
        weight = None if self.rows.weight is None else self._scored(self.rows.weight)[drawn]
        seen, fold = [*columns, *made], self._scored(self.folds.codes)[drawn]
        rounds = max(limits.LEFT_OVER_ROUNDS // residuals.shape[1], 10)
        options: dict[str, Any] = {"rounds": rounds, "early_stopping_rounds": None}
        ends = time.monotonic() + limits.LEFT_OVER_TIME * self.seconds
        found = []
        for k in range(-1, len(self.folds)):
            gains, taught = dict.fromkeys(made, 0.0), (fold != k).nonzero().squeeze(1)
            # Half of the time is for all rows. 63 bins take a fifth of the usual 255's (polish, with the same gains).
            share = time.monotonic() + (ends - time.monotonic()) / (2 if k < 0 else len(self.folds) - k)
            part, small = table.take(taught), {"num_leaves": 15, "feature_fraction": 0.3, "max_bin": 63}
            small["min_data_in_leaf"] = max(len(taught) // 100, 20)
            own = residuals[taught]
            for residual in own.T[own.var(0).argsort(descending=True)] if len(taught) else ():
                if any(gains.values()) and time.monotonic() > share:
                    break
                w = None if weight is None else weight[taught]
                rows = Rows(part, "regression", cats=[], conts=seen, label=residual, weight=w, n_outputs=1)
                if find_spec("lightgbm") is not None:
                    model: LGBMModel | XGBModel = LGBMModel("left over", learning_rate=0.1, **small, **options)
                else:
                    model = XGBModel("left over", eta=0.1, max_depth=4, colsample_bytree=0.3, max_bin=64, **options)
                model.time_limit = max(share - time.monotonic(), limits.LEAST_FIT_SECONDS)
                for name, gain in model.fit(rows, None, seed=0).trace.importance.items():
                    if name in gains:
                        gains[name] += gain
            found.append(gains)
        return found, {n: column.number(torch.float64).cpu().numpy() for n, column in made.items()}

    def _base_score(self) -> tuple[torch.Tensor, float]:
        if self._score is None:
            self._score = self._cross_fitted(self.base)
        return self._score

    def family(
        self,
        name: str,
        features: list[Feature],
        columns: Sequence[ColumnInfo] = (),
        *,
        times: float = 1.0,
        nested: Sequence[Sequence[Feature]] = (),
    ) -> Family:
        """Try features, or further columns; if the score gains more than ``times`` its error, they join the base.

        ``nested``: what is tried in their place in each fold, if features were found by the targets of all rows.
        """
        before, _ = self._base_score()
        own = self.cats, self.conts
        self.cats = [*self.cats, *(c.name for c in columns if c.kind == "category")]
        self.conts = [*self.conts, *(c.name for c in columns if c.kind == "number")]
        after, new = self._cross_fitted(*[[*self.base, *found] for found in nested or [features]])
        label, groups = self._scored(self.rows.label), self._scored(self.rows.groups)
        gain, error = self.gain(label, after, before, groups)
        kept = is_worth(gain, error, times)
        if kept:
            self.base = [*self.base, *features]
            self._score = None if nested else (after, new)
        else:
            self.cats, self.conts = own
        return Family(name, features, gain, error, kept)

    def gain(
        self, label: torch.Tensor | None, after: torch.Tensor, before: torch.Tensor, groups: torch.Tensor | None = None
    ) -> tuple[float, float]:
        """Return the gain of predictions over others of the same rows, and its standard error."""
        options: dict[str, Any] = {"groups": groups, "clusters": self.clusters if groups is not None else None}
        if groups is None:  # means over lists are resampled by blocks, in no time
            options["repeats"] = limits.TRIAL_REPEATS
        seen = bootstrap_metric(self.metric, label, {"after": after, "before": before}, seed=0, **options)
        sign = 1.0 if self.metric.greater_is_better else -1.0
        gain = sign * (seen.values["after"] - seen.values["before"])
        return gain, float((seen.draws["after"] - seen.draws["before"]).std(ddof=1))

    @property
    def clusters(self) -> torch.Tensor | None:
        """The column by which rows of a ranking are independent: users, or the like; None: the groups are."""
        key = self.problem.group
        return self._scored(self.table[key].coded().codes.long()) if key is not None and key in self.table else None

    def parts(self) -> Iterator[tuple[Rows, Rows]]:
        """Iterate over the rows outside and inside of each fold, with the features."""
        return self._parts(self.base)

    def _rows(self, table: Table, made: Sequence[str]) -> Rows:
        weight = None if self.weight is None else table[self.weight].number().cpu()
        columns: dict[str, Any] = {"cats": self.cats, "conts": [*self.conts, *made], "weight": weight}
        if self.target is None:
            columns["label"] = table[self.problem.target[0]].number(torch.float64).cpu()
            columns["groups"] = table[str(self.problem.lists)].group_numbers().cpu()
        else:
            columns |= {"label": self.target.encode(table), "n_outputs": self.target.n_outputs}
        return Rows(table, self.problem.task, **columns)

    def _parts(self, *features: Sequence[Feature]) -> Iterator[tuple[Rows, Rows]]:
        """Iterate over the folds with features, the same in all, or others in each."""
        numbers = list(range(1, len(self.folds) + 1))
        for found, only in (
            [(features[0], numbers)] if len(features) == 1 else zip(features, [[n] for n in numbers], strict=True)
        ):
            if not found:
                for outside, inside in [list(self.folds)[n - 1] for n in only]:
                    yield self._rows(self.table.take(outside), []), self._rows(self.table.take(inside), [])
                continue
            made = FeatureSet(list(found), key=feature_key(self.problem))
            for train, valid in made.cross_fit(self.table, self.folds.codes + 1, tables=self.tables, only=only):
                outputs = [n for n in made.outputs if train[n].plain().kind == "number"]
                yield self._rows(train, outputs), self._rows(valid, outputs)

    def _cross_fitted(self, *features: Sequence[Feature]) -> tuple[torch.Tensor, float]:
        known = bool(any(features) or self.cats or self.conts)  # else all rows are alike
        oof = None if known else torch.zeros(len(self.table), dtype=torch.float64)
        # It learns all it can: with a weak model every encoding looks like a gain.
        kind, rate = (LGBMModel, "learning_rate") if find_spec("lightgbm") is not None else (XGBModel, "eta")
        judge = kind("judge", rounds=800, early_stopping_rounds=30, **{rate: 0.1}, **self.pointwise(kind))
        judge.regrows = False
        judge.suit(self.metric.name)
        for (_, inside), (train, valid) in zip(self.folds, self._parts(*features), strict=True) if known else ():
            model = judge.fresh()
            model.time_limit = self.time_limit
            began = time.monotonic()
            model.fit(train, None, seed=0)
            # A model that used nine tenths of its time was stopped by it.
            self.hurried |= time.monotonic() - began > 0.9 * model.time_limit
            said = model.predict(valid)
            if oof is None:
                oof = torch.zeros((len(self.table), *said.shape[1:]), dtype=torch.float64)
            oof[inside] = said
        oof = oof[self.scored]
        if self.problem.task == "ranking":
            # Metrics count equal scores as the worst order: whatever told rows apart would be a gain.
            drawn = torch.randperm(len(oof), generator=torch.Generator().manual_seed(0))
            ascending = drawn[torch.argsort(oof[drawn], stable=True)]
            oof[ascending] = torch.arange(len(oof), dtype=torch.float64)
        return oof, self.metric(self._scored(self.rows.label), oof, groups=self._scored(self.rows.groups))

    def _scored(self, values: Any) -> Any:
        return None if values is None else values[self.scored]

    def pointwise(self, kind: type[LGBMModel] | type[XGBModel]) -> dict[str, Any]:
        """Return the judge's parameters: of a ranking row by row, as it stops by a loss that is smoother than ranks."""
        if self.problem.task != "ranking":
            return {}
        flags = bool((self.label <= 1).all())
        if kind is LGBMModel:
            least = min(100, len(self.table) // 10)  # LightGBM ends with an error if no draw of rows fills two leaves
            return {"objective": "binary" if flags else "regression", "num_leaves": 15, "min_data_in_leaf": least}
        return {"objective": "binary:logistic" if flags else "reg:squarederror", "max_depth": 4, "min_child_weight": 5}


def is_worth(gain: float, error: float, times: float = 1.0) -> bool:
    """Return whether a gain exceeds so many of its standard errors."""
    return gain > 0 and gain > times * error
