from __future__ import annotations

import bisect
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Bucketize, FeatureSet, GroupRank, TargetEncode
from fastrec.features._engine.group_values import (
    column_moments,
    count_values,
    merge_column_moments,
    merge_values,
    mode,
    quantiles,
    total_counts,
    total_moments,
)
from fastrec.features.base import Cells

number = st.one_of(st.integers(-5, 5).map(float), st.floats(-1e9, 1e9))
missing = st.just(math.nan)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(number, missing), max_size=30), st.sets(st.integers(-5, 5), min_size=1).map(sorted))
def test_given_edges_equal_bisect(values, edges):
    made = Bucketize("x", edges).transform(pd.DataFrame({"x": pd.Series(values, dtype="float64")}))["x_bucket"]
    for value, bucket in zip(values, made, strict=True):
        assert pd.isna(bucket) if math.isnan(value) else bucket == bisect.bisect_right(edges, value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(number, missing), min_size=1, max_size=40), st.integers(2, 6))
def test_quantile_edges_equal_numpy(values, parts):
    frame = pd.DataFrame({"x": values})
    made = Bucketize("x", quantiles=parts).fit_transform(frame)["x_qbucket"]
    known = [v for v in values if not math.isnan(v)]
    edges = sorted({*np.quantile(known, [i / parts for i in range(1, parts)])}) if known else []
    for value, bucket in zip(values, made, strict=True):
        if math.isnan(value):
            assert pd.isna(bucket)
        elif all(abs(value - e) > 1e-9 * max(abs(e), 1) or value == e for e in edges):  # else rounding decides
            assert bucket in {bisect.bisect_right(edges, value), bisect.bisect_right(_distinct(edges), value)}


def _distinct(edges):
    return [e for i, e in enumerate(edges) if not i or abs(e - edges[i - 1]) > 1e-9 * max(abs(e), 1)]


def test_equal_buckets_hold_equal_shares():
    frame = pd.DataFrame({"x": np.random.default_rng(0).permutation(1000)})
    assert Bucketize("x", quantiles=4).fit_transform(frame)["x_qbucket"].value_counts().to_dict() == dict.fromkeys(
        range(4), 250
    )
    made = Bucketize("x", quantiles=[0.1, 0.9]).fit_transform(frame)["x_qbucket"]
    assert made.value_counts().to_dict() == {0: 100, 1: 800, 2: 100}


def test_equal_edges_become_one_and_a_blank_column_has_none():
    assert Bucketize("x", quantiles=4).fit_transform(pd.DataFrame({"x": [1, 1, 1, 9]}))["x_qbucket"].tolist() == [
        *[1, 1, 1],
        2,
    ]
    blank = Bucketize("x", quantiles=4).fit(pd.DataFrame({"x": [math.nan, math.nan]}))
    assert blank.transform(pd.DataFrame({"x": [5.0]}))["x_qbucket"].tolist() == [0]


def test_edges_are_those_of_the_training_rows():
    feature = Bucketize("x", quantiles=2).fit(pd.DataFrame({"x": [0, 10]}))
    assert feature.transform(pd.DataFrame({"x": [100, 101, 4, 5]}))["x_qbucket"].tolist() == [1, 1, 0, 1]


def test_infinities_are_in_the_last_buckets_and_move_no_other_edge():
    frame = pd.DataFrame({"x": [-math.inf, 1, 2, 3, math.inf]})
    assert Bucketize("x", quantiles=[0.25, 0.5, 0.75]).fit_transform(frame)["x_qbucket"].tolist() == [0, 1, 2, 3, 3]
    assert Bucketize("x", [0]).fit_transform(frame)["x_bucket"].tolist() == [0, 1, 1, 1, 1]


def test_given_edges_need_no_fitting_and_say_so(tmp_path):
    given_, learned = Bucketize("x", [1.5]), Bucketize("x", quantiles=2)
    assert (given_.kind, given_.online, learned.kind, learned.online) == ("row", "row", "fitted", "fitted")
    given_.save(tmp_path / "b")
    assert Bucketize.load(tmp_path / "b").transform(pd.DataFrame({"x": [1, 2]}))["x_bucket"].tolist() == [0, 1]
    with pytest.raises(FastrecError, match="fitted"):
        learned.transform(pd.DataFrame({"x": [1]}))


def test_given_edges_of_an_encoding_are_row_wise_and_learned_ones_are_not():
    from fastrec.features._engine.chain import mixing_steps

    te = TargetEncode("k", "y")
    for feature, mixes in ((Bucketize(te, [0.5]), False), (Bucketize(te, quantiles=2), True)):
        steps = FeatureSet([feature, GroupRank("t", by="k")]).steps
        assert (feature in mixing_steps(steps, [], together=False)) == mixes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"edges": [1], "quantiles": 2},
        {"edges": []},
        {"edges": [2, 1]},
        {"edges": [1, 1]},
        {"edges": [math.nan]},
        {"quantiles": 1},
        {"quantiles": 2.5},
        {"quantiles": []},
        {"quantiles": [0.5, 0.2]},
        {"quantiles": [1.2]},
        {"quantiles": 3, "scope": "test"},
    ],
)
def test_what_cannot_be(options):
    with pytest.raises(FastrecError, match="Bucketize"):
        Bucketize("x", **options)


partition = st.lists(st.one_of(number, missing, st.just(-0.0), st.sampled_from([math.inf, -math.inf])), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(partition, min_size=1, max_size=4), st.data())
def test_value_counts_by_cell_merge_to_those_of_all(parts, data):
    states, everything = [], [[], [], []]
    for part in parts:
        cells = data.draw(st.lists(st.integers(0, 2), min_size=len(part), max_size=len(part)))
        for value, cell in zip(part, cells, strict=True):
            everything[cell].append(value)
        codes = Cells(torch.tensor(cells, dtype=torch.int64), 3)
        states.append(count_values(torch.tensor(part, dtype=torch.float64), codes))
    merged = states[0]
    for state in states[1:]:
        merged = merge_values(state, merged)
    keep = torch.tensor([True, False, True])
    for chosen, mask in (([0, 1, 2], None), ([0, 2], keep)):
        known = sorted(v for c in chosen for v in everything[c] if not math.isnan(v))
        value, count = total_counts(merged, mask)
        assert torch.repeat_interleave(value, count).tolist() == known
        if known:
            assert float(mode(value, count)) == max(sorted(set(known)), key=known.count)
            with np.errstate(invalid="ignore"):
                expected = np.quantile(known, [0, 0.3, 0.5, 1])
            found = quantiles(value, count, [0, 0.3, 0.5, 1]).numpy()
            # numpy gives NaN between infinities
            assert found[np.isfinite(expected)] == pytest.approx(expected[np.isfinite(expected)], rel=1e-9, abs=1e-300)
        else:
            assert bool(quantiles(value, count, [0.5]).isnan().all())
            assert math.isnan(mode(value, count))


@settings(max_examples=60, deadline=None)
@given(st.lists(partition, min_size=1, max_size=4), st.floats(-1e12, 1e12), st.data())
def test_moments_by_cell_merge_to_those_of_all(parts, shift, data):
    merged, everything = None, [[], []]
    for part in parts:
        moved = [v + shift for v in part]
        cells = data.draw(st.lists(st.integers(0, 1), min_size=len(part), max_size=len(part)))
        for value, cell in zip(moved, cells, strict=True):
            everything[cell].append(value)
        codes = Cells(torch.tensor(cells, dtype=torch.int64), 2)
        state = column_moments(torch.tensor(moved, dtype=torch.float64), codes)
        merged = state if merged is None else merge_column_moments(merged, state)
    for chosen, mask in (([0, 1], None), ([1], torch.tensor([False, True]))):
        known = [v for c in chosen for v in everything[c] if math.isfinite(v)]
        total = {n: float(v) for n, v in total_moments(merged, mask).items()}
        assert total["count"] == len(known)
        if known:
            mean = math.fsum(known) / len(known)
            scale = max(map(abs, known))
            assert total["mean"] == pytest.approx(mean, rel=1e-12, abs=1e-14 * scale)
            m2 = math.fsum((v - mean) ** 2 for v in known)
            # Two means, each rounded to half a unit in the last place, are subtracted and squared.
            rounding = len(known) * ((1e-14 * scale) ** 2 + (max(known) - min(known)) * scale * 2.0**-53)
            assert total["m2"] == pytest.approx(m2, rel=1e-7, abs=rounding + 1e-300)
            assert (total["min"], total["max"]) == (min(known), max(known))
