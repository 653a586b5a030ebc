"""LogTransform against a plain loop with ``math.log``."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import MissingColumnError, NotFittedError
from fastrec.table import load_state, save_state
from fastrec.tabular import Categorify, FillMissing, LogTransform, Normalize, TabularFrame
from fastrec.tabular.procs.registry import as_procs, proc_from_state

numbers = st.none() | st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)


def fitted(values, names=None) -> LogTransform:
    proc = LogTransform(names)
    proc.reset(["x"])
    proc.fit("x", tensor(values))
    return proc


def tensor(values):
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)


def oracle(train, values):
    low = min((0.0 if v is None else v for v in train), default=0.0)
    return [math.log(max((0.0 if v is None else v) - low, 0.0) + 1.0) for v in values]


@given(st.lists(numbers, max_size=30), st.lists(numbers, max_size=30))
def test_it_follows_the_recipe(train, other):
    proc = fitted(train)
    for values in (train, other):
        np.testing.assert_allclose(proc.apply("x", tensor(values)), oracle(train, values), rtol=1e-9, atol=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_invert_gives_the_values_back(values):
    proc = fitted(values)
    np.testing.assert_allclose(proc.invert("x", proc.apply("x", tensor(values))), values, rtol=1e-9, atol=1e-6)


def test_the_smallest_training_value_is_zero_and_what_lies_below_too():
    proc = fitted([7.0, 5.0, 9.0])
    assert proc.apply("x", tensor([5.0, 4.0, -math.inf, None])).tolist() == [0, 0, 0, 0]
    assert proc.apply("x", tensor([5 + math.e - 1, math.inf])).tolist() == [pytest.approx(1), math.inf]
    assert fitted([5.0, None]).lows == {"x": 0.0}
    assert fitted([-3.0, None]).apply("x", tensor([None])).item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("values", [[], [None], [math.inf, -math.inf]])
def test_a_column_without_values_starts_at_zero(values):
    assert fitted(values).lows == {"x": 0.0}


def test_its_input_is_left_alone():
    values = tensor([None, 3.0])
    fitted([1.0]).apply("x", values)
    assert values.isnan().tolist() == [True, False]


def test_one_row_is_what_the_columns_are():
    proc = LogTransform(["a", "c"])
    proc.reset(["a", "b", "c"])
    for i, name in enumerate("abc"):
        proc.fit(name, tensor([i - 1.0, None, 4.0]))
    for row in ([None, None, 2.0], [-8.0, 3.0, 7.5]):
        want = [proc.apply(n, tensor([v])).item() for n, v in zip("abc", row, strict=True)]
        np.testing.assert_array_equal(proc.apply_row(["a", "b", "c"], tensor(row)), want)
    assert proc.apply("b", tensor([-8.0])).item() == proc.invert("b", tensor([-8.0])).item() == -8


def test_only_named_columns_and_those_must_be_there():
    assert fitted([1.0, 2.0], names="x").apply("x", tensor([2.0])).item() == pytest.approx(math.log(2))
    with pytest.raises(
        MissingColumnError, match=r"column 'y': LogTransform is to change it, but .* Add it to cont_names"
    ):
        LogTransform(["y"]).reset(["x"])
    with pytest.raises(NotFittedError, match="LogTransform has not seen column 'y'"):
        fitted([1.0]).apply("y", tensor([1.0]))


def test_state_comes_back(tmp_path):
    proc = LogTransform(["x"])
    proc.reset(["x", "z"])
    proc.fit("x", tensor([3.0, 8.0]))
    state = proc.to_state()
    assert json.loads(json.dumps(state)) == state
    save_state(tmp_path / "s", state)
    again = proc_from_state(load_state(tmp_path / "s"))
    assert type(again) is LogTransform
    assert (again.lows, again.names) == ({"x": 3.0, "z": None}, ["x"])


# ---- in a frame


def make(n=60):
    r = np.random.default_rng(0)
    x = r.exponential(50, n).round() + 2
    x[::7] = np.nan
    return {"x": x, "z": r.normal(size=n), "y": r.normal(size=n)}


@pytest.mark.parametrize("fill", [False, True])
def test_between_filling_and_normalizing(fill):
    data = make()
    procs = [Normalize, LogTransform, *([FillMissing] if fill else []), Categorify]
    assert [p.order for p in as_procs(procs)] == sorted(p.order for p in as_procs(procs))
    to = TabularFrame(data, procs, None, ["x", "z"], "y", splits=(range(40), range(40, 60)))
    for i, name in enumerate(["x", "z"]):
        raw, train = data[name], data[name][:40]
        value = np.median(train[~np.isnan(train)]) if fill else 0.0
        raw, train = (np.where(np.isnan(v), value, v) for v in (raw, train))
        logs, learnt = (np.log1p(np.maximum(v - train.min(), 0)) for v in (raw, train))
        np.testing.assert_allclose(to.x_cont[:, i], (logs - learnt.mean()) / (learnt.std() + 1e-7), atol=1e-6)
    assert list(to.cat_names) == (["x_na"] if fill else [])
    shown = to.decode().items["x"].to_numpy()
    present = ~np.isnan(data["x"])
    low = np.nanmin(data["x"][:40]) if fill else 0
    np.testing.assert_allclose(shown[present], np.maximum(data["x"][present], low), rtol=1e-4)


def test_a_test_frame_and_a_loaded_learner_use_what_was_learnt(tmp_path):
    from fastai.learner import load_learner

    from fastrec.training import rec_learner

    data = make()
    to = TabularFrame(data, [Categorify, LogTransform("x"), Normalize], None, ["x", "z"], "y")
    learn = rec_learner(to.dataloaders(bs=16, device="cpu", path=tmp_path), layers=[4])
    row = {"x": None, "z": -100.0}
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        want = learn.predict(row)[2]
        learn.export()
        again = load_learner(tmp_path / "export.pkl")
        with again.no_bar():
            assert torch.equal(again.predict(row)[2], want)
    new = to.new({"x": [1.0, -9.0, None], "z": [0.0, 0.0, 0.0]})
    new.process()
    np.testing.assert_allclose(new.decode().items["x"], [1, 0, 0], atol=1e-5)
    assert new.x_cont[1, 0] == new.x_cont[2, 0] == to.x_cont[:, 0].min()
