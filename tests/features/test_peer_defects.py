"""What a widely used library of feature operators (NVTabular 23.8) gets wrong, each with a test that this one does not,
and the expected values of its own tests."""

from __future__ import annotations

import itertools
import math
import statistics
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fastrec.features as ff
from fastrec.errors import FastrecError
from fastrec.table import Table
from tests.features.partitions import PARTS, events, fit_in_parts, pieces


def test_1_new_rows_of_one_category_have_one_value():
    train = events()
    fs = ff.FeatureSet([ff.TargetEncode("item", ["y", "z"], stats=["mean", "std", "count"], smooth=5)], key="id").fit(
        train
    )
    names = ["i0", "i3", "never", None]
    new = pd.DataFrame({"id": range(400), "item": pd.Series(names * 100, dtype=object)})
    made = fs.transform(new)
    for name in fs.outputs:
        assert [made.loc[i::4, name].nunique() for i in range(4)] == [1] * 4
    mean, count = train["y"].mean(), train.groupby("item")["y"].agg(["sum", "count"])
    expected = [(count["sum"][i] + 5 * mean) / (count["count"][i] + 5) for i in names[:2]] + [mean] * 2
    assert made["te_item__y"].tolist() == pytest.approx(expected * 100, rel=1e-12)


@pytest.mark.parametrize("parts", PARTS)
def test_2_folds_do_not_depend_on_places_or_partitions(parts):
    frame, make = (
        events(),
        lambda: [ff.TargetEncode("item", "y", smooth=3), ff.TargetEncode(ff.Cross("item", "user"), "y")],
    )
    names = ["te_item__y", "te_item_x_user__y"]
    whole = ff.FeatureSet(make(), key="id").fit_transform(frame).set_index("id")[names]
    shuffled = frame.sample(frac=1, random_state=parts)
    made = fit_in_parts(make(), shuffled, parts)[1].set_index(shuffled["id"])
    assert made.loc[whole.index].equals(whole)
    # Another number of partitions than it was first fitted in must not teach a row its own target.
    one = frame["id"].iloc[17]
    flipped = shuffled.assign(y=shuffled["y"].where(shuffled["id"] != one, 1 - shuffled["y"]))
    again = fit_in_parts(make(), flipped, 65 - parts)[1].set_index(shuffled["id"])
    assert again.loc[one].equals(whole.loc[one])
    assert (again.loc[whole.index] != whole).any().all()  # other rows do learn from it


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.normal(1e8, 1, 20_000),
        lambda rng: rng.normal(-1e8, 1, 20_000).astype("float64"),
        lambda rng: 1_541_030_400 + rng.integers(0, 60, 20_000),  # epoch seconds of one minute
        lambda rng: 1_541_030_400 * 10**9 + rng.integers(0, 2, 20_000) * 10**6,  # nanoseconds
        lambda rng: 1e8 + rng.integers(-1, 2, 20_000),
    ],
    ids=["1e8", "-1e8", "seconds", "nanoseconds", "plus or minus 1"],
)
@pytest.mark.parametrize("parts", [1, 7])
def test_4_normalised_numbers_have_mean_0_and_deviation_1(make, parts):
    x = make(np.random.default_rng(0))
    frame = pd.DataFrame({"id": range(len(x)), "x": x})
    fs, made = fit_in_parts([ff.Normalize("x")], frame, parts)
    found = made["norm_x"].to_numpy()
    assert abs(found.mean()) < 1e-3
    assert found.std() == pytest.approx(1, rel=1e-5)
    exact = [Fraction(v) - Fraction(x[0].item()) for v in x.tolist()]
    mean = sum(exact) / len(exact)
    sd = math.sqrt(sum((v - mean) ** 2 for v in exact) / len(exact))
    expected = [float(v - mean) / sd for v in exact[:50]]
    # In float64 a number has no more digits than its own last place leaves.
    assert fs.transform(frame.head(50))["norm_x"].tolist() == pytest.approx(expected, abs=4 * math.ulp(x.max()) / sd)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("options", [{}, {"min_count": 20}, {"max_size": 3}, {"unseen": True}, {"buckets": 3}])
@pytest.mark.parametrize("col", ["item", "user", "price", "tags"])
def test_5_codes_of_columns_with_nulls_do_not_depend_on_partitions(col, options, parts):
    frame = events()
    items = [None if pd.isna(i) else i for i in frame["item"]]
    users = [None if pd.isna(u) else u for u in frame["user"]]
    tags = [None if i is None else [i, None, f"u{u}"] for i, u in zip(items, users)]
    price = [None if math.isnan(p) else round(p, -1) for p in frame["price"]]
    kinds = {"item": pa.string(), "user": pa.int64(), "price": pa.float64(), "tags": pa.list_(pa.string())}
    data = {"item": items, "user": users, "price": price, "tags": tags}
    table = pa.table({n: pa.array(v, kinds[n]) for n, v in data.items()})
    whole = ff.Categorify(col, **options).fit(table)
    feature = ff.Categorify(col, **options)
    bounds = np.linspace(0, len(table), parts + 1).astype(int)
    states = [feature.collect(Table.read(table.slice(a, b - a))) for a, b in itertools.pairwise(bounds)]
    nothing = [a for a, b in itertools.pairwise(bounds) if table["item"].slice(a, b - a).null_count == b - a]
    assert bool(nothing) == (parts == 64)  # parts of nulls alone are among them
    merged = states[-1]
    for state in states[:-1]:
        merged = feature.merge(state, merged)
    feature.learn(merged)
    found = feature.transform(table)[f"code_{col}"].to_pylist()
    assert found == whole.transform(table)[f"code_{col}"].to_pylist()
    assert feature.vocabs[col].classes == whole.vocabs[col].classes
    if options.get("buckets") is None:  # a code is a value, and missing is code 0 alone
        values = table[col].to_pylist()
        classes = feature.vocabs[col].classes
        for value, code in zip(values, found, strict=True):
            for v, c in zip(value or [], code or []) if col == "tags" else [(value, code)]:
                assert (c == 0) == (v is None)
                assert c is None or v is None or classes[c] in (v, "#rare#")


def test_6_crosses_of_equal_values_are_not_one_and_the_order_counts():
    n = 500
    text = [f"v{k}" for k in range(n)]
    frame = pd.DataFrame({"a": text, "b": text, "c": text[::-1], "i": range(n), "j": range(n), "k": range(n)[::-1]})
    for a, b, other in (("a", "b", "c"), ("i", "j", "k")):
        exact = ff.Cross(a, b).fit_transform(frame)[f"{a}_x_{b}"]
        assert exact.nunique() == n
        hashed = ff.Cross(a, b, buckets=10**6).fit_transform(frame)[f"{a}_x_{b}"]
        assert hashed.nunique() > n - 5
        assert (hashed == hashed[0]).sum() < 3
        one = ff.Cross(a, other, buckets=10**6).fit_transform(frame)[f"{a}_x_{other}"]
        two = ff.Cross(other, a, buckets=10**6).fit_transform(frame)[f"{other}_x_{a}"]
        assert (one == two).sum() < 3
        for one_alone in ({a: frame[a].iloc[0]}, {b: frame[b].iloc[0]}):  # each of the two counts
            part = ff.Cross(a, b, buckets=10**6).fit_transform(frame.assign(**one_alone))[f"{a}_x_{b}"]
            assert part.nunique() > n - 5
        few = ff.Cross(a, b, buckets=10).fit_transform(frame)[f"{a}_x_{b}"].value_counts()
        assert len(few) == 10
        assert few.min() > n / 10 / 2


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.3, -7.0])
def test_8_a_constant_column_gives_numbers_and_the_same_in_every_row(value):
    frame = pd.DataFrame({"id": range(31), "g": "a", "t": range(31), "x": [value] * 31})
    expected = {
        ff.Normalize("x"): 0,
        ff.GroupRank("x", by="g", normalise=True): 0,
        ff.GroupStats("x", by="g", stats="std"): 0,
        ff.GroupStats("x", by="g", stats="skew", name="s"): 0,
        ff.DeviationFromGroup("x", by="g"): 0,
        ff.DeviationFromGroup("x", by="g", how="z"): 0,
        ff.DeviationFromGroup("x", by="g", how="z", over="train", stat="median"): 0,
        ff.Clip("x"): value,
        ff.FillMissing("x", add_col=False): value,
        ff.Bucketize("x", quantiles=4): 1,
    }
    for feature, number in expected.items():
        for parts in (1, 3):
            if feature.kind == "fitted" and getattr(feature, "over", "") != "group":
                made = fit_in_parts([feature], frame, parts)[1]
            else:
                made = ff.FeatureSet([feature], key="id").fit_transform(frame)
            assert set(made[feature.outputs[0]].tolist()) == {number}, feature


PLAIN = [
    lambda: ff.Normalize("x"),
    lambda: ff.FillMissing("x"),
    lambda: ff.Bucketize("x", quantiles=3),
    lambda: ff.Clip("x"),
    lambda: ff.Log1p("x", signed=True),
    lambda: ff.Combine("x", "/", "x"),
    lambda: ff.Combine("x", "-", "t", name="less"),
    lambda: ff.GroupStats("x", by="k", stats=["mean", "std", "median", "sum", "nunique", "skew", "min"]),
    lambda: ff.DeviationFromGroup("x", by="k", how="z"),
    lambda: ff.GroupRank("x", by="k", method="dense"),
    lambda: ff.TargetEncode("k", "x", stats=["mean", "count"]),
    lambda: ff.TargetEncode(["x", ff.Cross("x", "k")], "t"),
    lambda: ff.CumTarget("k", "x", order="t"),
    lambda: ff.CountEncode(["x", ff.Cross("k", "x")], by="k"),
    lambda: ff.RankByCount("k"),
    lambda: ff.NUnique("x", by="k"),
    lambda: ff.Categorify(["x", "k"], min_count=2),
    lambda: ff.HashEncode("x", 50),
    lambda: ff.Cross("x", "k", buckets=50),
    lambda: ff.Diff("x", by="k", order="t"),
    lambda: ff.PctChange("x", by="k", order="t"),
    lambda: ff.Rolling("x", ["mean", "median"], by="k", order="t", window=4),
    lambda: ff.Ewm("x", half_life=2, by="k", order="t"),
    lambda: ff.CumStat("x", by="k", order="t", stats=["sum", "max"]),
    lambda: ff.TimeSince("x", by="k", order="t"),
    lambda: ff.NaNPattern(["x", "k"]),
]


@pytest.mark.parametrize("make", PLAIN, ids=[f"{i}-{type(m()).__name__}" for i, m in enumerate(PLAIN)])
@pytest.mark.parametrize("kind", ["Int64", "Int8", "Float64", "int64[pyarrow]"])
def test_9_nullable_columns_give_what_plain_ones_with_nan_give(make, kind):
    rng = np.random.default_rng(2)
    holes = lambda v: np.where(rng.random(60) < 0.2, np.nan, v)  # noqa: E731
    data = {"id": np.arange(60), "k": holes(rng.integers(0, 4, 60)), "x": holes(rng.integers(-9, 10, 60))}
    frame = pd.DataFrame(data | {"t": rng.permutation(60)})
    other = frame.astype({"k": kind, "x": kind, "t": kind.removesuffix("[pyarrow]")})
    made = []
    for f in (frame, other):
        fs = ff.FeatureSet([make()], key="id")
        first = fs.fit_transform(f)[fs.outputs]
        made.append(pd.concat([first, fs.transform(f.sample(frac=1, random_state=1))[fs.outputs]]))
    for name in made[0]:
        a, b = (m[name].astype("float64").tolist() for m in made)
        assert a == pytest.approx(b, rel=1e-13, abs=1e-13, nan_ok=True), name


def test_9_nullable_integers_past_the_floats_stay_exact():
    frame = pd.DataFrame({"k": pd.array([2**53 + 1, 2**53, None, 2**53 + 1], dtype="Int64"), "y": [1, 0, 1, 1]})
    assert ff.TargetEncode("k", "y", smooth=0).fit(frame).transform(frame)["te_k__y"].tolist() == [1, 0, 0.75, 1]
    assert ff.Lag("k").fit_transform(frame)["lag1_k"].tolist()[1:] == [2**53 + 1, 2**53, pd.NA]
    assert ff.Categorify("k").fit_transform(frame)["code_k"].tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("n", [201, 1000])
def test_10_medians_and_quantiles_are_exact_in_any_partitions(parts, n):
    rng = np.random.default_rng(n)
    x = np.where(rng.random(n) < 0.1, np.nan, np.exp(rng.normal(0, 4, n)))  # skewed: a sketch would be far off
    frame = pd.DataFrame({"id": range(n), "g": rng.choice(["a", "b"], n), "t": rng.permutation(n), "x": x})
    known = x[~np.isnan(x)]
    made = fit_in_parts([ff.FillMissing("x", add_col=False)], frame, parts)[1]["filled_x"]
    assert set(made[np.isnan(x)]) == {statistics.median(known.tolist())}
    stats = ff.GroupStats("x", by="g", stats=["median", "q05", "q975"])
    deviation = ff.DeviationFromGroup("x", by="g", stat="median", over="train", name="far")
    fs, made = fit_in_parts(
        [stats, deviation, ff.Clip("x", quantiles=(0.1, 0.9)), ff.Bucketize("x", quantiles=7)], frame, parts
    )
    for g in "ab":
        here, own = frame["g"] == g, x[(frame["g"] == g) & ~np.isnan(x)]
        middle = statistics.median(own.tolist())
        assert set(made.loc[here, "median_x__g"]) == {middle}
        for name, share in (("q05_x__g", 0.05), ("q975_x__g", 0.975)):
            assert made.loc[here, name].tolist() == pytest.approx([np.quantile(own, share)] * here.sum(), rel=1e-12)
        found = made.loc[here, deviation.outputs[0]].dropna().tolist()
        assert found == pytest.approx([v - middle for v in own], rel=1e-12, abs=1e-12)
    assert [made["clip_x"].min(), made["clip_x"].max()] == pytest.approx(np.quantile(known, [0.1, 0.9]), rel=1e-12)
    sizes = made["x_qbucket"].value_counts()
    assert sizes.sum() == len(known)
    assert sizes.max() - sizes.min() <= 1
    assert fs.transform(frame)["x_qbucket"].notna().sum() == len(known)


def in_any_order(data, seeds=4):
    """The frame as it is, backwards and shuffled: values must follow their rows."""
    frame = pd.DataFrame(data)
    return [frame, frame[::-1], *(frame.sample(frac=1, random_state=s) for s in range(seeds))]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_categories_of_lists_seen_twice_are_kept(parts):
    for frame in in_any_order({"k": [["A"], ["A", "E"], ["B", "C"], ["C"]]}):
        feature = ff.Categorify("k", min_count=2)
        states = [feature.collect(Table.read(p)) for p in pieces(frame, parts)]
        merged = states[0]
        for state in states[1:]:
            merged = feature.merge(merged, state)
        feature.learn(merged)
        assert feature.vocabs["k"].values.to_pylist() == ["A", "C"]
        codes = feature.transform(frame).sort_index()["code_k"]
        assert [list(map(int, c)) for c in codes] == [[2], [2, 1], [1, 3], [3]]


@pytest.mark.parametrize("key", ["text", 1, 0.5, None])
def test_a_target_encoding_of_one_group_with_p_smooth_5(key):
    y = [1, 1, 2, 2, 2, 1, 1, 5, 4, 4, 4, 4]
    for frame in in_any_order({"g": [key] * 12, "y": y}):
        te = ff.TargetEncode("g", "y", smooth=5).fit(frame)
        assert te.transform(frame)["te_g__y"].tolist() == pytest.approx([2.58333] * 12, abs=5e-6)
    # Two groups: (sum + p · prior) / (count + p).
    te = ff.TargetEncode("g", "y", smooth=5).fit(pd.DataFrame({"g": list("aaab"), "y": [3.0, 4, 5, 8]}))
    made = te.transform(pd.DataFrame({"g": ["a", "b", "c"]}))["te_g__y"].tolist()
    assert made == pytest.approx([(12 + 5 * 5) / 8, (8 + 5 * 5) / 6, 5])


def test_differences_to_the_row_before_and_after():
    data, nan = {"user": [0, 0, 0, 1, 1, 2], "ts": [1000, 1005, 1100, 2000, 2001, 3000]}, math.nan
    for frame in in_any_order(data):
        made = ff.Diff("ts", by="user", order="ts", n=[1, -1]).fit_transform(frame).sort_index()
        assert made["diff1_ts__user"].tolist() == pytest.approx([nan, 5, 95, nan, 1, nan], nan_ok=True)
        assert made["diff-1_ts__user"].tolist() == pytest.approx([-5, -95, nan, -1, nan, nan], nan_ok=True)


# Integers that a float64 does not hold, and decimals, in every way that a frame can hold them


BIG = 1 << 53
NUMBERS = [BIG + 1, BIG + 3, BIG, BIG + 4, None, BIG + 3]
HUGE = [(1 << 64) - 2, (1 << 64) - 1, (1 << 63) + 1, 1 << 63]


def plain(values):
    return pa.array(values, pa.int64())


def dictionary(values):
    return plain(values).dictionary_encode()


def unsigned(values):
    return pa.array(values, pa.uint64()).dictionary_encode()


def categorical(values):
    return pd.Series(values, dtype="Int64").astype("category")


HELD = [dictionary, unsigned, categorical]


def made(feature, **columns):
    frame = Table.read(columns)
    found = feature.fit_transform(frame)
    return {n: found[n].to_arrow().to_pylist() for n in feature.outputs}


FEATURES = [
    lambda: ff.Lag("x", order="t"),
    lambda: ff.TimeSince(order="t"),
    lambda: ff.Diff("v", order="t"),
    lambda: ff.GroupRank("v", by="g"),
    lambda: ff.GroupPick("x", by="g", order="v"),
    lambda: ff.Neighbours("v", by="g", order="t", what=["diff_previous", "above", "below"]),
    lambda: ff.Digits("v", 3),
    lambda: ff.Clip("v", low=BIG + 1, high=BIG + 3),
    lambda: ff.PctChange("v", order="t"),
    lambda: ff.RoundTo("v", 10, stats=["value", "gap", "is_round"]),
]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("make", FEATURES)
def test_integers_of_a_category_are_exact(make, held):
    order = [BIG + 5, BIG + 1, BIG + 2, BIG, BIG + 3, BIG + 4]
    rest = {"x": pa.array([1.0, 2, 3, 4, 5, 6]), "g": pa.array([1, 1, 1, 2, 2, 2])}
    expected = made(make(), v=plain(NUMBERS), t=plain(order), **rest)
    assert made(make(), v=held(NUMBERS), t=held(order), **rest) == expected


def test_digits_and_lags_by_hand():
    assert made(ff.Digits("v"), v=dictionary([BIG + 3, None])) == {"last1_v": [5, None]}  # 2^53 + 3 = …995
    lag = made(ff.Lag("x", order="t"), x=pa.array([1, 2, 3]), t=dictionary([BIG + 1, BIG, BIG + 2]))
    assert lag == {"lag1_x": [2, None, 1]}


@pytest.mark.parametrize(
    "held", [lambda v: pa.array(v, pa.uint64()), lambda v: pa.array(v, pa.uint64()).dictionary_encode()]
)
def test_unsigned_integers_are_ranked_exactly_or_refused_by_name(held):
    rest = {"g": pa.array([1] * 4), "x": pa.array([1, 2, 3, 4])}
    for feature in (ff.GroupRank("v", by="g"), ff.Lag("x", order="v"), ff.Digits("v"), ff.Diff("v")):
        with pytest.raises(FastrecError, match="2\\^63") as error:
            made(feature, v=held(HUGE), **rest)
        assert error.value.column == "v"
    as_key = made(ff.GroupRank("x", by="v"), v=held(HUGE), **rest)
    assert as_key == {"rank_x__v": [1, 1, 1, 1]}


DECIMALS = [k for k in ("decimal32", "decimal64", "decimal128", "decimal256") if hasattr(pa, k)]


@pytest.mark.parametrize("name", DECIMALS)
@pytest.mark.parametrize("coded", [False, True])
def test_decimals_of_every_width(name, coded):
    values = [Decimal("1.50"), None, Decimal("-2.25"), Decimal("1.50")]
    array = pa.array(values, getattr(pa, name)(9, 2))
    if coded:
        wide = pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2)).cast(array.type)
        array = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0]), wide)
    column = Table.read({"v": array})["v"]
    assert column.to_arrow().to_pylist() == [1.5, None, -2.25, 1.5]
    counts = made(ff.GroupRank("x", by="v", method="ordinal"), v=array, x=pa.array([1, 2, 3, 4]))
    assert counts["rank_x__v"] == [1, None, 1, 2]
    lists = pa.ListArray.from_arrays([0, 2, 3], array if not coded else array.dictionary_decode().slice(0, 3))
    assert Table.read({"v": lists})["v"].to_arrow().to_pylist() == [values[:2], values[2:3]]
