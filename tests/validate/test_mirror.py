"""``Folds.like``: tests cut from one table by time, by group and at random are told apart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError
from fastrec.table import Table
from fastrec.validate import Folds, group_folds
from tests._core.refusals import refused


def visits(days: int = 300, users: int = 150, seed: int = 0) -> pd.DataFrame:
    """Ten rows a day by users who come again, in random order."""
    rng = np.random.default_rng(seed)
    n = 10 * days
    day = pd.Timestamp("2019-01-01") + pd.to_timedelta(np.arange(n) // 10, unit="D")
    frame = pd.DataFrame({"id": np.arange(n), "user_id": rng.integers(0, users, n), "day": day})
    frame["session"] = [f"{u}/{d % 3}" for u, d in zip(frame.user_id, np.arange(n), strict=True)]
    frame["price"], frame["bought"] = rng.normal(size=n), rng.integers(0, 2, n)
    return frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)


def test_a_test_that_comes_later_gives_folds_as_long_and_as_far():
    rows = visits()
    train, test = rows[rows.day < "2019-08-01"], rows[rows.day >= "2019-08-08"].drop(columns="bought")
    test = test[test.day < "2019-09-05"]  # 28 days, seven days after train's last
    folds = Folds.like(train, test, target="bought")
    assert len(folds) == 5
    assert "by time (day), gap 7 days, expanding, scoring 28 days each" in folds.method
    assert "100 % of the test rows are later, by day, than all of train" in folds.why
    assert "ends at 2019-07-31, test at 2019-09-04" in folds.why
    day = train.day.to_numpy()
    for fit, scored in folds:
        assert day[scored].max() - day[scored].min() == np.timedelta64(27, "D")
        assert day[scored].min() - day[fit].max() == np.timedelta64(8, "D")  # as test after train
    assert day[folds[4][1]].max() == train.day.max()
    folds.check_time(train.day)


@pytest.mark.parametrize("form", ["text", "number", "second", "table", "file"])
def test_times_of_any_form_are_seen(form, tmp_path):
    rows = visits()
    if form == "text":
        rows["day"] = rows.day.dt.strftime("%Y-%m-%d")
    if form == "number":
        rows = rows.assign(saleDay=(rows.day - rows.day.min()).dt.days).drop(columns="day")
    if form == "second":
        rows["day"] = rows.day.astype("datetime64[s]")
    cut = rows.id < 2000
    train, test = rows[cut], rows[~cut]
    if form == "table":
        train, test = Table.read(train), Table.read(test)
    if form == "file":
        train.to_parquet(tmp_path / "train.parquet")
        test.to_csv(tmp_path / "test.csv")
        train, test = tmp_path / "train.parquet", tmp_path / "test.csv"
    folds = Folds.like(train, test, group=None)
    assert "by time" in folds.method
    assert "train is long enough for 1 of 5 folds" in folds.why  # 200 days, test has 100


def test_a_few_rows_out_of_order_change_nothing():
    rows = visits()
    train, test = rows[rows.id < 2500], rows[rows.id >= 2500].copy()
    test.loc[test.index[:10], "day"] = pd.Timestamp("2019-02-01")
    folds = Folds.like(train, test)
    assert "98 % of the test rows are later" in folds.why
    assert "scoring 50 days each" in folds.method


def test_where_train_is_short_the_blocks_are_equal():
    rows = visits()
    folds = Folds.like(rows[rows.id < 600], rows[rows.id >= 600], folds=3)
    assert "blocks of as many rows" in folds.why
    assert [len(valid) for _, valid in folds] == [150] * 3
    week_ends = rows[(rows.day.dt.day_of_week < 5) & (rows.id < 2400)]
    folds = Folds.like(week_ends, rows[(rows.id >= 2400) & (rows.id < 2410)])  # a day: no folds of Saturdays
    assert "blocks of as many rows" in folds.why


@pytest.mark.parametrize("dated", [True, False])
def test_new_groups_in_the_test_give_folds_by_group(dated):
    rows = visits() if dated else visits().drop(columns="day")
    train, test = rows[rows.user_id % 4 > 0], rows[rows.user_id % 4 == 0]
    folds = Folds.like(train, test, target="bought", seed=2)
    assert "hash of user_id" in folds.method  # and not of session, which is new, too: users are the coarser
    assert "100 % of the test rows have a user_id that train does not have" in folds.why
    assert torch.equal(folds.codes, group_folds(train, "user_id", 5, seed=2))


def test_sessions_are_groups_where_users_come_again():
    rows = visits()
    new = rows.session.str.endswith("/0")
    folds = Folds.like(rows[~new], rows[new])
    assert "hash of session" in folds.method


@given(seed=st.integers(0, 30), share=st.floats(0.1, 0.9), target=st.booleans())
@settings(max_examples=25)
def test_a_test_cut_at_random_gives_folds_at_random(seed, share, target):
    rows = visits(days=60, users=40, seed=seed)
    test = np.random.default_rng(seed).random(len(rows)) < share
    train = rows[~test]
    folds = Folds.like(train, rows[test].drop(columns="bought"), target="bought" if target else None, seed=seed)
    assert "test looks cut at random" in folds.why
    same = Folds.stratified(train, "bought", seed=seed) if target else Folds.kfold(train, seed=seed)
    assert torch.equal(folds.codes, same.codes)
    assert folds.method == same.method


def test_neither_a_rows_number_nor_a_part_is_a_group_or_a_time():
    rows = visits().drop(columns=["day", "session"])
    rows["part"] = np.where(rows.id < 2000, "train", "test")
    assert "at random" in Folds.like(rows[rows.id < 2000], rows[rows.id >= 2000]).method


def test_what_the_user_says_goes_before_what_is_seen():
    rows = visits()
    train, test = rows[rows.id < 2500], rows[rows.id >= 2500]
    assert "hash of user_id" in Folds.like(train, test, time=None, group="user_id").method
    assert "at random" in Folds.like(train, test, time=None, group=None).method
    by_id = Folds.like(train, test, time="id")
    assert "by time (id)" in by_id.method
    assert "scoring 500 each" in by_id.method
    asked = Folds.like(train, train, time="day")
    assert "as asked, though test is not later" in asked.why
    assert "by time (day), expanding" in asked.method
    refused(MissingColumnError, "'when'", lambda: Folds.like(train, test, time="when"))


def test_a_missing_time_is_named():
    rows = visits()
    train = rows[rows.id < 2500].reset_index(drop=True)
    train.loc[7, "day"] = pd.NaT
    refused(DataError, r"row 7.*a time is missing", lambda: Folds.like(train, rows[rows.id >= 2500]))


def test_values_of_another_type_are_no_time_and_no_group():
    rows = visits().drop(columns="session")
    other = rows.assign(user_id="u" + rows.user_id.astype(str), day=0.5)
    assert "at random" in Folds.like(rows, other).method
