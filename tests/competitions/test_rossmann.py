"""The Rossmann competition: its calendar and history against plain loops, blind to the future, and a whole run."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from competitions.rossmann import data
from competitions.rossmann.competition import Rossmann
from competitions.rossmann.data import HORIZON, holidays_of, read, regions
from competitions.rossmann.history import OUTPUTS, store_history
from competitions.rossmann.simulate import simulate
from fastrec.competition import run_competition
from fastrec.errors import DataError, MissingFileError
from fastrec.features import FeatureSet
from fastrec.table import Table, concat

CPU = torch.device("cpu")
DAY = pd.Timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rossmann") / "files"
    simulate(4, out, days=540, seed=3)
    return out


@pytest.fixture(scope="module")
def rows(folder) -> Table:
    found = read(folder, device=CPU)
    return concat([found.train, found.test.with_columns({"Sales": found.truth["Sales"]}).select(found.train.names)])


def frame_of(table: Table) -> pd.DataFrame:
    frame = table.to_pandas()
    return frame.assign(Date=pd.to_datetime(frame.Date), origin=pd.to_datetime(frame.origin))


def history_of(table: Table) -> np.ndarray:
    made = FeatureSet([store_history]).fit_transform(table)
    return np.stack([made[n].number().numpy() for n in OUTPUTS], 1)


def test_the_last_six_weeks_are_the_test(folder):
    found = read(folder, device=CPU)
    train, test = frame_of(found.train), frame_of(found.test)
    whole = pd.read_parquet(folder / "rossmann.parquet")
    assert len(train) + len(test) == len(whole)
    assert "Sales" not in test
    assert test.Date.min() > whole.Date.max() - HORIZON * DAY >= train.Date.max()
    merged = test.assign(Sales=found.truth["Sales"].number().numpy()).merge(whole, on=["Store", "Date"])
    assert (merged.Sales_x == merged.Sales_y).all()
    assert not {"Customers", "Open"} & {*train, *test}
    some = frame_of(read(folder, rows=500, device=CPU).train)
    assert 1 <= some.Store.nunique() < 4
    assert some.groupby("Store").size().equals(train.groupby("Store").size()[some.Store.unique()])


def test_the_calendar_is_that_of_a_plain_loop(rows):
    frame = frame_of(rows)
    last = frame.Date.max()
    days = {s: dict(zip(f.Date, f.SchoolHoliday)) for s, f in frame.groupby("Store")}
    promo = frame.groupby("Date").Promo.max()
    first = frame.Date.min()
    for r in frame.sample(150, random_state=0).to_dict("records"):
        own, day = days[r["Store"]], r["Date"]

        def closed(d, own=own):
            return first <= d <= last and d not in own and d.day_of_week != 6

        assert r["origin"] == last + DAY - HORIZON * DAY * ((last - day).days // HORIZON + 1)
        assert r["ahead"] == (day - r["origin"]).days
        assert r["closed_since"] == next((k for k in range(15) if closed(day - k * DAY)), 15)
        assert r["closed_until"] == next((k for k in range(15) if closed(day + k * DAY)), 15)
        assert r["open_before"] == sum(day - k * DAY in own for k in range(1, 8))
        ahead = [day + k * DAY if day + k * DAY <= last else day + (k - 14) * DAY for k in range(1, 8)]
        assert r["open_after"] == sum(d in own for d in ahead)
        assert r["promo_after"] == sum(promo.get(d, 0) for d in ahead)
        assert r["school_before"] == sum(own.get(day - k * DAY, 0) for k in range(1, 8))
        assert (r["month_day"], r["year_day"] + 1) == (day.day, day.day_of_year)
        begin = (r["Promo2SinceYear"] - 1970) * 365.25 + 7 * r["Promo2SinceWeek"]
        phase = -1
        if r["Promo2"] == 1 and (day - pd.Timestamp(0)).days >= begin:
            phase = (day.month - 1 - ("Jan", "Feb", "Mar").index(r["PromoInterval"][:3])) % 3
        assert r["promo2_month"] == phase
        months = (day.year - r["CompetitionOpenSinceYear"]) * 12 + day.month - r["CompetitionOpenSinceMonth"]
        assert np.array_equal(r["competition_months"], np.clip(months, -12, 60), equal_nan=True)


def test_regions_are_stores_with_the_same_school_holidays():
    """Of three calendars, with days on which stores are closed; runs of days against a plain loop."""
    rng = np.random.default_rng(0)
    calendars = np.repeat(rng.random((3, 60)) < 0.4, 7, axis=1)
    true = rng.permutation(np.arange(30) % 3)
    seen = rng.random((30, 420)) < 0.7
    school = calendars[true] & seen
    found = regions(school, seen)
    assert len(set(zip(true, found))) == len(set(found)) == 3
    off = holidays_of(found, school, seen)
    for store in range(30):
        assert (off[found[store]] == calendars[true[store]]).all()
    # days on which the whole region is closed are as the last one before
    gap = seen.copy()
    gap[:, 30:33] = False
    assert (holidays_of(found, school & gap, gap)[:, 30:33] == off[:, 29:30]).all()
    alike = data._days_alike(off)
    for r, day in [(0, 0), (1, 5), (2, 100), (0, 419), (1, 230), (2, 231)]:
        back = next((k for k in range(1, day + 1) if off[r, day - k] != off[r, day]), 31)
        assert alike[r, day] == min(back - 1, 30)


def test_the_forecast_is_the_ridge_regression_of_earlier_days(rows, monkeypatch):
    """Against weighted least squares on the rows themselves, by store, with a ridge towards all stores."""
    from competitions.rossmann import history

    frame = frame_of(rows)
    names = ["DayOfWeek", "Promo", "SchoolHoliday", "month_day", "year_day", "closed_since", "closed_until"]
    x = history._inputs(*(rows[n].number() for n in names), rows["long_closed_since"].number()).numpy()
    y = np.log(frame.Sales.to_numpy())
    at = frame.origin.max()
    level, right, gram = {}, {}, {}
    for store in frame.Store.unique():
        own = ((frame.Store == store) & (frame.Date < at)).to_numpy()
        w = 0.5 ** (((at - DAY - frame.Date[own]).dt.days / history._SLOW).to_numpy())
        level[store] = np.average(y[own], weights=w)
        gram[store] = (x[own] * w[:, None]).T @ x[own]
        right[store] = (x[own] * w[:, None]).T @ (y[own] - level[store])
    shared = np.linalg.solve(sum(gram.values()) + np.eye(x.shape[1]), sum(right.values()))
    ridge = np.diag([1e-3, *[history._OWN] * (x.shape[1] - 1)])
    made = history_of(rows)
    for store, g in gram.items():
        coef = shared + np.linalg.solve(g + ridge, right[store] - g @ shared)
        here = ((frame.Store == store) & (frame.origin == at)).to_numpy()
        assert np.allclose(made[here, OUTPUTS.index("forecast")], x[here] @ coef + level[store], atol=1e-9)
        assert np.allclose(made[here, OUTPUTS.index("level")], level[store])


def test_misses_are_means_over_days_before_the_origin(rows):
    rows = rows.with_columns({"region": rows["Store"].integer() % 2})
    frame = frame_of(rows)
    made = pd.DataFrame(history_of(rows), columns=OUTPUTS)
    frame = pd.concat([frame, made], axis=1)
    frame["miss"] = np.log(frame.Sales) - frame.forecast
    frame["log"] = np.log(frame.Sales)

    def mean(some: pd.Series) -> float:
        some = some.dropna()
        return float(some.mean()) if len(some) >= 3 else np.nan

    checked = 0
    for r in frame.sample(40, random_state=1).to_dict("records"):
        own, at = frame[frame.Store == r["Store"]], r["origin"]
        checked += np.isfinite(r["miss_last_year"])

        def days(low, high, own=own, at=at):
            return own[(own.Date >= at - low * DAY) & (own.Date < at - high * DAY)]

        around = own[(own.Date - (r["Date"] - 364 * DAY)).dt.days.abs() <= 10]
        then = frame[(frame.Date - (r["Date"] - 364 * DAY)).dt.days.abs() <= 3]
        everywhere = then.groupby("Date").miss.mean()
        nearby = then[then.region == r["region"]].groupby("Date").miss.mean()
        quarter = days(84, 0)

        def usual(weeks, days=days, r=r):
            some = days(7 * weeks, 0)
            return mean(some[(some.DayOfWeek == r["DayOfWeek"]) & (some.Promo == r["Promo"])].log) - r["forecast"]

        expected = {
            "miss_6w": mean(days(42, 0).miss),
            "miss_2w": mean(days(14, 0).miss),
            "miss_26w": mean(days(182, 0).miss),
            "noise": mean(days(182, 0).miss ** 2) ** 0.5,
            "miss_weekday": mean(quarter[quarter.DayOfWeek == r["DayOfWeek"]].miss) - mean(quarter.miss),
            "miss_promo": mean(quarter[quarter.Promo == r["Promo"]].miss) - mean(quarter.miss),
            "miss_last_year": mean(around.miss),
            "miss_last_year_all": mean(everywhere),
            "miss_last_year_region": mean(nearby),
            **{f"usual_{w}w": usual(w) for w in (12, 26, 52)},
        }
        for name, value in expected.items():
            assert np.isclose(r[name], value, equal_nan=True), name
    assert checked > 3


@pytest.mark.parametrize("ago", [0, 1, 4])
def test_sales_from_the_origin_on_move_no_feature(rows, ago):
    """Neither of the six weeks themselves nor of earlier ones; later ones do see them."""
    origin = frame_of(rows).origin
    at = origin.max() - ago * HORIZON * DAY
    later = torch.from_numpy((origin >= at).to_numpy())
    spoilt = torch.where(later, rows["Sales"].number() * 7 + 1, rows["Sales"].number())
    before, after = history_of(rows), history_of(rows.with_columns({"Sales": spoilt}))
    blind = (origin <= at).to_numpy()
    assert np.array_equal(before[blind], after[blind], equal_nan=True)
    assert ago == 0 or not np.array_equal(before[~blind], after[~blind], equal_nan=True)


def test_rows_to_predict_get_what_they_had_among_all(rows):
    frame = frame_of(rows)
    is_test = torch.from_numpy((frame.origin == frame.origin.max()).to_numpy())
    train, test = rows.take(~is_test), rows.take(is_test)
    features = FeatureSet([store_history])
    features.fit_transform(train)
    unknown = torch.full((len(test),), torch.nan, dtype=torch.float64)
    alone = features.transform(test.with_columns({"Sales": unknown}), history=train)
    values = np.stack([alone[n].number().numpy() for n in OUTPUTS], 1)
    assert np.allclose(values, history_of(rows)[is_test.numpy()], equal_nan=True, atol=1e-9)


def test_the_recipe_runs_and_the_stack_is_near_the_noise(folder, tmp_path):
    out = run_competition(Rossmann(), folder, tmp_path / "run", device="cpu")
    scores = json.loads((out / "scores.json").read_text())
    assert scores["metric"] == "rmspe"
    test = read(folder, device=CPU)
    made = pd.read_csv(out / "submission.csv")
    assert list(made) == ["Store", "Date", "Sales"]
    truth = test.truth["Sales"].number().numpy()
    assert np.array_equal(made.Store, test.test["Store"].number().numpy())
    assert list(made.Date) == test.test["Date"].to_arrow().to_pylist()
    score = np.sqrt(np.mean((1 - made.Sales / truth) ** 2))
    assert 0.08 < score < 0.14  # the noise alone is .0998


def test_files_that_cannot_be_used_are_refused(tmp_path, folder):
    with pytest.raises(MissingFileError, match=r"README\.md"):
        read(tmp_path, device=CPU)
    table = pq.read_table(folder / "rossmann.parquet")
    days = pd.to_datetime(table["Date"].to_pandas())
    pq.write_table(table.filter((days >= days.max() - 41 * DAY).to_numpy()), tmp_path / "rossmann.parquet")
    with pytest.raises(DataError, match="42 days or fewer"):
        read(tmp_path, device=CPU)


def test_simulated_files_have_the_form_of_the_real_ones(folder, tmp_path):
    table = pq.read_table(folder / "rossmann.parquet").to_pandas()
    names = "Store DayOfWeek Date Sales Customers Open Promo StateHoliday SchoolHoliday StoreType Assortment"
    names += " CompetitionDistance CompetitionOpenSinceMonth CompetitionOpenSinceYear Promo2 Promo2SinceWeek"
    assert list(table) == [*names.split(), "Promo2SinceYear", "PromoInterval"]
    assert (table.DayOfWeek == table.Date.dt.day_of_week + 1).all()
    assert (table.Open == 1).all()
    assert (table.Sales > 0).all()
    assert not table.duplicated(["Store", "Date"]).any()
    assert table.groupby("Date").Promo.nunique().max() == 1
    stores = pd.read_csv(folder / "store.csv")
    assert list(stores) == ["Store", *list(table)[9:]]
    assert len(stores) == 4
    with pytest.raises(DataError, match="84 days"):
        simulate(4, tmp_path / "short", days=80)
