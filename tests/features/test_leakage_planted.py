"""A plain call of ``check_leakage`` names every planted leak, and no column of pipelines that are clean."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fastrec.features import check_leakage
from fastrec.features.leakage.check import REMEDIES
from fastrec.features.leakage.frames import moved
from fastrec.table import Table
from tests.features.leak_pipelines import CLEAN, GUILTY, PLANTED, frame

OUTSIDE = [n for n in PLANTED if "table of" in n or "outside" in n or "already" in n]
KINDS = {**dict.fromkeys(OUTSIDE, "outside"), "2 y + 1 of an outer frame": "copy", "one rare key": "own target"}
KINDS |= {"row number of sorted rows": "row order"}
KINDS |= dict.fromkeys(["sum", "max of small groups", "missing where the target is 1"], "own target")
# A row's own target does not move its mean of the others. But (S - y) / (n - 1) falls with y within a key, and a model
# reads S and n off the key's other rows.
KINDS |= {n: "leave-one-out" for n in PLANTED if n.startswith("leave one out")}
SAID = {
    "a table of target means": ["for each 'item' it is the mean of 'y'", "JoinTable", "pipeline, out of fold"],
    "a table of smoothed target means": ["for each 'item'", "'y'"],
    "means of two keys outside": ["'user' and 'city'", "the mean"],
    "2 z + 1 of an outer frame": ["'z', times a number, plus a number"],
    "ids given in the order of the target": ["an id", "order of 'y'", "number the rows"],
    "a bit of the mantissa": ["its last digits changed when 'y' of this row alone went from"],
}
NOTED = {
    "a separating predictor": "orders the rows as 'y' does",
    "stratified folds": "folds that are drawn by the targets",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_named_and_nothing_else(name):
    pipeline, df, target, options = PLANTED[name](frame())
    report = check_leakage(pipeline, df, target, **options)
    assert report.columns == [GUILTY.get(name, "x")], str(report)
    assert all(leak.kind in REMEDIES and leak.detail for leak in report.leaks)
    assert name not in KINDS or {leak.kind for leak in report.leaks} == {KINDS[name]}
    assert all(word in str(report) for word in SAID.get(name, [])), str(report)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_pipeline_is_left_alone(name):
    pipeline, df, target, options = CLEAN[name](frame())
    report = check_leakage(pipeline, df, target, **options)
    assert report.ok, str(report)
    assert name not in NOTED or any("'x'" in note and NOTED[name] in note for note in report.notes), str(report)


def test_means_of_all_rows_are_found_though_a_part_is_checked():
    pipeline, df, target, options = PLANTED["a table of target means"](frame(2000))
    report = check_leakage(pipeline, df, target, max_rows=500, **options)
    assert {leak.kind for leak in report.leaks} == {"outside"}


def test_a_row_number_beside_a_time_is_noted():
    df = frame().sort_values("y", kind="stable").assign(t=np.arange(600))
    report = check_leakage(lambda d: d.assign(x=np.arange(len(d))), df, "y", "t")
    assert report.ok
    assert any("the place of each row" in note for note in report.notes)


def test_a_plain_call_runs_the_pipeline_some_twenty_times():
    runs = 0

    def pipeline(d):
        nonlocal runs
        runs += 1
        return d.assign(x=d["price"] * 2, n=d.groupby("item")["item"].transform("count"))

    assert check_leakage(pipeline, frame(), "y")
    assert runs <= 20


SECONDS = pd.Series(pd.to_datetime(["2024-01-01", "2024-01-02"])).dt.as_unit("s")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 2.0], [1.0 + 1e-12, 2.1], [False, True]),
        ([1e8, 1e-3], [1e8 + 1e-3, 1e-3 + 1e-8], [False, True]),
        ([0.0, 1.0, 5.0], [1e-13, 1.0, 5.0], [False, False, False]),
        ([None, 1.0], [None, None], [False, True]),
        ([float("inf"), float("inf"), -1.0], [float("inf"), 1.0, float("-inf")], [False, True, True]),
        ([2**53, 2**53], [2**53, 2**53 + 1], [False, True]),
        ([1, 2], [1.0, 2.5], [False, True]),
        (["a", "b", None], ["a", "c", "x"], [False, True, True]),
        (["a", "b"], [1, 2], [True, True]),
        ([[1.0], [1.0, 2.0], [1.0], None], [[1.0 + 1e-12], [1.0], [2.0], []], [False, True, True, True]),
        ([["a"], ["b"]], [["a"], ["c"]], [False, True]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], [False, True]),
        ([True, False, None], [True, True, None], [False, True, False]),
        (SECONDS, SECONDS.dt.as_unit("ms"), [False, False]),
        (SECONDS, SECONDS[[0, 0]], [False, True]),
        (np.array([[1.0, np.nan], [0.0, 2.0]]), np.array([[1.0, np.nan], [0.0, 2.1]]), [False, True]),
    ],
)
def test_what_counts_as_moved(before, after, expected):
    a, b = Table({"x": before})["x"], Table({"x": after})["x"]
    assert moved(a, b).tolist() == expected
