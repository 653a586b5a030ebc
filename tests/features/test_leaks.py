"""No value may hold what it must not know: its own target, an outer fold's targets, the future, or another row."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrec.features as ff
from fastrec.errors import DataError
from fastrec.features._engine.folds import FOLD_SEED, INNER_SEED, row_folds
from fastrec.table import Table
from tests.features.examples import CAUSAL, ENCODERS, ROW_WISE
from tests.features.test_contract import assert_equal

some = settings(max_examples=10)
few = settings(max_examples=3)
tag = st.one_of(st.none(), st.sampled_from(["p", "q", "r"]))
number = st.one_of(st.none(), st.integers(-3, 3).map(float))


@st.composite
def frames(draw, min_size=1, max_size=14):
    n = draw(st.integers(min_size, max_size))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    return pd.DataFrame(
        {
            "id": range(n),
            "user": column(st.integers(0, 2)),
            "item": column(st.sampled_from(["a", "b", "c"])),
            "city": column(st.one_of(st.none(), st.sampled_from(["x", "y"]))),
            "price": pd.Series(column(number), dtype="float64"),
            "t": column(st.integers(0, 6)),
            "tags": pd.Series(column(st.one_of(st.none(), st.lists(tag, max_size=3))), dtype=object),
            "vec": pd.Series(column(st.lists(st.integers(-2, 2).map(float), min_size=2, max_size=2)), dtype=object),
            "text": column(st.sampled_from(["", "#a b", "#b @c", "b c"])),
            "y": pd.Series(column(st.one_of(st.none(), st.integers(0, 1))), dtype="float64"),
            "fold": column(st.integers(0, 2)),
        }
    )


def plain(value):
    if isinstance(value, list | np.ndarray):
        return [plain(v) for v in value]
    return None if pd.isna(value) else value


def exactly(a, b, names):
    assert_equal(*({n: [plain(v) for v in frame[n]] for n in names} for frame in (a, b)))


@pytest.mark.parametrize("feature", ROW_WISE, ids=repr)
@some
@given(frame=frames(), other=frames())
def test_row_wise_values_depend_on_the_row_alone(feature, frame, other):
    alone = pd.concat([feature.fit_transform(frame.iloc[[i]]) for i in range(len(frame))])
    exactly(feature.fit_transform(frame), alone, feature.outputs)
    mixed = feature.fit_transform(pd.concat([other, frame, other]))
    exactly(mixed.iloc[len(other) : len(other) + len(frame)], alone, feature.outputs)


@pytest.mark.parametrize("feature", CAUSAL, ids=repr)
@some
@given(frame=frames(), other=frames(), now=st.integers(0, 7))
def test_rows_at_or_after_a_time_never_move_a_row_before_it(feature, frame, other, now):
    assert not feature.uses_future
    past = frame[frame["t"] < now]
    expected = feature.fit_transform(past)
    later = pd.concat([frame[frame["t"] >= now], other[other["t"] >= now]])
    for whole in (pd.concat([past, later]), pd.concat([later.iloc[::-1], past])):
        before = feature.fit_transform(whole)
        exactly(before[before["t"] < now], expected, feature.outputs)


@some
@given(frame=frames(), log=frames(max_size=20), other=frames(), now=st.integers(0, 7))
def test_events_at_or_after_a_row_never_move_it(frame, log, other, now):
    feature = ff.History(
        ["user", "item"],
        order="t",
        table="log",
        stats=["count", "since", "steps", "since_first", "is_last"],
        values="price",
        sums="price",
    )
    changed = pd.concat([log[log["t"] < now], other[other["t"] >= now]])
    rows = frame[frame["t"] <= now]  # an event at the row's own place does not count either
    a, b = (feature.fit_transform(rows, tables={"log": events}) for events in (log, changed))
    exactly(a, b, feature.outputs)


AHEAD = [
    *(
        ff.Lag("price", n=-1),
        ff.Lag("price", n=[1, -2]),
        ff.Diff("price", n=-1),
        ff.LastKnown("price", by="user", ahead=True),
    ),
    *(ff.Neighbours("price", by="user", what=what) for what in (["previous", "next"], "diff_next")),
]


@pytest.mark.parametrize("feature", AHEAD, ids=repr)
def test_looking_ahead_is_declared(feature):
    assert feature.uses_future
    assert not ff.Neighbours("price", by="user", what=["previous", "diff_previous", "above", "below"]).uses_future


READERS = [  # they read the target as a column like any other, and look back only
    [ff.Lag("y", by="user", order="t", n=[1, 2])],
    [ff.CumStat("y", by="user", order="t", stats=["sum", "mean", "count", "max"])],
    [ff.LastKnown("y", by="user", order="t")],
    [ff.History("user", order="t", sums="y", values="y")],
    [ff.GroupRank(ff.Lag("y", by="user", order="t"), by="item")],
    [ff.GroupRank(ff.Lag("y", by="user", order="t"), by="user"), ff.TargetEncode("item", "y")],
    [ff.GroupStats(ff.CumStat("y", by="user", order="t"), by="item")],
]
encoders = pytest.mark.parametrize("features", [*ENCODERS, *READERS], ids=lambda f: "+".join(map(repr, f)))


def by_fold(features):
    """Whether no value holds targets of the row's own inner fold; a causal one may, those of earlier rows."""
    seen = [s for f in features for s in [f, *(f.sources if f.kind == "row" else [])]]
    return not any(getattr(s, "causal", False) for s in seen)


folded = pytest.mark.parametrize("features", list(filter(by_fold, ENCODERS)), ids=lambda f: "+".join(map(repr, f)))


def set_of(features, key):
    """A set of its own for every run: nothing that was learned is left over."""
    from sklearn.base import clone

    return clone(ff.FeatureSet(features, key=key, folds=3, target="y"))


def with_targets(frame, chosen, new):
    changed = frame.copy()
    changed.loc[chosen, "y"] = [new[i % len(new)] for i in range(int(chosen.sum()))]
    return changed


new_targets = st.lists(st.one_of(st.just(math.nan), st.integers(-9, 9).map(float)), min_size=1, max_size=5)


@folded
@pytest.mark.parametrize("key", ["id", "user"])
@few
@given(frame=frames(min_size=6), new=new_targets, fold=st.integers(0, 2))
def test_targets_of_a_fold_move_no_encoding_of_its_rows(features, key, frame, new, fold):
    inner = row_folds(Table.read(frame), [key], 3, seed=INNER_SEED).cpu().numpy()
    a, b = (set_of(features, key).fit_transform(f) for f in (frame, with_targets(frame, inner == fold, new)))
    exactly(a[inner == fold], b[inner == fold], ff.FeatureSet(features).outputs)


@encoders
@few
@given(frame=frames(min_size=6), new=new_targets, row=st.integers(0, 13))
def test_a_rows_own_target_never_moves_its_encoding_without_a_key(features, frame, new, row):
    own = np.arange(len(frame)) == row % len(frame)
    a, b = (set_of(features, None).fit_transform(f) for f in (frame, with_targets(frame, own, new)))
    exactly(a[own], b[own], ff.FeatureSet(features).outputs)


@encoders
@few
@given(frame=frames(min_size=6), new=new_targets, key=st.sampled_from(["id", "user"]), data=st.data())
def test_cross_fit_holds_nothing_of_an_outer_fold(features, frame, new, key, data):
    outer = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(frame), max_size=len(frame))))
    names = ff.FeatureSet(features).outputs
    present = np.unique(outer)  # a fold without rows yields no pair
    for place in {0, len(present) - 1}:
        k = present[place]
        changed = with_targets(frame, outer == k, new)
        (train, valid), (train2, valid2) = (
            list(set_of(features, key).cross_fit(f, outer))[place] for f in (frame, changed)
        )
        assert train["id"].tolist() == frame["id"][outer != k].tolist()
        assert valid["id"].tolist() == frame["id"][outer == k].tolist()
        exactly(train, train2, names)
        exactly(valid, valid2, names)


@folded
@few
@given(frame=frames(min_size=6), new=new_targets, fold=st.integers(0, 2), data=st.data())
def test_cross_fit_is_out_of_fold_among_its_training_rows(features, frame, new, fold, data):
    outer = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(frame), max_size=len(frame))))
    inner = row_folds(Table.read(frame), ["id"], 3, seed=INNER_SEED).cpu().numpy()
    pairs = [set_of(features, "id").cross_fit(f, outer) for f in (frame, with_targets(frame, inner == fold, new))]
    for (train, _), (train2, _) in zip(*pairs, strict=True):
        own = inner[train["id"].to_numpy()] == fold
        exactly(train[own], train2[own], ff.FeatureSet(features).outputs)


@some
@given(frame=frames(min_size=4))
def test_cross_fit_leaves_what_was_learned_alone(frame):
    fs = set_of([ff.TargetEncode("item", "y"), ff.CountEncode("item"), ff.GroupStats("price", by="city")], "id")
    fs.fit(frame.iloc[:2])
    before = fs.transform(frame)
    list(fs.cross_fit(frame, np.arange(len(frame)) % 2))
    exactly(fs.transform(frame), before, fs.outputs)


@some
@given(
    keys=st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 50)), min_size=1, max_size=12),
    seed=st.sampled_from([FOLD_SEED, INNER_SEED, 7]),
    folds=st.integers(2, 9),
)
def test_a_fold_does_not_depend_on_place_neighbours_or_partition(keys, seed, folds):
    def fold_of(values):
        return row_folds(Table({"k": np.array(values, dtype="int64")}), ["k"], folds, seed=seed).tolist()

    expected = fold_of(keys)
    assert fold_of(keys[::-1]) == expected[::-1]
    assert [fold_of([k])[0] for k in keys] == expected
    assert fold_of([*keys, 1, 2, 3])[: len(keys)] == expected
    assert all(0 <= f < folds for f in expected)


@pytest.mark.parametrize("kind", ["int32", "uint64", "float64", "Int64", "category"])
def test_a_key_has_one_fold_whatever_type_holds_it(kind):
    keys = pd.Series([5, 6, 1_700_000_000])
    expected = row_folds(Table({"k": keys}), ["k"], 1000).tolist()
    assert row_folds(Table({"k": keys.astype(kind)}), ["k"], 1000).tolist() == expected
    with_hole = pd.concat([keys.astype(kind).astype(object), pd.Series([None], dtype=object)]).infer_objects()
    assert row_folds(Table({"k": with_hole}), ["k"], 1000).tolist() == [*expected, 0]


def test_a_time_has_one_fold_whatever_its_unit_and_zone():
    times = pd.Series(
        pd.to_datetime(["2024-02-03 04:05:06.0", "1969-12-31 23:59:59.0", "2024-02-03 04:05:06.5"])
    ).dt.as_unit("ms")
    expected = row_folds(Table({"k": times}), ["k"], 1000).tolist()
    for unit in ("us", "ns"):
        assert row_folds(Table({"k": times.dt.as_unit(unit)}), ["k"], 1000).tolist() == expected
    assert row_folds(Table({"k": times.dt.as_unit("s")}), ["k"], 1000).tolist()[:2] == expected[:2]
    for zone in ("UTC", "Asia/Tokyo"):
        there = times.dt.tz_localize("UTC").dt.tz_convert(zone)
        assert row_folds(Table({"k": there}), ["k"], 1000).tolist() == expected
    assert len(set(expected)) == 3


def test_keys_of_several_columns_and_their_holes():
    table = Table({"a": ["x", "x", "y", None], "b": [1, 2, 1, 1]})
    folds = row_folds(table, ["a", "b"], 1000).tolist()
    assert len(set(folds)) == 4
    assert folds[3] == 0
    assert row_folds(table.take(table["b"].integer() > 1), ["a", "b"], 1000).tolist() == [folds[1]]


def test_folds_are_even_and_the_inner_ones_are_not_the_outer_ones():
    table = Table({"k": np.arange(40_000)})
    outer, inner = (row_folds(table, ["k"], 5, seed=s).cpu().numpy() for s in (FOLD_SEED, INNER_SEED))
    for k in range(5):
        within = np.bincount(inner[outer == k], minlength=5)
        assert (abs(within - 1600) < 5 * math.sqrt(1600)).all()
    rows = np.bincount(row_folds(Table({"k": np.arange(40_000)}), [], 5).cpu().numpy())
    assert (abs(rows - 8000) < 5 * math.sqrt(8000)).all()


@pytest.mark.parametrize("make", [list, np.array, pd.Series, lambda f: pd.Series(f, index=[9, 9, 7]), "column"])
def test_outer_folds_in_any_form(make):
    frame = pd.DataFrame({"item": ["a", "b", "a"], "y": [1, 0, 1], "k": pd.Series([1, 0, 1], dtype="Int64")})
    folds = "k" if make == "column" else make([1, 0, 1])
    found = list(ff.FeatureSet([ff.TargetEncode("item", "y")]).cross_fit(frame, folds))
    assert [(len(a), len(b)) for a, b in found] == [(2, 1), (1, 2)]
    assert found[0][1]["te_item__y"].tolist() == [1.0]


# Fold numbers of every form: only folds that have rows take time and memory


FAR = [10**9, 2**40, 2**63 - 1]


def frame(n=12):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.choice(list("xyz"), n), "g": np.arange(n) // 3, "y": rng.integers(0, 2, n)})


@given(st.lists(st.sampled_from([0, 1, 5, *FAR]), min_size=1, max_size=12))
def test_a_fold_is_its_rows_whatever_its_number(folds):
    data = frame(len(folds))
    found = list(ff.FeatureSet([ff.TargetEncode("a", "y", smooth=2)]).cross_fit(data, folds))
    assert len(found) == len(set(folds))
    for k, (train, valid) in zip(sorted(set(folds)), found, strict=True):
        inside = np.array(folds) == k
        assert valid.index.tolist() == np.flatnonzero(inside).tolist()
        assert train.index.tolist() == np.flatnonzero(~inside).tolist()
        for key, value in zip(valid["a"], valid["te_a__y"], strict=True):
            assert value == pytest.approx(encoded(data[~inside], key))


def encoded(rest, key):
    """A key's mean in other rows, smoothed with two rows of their mean."""
    own = rest["y"][rest["a"] == key]
    return (own.sum() + 2 * (rest["y"].mean() if len(rest) else 0)) / (len(own) + 2)


@pytest.mark.parametrize("count", [10**6, 10**9])
def test_more_folds_than_rows_take_the_memory_of_the_rows(count):
    data = frame()
    for features in ([ff.TargetEncode("a", "y", folds=count)], [ff.GroupRank(ff.TargetEncode("a", "y"), by="a")]):
        made = ff.FeatureSet(features, folds=count).fit_transform(data)
        assert len(made) == len(data)
    # Every row is a fold of its own: its encoding is made from all others, and its smoothing from their mean.
    made = ff.FeatureSet([ff.TargetEncode("a", "y", smooth=2, folds=count)]).fit_transform(data)["te_a__y"]
    for i, value in enumerate(made):
        assert value == pytest.approx(encoded(data.drop(index=i), data["a"][i]))


@pytest.mark.parametrize(
    ("folds", "problem"),
    [
        ([0, -1], "row 1: the fold is -1"),
        ([0.0, np.nan], "row 1: the fold is missing"),
        ([0, 0.5], "row 1: the fold is 0.5"),
        ([0, np.inf], "row 1: the fold is inf"),
        ([0, 1e300], r"row 1: the fold is 1e\+300"),
        ([0, 2.0**63], r"row 1: the fold is 9\.2"),
        (["a", "b"], "2 folds of kind category"),
        ([None, None], "fold"),
        ([], "0 folds of kind"),
        ([0, 1, 1], "3 folds"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "2 folds of kind datetime"),
    ],
)
def test_what_is_no_fold_is_named(folds, problem):
    data = frame(2)
    with pytest.raises(DataError, match=problem):
        list(ff.FeatureSet([ff.CountEncode("a")]).cross_fit(data, folds))
    if len(folds) == 2:
        with pytest.raises(DataError, match=problem.replace("row 1", "column 'f', row 1")):
            list(ff.FeatureSet([ff.CountEncode("a")]).cross_fit(data.assign(f=folds), "f"))


# A declared target reaches no row's own values, whichever generator reads it


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
    assert all(math.isnan(v) for v in fs.transform(test)["lag1_y__user"].astype(float))
    assert ff.FeatureSet([ff.Lag("y")], target="y").fit(train).transform(test)["lag1_y"].isna().tolist() == [True] * 3


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
    with pytest.raises(DataError, match=r"column 't', row 2: .* would read 'y' of a row .* with the same s and t"):
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
