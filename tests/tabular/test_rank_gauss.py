"""RankGauss against SciPy's normal quantiles of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from fastrec.errors import NotFittedError
from fastrec.table import load_state, save_state
from fastrec.tabular import Categorify, RankGauss, TabularFrame
from fastrec.tabular.procs.registry import proc_from_state


def fitted(values) -> RankGauss:
    proc = RankGauss()
    proc.reset(["x"])
    proc.fit("x", torch.as_tensor(values, dtype=torch.float64))
    return proc


def oracle(values: np.ndarray) -> np.ndarray:
    """Quantiles of mid-ranks, cut at 3, then mean 0 and sd 1; missing and infinite values take no part."""
    result = np.zeros(len(values))
    there = np.isfinite(values)
    if not there.any():
        return result
    quantile = norm.ppf((rankdata(values[there]) - 0.5) / there.sum()).clip(-3, 3)
    spread = quantile.std()
    result[there] = (quantile - quantile.mean()) / spread if spread > 1e-12 else 0.0
    return result


number = st.sampled_from([0.0, -0.0, 1.0, 1.5, -7.0, 1e9, -1e-300, math.nan]) | st.floats(-1e6, 1e6)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(number, max_size=40))
def test_training_values_get_the_quantiles_of_their_ranks(values):
    x = np.array(values, dtype=np.float64)
    got = fitted(x).apply("x", torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, oracle(x), atol=1e-9)


def test_many_distinct_values_are_interpolated_closely():
    rng = np.random.default_rng(0)
    x = np.exp(2 * rng.normal(size=20_000))
    got = fitted(x).apply("x", torch.from_numpy(x)).numpy()
    expected = oracle(x)
    inside = np.abs(expected) < 2.5
    np.testing.assert_allclose(got[inside], expected[inside], atol=0.02)
    assert np.abs(got - expected).max() < 0.5
    assert abs(got.mean()) < 0.01
    assert abs(got.std() - 1) < 0.01
    assert (np.diff(got[np.argsort(x)]) >= 0).all()


def test_between_training_values_linear_and_beyond_them_flat():
    proc = fitted([0.0, 10.0, 20.0])
    at = proc.apply("x", torch.tensor([-math.inf, -5, 0, 5, 10, 20, 21, math.inf, math.nan], dtype=torch.float64))
    low, mid, high = at[2], at[4], at[5]
    assert torch.equal(at[:2], low.expand(2))
    torch.testing.assert_close(at[3], (low + mid) / 2)
    assert torch.equal(at[6:8], high.expand(2))
    assert at[8] == 0
    assert mid.abs() < 1e-12
    assert torch.isclose(high, -low)


@pytest.mark.parametrize("values", [[], [math.nan, math.nan], [4.0, 4.0, math.nan], [math.inf, -math.inf]])
def test_columns_without_two_values_become_zero(values):
    got = fitted(values).apply("x", torch.tensor([4.0, 5.0, math.nan, math.inf], dtype=torch.float64))
    assert got.tolist() == [0, 0, 0, 0]


def test_a_column_that_was_not_seen_is_named():
    with pytest.raises(NotFittedError, match="'y'"):
        fitted([1.0]).apply("y", torch.zeros(1, dtype=torch.float64))


def test_state_comes_back_through_files(tmp_path):
    x = torch.tensor([3.0, 1.0, math.nan, 2.0, 2.0], dtype=torch.float64)
    proc = fitted(x)
    save_state(tmp_path / "s", proc.to_state())
    again = proc_from_state(load_state(tmp_path / "s"))
    assert type(again) is RankGauss
    assert torch.equal(again.apply("x", x), proc.apply("x", x))


def test_in_a_frame_only_training_rows_count():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    x[40:] = 1e6
    frame = TabularFrame(
        {"x": x, "y": rng.normal(size=50)},
        procs=[Categorify, RankGauss],
        cont_names=["x"],
        y_names="y",
        splits=[range(40), range(40, 50)],
    )
    got = frame.x_cont[:, 0].numpy()
    np.testing.assert_allclose(got[:40], oracle(x[:40]), atol=1e-6)
    np.testing.assert_allclose(got[40:], oracle(x[:40]).max(), atol=1e-6)
