"""Adversarial validation where the answer is known: same rows, shifted rows, rows that one column tells apart."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fastrec.errors import DataError, MissingColumnError
from fastrec.table import Table
from fastrec.validate import Folds, adversarial_validation, group_folds
from fastrec.validate.mirror import _auc_interval, _rates
from tests._core.refusals import refused


def rows(n: int, seed: int, *, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "shifted": rng.normal(shift, 1, n),
            "noise": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "city": pd.Series(rng.choice(["Rome", "Oslo", "Bern", None], n), dtype=object),
            "sure": rng.random(n) < 0.3,
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**6, n), unit="s"),
        }
    )


def test_rows_of_one_kind_are_not_told_apart():
    report = adversarial_validation(rows(1500, 1), rows(1200, 2))
    assert report.auc.low < 0.5 < report.auc.high + 0.01
    assert report.auc.high < 0.54
    assert all(0.5 <= c.auc < 0.54 for c in report.columns)
    assert (report.rows, report.of) == ((1500, 1200), (1500, 1200))
    assert str(report).startswith("Train, 1,500 rows and test, 1,200 rows: AUC 0.")
    assert "they are not told apart" in str(report)


def test_a_shift_is_measured_and_its_column_named():
    report = adversarial_validation(rows(2500, 1), rows(2500, 2, shift=1.0))
    best = 0.5 * (1 + math.erf(1.0 / 2))  # of two normal densities one standard deviation apart
    assert best - 0.04 < report.auc.mean < best + 0.02
    assert report.auc.low < report.auc.mean < report.auc.high
    first = report.columns[0]
    assert first.name == "shifted"
    assert first.gain > 0.5
    assert first.auc == pytest.approx(best, abs=0.025)
    assert sum(c.gain for c in report.columns) == pytest.approx(1)
    assert [c.gain for c in report.columns] == sorted((c.gain for c in report.columns), reverse=True)
    text = str(report).splitlines()
    assert "they differ" in text[0]
    assert text[3].startswith("shifted ")


@pytest.mark.parametrize("column", ["city", "when", "noise", "user"])
def test_the_column_that_gives_it_away_is_found(column):
    train, test = rows(600, 1), rows(600, 2)
    user = 2**60 + 2 * np.arange(600) // 8  # above 2^53, apart by one: equal as floats
    given_away = {"city": "Paris", "when": test["when"] + pd.Timedelta(days=30), "noise": np.nan, "user": user + 10**6}
    test[column] = given_away[column]
    train = train.assign(user=user) if column == "user" else train
    report = adversarial_validation(train, test)
    assert report.columns[0].name == column
    assert report.columns[0].auc > (0.85 if column == "noise" else 0.99)
    assert report.auc.mean > (0.85 if column == "noise" else 0.99)
    assert "they are told apart with ease" in str(report)


def test_a_difference_that_no_order_shows_is_seen():
    rng = np.random.default_rng(0)
    train = {"x": rng.normal(0, 1, 2000)}
    test = {"x": rng.normal(0, 3, 2000)}  # equal means: the values themselves have AUC 0.5
    report = adversarial_validation(train, test)
    assert abs(roc_auc_score([0] * 2000 + [1] * 2000, np.concatenate([train["x"], test["x"]])) - 0.5) < 0.02
    assert report.columns[0].auc > 0.7
    assert report.auc.low > 0.7


def test_same_seed_same_report_for_any_library():
    train, test = rows(400, 1), rows(400, 2, shift=0.3)
    one = adversarial_validation(train, test, seed=3)
    assert adversarial_validation(Table.read(train), Table.read(test), seed=3) == one
    assert adversarial_validation(train, test, seed=4).auc != one.auc


def test_large_tables_are_drawn_from(monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.ADVERSARIAL_ROWS", 500)
    report = adversarial_validation(rows(3000, 1), rows(400, 2, shift=3.0))
    assert (report.rows, report.of) == ((500, 400), (3000, 400))
    assert str(report).startswith("Train, 500 rows drawn of 3,000 and test, 400 rows: AUC 0.9")
    assert report.auc.low > 0.95


def test_columns_that_are_chosen_left_out_and_refused():
    train, test = rows(100, 1), rows(100, 2, shift=5.0).drop(columns="sure")
    train["tags"] = test["tags"] = [["a"], ["b", "c"]] * 50
    report = adversarial_validation(train, test)
    assert {c.name for c in report.columns} == {"shifted", "noise", "city", "when"}
    assert report.left_out == ["tags"]
    assert "not looked at: tags" in str(report)
    chosen = adversarial_validation(train, test, columns=["noise", "city"])
    assert {c.name for c in chosen.columns} == {"noise", "city"}
    assert chosen.auc.low < 0.55
    refused(DataError, r"'tags'.*holds a list", lambda: adversarial_validation(train, test, columns=["noise", "tags"]))
    refused(MissingColumnError, "'sure'", lambda: adversarial_validation(train, test, columns=["sure"]))
    refused(DataError, "no column in common", lambda: adversarial_validation(train[["sure"]], test[["noise"]]))
    refused(DataError, "test 4", lambda: adversarial_validation(train, test[:4]))


def test_rates_are_those_of_the_other_folds():
    rng = np.random.default_rng(0)
    bins, labels, folds = rng.integers(0, 6, 200), rng.integers(0, 2, 200), rng.integers(0, 5, 200)
    got = _rates(torch.from_numpy(bins), torch.from_numpy(labels).double(), torch.from_numpy(folds))
    for i in range(200):
        others = [labels[j] for j in range(200) if bins[j] == bins[i] and folds[j] != folds[i]]
        assert got[i].item() == pytest.approx((sum(others) + 10 * labels.mean()) / (len(others) + 10))


def test_the_interval_is_that_of_rows_resampled_side_by_side():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [300, 200])
    scores = np.round(rng.normal(labels * 0.8, 1), 1)  # with ties
    got = _auc_interval(scores, torch.from_numpy(labels).double(), seed=0)
    pairs = np.sign(scores[300:, None] - scores[:300]) / 2 + 0.5  # a tie counts half
    draws = [pairs[rng.integers(0, 200, 200)][:, rng.integers(0, 300, 300)].mean() for _ in range(2000)]
    assert got.mean == pytest.approx(roc_auc_score(labels, scores))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert got.low == pytest.approx(low, abs=0.008)
    assert got.high == pytest.approx(high, abs=0.008)


# ``Folds.like``: tests cut from one table by time, by group and at random are told apart


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
    train, test = first(rows, 2000)
    if form == "table":
        train, test = Table.read(train), Table.read(test)
    if form == "file":
        train.to_parquet(tmp_path / "train.parquet")
        test.to_csv(tmp_path / "test.csv")
        train, test = tmp_path / "train.parquet", tmp_path / "test.csv"
    folds = Folds.like(train, test, group=None)
    assert "by time" in folds.method
    assert "train is long enough for 1 of 5 folds" in folds.why  # 200 days, test has 100


def first(rows: pd.DataFrame, count: int, until: int = 10**6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows up to an id as train, those after it as test."""
    return rows[rows.id < count], rows[(rows.id >= count) & (rows.id < until)].copy()


def test_a_few_rows_out_of_order_change_nothing():
    train, test = first(visits(), 2500)
    test.loc[test.index[:10], "day"] = pd.Timestamp("2019-02-01")
    folds = Folds.like(train, test)
    assert "98 % of the test rows are later" in folds.why
    assert "scoring 50 days each" in folds.method


def test_where_train_is_short_the_blocks_are_equal():
    folds = Folds.like(*first(visits(), 600), folds=3)
    assert "blocks of as many rows" in folds.why
    assert [len(valid) for _, valid in folds] == [150] * 3
    train, test = first(visits(), 2400, 2410)  # a day: no folds of Saturdays
    assert "blocks of as many rows" in Folds.like(train[train.day.dt.day_of_week < 5], test).why


@pytest.mark.parametrize("dated", [True, False])
def test_new_groups_in_the_test_give_folds_by_group(dated):
    rows = visits() if dated else visits().drop(columns="day")
    train, test = rows[rows.user_id % 4 > 0], rows[rows.user_id % 4 == 0]
    folds = Folds.like(train, test, target="bought", seed=2)
    assert "hash of user_id" in folds.method  # and not of session, which is new, too: users are the coarser
    assert "100 % of the test rows have a user_id that train does not have" in folds.why
    assert torch.equal(folds.codes, group_folds(train, "user_id", 5, seed=2))
    new = rows.session.str.endswith("/0")  # sessions are groups where users come again
    assert "hash of session" in Folds.like(rows[~new], rows[new]).method


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


def test_neither_a_rows_number_nor_a_part_nor_values_of_another_type_are_a_group_or_a_time():
    rows = visits().drop(columns="session")
    other = rows.assign(user_id="u" + rows.user_id.astype(str), day=0.5)
    assert "at random" in Folds.like(rows, other).method
    rows = rows.drop(columns="day").assign(part=np.where(rows.id < 2000, "train", "test"))
    assert "at random" in Folds.like(*first(rows, 2000)).method


def test_what_the_user_says_goes_before_what_is_seen():
    train, test = first(visits(), 2500)
    assert "hash of user_id" in Folds.like(train, test, time=None, group="user_id").method
    assert "at random" in Folds.like(train, test, time=None, group=None).method
    by_id = Folds.like(train, test, time="id")
    assert "by time (id)" in by_id.method
    assert "scoring 500 each" in by_id.method
    asked = Folds.like(train, train, time="day")
    assert "as asked, though test is not later" in asked.why
    assert "by time (day), expanding" in asked.method
    refused(MissingColumnError, "'when'", lambda: Folds.like(train, test, time="when"))
    train = train.reset_index(drop=True)
    train.loc[7, "day"] = pd.NaT
    refused(DataError, r"row 7.*a time is missing", lambda: Folds.like(train, test))
