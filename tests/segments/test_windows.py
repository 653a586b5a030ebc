from __future__ import annotations

import math
import statistics
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core.device import resolve_device
from fastrec.segments import Groups
from fastrec.segments.windows import (
    count_before,
    decayed_sums,
    first_at_least,
    keys_before,
    tie_start,
    window_extreme,
    window_median,
    window_squares,
    window_sum,
)

some = settings(max_examples=60, deadline=None)
HERE = resolve_device()
LOW, HIGH = -(2**63), 2**63 - 1


def ints(values):
    return torch.tensor(values, dtype=torch.int64, device=HERE)


def floats(values):
    return torch.tensor(values, dtype=torch.float64, device=HERE)


whole = st.one_of(st.integers(-4, 4), st.sampled_from([LOW, LOW + 1, HIGH, HIGH - 1]), st.integers(LOW, HIGH))


@some
@given(st.lists(whole, max_size=12), st.fractions(Fraction(1, 9), 2**65), st.booleans())
def test_bounds_of_integers_are_exact(keys, span, beyond):
    bounds = keys_before(ints(keys), span, beyond=beyond).tolist()
    for key, bound in zip(keys, bounds, strict=True):
        for other in (*keys, LOW, HIGH, key):
            near = key - other < span if beyond else key - other <= span
            assert (other >= bound) == near


def test_bounds_of_floats():
    keys = floats([1.0, 0.5, math.inf, -math.inf])
    assert keys_before(keys, Fraction(1, 2)).tolist() == [0.5, 0.0, math.inf, -math.inf]
    above = keys_before(keys, Fraction(1, 2), beyond=True).tolist()
    assert above[0] > 0.5
    assert above[0] == pytest.approx(0.5)


@some
@given(st.lists(st.integers(-3, 9), min_size=1, max_size=20), st.data())
def test_first_at_least_equals_a_loop(keys, data):
    keys = sorted(keys)
    n = len(keys)
    queries = data.draw(st.lists(st.tuples(st.integers(-4, 10), st.integers(0, n), st.integers(0, n)), max_size=10))
    queries = [(b, min(x, y), max(x, y)) for b, x, y in queries]
    expected = [next((i for i in range(x, y) if keys[i] >= b), y) for b, x, y in queries]
    bounds, low, high = ([q[i] for q in queries] for i in range(3))
    assert first_at_least(ints(keys), ints(bounds), ints(low), ints(high)).tolist() == expected


def test_ties_start_anew_in_every_group():
    groups = Groups.of(ints([0, 0, 0, 1, 1, 1]))
    assert tie_start(groups, ints([1, 1, 2, 2, 2, 3])).tolist() == [0, 0, 2, 3, 3, 5]
    assert tie_start(Groups.of(ints([])), ints([])).tolist() == []


def test_counts_of_marks():
    assert count_before(torch.tensor([True, False, True], device=HERE)).tolist() == [0, 1, 1, 2]


@st.composite
def windows(draw, values):
    """Values in groups, and windows that stay within a group."""
    groups = draw(st.lists(st.lists(values, max_size=9), max_size=4))
    rows = [v for g in groups for v in g]
    codes = [i for i, g in enumerate(groups) for _ in g]
    chosen = []
    start = 0
    for g in groups:
        a_place = st.integers(start, start + len(g))
        chosen += [tuple(sorted(w)) for w in draw(st.lists(st.tuples(a_place, a_place), max_size=6))]
        start += len(g)
    return rows, codes, chosen


real = st.one_of(st.integers(-5, 5).map(float), st.floats(-1e6, 1e6), st.sampled_from([1e8, 1e8 + 1, 1e8 - 1]))


def equal(found, expected, **near):
    near = near or {"rel": 1e-12, "abs": 1e-9}
    assert found.tolist() == pytest.approx(expected, nan_ok=True, **near)


@some
@given(windows(real))
def test_windows_equal_loops(drawn):
    rows, codes, chosen = drawn
    first, end = ints([a for a, _ in chosen]), ints([b for _, b in chosen])
    inside = [rows[a:b] for a, b in chosen]
    values = floats(rows)
    equal(window_sum(values, first, end), [math.fsum(w) for w in inside])
    squares = [float(statistics.pvariance(map(Fraction, w)) * len(w)) if w else 0.0 for w in inside]
    equal(window_squares(values, first, end), squares, rel=1e-9, abs=1e-9)
    assert window_extreme(values, first, end, largest=True).tolist() == [max(w, default=-math.inf) for w in inside]
    assert window_extreme(values, first, end, largest=False).tolist() == [min(w, default=math.inf) for w in inside]
    medians = [statistics.median(w) if w else math.nan for w in inside]
    equal(window_median(values, ints(codes), first, end), medians)


def test_a_window_holds_nothing_of_the_rows_beside_it():
    values = floats([1e300, 0.1, 0.2, math.inf, -math.inf, 0.3, 5e-324])
    first, end = ints([1, 5, 0, 3, 3]), ints([3, 6, 1, 5, 4])
    total = window_sum(values, first, end).tolist()
    assert total[:3] == [0.1 + 0.2, 0.3, 1e300]
    assert math.isnan(total[3])
    assert total[4] == math.inf
    assert window_squares(values, first, end).tolist()[1:3] == [0, 0]
    median = window_median(values, torch.zeros(7, dtype=torch.int64, device=HERE), ints([0, 3, 3]), ints([4, 5, 4]))
    assert median.tolist()[0] == pytest.approx(5e299)
    assert math.isnan(median[1])
    assert median[2] == math.inf


def test_a_spread_of_one_around_1e8():
    values = floats([1e8, 1e8 + 1, 1e8 + 2] * 1000)
    assert float(window_squares(values, ints([0]), ints([3000]))) == pytest.approx(2000, rel=1e-10)
    assert window_squares(floats([0.1] * 7), ints([0]), ints([7])).tolist() == [0]


def decayed_mean(*given):
    total, weight = decayed_sums(*given)
    return total / weight


@some
@given(st.lists(st.lists(st.tuples(st.integers(0, 50), real), max_size=9), max_size=4), st.sampled_from([0.3, 1, 7.5]))
def test_decayed_means_equal_a_loop(groups, half_life):
    groups = [sorted(g) for g in groups]
    expected = []
    for g in groups:
        for i, (now, _) in enumerate(g):
            weights = [2 ** (-(now - t) / half_life) for t, _ in g[: i + 1]]
            expected.append(math.fsum(w * v for w, (_, v) in zip(weights, g)) / math.fsum(weights))
    rows = [r for g in groups for r in g]
    place = [i for g in groups for i in range(len(g))]
    found = decayed_mean(floats([v for _, v in rows]), ints([t for t, _ in rows]), ints(place), half_life)
    equal(found, expected, rel=1e-9, abs=1e-9)


def test_decay_over_the_longest_times():
    at, values = ints([LOW, LOW + 1, -5, HIGH - 1, HIGH]), floats([1, 2, 3, 4, 5])
    found = decayed_mean(values, at, ints(range(5)), 1.0)
    equal(found, [1, 5 / 3, 3, 4, 14 / 3])
    slow = decayed_mean(
        floats([1e8, 1e8 + 2] * 2000), torch.arange(4000, device=HERE), torch.arange(4000, device=HERE), 1e300
    )
    assert float(slow[-1]) == pytest.approx(1e8 + 1, abs=1e-6)
