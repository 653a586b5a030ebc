"""``CentredModel``: what all rows of a day share is taken off the labels that another estimator learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import CentredModel, ConstantModel, Estimator, OffsetModel, XGBModel
from fastrec.table import Table
from fastrec.validate import Rows

TREES = {"rounds": 20, "early_stopping_rounds": None, "eta": 0.3, "max_depth": 3}


def rows(seed: int = 0, n: int = 400, **more) -> Rows:
    """Rows of twenty days; every day has a shock of its own, and a column ``when`` to learn it from."""
    rng = np.random.default_rng(seed)
    x, day = rng.normal(size=n), rng.integers(0, 20, n) + 20 * seed
    y = np.sign(x) + rng.normal(size=10_000)[day] * 3 + rng.normal(size=n) * 0.1
    table = Table({"x": x, "when": day + 0.0, "day": day})
    return Rows(table, "regression", conts=["x", "when"], **{"label": torch.from_numpy(y), **more})


def centred(data: Rows, share: float) -> torch.Tensor:
    """The labels of a plain loop."""
    label, day = data.label.tolist(), data.table["day"].number().tolist()
    weight = [1.0] * len(label) if data.weight is None else data.weight.tolist()
    mean = np.average(label, weights=weight)
    made = []
    for y, d in zip(label, day, strict=True):
        same = [(v, w) for v, w, e in zip(label, weight, day, strict=True) if e == d or (np.isnan(d) and np.isnan(e))]
        total = sum(w for _, w in same)
        own = sum(v * w for v, w in same) / total if total else mean
        made.append(y - share * (own - mean))
    return torch.tensor(made, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_model_learns_labels_less_their_days_mean(share, weighted, tmp_path):
    weight = torch.arange(400) % 3 + 0.0
    train, test = rows(weight=weight if weighted else None), rows(1)
    if weighted:  # a day of rows that do not count
        weight[train.table["day"].number() == 4] = 0
        train = rows(weight=weight)
    made = CentredModel(XGBModel("trees", **TREES), "day", share=share).fit(train, seed=2)
    plain = XGBModel("trees", **TREES).fit(rows(label=centred(train, share), weight=train.weight), seed=2)
    assert torch.allclose(made.predict(test), plain.predict(test), atol=1e-5)
    assert made.name == "trees"
    assert made.trace.importance.keys() == plain.trace.importance.keys()
    made.save(tmp_path / "saved")
    again = Estimator.load(tmp_path / "saved")
    assert torch.equal(again.predict(test), made.predict(test))
    assert (again.column, again.share) == ("day", share)


def test_rows_without_a_day_are_a_day_of_their_own():
    day = rows().table["day"].number().double()
    day[::7] = torch.nan
    train = rows().with_table(rows().table.with_columns({"day": day}))
    made = CentredModel(XGBModel("trees", **TREES), "day").fit(train)
    plain = XGBModel("trees", **TREES).fit(rows(label=centred(train, 0.7)))
    assert torch.allclose(made.predict(rows(1)), plain.predict(rows(1)), atol=1e-5)


def test_the_mean_of_all_labels_stays():
    train = rows()
    made = CentredModel(ConstantModel("mean"), "day", share=1.0).fit(train)
    assert torch.allclose(made.predict(rows(1)), train.label.mean().expand(400))


def test_shocks_of_days_are_not_learned_from_a_column_that_tells_the_day():
    train, test = rows(n=4000), rows(n=4000)
    clean = torch.from_numpy(np.sign(test.table["x"].number().numpy()))
    bare, made = XGBModel("trees", **TREES), CentredModel(XGBModel("trees", **TREES), "day", share=1.0)
    misses = [m.fit(train).predict(test) - clean for m in (bare, made)]
    assert float(misses[1].std()) < 0.2 < 1 < float(misses[0].std())


def test_targets_are_centred_one_by_one():
    one = rows()
    other = one.label.square()
    both = replace(one, label=torch.stack([one.label, other], 1), n_outputs=2)
    made = CentredModel(ConstantModel("mean"), "day", share=0.6)
    expected = torch.stack([made._centred(one), made._centred(replace(one, label=other))], 1)
    assert torch.allclose(made._centred(both), expected, atol=1e-12)
    assert torch.allclose(expected[:, 0], centred(one, 0.6), atol=1e-9)


def test_a_copy_is_untrained_and_learns_anew():
    made = CentredModel(XGBModel("trees", **TREES), "day")
    with pytest.raises(NotFittedError):
        made.predict(rows())
    first = made.fit(rows()).predict(rows(1))
    copy = made.fresh()
    with pytest.raises(NotFittedError):
        copy.predict(rows())
    assert torch.equal(copy.fit(rows()).predict(rows(1)), first)
    assert copy.start_from(made)
    assert not copy.start_from(OffsetModel(XGBModel("trees", **TREES), "x"))


def test_what_has_no_mean_to_take_off_is_refused():
    model = CentredModel(XGBModel("trees", **TREES), "day")
    with pytest.raises(DataError, match="binary"):
        model.fit(Rows(rows().table, "binary", conts=["x"], label=torch.arange(400) % 2.0))
    with pytest.raises(DataError, match="without labels"):
        model.fit(rows(label=None))
    for share in (0.0, 1.2):
        with pytest.raises(DataError, match="share"):
            CentredModel(XGBModel("trees", **TREES), "day", share=share)
