"""Causal generators on Dask frames: rows in ranges of time, each with what the ranges before have collected."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fastrec.errors import DataError  # noqa: E402
from fastrec.features import CumTarget  # noqa: E402
from tests.scale.dask_parts import assert_near, of_parts  # noqa: E402
from tests.scale.dask_parts import parted as parted_at  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_this_thread")


def parted(frame, parts):
    """A Dask frame of so many partitions, the last of them without a row."""
    return parted_at(frame, [len(frame) * i // (parts - 1) for i in range(1, parts)])


def log(n, seed=0, times=50):
    """Rows in no order of time, with ties, missing keys and targets, and weights."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n), "user": rng.integers(0, 6, n), "item": rng.choice(list("abc"), n)})
    frame["item"] = frame["item"].where(rng.random(n) > 0.1)
    frame["y"] = np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 2, n))
    frame["t"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, times, n) * 1801, unit="s")
    frame["place"], frame["w"] = rng.random(n).round(2), rng.integers(0, 3, n) / 2
    return frame


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    parts=st.integers(3, 6),
    order=st.sampled_from(["t", "place", "id"]),
    smooth=st.sampled_from([0.0, 2.0]),
    decays=st.booleans(),
    weight=st.sampled_from([None, "w"]),
)
def test_every_row_sees_all_rows_before_it(seed, parts, order, smooth, decays, weight):
    frame = log(60, seed)
    half_life = {"t": 20_000.0, "place": 0.2, "id": 15.0}[order] if decays else None
    options = {"order": order, "smooth": smooth, "half_life": half_life, "weight": weight}
    ct = CumTarget(["item", "user"], "y", **options)
    alone = CumTarget(["item", "user"], "y", **options)
    made, new = ct.fit_transform(parted(frame, parts)).compute(), log(10, seed + 1)
    assert_near(alone.fit_transform(frame), made, ct.outputs)
    assert_near(alone.transform(new), ct.transform(parted(new, 3)).compute(), ct.outputs)


def test_old_sums_do_not_wear_down_to_nothing():
    frame = pd.DataFrame({"k": list("aababba"), "y": [1, 0, 1, 1, 0, 1, 0], "t": [0, 1, 2, 9e6, 9e6 + 1, 2e7, 3e7]})
    whole, parts = (CumTarget("k", "y", order="t", smooth=0, half_life=1.0) for _ in "ab")
    made = parts.fit_transform(parted(frame, 5)).compute()["cumte_k__y"].tolist()
    assert made == pytest.approx(whole.fit_transform(frame).iloc[:, -1])
    assert all(map(math.isfinite, made))


def test_times_of_other_units_are_one_order():
    frame = log(40)
    parts = [frame.iloc[:20].assign(t=frame["t"][:20].astype("datetime64[s]")), frame.iloc[20:]]
    made = CumTarget("user", "y", order="t").fit_transform(of_parts(parts)).compute()["cumte_user__y"].tolist()
    assert made == pytest.approx(CumTarget("user", "y", order="t").fit_transform(frame)["cumte_user__y"].tolist())


def test_what_comes_together_is_said_and_a_missing_time_has_a_name(caplog):
    frame = log(40)
    with caplog.at_level("INFO", logger="fastrec.features"):
        CumTarget("user", "y", order="t").fit_transform(parted(frame, 3))
    assert "rows are put in ranges of t for cumte_user__y" in caplog.text
    frame.loc[7, "t"] = pd.NaT
    with pytest.raises(DataError) as error:
        CumTarget("user", "y", order="t").fit_transform(parted(frame, 3))
    assert error.value.column == "t"
