"""``QuickTrial``: a quick model on some of the training rows, with and without features."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.auto import rankings
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem
from fastrec.errors import FastrecError
from fastrec.estimators import LGBMModel, XGBModel
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

# ``Chosen``: which features a recipe gets, and what each was found to be worth.


@dataclass
class Family:
    """Features of one idea.

    ``gain``: by how much the trial's score got better; None: not tried, their columns ask for them.
    """

    name: str
    features: list[Feature]
    gain: float | None = None
    error: float = 0.0
    kept: bool = True


@dataclass
class Chosen:
    """The features of a recipe.

    ``hurried``: the trials' models had too little time to learn all they could; ``trees``: the size of trees that
    learned most, a name of ``SIZES``; empty: sizes were not tried; ``rows``: how many rows a trial is made on.
    """

    families: list[Family] = field(default_factory=list)
    metric: str = ""
    rows: int = 0
    hurried: bool = False
    trees: str = ""
    trees_why: str = ""

    @property
    def features(self) -> list[Feature]:
        """Those in the recipe."""
        return [f for family in self.families if family.kept for f in family.features]


# Features that kinds of columns ask for: without them nothing is learned from times, lists, texts, side tables.

_MONTH = re.compile(r"(month|mnth|mon)$")
_DAYS, _YEARS = ("day", "dayofmonth", "day_of_month", "dom"), ("year", "yr")  # after what stands before the month


def asked_for(problem: Problem) -> list[Family]:
    """Return features for columns that are neither numbers nor categories."""
    made: list[Family] = []
    # Of a ranking the times of a whole group order nothing by themselves: they are tried.
    times = [c for c in problem.kinds("time") if c.name not in problem.shared]
    if times:
        days, clock = ("year", "month", "day", "dayofweek", "dayofyear"), ("hour", "minute")
        parts = [DatePart(c.name, [*days, *(clock if _has_clock(problem, c.name) else ())]) for c in times]
        between = [
            Combine(DatePart(b.name, "elapsed"), "-", DatePart(a.name, "elapsed"), name=f"{a.name}_to_{b.name}")
            for i, a in enumerate(times[:4])
            for b in times[i + 1 : 4]
        ]
        since = [DatePart(c.name, "elapsed") for c in times]
        made.append(Family("times taken apart", [*parts, *since, *between]))
    dates = _dates(problem)
    # A column of days and one of the time of day: rows of the same hours are alike.
    for day in [c.name for c in times if not _has_clock(problem, c.name)][:1]:
        parts = [DatePart(day, part) for part in ("month", "day", "year")]
        dates += [DateOf(*parts, clock=c.name, name=f"{c.name}_on_{day}") for c in _clocks(problem)]
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
    # Side tables are joined by a key that both have and that differs in every row of the side table.
    for name, table in problem.files.side.items():
        shared = [n for n in table.column_names if n in problem.train.column_names]
        keys = [n for n in shared if not table[n].null_count and len(table[n].unique()) == len(table)]
        new = [n for n in table.column_names if n not in shared]
        if keys and new:
            made.append(Family(f"columns of {name}", [JoinTable(name, keys[0], new)]))
    return made


def _dates(problem: Problem) -> list[Feature]:
    """Make dates of columns of months and days: neighbouring days are alike, neighbouring numbers need not be."""
    columns = {c.name.lower(): c for c in problem.kinds("number", "category") if c.whole}
    made: list[Feature] = []
    for low, month in columns.items():
        found = _MONTH.search(low)
        if found is None or not _within(problem, month, 1, 12):
            continue
        stem = found.string[: found.start()]
        day = next((columns[stem + d] for d in _DAYS if stem + d in columns), None)
        # Fewer than 25 different days may be days of the week.
        if day is None or day.distinct < 25 or not _within(problem, day, 1, 31):
            continue
        year = next((columns[stem + y] for y in _YEARS if stem + y in columns), None)
        known = year is not None and _within(problem, year, 1600, 2400)
        name = stem + ("date_of" if f"{stem}date" in columns else "date")
        parts = [month.name, day.name, *([year.name] if known and year else [])]
        date = DateOf(*parts, name=name)
        made += [date, *([DatePart(date, ["dayofweek", "dayofyear"])] if known else [])]
        made += [DateOf(*parts, clock=c.name, name=f"{c.name}_on_{name}") for c in _clocks(problem)]
    return made


def _clocks(problem: Problem) -> list[ColumnInfo]:
    """Return columns of hours and minutes written as one number, such as 1737."""
    clocks = []
    for c in problem.kinds("number", "category"):
        if c.whole and c.distinct >= 100 and _within(problem, c, 0, 2400):
            values = pc.unique(problem.train[c.name]).drop_null().cast(pa.int64(), safe=False)
            # By chance no hundred numbers all end in minutes, below 60.
            if bool((values.to_numpy(zero_copy_only=False) % 100 < 60).all()):
                clocks.append(c)
    return clocks[:3]


def _within(problem: Problem, c: ColumnInfo, low: int, high: int) -> bool:
    found = pc.min_max(problem.train[c.name])
    return low <= found["min"].as_py() <= found["max"].as_py() <= high


def _common_values(problem: Problem, c: ColumnInfo) -> list[str]:
    """Return the values that most lists hold; none of a column of numbers."""
    column = problem.train[c.name].slice(0, 50_000)
    if c.form is None:
        if not pa.types.is_string(column.type.value_type):
            return []
        values = pd.Series(pc.list_flatten(column).to_pandas(), dtype="object")
    else:
        text = pd.Series(column.to_pandas(), dtype="object").dropna()
        values = text.str.lower().str.findall(_pattern(c.form)).explode()
    counts = values.value_counts()
    # 16 values at most get a column each, those that 10 lists hold.
    return [str(v) for v in counts.index[counts >= 10][:16]]


def _pattern(sign: str) -> str:
    return r"\S+" if sign == " " else rf"\s*([^{sign}]+)"


def _has_clock(problem: Problem, name: str) -> bool:
    column = problem.train[name]
    if pa.types.is_date(column.type):
        return False
    some = pd.Series(column.slice(0, 5_000).to_pandas())
    some = pd.to_datetime(some, errors="coerce", utc=True).dropna()
    return bool(len(some) and ((some.dt.hour != 0) | (some.dt.minute != 0)).any())


class QuickTrial:
    """A quick model on at most ``rows`` training rows in ``n_folds`` parts, with and without features."""

    def __init__(
        self, problem: Problem, base: Sequence[Feature], seconds: float, *, rows: int = 50_000, n_folds: int = 3
    ) -> None:
        self.problem, self.base, self.seconds, self.n_folds = problem, list(base), seconds, n_folds
        self.hurried = False
        table = Table.read(problem.train)
        draw = torch.Generator().manual_seed(0)
        self.target: Target | None = None
        if problem.task == "ranking":
            if not problem.as_shown:  # as the recipe does it
                table = table.take(torch.randperm(len(table), generator=draw))
            codes = table[str(problem.lists)].coded().codes.long()
            table = table.take(torch.argsort(codes, stable=True))
            size = torch.bincount(codes)
            # whole groups, drawn at random
            drawn = torch.randperm(len(size), generator=draw)
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
        usual = {"multiclass": "logloss", "ranking": problem.metric}
        self.metric = get_metric(usual.get(problem.task) or default_metric(problem.task))
        self.tables = {n: Table.read(t) for n, t in problem.files.side.items()}
        # Columns that are one for a whole group have to pay, too.
        own = [c for c in problem.kinds("number", "category") if c.name not in problem.shared]
        self.cats, self.conts = ([c.name for c in own if c.kind == k] for k in ("category", "number"))
        self.rows = self._rows(self.table, [])
        self._score: tuple[torch.Tensor, float] | None = None

    def _cut(self) -> Folds:
        """Return folds like the run's: whole groups, blocks of time, or rows at random."""
        problem = self.problem
        if problem.group is not None and problem.group in self.table:
            return Folds.group(self.table, problem.group, self.n_folds)
        if problem.time is not None and problem.time in self.table:
            times = self.table[problem.time].number(torch.float64).cpu()
            if problem.lists is not None:  # a group's is that of its first row
                _, of, size = torch.unique_consecutive(
                    self.table[problem.lists].coded().codes, return_inverse=True, return_counts=True
                )
                first = (size.cumsum(0) - size)[of]
                block = times[first].argsort(stable=True).argsort(stable=True) * self.n_folds // len(times)
                return Folds(block[first], method="blocks of time")
            place = torch.empty(len(times), dtype=torch.int64)
            place[torch.argsort(times, stable=True)] = torch.arange(len(times))
            return Folds(place * self.n_folds // len(times), method="blocks of time")
        if problem.lists is not None:
            return Folds.group(self.table, problem.lists, self.n_folds)
        if problem.task in ("binary", "multiclass"):
            return Folds.stratified(self.table, self.label.long(), self.n_folds)
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
        column = self.table[c.name]
        if c.kind == "category" or c.key:
            codes = column.coded().codes.cpu().numpy()
        else:  # 32 bins of as many rows, and one of the missing values
            values = column.number(torch.float64).cpu().numpy()
            finite = values[np.isfinite(values)]
            edges = np.unique(np.quantile(finite, np.linspace(0, 1, 33)[1:-1])) if len(finite) else np.zeros(0)
            codes = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values))
        y = self.label.double().numpy()
        y = y if y.ndim == 1 else y[:, 0]
        _, codes = np.unique(codes, return_inverse=True)
        count = np.bincount(codes)
        mean = np.bincount(codes, y) / count
        whole = ((y - y.mean()) ** 2).sum()
        between = (count * (mean - y.mean()) ** 2).sum()
        n, k = len(y), len(count)
        return float((between - (k - 1) * (whole - between) / max(n - k, 1)) / max(whole, 1e-12))

    def family(self, name: str, features: list[Feature], columns: Sequence[ColumnInfo] = ()) -> Family:
        """Try features, or further columns; if they improve the score by more than its error, they join the base."""
        if self._score is None:
            self._score = self._cross_fitted(self.base)
        before, _ = self._score
        own = self.cats, self.conts
        self.cats, self.conts = (
            [*had, *(c.name for c in columns if c.kind == k)] for had, k in zip(own, ("category", "number"))
        )
        after, new = self._cross_fitted([*self.base, *features])
        gain, error = self.gain(self.rows.label, after, before, self.rows.groups)
        kept = is_worth(gain, error)
        if kept:
            self.base, self._score = [*self.base, *features], (after, new)
        else:
            self.cats, self.conts = own
        return Family(name, features, gain, error, kept)

    def gain(
        self,
        label: torch.Tensor | None,
        after: torch.Tensor,
        before: torch.Tensor,
        groups: torch.Tensor | None = None,
    ) -> tuple[float, float]:
        """Return the gain of predictions over others of the same rows, and its standard error.

        ``groups``: of a ranking; what is independent are the groups that folds do not split.
        """
        options = {"groups": groups, "clusters": self.clusters if groups is not None else None}
        seen = bootstrap_metric(self.metric, label, {"after": after, "before": before}, seed=0, **options)
        apart = seen.difference("after", "before")
        sign = 1.0 if self.metric.greater_is_better else -1.0
        gain = sign * (self.metric(label, after, groups=groups) - self.metric(label, before, groups=groups))
        return gain, (apart.high - apart.low) / 3.92

    @property
    def clusters(self) -> torch.Tensor | None:
        """What rows of a ranking are independent of each other by: users, or the like; None: the groups are."""
        key = self.problem.group
        return self.table[key].coded().codes.long() if key is not None and key in self.table else None

    def parts(self) -> Iterator[tuple[Rows, Rows]]:
        """Iterate over the rows outside and inside of each fold, with the features."""
        return self._parts(self.base)

    def _rows(self, table: Table, made: Sequence[str]) -> Rows:
        task, columns = self.problem.task, {"cats": self.cats, "conts": [*self.conts, *made]}
        if self.target is None:
            label = table[self.problem.target[0]].number(torch.float64).cpu()
            return Rows(
                table, task, **columns, label=label, groups=table[str(self.problem.lists)].group_numbers().cpu()
            )
        label, n = self.target.encode(table), self.target.n_outputs
        return Rows(table, task, **columns, label=label, n_outputs=n)

    def _parts(self, features: Sequence[Feature]) -> Iterator[tuple[Rows, Rows]]:
        if not features:
            for outside, inside in self.folds:
                yield self._rows(self.table.take(outside), []), self._rows(self.table.take(inside), [])
            return
        made = FeatureSet(list(features), key=rankings.feature_key(self.problem))
        for train, valid in made.cross_fit(self.table, self.folds.codes, tables=self.tables):
            outputs = [n for n in made.outputs if train[n].plain().kind == "number"]
            yield self._rows(train, outputs), self._rows(valid, outputs)

    def _cross_fitted(self, features: Sequence[Feature]) -> tuple[torch.Tensor, float]:
        oof: torch.Tensor | None = None
        # It learns all it can: with a weak model every encoding looks like a gain.
        kind, rate = (LGBMModel, "learning_rate") if find_spec("lightgbm") is not None else (XGBModel, "eta")
        judge = kind("judge", rounds=800, early_stopping_rounds=30, **{rate: 0.1}, **self.pointwise(kind))
        for (_, inside), (train, valid) in zip(self.folds, self._parts(features), strict=True):
            model = judge.fresh()
            # The time is shared by all fits, and a few more than there are; of a ranking there are more ideas.
            model.time_limit = self.seconds / (36 if self.problem.task == "ranking" else 24)
            began = time.monotonic()
            model.fit(train, None, seed=0)
            # A model that used nine tenths of its time was stopped by it.
            self.hurried |= time.monotonic() - began > 0.9 * model.time_limit
            said = model.predict(valid)
            if oof is None:
                oof = torch.zeros((len(self.table), *said.shape[1:]), dtype=torch.float64)
            oof[inside] = said
        assert oof is not None
        if self.problem.task == "ranking":
            # Metrics count equal scores as the worst order: whatever told rows apart would be a gain.
            drawn = torch.randperm(len(oof), generator=torch.Generator().manual_seed(0))
            ascending = drawn[torch.argsort(oof[drawn], stable=True)]
            oof[ascending] = torch.arange(len(oof), dtype=torch.float64)
        return oof, self.metric(self.rows.label, oof, groups=self.rows.groups)

    def pointwise(self, kind: type[LGBMModel] | type[XGBModel]) -> dict[str, Any]:
        """Return the judge's parameters: of a ranking row by row, as it stops by a loss that is smoother than ranks."""
        if self.problem.task != "ranking":
            return {}
        flags = bool((self.label <= 1).all())
        if kind is LGBMModel:
            return {"objective": "binary" if flags else "regression", "num_leaves": 15, "min_data_in_leaf": 100}
        return {"objective": "binary:logistic" if flags else "reg:squarederror", "max_depth": 4, "min_child_weight": 5}


def is_worth(gain: float, error: float, times: float = 1.0) -> bool:
    """Return whether a gain exceeds so many of its standard errors."""
    return gain > 0 and gain > times * error


# Which features a table gets: those that its kinds of columns ask for, and of the others what pays out of fold.


def choose_features(problem: Problem, *, seconds: float = 60.0, say: Callable[[str], None] | None = None) -> Chosen:
    """Choose features; what does not fit into ``seconds`` is left out.

    Dates are taken apart, lists and texts made into numbers, side tables joined: without that nothing could be learned
    from them. Counts, target means, crosses, row statistics and deviations are tried one after the other on some tens
    of thousands of training rows: a model with and without them, cross-fitted, on the same folds.
    """
    say, ends = say or (lambda text: None), time.monotonic() + seconds
    chosen = Chosen(asked_for(problem))
    if problem.task == "multilabel" or len(problem.target) > 1 or len(problem.classes) > 40 or seconds <= 0:
        return chosen
    ranking = problem.task == "ranking"
    trial = QuickTrial(problem, chosen.features, seconds, rows=limits.RANKED_TRIAL_ROWS if ranking else 50_000)
    chosen.metric, chosen.rows = trial.metric.name, len(trial.table)

    def note(family: Family) -> None:
        word = "kept" if family.kept else "left out"
        chosen.families.append(family)
        chosen.hurried = trial.hurried
        say(f"{family.name}: {trial.metric.name} {family.gain:+.5f} ± {family.error:.5f}, {word}")

    # first: what helps within a group may depend on whose it is
    shared = rankings.shared_columns(problem) if ranking else []
    for word, some in (("few", [c for c in shared if c.distinct <= limits.FEW_CLASSES]), ("many", shared)):
        if some := [c for c in some if c.name not in (*problem.drop, *trial.cats, *trial.conts)]:
            note(family := trial.family(f"columns of the group of {word} values", [], some))
            if not family.kept:
                why = f"it is one for a whole group, and a trial's {chosen.metric} is no better with such columns"
                problem.drop |= {c.name: why for c in some}
    # what was kept joins the base: the next idea has to pay beside it
    for name, make in rankings.IDEAS if ranking else _IDEAS:
        if time.monotonic() > ends:
            break
        try:
            features = make(problem, trial)
        except FastrecError as error:
            say(f"{name}: not tried ({error.problem})")
            continue
        if features:
            note(trial.family(name, features))
    return chosen


# What is tried


def _keys(problem: Problem, least: int) -> list[str]:
    """Return categories, and then numbers that are keys, of so many different values."""
    columns = [*problem.kinds("category"), *(c for c in problem.kinds("number") if c.key)]
    return [c.name for c in columns if c.distinct >= least]


def _counts(problem: Problem, trial: QuickTrial) -> list[Feature]:
    cols = _keys(problem, limits.COUNTED_VALUES)
    return [CountEncode(cols[:40], log=True)] if cols else []


def _means(problem: Problem, trial: QuickTrial) -> list[Feature]:
    if trial.target_options is None:
        return []
    cols = _keys(problem, limits.MEAN_VALUES)
    return [TargetEncode(cols[:30], problem.target[0], smooth=20, **trial.target_options)] if cols else []


def _triples(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Add a third column to the best pairs: a flight is known by its two ends and its minute together."""
    found = [f.cols for f in trial.base if isinstance(f, TargetEncode) and isinstance(f.cols, list)]
    pairs = [c.columns for cols in found for c in cols if isinstance(c, Cross)]
    return _searched(problem, trial, 6, pairs[:4]) if pairs else []


def _searched(
    problem: Problem, trial: QuickTrial, most: int, extend: Sequence[Sequence[str]] | None = None
) -> list[Feature]:
    """Return target means of the crosses that ``search_crosses`` keeps of the most informative columns."""
    if trial.target_options is None or problem.task == "multiclass":
        return []
    cols = [c for c in problem.kinds("category", "number") if c.distinct >= 2]
    told = {c.name: trial.told_by(c) for c in cols}
    # Pairs grow with the square of the columns: the 12 most informative ones are paired.
    sources: list[str | Feature] = []
    for c in sorted(cols, key=lambda c: -told[c.name])[:12]:
        # A number of many values is a key by its twentieths.
        plain = c.kind == "category" or c.key or (c.whole and c.distinct <= 30)
        sources.append(c.name if plain else Bucketize(c.name, quantiles=20))
    if len(sources) < (2 if extend is None else 3):
        return []
    rows = trial.table.with_columns({"__y__": trial.rows.label})
    folds = trial.folds.codes
    search = search_crosses(rows, sources, "__y__", folds=folds, max_pairs=most, smooth=20, extend=extend)
    kept = search.crosses()
    return [TargetEncode(kept, problem.target[0], smooth=20, **trial.target_options)] if kept else []


def _row_stats(problem: Problem, trial: QuickTrial) -> list[Feature]:
    numbers = [c.name for c in problem.kinds("number")]
    if len(numbers) < limits.WIDE_TABLE:
        return []
    return [RowStats(numbers, stats=("zeros", "missing", "nunique", "sum", "std", "max"))]


def _deviations(problem: Problem, trial: QuickTrial) -> list[Feature]:
    groups = [
        c for c in problem.kinds("category", "number") if 5 <= c.distinct <= 5_000 and (c.key or c.kind == "category")
    ]
    numbers = [c for c in problem.kinds("number") if c.distinct > 50]
    if not groups or not numbers or len(numbers) > limits.WIDE_TABLE:
        return []
    groups = sorted(groups, key=lambda c: -trial.told_by(c))[:2]
    numbers = sorted(numbers, key=lambda c: -trial.told_by(c))[:4]
    return [
        DeviationFromGroup([c.name for c in numbers if c.name != g.name], by=g.name, over="train")
        for g in groups
        if any(c.name != g.name for c in numbers)
    ]


_IDEAS: tuple[tuple[str, Callable[[Problem, QuickTrial], list[Feature]]], ...] = (
    ("counts of values", _counts),
    ("target means of values", _means),
    ("target means of pairs", partial(_searched, most=20)),
    ("target means of triples", _triples),
    ("statistics of a row", _row_stats),
    ("deviations from a group", _deviations),
)
