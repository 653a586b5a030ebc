from __future__ import annotations

import math
import statistics

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, RowStats, TargetEncode, number
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


@settings(max_examples=80, deadline=None)
@given(tables)
@example([[None, None]])
@example([[0.1] * 6, [1e8, 1e8 + 1, 1e8, None, 0.0, -0.0]])
def test_they_are_those_of_a_plain_loop(rows):
    df = frame(rows)
    made = RowStats(list(df), STATS).fit_transform(df)
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
    made = RowStats(number() | ["v2"], STATS, name="all").fit_transform(df)
    whole = {stat: made[f"all_{stat}"] for stat in STATS}
    for stat, values in expected.items():
        np.testing.assert_allclose(whole[stat], values, rtol=1e-12, atol=1e-12, err_msg=stat)
    for size in (1, 500, 57 * 123):  # blocks of rows change no bit
        monkeypatch.setattr(limits, "ROW_STATS_NUMBERS", size)
        again = RowStats(list(df), STATS).fit_transform(df)
        for stat in STATS:
            np.testing.assert_array_equal(again[f"row_{stat}"], whole[stat], err_msg=f"{stat}, {size}")


def test_counts_are_whole_numbers_and_the_others_floats():
    made = RowStats(["a"], STATS).fit_transform(pd.DataFrame({"a": [1, 0]}))
    assert made.dtypes[1:].astype(str).tolist() == ["int64"] * 4 + ["float64"] * 5


def test_counts_go_past_what_a_byte_holds():
    df = pd.DataFrame({f"c{i}": [0.0, None, -1.0] for i in range(300)})
    made = RowStats(list(df), ["zeros", "missing", "negative"]).fit_transform(df).iloc[:, 300:]
    assert made.to_numpy().tolist() == [[300, 0, 0], [0, 300, 0], [0, 0, 300]]


def test_infinities_are_numbers():
    inf = math.inf
    df = pd.DataFrame({"a": [inf, inf, -inf, 1.0], "b": [1.0, inf, inf, 1e308], "c": [None, None, 2.0, 1e308]})
    made = RowStats(["a", "b", "c"], STATS).fit_transform(df)
    assert made["row_sum"][:2].tolist() == [inf, inf]
    assert made["row_mean"][:2].tolist() == [inf, inf]
    assert made[["row_sum", "row_mean"]].iloc[2].isna().all()
    assert made["row_std"][:3].isna().all()
    assert made["row_nunique"].tolist() == [2, 1, 3, 2]
    assert made["row_max"].tolist() == [inf, inf, inf, 1e308]
    assert made["row_min"].tolist() == [1, inf, -inf, 1]


def test_equal_values_have_no_spread():
    df = pd.DataFrame({f"c{i}": [0.1, 1e17 / 3] for i in range(7)})
    made = RowStats(list(df), ["mean", "std"]).fit_transform(df)
    assert made["row_mean"].tolist() == [0.1, 1e17 / 3]
    assert made["row_std"].tolist() == [0, 0]


def test_a_selector_chooses_once_and_takes_no_target(tmp_path):
    df = pd.DataFrame({"a": [1.0, 3.0], "b": [2, 0], "s": ["x", "y"], "y": [0, 1]})
    fs = FeatureSet([RowStats(number(), ["sum"]), TargetEncode("s", "y")], folds=2)
    assert fs.fit_transform(df)["row_sum"].tolist() == [3, 3]
    fs.save(tmp_path / "fs")
    new = pd.DataFrame({"later": [100.0], "b": [5], "a": [None], "s": ["x"]})
    for which in (fs, FeatureSet.load(tmp_path / "fs")):
        assert which.transform(new)["row_sum"].tolist() == [5]


def test_times_and_generators_are_numbers_too():
    df = pd.DataFrame({"t": pd.to_datetime(["1970-01-01 00:00:07", None]), "a": [1, 2]})
    made = RowStats([RowStats("a", "sum"), "t"], ["max", "missing"], name="both").fit_transform(df)
    assert made["both_max"].tolist() == [7, 2]
    assert made["both_missing"].tolist() == [0, 1]


@pytest.mark.parametrize("stats", [[], "median", ["mean", "mean"], ["mean", 3], None])
def test_what_is_no_statistic_is_named(stats):
    with pytest.raises(FastrecError, match="RowStats"):
        RowStats("a", stats)


def test_no_column_and_text_are_named(monkeypatch):
    with pytest.raises(FastrecError, match="RowStats"):
        RowStats([])
    monkeypatch.setattr(limits, "ROW_STATS_NUMBERS", 1)
    df = pd.DataFrame({"a": [1.0] * 4, "b": [None, None, None, "x"]})
    with pytest.raises(FastrecError, match="RowStats") as caught:
        RowStats(["a", "b"]).fit_transform(df)
    assert (caught.value.column, caught.value.row) == ("b", 3)


def test_apply_alone_is_the_same():
    df = pd.DataFrame({"a": [1.0, None], "b": [3.0, 4.0]})
    made = RowStats(["a", "b"], ["mean", "nunique"]).apply(
        {n: torch.tensor(df[n].to_numpy(), dtype=torch.float64) for n in df}
    )
    assert made["row_mean"].tolist() == [2, 4]
    assert made["row_nunique"].tolist() == [2, 1]
