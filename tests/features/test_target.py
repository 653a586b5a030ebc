from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec._core.device import on_host, resolve_device
from fastrec.features import BayesianRate, Cross, FeatureSet, TargetEncode
from fastrec.features._engine.folds import INNER_SEED, row_folds
from fastrec.table import Table
from tests.features.frames import of_rows

row = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", "c", "🎉"])),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.integers(0, 3)),
)


def loop(train, key, smooth):
    """Mean, standard deviation, count and weight of evidence of ``key`` from ``(key, target, weight)`` rows."""
    rows = [(k, float(y), float(w or 0)) for k, y, w in train if y is not None]
    n = sum(w for _, _, w in rows)
    prior = sum(w * y for _, y, w in rows) / n if n else 0.0
    spread = math.sqrt(sum(w * (y - prior) ** 2 for _, y, w in rows) / n) if n else 0.0
    own = [(y, w) for k, y, w in rows if k == key and key is not None]
    count, total = sum(w for _, w in own), sum(w * y for y, w in own)
    mean = (total + smooth * prior) / (count + smooth) if count + smooth else prior
    if sum(w > 0 for _, w in own) > 1:
        spread = math.sqrt(sum(w * (y - total / count) ** 2 for y, w in own) / count)
    return mean, spread, count, evidence(mean) - evidence(prior) if 0 < prior < 1 and 0 < mean < 1 else 0.0


def evidence(share):
    return math.log(share / (1 - share))


def frame_of(rows):
    return of_rows(rows, k=object, y="Int64", w="Int64").assign(id=range(len(rows)))


STATS, NAMES = ["mean", "std", "count", "woe"], ["te_k__y", "te_std_k__y", "te_count_k__y", "te_woe_k__y"]


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "zeros and ones"])
@given(st.lists(row, min_size=1, max_size=15), st.sampled_from([0, 0.5, 1, 20.0]), st.booleans())
def test_it_equals_a_loop_in_and_out_of_fold(classes, rows, smooth, weighted):
    if classes:
        rows, smooth = [(k, None if y is None else int(y > 0), w) for k, y, w in rows], smooth or 0.5
    rows = rows if weighted else [(k, y, 1) for k, y, _ in rows]
    frame, count, near = frame_of(rows), 4 if classes else 3, 1e-9 if classes else 1e-7
    te = TargetEncode("k", "y", smooth=smooth, stats=STATS[:count], folds=3, weight="w" if weighted else None)
    made = FeatureSet([te], key="id").fit_transform(frame)
    fold = row_folds(Table.read(frame), ["id"], 3, seed=INNER_SEED).tolist()
    for i, key in enumerate(frame["k"].tolist()):
        others = [r for j, r in enumerate(rows) if fold[j] != fold[i]]
        expected = loop(others, rows[i][0], smooth)[:count]
        assert made.loc[i, NAMES[:count]].tolist() == pytest.approx(expected, abs=near), (i, key)
    new = te.transform(pd.DataFrame({"k": ["a", "🎉", "never", None]}))
    for i, key in enumerate(["a", "🎉", "never", None]):
        assert new.loc[i, NAMES[:count]].tolist() == pytest.approx(loop(rows, key, smooth)[:count], abs=near)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1, 7.5])
def test_a_deviation_needs_two_rows_whatever_they_weigh(scale):
    # a: (2·(1 - 2)² + 1·(4 - 2)²) / 3 = 2; b: one row alone, c: one of two rows weighs nothing: all rows' deviation
    frame = pd.DataFrame({"k": list("aabcc"), "y": [1.0, 4.0, 9.0, 3.0, 5.0], "w": [2.0, 1.0, 3.0, 0.0, 1.0]})
    frame["w"] *= scale
    te = TargetEncode("k", "y", stats=["std", "count"], weight="w").fit(frame)
    made = te.transform(pd.DataFrame({"k": ["a", "b", "c", "never"]}))
    y, w = frame["y"].to_numpy(), frame["w"].to_numpy()
    mean = np.average(y, weights=w)
    every = math.sqrt(np.average((y - mean) ** 2, weights=w))
    assert made["te_std_k__y"].tolist() == pytest.approx([math.sqrt(2), every, every, every])
    a = frame[frame["k"] == "a"]
    assert made["te_std_k__y"][0] == pytest.approx(math.sqrt(np.cov(a["y"], aweights=a["w"], ddof=0)))
    assert made["te_count_k__y"].tolist() == pytest.approx([3 * scale, 3 * scale, scale, 0])


def test_a_fold_column_says_the_folds():
    frame = pd.DataFrame({"k": list("aaabbb"), "y": [0, 1, 2, 3, 4, 5.0], "f": ["p", "q", "r", "p", "q", "r"]})
    made = TargetEncode("k", "y", fold_column="f", smooth=0).fit_transform(frame)
    assert made["te_k__y"].tolist() == [1.5, 1.0, 0.5, 4.5, 4.0, 3.5]


def test_several_columns_targets_and_combinations():
    frame = pd.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "y": [True, False, True], "z": [1.0, 2.0, 6.0]})
    te = TargetEncode(["a", Cross("a", "b")], ["y", "z"], smooth=0).fit(frame)
    assert te.outputs == ["te_a__y", "te_a__z", "te_a_x_b__y", "te_a_x_b__z"]
    made = te.transform(frame.drop(columns=["y", "z"]))
    assert made["te_a__y"].tolist() == [0.5, 0.5, 1]
    assert made["te_a__z"].tolist() == [1.5, 1.5, 6]
    assert made["te_a_x_b__z"].tolist() == [1, 2, 6]
    frame = pd.DataFrame({"k": [1, 1, 2], "first": list("xyx"), "then": list("yyx")})
    te = TargetEncode("k", ["first", "then"], classes=["x", "y"], smooth=0).fit(frame)
    made = te.transform(frame)[["te_k__first_x", "te_k__first_y", "te_k__then_x", "te_k__then_y"]]
    assert made.to_numpy().tolist() == [[0.5, 0.5, 0, 1], [0.5, 0.5, 0, 1], [1, 0, 1, 0]]


def test_the_target_may_be_given_apart():
    frame = pd.DataFrame({"k": ["a", "a", "b"]}, index=[5, 5, 6])
    for te in (TargetEncode("k", "y", smooth=0), TargetEncode("k", ["y"], smooth=0)):
        te.fit(frame, [1, 0, 1])
        assert te.transform(frame)["te_k__y"].tolist() == [0.5, 0.5, 1.0]
        assert list(te.fit_transform(frame, pd.Series([1, 0, 1])).columns) == ["k", "te_k__y"]


def test_weight_of_evidence_of_a_boolean_target():
    frame = pd.DataFrame({"k": list("abaa"), "y": pd.array([None, True, False, True], dtype="boolean")})
    made = TargetEncode("k", "y", stats="woe", smooth=1).fit(frame).transform(frame)["te_woe_k__y"]
    assert made.tolist() == pytest.approx([math.log(5 / 4 / 2)] * 1 + [math.log(5 / 2)] + [math.log(5 / 4 / 2)] * 2)


def test_evidence_of_one_class_is_finite():
    frame = pd.DataFrame({"k": ["a"] * 1000 + ["b"] * 1000, "y": [1] * 1000 + [0] * 1000})
    made = TargetEncode("k", "y", stats="woe", smooth=1e-6).fit(frame).transform(frame)["te_woe_k__y"]
    assert made[0] == -made[1999] == pytest.approx(math.log(1000 / 0.5e-6), rel=1e-9)
    for only in (0, 1):
        one_class = TargetEncode("k", "y", stats="woe").fit(frame.assign(y=only)).transform(frame)
        assert (one_class["te_woe_k__y"] == 0).all()


def test_each_class_has_a_column_as_if_it_were_a_target_of_its_own():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"id": range(200), "k": rng.integers(0, 9, 200), "c": rng.choice(list("xyz"), 200)})
    frame.loc[::7, "c"] = None
    stats = ["mean", "std", "count", "woe"]
    te = TargetEncode("k", "c", classes=["z", "x"], stats=stats, smooth=3)
    words = ["te_", "te_std_", "te_count_", "te_woe_"]
    assert te.outputs == [f"{w}k__c{c}" for w in words for c in ([""] if w == "te_count_" else ["_z", "_x"])]
    made = FeatureSet([te], key="id").fit_transform(frame)
    new = te.transform(frame[["k"]])
    for c in ("x", "z"):
        alone = frame.assign(y=(frame["c"] == c).astype(float).where(frame["c"].notna()))
        own = TargetEncode("k", "y", stats=stats, smooth=3)
        expected = FeatureSet([own], key="id").fit_transform(alone)
        for stat in ("", "std_", "woe_"):
            assert made[f"te_{stat}k__c_{c}"].tolist() == pytest.approx(expected[f"te_{stat}k__y"].tolist(), rel=1e-12)
        assert made["te_count_k__c"].tolist() == expected["te_count_k__y"].tolist()
        assert new[f"te_k__c_{c}"].tolist() == own.transform(frame[["k"]])["te_k__y"].tolist()


def test_a_column_that_is_key_and_target_both_is_no_target_alone():
    te = TargetEncode(["y", "k"], "y", weight="k")
    assert te.fit_only == []
    assert te.inputs == ["y", "k"]


def prior_of(frame, **options):
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


def test_rates_that_differ_by_chance_alone_are_pooled_and_those_of_all_or_nothing_left():
    same = pd.DataFrame({"c": [5, 10, 15], "n": [10, 20, 30]})
    assert prior_of(same, weight=None) == (0.5, pytest.approx(60))
    rng = np.random.default_rng(2)
    noise = pd.DataFrame({"c": rng.binomial(20, 0.3, 3000), "n": 20})
    assert prior_of(noise, weight=None)[1] > 500
    frame = pd.DataFrame({"c": [0, 10, 0, 10], "n": [10, 10, 10, 10]})
    rate = BayesianRate("c", "n", weight=None).fit(frame)
    made = rate.transform(pd.DataFrame({"c": [0, 3, 0], "n": [10, 4, 0]}))["rate_c"]
    assert made.tolist() == [0, 0.75, 0.5]


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


def test_missing_and_infinite_numbers_touch_their_own_row_alone():
    clean = pd.DataFrame({"c": [1.0, 5.0, 2.0], "n": [10.0, 10.0, 4.0]})
    odd = pd.concat([clean, pd.DataFrame({"c": [None, math.inf, 1, -math.inf], "n": [None, 3, math.inf, math.inf]})])
    for weight in (5.0, None):
        a, b = (BayesianRate("c", "n", weight=weight).fit_transform(f)["rate_c"].tolist() for f in (clean, odd))
        rounding = 0.0 if on_host(resolve_device()) else 1e-12  # a device adds up in any order
        assert b[:3] == pytest.approx(a, rel=rounding, abs=0)
        assert prior_of(odd, weight=weight) == pytest.approx(prior_of(clean, weight=weight), rel=rounding, abs=0)


count = st.one_of(st.none(), st.integers(0, 9).map(float))


@given(
    st.lists(st.tuples(count, count), min_size=1, max_size=12),
    st.one_of(st.sampled_from([1, 20.0]), st.floats(0.1, 50)),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_rates_of_a_given_weight_equal_a_loop(rows, weight, prior):
    clicks, views = (sum(r[i] or 0 for r in rows) for i in (0, 1))
    r = prior if prior is not None else clicks / views if views else 0
    expected = [((a or 0) + weight * r) / ((b or 0) + weight) for a, b in rows]
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype="float64")
    found = BayesianRate("a", "b", weight=weight, prior=prior).fit_transform(frame)["rate_a"].tolist()
    assert found == pytest.approx(expected)
