"""Which features a table gets: those that its kinds of columns ask for, and of the others what pays out of fold."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem
from fastrec.errors import FastrecError
from fastrec.estimators import Estimator, LGBMModel, XGBModel
from fastrec.features import (
    Bucketize,
    Combine,
    CountEncode,
    Cross,
    DateOf,
    DatePart,
    DeviationFromGroup,
    FeatureSet,
    JoinTable,
    ListLength,
    MultiHot,
    RowStats,
    TargetEncode,
    TextSvd,
    Tokens,
    search_crosses,
)
from fastrec.features.base import Feature
from fastrec.metrics import bootstrap_metric, default_metric, get_metric
from fastrec.table import Table
from fastrec.validate import Folds, Rows, Target

_ROWS = 50_000  # that a trial is made on
_FOLDS = 3
_FITS = 24  # fits that the time for trials is shared among: a few more than there are
_HURRIED = 0.9  # of its time that a trial's model has used: it was stopped by it
_WIDE = 50  # numbers from which their statistics by row are tried
_COUNTED, _MEANS = 12, 8  # different values from which a category's counts, its target means are tried
_PAIRED, _PAIRS_KEPT = 12, 20  # columns whose pairs are tried, pairs that are kept at most
_FEW = 30  # whole numbers of so few values are keys as they are
_MOST_CLASSES = 40  # of a target for which features are tried
_VALUES, _LEAST_LISTS = 16, 10  # values of lists that get a column each, lists that hold one at least
_CLASSES = 10  # of a multiclass target, at most, whose means are made
_WORTH = 1.0  # standard errors that a gain must be above 0
_PARTS = ("year", "month", "day", "dayofweek", "dayofyear")
_CLOCK = ("hour", "minute")
_MONTH = re.compile(r"(month|mnth|mon)$")
_DAYS, _YEARS = ("day", "dayofmonth", "day_of_month", "dom"), ("year", "yr")  # after what stands before the month
_MONTH_DAYS = 25  # different days of a month, at least: fewer may be days of the week


@dataclass
class Family:
    """Features of one idea.

    Args:
        name: what they are, in plain words.
        features: the generators.
        gain: by how much the trial's score got better; None: they were not tried, their columns ask for them.
        error: its standard error.
        kept: whether they are in the recipe.
    """

    name: str
    features: list[Feature]
    gain: float | None = None
    error: float = 0.0
    kept: bool = True


@dataclass
class Chosen:
    """The features of a recipe.

    Args:
        families: all that was thought of.
        metric: what gains are measured in.
        rows: how many rows a trial is made on.
        hurried: the trials' models had too little time to learn all they could.
    """

    families: list[Family] = field(default_factory=list)
    metric: str = ""
    rows: int = 0
    hurried: bool = False

    @property
    def features(self) -> list[Feature]:
        """Those in the recipe."""
        return [f for family in self.families if family.kept for f in family.features]


def choose_features(problem: Problem, *, seconds: float = 60.0, say: Callable[[str], None] | None = None) -> Chosen:
    """Choose features.

    Dates are taken apart, lists and texts made into numbers, side tables joined: without that nothing could be learned
    from them. Counts, target means, crosses, row statistics and deviations are tried one after the other on some tens
    of thousands of training rows: a model with and without them, cross-fitted, on the same folds.

    Args:
        problem: what is known of the table.
        seconds: time for the trials; what does not fit in is left out.
        say: told of each outcome.
    """
    ends = time.monotonic() + seconds
    chosen = Chosen(_asked_for(problem))
    if problem.task == "multilabel" or len(problem.target) > 1 or len(problem.classes) > _MOST_CLASSES or seconds <= 0:
        return chosen
    trial = _Trial(problem, chosen.features, seconds)
    chosen.metric, chosen.rows = trial.metric.name, len(trial.table)
    for name, make in _IDEAS:
        if time.monotonic() > ends:
            break
        try:
            features = make(problem, trial)
        except FastrecError as error:
            (say or _ignore)(f"{name}: not tried ({error.problem})")
            continue
        if not features:
            continue
        family = trial.family(name, features)
        chosen.families.append(family)
        chosen.hurried = trial.hurried
        if say is not None:
            word = "kept" if family.kept else "left out"
            say(f"{name}: {trial.metric.name} {family.gain:+.5f} ± {family.error:.5f}, {word}")
    return chosen


def _ignore(text: str) -> None:
    pass


def _asked_for(problem: Problem) -> list[Family]:
    """What columns that are neither numbers nor categories ask for."""
    made: list[Family] = []
    times = problem.kinds("time")
    if times:
        parts = [DatePart(c.name, [*_PARTS, *(_CLOCK if _has_clock(problem, c.name) else ())]) for c in times]
        between = [
            Combine(DatePart(b.name, "elapsed"), "-", DatePart(a.name, "elapsed"), name=f"{a.name}_to_{b.name}")
            for i, a in enumerate(times[:4])
            for b in times[i + 1 : 4]
        ]
        since = [DatePart(c.name, "elapsed") for c in times]
        made.append(Family("times taken apart", [*parts, *since, *between]))
    dates = _dates(problem)
    if dates:
        made.append(Family("dates put together", dates))
    lists = problem.kinds("list")
    if lists:
        found: list[Feature] = []
        for c in lists:
            source = c.name if c.form is None else Tokens(c.name, _pattern(c.form))
            common = _common_values(problem, c)
            found += [*([MultiHot(source, common)] if common else []), ListLength(source)]
        made.append(Family("lists", found))
    texts = problem.kinds("text")
    if texts:
        made.append(Family("texts", [TextSvd(c.name, dims=32) for c in texts]))
        made[-1].features += [ListLength(Tokens(c.name, "words")) for c in texts]
    made += _joins(problem)
    return made


def _dates(problem: Problem) -> list[Feature]:
    """Days in the order of the calendar, of columns of months and days: rows of days side by side are alike."""
    columns = {c.name.lower(): c for c in problem.kinds("number", "category") if c.whole}
    made: list[Feature] = []
    for low, month in columns.items():
        found = _MONTH.search(low)
        if found is None or not _within(problem, month, 1, 12):
            continue
        stem = found.string[: found.start()]
        day = next((columns[stem + d] for d in _DAYS if stem + d in columns), None)
        if day is None or day.distinct < _MONTH_DAYS or not _within(problem, day, 1, 31):
            continue
        year = next((columns[stem + y] for y in _YEARS if stem + y in columns), None)
        known = year is not None and _within(problem, year, 1600, 2400)
        name = stem + ("date_of" if f"{stem}date" in columns else "date")
        date = DateOf(month.name, day.name, *([year.name] if known and year else []), name=name)
        made += [date, *([DatePart(date, ["dayofweek", "dayofyear"])] if known else [])]
    return made


def _within(problem: Problem, c: ColumnInfo, low: int, high: int) -> bool:
    found = pc.min_max(problem.train[c.name])
    return low <= found["min"].as_py() <= found["max"].as_py() <= high


def _common_values(problem: Problem, c: ColumnInfo) -> list[str]:
    """The values that most lists hold; none of a column of numbers."""
    column = problem.train[c.name].slice(0, _ROWS)
    if c.form is None:
        if not pa.types.is_string(column.type.value_type):
            return []
        values = pd.Series(pc.list_flatten(column).to_pandas(), dtype="object")
    else:
        text = pd.Series(column.to_pandas(), dtype="object").dropna()
        values = text.str.lower().str.findall(_pattern(c.form)).explode()
    counts = values.value_counts()
    return [str(v) for v in counts.index[counts >= _LEAST_LISTS][:_VALUES]]


def _pattern(sign: str) -> str:
    return r"\S+" if sign == " " else rf"\s*([^{sign}]+)"


def _has_clock(problem: Problem, name: str) -> bool:
    column = problem.train[name]
    if pa.types.is_date(column.type):
        return False
    some = pd.Series(column.slice(0, 5_000).to_pandas())
    some = pd.to_datetime(some, errors="coerce", utc=True).dropna()
    return bool(len(some) and ((some.dt.hour != 0) | (some.dt.minute != 0)).any())


def _joins(problem: Problem) -> list[Family]:
    """Columns of side tables by a key that both have, which is another in every row of the side table."""
    made = []
    for name, table in problem.files.side.items():
        for key in (n for n in table.column_names if n in problem.train.column_names):
            values = table[key]
            if values.null_count or len(values.unique()) < len(values):
                continue
            new = [n for n in table.column_names if n not in problem.train.column_names]
            if new:
                made.append(Family(f"columns of {name}", [JoinTable(name, key, new)]))
            break
    return made


# What is tried


def _counts(problem: Problem, trial: _Trial) -> list[Feature]:
    cols = [c.name for c in problem.kinds("category") if c.distinct >= _COUNTED]
    cols += [c.name for c in problem.kinds("number") if c.key and c.distinct >= _COUNTED]
    return [CountEncode(cols[:40], log=True)] if cols else []


def _means(problem: Problem, trial: _Trial) -> list[Feature]:
    if trial.target_options is None:
        return []
    cols = [c.name for c in problem.kinds("category") if c.distinct >= _MEANS]
    cols += [c.name for c in problem.kinds("number") if c.key and c.distinct >= _MEANS]
    return [TargetEncode(cols[:30], problem.target[0], smooth=20, **trial.target_options)] if cols else []


def _crosses(problem: Problem, trial: _Trial) -> list[Feature]:
    if trial.target_options is None or problem.task == "multiclass":
        return []
    cols = [c for c in problem.kinds("category", "number") if c.distinct >= 2]
    told = {c.name: trial.told_by(c) for c in cols}
    best = sorted(cols, key=lambda c: -told[c.name])[:_PAIRED]
    if len(best) < 2:
        return []
    sources = [_source(c) for c in best]
    rows = trial.table.with_columns({"__y__": trial.rows.label})
    search = search_crosses(rows, sources, "__y__", folds=trial.folds.codes, max_pairs=_PAIRS_KEPT, smooth=20)
    by_name = {s if isinstance(s, str) else s.outputs[0]: s for s in sources}
    pairs = [Cross([by_name[a], by_name[b]]) for a, b in search.kept]
    return [TargetEncode(pairs, problem.target[0], smooth=20, **trial.target_options)] if pairs else []


def _source(c: ColumnInfo) -> str | Feature:
    """A column as a key: a number of many values by its twentieths."""
    plain = c.kind == "category" or c.key or (c.whole and c.distinct <= _FEW)
    return c.name if plain else Bucketize(c.name, quantiles=20)


def _row_stats(problem: Problem, trial: _Trial) -> list[Feature]:
    numbers = [c.name for c in problem.kinds("number")]
    if len(numbers) < _WIDE:
        return []
    return [RowStats(numbers, stats=("zeros", "missing", "nunique", "sum", "std", "max"))]


def _deviations(problem: Problem, trial: _Trial) -> list[Feature]:
    groups = [
        c for c in problem.kinds("category", "number") if 5 <= c.distinct <= 5_000 and (c.key or c.kind == "category")
    ]
    numbers = [c for c in problem.kinds("number") if c.distinct > 50]
    if not groups or not numbers or len(numbers) > _WIDE:
        return []
    groups = sorted(groups, key=lambda c: -trial.told_by(c))[:2]
    numbers = sorted(numbers, key=lambda c: -trial.told_by(c))[:4]
    return [
        DeviationFromGroup([c.name for c in numbers if c.name != g.name], by=g.name, over="train")
        for g in groups
        if any(c.name != g.name for c in numbers)
    ]


_IDEAS: tuple[tuple[str, Callable[[Problem, Any], list[Feature]]], ...] = (
    ("counts of values", _counts),
    ("target means of values", _means),
    ("target means of pairs", _crosses),
    ("statistics of a row", _row_stats),
    ("deviations from a group", _deviations),
)


class _Trial:
    """A quick model on some rows, with and without features."""

    def __init__(self, problem: Problem, base: Sequence[Feature], seconds: float) -> None:
        self.problem, self.base, self.seconds = problem, list(base), seconds
        self.hurried = False
        table = Table.read(problem.train)
        self.target = Target.fit(table, problem.target, problem.task, positive=problem.positive)
        known = self.target.known(table).nonzero().squeeze(1)
        if len(known) > _ROWS:
            known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:_ROWS].sort().values]
        self.table = table.take(known)
        self.label = self.target.encode(self.table)
        self.folds = self._cut()
        self.metric = get_metric("logloss" if problem.task == "multiclass" else default_metric(problem.task))
        self.tables = {n: Table.read(t) for n, t in problem.files.side.items()}
        numbers = [c.name for c in problem.kinds("number")]
        self.cats, self.conts = [c.name for c in problem.kinds("category")], numbers
        self.rows = self._rows(self.table, [])
        self._score: tuple[torch.Tensor, float] | None = None

    def _cut(self) -> Folds:
        """Folds in the manner of the run's: whole groups, blocks of time, or rows at random."""
        problem = self.problem
        if problem.group is not None and problem.group in self.table:
            return Folds.group(self.table, problem.group, _FOLDS)
        if problem.time is not None and problem.time in self.table:
            times = self.table[problem.time].number(torch.float64).cpu()
            place = torch.empty(len(times), dtype=torch.int64)
            place[torch.argsort(times, stable=True)] = torch.arange(len(times))
            return Folds(place * _FOLDS // len(times), method="blocks of time")
        if problem.task in ("binary", "multiclass"):
            return Folds.stratified(self.table, self.label.long(), _FOLDS)
        return Folds.kfold(len(self.table), _FOLDS)

    @property
    def target_options(self) -> dict[str, Any] | None:
        """What a ``TargetEncode`` of the raw target is to be told; None: the target has no means."""
        if self.problem.task == "regression":
            return {}
        if self.problem.task == "binary":
            one = self.problem.classes[-1]
            return {} if one in (1, True) and self.problem.classes[0] in (0, False) else {"classes": [one]}
        return {"classes": list(self.problem.classes)} if len(self.problem.classes) <= _CLASSES else None

    def told_by(self, c: ColumnInfo) -> float:
        """The share of the target's variance between a column's values, less what chance gives (adjusted η²)."""
        column = self.table[c.name]
        codes = column.coded().codes.cpu().numpy() if c.kind == "category" or c.key else _binned(column)
        y = self.label.double().numpy()
        y = y if y.ndim == 1 else y[:, 0]
        _, codes = np.unique(codes, return_inverse=True)
        count = np.bincount(codes)
        mean = np.bincount(codes, y) / count
        whole = ((y - y.mean()) ** 2).sum()
        between = (count * (mean - y.mean()) ** 2).sum()
        n, k = len(y), len(count)
        return float((between - (k - 1) * (whole - between) / max(n - k, 1)) / max(whole, 1e-12))

    def family(self, name: str, features: list[Feature]) -> Family:
        """Features tried: kept where the score is better by half a standard error; they are then part of the base."""
        if self._score is None:
            self._score = self._cross_fitted(self.base)
        before, score = self._score
        after, new = self._cross_fitted([*self.base, *features])
        both = {"with": after, "without": before}
        seen = bootstrap_metric(self.metric, self.rows.label, both, seed=0).difference("with", "without")
        sign = 1.0 if self.metric.greater_is_better else -1.0
        gain, error = sign * (new - score), (seen.high - seen.low) / 3.92
        kept = gain > 0 and gain > _WORTH * error
        if kept:
            self.base, self._score = [*self.base, *features], (after, new)
        return Family(name, features, gain, error, kept)

    def _rows(self, table: Table, made: Sequence[str]) -> Rows:
        label = self.target.encode(table)
        task, n = self.problem.task, self.target.n_outputs
        return Rows(table, task, cats=self.cats, conts=[*self.conts, *made], label=label, n_outputs=n)

    def _cross_fitted(self, features: Sequence[Feature]) -> tuple[torch.Tensor, float]:
        oof: torch.Tensor | None = None
        made = FeatureSet(list(features)) if features else None
        pairs = None if made is None else made.cross_fit(self.table, self.folds.codes, tables=self.tables)
        for outside, inside in self.folds:
            if pairs is None:
                train, valid = self.table.take(outside), self.table.take(inside)
            else:
                train, valid = next(pairs)
            outputs = [] if made is None else [n for n in made.outputs if train[n].plain().kind == "number"]
            model = _judge()
            model.time_limit = self.seconds / _FITS
            began = time.monotonic()
            model.fit(self._rows(train, outputs), None, seed=0)
            self.hurried |= time.monotonic() - began > _HURRIED * model.time_limit
            said = model.predict(self._rows(valid, outputs))
            if oof is None:
                oof = torch.zeros((len(self.table), *said.shape[1:]), dtype=torch.float64)
            oof[inside] = said
        assert oof is not None
        return oof, self.metric(self.rows.label, oof)


def _judge() -> Estimator:
    """A model that learns all that it can from what it is given: of a weak one every encoding looks like a gain."""
    if find_spec("lightgbm") is not None:
        return LGBMModel("judge", rounds=800, learning_rate=0.1, early_stopping_rounds=30)
    return XGBModel("judge", rounds=800, eta=0.1, early_stopping_rounds=30)


def _binned(column: Any) -> np.ndarray:
    values = column.number(torch.float64).cpu().numpy()
    finite = values[np.isfinite(values)]
    edges = np.unique(np.quantile(finite, np.linspace(0, 1, 33)[1:-1])) if len(finite) else np.zeros(0)
    return np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
