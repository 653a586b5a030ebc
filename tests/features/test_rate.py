from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import BayesianRate


def learned(frame, **options):
    """The prior's mean and weight, from the values at 0 of 0 and 0 of 1 trials: m·r / m and m·r / (m + 1)."""
    rate = BayesianRate("c", "n", **options).fit(frame)
    prior, at_one = rate.transform(pd.DataFrame({"c": [0.0, 0.0], "n": [0.0, 1.0]}))["rate_c"]
    return prior, (at_one / (prior - at_one) if prior != at_one else math.inf)


def by_moments(frame, prior=None):
    """The moment estimator in plain Python, from rows that all have trials."""
    rows = [(float(c), float(n)) for c, n in frame[["c", "n"]].itertuples(index=False)]
    total = sum(n for _, n in rows)
    r = sum(c for c, _ in rows) / total if prior is None else prior
    spread = sum(n * (c / n - r) ** 2 for c, n in rows)
    most = total - sum(n * n for _, n in rows) / total if prior is None else total
    least = len(rows) - (prior is None)
    share = (spread / (r * (1 - r)) - least) / (most - least)
    return r, 1 / min(max(share, 1 / (1 + total)), 1) - 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9),
    st.floats(0.1, 50),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_given_weight_is_the_formula(rows, weight, prior):
    frame = pd.DataFrame(rows, columns=["c", "n"])
    made = BayesianRate("c", "n", weight=weight, prior=prior).fit_transform(frame)["rate_c"]
    c, n = frame["c"].sum(), frame["n"].sum()
    r = prior if prior is not None else c / n if n else 0
    assert made.tolist() == pytest.approx([(a + weight * r) / (b + weight) for a, b in rows])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 30), st.integers(0, 30)), min_size=2, max_size=12),
    st.one_of(st.none(), st.sampled_from([0.1, 0.5])),
)
def test_a_learned_weight_is_the_moment_estimator(rows, prior):
    frame = pd.DataFrame({"c": [min(c, n) for n, c in rows], "n": [n for n, _ in rows]}, dtype="float64")
    mean = frame["c"].sum() / frame["n"].sum()
    if mean in (0, 1) and prior is None:
        return
    r, m = by_moments(frame, prior)
    made = BayesianRate("c", "n", weight=None, prior=prior).fit_transform(frame)["rate_c"]
    assert made.tolist() == pytest.approx([(c + m * r) / (n + m) for c, n in frame.itertuples(index=False)], rel=1e-9)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 8.0), (0.5, 4.5), (30.0, 30.0)])
def test_it_finds_the_prior_that_the_rates_were_drawn_from(alpha, beta):
    rng = np.random.default_rng(0)
    n = rng.integers(5, 60, 20_000)
    frame = pd.DataFrame({"c": rng.binomial(n, rng.beta(alpha, beta, 20_000)), "n": n})
    for prior in (None, alpha / (alpha + beta)):
        found, weight = learned(frame, weight=None, prior=prior)
        assert found == pytest.approx(alpha / (alpha + beta), rel=0.03)
        assert weight == pytest.approx(alpha + beta, rel=0.08)


def test_its_rates_are_nearer_to_the_truth_than_the_raw_ones_and_any_other_weight():
    rng = np.random.default_rng(1)
    truth, n = rng.beta(2, 18, 5000), rng.integers(1, 40, 5000)
    frame = pd.DataFrame({"c": rng.binomial(n, truth), "n": n})

    def error(weight):
        return ((BayesianRate("c", "n", weight=weight).fit_transform(frame)["rate_c"] - truth) ** 2).mean()

    assert error(None) < min(error(0.01), error(5), error(100), ((frame["c"] / n - truth) ** 2).mean())


def test_where_rates_differ_by_chance_alone_they_are_pooled():
    same = pd.DataFrame({"c": [5, 10, 15], "n": [10, 20, 30]})
    assert learned(same, weight=None) == (0.5, pytest.approx(60))
    rng = np.random.default_rng(2)
    noise = pd.DataFrame({"c": rng.binomial(20, 0.3, 3000), "n": 20})
    assert learned(noise, weight=None)[1] > 500


@pytest.mark.parametrize(
    "rows",
    [[], [(3, 9)], [(0, 5), (0, 9)], [(5, 5), (9, 9)], [(0, 0), (0, 0)], [(1, 1), (0, 1), (1, 1)], [(9, 3), (4, 1)]],
    ids=["none", "one row", "none clicked", "all clicked", "no trials", "single trials", "more clicks than trials"],
)
def test_where_nothing_can_be_learned_the_weight_is_20(rows):
    frame = pd.DataFrame(rows, columns=["c", "n"], dtype="float64")
    r = frame["c"].sum() / frame["n"].sum() if len(frame) and frame["n"].sum() else 0.0
    made = BayesianRate("c", "n", weight=None).fit(frame).transform(pd.DataFrame({"c": [1.0, 0.0], "n": [4.0, 0.0]}))
    assert made["rate_c"].tolist() == pytest.approx([(1 + 20 * r) / 24, r])


def test_rates_of_all_or_nothing_are_left_as_they_are():
    frame = pd.DataFrame({"c": [0, 10, 0, 10], "n": [10, 10, 10, 10]})
    rate = BayesianRate("c", "n", weight=None).fit(frame)
    made = rate.transform(pd.DataFrame({"c": [0, 3, 0], "n": [10, 4, 0]}))["rate_c"]
    assert made.tolist() == [0, 0.75, 0.5]


def test_missing_and_infinite_numbers_touch_their_own_row_alone():
    clean = pd.DataFrame({"c": [1.0, 5.0, 2.0], "n": [10.0, 10.0, 4.0]})
    odd = pd.concat([clean, pd.DataFrame({"c": [None, math.inf, 1, -math.inf], "n": [None, 3, math.inf, math.inf]})])
    for weight in (5.0, None):
        a, b = (BayesianRate("c", "n", weight=weight).fit_transform(f)["rate_c"].tolist() for f in (clean, odd))
        assert b[:3] == a
        assert learned(odd, weight=weight) == learned(clean, weight=weight)


@pytest.mark.parametrize("options", [{"weight": 0}, {"weight": -1}, {"weight": math.inf}, {"prior": math.nan}])
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="BayesianRate"):
        BayesianRate("c", "n", **options)
