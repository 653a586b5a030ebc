"""Intervals against what theory says; the bootstrap of any metric, and of whole sessions, against plain loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from fastrec import metrics as m
from fastrec.errors import DataError
from fastrec.metrics import as_metric, bootstrap_interval, bootstrap_metric, get_metric, paired_difference
from fastrec.metrics.intervals import cluster_means, conformal_bound, conformal_gaps, interval_of
from tests._core.refusals import refused


def test_bootstrap_interval_is_the_normal_one_for_many_values():
    rng = np.random.default_rng(1)
    for values in (rng.random(1500), 1 / rng.integers(1, 6, 1500)):  # all distinct; few distinct
        mean, low, high = bootstrap_interval(values)
        se = values.std() / math.sqrt(len(values))
        assert mean == pytest.approx(values.mean())
        assert low == pytest.approx(mean - 1.96 * se, abs=0.15 * se)
        assert high == pytest.approx(mean + 1.96 * se, abs=0.15 * se)
        wider = bootstrap_interval(values, level=0.99)
        assert wider.low < low < high < wider.high
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    assert str(bootstrap_interval([0.5])) == "0.50000 [0.50000, 0.50000]"


@pytest.mark.parametrize("values", [np.arange(20.0), np.repeat([0.0, 1.0], 20)], ids=["all distinct", "few distinct"])
def test_blocks_do_not_change_an_interval(values, monkeypatch):
    whole = bootstrap_interval(values, repeats=31)
    assert values.min() < whole.low < whole.high < values.max()
    monkeypatch.setattr("fastrec._core.limits.RESAMPLED_AT_ONCE", 50)  # a few resamples at a time
    assert bootstrap_interval(values, repeats=31) == pytest.approx(whole, rel=1e-12)


def test_paired_difference_sees_what_separate_intervals_cannot():
    rng = np.random.default_rng(2)
    base = rng.random(400)
    better = base + 0.01 + 0.01 * rng.standard_normal(400)
    a, b = bootstrap_interval(better), bootstrap_interval(base)
    assert a.low < b.high
    mean, low, high = paired_difference(better, base)
    assert mean == pytest.approx((better - base).mean())
    assert 0 < low < mean < high
    same = paired_difference(torch.tensor(base), base)
    assert same == (0, 0, 0)


def looped(values: np.ndarray, clusters: list, repeats: int, seed: int) -> np.ndarray:
    names = sorted(set(clusters))
    rows_of = {name: [i for i, c in enumerate(clusters) if c == name] for name in names}
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(repeats):
        drawn = [names[i] for i in rng.integers(0, len(names), size=len(names))]
        rows = [row for name in drawn for row in rows_of[name]]
        means.append([sum(values[row, m] for row in rows) / len(rows) for m in range(values.shape[1])])
    return np.array(means)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.floats(-3, 3)), min_size=1, max_size=25),
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from([1, 20, 10**6]),
)
def test_draws_of_clusters_equal_a_plain_loop(rows, repeats, seed, at_once):
    clusters = [f"s{cluster}" for cluster, _, _ in rows]
    values = np.array([row[1:] for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.limits.RESAMPLED_AT_ONCE", at_once)
        means, draws = cluster_means(values, np.array(clusters), repeats=repeats, seed=seed)
    np.testing.assert_allclose(means, values.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(draws, looped(values, clusters, repeats, seed), atol=1e-12)
    ends = np.quantile(draws[:, 0], [0.05, 0.95])
    assert interval_of(means[0], draws[:, 0], level=0.9) == pytest.approx((means[0], *ends))


def drawn(count: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Which clusters each resample takes, as the bootstrap draws them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, count, size=count) for _ in range(repeats)]


def case(n: int = 80, seed: int = 0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n).astype(float)
    good = np.round(np.clip((y + rng.normal(size=n) + 1) / 3, 0, 1), 1)  # many equal scores
    return y, {"good": good, "bad": good + rng.normal(size=n) / 3}, rng.integers(0, 12, n) * 7


METRICS = {
    "auc": lambda y, p: roc_auc_score(y, p),
    "f1": lambda y, p: f1_score(y, p > 0.5),
    "own": lambda y, p: float(np.sort(np.abs(y - p))[len(y) // 3]),
}


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_draws_are_those_of_plain_loops(name, clustered):
    y, predictions, clusters = case()
    own = as_metric(METRICS["own"], greater_is_better=False, name="own")
    metric = own if name == "own" else get_metric(name)
    units = clusters if clustered else np.arange(len(y))
    ids = np.unique(units)
    made = bootstrap_metric(metric, y, predictions, clusters=clusters if clustered else None, repeats=20, seed=4)
    for model, p in predictions.items():
        expected = []
        for take in drawn(len(ids), 20, 4):
            rows = np.concatenate([np.flatnonzero(units == ids[c]) for c in np.sort(take)])
            rows = np.sort(rows)
            expected.append(METRICS[name](y[rows], p[rows]))
        np.testing.assert_allclose(made.draws[model], expected, atol=1e-12)
        assert made.values[model] == pytest.approx(METRICS[name](y, p))
    difference = made.difference("good", "bad")
    assert difference.mean == made.values["good"] - made.values["bad"]
    ends = np.quantile(made.draws["good"] - made.draws["bad"], [0.025, 0.975])
    assert (difference.low, difference.high) == pytest.approx(tuple(ends))
    assert made.interval("bad").low == pytest.approx(np.quantile(made.draws["bad"], 0.025))


@pytest.mark.parametrize(("most", "lists"), [(100, 12), (5, 5)])
def test_lists_are_drawn_whole_and_one_drawn_twice_is_two(most, lists, monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.DRAWN_CLUSTERS", most)
    groups, y = np.repeat(np.random.default_rng(0).permutation(12), 4), np.tile([1.0, 0, 0, 0], 12)
    sizes = []

    def count(y, p, groups):
        sizes.append(np.unique(groups, return_counts=True)[1].tolist())
        return float(len(sizes[-1]))

    own = as_metric(count, greater_is_better=True, name="count")
    made = bootstrap_metric(own, y, {"a": y}, groups=groups, repeats=30)
    assert all(found == [4] * lists for found in sizes[1:])
    assert made.draws["a"] == pytest.approx(12 + (lists / 12) ** 0.5 * (lists - 12))
    sizes.clear()  # users of three lists each
    bootstrap_metric(own, y, {"a": y}, groups=groups, clusters=groups // 3, repeats=30)
    assert all(found == [4] * 12 for found in sizes)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", ["auc", "accuracy"])
def test_fewer_draws_of_many_clusters_have_the_width_of_all_draws(name, clustered, monkeypatch):
    y, predictions, _ = case(6000)
    y, predictions = np.repeat(y, 2), {n: np.repeat(p, 2) for n, p in predictions.items()}  # rows come twice
    clusters = np.repeat(np.arange(6000), 2) if clustered else None
    whole = bootstrap_metric(name, y, predictions, clusters=clusters, repeats=600, seed=1)
    monkeypatch.setattr("fastrec._core.limits.DRAWN_CLUSTERS", 700)
    fewer = bootstrap_metric(name, y, predictions, clusters=clusters, repeats=600, seed=2)
    assert fewer.values == whole.values
    for of in (lambda made: made.interval("good"), lambda made: made.difference("good", "bad")):
        assert of(fewer).high - of(fewer).low == pytest.approx(of(whole).high - of(whole).low, rel=0.12)
        assert (of(fewer).low + of(fewer).high) / 2 == pytest.approx(of(whole).mean, abs=0.002)
    if name == "accuracy":  # of a share by its formula
        share = whole.values["good"]
        half = 1.96 * math.sqrt(share * (1 - share) / (6000 if clustered else 12_000))
        assert (fewer.interval("good").high - fewer.interval("good").low) / 2 == pytest.approx(half, rel=0.12)


def test_resamples_without_a_metric_are_left_out():
    y = np.array([1.0] + [0.0] * 9)
    made = bootstrap_metric("auc", y, {"a": np.arange(10.0) * -1}, repeats=200)
    assert np.isnan(made.draws["a"]).any()
    assert made.interval("a") == (1.0, 1.0, 1.0)
    alone = bootstrap_metric("auc", np.ones(5), {"a": np.arange(5.0)}, repeats=5)
    assert math.isnan(alone.interval("a").low)


TWO = ([0, 1], {"a": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bootstrap_interval([0.0, math.nan]), "row 1: a value is not a finite number"),
        (lambda: bootstrap_interval([]), "there are no values"),
        (lambda: bootstrap_interval([1.0], level=1), "level 1 is out of range"),
        (lambda: bootstrap_interval([1.0], repeats=0), "repeats 0 or"),
        (lambda: paired_difference([1.0, 2.0], [1.0]), "a has 2 values, b has 1"),
        (lambda: bootstrap_metric("auc", *TWO, repeats=0), "repeats 0"),
        (lambda: bootstrap_metric("auc", *TWO, clusters=[1]), "1 clusters for 2 rows"),
        (lambda: cluster_means(np.empty((0, 2)), np.empty(0)), "no values"),
        (lambda: cluster_means(np.ones(3), np.arange(3)), "no values"),
        (lambda: cluster_means(np.ones((3, 1)), np.arange(2)), "3 rows have 2 clusters"),
        (lambda: cluster_means(np.array([[1.0], [np.nan]]), np.arange(2)), "row 1: a value is not a finite number"),
        (lambda: cluster_means(np.ones((3, 1)), np.arange(3), repeats=0), "repeats is 0"),
        (lambda: m.best_threshold([0, 1], [0.1, 0.2], "auc"), "auc is not computed from classes"),
        (lambda: m.best_threshold([0, 1], [0.1, math.nan], "f1"), "row 1: a value is NaN"),
        (lambda: m.best_threshold([0, 1], [0.1, math.inf], "f1"), "row 1: a value is infinite"),
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
def test_bad_values_are_named(call, says):
    refused(DataError, says, call)


@given(st.lists(st.floats(0, 9), min_size=1, max_size=40), st.integers(1, 99))
@settings(max_examples=60, deadline=None)
def test_a_conformal_bound_is_the_smallest_gap_that_enough_others_do_not_exceed(gaps, percent):
    level, needed = percent / 100, None
    for gap in sorted(gaps):  # a new row is one of n + 1: at least level of them may not exceed the bound
        if sum(g <= gap for g in gaps) >= (len(gaps) + 1) * level - 1e-9:
            needed = gap
            break
    if needed is None:
        refused(DataError, rf"{len(gaps)} rows are too few for level", lambda: conformal_bound(np.array(gaps), level))
    else:
        assert conformal_bound(np.array(gaps), level) == needed


def test_conformal_gaps_by_hand():
    amounts = conformal_gaps(np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[1.5, 2.0], [1.0, 4.0]]), classes=False)
    assert amounts.tolist() == [[0.5, 0.0], [2.0, 4.0]]
    two = conformal_gaps(np.array([[0.0], [1.0]]), np.array([[0.25], [0.75]]), classes=True)
    assert two.tolist() == [[0.25], [0.25]]
    three = conformal_gaps(np.array([[2.0], [0.0]]), np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]), classes=True)
    np.testing.assert_allclose(three, [[0.3], [0.5]])
    for level in (0, 1, True, -0.1, 1.5, 90, float("nan"), "0.9", None):
        with pytest.raises(DataError, match=rf"level is {level!r}\. Give a share between 0 and 1, such as 0\.9"):
            conformal_bound(np.arange(9.0), level)


# Learned cut points against every cut that there is, and out-of-fold classes against a loop


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


def test_a_threshold_between_neighbours_is_one_of_them():
    low, high = 0.3, np.nextafter(0.3, 1)
    assert low <= m.best_threshold([0, 1], [low, high], "accuracy") < high


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


def test_other_metrics_find_the_best_cuts_of_a_clear_case():
    rng = np.random.default_rng(3)
    y = rng.choice(4, 400, p=[0.7, 0.2, 0.07, 0.03])
    p = y + rng.normal(0, 0.6, 400).round(1)
    learned = value("f1_macro", y, m.apply_cuts(p, m.best_rounding(y, p, "f1_macro")), None)
    starts = [m.best_rounding(y, p, of) for of in ("quadratic_kappa", "accuracy", "balanced_accuracy")]
    assert learned > max(value("f1_macro", y, m.apply_cuts(p, start), None) for start in starts)  # it did move
    grid = itertools.combinations_with_replacement(every_cut(p)[::3], 3)
    assert learned >= max(value("f1_macro", y, np.searchsorted(c, p), None) for c in grid) - 0.01


def test_the_lowest_class_above_zero():
    cuts = m.best_rounding([2, 2, 3], [0.1, 0.2, 0.9])
    assert cuts.tolist() == [-INF, -INF, pytest.approx(0.55)]
    assert m.apply_cuts([-5.0, 0.55, 0.6], cuts).tolist() == [2, 2, 3]  # at a cut is not above it
    assert m.best_rounding([3, 3], [0.5, 0.7]).tolist() == [-INF] * 3
    assert m.best_rounding([0, 0], [0.5, 0.7]).tolist() == []
    assert m.apply_cuts([1.0, 2.0], []).tolist() == [0, 0]


@given(given=rows(classes=4, most=14), ordered=st.booleans(), seed=st.integers(0, 99))
@quick
def test_classes_of_a_fold_are_cut_by_the_others(given, ordered, seed):
    y, p, _ = given
    y = y if ordered else y % 2
    metric = "quadratic_kappa" if y.max() > 1 else "f1"
    folds = np.random.default_rng(seed).permutation(np.arange(len(y)) % 2) * 7
    got = m.cross_fitted_classes(y, p, folds, metric)
    for fold in (0, 7):
        rest = folds != fold
        if y.max() > 1:
            expected = m.apply_cuts(p[~rest], m.best_rounding(y[rest], p[rest], metric)).tolist()
        else:
            expected = (p[~rest] > m.best_threshold(y[rest], p[rest], metric)).tolist()
        assert got[~rest].tolist() == expected


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
