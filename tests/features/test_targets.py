"""A target that is declared reaches no row's own values, whichever generator reads it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import fastrec.features as ff
from fastrec.errors import DataError


def test_a_lag_of_the_target_is_what_the_other_folds_say_and_the_target_may_come_as_y():
    frame = pd.DataFrame({"user": [1] * 4, "t": range(4), "y": [1, 0, 1, 0], "fold": [0, 1, 0, 1]})
    fs = ff.FeatureSet([ff.Lag("y", by="user", order="t")], target="y")
    assert fs.fit_transform(frame)["lag1_y__user"].fillna(-1).tolist() == [-1, 1, 0, 1]
    (train, valid), _ = fs.cross_fit(frame, "fold")
    assert train["lag1_y__user"].isna().all()  # the rows before are in fold 0, whose targets are hidden
    assert valid["lag1_y__user"].fillna(-1).tolist() == [-1, 0]
    frame = pd.DataFrame({"user": [1, 1, 1], "t": [0, 1, 2]})
    fs = ff.FeatureSet([ff.Lag("y", by="user", order="t")], target="y")
    made = fs.fit_transform(frame, np.array([3, 4, 5]))
    assert made["lag1_y__user"].fillna(-1).tolist() == [-1, 3, 4]


@pytest.mark.parametrize("known", ["int64", "Int64", "float64", "bool"])
def test_rows_to_predict_look_back_at_the_history_without_a_target_of_their_own(known):
    train = pd.DataFrame({"user": [1, 1, 2], "t": [1, 2, 1], "y": pd.Series([1, 0, 1]).astype(known)})
    test = pd.DataFrame({"user": [1, 2, 2], "t": [3, 2, 3]})
    readers = [ff.Lag("y", by="user", order="t"), ff.CumStat("y", by="user", order="t", stats="sum")]
    fs = ff.FeatureSet(readers, target="y").fit(train)
    made = fs.transform(test, history=train)
    assert [None if pd.isna(v) else float(v) for v in made["lag1_y__user"]] == [0.0, 1.0, None]
    assert made["cumsum_y__user"].tolist() == [1.0, 1.0, 1.0]
    assert made.columns.tolist() == ["user", "t", "lag1_y__user", "cumsum_y__user"]
    alone = fs.transform(test)
    assert all(math.isnan(v) for v in alone["lag1_y__user"].astype(float))


PLACE = {"by": "s", "order": "t"}


@pytest.mark.parametrize(
    "feature",
    [
        *(cls("y", **PLACE) for cls in (ff.Lag, ff.CumStat, ff.LastKnown)),
        ff.Rolling("y", **PLACE, window=[2, "9s"]),
        ff.Ewm("y", half_life=2, **PLACE),
    ],
    ids=repr,
)
def test_history_with_the_row_itself_is_refused(feature):
    rows = pd.DataFrame({"s": [1, 2, 1, None, 1], "t": [0, 2, 1, 2, 2], "y": [1.0, 2.0, 3.0, 4.0, 5.0]})
    fs = ff.FeatureSet([feature], target="y").fit(rows)
    asked = pd.DataFrame({"s": [1, None, 1, 2], "t": [9, 2, 2, 3]})
    wanted = fs.transform(asked, history=rows[:4])
    with pytest.raises(
        DataError, match=r"column 't', row 2: .* would read 'y' of a row of history with the same s and t"
    ):
        fs.transform(asked, history=rows)
    later = pd.concat([rows[:4], pd.DataFrame({"s": [1, 2], "t": [99, 99], "y": [7.0, 8.0]})])
    pd.testing.assert_frame_equal(fs.transform(asked, history=later), wanted)


@pytest.mark.parametrize(
    "feature",
    [
        *(cls("y", **PLACE) for cls in (ff.Collect, ff.TimeSince)),
        ff.Lag("y", **PLACE, horizon=1),
        ff.Rolling("y", **PLACE, window="9s"),
        ff.Ewm("y", half_life="2s", **PLACE),
    ],
    ids=repr,
)
def test_what_looks_strictly_before_a_row_does_not_find_it_in_the_history(feature):
    rows = pd.DataFrame({"s": [1, 1, 1], "t": [0, 1, 2], "y": [1.0, 3.0, 5.0]})
    fs = ff.FeatureSet([feature], target="y", keep="outputs").fit(rows)
    (name,) = fs.outputs
    found, wanted = (fs.transform(rows[2:], history=rows[:n])[name].tolist() for n in (3, 2))
    assert list(found[0]) == list(wanted[0]) if isinstance(feature, ff.Collect) else found == wanted


@pytest.mark.parametrize(
    "feature",
    [
        ff.GroupStats("y", by="item"),
        ff.GroupStats("y", by="item", over="group"),
        ff.GroupRank("y", by="user"),
        ff.GroupPick("y", by="user", order="t"),
        ff.Diff("y", by="user"),
        ff.Lag("y", by="user", n=-1),
        ff.LastKnown("y", by="user", ahead=True),
        ff.CumStat("y", by="user", stats="smaller"),
        ff.Lag("t", by="y"),
        ff.Lag("t", by="user", order="y"),
        ff.RowFunction(lambda y: y, "y", "cheat"),
    ],
    ids=repr,
)
def test_what_would_give_rows_their_own_target_is_refused(feature):
    frame = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "t": [0, 1], "y": [0, 1]})
    for fs in (ff.FeatureSet([feature], target="y"), ff.FeatureSet([feature, ff.TargetEncode("item", "y")])):
        for use in (fs.fit, fs.fit_transform, lambda f, fs=fs: list(fs.cross_fit(f, [0, 1]))):
            with pytest.raises(DataError, match=f"{type(feature).__name__} reads the target") as caught:
                use(frame)
            assert caught.value.column == "y"
    ff.FeatureSet([feature]).fit(frame)  # no one said that it is a target


def test_a_target_in_another_table_is_refused():
    frame = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "t": [0, 1], "y": [0, 1]})
    fs = ff.FeatureSet([ff.History("user", order="t", table="log", sums="y")], target="y")
    with pytest.raises(DataError, match="History reads the target from the table 'log'") as caught:
        fs.fit_transform(frame, tables={"log": frame})
    assert caught.value.column == "y"
    renamed = ff.FeatureSet([ff.History("user", order="t", table="log", sums="was")], target="y")
    made = renamed.fit_transform(frame, tables={"log": frame.rename(columns={"y": "was"})})
    assert made["history_sum_was"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("feature", "remedy"),
    [
        (ff.TargetEncode("y", "y"), "Name other columns"),
        (ff.Lag("x", by="y"), "Name other columns"),
        (ff.Lag("y", n=-1), "Take earlier rows"),
        (ff.CountEncode("y"), r"Use TargetEncode \(out of fold\)"),
    ],
)
def test_the_remedy_fits_how_the_target_is_read(feature, remedy):
    with pytest.raises(DataError, match=f"column 'y': .* reads the target.*{remedy}"):
        ff.FeatureSet([feature], target="y").fit(pd.DataFrame({"x": [1, 2], "y": [0, 1]}))
