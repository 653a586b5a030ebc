"""RobustScale against NumPy's quantiles."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import NotFittedError
from fastrec.table import load_state, save_state
from fastrec.tabular import RobustScale, TabularFrame
from fastrec.tabular.procs.registry import proc_from_state


def fitted(values) -> RobustScale:
    proc = RobustScale()
    proc.reset(["x"])
    proc.fit("x", torch.as_tensor(values, dtype=torch.float64))
    return proc


def oracle(values: np.ndarray) -> np.ndarray:
    there = values[np.isfinite(values)]
    if not len(there):
        return np.zeros(len(values))
    first, median, third = np.quantile(there, [0.25, 0.5, 0.75])
    reach = there.max() - there.min()
    scale = 1 / (third - first) if third > first else 2 / reach if reach > 0 else 0.0
    if scale == 0:
        return np.zeros(len(values))
    z = np.array([0.0 if math.isnan(v) else math.copysign(1e9, v) if math.isinf(v) else v - median for v in values])
    z = np.where(np.isfinite(values), z * scale, z)
    return z / np.sqrt(1 + (z / 3) ** 2)


number = st.sampled_from([0.0, 1.0, 1.5, -7.0, 1e9, math.nan, math.inf, -math.inf]) | st.floats(-1e6, 1e6, width=32)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(number, max_size=30))
def test_values_are_centred_scaled_and_clipped(values):
    x = np.array(values, dtype=np.float64)
    got = fitted(x).apply("x", torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, oracle(x), atol=1e-6)
    assert (np.abs(got) <= 3).all()


def test_worked_by_hand():
    proc = fitted([0.0, 1.0, 2.0, 3.0, 4.0])  # quartiles 1 and 3, median 2
    got = proc.apply("x", torch.tensor([2.0, 4.0, -4.0, math.nan], dtype=torch.float64))
    assert got.tolist() == pytest.approx([0, 1 / math.sqrt(1 + 1 / 9), -3 / math.sqrt(2), 0])
    rare = fitted([0.0] * 9 + [5.0])  # quartiles are equal: half the range is one
    assert rare.apply("x", torch.tensor([5.0], dtype=torch.float64)).item() == pytest.approx(2 / math.sqrt(1 + 4 / 9))
    same = fitted([7.0, 7.0])
    assert same.apply("x", torch.tensor([9.0, 7.0], dtype=torch.float64)).tolist() == [0, 0]
    assert same.invert("x", torch.zeros(1, dtype=torch.float64)).item() == 7


def test_in_a_frame_it_fills_what_is_missing_and_goes_back():
    df = pd.DataFrame({"x": [1.0, 5.0, np.nan, 2.0], "whole": [1, 2, 3, 100]})
    frame = TabularFrame(df, [RobustScale], cont_names=["x", "whole"])
    x = frame.x_cont.double().numpy()
    np.testing.assert_allclose(x[:, 0], oracle(df.x.to_numpy()), atol=1e-6)
    np.testing.assert_allclose(x[:, 1], oracle(df.whole.to_numpy(dtype=float)), atol=1e-6)
    back = frame.decode().items
    np.testing.assert_allclose(back.whole, df.whole, rtol=1e-4)
    np.testing.assert_allclose(back.x, [1, 5, 2, 2], rtol=1e-4)


def test_saved_and_read_back(tmp_path):
    proc = fitted([0.0, 1.0, 5.0])
    save_state(tmp_path / "p", proc.to_state())
    again = proc_from_state(load_state(tmp_path / "p"))
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)
    assert torch.equal(again.apply("x", x), proc.apply("x", x))
    with pytest.raises(NotFittedError, match="has not seen"):
        proc.apply("y", x)
