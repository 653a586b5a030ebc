"""Learned cut points against every cut that there is, and out-of-fold classes against a loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec import metrics as m
from fastrec.errors import DataError

INF = math.inf
quick = settings(max_examples=60, deadline=None)


def value(metric, y, classes, w):
    found = m.get_metric(metric)(y, classes, weight=w)
    return 1.0 if math.isnan(found) else found  # kappa of one class, and no other given


@st.composite
def rows(draw, classes=2, most=14):
    n = draw(st.integers(2, most))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    p = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.3, 0.35, 0.8, 1.0]), min_size=n, max_size=n))
    w = draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=n, max_size=n).map(np.array))
    return np.array(y), np.array(p), w


def every_cut(p):
    distinct = sorted(set(p.tolist()))
    return [-INF, *((a + b) / 2 for a, b in itertools.pairwise(distinct)), INF]


@pytest.mark.parametrize(
    "metric", ["f1", "mcc", "accuracy", "balanced_accuracy", "f1_macro", "f1_micro", "quadratic_kappa"]
)
@given(given=rows())
@quick
def test_no_threshold_is_better(metric, given):
    y, p, w = given
    found = m.best_threshold(y, p, metric, weight=w)
    assert found in every_cut(p)
    scores = {t: value(metric, y, (p > t).astype(int), w) for t in every_cut(p)}
    best = max(scores.values())
    assert scores[found] == pytest.approx(best, abs=1e-9)
    equal = [abs(t - 0.5) for t, s in scores.items() if s >= best - 1e-13]
    assert abs(found - 0.5) <= min(equal) + 1e-9  # of equally good ones the nearest to .5


def test_thresholds_by_hand():
    y, p = [0, 0, 1, 1], [0.1, 0.2, 0.3, 0.6]
    assert m.best_threshold(y, p, "f1") == pytest.approx(0.25)
    assert m.best_threshold([1, 1, 1], [0.7, 0.8, 0.9], "f1") == -INF
    assert m.best_threshold([0, 0, 0], [0.1, 0.2, 0.4], "accuracy") == INF
    # the cut between neighbouring numbers is one of them, and still between
    low, high = 0.3, np.nextafter(0.3, 1)
    cut = m.best_threshold([0, 1], [low, high], "accuracy")
    assert low <= cut < high


def test_a_threshold_for_ones_own_metric():
    rng = np.random.default_rng(0)
    p = rng.random(5000).round(3)
    y = (rng.random(5000) < p).astype(int)

    @m.as_metric(greater_is_better=False, wants="classes", name="f1")  # the name of another
    def cost(y, classes):
        return (5 * ((y == 1) & (classes == 0)) + ((y == 0) & (classes == 1))).mean()

    found = m.best_threshold(y, p, cost)
    costs = [cost(y, (p > t).astype(int)) for t in every_cut(p)]
    assert cost(y, (p > found).astype(int)) == min(costs)  # a miss costs five false alarms: about 1 / 6
    assert 0.1 < found < 0.23


def every_partition(p, n_cuts):
    return itertools.combinations_with_replacement(every_cut(p), n_cuts)


@pytest.mark.parametrize("metric", ["quadratic_kappa", "accuracy", "balanced_accuracy"])
@given(given=rows(classes=4, most=9))
@quick
def test_no_cuts_are_better(metric, given):
    y, p, w = given
    cuts = m.best_rounding(y, p, metric, weight=w)
    assert cuts.shape == (y.max(),)
    found = value(metric, y, m.apply_cuts(p, cuts), w)
    best = max(value(metric, y, np.searchsorted(c, p), w) for c in every_partition(p, int(y.max())))
    assert found == pytest.approx(best, abs=1e-9)


@given(given=rows(classes=3, most=12))
@quick
def test_other_metrics_get_cuts_that_are_no_worse_than_their_start(given):
    y, p, w = given
    found = value("f1_macro", y, m.apply_cuts(p, m.best_rounding(y, p, "f1_macro", weight=w)), w)
    for start in ("quadratic_kappa", "accuracy", "balanced_accuracy"):
        assert found >= value("f1_macro", y, m.apply_cuts(p, m.best_rounding(y, p, start, weight=w)), w) - 1e-12


def test_other_metrics_find_the_best_cuts_of_a_clear_case():
    rng = np.random.default_rng(3)
    y = rng.choice(4, 400, p=[0.7, 0.2, 0.07, 0.03])
    p = y + rng.normal(0, 0.6, 400).round(1)
    learned = value("f1_macro", y, m.apply_cuts(p, m.best_rounding(y, p, "f1_macro")), None)
    starts = [m.best_rounding(y, p, of) for of in ("quadratic_kappa", "accuracy", "balanced_accuracy")]
    assert learned > max(value("f1_macro", y, m.apply_cuts(p, start), None) for start in starts)  # it did move
    grid = itertools.combinations_with_replacement(every_cut(p)[::3], 3)
    assert learned >= max(value("f1_macro", y, np.searchsorted(c, p), None) for c in grid) - 0.01


def test_cuts_of_real_values():
    rng = np.random.default_rng(0)
    y = rng.choice(8, 20_000, p=[0.1, 0.05, 0.02, 0.03, 0.1, 0.2, 0.15, 0.35])
    p = 0.5 * y + rng.normal(0, 1, len(y))  # shrunk, as a regression's
    cuts = m.best_rounding(y, p)
    assert (cuts[1:] >= cuts[:-1]).all()
    kappa = m.get_metric("quadratic_kappa")
    assert kappa(y, m.apply_cuts(p, cuts)) > kappa(y, p.round().clip(0, 7)) + 0.05


def test_the_lowest_class_above_zero():
    cuts = m.best_rounding([2, 2, 3], [0.1, 0.2, 0.9])
    assert cuts.tolist() == [-INF, -INF, pytest.approx(0.55)]
    assert m.apply_cuts([-5.0, 0.55, 0.6], cuts).tolist() == [2, 2, 3]  # at a cut is not above it
    assert m.best_rounding([3, 3], [0.5, 0.7]).tolist() == [-INF] * 3
    assert m.best_rounding([0, 0], [0.5, 0.7]).tolist() == []
    assert m.apply_cuts([1.0, 2.0], []).tolist() == [0, 0]


@given(given=rows(most=14), seed=st.integers(0, 99))
@quick
def test_classes_of_a_fold_are_cut_by_the_others(given, seed):
    y, p, _ = given
    folds = np.random.default_rng(seed).permutation(np.arange(len(y)) % 2) * 7
    got = m.cross_fitted_classes(y, p, folds, "f1")
    for fold in (0, 7):
        rest = folds != fold
        threshold = m.best_threshold(y[rest], p[rest], "f1")
        assert got[~rest].tolist() == (p[~rest] > threshold).tolist()


def test_a_rows_target_never_moves_its_own_class():
    rng = np.random.default_rng(5)
    for classes, metric in ((2, "mcc"), (4, "quadratic_kappa")):
        y, p, folds = rng.integers(0, classes, 60), rng.random(60), np.arange(60) % 3
        before = m.cross_fitted_classes(y, p, folds, metric)
        changed = np.where(folds == 1, classes - 1 - y, y)
        after = m.cross_fitted_classes(changed, p, folds, metric)
        assert (before == after)[folds == 1].all()
        assert (before != after).any()  # the other folds' did move


def test_what_is_scored_is_classes_where_a_metric_wants_them():
    rng = np.random.default_rng(4)
    y, p, folds = rng.integers(0, 2, 60), torch.from_numpy(rng.random(60)), torch.arange(60) % 3
    assert torch.equal(m.as_scored("f1", y, p, folds), m.cross_fitted_classes(y, p, folds, "f1"))
    assert torch.equal(m.as_scored("auc", y, p, folds).cpu(), p)
    wide = torch.from_numpy(rng.dirichlet(np.ones(3), 60))
    assert torch.equal(m.as_scored("accuracy", rng.integers(0, 3, 60), wide, folds).cpu(), wide)
    dealt = m.cross_fitted_classes(y, p, torch.arange(60) % 5, "f1")
    assert torch.equal(m.as_scored("f1", y, p, torch.zeros(60)), dealt)  # one fold alone, in five parts
    losses = {t: m.loss_of("quadratic_kappa", t).name for t in ("binary", "multiclass", "regression")}
    assert losses == {"binary": "logloss", "multiclass": "logloss", "regression": "rmse"}
    assert m.loss_of("auc", "binary").name == "auc"
    assert m.loss_of("f1_macro", "multilabel").name == "f1_macro"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: m.best_threshold([0, 1], [0.1, 0.2], "auc"), "auc is not computed from classes"),
        (lambda: m.best_threshold([0, 1], [0.1, math.nan], "f1"), "row 1: a value is NaN"),
        (lambda: m.best_threshold([0, 1], [0.1, INF], "f1"), "row 1: a value is infinite"),
        (lambda: m.best_threshold([0, 2], [0.1, 0.2], "f1"), "column 'y', row 1"),
        (lambda: m.best_threshold([0, 1], [[0.1, 0.9], [0.2, 0.8]], "f1"), r"prediction is \(2, 2\)"),
        (lambda: m.best_rounding([0, 1.5], [0.1, 0.2]), "column 'y', row 1: a value is no class"),
        (lambda: m.best_rounding([0, -1], [0.1, 0.2]), "column 'y', row 1: a value is no class"),
        (lambda: m.best_rounding([0, 1], [0.1, 0.2], "f1"), "f1 is for binary, not multiclass"),
        (lambda: m.apply_cuts([0.1, math.nan], [0.5]), "row 1: a value is NaN"),
        (lambda: m.apply_cuts([0.1], [0.5, 0.4]), "do not ascend"),
        (lambda: m.cross_fitted_classes([0, 1], [0.1, 0.2], [3, 3], "f1"), "2 rows in 1 folds, for 2 predictions"),
        (lambda: m.cross_fitted_classes([0, 1], [0.1, 0.2], [0, 1, 1], "f1"), "3 rows in 2 folds"),
    ],
)
def test_refused(call, match):
    with pytest.raises(DataError, match=match):
        call()
