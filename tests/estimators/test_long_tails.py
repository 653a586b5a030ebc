"""Numbers with long tails: which they are, and what a net of their logarithms learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.estimators import Estimator, NetModel
from fastrec.estimators.wrapped import long_tails
from fastrec.table import Table
from fastrec.validate import Rows

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf])


def by_sorting(values):
    """The rule in plain words, over a sorted list."""
    found = sorted(v for v in values if np.isfinite(v))
    if len(set(found)) < 5:
        return False
    low, middle, high = (found[round(q * (len(found) - 1))] for q in (0.25, 0.5, 0.75))
    return max(found[-1] - middle, middle - found[0]) > 8 * (high - low)


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_against_a_sorted_list(values):
    assert long_tails(Table({"v": np.array(values)}), ["v"]) == (["v"] if by_sorting(values) else [])


@pytest.mark.parametrize(("last", "found"), [(36.0, []), (36.1, ["v"]), (-28.1, ["v"]), (-28.0, [])])
def test_a_tail_is_eight_distances_of_the_quartiles_long(last, found):
    values = [*range(8), last] if last > 0 else [*range(1, 9), last]  # quartiles 2, 4, 6
    assert long_tails(Table({"v": np.array(values, dtype=np.float64)}), ["v"]) == found


def test_counts_and_amounts_have_long_tails_and_other_numbers_have_none():
    rng = np.random.default_rng(0)
    table = Table(
        {
            "counts": rng.poisson(np.exp(rng.normal(size=2_000) * 1.5 - 2)).astype(np.float64),
            "amounts": -np.exp(rng.normal(size=2_000) * 2),
            "even": rng.random(2_000),
            "normal": rng.normal(size=2_000),
            "flag": (rng.random(2_000) < 0.01).astype(np.float64),
        }
    )
    assert long_tails(table, table.names) == ["counts", "amounts"]
    assert long_tails(table, ["even", "amounts"]) == ["amounts"]


def rows(seed=0, *, logged=False):
    """Counts and a plain number; ``logged``: the counts by numpy as what the net is to make of them."""
    rng = np.random.default_rng(seed)
    strength = rng.normal(size=600)
    counts = rng.poisson(np.exp(strength * 1.5)).astype(np.float64)
    y = np.digitize(strength + rng.normal(size=600) * 0.3, [-0.5, 0.5])
    table = Table({"counts": np.log(counts + 1) if logged else counts, "plain": rng.random(600)})
    return Rows(table, "multiclass", cats=[], conts=table.names, label=torch.from_numpy(y), n_outputs=3)


@pytest.mark.parametrize("model", ["RealMLP", "TabularNet"])
def test_a_net_of_logarithms_is_the_net_of_columns_that_are_logarithms(model, tmp_path):
    net = NetModel("log_net", model=model, epochs=2, logs=True).fit(rows(), seed=1)
    said = net.predict(rows(2))
    assert long_tails(rows().table, ["counts", "plain"]) == ["counts"]
    wanted = NetModel("net", model=model, epochs=2).fit(rows(logged=True), seed=1).predict(rows(2, logged=True))
    torch.testing.assert_close(said, wanted, rtol=0, atol=1e-6)
    if model == "RealMLP":  # the other takes numbers by their ranks, which logarithms leave as they are
        other = NetModel("net", model=model, epochs=2).fit(rows(), seed=1).predict(rows(2))
        assert (said - other).abs().max() > 0.01
    net.save(tmp_path / "net")
    loaded = Estimator.load(tmp_path / "net")
    assert loaded.settings()["logs"] is True
    torch.testing.assert_close(loaded.predict(rows(2)), said, rtol=0, atol=1e-6)
    assert torch.equal(loaded.fresh().fit(rows(), seed=1).predict(rows(2)), said)


def test_without_long_tails_nothing_changes():
    data = rows(logged=True)
    fits = [NetModel("net", model="RealMLP", epochs=1, logs=logs).fit(data, seed=1).predict(data) for logs in (0, 1)]
    assert torch.equal(*fits)
