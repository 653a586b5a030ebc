"""``ShiftedBlend``: the ridge's weights, and the constant that is the best by the metric."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.estimators import Estimator
from fastrec.metrics import Metric
from fastrec.stacking import RidgeBlend, ShiftedBlend
from fastrec.stacking.row_inputs import by_row
from fastrec.table import Table
from fastrec.validate import Rows


def _rmspe_of_logs(y, p, *, groups=None, weight=None):
    return float(((1 - (p - y).exp()).square()).mean().sqrt())


RMSPE = Metric("rmspe of logs", _rmspe_of_logs, False, "values", ("regression",))


def level_two(seed: int = 0, n: int = 2000) -> Rows:
    rng = np.random.default_rng(seed)
    mean = rng.normal(8, 1, n)
    label = torch.from_numpy(mean + rng.normal(0, 0.3, n))
    base = {m: torch.from_numpy(mean + rng.normal(0, 0.1, n)) for m in "ab"}
    return by_row(base, Rows(Table({"x": mean}), "regression", conts=["x"], label=label))


@pytest.mark.parametrize("metric", [RMSPE, "mae", "mape"])
def test_no_other_constant_scores_better(metric):
    from fastrec.metrics import get_metric

    data = level_two()
    made = ShiftedBlend(["a", "b"], metric=metric).fit(data)
    ridge = RidgeBlend(["a", "b"]).fit(data)
    assert torch.equal(made.weights, ridge.weights)
    score = get_metric(metric)
    best = min(score(data.label, ridge.predict(data) + c) for c in np.linspace(-0.4, 0.4, 2001))
    assert score(data.label, made.predict(data)) <= best + 1e-6
    assert score(data.label, made.predict(data)) <= score(data.label, ridge.predict(data))


def test_of_logs_the_percentage_error_is_least_below_the_mean():
    data = level_two(n=50_000)
    shift = float(ShiftedBlend(["a", "b"], metric=RMSPE).fit(data).constant - RidgeBlend(["a", "b"]).fit(data).constant)
    assert shift == pytest.approx(-1.5 * 0.3**2, abs=0.02)  # of a normal error of .3: E[1/y] / E[1/y²]


def test_squared_error_needs_no_shift():
    data = level_two()
    made, ridge = ShiftedBlend(["a", "b"], metric="rmse").fit(data), RidgeBlend(["a", "b"]).fit(data)
    assert torch.allclose(made.constant, ridge.constant, atol=1e-4)


def test_it_predicts_the_same_once_loaded(tmp_path):
    data = level_two()
    made = ShiftedBlend(["a", "b"], metric=RMSPE).fit(data)
    made.save(tmp_path / "blend")
    assert torch.equal(Estimator.load(tmp_path / "blend").predict(data), made.predict(data))
    assert made.settings()["metric"] is None  # one of one's own is not kept
    assert ShiftedBlend(["a"], metric="mae").settings()["metric"] == "mae"
