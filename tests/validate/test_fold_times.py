"""Folds by time and purged folds, against scikit-learn and plain loops over rows."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import TimeSeriesSplit

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate import Folds
from tests._core.refusals import refused

SPLITS = {"gap": st.integers(0, 3), "window": st.none() | st.integers(1, 6), "horizon": st.none() | st.integers(1, 4)}
DAY = pd.Timestamp("2019-07-01")


def pairs(folds: Folds) -> list[tuple[list[int], list[int]]]:
    return [(train.tolist(), valid.tolist()) for train, valid in folds]


def cut_or_problem(cut, *args, **kwargs) -> tuple[Folds | None, str]:
    try:
        return cut(*args, **kwargs), ""
    except DataError as error:
        return None, str(error)


@given(times=st.lists(st.integers(-5, 30), min_size=12, max_size=60), count=st.integers(1, 4), **SPLITS)
@settings(max_examples=150)
def test_each_fold_trains_on_the_past_it_was_given(times, count, gap, window, horizon):
    folds, problem = cut_or_problem(
        Folds.time_series, len(times), times, count, gap=gap, window=window, horizon=horizon
    )
    if folds is None:
        assert "no row" in problem or "distinct times" in problem  # see test_too_little_time_is_named
        return
    assert len(folds) == count
    last, scored = None, []
    for k, (train, valid) in enumerate(pairs(folds)):
        first = min(times[i] for i in valid)
        wanted = [i for i, t in enumerate(times) if first - t > gap and (window is None or first - t <= gap + window)]
        assert train == wanted
        assert valid == [i for i, t in enumerate(times) if first <= t <= max(times[j] for j in valid)]
        assert last is None or first > last
        last = max(times[i] for i in valid)
        scored += valid
        if horizon is not None:
            until = max(times) - (count - 1 - k) * horizon
            assert valid == [i for i, t in enumerate(times) if until - horizon < t <= until]
    assert last == max(times)
    assert sorted(scored) == folds.scored.nonzero().squeeze(1).tolist()
    assert not folds.is_partition
    assert not folds.is_repeated  # rows that no fold scores, and none that two do
    assert all(folds.codes[i] == k for k, (_, valid) in enumerate(folds) for i in valid)
    folds.check_time(times)


@pytest.mark.parametrize(("count", "gap", "window"), [(4, 0, None), (4, 3, None), (5, 2, 7), (2, 0, 1)])
def test_single_rows_in_order_are_split_as_scikit_learn_does(count, gap, window):
    rows = 12 * (count + 1)
    folds = Folds.time_series(rows, np.arange(rows) + 100, count, gap=gap, window=window)
    wanted = TimeSeriesSplit(count, gap=gap, max_train_size=window).split(np.zeros(rows))
    assert pairs(folds) == [(train.tolist(), valid.tolist()) for train, valid in wanted]


def test_blocks_are_about_equal_and_busy_times_stay_whole():
    times = [0, 1, 2, 3, 4, 5, 6, 7, 8] + [9] * 60 + [10, 11, 12]
    folds = Folds.time_series(len(times), times, 4)
    assert [sorted({times[i] for i in valid}) for _, valid in pairs(folds)] == [[9], [10], [11], [12]]
    even = Folds.time_series(100, np.arange(100) // 2, 4)
    assert [len(valid) for _, valid in even] == [20] * 4


def test_the_order_of_rows_does_not_matter():
    order = np.random.default_rng(3).permutation(60)
    sorted_codes = Folds.time_series(60, np.arange(60) // 3, 4, gap=1).codes
    assert torch.equal(Folds.time_series(60, order // 3, 4, gap=1).codes, sorted_codes[order])


@pytest.mark.parametrize("form", ["ns", "us", "s", "text", "iso", "zoned", "table"])
@pytest.mark.parametrize(
    "week", [dt.timedelta(days=7), np.timedelta64(7, "D"), pd.Timedelta(weeks=1), "7D"], ids=["py", "np", "pd", "text"]
)
def test_dates_of_any_form_and_spans_of_any_form(form, week):
    days = pd.Series(DAY + pd.to_timedelta(np.arange(80) // 2, unit="D"), name="day")
    given_as = {
        "text": days.dt.strftime("%Y-%m-%d"),
        "iso": days.dt.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "zoned": days.dt.tz_localize("UTC"),
        "table": Table({"day": days.to_numpy()})["day"],
    }
    times = given_as[form] if form in given_as else days.astype(f"datetime64[{form}]")
    folds = Folds.time_series(80, times, 2, gap=week, window=week, horizon=week)
    by_number = Folds.time_series(80, np.arange(80) // 2, 2, gap=7, window=7, horizon=7)
    assert pairs(folds) == pairs(by_number)
    said = "2 folds by time (day), gap 7 days, training on the last 7 days, scoring 7 days each"
    assert folds.method == said


def test_numbers_with_fractions_and_categories_in_order():
    times = np.arange(40) / 8
    folds = Folds.time_series(40, times, 2, gap=0.5, horizon=1.25)
    assert pairs(folds) == [(list(range(16)), list(range(20, 30))), (list(range(26)), list(range(30, 40)))]
    months = pd.Categorical(["mar", "jan", "feb"] * 6, categories=["jan", "feb", "mar"], ordered=True)
    folds = Folds.time_series(18, months, 2)
    assert folds.codes.tolist() == [1, -1, 0] * 6


def test_large_integers_keep_their_digits():
    start = 2**53
    folds = Folds.time_series(6, [start, start + 1, start + 2, start + 3, start + 4, start + 5], 5)
    assert pairs(folds) == [(list(range(k + 1)), [k + 1]) for k in range(5)]


def test_too_little_time_is_named():
    with pytest.raises(DataError, match=r"'day'.*3 distinct times, and 5 are needed"):
        Folds.time_series({"day": [1, 2, 3, 3, 3]}, "day", 4)
    refused(DataError, "fold 0 of 2 has no row to train on", lambda: Folds.time_series(9, range(9), 2, gap=3))
    with pytest.raises(DataError, match="fold 0 of 2 has no row to score"):
        Folds.time_series(6, [0, 1, 2, 3, 4, 20], 2, horizon=3)
    refused(DataError, "0 folds", lambda: Folds.time_series(9, range(9), 0))


def test_times_and_spans_that_cannot_be_used_are_named():
    days = pd.Series(DAY + pd.to_timedelta(range(9), unit="D"), name="day")
    refused(DataError, r"'day'.*gap is 7 and the times are dates", lambda: Folds.time_series(9, days, 2, gap=7))
    with pytest.raises(DataError, match=r"'time'.*window is '7D', the times are numbers"):
        Folds.time_series(9, range(9), 2, window="7D")
    refused(DataError, "horizon is 'soon', no length of time", lambda: Folds.time_series(9, days, 2, horizon="soon"))
    refused(DataError, "gap is -1", lambda: Folds.time_series(9, range(9), 2, gap=-1))
    refused(DataError, "gap is nan", lambda: Folds.time_series(9, range(9), 2, gap=float("nan")))
    days[4] = pd.NaT
    refused(DataError, r"'day', row 4.*a time is missing", lambda: Folds.time_series(9, days, 2))
    refused(DataError, r"row 1.*infinite", lambda: Folds.time_series(3, [0.0, np.inf, 1.0], 1))
    refused(DataError, r"'city'.*no date", lambda: Folds.time_series({"city": ["Rome", "Oslo", "Bern"]}, "city", 2))


# Purged


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=8, max_size=50),
    count=st.integers(2, 4),
    embargo=st.integers(0, 4),
)
@settings(max_examples=150)
def test_no_label_overlaps_a_scored_one(spans, count, embargo):
    start, end = [a for a, _ in spans], [a + length for a, length in spans]
    folds, problem = cut_or_problem(Folds.purged, len(spans), start, end, count, embargo=embargo)
    if folds is None:
        assert "no row to train on" in problem or "distinct times" in problem
        return
    assert bool(folds.scored.all())
    for train, valid in pairs(folds):
        until = max(end[j] for j in valid)
        kept = []
        for i in range(len(spans)):
            overlaps = any(start[i] <= end[j] and end[i] >= start[j] for j in valid)
            waits = until < start[i] <= until + embargo
            if i not in valid and not overlaps and not waits:
                kept.append(i)
        assert train == kept
        first, last = min(start[j] for j in valid), max(start[j] for j in valid)
        assert valid == [i for i in range(len(spans)) if first <= start[i] <= last]


def test_purged_by_hand():
    # ten days, a label takes two more; the middle fold is days 4 to 6, its labels are known by day 8
    folds = Folds.purged(10, np.arange(10), np.arange(10) + 2, 3)
    assert pairs(folds) == [([6, 7, 8, 9], [0, 1, 2, 3]), ([0, 1, 9], [4, 5, 6]), ([0, 1, 2, 3, 4], [7, 8, 9])]
    assert pairs(Folds.purged(10, np.arange(10), np.arange(10) + 2, 3, embargo=1))[1][0] == [0, 1]
    assert Folds.purged(10, range(10), range(10), 5).is_partition is False


def test_purged_by_dates_of_two_units():
    start = pd.Series(DAY + pd.to_timedelta(range(12), unit="D"), name="bought").astype("datetime64[s]")
    end = (start + pd.Timedelta(days=2)).astype("datetime64[ns]").rename("sold")
    folds = Folds.purged({"bought": start, "sold": end}, "bought", "sold", 3, embargo="1D")
    assert pairs(folds) == pairs(Folds.purged(12, np.arange(12), np.arange(12) + 2, 3, embargo=1))
    said = "3 blocks of time, purged of labels (bought to sold) that overlap, embargo 1 day"
    assert folds.method == said
    mixed = Folds.purged(12, np.arange(12), np.arange(12) + 2.0, 3, embargo=1)
    assert pairs(mixed) == pairs(folds)


def test_spans_that_cannot_be_purged_are_named():
    with pytest.raises(DataError, match=r"row 2.*ends at 1, before it starts at 2"):
        Folds.purged(4, [0, 1, 2, 3], pd.Series([0, 1, 1, 3], name="sold"), 2)
    refused(DataError, "the labels of all others overlap", lambda: Folds.purged(4, [0, 1, 2, 3], [9, 9, 9, 9], 2))
    with pytest.raises(DataError, match=r"one of .* holds dates, the other numbers"):
        Folds.purged(2, pd.Series([DAY, DAY]), [1, 2], 2)
    refused(DataError, "1 folds", lambda: Folds.purged(4, [0, 1, 2, 3], [0, 1, 2, 3], 1))
