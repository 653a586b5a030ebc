"""Fold numbers of every form: only folds that have rows take time and memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.features import CountEncode, FeatureSet, GroupRank, TargetEncode, check_leakage
from fastrec.stacking import LinearBlend, Stack
from fastrec.table import Table
from fastrec.validate import Lists, Predictions, folds_digest

FAR = [10**9, 2**40, 2**63 - 1]


def frame(n=12):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.choice(list("xyz"), n), "g": np.arange(n) // 3, "y": rng.integers(0, 2, n)})


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0, 1, 5, *FAR]), min_size=1, max_size=12))
def test_a_fold_is_its_rows_whatever_its_number(folds):
    data = frame(len(folds))
    found = list(FeatureSet([TargetEncode("a", "y", smooth=2)]).cross_fit(data, folds))
    assert len(found) == len(set(folds))
    for k, (train, valid) in zip(sorted(set(folds)), found, strict=True):
        inside = np.array(folds) == k
        assert valid.index.tolist() == np.flatnonzero(inside).tolist()
        assert train.index.tolist() == np.flatnonzero(~inside).tolist()
        rest = data[~inside]
        prior = rest["y"].mean() if len(rest) else 0
        for key, value in zip(valid["a"], valid["te_a__y"], strict=True):
            own = rest["y"][rest["a"] == key]
            assert value == pytest.approx((own.sum() + 2 * prior) / (len(own) + 2))


@pytest.mark.parametrize("far", FAR)
def test_far_folds_in_a_column_a_generator_and_a_chain(far):
    near, data = frame(), frame()
    near["fold"], data["fold"] = np.arange(12) % 2, np.arange(12) % 2 * far
    for make in (
        lambda: [TargetEncode("a", "y", fold_column="fold")],
        lambda: [GroupRank(TargetEncode("a", "y", fold_column="fold"), by="g")],
    ):
        want, got = (FeatureSet(make(), key="g").fit_transform(d) for d in (near, data))
        pd.testing.assert_frame_equal(want.drop(columns="fold"), got.drop(columns="fold"))
        pairs = [FeatureSet(make(), key="g").cross_fit(d, "fold") for d in (near, data)]
        for one, other in zip(*pairs, strict=True):
            for want, got in zip(one, other, strict=True):
                pd.testing.assert_frame_equal(want.drop(columns="fold"), got.drop(columns="fold"))


@pytest.mark.parametrize("count", [10**6, 10**9])
def test_more_folds_than_rows_take_the_memory_of_the_rows(count):
    data = frame()
    for features in ([TargetEncode("a", "y", folds=count)], [GroupRank(TargetEncode("a", "y"), by="a")]):
        made = FeatureSet(features, folds=count).fit_transform(data)
        assert len(made) == len(data)
    # Every row is a fold of its own: its encoding is made from all others, and its smoothing from their mean.
    made = FeatureSet([TargetEncode("a", "y", smooth=2, folds=count)]).fit_transform(data)["te_a__y"]
    for i, value in enumerate(made):
        rest = data.drop(index=i)
        own = rest["y"][rest["a"] == data["a"][i]]
        assert value == pytest.approx((own.sum() + 2 * rest["y"].mean()) / (len(own) + 2))


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
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "2 folds of kind datetime"),
    ],
)
def test_what_is_no_fold_is_named(folds, problem):
    data = frame(2)
    with pytest.raises(DataError, match=problem):
        list(FeatureSet([CountEncode("a")]).cross_fit(data, folds))
    if len(folds):
        with pytest.raises(DataError, match=problem.replace("row 1", "column 'f', row 1")):
            list(FeatureSet([CountEncode("a")]).cross_fit(data.assign(f=folds), "f"))
        if list(folds) == [0, -1]:
            return  # in a stack: the row is in no fold
        with pytest.raises(DataError, match=problem.replace("row 1: ", "")):
            Few().fit(
                base(lists(2)),
                lists(2),
                torch.tensor(folds, dtype=torch.float64) if _is_plain(folds) else folds,
                lists(2),
            )


def _is_plain(folds):
    return all(isinstance(f, int | float) for f in folds)


def lists(n):
    made = Table({"x": torch.zeros(n)})
    return Lists(made, torch.arange(n) // 2, cats=[], conts=["x"], label=(torch.arange(n) % 2).double())


def base(data, folds=None):
    scores = torch.linspace(-1, 1, len(data), dtype=torch.float64)
    parts = [] if folds is None else [(folds == k).nonzero().squeeze(1) for k in torch.unique(folds)]
    made = folds_digest(parts, len(data))
    return [Predictions("m", scores, scores, folds=made), Predictions("n", -scores.sin(), -scores.sin(), folds=made)]


class Few(Stack):
    def blends(self, models, data, metric):
        return [LinearBlend(models), LinearBlend(models[:1], name="one")]


def test_a_stack_of_far_folds_is_one_of_near_ones():
    data = lists(60)
    near = data.groups % 3
    (want, scores), (got, far_scores) = (
        Few().fit(base(data, folds), data, folds, data, seed=1) for folds in (near, near * 10**9)
    )
    assert scores == far_scores
    torch.testing.assert_close(got.oof, want.oof)
    torch.testing.assert_close(got.test, want.test)
    assert len(got.models) == 3


def test_leakage_is_looked_for_in_far_folds_too():
    data = frame(60)
    found = check_leakage(FeatureSet([TargetEncode("a", "y")]), data, target="y", folds=np.arange(60) % 2 * 10**9)
    assert not found.leaks
    assert any("2 outer folds" in text for text in found.checked)
