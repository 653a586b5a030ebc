"""Generators against what scikit-learn and pandas make of the same frames, with keys of text, floats and integers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fastrec.features as ff
from tests.features.frames import of_rows


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("key", ["s", "f"])
def test_vectors_span_scikit_learns_truncated_decomposition(log, key):
    from sklearn.decomposition import TruncatedSVD

    rng = np.random.default_rng(7)
    rank = np.minimum(rng.geometric(0.15, 3000), 40)
    keys = np.array([f"i{k}" for k in range(41)], dtype=object) if key == "s" else np.arange(41) * 0.5 - 3
    frame = pd.DataFrame({"k": pd.Series(keys[rank]), "user": (rank * 3 + rng.integers(0, 25, 3000)) % 60})
    frame.loc[::50, "k"] = None if key == "s" else math.nan
    matrix = pd.crosstab(frame["k"], frame["user"]).astype("float64")
    matrix = np.log1p(matrix) if log else matrix
    theirs = TruncatedSVD(4, algorithm="arpack").fit_transform(matrix.to_numpy())
    ours = ff.SvdEncode("k", "user", dims=4, log=log).fit(frame)
    made = ours.transform(pd.DataFrame({"k": matrix.index}))[ours.outputs].to_numpy()
    # Components have any sign: the subspace, and every inner product in it, has not.
    np.testing.assert_allclose(made @ made.T, theirs @ theirs.T, atol=1e-6 * np.abs(theirs).max() ** 2)
    np.testing.assert_allclose(np.abs(made), np.abs(theirs), atol=1e-4 * np.abs(theirs).max())
    assert (made[np.abs(made).argmax(0), range(4)] > 0).all()


# Generators against pandas: rows in any order, groups of text and floats, keys that are missing or new


text = st.one_of(st.none(), st.sampled_from(["a", "b", "é🎉"]))
level = st.sampled_from([math.nan, 0.0, -0.0, 0.5, 1e8, 1e8 + 1, math.inf])
value = st.one_of(st.just(math.nan), st.integers(-3, 3).map(float), st.sampled_from([0.1, 2.5, -7.25]))
rows = st.lists(st.tuples(text, level, st.integers(0, 6), st.sampled_from([0.0, 0.25, 3.0]), value), max_size=24)
BY = ["s", "f"]


def many(n=90):
    """Rows in groups of many, with ties in everything."""
    rng = np.random.default_rng(0)
    s, f = ([pool[i] for i in rng.integers(0, len(pool), n)] for pool in ("aab", [0.0, -0.0, 1e8, 1e8 + 1, math.nan]))
    s = [None if gone else key for gone, key in zip(rng.random(n) < 0.2, s)]
    x = rng.choice([math.nan, -3, -1, 0, 0.1, 2.5, 2.5], n).tolist()
    return list(zip(s, f, rng.integers(0, 7, n).tolist(), rng.integers(0, 3, n).astype(float).tolist(), x))


MANY = many()


def frame_of(rows):
    """Rows in any order: a group of text ``s`` and float ``f``, times ``t`` and ``u``, numbers ``x``."""
    return of_rows(rows, s=object, f="float64", t="int64", u="float64", x="float64")


def ordered(frame, *names, by=BY):
    """The rows of whole groups in the order of columns, ties by row, for pandas to group."""
    rows = frame.dropna(subset=by) if by else frame
    rows = rows.sort_values(list(names), kind="stable") if names else rows
    return rows.groupby(by or (lambda _: 0), sort=False)


def same(found, expected, near=1e-9):
    """Equal values, missing where they are; rows that pandas drops (without a group) are missing."""
    expected = expected.reindex(found.index).astype("float64")
    assert found.astype("float64").tolist() == pytest.approx(expected.tolist(), rel=near, abs=near, nan_ok=True)


def transformed(groups, stat, share=None):
    """A statistic of every row's group."""
    if not groups.ngroups:
        return pd.Series(dtype="float64")
    made = groups.transform(stat) if share is None else groups.transform(lambda v: v.quantile(share))
    if stat == "skew":  # of three equal values or more pandas 2 says 0, and pandas 3 nothing
        equal = (groups.transform("nunique") == 1) & (groups.transform("count") > 2)
        made = made.where(~equal, 0)
    return made


STATS = ["mean", "std", "min", "max", "sum", "count", "median", "skew", "nunique"]


@settings(max_examples=15)
@example(MANY)
@given(rows)
def test_statistics_of_groups_of_text_and_float_equal_pandas(data):
    frame = frame_of(data)
    groups = frame.dropna(subset=BY).groupby(BY)["x"]
    shares = {"q10": 0.1, "q25": 0.25, "q975": 0.975}
    trained = ff.GroupStats("x", by=BY, stats=[*STATS, *shares], name="tr").fit(frame)
    own = ff.GroupStats("x", by=BY, stats=[*STATS, *shares], over="group", name="own")
    for feature, made in ((trained, trained.transform(frame)), (own, own.fit_transform(frame))):
        for name, stat in zip(feature.outputs, [*STATS, *shares], strict=True):
            expected = transformed(groups, stat, shares.get(stat)).reindex(frame.index)
            expected = expected.fillna(0) if stat in ("sum", "count", "nunique") else expected
            same(made[name], expected, near=1e-6 if stat == "skew" else 1e-9)
    gone = pd.DataFrame({"s": ["a", "new", None], "f": [99.0, 0.5, 0.5]})
    made = trained.transform(gone.assign(x=1.0))
    for name, stat in zip(trained.outputs, [*STATS, *shares], strict=True):
        assert made[name].fillna(-1).tolist() == [0 if stat in ("sum", "count", "nunique") else -1] * 3


METHODS = {"min": "min", "max": "max", "average": "average", "dense": "dense", "ordinal": "first"}


@example(MANY, "average", False, False, "x")
@given(rows, st.sampled_from(sorted(METHODS)), st.booleans(), st.booleans(), st.sampled_from("xf"))
def test_ranks_in_groups_of_text_and_float_equal_pandas(data, method, descending, normalise, ranked):
    frame = frame_of(data)
    frame["w"] = -frame[ranked]  # of f infinities, and numbers that differ in the ninth digit
    by = BY if ranked == "x" else ["s"]
    groups = frame.dropna(subset=by).groupby(by)["w"]
    feature = ff.GroupRank("w", by=by, method=method, descending=descending, normalise=normalise)
    expected = groups.rank(method=METHODS[method], ascending=not descending)
    if normalise:
        size = groups.transform("count").astype("float64")
        expected = ((expected - 1) / (size - 1)).where(size > 1, expected * 0)
    same(feature.fit_transform(frame)[feature.outputs[0]], expected)


@example(MANY, 1, BY, ["t", "u"])
@given(rows, st.sampled_from([1, 2, 3, 5, -1, -2]), st.sampled_from([BY, None]), st.sampled_from([["t", "u"], []]))
def test_shifts_equal_pandas_over_two_groups_and_orders_or_none(data, n, by, order):
    frame = frame_of(data)
    frame["w"] = frame["x"].map(lambda v: None if math.isnan(v) else f"w{v}").astype(object)
    groups, where = ordered(frame, *order, by=by), {"by": by, "order": order or None}
    made = ff.FeatureSet([cls("x", **where, n=n) for cls in (ff.Lag, ff.Diff, ff.PctChange)]).fit_transform(frame)
    lag, diff, share = list(made)[-3:]
    same(made[lag], groups["x"].shift(n))
    same(made[diff], groups["x"].diff(n))
    with np.errstate(all="ignore"):
        expected = groups["x"].pct_change(n, fill_method=None)
    same(made[share], expected.where(np.isfinite(expected)))
    word = ff.Lag("w", **where, n=n)
    found = word.fit_transform(frame)[word.outputs[0]]
    there = groups["w"].shift(n).reindex(frame.index)
    assert [None if pd.isna(v) else v for v in found] == [None if pd.isna(v) else v for v in there]
    if abs(n) == 1 and by and order:
        beside = ff.Neighbours("x", **where, what="previous" if n > 0 else "next")
        same(beside.fit_transform(frame)[beside.outputs[0]], groups["x"].shift(n))
