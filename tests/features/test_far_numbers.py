"""Numbers far from 0, in one part and in several: what is learned has the digits of numbers near 0."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fastrec.features as ff
from tests.features.frames import learned, pieces


def far(n=3000):
    """Numbers around 0, and the same around 1e8: every mean is 1e8 more, and every deviation the same."""
    rng = np.random.default_rng(5)
    near = np.round(rng.normal(0, 1, n) * 2**20) / 2**20  # so that adding 1e8 loses nothing
    near[rng.random(n) < 0.05] = np.nan
    frame = pd.DataFrame({"id": range(n), "g": rng.choice(["a", "b", "c"], n), "t": rng.permutation(n), "x": near})
    return frame, frame.assign(x=near + 1e8)


FAR = {
    "GroupStats": lambda x: ff.GroupStats(x, by="g", stats=["mean", "std", "median", "q25", "skew"]),
    "GroupStats own": lambda x: ff.GroupStats(x, by="g", stats=["mean", "std", "median", "skew"], over="group"),
    "TargetEncode": lambda x: ff.TargetEncode("g", x, stats=["mean", "std"], smooth=0),
    "TargetEncode smooth": lambda x: ff.TargetEncode("g", x, smooth=7.5),
    "Rolling": lambda x: ff.Rolling(x, ["mean", "std", "median"], by="g", order="t", window=[3, 400]),
    "Rolling of time": lambda x: ff.Rolling(x, ["mean", "std"], by="g", order="t", window="700s"),
    "Normalize": lambda x: ff.Normalize(x),
    "CumTarget": lambda x: ff.CumTarget("g", x, order="t", smooth=3),
    "CumTarget decaying": lambda x: ff.CumTarget("g", x, order="t", smooth=3, half_life=500.0),
    "Ewm": lambda x: ff.Ewm(x, half_life=[2, "90s"], by="g", order="t"),
    "DeviationFromGroup": lambda x: ff.DeviationFromGroup(x, by="g", how="diff"),
    "DeviationFromGroup z": lambda x: ff.DeviationFromGroup(x, by="g", how="z"),
    "DeviationFromGroup train": lambda x: ff.DeviationFromGroup(x, by="g", how="z", over="train", stat="median"),
    "CumStat": lambda x: ff.CumStat(x, by="g", order="t", stats=["mean", "min"]),
    "FillMissing": lambda x: ff.FillMissing(x, "mean", add_col=False),
    "Bucketize": lambda x: ff.Bucketize(x, quantiles=8),
}
FREE = ("std", "skew", "norm", "diff", "z", "bucket")  # statistics that a constant added to all leaves as they are


@pytest.mark.parametrize("name", FAR)
def test_statistics_of_numbers_near_1e8_have_the_digits_of_those_near_0(name):
    near, there = far()
    feature = FAR[name]("x")
    for call in ("fit_transform", "transform"):
        a, b = ff.FeatureSet([feature], key="id"), ff.FeatureSet([FAR[name]("x")], key="id")
        if call == "transform":
            a.fit(near), b.fit(there)
        made = [getattr(fs, call)(frame)[feature.outputs] for fs, frame in ((a, near), (b, there))]
        first = near["t"] == 0 if call == "fit_transform" else near["t"] < 0  # CumTarget's first row knows nothing: 0
        for column in feature.outputs:
            x, y = (m[column].astype("float64").to_numpy() for m in made)
            moved = any(w in column for w in FREE)
            y = y if moved else np.where(first.to_numpy() & (y == 0), y, y - 1e8)
            # 1e8 + x has 2^-26 of x's digits; a one-pass deviation has none.
            assert y == pytest.approx(x, abs=2e-7, rel=2e-6, nan_ok=True), column


@pytest.mark.parametrize("parts", [2, 7, 64])
def test_deviations_near_1e8_survive_partitions(parts):
    near, there = far(700)
    make = [
        lambda: ff.TargetEncode("g", "x", stats=["mean", "std"], smooth=2),
        lambda: ff.GroupStats("x", by="g", stats=["mean", "std", "skew"]),
    ]
    for maker in make:
        a, b = maker().fit(near), learned(maker(), pieces(there, parts))
        x, y = a.transform(near)[a.outputs], b.transform(there)[b.outputs]
        x[[n for n in x if "mean" in n or n == "te_g__x"]] += 1e8
        assert y.to_numpy() == pytest.approx(x.to_numpy(), rel=1e-7, abs=2e-7)
        assert x.filter(like="std").nunique().tolist() == [3]
