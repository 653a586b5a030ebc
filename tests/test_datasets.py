from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fastrec.datasets import CTRTruth, planted_ctr
from fastrec.errors import DataError, NotFittedError
from fastrec.losses import BCE
from fastrec.training import rec_learner

SIZES = (1_200_000, 3_000, 40, 3)
ROWS = 200_000


@pytest.fixture(scope="module")
def frame():
    return planted_ctr(ROWS, valid=50_000, cardinalities=SIZES, n_cont=3, seed=1)


def test_ids_are_in_range_and_small_columns_come_whole(frame):
    ids = frame.x_cat
    assert ids.dtype == torch.int32
    assert int(ids.min()) == 1  # 0 is kept for what is missing
    assert (ids.max(0).values <= torch.tensor(SIZES)).all()
    assert [ids[:, i].unique().tolist() for i in (2, 3)] == [list(range(1, 41)), [1, 2, 3]]
    assert [len(frame.classes[c]) for c in frame.cat_names] == [n + 1 for n in SIZES]
    assert frame.packed.nbytes == ROWS * 4 * (4 + 3 + 1)
    wide, narrow = (planted_ctr(9, cardinalities=[9], n_cont=1, cat_dtype=d) for d in (torch.int64, torch.int32))
    assert (wide.x_cat.dtype, wide.packed.nbytes) == (torch.int64, 9 * 4 * 4)
    assert torch.equal(wide.x_cat.int(), narrow.x_cat)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_ids_come_as_often_as_the_integral_of_the_power_law_says(exponent):
    ids = planted_ctr(ROWS, cardinalities=[3_000, 2], n_cont=0, exponent=exponent).x_cat[:, 0]
    found = np.sort(np.bincount(ids.numpy()))[::-1][:60] / ROWS
    t = 1.0 + np.arange(3_001)
    upto = np.log(t) if exponent == 1 else t ** (1 - exponent) / (1 - exponent)
    expected = np.diff(upto) / (upto[-1] - upto[0])
    assert found == pytest.approx(expected[:60], abs=4 * np.sqrt(expected[0] / ROWS))
    assert found.sum() == pytest.approx(expected[:60].sum(), rel=0.02)


def test_clicks_are_as_frequent_as_the_truth_says(frame):
    chance, y = frame.truth.logits(0, ROWS).double().sigmoid(), frame.y[:, 0].double()
    assert set(y.unique().tolist()) == {0.0, 1.0}
    assert float(chance.mean()) == pytest.approx(0.2, abs=0.005)
    for share in (chance > 0, chance < 0.1, chance > 0.5):  # in every part, not only on the whole
        n = int(share.sum())
        assert float(y[share].mean()) == pytest.approx(float(chance[share].mean()), abs=4 * 0.4 / n**0.5)


@pytest.mark.parametrize(("base_rate", "signal"), [(0.2, 1.4), (0.05, 0.7), (0.5, 2.0)])
def test_rate_and_spread_are_those_asked_for(base_rate, signal):
    logits = CTRTruth((500, 20), 2, 3, base_rate, signal, 1.1).logits(0, 100_000).double()
    assert float(logits.sigmoid().mean()) == pytest.approx(base_rate, abs=0.006)
    assert float(logits.std()) == pytest.approx(signal, rel=0.02)


def test_logits_are_the_formula_and_effects_are_by_code(frame):
    """Of rows as they lie in the frame, one by one."""
    truth = frame.truth
    scales, tables = truth._scales, [table[codes.argsort()].double() for table, codes in truth._tables]
    linear, square = truth._weights
    for row in (0, 5, 40_000, ROWS - 1):
        found = [t[int(c) - 1] for t, c in zip(tables, frame.x_cat[row], strict=True)]
        ids = sum(f[0] for f in found)
        pairs = float(found[0][1:] @ found[1][1:]) + float(found[2][1:] @ found[3][1:])
        x = frame.x_cont[row].double()
        numbers = sum(linear[j] * x[j] + square[j] * (x[j] ** 2 - 1) for j in range(3))
        logit = truth._intercept + scales["ids"] * ids + scales["pairs"] * pairs + scales["numbers"] * numbers
        assert float(truth.logits(row, row + 1)) == pytest.approx(float(logit), abs=1e-4)
    torch.testing.assert_close(truth.effects(2).double(), tables[2][:, 0] * scales["ids"])


@pytest.mark.parametrize("valid", [0, 5_000])
def test_bayes_auc_is_scikit_learns_on_the_true_logits(valid):
    frame = planted_ctr(20_000, valid=valid, cardinalities=[50, 4])
    y, logits = frame.y[-valid:, 0], frame.truth.logits(0, 20_000)[-valid:]
    assert frame.bayes_auc == pytest.approx(roc_auc_score(y, logits), abs=1e-9)


def test_the_defaults_are_like_logs_of_clicks():
    frame = planted_ctr(100_000, valid=50_000)
    assert max(frame.truth.cardinalities) >= 1_000_000
    assert float(frame.y.mean()) == pytest.approx(0.2, abs=0.05)
    assert frame.bayes_auc == pytest.approx(0.80, abs=0.015)


def test_same_seed_same_rows_whatever_their_number_and_the_threads(set_threads):
    options = {"valid": 0, "cardinalities": (5_000, 30), "n_cont": 2, "seed": 5}
    long = planted_ctr(170_000, **options)
    set_threads(3)
    short = planted_ctr(110_001, **options)
    assert torch.equal(short.packed.buffer, long.packed.buffer[:110_001])
    assert not torch.equal(short.y, planted_ctr(110_001, **{**options, "seed": 6}).y)
    again = pickle.loads(pickle.dumps(long.truth))
    assert torch.equal(again.logits(90_000, 120_000), long.truth.logits(0, 170_000)[90_000:120_000])


def test_it_is_a_frame_like_any_other_whose_parts_are_the_first_and_the_last_rows(frame):
    assert (len(frame.train), len(frame.valid)) == (150_000, 50_000)
    assert torch.equal(frame.valid.y, frame.y[150_000:])
    assert len(planted_ctr(1_000, cardinalities=[9]).valid) == 100
    with pytest.raises(NotFittedError, match="whole table"):
        _ = frame.train.bayes_auc
    shown = frame._between(0, 3).decode().items
    assert shown["c2"].tolist() == frame.x_cat[:3, 2].tolist()  # ids are their own names
    test = frame.new({**{c: [1, None] for c in frame.cat_names}, "x0": [0.5, 1.5], "x1": [0.0, 0.0], "x2": [1.0, 2.0]})
    test.process()
    assert test.x_cat.tolist() == [[1] * 4, [0] * 4]


def test_a_net_learns_towards_the_truth(tmp_path):
    torch.manual_seed(0)
    frame = planted_ctr(60_000, valid=20_000, cardinalities=(300, 50, 9), n_cont=2, seed=2)
    learn = rec_learner(frame.dataloaders(512, seed=0, path=tmp_path), layers=[32], loss_func=BCE())
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, 1e-2)
    scores, targets = learn.get_preds()
    reached = roc_auc_score(targets.flatten(), scores.flatten())
    assert 0.5 + 0.85 * (frame.bayes_auc - 0.5) < reached < frame.bayes_auc + 0.002
    learn.export("net.pkl")
    assert (tmp_path / "net.pkl").stat().st_size < 2_000_000  # neither the rows nor the truth


WRONG = {"rows": [0], "valid": [10, -1], "seed": [-1], "cardinalities": [[], [5, 1], [2**31]], "n_cont": [-1]}
WRONG |= {"base_rate": [1.0, float("nan")], "signal": [-1.0], "exponent": [0.0]}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_cannot_be_drawn_is_refused(name, value):
    with pytest.raises(DataError):
        planted_ctr(**{"rows": 10, "cardinalities": [4], name: value})


def test_without_numbers_and_without_signal():
    frame = planted_ctr(40_000, cardinalities=[30], n_cont=0, signal=0.0)
    assert frame.x_cont.shape == (40_000, 0)
    assert float(frame.truth.logits(0, 100).std()) < 1e-6
    assert float(frame.y.mean()) == pytest.approx(0.2, abs=0.01)
