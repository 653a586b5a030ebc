"""Adversarial validation where the answer is known: same rows, shifted rows, rows that one column tells apart."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fastrec.errors import DataError, MissingColumnError
from fastrec.table import Table
from fastrec.validate import adversarial_validation
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
    if column == "city":
        test["city"] = "Paris"  # train has never seen it
    if column == "when":
        test["when"] += pd.Timedelta(days=30)
    if column == "noise":
        test["noise"] = np.nan
    if column == "user":  # above 2^53, apart by one: equal as floats
        train["user"], test["user"] = 2**60 + 2 * np.arange(600) // 8, 2**60 + 10**6 + 2 * np.arange(600) // 8
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


def test_many_columns_are_cut_short_in_the_text():
    rng = np.random.default_rng(0)
    train, test = ({f"x{i}": rng.normal(size=40) for i in range(23)} for _ in range(2))
    text = str(adversarial_validation(train, test))
    assert "… and 3 more" in text
    assert len(text.splitlines()) == 24


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
