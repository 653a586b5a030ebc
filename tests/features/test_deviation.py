from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import DeviationFromGroup, FeatureSet, GroupStats

some = settings(max_examples=25, deadline=None)
number = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([0.1, 1e8, 1e8 + 1]))
rows = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(["a", "b"])), number), max_size=12)
CASES = [(how, stat) for how in ("diff", "ratio", "z") for stat in ("mean", "median")]


def frame_of(rows):
    g, x = zip(*rows, strict=True) if rows else ((), ())
    return pd.DataFrame({"g": pd.Series(g, dtype=object), "x": pd.Series(x, dtype="float64")})


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


@some
@example([("a", -1.0), ("a", 1.0), ("a", 0.0)], ("ratio", "mean"))
@given(rows, st.sampled_from(CASES))
def test_deviations_from_the_rows_own_group_equal_numpy(data, case):
    how, stat = case
    frame = frame_of(data)
    feature = DeviationFromGroup("x", by="g", how=how, stat=stat)
    groups = {g: v.dropna().to_numpy() for g, v in frame.groupby("g")["x"]}
    expected = [by_loop(x, groups.get(g, np.zeros(0)), how, stat) for g, x in frame.values]
    assert feature.outputs == [f"{how}{stat}_x__g"]
    assert feature.fit_transform(frame)[feature.outputs[0]].tolist() == pytest.approx(
        expected, rel=1e-7, abs=1e-7, nan_ok=True
    )


@some
@given(rows, rows, st.sampled_from(CASES))
def test_deviations_from_the_training_rows_equal_numpy(data, new, case):
    how, stat = case
    train, test = frame_of(data), frame_of([*new, ("c", 1.0)])
    feature = DeviationFromGroup("x", by="g", how=how, stat=stat, over="train", name="d")
    groups = {g: v.dropna().to_numpy() for g, v in train.groupby("g")["x"]}
    expected = [by_loop(x, groups.get(g, np.zeros(0)), how, stat) for g, x in test.values]
    made = feature.fit(train).transform(test)["d_x__g"].tolist()
    assert made == pytest.approx(expected, rel=1e-7, abs=1e-7, nan_ok=True)


def test_equal_values_do_not_deviate():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": np.arange(5000) % 170})
    frame["x"] = (rng.random(170) * 10.0 ** rng.integers(-8, 9, 170))[frame["g"]]
    made = DeviationFromGroup("x", by="g", how="z").fit_transform(frame)
    assert (made["zmean_x__g"] == 0).all()


def test_it_stands_beside_the_statistics_it_is_made_from():
    frame = pd.DataFrame({"g": [1, 1], "x": [1.0, 3.0]})
    away = [DeviationFromGroup("x", by="g", how=how) for how in ("diff", "z")]
    fs = FeatureSet([GroupStats("x", by="g"), *away])
    made = fs.fit_transform(frame)
    assert made["mean_x__g"].tolist() == [2.0, 2.0]
    assert made["diffmean_x__g"].tolist() == [-1.0, 1.0]
    assert made["zmean_x__g"].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_parameters_changed_in_place_count():
    frame = pd.DataFrame({"g": [1, 1, 1], "x": [1.0, 2.0, 6.0]})
    feature = DeviationFromGroup("x", by="g").set_params(stat="median", how="ratio")
    assert feature.fit_transform(frame)["ratiomedian_x__g"].tolist() == [0.5, 1.0, 3.0]


@pytest.mark.parametrize("options", [{"how": "log"}, {"stat": "max"}, {"over": "all"}, {"scope": "all"}])
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="DeviationFromGroup"):
        DeviationFromGroup("x", by="g", **options)
