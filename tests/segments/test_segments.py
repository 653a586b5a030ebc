from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec._core import kernels, limits
from fastrec._core.device import resolve_device
from fastrec.segments import (
    Groups,
    as_of,
    cumsum_in_group,
    last_in_group,
    lexical_order,
    rank_in_group,
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
    shift_in_group,
)
from fastrec.segments.groups import rank_small_groups
from fastrec.segments.windows import keys_before

pytestmark = pytest.mark.usefixtures("few_or_many")
HERE = resolve_device()
LOW, HIGH = -(2**63), 2**63 - 1
some = settings(max_examples=60, deadline=None)
whole = st.one_of(st.integers(-3, 3), st.sampled_from([LOW, LOW + 1, -(2**62), 2**53, 2**53 + 1, HIGH - 1, HIGH]))
real = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan]),
    st.floats(-5, 5, width=16),
)


def rows_of(*columns, max_size=12):
    return st.lists(st.tuples(*columns), max_size=max_size)


def ints(values):
    return torch.tensor(values, dtype=torch.int64, device=HERE)


def floats(values):
    return torch.tensor(values, dtype=torch.float64, device=HERE)


def split(rows, n):
    return [list(c) for c in zip(*rows, strict=True)] if rows else [[] for _ in range(n)]


def same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a == b or (math.isnan(a) and math.isnan(b)), (list(found), list(expected))


@pytest.fixture(scope="module", params=["compiled", "compiled, in parts", "torch"])
def way(request):
    """Compiled loops for few numbers too, in one thread and in three; and torch's own calls."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled, in parts":
            patch.setattr(kernels, "threads_for", lambda numbers: 3)
        if request.param != "torch":
            if not kernels.compiled(1 << 30):
                pytest.skip("numba is not installed")
            patch.setattr(limits, "LOOP_NUMBERS", 0)
            patch.setattr(limits, "COMPILED_ROWS", 0)
        yield request.param


@some
@given(rows_of(st.integers(0, 3), whole))
def test_reductions_of_integers_equal_a_loop(rows):
    codes, values = split(rows, 2)
    code, value = ints(codes), ints(values)
    of = [[v for c, v in rows if c == k] for k in range(5)]
    wrap = [(sum(g) + 2**63) % 2**64 - 2**63 for g in of]
    assert segment_count(code, 5).tolist() == [len(g) for g in of]
    assert segment_sum(value, code, 5).tolist() == wrap
    assert segment_min(value, code, 5).tolist() == [min(g, default=HIGH) for g in of]
    assert segment_max(value, code, 5).tolist() == [max(g, default=LOW) for g in of]


@some
@given(rows_of(st.integers(0, 3), st.floats(-100, 100, width=32)))
def test_reductions_of_floats_equal_a_loop(rows):
    codes, values = split(rows, 2)
    code, value = ints(codes), floats(values)
    of = [[v for c, v in rows if c == k] for k in range(5)]
    for k, group in enumerate(of):
        average = sum(group) / len(group) if group else math.nan
        assert segment_sum(value, code, 5)[k].item() == pytest.approx(sum(group), abs=1e-9)
        assert segment_mean(value, code, 5)[k].item() == pytest.approx(average, abs=1e-9, nan_ok=True)
        assert segment_min(value, code, 5)[k].item() == min(group, default=math.inf)
        assert segment_max(value, code, 5)[k].item() == max(group, default=-math.inf)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int8, torch.bool])
def test_sum_has_one_type_with_and_without_rows(dtype):
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    for n in (0, 1, 3):
        total = segment_sum(torch.ones(n, dtype=dtype, device=HERE), torch.zeros(n, dtype=torch.int64, device=HERE), 2)
        assert total.dtype == wide
        assert total.tolist() == [n, 0]


def sort_key(value):
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def check_order(keys, expected):
    order, as_they_are = lexical_order(keys), list(range(len(expected)))
    assert (as_they_are if order is None else order.tolist()) == expected
    assert (order is None) == (expected == as_they_are)


@some
@given(rows_of(whole, whole, whole))
def test_lexical_order_of_integers_whose_ranges_overflow_together(rows):
    check_order([ints(c) for c in split(rows, 3)], sorted(range(len(rows)), key=rows.__getitem__))


@some
@given(rows_of(st.integers(-2, 2), real, st.booleans()))
def test_lexical_order_of_mixed_kinds(rows):
    a, b, c = split(rows, 3)
    expected = sorted(range(len(rows)), key=lambda i: (a[i], sort_key(b[i]), c[i]))
    check_order([ints(a), floats(b), torch.tensor(c, dtype=torch.bool, device=HERE)], expected)


@some
@given(st.lists(real, max_size=12), st.sampled_from([torch.float64, torch.float32, torch.float16]))
def test_lexical_order_of_one_float(values, dtype):
    kept = torch.tensor(values, dtype=torch.float64, device=HERE).to(dtype)
    check_order([kept], sorted(range(len(values)), key=lambda i: sort_key(kept[i].item())))


def test_a_negative_nan_sorts_last_too():
    negative = torch.tensor([-1], dtype=torch.int64, device=HERE).view(torch.float64)
    assert lexical_order([torch.cat([negative, floats([3.0, -math.inf])])]).tolist() == [2, 1, 0]


def members(rows):
    """Row numbers by group, in order: the first field is the group, the others the order."""
    groups = {}
    for i in sorted(range(len(rows)), key=lambda i: (*rows[i], i)):
        groups.setdefault(rows[i][0], []).append(i)
    return groups


@some
@given(rows_of(st.integers(-1, 2), whole), st.integers(-4, 4))
def test_shift_equals_a_loop(rows, periods):
    codes, order = split(rows, 2)
    expected = [-1] * len(rows)
    for group in members(rows).values():
        for place, row in enumerate(group):
            if 0 <= place - periods < len(group):
                expected[row] = group[place - periods]
    assert shift_in_group(Groups.of(ints(codes), ints(order)), periods).tolist() == expected


@some
@given(rows_of(st.integers(0, 2), st.integers(0, 3)), st.data())
def test_running_sum_equals_a_loop(rows, data):
    codes, order = split(rows, 2)
    groups = Groups.of(ints(codes), ints(order))
    for kind, make in ((whole, ints), (st.integers(-8, 8).map(float), floats)):
        values = data.draw(st.lists(kind, min_size=len(rows), max_size=len(rows)))
        expected = [0] * len(rows)
        for group in members(rows).values():
            total = 0
            for row in group:
                expected[row] = total
                total += values[row]
        found = cumsum_in_group(make(values), groups)
        if make is ints:
            expected = [(v + 2**63) % 2**64 - 2**63 for v in expected]
        assert found.tolist() == expected


def test_running_sums_do_not_touch_other_groups():
    groups = Groups.of(ints([1, 1, 2, 2, 3, 3]))
    assert cumsum_in_group(floats([1e20, 1.0, 0.25, 0.5, 1, 2]), groups).tolist() == [0, 1e20, 0, 0.25, 0, 1]
    assert cumsum_in_group(floats([math.inf, 1.0, 0.25, 0.5, 1, 2]), groups).tolist() == [0, math.inf, 0, 0.25, 0, 1]


@some
@given(rows_of(st.integers(0, 2), st.integers(0, 3)), st.data())
def test_last_marked_row_equals_a_loop(rows, data):
    marks = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    expected = [-1] * len(rows)
    for group in members(rows).values():
        for place, row in enumerate(group):
            before = [r for r in group[:place] if marks[r]]
            expected[row] = before[-1] if before else -1
    codes, order = split(rows, 2)
    groups = Groups.of(ints(codes), ints(order))
    mask = torch.tensor(marks, dtype=torch.bool, device=HERE)
    assert last_in_group(mask, groups).tolist() == expected


@some
@given(rows_of(st.integers(0, 3)))
def test_sort_and_unsort_are_inverses(rows):
    (codes,) = split(rows, 1)
    groups = Groups.of(ints(codes))
    values = torch.arange(len(rows), device=HERE)
    assert groups.unsort(groups.sort(values)).tolist() == values.tolist()
    assert groups.sort(ints(codes)).tolist() == sorted(codes)
    assert groups.place.tolist() == [sorted(codes)[:i].count(c) for i, c in enumerate(sorted(codes))]


METHODS = {"min": "min", "max": "max", "average": "average", "dense": "dense", "ordinal": "first"}


def plain_ranks(codes, values, absent, method):
    """Ranks within groups, written out."""
    ranks = []
    for i, (code, value) in enumerate(zip(codes, values, strict=True)):
        others = [v for c, v, gone in zip(codes, values, absent, strict=True) if c == code and not gone]
        below, equal = sum(v < value for v in others), sum(v == value for v in others)
        earlier = sum(values[j] == value and codes[j] == code and not absent[j] for j in range(i))
        rank = {"min": below + 1, "max": below + equal, "average": below + (equal + 1) / 2}
        rank |= {"dense": len({v for v in others if v < value}) + 1, "ordinal": below + earlier + 1}
        ranks.append(math.nan if absent[i] else rank[method])
    return ranks


@some
@given(rows_of(st.integers(0, 2), real), st.sampled_from(sorted(METHODS)), st.booleans())
def test_rank_of_floats_equals_pandas(way, rows, method, together):
    rows = sorted(rows, key=lambda row: row[0]) if together else rows
    codes, values = split(rows, 2)
    frame = pd.DataFrame({"g": codes, "v": np.array(values, dtype="float64")})
    expected = frame.groupby("g")["v"].rank(method=METHODS[method])
    same(rank_in_group(floats(values), ints(codes), method=method).tolist(), expected.tolist())


@some
@given(rows_of(st.integers(0, 2), whole, st.booleans()), st.sampled_from(sorted(METHODS)), *[st.booleans()] * 2)
def test_rank_of_integers_is_exact(way, rows, method, masked, together):
    rows = sorted(rows, key=lambda row: row[0]) if together else rows
    codes, values, gone = split(rows, 3)
    gone = gone if masked else [False] * len(rows)
    expected = plain_ranks(codes, values, gone, method)
    mask = torch.tensor(gone, dtype=torch.bool, device=HERE) if masked else None
    same(rank_in_group(ints(values), ints(codes), method=method, missing=mask).tolist(), expected)


@pytest.fixture
def loops(monkeypatch):
    if not kernels.compiled(1 << 30):
        pytest.skip("numba is not installed")
    monkeypatch.setattr(limits, "LOOP_NUMBERS", 0)
    monkeypatch.setattr(limits, "COMPILED_ROWS", 2)


BIG, SMALL = [1] * 129, [0] * 4 + [1] * 9


@pytest.mark.host_only(reason="the loops are compiled for the host")
@pytest.mark.parametrize(
    ("codes", "kind", "method"),
    [
        *((codes, "int64", "min") for codes in ([1, 0], [2, 2, 1, 2], BIG, [1], [0, *BIG, 2])),
        *((SMALL, *other) for other in (("float32", "min"), ("int32", "min"), ("int64", "dense"))),
    ],
)
def test_other_groups_types_and_methods_are_sorted_instead(codes, kind, method, loops):
    values = (torch.arange(len(codes)) % 7).to(getattr(torch, kind))
    absent = torch.zeros(len(codes), dtype=torch.bool)
    assert rank_small_groups(values, torch.tensor(codes), absent, method=method) is None
    expected = plain_ranks(codes, values.tolist(), absent.tolist(), method)
    assert rank_in_group(values, torch.tensor(codes), method=method).tolist() == expected


@pytest.mark.host_only(reason="the loops are compiled for the host")
def test_a_group_of_the_greatest_length_is_ranked_at_once_and_rows_are_not_changed(loops):
    codes, values = torch.tensor([0, *BIG[1:], 2]), torch.arange(130).flip(0)
    kept = codes.clone(), values.clone()
    found = rank_small_groups(values, codes, torch.zeros(130, dtype=torch.bool), method="min")
    assert found.tolist() == [1.0, *range(128, 0, -1), 1.0]
    as_of(codes, [values], codes, [values])
    assert torch.equal(codes, kept[0])
    assert torch.equal(values, kept[1])


far_apart = st.sampled_from([0, 1, 2, 700, 701, 2**40])


@some
@given(rows_of(far_apart, whole, st.integers(0, 1)), rows_of(far_apart, whole, st.integers(0, 1)))
def test_as_of_equals_a_loop(way, queries, log):
    q, e = split(queries, 3), split(log, 3)
    found, events = as_of(ints(q[0]), [ints(q[1]), ints(q[2])], ints(e[0]), [ints(e[1]), ints(e[2])])
    row_of = list(range(len(log))) if events.order is None else events.order.tolist()
    assert row_of == sorted(range(len(log)), key=lambda i: log[i])
    assert events.codes.tolist() == [log[i][0] for i in row_of]
    for query, place in zip(queries, found.tolist(), strict=True):
        before = [i for i in row_of if query[0] > 0 and log[i][0] == query[0] and log[i] < query]
        assert (row_of[place] if place >= 0 else None) == (before[-1] if before else None)


@some
@given(*[rows_of(st.integers(0, 2), st.floats(-3, 3, width=16))] * 2)
def test_as_of_by_a_float_order(way, queries, log):
    q, e = split(queries, 2), split(log, 2)
    found, events = as_of(ints(q[0]), [floats(q[1])], ints(e[0]), [floats(e[1])])
    at = events.sort(floats(e[1])).tolist()
    for (code, when), place in zip(queries, found.tolist(), strict=True):
        before = [t for c, t in log if c == code and t < when] if code else []
        assert (at[place] if place >= 0 else None) == (max(before) if before else None)


windows_whole = st.one_of(st.integers(-4, 4), st.sampled_from([LOW, LOW + 1, HIGH, HIGH - 1]), st.integers(LOW, HIGH))


@some
@given(st.lists(windows_whole, max_size=12), st.fractions(Fraction(1, 9), 2**65), st.booleans())
@example([0, LOW, HIGH], Fraction(2**63), False)  # a span that no int64 holds
@example([0, LOW, HIGH], Fraction(2**64 - 1), True)
def test_bounds_of_integers_are_exact(keys, span, beyond):
    bounds = keys_before(ints(keys), span, beyond=beyond).tolist()
    for key, bound in zip(keys, bounds, strict=True):
        for other in (*keys, LOW, HIGH, key):
            near = key - other < span if beyond else key - other <= span
            assert (other >= bound) == near
