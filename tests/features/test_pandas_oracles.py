"""Generators against pandas and fastai: rows in any order, groups of text and floats, keys that are missing or new."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec.features import (
    Clip,
    CountEncode,
    CumCount,
    CumStat,
    DatePart,
    Diff,
    Ewm,
    FeatureSet,
    GroupPick,
    GroupRank,
    GroupStats,
    History,
    JoinTable,
    Lag,
    LastKnown,
    Neighbours,
    NUnique,
    PctChange,
    Rolling,
    TimeSince,
)

some = settings(max_examples=25, deadline=None)
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
    s, f, t, u, x = zip(*rows, strict=True) if rows else ((),) * 5
    number = {n: pd.Series(v, dtype="float64") for n, v in (("f", f), ("u", u), ("x", x))}
    return pd.DataFrame({"s": pd.Series(s, dtype=object), "t": pd.Series(t, dtype="int64"), **number})


def ordered(frame, *names):
    """The rows of whole groups in the order of columns, ties by row, for pandas to group."""
    return frame.dropna(subset=BY).sort_values(list(names or ["t"]), kind="stable").groupby(BY, sort=False)


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


@settings(max_examples=15, deadline=None)
@example(MANY)
@given(rows)
def test_statistics_of_groups_of_text_and_float_equal_pandas(data):
    frame = frame_of(data)
    groups = frame.dropna(subset=BY).groupby(BY)["x"]
    shares = {"q10": 0.1, "q25": 0.25, "q975": 0.975}
    trained = GroupStats("x", by=BY, stats=[*STATS, *shares], name="tr").fit(frame)
    own = GroupStats("x", by=BY, stats=[*STATS, *shares], over="group", name="own")
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


@settings(max_examples=40, deadline=None)
@example(MANY, "average", False, False, "x")
@given(rows, st.sampled_from(sorted(METHODS)), st.booleans(), st.booleans(), st.sampled_from("xf"))
def test_ranks_in_groups_of_text_and_float_equal_pandas(data, method, descending, normalise, ranked):
    frame = frame_of(data)
    frame["w"] = -frame[ranked]  # of f infinities, and numbers that differ in the ninth digit
    by = BY if ranked == "x" else ["s"]
    groups = frame.dropna(subset=by).groupby(by)["w"]
    feature = GroupRank("w", by=by, method=method, descending=descending, normalise=normalise)
    expected = groups.rank(method=METHODS[method], ascending=not descending)
    if normalise:
        size = groups.transform("count").astype("float64")
        expected = ((expected - 1) / (size - 1)).where(size > 1, expected * 0)
    same(feature.fit_transform(frame)[feature.outputs[0]], expected)


@some
@example(MANY, 1)
@given(rows, st.sampled_from([1, 2, 3, -1]))
def test_shifts_equal_pandas_over_two_groups_and_orders(data, n):
    frame = frame_of(data)
    frame["w"] = frame["x"].map(lambda v: None if math.isnan(v) else f"w{v}").astype(object)
    groups = ordered(frame, "t", "u")
    made = FeatureSet([cls("x", by=BY, order=["t", "u"], n=n) for cls in (Lag, Diff, PctChange)]).fit_transform(frame)
    lag, diff, share = list(made)[-3:]
    same(made[lag], groups["x"].shift(n))
    same(made[diff], groups["x"].diff(n))
    with np.errstate(all="ignore"):
        expected = groups["x"].pct_change(n, fill_method=None)
    same(made[share], expected.where(np.isfinite(expected)))
    word = Lag("w", by=BY, order=["t", "u"], n=n)
    found = word.fit_transform(frame)[word.outputs[0]]
    there = groups["w"].shift(n).reindex(frame.index)
    assert [None if pd.isna(v) else v for v in found] == [None if pd.isna(v) else v for v in there]
    if abs(n) == 1:
        beside = Neighbours("x", by=BY, order=["t", "u"], what="previous" if n > 0 else "next")
        same(beside.fit_transform(frame)[beside.outputs[0]], groups["x"].shift(n))


@some
@example(MANY, 3, 1)
@given(rows, st.sampled_from([1, 3]), st.integers(1, 2))
def test_windows_equal_pandas_over_two_groups_and_orders(data, window, least):
    frame = frame_of(data)
    groups = ordered(frame, "t", "u")["x"]
    feature = Rolling(
        "x", ["sum", "max", "median"], by=BY, order=["t", "u"], window=window, min_count=min(least, window)
    )
    made = feature.fit_transform(frame)
    for name, stat in zip(feature.outputs, ("sum", "max", "median"), strict=True):
        expected = groups.transform(
            lambda v, s=stat: getattr(v.rolling(window, min_periods=min(least, window), closed="left"), s)()
        )
        same(made[name], expected)
    ewm = Ewm("x", half_life=1.5, by=BY, order=["t", "u"])
    same(ewm.fit_transform(frame)[ewm.outputs[0]], groups.transform(lambda v: v.ewm(halflife=1.5).mean().shift()))


@some
@example(MANY)
@given(rows)
def test_running_statistics_equal_pandas_over_two_groups_and_orders(data):
    frame = frame_of(data)
    groups = ordered(frame, "t", "u")["x"]
    stats = {"mean": "mean", "min": "min", "max": "max"}
    feature = CumStat("x", by=BY, order=["t", "u"], stats=[*stats, "sum", "count"])
    made = feature.fit_transform(frame)
    for name, stat in zip(feature.outputs, stats):
        same(made[name], groups.transform(lambda v, s=stat: getattr(v.expanding(), s)().shift()))
    total, count = feature.outputs[3:]
    inside = frame[BY].notna().all(axis=1)
    same(made[total][inside], groups.transform(lambda v: v.fillna(0).cumsum().shift(fill_value=0)))
    same(made[count][inside], groups.transform(lambda v: v.notna().cumsum().shift(fill_value=0)))
    known = LastKnown("x", by=BY, order=["t", "u"])
    same(known.fit_transform(frame)[known.outputs[0]], groups.transform(lambda v: v.ffill().shift()))
    place = CumCount(by=BY, order=["t", "u"])
    same(place.fit_transform(frame)[place.outputs[0]], groups.cumcount().reindex(frame.index).fillna(0))


@some
@example(MANY)
@given(rows)
def test_events_before_equal_pandas_where_no_times_are_equal(data):
    frame = frame_of(data).drop_duplicates([*BY, "t"], ignore_index=True)
    groups = ordered(frame)
    history = History(BY, order="t", stats=["count", "since", "since_first"])
    made = FeatureSet([history, TimeSince(by=BY, order="t")]).fit_transform(frame)
    count, since, first = history.outputs
    same(made[count], groups.cumcount().reindex(frame.index).fillna(0))
    gap = groups["t"].diff()
    same(made[since], gap)
    same(made[list(made)[-1]], gap)
    age = frame["t"] - groups["t"].transform("first")
    same(made[first], age.where(gap.notna()))
    for last in (False, True):
        pick = GroupPick("x", by=BY, order="t", last=last)
        found = pick.fit_transform(frame)[pick.outputs[0]]
        expected = groups["x"].transform("last" if last else "first")  # pandas passes missing values over, too
        same(found, expected)


@some
@example(MANY)
@given(rows)
def test_counts_in_groups_of_text_and_float_equal_pandas(data):
    frame = frame_of(data)
    whole = frame.dropna(subset=BY)
    made = FeatureSet([CountEncode("f"), CountEncode("f", by="s"), NUnique(["f", "x"], by="s")]).fit_transform(frame)
    same(made["count_f"], frame["f"].map(frame["f"].value_counts()).reindex(frame.index).fillna(0))
    same(made["count_f__s"], whole.groupby(BY)["x"].transform("size").reindex(frame.index).fillna(0))
    for col in ("f", "x"):
        same(made[f"nunique_{col}__s"], frame.groupby("s")[col].transform("nunique").reindex(frame.index).fillna(0))


@some
@given(st.lists(value, min_size=1, max_size=30).filter(lambda v: any(x == x for x in v)), st.floats(0, 0.45))
def test_clipped_numbers_equal_pandas(values, share):
    x = pd.Series(values, dtype="float64")
    feature = Clip("x", quantiles=(share, 1 - share))
    same(feature.fit_transform(pd.DataFrame({"x": x}))["clip_x"], x.clip(*x.quantile([share, 1 - share])))


@some
@example(MANY, MANY)
@given(rows, rows)
def test_looked_up_values_equal_pandas_merge(data, lookup):
    frame, other = frame_of(data), frame_of(lookup).dropna(subset=BY)[[*BY, "x"]]
    for keep in ("first", "last"):
        feature = JoinTable("other", on=BY, columns="x", duplicates=keep, name="o")
        made = feature.fit_transform(frame, tables={"other": other})[feature.outputs[0]]
        joined = frame[BY].merge(other.drop_duplicates(BY, keep=keep), on=BY, how="left")
        same(made, joined["x"])


@pytest.mark.filterwarnings("ignore:Series.dt.dayof")  # fastai reads them by their old names
@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_parts_of_unsorted_dates_with_gaps_equal_fastais(unit):
    from fastai.tabular.core import add_datepart

    rng = np.random.default_rng(14)
    days = pd.Series(pd.Timestamp("1969-11-01") + pd.to_timedelta(rng.integers(0, 90 * 366 * 86400, 400), unit="s"))
    days[rng.random(400) < 0.2] = pd.NaT
    frame = pd.DataFrame({"t": days.astype(f"datetime64[{unit}]")}, index=rng.permutation(400))
    wide = frame.astype("datetime64[ns]")  # the one unit that its elapsed seconds are right for
    expected = add_datepart(wide, "t", prefix="t_", time=True, drop=False).drop(columns="t")
    made = DatePart("t", [n.removeprefix("t_").lower() for n in expected]).fit_transform(frame)
    gone = frame["t"].isna()
    for name in expected:
        found = made[name.lower()]
        assert found.index.equals(frame.index)
        assert found[gone].isna().all(), name  # fastai says False of the missing ones: they start and end nothing
        assert found[~gone].astype("float64").tolist() == expected[name][~gone].astype("float64").tolist(), name
