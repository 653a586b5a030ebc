from __future__ import annotations

import bisect
import math
import operator
import statistics
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fastrec.features as ff
from fastrec._core import limits
from fastrec.features.rows import _STATS

STATS = list(_STATS)
number_or_none = st.one_of(
    st.none(), st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e8, 1e8 + 1]), st.floats(-1e6, 1e6), st.integers(-3, 3).map(float)
)
tables = st.integers(1, 6).flatmap(
    lambda k: st.lists(st.lists(number_or_none, min_size=k, max_size=k), min_size=1, max_size=8)
)


def frame(rows):
    return pd.DataFrame({f"c{i}": pd.Series([r[i] for r in rows], dtype="float64") for i in range(len(rows[0]))})


def by_hand(row):
    """One row's statistics, by a loop and exact sums."""
    known = [v for v in row if v is not None]
    made = {"zeros": known.count(0), "missing": len(row) - len(known), "negative": sum(v < 0 for v in known)}
    made |= {"nunique": len(set(known)), "sum": math.fsum(known)}
    made["mean"] = math.fsum(known) / len(known) if known else math.nan
    made["std"] = statistics.stdev(known) if len(known) > 1 else math.nan
    return made | {"min": min(known, default=math.nan), "max": max(known, default=math.nan)}


@given(tables)
@example([[None, None]])
@example([[0.1] * 6, [1e8, 1e8 + 1, 1e8, None, 0.0, -0.0]])
def test_they_are_those_of_a_plain_loop(rows):
    df = frame(rows)
    made = ff.RowStats(list(df), STATS).fit_transform(df)
    for i, row in enumerate(rows):
        size = max((abs(v) for v in row if v is not None), default=0)
        for stat, expected in by_hand(row).items():
            found = made[f"row_{stat}"][i]  # squares of less than 1e-150 are 0
            assert found == pytest.approx(expected, rel=1e-9, abs=max(1e-12 * size, 1e-150), nan_ok=True), (i, stat)


def test_a_wide_table_of_many_types_has_those_of_pandas(monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.integers(-4, 5, (57, 123)) * rng.choice([0.0, 0.5, 1.0], (57, 123))
    df = pd.DataFrame(np.where(rng.random(values.shape) < 0.2, np.nan, values)).add_prefix("v")
    for i in range(0, 120, 4):
        df[f"v{i}"] = df[f"v{i}"].round().astype("Int16")
        df[f"v{i + 1}"] = df[f"v{i + 1}"].astype("float32")
    df["v2"] = (df["v2"] > 0).astype("boolean").mask(df["v2"].isna())
    plain = df.astype("float64")
    expected = {
        "zeros": (plain == 0).sum(axis=1),
        "missing": plain.isna().sum(axis=1),
        "negative": (plain < 0).sum(axis=1),
        **{s: getattr(plain, s)(axis=1) for s in ("nunique", "sum", "mean", "std", "min", "max")},
    }
    made = ff.RowStats(ff.number() | ["v2"], STATS, name="all").fit_transform(df)
    whole = {stat: made[f"all_{stat}"] for stat in STATS}
    for stat, values in expected.items():
        np.testing.assert_allclose(whole[stat], values, rtol=1e-12, atol=1e-12, err_msg=stat)
    for size in (1, 500, 57 * 123):  # blocks of rows change no bit
        monkeypatch.setattr(limits, "ROW_STATS_NUMBERS", size)
        again = ff.RowStats(list(df), STATS).fit_transform(df)
        for stat in STATS:
            np.testing.assert_array_equal(again[f"row_{stat}"], whole[stat], err_msg=f"{stat}, {size}")


def test_infinities_times_and_generators_are_numbers_and_equal_values_have_no_spread():
    inf = math.inf
    df = pd.DataFrame({"a": [inf, inf, -inf, 1.0], "b": [1.0, inf, inf, 1e308], "c": [None, None, 2.0, 1e308]})
    made = ff.RowStats(["a", "b", "c"], STATS).fit_transform(df)
    assert made["row_sum"][:2].tolist() == [inf, inf]
    assert made["row_mean"][:2].tolist() == [inf, inf]
    assert made[["row_sum", "row_mean"]].iloc[2].isna().all()
    assert made["row_std"][:3].isna().all()
    assert made["row_nunique"].tolist() == [2, 1, 3, 2]
    assert made["row_max"].tolist() == [inf, inf, inf, 1e308]
    assert made["row_min"].tolist() == [1, inf, -inf, 1]
    df = pd.DataFrame({f"c{i}": [0.1, 1e17 / 3] for i in range(7)})
    made = ff.RowStats(list(df), ["mean", "std"]).fit_transform(df)
    assert made["row_mean"].tolist() == [0.1, 1e17 / 3]
    assert made["row_std"].tolist() == [0, 0]
    df = pd.DataFrame({"t": pd.to_datetime(["1970-01-01 00:00:07", None]), "a": [1, 2]})
    made = ff.RowStats([ff.RowStats("a", "sum"), "t"], ["max", "missing"], name="both").fit_transform(df)
    assert made["both_max"].tolist() == [7, 2]
    assert made["both_missing"].tolist() == [0, 1]


any_number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 1e300]))
pairs = st.lists(st.tuples(any_number, any_number), max_size=12)
WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "over"}
DO = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def frame_of(rows):
    return pd.DataFrame({n: pd.Series([r[i] for r in rows], dtype="float64") for i, n in enumerate("ab")})


@given(pairs, st.sampled_from(sorted(WORDS)))
def test_combinations_and_conditions_equal_a_loop(rows, how):
    combined, chosen = [], []
    for a, b in rows:
        missing = a is None or b is None
        combined.append(math.nan if missing or (how == "/" and b == 0) else DO[how](a, b))
        chosen.append(math.nan if missing or not b > 0 else a)
    made = ff.FeatureSet([ff.Combine("a", how, "b"), ff.Where("a", "b")]).fit_transform(frame_of(rows))
    assert made[f"a_{WORDS[how]}_b"].tolist() == pytest.approx(combined, nan_ok=True)
    assert made["a_where_b"].tolist() == pytest.approx(chosen, nan_ok=True)


finite = st.one_of(st.integers(-5, 5).map(float), st.floats(-1e9, 1e9))
missing = st.just(math.nan)


@given(
    st.lists(st.one_of(finite, missing, st.sampled_from([math.inf, -math.inf, 1e300])), max_size=30),
    st.sets(st.integers(-5, 5), min_size=1).map(sorted),
)
def test_given_edges_equal_bisect(values, edges):
    made = ff.Bucketize("x", edges).transform(pd.DataFrame({"x": pd.Series(values, dtype="float64")}))["x_bucket"]
    for value, bucket in zip(values, made, strict=True):
        assert pd.isna(bucket) if math.isnan(value) else bucket == bisect.bisect_right(edges, value)


@given(st.lists(st.one_of(finite, missing), min_size=1, max_size=40), st.integers(2, 6))
def test_quantile_edges_equal_numpy(values, parts):
    frame = pd.DataFrame({"x": values})
    made = ff.Bucketize("x", quantiles=parts).fit_transform(frame)["x_qbucket"]
    known = [v for v in values if not math.isnan(v)]
    edges = sorted({*np.quantile(known, [i / parts for i in range(1, parts)])}) if known else []
    for value, bucket in zip(values, made, strict=True):
        if math.isnan(value):
            assert pd.isna(bucket)
        elif all(abs(value - e) > 1e-9 * max(abs(e), 1) or value == e for e in edges):  # else rounding decides
            assert bucket in {bisect.bisect_right(edges, value), bisect.bisect_right(_distinct(edges), value)}


def _distinct(edges):
    return [e for i, e in enumerate(edges) if not i or abs(e - edges[i - 1]) > 1e-9 * max(abs(e), 1)]


def test_equal_edges_become_one_and_a_blank_column_has_none():
    made = ff.Bucketize("x", quantiles=4).fit_transform(pd.DataFrame({"x": [1, 1, 1, 9]}))
    assert made["x_qbucket"].tolist() == [1, 1, 1, 2]
    blank = ff.Bucketize("x", quantiles=4).fit(pd.DataFrame({"x": [math.nan, math.nan]}))
    assert blank.transform(pd.DataFrame({"x": [5.0]}))["x_qbucket"].tolist() == [0]


def test_infinities_are_in_the_last_buckets_and_move_no_other_edge():
    frame = pd.DataFrame({"x": [-math.inf, 1, 2, 3, math.inf]})
    assert ff.Bucketize("x", quantiles=[0.25, 0.5, 0.75]).fit_transform(frame)["x_qbucket"].tolist() == [0, 1, 2, 3, 3]
    assert ff.Bucketize("x", [0]).fit_transform(frame)["x_bucket"].tolist() == [0, 1, 1, 1, 1]


cents = st.integers(-10_000_000, 10_000_000)


def last(text, digits, decimals):
    """The last digits of a number's decimal text."""
    cut = abs(Decimal(text)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN)
    return int(f"{cut:f}".replace(".", "")[-digits:])


@given(st.lists(cents, min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 3))
def test_prices_read_as_they_are_written(prices, digits, decimals):
    written = [str(Decimal(p).scaleb(-2)) for p in prices]
    for dtype in ("float64", "float32") if max(map(abs, prices)) < 100_000 else ("float64",):
        frame = pd.DataFrame({"x": pd.Series([float(w) for w in written], dtype=dtype)})
        feature = ff.Digits("x", digits, decimals=decimals)
        made = feature.fit_transform(frame)[feature.outputs[0]].tolist()
        assert made == [last(w, digits, decimals) for w in written]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(1, 18), st.integers(0, 9))
def test_integers_are_exact(numbers, digits, decimals):
    feature = ff.Digits("x", digits, decimals=decimals)
    made = feature.fit_transform(pd.DataFrame({"x": pd.Series(numbers, dtype="int64")}))[feature.outputs[0]]
    assert made.tolist() == [abs(n) * 10**decimals % 10**digits for n in numbers]


def test_what_has_no_digits_is_missing():
    frame = pd.DataFrame({"x": [math.nan, math.inf, -math.inf, 7.0], "i": pd.array([None, 12, -34, 5], dtype="Int64")})
    made = ff.Digits(["x", "i"]).fit_transform(frame)
    assert made["last1_x"].isna().tolist() == [True, True, True, False]
    assert made["last1_i"].tolist() == [pd.NA, 2, 4, 5]


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20), st.integers(1, 10**6))
def test_integers_round_exactly(numbers, to):
    feature = ff.RoundTo("x", to, stats=["value", "gap", "is_round"])
    made = feature.fit_transform(pd.DataFrame({"x": numbers}))
    for given_number, value, gap, is_round in made.itertuples(index=False):
        expected = round(Fraction(given_number, to)) * to  # halves to even
        assert (value, gap, is_round) == (expected, float(given_number - expected), given_number % to == 0)
    assert made[feature.outputs[0]].dtype == "int64"


@given(
    st.lists(cents, min_size=1, max_size=20), st.sampled_from(["0.01", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "10"])
)
def test_prices_round_as_they_are_written(prices, to):
    feature = ff.RoundTo("x", float(to), stats=["value", "is_round"])
    frame = pd.DataFrame({"x": [float(Decimal(p).scaleb(-2)) for p in prices]})
    made = feature.fit_transform(frame)
    for price, (_, value, is_round) in zip(prices, made.itertuples(index=False), strict=True):
        steps = Fraction(price, 100) / Fraction(to)
        assert is_round == (steps.denominator == 1)
        if (2 * steps).denominator != 1 or is_round:  # not a half: those fall as the float does
            assert value == pytest.approx(float(round(steps) * Fraction(to)), rel=1e-15)


def test_short_steps_make_short_numbers_and_the_largest_are_their_own_multiples():
    made = ff.RoundTo("x", 0.1, stats=["value", "gap"]).fit_transform(pd.DataFrame({"x": [0.3, 0.31]}))
    assert made["round0.1_x"].tolist() == [0.3, 0.3]
    assert made["roundgap0.1_x"].tolist() == pytest.approx([0, 0.01])
    assert made["roundgap0.1_x"].tolist()[0] == 0
    frame = pd.DataFrame({"x": [1.7e308, -1.7e308, 2.0**60]})
    made = ff.RoundTo("x", 0.05, stats=["value", "gap", "is_round"]).fit_transform(frame)
    assert made.iloc[:, 1:].values.tolist() == [[x, 0.0, True] for x in frame["x"]]


def test_several_steps_and_what_has_no_multiple():
    frame = pd.DataFrame({"x": [math.inf, math.nan, 12.0], "i": pd.array([None, 7, -7], dtype="Int64")})
    made = ff.RoundTo(["x", "i"], [5, 0.5], stats=["value", "gap", "is_round"]).fit_transform(frame)
    assert list(made)[2:5] == ["round5_x", "roundgap5_x", "isround5_x"]
    assert made["round5_x"].tolist()[::2] == [math.inf, 10]
    assert made["roundgap5_x"].isna().tolist() == made["isround5_x"].isna().tolist() == [True, True, False]
    assert made["round5_i"].tolist() == [pd.NA, 5, -5]
    assert made["round0.5_i"].tolist()[1:] == [7.0, -7.0]
    assert made["isround0.5_i"].tolist() == [pd.NA, True, True]
    edge = pd.DataFrame({"i": [2**63 - 1, -(2**63)]})
    assert ff.RoundTo("i", 10).fit_transform(edge)["round10_i"].tolist() == [(2**63 - 1) // 10 * 10, -(2**63) + 8]
