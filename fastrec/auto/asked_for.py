"""Features that kinds of columns ask for: without them nothing is learned from times, lists, texts, side tables."""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.auto.chosen import Family
from fastrec.auto.columns import ColumnInfo
from fastrec.auto.problem import Problem
from fastrec.features import Combine, DateOf, DatePart, JoinTable, ListLength, MultiHot, TextSvd, Tokens
from fastrec.features.base import Feature

_PARTS = ("year", "month", "day", "dayofweek", "dayofyear")
_CLOCK = ("hour", "minute")
_MONTH = re.compile(r"(month|mnth|mon)$")
_DAYS, _YEARS = ("day", "dayofmonth", "day_of_month", "dom"), ("year", "yr")  # after what stands before the month


def asked_for(problem: Problem) -> list[Family]:
    """Return features for columns that are neither numbers nor categories."""
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
    dates = [*_dates(problem), *_moments(problem, times)]
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


def _moments(problem: Problem, times: list[ColumnInfo]) -> list[Feature]:
    """Put a column of days and one of the time of day together: rows of the same hours are alike."""
    days = [c.name for c in times if not _has_clock(problem, c.name)][:1]
    return [
        DateOf(*(DatePart(d, part) for part in ("month", "day", "year")), clock=c.name, name=f"{c.name}_on_{d}")
        for d in days
        for c in _clocks(problem)
    ]


def _clocks(problem: Problem) -> list[ColumnInfo]:
    """Return columns of hours and minutes written as one number, such as 1737."""
    # By chance no hundred numbers all end in minutes, below 60.
    return [
        c
        for c in problem.kinds("number", "category")
        if c.whole and c.distinct >= 100 and _within(problem, c, 0, 2400) and _are_minutes(problem.train[c.name])
    ][:3]


def _are_minutes(column: pa.ChunkedArray) -> bool:
    values = pc.unique(column).drop_null().cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
    return bool((values % 100 < 60).all())


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


def _joins(problem: Problem) -> list[Family]:
    """Join side tables by a key that both have and that differs in every row of the side table."""
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
