"""Intervals against what theory says, the draws of whole sessions against a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.metrics import bootstrap_interval, paired_difference
from fastrec.metrics.intervals import cluster_means, interval_of

# -------------------------------------------------------------------------------------------------- independent values


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
    assert bootstrap_interval([0.5]) == (0.5, 0.5, 0.5)
    assert str(bootstrap_interval([0.5])) == "0.50000 [0.50000, 0.50000]"


@pytest.mark.parametrize("values", [np.arange(20.0), np.repeat([0.0, 1.0], 20)], ids=["all distinct", "few distinct"])
def test_blocks_do_not_change_an_interval(values, monkeypatch):
    whole = bootstrap_interval(values, repeats=31)
    assert values.min() < whole.low < whole.high < values.max()
    monkeypatch.setattr("fastrec._core.limits.RESAMPLED_AT_ONCE", 50)  # a few resamples at a time
    assert bootstrap_interval(values, repeats=31) == pytest.approx(whole, rel=1e-12)


def test_values_are_clusters_of_one():
    values = np.random.default_rng(5).random(80)
    means, draws = cluster_means(values[:, None], np.arange(80), repeats=60, seed=6)
    assert bootstrap_interval(values, repeats=60, seed=6) == pytest.approx(interval_of(means[0], draws[:, 0]))


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
    with pytest.raises(DataError, match="a has 400 values, b has 399"):
        paired_difference(base, base[1:])


def test_bad_values_for_intervals_are_named():
    with pytest.raises(DataError, match="row 1: a value is not a finite number"):
        bootstrap_interval([0.0, math.nan])
    with pytest.raises(DataError, match="there are no values"):
        bootstrap_interval([])
    with pytest.raises(DataError, match="out of range"):
        bootstrap_interval([1.0], level=1)
    with pytest.raises(DataError, match="out of range"):
        bootstrap_interval([1.0], repeats=0)


# ------------------------------------------------------------------------------------------------------------ clusters


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
)
def test_draws_of_clusters_equal_a_plain_loop(rows, repeats, seed):
    clusters = [f"s{cluster}" for cluster, _, _ in rows]
    values = np.array([row[1:] for row in rows])
    means, draws = cluster_means(values, np.array(clusters), repeats=repeats, seed=seed)
    np.testing.assert_allclose(means, values.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(draws, looped(values, clusters, repeats, seed), atol=1e-12)


def test_blocks_do_not_change_the_draws_of_clusters(monkeypatch):
    rng = np.random.default_rng(0)
    values, clusters = rng.random((200, 3)), rng.integers(0, 50, 200)
    whole = cluster_means(values, clusters, repeats=30, seed=4)[1]
    monkeypatch.setattr("fastrec._core.limits.RESAMPLED_AT_ONCE", 70)  # one resample at a time
    np.testing.assert_allclose(cluster_means(values, clusters, repeats=30, seed=4)[1], whole, rtol=1e-12)


def test_spread_is_that_of_theory():
    rng = np.random.default_rng(1)
    values = rng.random((3000, 1))
    _, draws = cluster_means(values, np.arange(3000), repeats=1500, seed=0)
    assert draws.std() == pytest.approx(values.std() / np.sqrt(3000), rel=0.08)


def test_copies_within_a_session_add_nothing():
    rng = np.random.default_rng(2)
    values, clusters = rng.random((300, 1)), np.arange(300)
    once = cluster_means(values, clusters, seed=3)[1]
    fourfold = cluster_means(np.repeat(values, 4, axis=0), np.repeat(clusters, 4), seed=3)[1]
    np.testing.assert_allclose(fourfold, once, atol=1e-12)


def test_differences_are_paired():
    rng = np.random.default_rng(3)
    first = rng.random(400)
    _, draws = cluster_means(np.column_stack([first, first - 0.01]), np.arange(400))
    gap = interval_of(0.01, draws[:, 0] - draws[:, 1])
    assert gap.low == pytest.approx(0.01)
    assert gap.high == pytest.approx(0.01)
    assert draws[:, 0].std() > 0.01


def test_interval_is_the_percentiles():
    assert interval_of(7.0, np.arange(101.0), level=0.9) == pytest.approx((7.0, 5.0, 95.0))


@pytest.mark.parametrize(
    ("values", "clusters", "repeats", "says"),
    [
        (np.empty((0, 2)), np.empty(0), 10, "no values"),
        (np.ones(3), np.arange(3), 10, "no values"),
        (np.ones((3, 1)), np.arange(2), 10, "3 rows have 2 clusters"),
        (np.array([[1.0], [np.nan]]), np.arange(2), 10, "row 1: a value is not a finite number"),
        (np.ones((3, 1)), np.arange(3), 0, "0 resamples"),
    ],
)
def test_bad_rows_or_clusters_are_named(values, clusters, repeats, says):
    with pytest.raises(DataError, match=says):
        cluster_means(values, clusters, repeats=repeats)
