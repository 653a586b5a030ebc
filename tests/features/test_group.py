from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import GroupPick, GroupRank, GroupStats

some = settings(max_examples=40, deadline=None)
STATS = ["mean", "std", "min", "max", "sum", "count"]
value = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), value, value), max_size=15)


def frame_of(rows):
    g, x, t = zip(*rows, strict=True) if rows else ((), (), ())
    return pd.DataFrame(
        {"g": pd.Series(g, dtype=object), "x": pd.Series(x, dtype="float64"), "t": pd.Series(t, dtype="float64")}
    )


def close(a, b):
    assert list(a) == pytest.approx(list(b), rel=1e-9, abs=1e-9, nan_ok=True)


def by_pandas(train, groups):
    """pandas' statistics of each group, for rows of these groups: NaN, or 0 for sum and count, where there is none."""
    known = train[train["g"].notna()]
    with np.errstate(invalid="ignore"):
        made = known.groupby("g")["x"].agg(STATS) if len(known) else pd.DataFrame(columns=STATS, dtype="float64")
        # pandas adds with a compensation that turns infinities into NaN: the plain sum and mean are meant.
        plain = {g: v["x"].dropna().to_numpy() for g, v in known.groupby("g")}
        for g, v in plain.items():
            # pandas' sd of 1e8, 1e8, 1e8 + 1 is off in the ninth digit: numpy's two passes are exact there.
            sd = v.std(ddof=1) if len(v) > 1 and np.isfinite(v.mean()) else np.nan
            made.loc[g, ["sum", "mean", "std"]] = [v.sum(), v.mean() if len(v) else np.nan, sd]
    found = made.reindex([g if isinstance(g, str) else "none" for g in groups])
    return found.fillna({"count": 0} | ({"sum": 0} if not len(made) else {})).astype("float64")


@some
@given(rows, st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=4))
def test_statistics_of_the_training_rows_equal_pandas(data, groups):
    train = frame_of(data)
    stats = GroupStats("x", by="g", stats=STATS).fit(train)
    made = stats.transform(pd.DataFrame({"g": pd.Series(groups, dtype=object), "x": 0.0}))
    expected = by_pandas(train, groups)
    for stat in STATS:
        found = made[f"{stat}_x__g"]
        if stat == "sum":  # 0 for a group that was not seen
            expected["sum"] = expected["sum"].where(expected["count"] > 0, 0)
        close(found, expected[stat])


@some
@given(rows)
def test_statistics_of_the_rows_own_group_equal_pandas(data):
    frame = frame_of(data)
    made = GroupStats("x", by="g", stats=STATS, over="group").fit_transform(frame)
    expected = by_pandas(frame, frame["g"].tolist())
    expected["sum"] = expected["sum"].where(expected["count"] > 0, 0)
    for stat in STATS:
        close(made[f"{stat}_x__g"], expected[stat])


def test_sums_of_integers_are_integers_and_far_means_keep_their_digits():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": 1, "i": rng.integers(0, 1000, 997), "x": np.tile([1e8 - 1, 1e8, 1e8 + 1], 333)[:997]})
    made = GroupStats(["i", "x"], by="g", stats=["sum", "mean", "std"]).fit_transform(frame)
    assert made["sum_i__g"][0] == frame["i"].sum()
    assert made["std_x__g"][0] == pytest.approx(frame["x"].std(), rel=1e-12)
    assert made["mean_x__g"][0] == pytest.approx(frame["x"].mean(), rel=1e-15)


def test_unlabeled_rows_where_asked():
    frame, more = pd.DataFrame({"g": [1, 1], "x": [1.0, 3.0]}), pd.DataFrame({"g": [1, 2], "x": [11.0, 7.0]})
    both = GroupStats("x", by="g", scope="all").fit(frame, unlabeled=more)
    assert both.transform(more)["mean_x__g"].tolist() == [5.0, 7.0]


METHODS = {"min": "min", "max": "max", "average": "average", "dense": "dense", "ordinal": "first"}


@some
@given(rows, st.sampled_from(sorted(METHODS)), st.booleans(), st.booleans())
def test_ranks_equal_pandas(data, method, descending, normalise):
    frame = frame_of(data)
    rank = GroupRank("x", by="g", method=method, descending=descending, normalise=normalise)
    expected = frame.groupby("g")["x"].rank(method=METHODS[method], ascending=not descending)
    if normalise:
        size = frame.groupby("g")["x"].transform("count").astype("float64")
        expected = ((expected - 1) / (size - 1)).where(size > 1, expected * 0)
    close(rank.fit_transform(frame)[rank.outputs[0]], expected)


def test_ranks_of_wide_integers_and_times_are_exact():
    frame = pd.DataFrame(
        {
            "g": 1,
            "i": pd.array([2**53 + 1, 2**53, None, -(2**63), 2**63 - 1], dtype="Int64"),
            "t": pd.to_datetime([3, 2, 1, None, 4], unit="ns"),
        }
    )
    for column, up, down in (
        ("i", [3, 2, None, 1, 4], [2, 3, None, 4, 1]),
        ("t", [3, 2, 1, None, 4], [2, 3, 4, None, 1]),
    ):
        for descending, expected in ((False, up), (True, down)):
            rank = GroupRank(column, by="g", descending=descending)
            found = rank.fit_transform(frame)[rank.outputs[0]]
            assert [None if pd.isna(v) else v for v in found] == expected


@some
@given(rows, st.integers(1, 3), st.booleans())
def test_picked_values_equal_a_loop(data, nth, last):
    frame = frame_of(data)
    pick = GroupPick("x", by="g", order="t", nth=nth, last=last)
    expected = []
    for g, _, _ in data:
        usable = [i for i, r in enumerate(data) if g is not None and r[0] == g and None not in (r[1], r[2])]
        usable.sort(key=lambda i: (data[i][2], i), reverse=last)
        expected.append(data[usable[nth - 1]][1] if len(usable) >= nth else math.nan)
    close(pick.fit_transform(frame)[pick.outputs[0]], expected)


def test_names_say_which_row_is_picked():
    names = [GroupPick("x", by="g", order="t", **o).outputs[0] for o in ({}, {"nth": 2}, {"last": True}, {"name": "w"})]
    assert names == ["first_x__g", "first2_x__g", "last_x__g", "w_x__g"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupStats("x", by="g", stats="median"),
        lambda: GroupStats("x", by="g", over="test"),
        lambda: GroupStats("x", by="g", over="group", scope="all"),
        lambda: GroupStats("x", by="g", scope="test"),
        lambda: GroupRank("x", by="g", method="first"),
        lambda: GroupPick("x", by="g", order="t", nth=0),
    ],
)
def test_options_that_cannot_be(make):
    with pytest.raises(FastrecError, match="Group"):
        make()
