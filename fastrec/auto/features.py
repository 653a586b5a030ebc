"""``choose_features``: which features a recipe gets, and what each was found to be worth."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.stats import rankdata

from fastrec._core import limits
from fastrec.auto import logs
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem, shared_columns
from fastrec.auto.trial import Family, QuickTrial, is_worth
from fastrec.errors import FastrecError
from fastrec.features import (
    Bucketize,
    Combine,
    CountEncode,
    Cross,
    DateOf,
    DatePart,
    DeviationFromGroup,
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


@dataclass
class Chosen:
    """The features of a recipe, and what trials found.

    ``rows``: of a trial; ``hurried``: its models had too little time; ``trees``: the best size of trees, a name of
    ``SIZES``, empty if sizes were not tried.
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

    @property
    def doubt(self) -> str:
        """Why most trees are to learn from the files' own columns; empty: what was found is believed."""
        gains = [(f.gain, f.error) for f in self.families if f.kept and f.gain is not None]
        # A model that was stopped early finds help where there is none. A gain of many errors is believed all the same.
        if not gains or not self.hurried or any(is_worth(*g, 5.0) for g in gains):
            return ""
        return "Trials were hurried and no gain is 5 standard errors: most trees learn from the files' own columns."


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
        if problem.log is not None and name == problem.log.table:  # a join would take events of later times
            continue
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


def choose_features(problem: Problem, *, seconds: float = 60.0, say: Callable[[str], None] | None = None) -> Chosen:
    """Choose the features of a problem within ``seconds``, and pass each finding to ``say``.

    Features that models need are always chosen: parts of dates, numbers of lists and texts, joined side tables. Counts,
    target means, crosses, row statistics and deviations (for a ranking, ``logs.ideas``) are tried one after the other
    on some training rows. Each is kept if a model is better with it than without it, cross-fitted on the same folds.
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
        metric = f"{trial.metric.name} " if family.gain or family.error else ""
        say(f"{family.name}: {metric}{family.figures}, {word}")

    # what was kept joins the base: the next idea has to pay beside it
    ideas = logs.ideas(problem) if ranking else _IDEAS
    if not ranking and not problem.kinds("category"):  # where all are numbers it finds the most
        ideas = sorted(_IDEAS, key=lambda idea: idea[1] is not _arithmetic)
    took = 0.0
    for i, (name, make) in enumerate(ideas):
        began = time.monotonic()
        if began + took > ends:  # the next idea is taken to last as long as the one before it
            break
        if ranking:  # features of owners are dear, others cheap: what one leaves goes to those after it
            trial.time_limit = (ends - time.monotonic()) / (trial.n_folds * (len(ideas) - i + 2))
        known = set(map(repr, trial.base))  # ideas share what they are made from
        try:  # a table of ids whose features have one value each leaves nothing to learn from
            found, *nested = make(problem, trial) if make is _arithmetic else [make(problem, trial)]
            if features := [f for f in found if repr(f) not in known]:
                # If noise is kept, the run's score is flattered, as its folds do not choose again. Of 16 random targets
                # (400 rows, 20 numbers) one gained 2.9 errors and no other 2; the tables that gain, gain 3 and more.
                note(trial.family(name, features, times=2.5 if nested else 1.0, nested=nested))
                took = time.monotonic() - began
        except FastrecError as error:
            say(f"{name}: not kept ({error.problem})")
    shared = shared_columns(problem) if ranking else []
    for word, some in (("few", [c for c in shared if c.distinct <= limits.FEW_CLASSES]), ("many", shared)):
        if some := [c for c in some if c.name not in (*problem.drop, *trial.cats, *trial.conts)]:
            note(family := trial.family(f"columns of the group of {word} values", [], some))
            if not family.kept:
                why = f"it is one for a whole group, and a trial's {chosen.metric} is no better with such columns"
                problem.drop |= {c.name: why for c in some}
    if chosen.doubt and problem.log is None:
        say(chosen.doubt)
    return chosen


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


def _arithmetic(problem: Problem, trial: QuickTrial) -> list[list[Feature]]:
    """Return sums, differences, products and quotients of two numbers that tell what the trial's model has not found.

    First those that all rows choose, then for each fold of the trial those that the rows outside it choose.
    Quick trees learn the residuals of its cross-fitted predictions from the numbers and from their pairs; the pairs of
    the largest gains are returned, of those that order rows alike only the first. Of many pairs the most alike are
    searched: if two numbers are nearly equal, trees cannot find their difference.
    """
    told = {c.name: trial.told_by(c) for c in problem.kinds("number") if c.distinct > 2}
    numbers = sorted(told, key=lambda n: -told[n])  # the more informative of two is divided by the other
    ranks = [rankdata(np.nan_to_num(trial.table[n].number(torch.float64).cpu().numpy())) for n in numbers]
    with np.errstate(invalid="ignore"):  # a sampled column may be constant
        alike = np.nan_to_num(np.abs(np.corrcoef(ranks))) if len(numbers) > 1 else np.ones((1, 1))
    places = sorted(combinations(range(len(numbers)), 2), key=lambda ij: -alike[ij])[: limits.ARITHMETIC_PAIRS]
    two = [(numbers[i], numbers[j]) for i, j in sorted(places)]
    signs: tuple[Literal["+", "-", "*", "/"], ...] = ("+", "-", "*", "/")
    pairs = [Combine(a, how, b) for a, b in two for how in signs] + [Combine(b, "/", a) for a, b in two]
    pairs = [f for f in pairs if f.outputs[0] not in trial.table]  # a column may have a pair's name
    if not pairs:
        return [[]]
    found, values = trial.left_over(pairs, [n for n in numbers if any(n in ab for ab in two)])
    place = cache(lambda name: rankdata(np.nan_to_num(values[name])))

    def best(gains: dict[str, float]) -> list[Feature]:
        kept: list[Feature] = []
        for feature in sorted(pairs, key=lambda f: -gains[f.outputs[0]]):
            name = feature.outputs[0]
            if len(kept) == limits.ARITHMETIC_KEPT or not gains[name]:
                break
            own, others = place(name), [place(f.outputs[0]) for f in kept]
            # One that is equal in all rows orders nothing.
            if own.std() > 0 and not any(np.corrcoef(own, other)[0, 1] ** 2 > limits.ALIKE_R2 for other in others):
                kept.append(feature)
        return kept

    return [best(gains) for gains in found]


def _row_stats(problem: Problem, trial: QuickTrial) -> list[Feature]:
    numbers = [c.name for c in problem.kinds("number")]
    if len(numbers) < limits.WIDE_TABLE:
        return []
    return [RowStats(numbers, stats=("zeros", "missing", "nunique", "sum", "std", "max"))]


def _deviations(problem: Problem, trial: QuickTrial) -> list[Feature]:
    groups = [c for c in problem.kinds("category", "number") if c.key or c.kind == "category"]
    groups = [c for c in groups if 5 <= c.distinct <= 5_000]
    numbers = [c for c in problem.kinds("number") if c.distinct > 50]
    if not groups or not numbers or len(numbers) > limits.WIDE_TABLE:
        return []
    groups = sorted(groups, key=lambda c: -trial.told_by(c))[:2]
    numbers = sorted(numbers, key=lambda c: -trial.told_by(c))[:4]
    pairs = [([c.name for c in numbers if c.name != g.name], g.name) for g in groups]
    return [DeviationFromGroup(names, by=by, over="train") for names, by in pairs if names]


_IDEAS: tuple[tuple[str, Callable[[Problem, QuickTrial], list[Feature]]], ...] = (
    ("counts of values", _counts),
    ("target means of values", _means),
    ("arithmetic of two numbers", _arithmetic),
    ("target means of pairs", partial(_searched, most=20)),
    ("target means of triples", _triples),
    ("statistics of a row", _row_stats),
    ("deviations from a group", _deviations),
)
