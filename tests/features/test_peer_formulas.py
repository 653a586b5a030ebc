"""Formulas of other libraries where they say the same, computed live by scikit-learn or written out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fastrec.features import TargetEncode


def frame(seed=0, n=300):
    rng = np.random.default_rng(seed)
    keys = rng.choice(list("abcdefgh"), n, p=np.arange(1, 9) / 36)
    return pd.DataFrame({"k": keys, "y": rng.normal(size=n) + (keys == "h")})


@pytest.mark.parametrize("seed", range(5))
def test_scikit_learns_own_smoothing_is_ours_with_its_weight(seed):
    """Empirical Bayes: the prior weighs the key's variance over the target's, as many rows (TargetEncoder, 'auto')."""
    from sklearn.preprocessing import TargetEncoder

    data = frame(seed)
    theirs = TargetEncoder(smooth="auto", target_type="continuous").fit(data[["k"]], data["y"])
    for key, want in zip(theirs.categories_[0], theirs.encodings_[0], strict=True):
        own = data["y"][data["k"] == key]
        weight = float(own.var(ddof=0) / data["y"].var(ddof=0))
        made = TargetEncode("k", "y", smooth=weight).fit(data).transform(pd.DataFrame({"k": [key]}))
        assert made["te_k__y"][0] == pytest.approx(want, rel=1e-9)


def test_leave_one_out_is_a_fold_for_every_row():
    """(sum - own) / (count - 1), the encoding of leave-one-out encoders, where a key has other rows."""
    data = frame(n=60).assign(row=range(60))
    made = TargetEncode("k", "y", smooth=0, fold_column="row").fit_transform(data)["te_k__y"]
    total, count = (data.groupby("k")["y"].transform(how) for how in ("sum", "count"))
    others = count > 1
    assert others.sum() > 50
    expected = (total - data["y"]) / (count - 1).clip(lower=1)
    np.testing.assert_allclose(made[others], expected[others], rtol=1e-9)
    for i in data.index[~others]:  # without other rows of its key: the mean of the others
        assert made[i] == pytest.approx(data["y"].drop(index=i).mean())
    # By hand: of x's 1, 2, 6 each sees the mean of the other two.
    small = pd.DataFrame({"k": list("xxxy"), "y": [1.0, 2.0, 6.0, 5.0], "row": range(4)})
    made = TargetEncode("k", "y", smooth=0, fold_column="row").fit_transform(small)["te_k__y"]
    assert made.tolist() == pytest.approx([4, 3.5, 1.5, 3])
