"""The files of the Rossmann competition as rows: facts known ahead of each day, and when its sales are forecast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fastrec.competition import CompetitionData
from fastrec.errors import DataError, MissingFileError
from fastrec.table import Table
from fastrec.table.read import read_file

HORIZON = 42  # days: six weeks are forecast at once
_CARNIVAL = np.array(["2013-02-11", "2014-03-03", "2015-02-16"], dtype="datetime64[D]")  # Mondays
_LEARNED_AFTER = 4 * HORIZON  # days: of earlier rows too little is known
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_FAR = 15  # days; what is farther is not told apart
_LONG = 30  # days, of school holidays and the time between them
_AGREE = 0.985  # of the days on which two stores of one region are open, as many have the same school holidays


def read(folder: Path, *, rows: int | None = None, device: torch.device) -> CompetitionData:
    """Read ``rossmann.parquet`` and hold its last six weeks out as the test.

    Args:
        folder: holds ``rossmann.parquet``: an open day of a store a row, with the columns of ``train.csv`` and
            ``store.csv``.
        rows: use only about this many rows: those of the first stores.
        device: where the tables go.

    Raises:
        MissingFileError: it is not there.
        DataError: it covers too few weeks.
    """
    path = folder / "rossmann.parquet"
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="See the competition's README.md")
    table = Table.read(read_file(path))
    if rows is not None and rows < len(table):
        stores, counts = torch.unique(table["Store"].integer(), return_counts=True)
        some = stores[: int((counts.cumsum(0) < rows).sum()) + 1]
        table = table.take(torch.isin(table["Store"].integer(), some))
    table = with_calendar(table).to(device)
    is_test = table["origin"].integer() == table["origin"].integer().max()
    if bool(is_test.all()):
        raise DataError(f"the file covers {HORIZON} days or fewer", file=path, remedy="Give a longer one")
    test = table.take(is_test)
    return CompetitionData(table.take(~is_test), test.drop(["Sales"]), truth=test.select(["Sales"]))


def with_calendar(table: Table) -> Table:
    """Add facts known ahead of each day: no column is made from sales.

    Sales are forecast for six weeks at once: ``origin`` is the first of the row's six weeks, which are counted back
    from the last day of the file; what is known of sales is those of days before it.
    """
    day = (table["Date"].number().numpy() / 86_400).astype(np.int64)
    date = day.astype("datetime64[D]")
    store, codes = np.unique(table["Store"].integer().numpy(), return_inverse=True)
    first, last = int(day.min()), int(day.max())
    origin = last + 1 - HORIZON * ((last - day) // HORIZON + 1)
    at = codes, day - first
    calendar = np.arange(first, last + 1).astype("datetime64[D]")
    weekday = (np.arange(first, last + 1) + 3) % 7  # Monday 0
    is_open = np.zeros((len(store), len(calendar)), dtype=bool)
    is_open[at] = True
    promo = np.zeros(len(calendar), dtype=bool)
    promo[day[table["Promo"].number().numpy() > 0] - first] = True  # it is the same in all stores
    school = np.zeros(is_open.shape, dtype=bool)
    school[at] = table["SchoolHoliday"].number().numpy() > 0
    closed = ~is_open & (weekday != 6)  # a holiday, or works
    often = closed.mean(0) > 0.6
    long = closed & _spread(closed, 5)  # six days or more around: works
    carnival = (np.abs(date[:, None] - _CARNIVAL) <= np.timedelta64(4, "D")).any(1)
    year, month = date.astype("datetime64[Y]"), date.astype("datetime64[M]")
    month_day = (date - month).astype(int) + 1
    shut = {"closed": closed, "long_closed": long, "holiday": np.broadcast_to(often, closed.shape)}
    near = {f"{n}_{w}": _days_to(m, back=w == "since")[at] for n, m in shut.items() for w in ("since", "until")}
    weekdays = is_open & (weekday < 5)
    region = regions(school, weekdays)
    off = holidays_of(region, school, weekdays)
    everywhere = np.broadcast_to(promo, closed.shape)
    around = {"open": is_open, "promo": everywhere, "school": school}
    # What comes after the file's last day: two weeks like the last two, school holidays as on the last day.
    later = {"open": is_open[:, -14:], "promo": everywhere[:, -14:], "school": np.repeat(off[region][:, -1:], 14, 1)}
    week = {f"{n}_before": _count(m, 7, back=True)[at] for n, m in around.items()}
    week |= {f"{n}_after": _count(np.hstack([m, later[n]]), 7, back=False)[at] for n, m in around.items()}
    months = (year.astype(int) + 1970) * 12 + (month - year.astype("datetime64[M]")).astype(int) + 1
    columns = {
        "origin": (origin * 86_400).astype("datetime64[s]"),
        "ahead": (day - origin).astype(np.float64),
        "month_day": month_day.astype(np.float64),
        "year_day": (date - year).astype(np.float64),
        **near,
        **week,
        "region": region[codes].astype(np.int64),
        "region_school": off[region][at].astype(np.float64),
        "region_since": _days_alike(off)[region][at],
        "region_until": _days_alike(off[:, ::-1])[:, ::-1][region][at],
        **_of_store(table, months, day),
        "Date": date.astype(str),  # as it is submitted
        "day": date.astype("datetime64[s]"),
        "counted": ((near["holiday_since"] > 3) & (near["holiday_until"] > 3) & ~carnival).astype(np.int64),
        "weight": (origin - origin.min() >= _LEARNED_AFTER).astype(np.float64),
    }
    return table.with_columns(columns).drop(["Open", "Customers"])


def _of_store(table: Table, months: np.ndarray, day: np.ndarray) -> dict[str, np.ndarray]:
    """Return how long there has been a competitor, and the store's own lasting promotion."""
    rival_year, rival_month = (table[f"CompetitionOpenSince{part}"].number().numpy() for part in ("Year", "Month"))
    year, week = (table[f"Promo2Since{part}"].number().numpy() for part in ("Year", "Week"))
    weeks = np.clip((day - (year - 1970) * 365.25 - week * 7) // 7, -1, 200)
    coded = table["PromoInterval"].coded()  # 'Jan,Apr,Jul,Oct': every third month from January on
    phase = np.array([-1, *(_MONTHS.index(text[:3]) // 3 for text in coded.keys.columns[0].to_pylist())])[coded.codes]
    running = np.where((phase >= 0) & (weeks >= 0), (months - 1 - phase) % 3, -1)
    competition = np.clip(months - rival_year * 12 - rival_month, -12, 60)
    return {"competition_months": competition, "promo2_weeks": weeks, "promo2_month": running + 0.0}


def regions(school: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Group stores into regions of equal school holidays. (The files do not tell the states.)

    A store joins the first store of the region with which it agrees best, or begins a region of its own.

    Args:
        school: bool ``[stores, days]``: school holidays.
        seen: bool: where ``school`` is known.

    Returns:
        int64 ``[stores]``, from 0.
    """
    yes, no = (school & seen).astype(np.float32), (~school & seen).astype(np.float32)
    alike = (yes @ yes.T + no @ no.T) / np.maximum(seen.astype(np.float32) @ seen.T.astype(np.float32), 1)
    region, leaders = np.zeros(len(school), dtype=np.int64), []
    for store in range(len(school)):
        near = alike[store, leaders]
        if len(leaders) and near.max() >= _AGREE:
            region[store] = near.argmax()
        else:
            region[store] = len(leaders)
            leaders.append(store)
    return region


def holidays_of(region: np.ndarray, school: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Mark where most stores of a region have school holidays, on days without any open store as on the last with one.

    Returns:
        bool ``[regions, days]``.
    """
    member = np.eye(int(region.max()) + 1)[region].T
    yes, known = member @ (school & seen), member @ seen
    last = np.maximum.accumulate(np.where(known > 0, np.arange(school.shape[1]), 0), 1)
    return np.take_along_axis(yes * 2 > known, last, 1)


def _days_alike(marks: np.ndarray) -> np.ndarray:
    """Count for how many days, up to 30, the mark has not changed: float64; 30 where it never did."""
    place = np.arange(marks.shape[1])
    changed = marks[:, 1:] != marks[:, :-1]
    begun = np.where(np.pad(changed, ((0, 0), (1, 0))), place, -_LONG)
    return np.minimum(place - np.maximum.accumulate(begun, 1), _LONG).astype(np.float64)


def _spread(marks: np.ndarray, days: int) -> np.ndarray:
    """Mark where at least ``days`` of the six days before and the six after are marked."""
    return _count(marks, 7, back=True) + _count(marks, 7, back=False) >= days


def _count(marks: np.ndarray, days: int, *, back: bool) -> np.ndarray:
    """Count the marked days before (or after) each: float64 ``[stores, days]``."""
    total = np.concatenate([np.zeros((len(marks), 1)), np.cumsum(marks, 1)], 1)
    place = np.arange(marks.shape[1])
    low, high = (place - days, place) if back else (place + 1, place + 1 + days)
    return total[:, high.clip(0, len(place))] - total[:, low.clip(0, len(place))]


def _days_to(marks: np.ndarray, *, back: bool) -> np.ndarray:
    """Count days since the last (or until the next) marked day: float64 ``[stores, days]``, 15 where it is farther."""
    marks = marks if back else marks[:, ::-1]
    place = np.arange(marks.shape[1])
    last = np.maximum.accumulate(np.where(marks, place, -_FAR), 1)
    found = np.minimum(place - last, _FAR).astype(np.float64)
    return found if back else found[:, ::-1]
