import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fastrec.features as ff
from tests.features.frames import of_rows, plain

value = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), value, value), max_size=15)


frame_of = partial(of_rows, g=object, x="float64", t="float64")


def close(a, b):
    assert list(a) == pytest.approx(list(b), rel=1e-9, abs=1e-9, nan_ok=True)


finite = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([0.1, 1e8, 1e8 + 1, -7.25]))
plain_rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), finite, finite), max_size=15)


@pytest.mark.parametrize(
    ("values", "shares", "expected"),
    [
        ([-math.inf, 1.0, math.inf], ["median", "q05", "q975"], [1.0, -math.inf, math.inf]),
        ([math.inf, math.inf], ["median"], [math.inf]),
        ([-math.inf, math.inf], ["median"], [math.nan]),
        ([-1.5e308, 1.5e308], ["q25", "median"], [-0.75e308, 0.0]),
        ([0.0, -0.0, 1.0], ["median"], [0.0]),
        ([math.inf, 1.0], ["mean", "sum", "std", "min", "max"], [math.inf, math.inf, math.nan, 1.0, math.inf]),
        ([-math.inf, math.inf], ["mean", "sum", "std"], [math.nan] * 3),
    ],
)
def test_statistics_of_values_without_end(values, shares, expected):
    frame = pd.DataFrame({"g": 1, "x": values})
    made = ff.GroupStats("x", by="g", stats=shares).fit_transform(frame).iloc[0]
    assert [made[f"{s}_x__g"] for s in shares] == pytest.approx(expected, nan_ok=True)


def test_equal_values_have_neither_spread_nor_skewness():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": np.arange(5000) % 170})
    frame["x"] = (rng.random(170) * 10.0 ** rng.integers(-8, 9, 170))[frame["g"]]
    deviation = ff.DeviationFromGroup("x", by="g", how="z")
    made = ff.FeatureSet([ff.GroupStats("x", by="g", stats=["std", "skew"]), deviation]).fit_transform(frame)
    assert (made[["std_x__g", "skew_x__g", "zmean_x__g"]] == 0).all(axis=None)


@given(plain_rows, st.booleans())
def test_first_and_last_equal_a_loop(data, own):
    frame = frame_of([r for r in data if r[2] is not None])
    over = "group" if own else "train"
    made = ff.GroupStats("x", by="g", stats=["first", "last"], order="t", over=over).fit_transform(frame)
    for end, pick in (("first", min), ("last", max)):
        expected = []
        for g in frame["g"]:
            usable = [(t, x) for h, x, t in frame.values if h == g and g is not None and not math.isnan(x)]
            expected.append(pick(usable)[1] if usable else math.nan)
        close(made[f"{end}_x__g"], expected)


def test_first_and_last_of_every_type_keep_it():
    frame = pd.DataFrame({"g": ["a", "a", "b", "a", None], "t": [3, 1, 5, 2, 0]})
    frame["word"], frame["small"] = ["w3", None, "w5", "w2", "w0"], frame["t"].astype("int8")
    frame["big"] = pd.array([2**53 + 1, 2**53, None, 5, 6], dtype="Int64")
    frame["time"] = pd.to_datetime(["2024-01-03", None, "2024-01-05", "2024-01-02", "2024-01-01"])
    frame["flag"] = pd.array([True, False, None, True, True], dtype="boolean")
    cols = ["word", "big", "small", "time", "flag"]
    made = ff.GroupStats(cols, by="g", stats=["first", "last"], order="t").fit_transform(frame)
    none = made.iloc[4]
    assert all(pd.isna(none[f"{end}_{c}__g"]) for end in ("first", "last") for c in cols)
    assert made["first_word__g"].tolist()[:4] == ["w2", "w2", "w5", "w2"]
    assert made["last_big__g"].tolist()[:2] == [2**53 + 1] * 2
    assert made["first_big__g"].tolist()[:2] == [2**53] * 2
    assert made["last_small__g"].tolist()[:4] == [3, 3, 5, 3]
    assert made["first_time__g"].tolist()[:3] == [pd.Timestamp("2024-01-02")] * 2 + [pd.Timestamp("2024-01-05")]
    assert made["first_flag__g"].tolist()[:2] == [False, False]
    assert pd.isna(made["last_big__g"][2])


def test_the_rows_own_order_is_meant_without_an_order():
    frame = pd.DataFrame({"g": [1, 2, 1, 1], "x": [None, "u", "b", "a"]})
    made = ff.GroupStats("x", by="g", stats=["first", "last", "count"], over="group").fit_transform(frame)
    assert made["first_x__g"].tolist() == ["b", "u", "b", "b"]
    assert made["last_x__g"].tolist() == ["a", "u", "a", "a"]
    assert made["count_x__g"].tolist() == [2, 1, 2, 2]


@given(rows)
def test_histograms_equal_numpy(data):
    frame = frame_of(data)
    edges = [-2, 0, 1.5, 1e8]
    made = ff.GroupStats("x", by="g", stats="histogram", bins=edges, over="group").fit_transform(frame)
    for i, g in enumerate(frame["g"]):
        x = frame["x"][frame["g"] == g].dropna().to_numpy() if g is not None else np.zeros(0)
        counts = np.histogram(x[np.isfinite(x)], edges)[0]
        close([made[f"hist{b}_x__g"][i] for b in range(3)], counts / max(len(x), 1))


@given(rows, st.integers(1, 3), st.booleans())
def test_picked_values_equal_a_loop(data, nth, last):
    frame = frame_of(data)
    pick = ff.GroupPick("x", by="g", order="t", nth=nth, last=last)
    assert pick.outputs == [f"{'last' if last else 'first'}{nth if nth > 1 else ''}_x__g"]
    expected = []
    for g, _, _ in data:
        usable = [i for i, r in enumerate(data) if g is not None and r[0] == g and None not in (r[1], r[2])]
        usable.sort(key=lambda i: (data[i][2], i), reverse=last)
        expected.append(data[usable[nth - 1]][1] if len(usable) >= nth else math.nan)
    close(pick.fit_transform(frame)[pick.outputs[0]], expected)


def test_ranks_of_wide_integers_and_times_are_exact():
    wide = pd.array([2**53 + 1, 2**53, None, -(2**63), 2**63 - 1], dtype="Int64")
    frame = pd.DataFrame({"g": 1, "i": wide, "t": pd.to_datetime([3, 2, 1, None, 4], unit="ns")})
    for column, up, down in (
        ("i", [3, 2, None, 1, 4], [2, 3, None, 4, 1]),
        ("t", [3, 2, 1, None, 4], [2, 3, 4, None, 1]),
    ):
        for descending, expected in ((False, up), (True, down)):
            rank = ff.GroupRank(column, by="g", descending=descending)
            assert plain(rank.fit_transform(frame)[rank.outputs[0]]) == expected


number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([0.1, 1e8, 1e8 + 1]))
deviation_rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), number), max_size=12)
CASES = [(how, stat) for how in ("diff", "ratio", "z") for stat in ("mean", "median")]


def by_loop(value, train, how, stat):
    """The deviation of one value from the values of its group, by numpy."""
    if not len(train) or math.isnan(value):
        return math.nan
    centre = getattr(np, stat)(train)
    if how == "diff":
        return value - centre
    if how == "ratio":
        return value / centre if centre else math.nan
    sd = train.std(ddof=1) if len(train) > 1 else 0.0
    if sd > 1e-9:
        return (value - centre) / sd
    return 0.0 if abs(value - centre) < 1e-9 else math.nan


@example([("a", -1.0), ("a", 1.0), ("a", 0.0)], [], ("ratio", "mean"))
@given(deviation_rows, deviation_rows, st.sampled_from(CASES))
def test_deviations_from_the_rows_own_group_and_from_the_training_rows_equal_numpy(data, new, case):
    how, stat = case
    train, test = (of_rows(rows, g=object, x="float64") for rows in (data, [*new, ("c", 1.0)]))
    groups = {g: v.dropna().to_numpy() for g, v in train.groupby("g")["x"]}
    own = ff.DeviationFromGroup("x", by="g").set_params(how=how, stat=stat)  # parameters changed in place count
    trained = ff.DeviationFromGroup("x", by="g", how=how, stat=stat, over="train", name="d").fit(train)
    assert own.outputs == [f"{how}{stat}_x__g"]
    for made, frame in ((own.fit_transform(train), train), (trained.transform(test)[["g", "x", "d_x__g"]], test)):
        expected = [by_loop(x, groups.get(g, np.zeros(0)), how, stat) for g, x in frame.values]
        assert made.iloc[:, -1].tolist() == pytest.approx(expected, rel=1e-7, abs=1e-7, nan_ok=True)


key = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
nunique_rows = st.lists(st.tuples(key, key, st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=15)


@given(nunique_rows, nunique_rows)
def test_it_equals_a_loop(train, new):
    first, second = (pd.DataFrame(r, columns=["g", "h", "v"]).astype({"g": object, "h": object}) for r in (train, new))
    first["v"], second["v"] = first["v"].astype("Int64"), second["v"].astype("Int64")
    one, two = ff.NUnique(["h", "v"], by="g").fit(first), ff.NUnique("v", by=["g", "h"]).fit(first)
    for frame, given_rows in ((first, train), (second, new)):
        made = two.transform(one.transform(frame))
        for i, (g, h, _) in enumerate(given_rows):
            values = [{r[c] for r in train if r[0] == g and g is not None} - {None} for c in (1, 2)]
            both = {r[2] for r in train if r[:2] == (g, h) and None not in (g, h)} - {None}
            found = made.loc[i, ["nunique_h__g", "nunique_v__g", "nunique_v__g__h"]].tolist()
            assert found == [len(values[0]), len(values[1]), len(both)]


def test_values_of_any_kind():
    frame = pd.DataFrame(
        {
            "g": ["x"] * 4,
            "big": pd.array([2**53, 2**53 + 1, 2**53 + 1, None], dtype="Int64"),
            "zero": [0.0, -0.0, float("nan"), float("inf")],
            "time": pd.to_datetime(["2024-01-01", "2024-01-02", None, "2024-01-01"]),
            "flag": [True, True, False, True],
        }
    )
    made = ff.NUnique(["big", "zero", "time", "flag", ff.Cross("flag", "zero")], by="g").fit_transform(frame)
    assert made.iloc[0, 5:].tolist() == [2, 2, 2, 2, 2]


neighbours_rows = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), number | st.just(0.5), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)
WHAT = ["previous", "next", "diff_previous", "diff_next", "above", "below"]


def neighbours_by_loop(data, i, n):
    """Row ``i``'s neighbours, by looking at every row of its list."""
    g, x, _ = data[i]
    none = dict.fromkeys(WHAT, math.nan)
    if g is None:
        return none
    row = sorted((j for j, r in enumerate(data) if r[0] == g), key=lambda j: (data[j][2], j))
    at, own = row.index(i), math.nan if x is None else x
    before = data[row[at - n]][1] if at - n >= 0 else None
    after = data[row[at + n]][1] if at + n < len(row) else None
    known = [data[j][1] for j in row if data[j][1] is not None]
    before, after = (math.nan if v is None else v for v in (before, after))
    return {
        "previous": before,
        "next": after,
        "diff_previous": own - before,
        "diff_next": own - after,
        "above": min((v - own for v in known if v > own), default=math.nan),
        "below": min((own - v for v in known if v < own), default=math.nan),
    }


@given(neighbours_rows, st.integers(1, 3))
def test_neighbours_equal_a_loop(data, n):
    made = ff.Neighbours("x", by="g", order="t", n=n, what=WHAT).fit_transform(
        of_rows(data, g=object, x="float64", t="int64")
    )
    for i in range(len(data)):
        expected = neighbours_by_loop(data, i, n)
        for what in WHAT:
            name = f"{what}_x__g" if what in ("above", "below") else f"{what}{n}_x__g"
            assert made[name][i] == pytest.approx(expected[what], rel=1e-12, nan_ok=True), what


def test_wide_integers_times_and_text():
    frame = pd.DataFrame(
        {"g": 1, "i": pd.array([2**53 + 1, 2**53, None, 2**62], dtype="Int64"), "w": [*"ab", None, "c"]}
    )
    frame["t"] = pd.to_datetime(["2024-01-01 00:00:02", None, "2024-01-01 00:00:00", "2024-01-01 00:00:02"])
    made = ff.Neighbours(["i", "t"], by="g", what=["diff_previous", "above", "below"]).fit_transform(frame)
    assert made["diff_previous1_i__g"].tolist()[1] == -1.0
    assert made["above_i__g"].tolist()[:2] == [2.0**62 - (2**53 + 1), 1.0]
    assert made["below_i__g"].tolist()[0] == 1.0
    assert made["above_t__g"].tolist() == pytest.approx([math.nan, math.nan, 2.0, math.nan], nan_ok=True)
    assert made["below_t__g"].tolist() == pytest.approx([2.0, math.nan, math.nan, 2.0], nan_ok=True)
    words = ff.Neighbours("w", by="g", n=[1, 2]).fit_transform(frame)
    assert plain(words["next1_w__g"]) == ["b", None, "c", None]
    assert plain(words["previous2_w__g"]) == [None, None, "a", "b"]
