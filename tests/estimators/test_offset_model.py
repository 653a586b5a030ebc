"""``OffsetModel``: a column and what another estimator learns of the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import Estimator, OffsetModel, XGBModel
from fastrec.table import Table
from fastrec.validate import Rows

TREES = {"rounds": 20, "early_stopping_rounds": None, "eta": 0.3, "max_depth": 3}


def rows(seed: int = 0, n: int = 400, **more) -> Rows:
    rng = np.random.default_rng(seed)
    x, far = rng.normal(size=n), rng.normal(size=n) * 50
    y = far + np.sign(x) + rng.normal(size=n) * 0.1
    table = Table({"x": x, "far": far})
    return Rows(table, "regression", conts=["x"], **{"label": torch.from_numpy(y), **more})


def test_it_is_the_column_and_the_model_of_the_rest(tmp_path):
    train, test = rows(), rows(1)
    made = OffsetModel(XGBModel("trees", **TREES), "far").fit(train, seed=2)
    far = train.table["far"].number()
    rest = XGBModel("trees", **TREES).fit(rows(label=train.label - far), seed=2)
    expected = rest.predict(test) + test.table["far"].number()
    assert torch.equal(made.predict(test), expected)
    assert made.name == "trees"
    assert made.trace.importance == rest.trace.importance
    assert float((made.predict(test) - test.label).square().mean().sqrt()) < 0.3  # the trees alone: tens
    made.save(tmp_path / "saved")
    assert torch.equal(Estimator.load(tmp_path / "saved").predict(test), expected)


def test_a_missing_offset_counts_as_the_mean_label():
    train = rows(weight=torch.arange(400) % 3 + 0.0)
    far = train.table["far"].number().clone()
    far[::5] = torch.nan
    train = train.with_table(train.table.with_columns({"far": far}))
    mean = float(np.average(train.label, weights=train.weight))
    filled = train.with_table(train.table.with_columns({"far": far.nan_to_num(mean)}))
    made, same = (OffsetModel(XGBModel("trees", **TREES), "far").fit(r) for r in (train, filled))
    assert torch.allclose(made.predict(train), same.predict(filled), atol=1e-6)


def test_a_copy_is_untrained_and_learns_anew():
    made = OffsetModel(XGBModel("trees", **TREES), "far")
    with pytest.raises(NotFittedError):
        made.predict(rows())
    first = made.fit(rows()).predict(rows(1))
    copy = made.fresh()
    with pytest.raises(NotFittedError):
        copy.predict(rows())
    assert torch.equal(copy.fit(rows()).predict(rows(1)), first)
    assert torch.equal(made.predict(rows(1)), first)


def test_what_has_no_one_offset_is_refused():
    model = OffsetModel(XGBModel("trees", **TREES), "far")
    both = rows(label=torch.zeros(400, 2), n_outputs=2)
    with pytest.raises(DataError, match="2 targets"):
        model.fit(both)
    with pytest.raises(DataError, match="binary"):
        model.fit(Rows(rows().table, "binary", conts=["x"], label=torch.arange(400) % 2.0))
    with pytest.raises(DataError, match="without labels"):
        model.fit(rows(label=None))
