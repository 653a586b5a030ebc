"""The bootstrap of any metric against resampling by plain loops, and of means against their formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from fastrec.errors import DataError
from fastrec.metrics import as_metric, auc, bootstrap_metric, get_metric, mrr
from fastrec.metrics.intervals import _sorted_auc


def drawn(count: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Which clusters each resample takes, as the bootstrap draws them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, count, size=count) for _ in range(repeats)]


def case(n: int = 80, seed: int = 0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n).astype(float)
    good = np.round(np.clip((y + rng.normal(size=n) + 1) / 3, 0, 1), 1)  # many equal scores
    return y, {"good": good, "bad": np.clip(good + rng.normal(size=n) / 3, 0, 1)}, rng.integers(0, 12, n) * 7


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


def lists(n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    groups = np.repeat(rng.permutation(n), 4)
    y = np.tile([1.0, 0, 0, 0], n)
    return y, {"a": y + rng.normal(size=4 * n), "b": y + 2 * rng.normal(size=4 * n)}, groups


def test_lists_are_drawn_whole():
    y, predictions, groups = lists(30)
    users = groups // 3
    made = bootstrap_metric("mrr", y, predictions, groups=groups, clusters=users, repeats=400, seed=1)
    for model, p in predictions.items():
        assert made.values[model] == pytest.approx(mrr(p, y, groups))
        by_user = np.array([mrr(p[users == u], y[users == u], groups[users == u]) for u in range(10)])
        takes = np.random.default_rng(0).integers(0, 10, size=(4000, 10))
        expected = by_user[takes].mean(1)  # every user has three lists
        assert made.draws[model].std() == pytest.approx(expected.std(), rel=0.15)
        assert made.draws[model].mean() == pytest.approx(expected.mean(), abs=0.02)
    assert made.difference("a", "b").low < made.values["a"] - made.values["b"] < made.difference("a", "b").high


def test_lists_of_many_clusters_have_the_interval_of_their_values():
    y, predictions, groups = lists(3000)
    made = bootstrap_metric("mrr", y, predictions, groups=groups, repeats=1000).interval("a")
    each = np.array([mrr(predictions["a"][r : r + 4], y[r : r + 4], np.zeros(4, int)) for r in range(0, 12_000, 4)])
    half = 1.96 * each.std() / math.sqrt(3000)
    assert made.mean == pytest.approx(each.mean())
    assert (made.high - made.low) / 2 == pytest.approx(half, rel=0.15)


def test_a_list_that_is_drawn_twice_is_two_lists():
    y, predictions, groups = lists(12)
    seen = []

    def count(y, p, groups):
        sizes = np.unique(groups, return_counts=True)[1]
        seen.append((len(sizes), set(sizes.tolist())))
        return float(len(sizes))

    own = as_metric(count, greater_is_better=True, name="count")
    made = bootstrap_metric(own, y, {"a": predictions["a"]}, groups=groups, repeats=30)
    assert set(made.draws["a"]) == {12.0}
    assert all(found == (12, {4}) for found in seen)


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


def test_fewer_draws_take_lists_whole(monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.DRAWN_CLUSTERS", 5)
    y, predictions, groups = lists(12)
    sizes = []

    def count(y, p, groups):
        sizes.append(np.unique(groups, return_counts=True)[1].tolist())
        return float(len(sizes[-1]))

    own = as_metric(count, greater_is_better=True, name="count")
    made = bootstrap_metric(own, y, {"a": predictions["a"]}, groups=groups, repeats=30)
    assert all(found == [4] * 5 for found in sizes[1:])
    assert made.draws["a"] == pytest.approx(12 + (5 / 12) ** 0.5 * (5 - 12))


@pytest.mark.parametrize("ties", [False, True])
def test_the_sorted_area_is_the_weighted_one(ties):
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 2, 60) * 1.0)
    p = torch.from_numpy(rng.integers(0, 9, 60) * 1.0 if ties else rng.normal(size=60))
    for _ in range(10):
        times = torch.from_numpy(rng.integers(0, 4, 60))
        assert _sorted_auc(y, p)(times) == pytest.approx(auc(p, y, times), abs=1e-12)
    assert math.isnan(_sorted_auc(y, p)((y > 0).long()))


def test_resamples_without_a_metric_are_left_out():
    y = np.array([1.0] + [0.0] * 9)
    made = bootstrap_metric("auc", y, {"a": np.arange(10.0) * -1}, repeats=200)
    assert np.isnan(made.draws["a"]).any()
    assert made.interval("a") == (1.0, 1.0, 1.0)
    alone = bootstrap_metric("auc", np.ones(5), {"a": np.arange(5.0)}, repeats=5)
    assert math.isnan(alone.interval("a").low)


def test_odd_arguments_are_refused():
    with pytest.raises(DataError, match="repeats 0"):
        bootstrap_metric("auc", [0, 1], {"a": [0.1, 0.2]}, repeats=0)
    with pytest.raises(DataError, match="1 clusters for 2 rows"):
        bootstrap_metric("auc", [0, 1], {"a": [0.1, 0.2]}, clusters=[1])
