from __future__ import annotations

import math
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import fastrec.features as ff  # noqa: E402
from fastrec.errors import DataError, DataWarning  # noqa: E402
from fastrec.features._dask.files import spilled  # noqa: E402
from tests.scale.dask_parts import assert_near, of_parts, parted  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_this_thread")


def log(n, seed=0):
    """Rows in no order of time, with ties, gaps, missing values and now and then an infinite one."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n), "x": rng.normal(size=n).round(2), "k": rng.integers(0, 9, n)})
    frame.loc[rng.random(n) < 0.15, "x"] = np.nan
    frame.loc[rng.random(n) < 0.01, "x"] = np.inf
    frame["word"] = rng.choice(["a", "b", None], n)
    frame["bought"] = rng.random(n) < 0.1
    seconds = rng.integers(0, max(n // 2, 1), n) * 1801 + (rng.random(n) < 0.2) * 400_000
    frame["t"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s")
    frame["place"], frame["w"] = rng.random(n).round(2) * 50, rng.integers(0, 3, n) / 2
    frame["y"] = np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 2, n))
    return frame


def every_one(order):
    made = [
        ff.Lag(["x", "k", "word"], order=order, n=[1, 3]),
        ff.Diff("k", order=order),
        ff.PctChange("k", order=order, n=2),
        ff.Rolling("x", ["mean", "count", "std", "min", "median"], order=order, window=[1, 4]),
        ff.Rolling("x", "sum", order=order, window=3, closed="both", min_count=0),
        ff.Ewm(["x", "k"], order=order, half_life=[0.5, 3]),
    ]
    if order is not None:
        span = {"t": 20_000.0, "place": 10.0, "id": 15.0}[order]
        made.append(ff.CumTarget(["k", "word"], "y", order=order, smooth=0))
        made.append(ff.CumTarget(["k", "word"], "y", order=order, smooth=2, half_life=span, weight="w", name="old"))
    if order in ("t", "place"):
        length, wide = ("2h", "3D") if order == "t" else ("2s", "20s")
        made += [
            ff.Lag("x", order=order, n=[1, 2], horizon=length),
            ff.Rolling("x", ["mean", "max"], order=order, window=[length, wide], closed="right", name="timed"),
            ff.Ewm(["x", "k"], order=order, half_life=[length, wide]),
            ff.TimeSince(["bought"], order=order),
            ff.TimeSince(["bought"], order=order, first=True),
            ff.TimeSince(order=order),
        ]
    return ff.FeatureSet(made)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 1_000),
    cuts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    order=st.sampled_from([None, "t", "place", "id"]),
    spills=st.booleans(),
)
def test_the_rows_get_what_they_get_in_one_table(n, seed, cuts, order, spills, tmp_path_factory):
    frame = log(n, seed)
    cuts = [min(c, n) for c in cuts]
    whole, parts = every_one(order), every_one(order)
    with warnings.catch_warnings(), spilled(tmp_path_factory.mktemp("rows")) if spills else nullcontext():
        warnings.simplefilter("error", DataWarning)  # nothing comes together on one worker
        made = parts.fit_transform(parted(frame, cuts)).compute()
    assert_near(whole.fit_transform(frame), made, whole.outputs)


def test_generators_that_read_one_another_and_history():
    def made():
        lag = ff.Lag("x", order="t")
        less = ff.Combine(ff.Rolling(lag, order="t", window=2), "-", ff.Lag(lag, order="t", n=2))
        return ff.FeatureSet([less, ff.Ewm(lag, half_life=2)])

    frame, new = log(80), log(20, seed=1)
    new["t"] += pd.Timedelta("900D")
    whole, parts = made(), made()
    wanted = whole.fit_transform(frame)
    assert_near(wanted, parts.fit_transform(parted(frame, [20, 50])).compute(), whole.outputs)
    wanted = whole.transform(new, history=frame)
    got = parts.transform(parted(new, [5]), history=parted(frame, [20, 50])).compute()
    assert_near(wanted, got, whole.outputs)


def test_old_sums_do_not_wear_down_to_nothing():
    frame = pd.DataFrame({"k": list("aababba"), "y": [1, 0, 1, 1, 0, 1, 0], "t": [0, 1, 2, 9e6, 9e6 + 1, 2e7, 3e7]})
    whole, parts = (ff.CumTarget("k", "y", order="t", smooth=0, half_life=1.0) for _ in "ab")
    made = parts.fit_transform(parted(frame, [1, 3, 5])).compute()["cumte_k__y"].tolist()
    assert made == pytest.approx(whole.fit_transform(frame).iloc[:, -1])
    assert all(map(math.isfinite, made))


def test_times_of_other_units_are_one_order_and_a_missing_one_has_a_name():
    frame = log(40)
    parts = [frame.iloc[:20].assign(t=frame["t"][:20].astype("datetime64[s]")), frame.iloc[20:]]
    made = ff.CumTarget("k", "y", order="t").fit_transform(of_parts(parts)).compute()
    assert_near(ff.CumTarget("k", "y", order="t").fit_transform(frame), made, ["cumte_k__y"])
    frame.loc[7, "t"] = pd.NaT
    with pytest.raises(DataError) as error:
        ff.CumTarget("k", "y", order="t").fit_transform(parted(frame, [20]))
    assert error.value.column == "t"


def test_what_happens_is_said(caplog):
    frame = parted(log(40), [15])
    with caplog.at_level("INFO", logger="fastrec.features"):
        made = ff.Lag("x", order="t"), ff.Lag("k"), ff.CumTarget("k", "y", order="t"), ff.GroupRank("x", by="k")
        ff.FeatureSet(made).fit_transform(frame)
    assert "rows are put in ranges of t for lag1_x, cumte_k__y" in caplog.text
    assert "each partition gets the last rows before it for lag1_k" in caplog.text
    assert "rows are shuffled by k for rank_x__k" in caplog.text
    with pytest.warns(DataWarning, match="lead1_x: made of all rows in order.*come together on one worker"):
        ff.Lag("x", order="t", n=-1).fit_transform(frame)


@pytest.mark.parametrize("order", [None, "t"])
def test_unlabeled_rows_look_back_at_one_another(order):
    def made():
        before = ff.Lag("k", order=order)
        so_far = ff.CumTarget("k", "y", order="t", smooth=1)
        known = ff.CountEncode([before], scope="all"), ff.Bucketize(before, quantiles=3, scope="all")
        return ff.FeatureSet([before, so_far, *known])

    frame = log(50)
    more, new = log(40, seed=3), log(12, seed=4)
    whole, parts = made(), made()
    wanted = whole.fit_transform(frame, unlabeled=more)
    got = parts.fit_transform(parted(frame, [8, 30]), unlabeled=parted(more, [3, 21])).compute()
    assert_near(wanted, got, whole.outputs)
    assert_near(whole.transform(new), parts.transform(parted(new, [5])).compute(), whole.outputs)
