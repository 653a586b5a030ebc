"""Simulated files in the form of the Rossmann competition's data, with the expected score of the truth.

**World.** A store has a size, a weekday profile, an effect of promotions, of the school holidays and of the season, a
drift and a level that wanders from week to week. It opens from Monday to Saturday (one in thirty on Sundays, too), but
not on public holidays; one in eight is closed for some weeks once. Promotions run from Monday to Friday of every other
week, in all stores.

**Sales** of an open day are ``exp(size + weekday + promotion + season + school + drift + days beside a holiday + level
+ noise)`` with a normal noise of .1: no forecast has an RMSPE below about .1, and the level's wandering comes on top.

Run ``fastrec simulate competitions/rossmann --sessions 100 --out DIR``: sessions are stores here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError

FILES = ("rossmann.parquet", "store.csv")
NOISE = 0.1
_FIRST = np.datetime64("2013-01-01")
_FIXED = ("01-01", "05-01", "10-03", "12-25", "12-26")
_MOVING = ("2013-03-29", "2013-04-01", "2013-05-09", "2013-05-20", "2014-04-18", "2014-04-21", "2014-05-29",
           "2014-06-09", "2015-04-03", "2015-04-06", "2015-05-14", "2015-05-25")  # fmt: skip
_INTERVALS = ("Jan,Apr,Jul,Oct", "Feb,May,Aug,Nov", "Mar,Jun,Sept,Dec")


@dataclass(frozen=True)
class SimulationSummary:
    """A summary: the folder, stores, days, rows, and the RMSPE of the best forecast of the noise alone."""

    out: Path
    stores: int
    days: int
    rows: int
    oracle_rmspe: float


def simulate(
    stores: int,
    out: str | Path,
    *,
    days: int = 942,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationSummary:
    """Write ``rossmann.parquet`` and ``store.csv``.

    Args:
        stores: how many.
        out: the folder to make; an earlier one with these files is replaced.
        days: how many, from 2013-01-01 on.
        seed: other seeds give other stores and days.
        progress: called with stores done and stores in all.

    Raises:
        DataError: fewer than one store or two periods of six weeks, or ``out`` holds other files.
    """
    if stores < 1 or days < 84:
        raise DataError(f"{stores} stores and {days} days", remedy="Give one store and 84 days or more")
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(p.name not in FILES for p in out.iterdir())):
        raise DataError("holds files of something else", file=out, remedy="Name an empty or a new folder")
    rng = np.random.default_rng(seed)
    table, facts = _stores(rng, stores)
    date = _FIRST + np.arange(days)
    weekday = (np.arange(days) + 1) % 7  # 2013-01-01 was a Tuesday; Monday 0
    week = (np.arange(days) + 1) // 7
    promo = (week % 2 == 0) & (weekday < 5)
    holiday = np.array([d in _MOVING or d[5:] in _FIXED for d in date.astype(str)])
    season = (date - date.astype("datetime64[Y]")).astype(int)
    school = np.isin(season // 14, (6, 13, 14, 15, 21))
    open_ = ((weekday[None] < 6) | facts["sunday"][:, None]) & ~holiday[None]
    for s in np.flatnonzero(rng.random(stores) < 0.125):
        start = rng.integers(20, max(days - 80, 21))
        open_[s, start : start + rng.integers(8, 40)] = False
    log_sales = _of_stores(facts, weekday, promo, school, season) + _of_days(holiday, season)
    log_sales += np.cumsum(rng.normal(0, 0.012, (stores, week[-1] + 1)), 1)[:, week]
    log_sales += rng.normal(0, NOISE, log_sales.shape)
    place, day = np.nonzero(open_)
    sales = np.maximum(np.exp(log_sales[place, day]).round(), 1).astype(np.int64)
    rows = {
        "Store": place + 1,
        "DayOfWeek": weekday[day] + 1,
        "Date": pa.array(date[day].astype("datetime64[ns]")),
        "Sales": sales,
        "Customers": np.maximum((sales / 9).round(), 1).astype(np.int64),
        "Open": np.ones(len(day), dtype=np.int64),
        "Promo": promo[day].astype(np.int64),
        "StateHoliday": pa.array(["0"] * len(day)),
        "SchoolHoliday": school[day].astype(np.int64),
    }
    joined = pa.table(rows)
    for name in table.column_names[1:]:
        joined = joined.append_column(name, table[name].take(pa.array(place)))
    with atomic_folder(out) as part:
        pq.write_table(joined, part / FILES[0])
        pa.csv.write_csv(table, part / FILES[1])
    if progress is not None:
        progress(stores, stores)
    return SimulationSummary(Path(out), stores, days, len(day), float(np.sqrt(1 - np.exp(-(NOISE**2)))))


def _of_stores(facts: dict[str, np.ndarray], weekday, promo, school, season) -> np.ndarray:
    """Draw each store's own part of a day's log sales: float64 ``[stores, days]``."""
    days = np.arange(len(weekday))
    own = {n: v[:, None] for n, v in facts.items() if v.ndim == 1}
    yearly = np.cos(2 * np.pi * (season - 340) / 365.25)
    habits = own["promo"] * promo + own["school"] * school + own["season"] * yearly + own["drift"] * days / 365.25
    return own["size"] + facts["weekday"][:, weekday] + habits


def _of_days(holiday: np.ndarray, season: np.ndarray) -> np.ndarray:
    """Return the additional log sales beside holidays and before Christmas: float64 ``[days]``."""
    more = np.where((season >= 335) & (season < 358), (season - 335) / 60, 0.0)
    more[:-1] += holiday[1:] * 0.15
    more[1:] += holiday[:-1] * 0.05
    return more


def _stores(rng: np.random.Generator, n: int) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """Draw ``store.csv`` and the stores' hidden parameters."""
    kind, stock = rng.choice(4, n, p=[0.54, 0.02, 0.13, 0.31]), rng.choice(3, n, p=[0.53, 0.01, 0.46])
    rival, lasting = rng.random(n) < 0.68, rng.random(n) < 0.51
    year = rng.integers(2004, 2016, n)
    interval = rng.choice(3, n)
    table = pa.table(
        {
            "Store": np.arange(1, n + 1),
            "StoreType": pa.array([("a", "b", "c", "d")[k] for k in kind]),
            "Assortment": pa.array([("a", "b", "c")[k] for k in stock]),
            "CompetitionDistance": np.exp(rng.normal(7.6, 1.2, n)).round(-1) + 20,
            "CompetitionOpenSinceMonth": pa.array(rng.integers(1, 13, n).astype(float), mask=~rival),
            "CompetitionOpenSinceYear": pa.array(year.astype(float), mask=~rival),
            "Promo2": lasting.astype(np.int64),
            "Promo2SinceWeek": pa.array(rng.integers(1, 53, n).astype(float), mask=~lasting),
            "Promo2SinceYear": pa.array(rng.integers(2009, 2016, n).astype(float), mask=~lasting),
            "PromoInterval": pa.array([_INTERVALS[k] if on else None for k, on in zip(interval, lasting)]),
        }
    )
    profile = np.array([0.12, 0.02, -0.02, -0.02, 0.03, -0.1, -0.15])
    return table, {
        "sunday": rng.random(n) < 1 / 30,
        "size": rng.normal(8.6, 0.35, n) + 0.15 * (stock == 2),
        "weekday": profile + rng.normal(0, 0.05, (n, 7)) - 0.1 * (kind == 0)[:, None] * (np.arange(7) == 5),
        "promo": rng.normal(0.33, 0.08, n),
        "school": rng.normal(0.03, 0.03, n),
        "season": rng.normal(0.04, 0.03, n),
        "drift": rng.normal(0.02, 0.05, n),
    }
