"""Baselines, and estimators around others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, FastrecError, MissingColumnError, NotFittedError
from fastrec.estimators import CentredModel, ColumnRanker, ConstantModel, Estimator, NetModel, OffsetModel, XGBModel
from fastrec.estimators.wrapped import long_tails
from fastrec.table import Table
from fastrec.validate import Lists, Rows

NAN, INF = math.nan, math.inf


def lists_with(**columns) -> Lists:
    table = Table(columns)
    return Lists(table, torch.zeros(len(table), dtype=torch.int64))


def order_of(scores: torch.Tensor) -> list[int]:
    assert len(set(scores.tolist())) == len(scores)  # no ties are left
    return torch.argsort(-scores).tolist()


value = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0, INF, -INF, 1.7e308, NAN])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(value, value), max_size=15))
def test_order_of_two_columns_missing_last(rows):
    def key(i):
        return [(math.isnan(v), 0.0 if math.isnan(v) else v) for v in rows[i]]

    data = lists_with(a=np.array([r[0] for r in rows]), b=np.array([r[1] for r in rows]))
    got = ColumnRanker("rule", ["a", "b"]).fit(data).predict(data)
    assert order_of(got) == sorted(range(len(rows)), key=key)


def test_integers_and_times_keep_their_last_digits():
    big = 1 << 60
    data = lists_with(
        i=pd.Series([big + 2, big, None, big + 1], dtype="Int64"),
        t=pd.to_datetime([big + 1, None, big, big + 2], unit="ns"),
        d=[True, False, True, False],
    )
    assert order_of(ColumnRanker("rule", ["i"]).predict(data)) == [1, 3, 0, 2]
    assert order_of(ColumnRanker("rule", ["t"]).predict(data)) == [2, 0, 3, 1]
    assert order_of(ColumnRanker("rule", ["d", "t"]).predict(data)) == [3, 1, 2, 0]


def test_rows_in_and_out_of_order_and_what_cannot_be_ordered():
    assert ColumnRanker("rule", ["p"]).predict(lists_with(p=[1, 2, 3])).tolist() == [0, -1, -2]
    assert ColumnRanker("rule", ["p"]).predict(lists_with(p=[3, 1, 2])).tolist() == [-2, 0, -1]
    for column, error in (("q", MissingColumnError), ("t", FastrecError)):
        with pytest.raises(error, match=f"'{column}'"):
            ColumnRanker("rule", [column]).predict(lists_with(p=[1, 2], t=["a", "b"]))


# Numbers with long tails: which they are, and what a net of their logarithms learns.

TAIL_NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf])


def by_sorting(values):
    """The rule in plain words, over a sorted list."""
    found = np.sort([v for v in values if np.isfinite(v)])
    if len(set(found)) < 5:
        return False
    low, middle, high = (found[round(q * (len(found) - 1))] for q in (0.25, 0.5, 0.75))
    return max(found[-1] - middle, middle - found[0]) > 8 * (high - low)


@settings(max_examples=60, deadline=None)
@given(st.lists(TAIL_NUMBERS, min_size=1, max_size=40))
def test_against_a_sorted_list(values):
    assert long_tails(Table({"v": np.array(values)}), ["v"]) == (["v"] if by_sorting(values) else [])


def counted_rows(seed=0, *, logged=False):
    """Counts and a plain number; ``logged``: the counts by numpy as what the net is to make of them."""
    rng = np.random.default_rng(seed)
    strength = rng.normal(size=600)
    counts = rng.poisson(np.exp(strength * 1.5)).astype(np.float64)
    y = np.digitize(strength + rng.normal(size=600) * 0.3, [-0.5, 0.5])
    table = Table({"counts": np.log(counts + 1) if logged else counts, "plain": rng.random(600)})
    return Rows(table, "multiclass", cats=[], conts=table.names, label=torch.from_numpy(y), n_outputs=3)


@pytest.mark.parametrize("model", ["RealMLP", "TabularNet"])
def test_a_net_of_logarithms_is_the_net_of_columns_that_are_logarithms(model, tmp_path):
    net = NetModel("log_net", model=model, epochs=2, logs=True).fit(counted_rows(), seed=1)
    said = net.predict(counted_rows(2))
    assert long_tails(counted_rows().table, ["counts", "plain"]) == ["counts"]

    def plain(logged):
        bare = NetModel("net", model=model, epochs=2).fit(counted_rows(logged=logged), seed=1)
        return bare.predict(counted_rows(2, logged=logged))

    torch.testing.assert_close(said, plain(logged=True), rtol=0, atol=1e-6)
    if model == "RealMLP":  # the other takes numbers by their ranks, which logarithms leave as they are
        assert (said - plain(logged=False)).abs().max() > 0.01
    net.save(tmp_path / "net")
    loaded = Estimator.load(tmp_path / "net")
    assert loaded.settings()["logs"] is True
    torch.testing.assert_close(loaded.predict(counted_rows(2)), said, rtol=0, atol=1e-6)
    assert torch.equal(loaded.fresh().fit(counted_rows(), seed=1).predict(counted_rows(2)), said)


# ``CentredModel``: what all rows of a day share is taken off the labels that another estimator learns.

TREES = {"rounds": 20, "early_stopping_rounds": None, "eta": 0.3, "max_depth": 3}


def day_rows(seed: int = 0, n: int = 400, **more) -> Rows:
    """Rows of twenty days; every day has a shock of its own, ``far``, and a column ``when`` to learn it from."""
    rng = np.random.default_rng(seed)
    x, day = rng.normal(size=n), rng.integers(0, 20, n) + 20 * seed
    far = rng.normal(size=10_000)[day] * 3
    y = np.sign(x) + far + rng.normal(size=n) * 0.1
    table = Table({"x": x, "when": day + 0.0, "day": day, "far": far})
    return Rows(table, "regression", conts=["x", "when"], **{"label": torch.from_numpy(y), **more})


def centred(data: Rows, share: float) -> torch.Tensor:
    """The labels, by pandas; rows without a day are a day of their own, and one without weights has the whole mean."""
    frame = pd.DataFrame({"y": data.label.numpy(), "day": data.table["day"].number().numpy(), "w": 1.0})
    if data.weight is not None:
        frame["w"] = data.weight.numpy()
    sums = frame.assign(y=frame.y * frame.w).groupby(frame.day, dropna=False)[["y", "w"]].transform("sum")
    mean = np.average(frame.y, weights=frame.w)
    own = (sums.y / sums.w.where(sums.w > 0)).fillna(mean)
    return torch.from_numpy((frame.y - share * (own - mean)).to_numpy())


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_model_learns_labels_less_their_days_mean(share, weighted):
    weight = torch.arange(400) % 3 + 0.0
    train, test = day_rows(weight=weight if weighted else None), day_rows(1)
    if weighted:  # a day of day_rows that do not count
        weight[train.table["day"].number() == 4] = 0
        train = day_rows(weight=weight)
    made = CentredModel(XGBModel("trees", **TREES), "day", share=share).fit(train, seed=2)
    plain = XGBModel("trees", **TREES).fit(day_rows(label=centred(train, share), weight=train.weight), seed=2)
    assert torch.allclose(made.predict(test), plain.predict(test), atol=1e-5)
    assert made.name == "trees"
    assert made.trace.importance.keys() == plain.trace.importance.keys()


def test_rows_without_a_day_are_a_day_of_their_own_and_the_mean_of_all_labels_stays():
    day = day_rows().table["day"].number().double()
    day[::7] = torch.nan
    train = day_rows().with_table(day_rows().table.with_columns({"day": day}))
    made = CentredModel(XGBModel("trees", **TREES), "day").fit(train)
    plain = XGBModel("trees", **TREES).fit(day_rows(label=centred(train, 0.7)))
    assert torch.allclose(made.predict(day_rows(1)), plain.predict(day_rows(1)), atol=1e-5)
    made = CentredModel(ConstantModel("mean"), "day", share=1.0).fit(day_rows())
    assert torch.allclose(made.predict(day_rows(1)), train.label.mean().expand(400))


def test_targets_are_centred_one_by_one():
    one = day_rows()
    other = one.label.square()
    both = replace(one, label=torch.stack([one.label, other], 1), n_outputs=2)
    made = CentredModel(ConstantModel("mean"), "day", share=0.6)
    expected = torch.stack([made._centred(one), made._centred(replace(one, label=other))], 1)
    assert torch.allclose(made._centred(both), expected, atol=1e-12)
    assert torch.allclose(expected[:, 0], centred(one, 0.6), atol=1e-9)


# ``OffsetModel``: a column and what another estimator learns of the rest.


def test_it_is_the_column_and_the_model_of_the_rest():
    train, test = day_rows(), day_rows(1)
    made = OffsetModel(XGBModel("trees", **TREES), "far").fit(train, seed=2)
    far = train.table["far"].number()
    rest = XGBModel("trees", **TREES).fit(day_rows(label=train.label - far), seed=2)
    expected = rest.predict(test) + test.table["far"].number()
    assert torch.equal(made.predict(test), expected)
    assert made.name == "trees"
    assert made.trace.importance == rest.trace.importance
    assert float((made.predict(test) - test.label).square().mean().sqrt()) < 0.3  # the trees alone: some 3


def test_a_missing_offset_counts_as_the_mean_label():
    train = day_rows(weight=torch.arange(400) % 3 + 0.0)
    far = train.table["far"].number().clone()
    far[::5] = torch.nan
    train = train.with_table(train.table.with_columns({"far": far}))
    mean = float(np.average(train.label, weights=train.weight))
    filled = train.with_table(train.table.with_columns({"far": far.nan_to_num(mean)}))
    made, same = (OffsetModel(XGBModel("trees", **TREES), "far").fit(r) for r in (train, filled))
    assert torch.allclose(made.predict(train), same.predict(filled), atol=1e-6)


def test_what_has_no_one_offset_and_no_share_are_refused():
    with pytest.raises(DataError, match="2 targets"):
        OffsetModel(XGBModel("trees", **TREES), "far").fit(day_rows(label=torch.zeros(400, 2), n_outputs=2))
    for share in (0.0, 1.2):
        with pytest.raises(DataError, match="share"):
            CentredModel(XGBModel("trees", **TREES), "day", share=share)
    with pytest.raises(NotFittedError):
        OffsetModel(XGBModel("trees", **TREES), "far").predict(day_rows())
