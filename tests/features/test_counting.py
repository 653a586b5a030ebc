"""How far a set of features has come: every step once, in one thread or several."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.features import CountEncode, FeatureSet, TargetEncode
from fastrec.features._engine import chain as counting
from fastrec.features._engine.chain import counted, step_by_step


@given(units=st.integers(0, 50), steps=st.integers(0, 9), done=st.integers(0, 12))
def test_shares_add_up_whatever_number_of_steps_there_is(units, steps, done):
    told: list[int] = []
    with step_by_step(told.append, units, steps):
        work = counted(lambda: None)
        for i in range(done):
            work()
            assert sum(told) == (units * min(i + 1, steps) // steps if steps else 0)
    assert sum(told) == units
    assert all(t >= 0 for t in told)


@pytest.mark.parametrize(("rows", "threads"), [(300, 1), (60_000, 2)])
def test_each_generator_of_a_set_is_counted(rows, threads):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 9, rows), "b": rng.integers(0, 5, rows), "y": rng.integers(0, 2, rows)})
    features = FeatureSet([CountEncode("a"), CountEncode("b"), TargetEncode("a", "y")])
    before = torch.get_num_threads()
    told: list[int] = []
    try:
        torch.set_num_threads(threads)
        with step_by_step(told.append, 60, 6):
            features.fit_transform(frame)
            assert sum(told) == 30
            features.transform(frame)
            assert told == [10] * 6
    finally:
        torch.set_num_threads(before)
    assert told == [*[10] * 6, 0]


def test_an_error_leaves_no_listener_and_without_one_nothing_is_wrapped():
    def failing() -> None:
        with step_by_step(lambda units: None, 1, 1):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        failing()
    assert counting._listeners == []
    assert counted(failing) is failing
