import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import betabinom, chi2_contingency, false_discovery_control, fisher_exact, ks_2samp

from fastrec.monitor.compare import (
    _unseen_test,
    benjamini_hochberg,
    chi_square,
    holm,
    js_distance,
    ks_test,
    outside_test,
    psi,
    shares_test,
)

values = st.lists(st.integers(-4, 4).map(float) | st.floats(-3, 3), min_size=1, max_size=40)
counts = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=12).filter(
    lambda pairs: sum(a for a, _ in pairs) > 0 and sum(b for _, b in pairs) > 0
)
probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(*[values.filter(lambda v: len(v) > 1)] * 2)  # with one and one value scipy divides by zero
def test_ks_is_scipys(a, b):
    found = ks_test(np.sort(a), np.sort(b))
    known = ks_2samp(a, b, method="asymp")
    assert found.statistic == pytest.approx(known.statistic, abs=1e-12)
    assert found.p == pytest.approx(known.pvalue, abs=1e-9)


@given(counts)
def test_js_is_scipys_and_psi_a_plain_sum(pairs):
    a, b = (np.array(c) for c in zip(*pairs, strict=True))
    # scipy's, of equal shares, is the root of a rounding error
    assert js_distance(a, b) == pytest.approx(jensenshannon(a, b, base=2), abs=1e-7)
    total = 0.0
    for x, y in zip(a / a.sum(), b / b.sum(), strict=True):
        x, y = max(x, 1e-4), max(y, 1e-4)
        total += (y - x) * np.log(y / x)
    assert psi(a, b) == pytest.approx(total)


@given(counts)
def test_chi_square_is_scipys_with_rare_cells_together(pairs):
    n, m = (sum(c) for c in zip(*pairs, strict=True))
    kept, rare = [], [0, 0]
    for a, b in pairs:
        if min(n, m) * (a + b) / (n + m) < 5:
            rare = [rare[0] + a, rare[1] + b]
        else:
            kept.append([a, b])
    table = np.array([c for c in [*kept, rare] if sum(c)]).T
    found = chi_square(*(np.array(c) for c in zip(*pairs, strict=True)))
    if table.shape[1] < 2:
        assert found.p == 1
        return
    known = chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(known.statistic, abs=1e-9)
    if table.shape[1] == 2 and known.expected_freq.min() < 5:
        assert found.p == pytest.approx(fisher_exact(table).pvalue, abs=1e-9)
        return
    assert found.p == pytest.approx(known.pvalue, abs=1e-9)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_two_shares_are_a_table_of_two_by_two(n, m, j, k):
    j, k = min(j, n), min(k, m)
    found = shares_test((j, k), (n, m))
    if j + k in (0, n + m):
        assert found.p == 1
        return
    table = [[j, n - j], [k, m - k]]
    known = chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(known.statistic, abs=1e-9)
    exact = known.expected_freq.min() < 5 - 1e-9
    assert found.p == pytest.approx(fisher_exact(table).pvalue if exact else known.pvalue, abs=1e-9)


def test_a_few_unseen_values_of_a_small_batch_are_no_alarm():
    """Of 20 000 values two were seen once: that one of 20 new rows has an unseen one is rare, by 1 to 700 at most."""
    counts = np.r_[np.full(100, 200), 1, 1]
    found = _unseen_test(1, 20, counts)
    plain = sum(betabinom.pmf(k, 20, 3, counts.sum() - 1) for k in range(1, 21))
    assert found.p >= plain * (1 - 1e-9)
    # small batches of nothing changed: at a level of 0.001 about that share alarms
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(3000):
        values = rng.zipf(1.6, 320)
        old, new = values[:300], values[300:]
        held = np.unique(old, return_counts=True)[1]
        alarms += _unseen_test(int((~np.isin(new, old)).sum()), 20, held).p < 0.001
    assert alarms <= 9


@given(probabilities)
def test_corrections(p):
    assert benjamini_hochberg(np.array(p)) == pytest.approx(false_discovery_control(p, method="bh"))
    order, worst, by_hand = sorted(range(len(p)), key=p.__getitem__), 0.0, [0.0] * len(p)
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        by_hand[i] = worst
    assert holm(np.array(p)) == pytest.approx(by_hand)


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1))
def test_values_outside_the_range_are_as_rare_as_it_says(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.random((4000, 50)), rng.random((4000, 30))
    outside = ((b < a.min(1, keepdims=True)) | (b > a.max(1, keepdims=True))).sum(1)
    for k in (1, 3, 5):
        share = (outside >= k).mean()
        assert outside_test(k, 30, 50).p == pytest.approx(share, abs=4 * np.sqrt(share / 4000) + 0.002)
    assert outside_test(0, 30, 50).p == 1
