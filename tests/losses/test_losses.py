from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.losses import BCE, ListwiseSoftmax

floats = st.floats(-8, 8, width=32)


def loop_bce(scores, targets, smoothing, weights):
    losses = []
    for s, y in zip(scores, targets, strict=True):
        y = y * (1 - smoothing) + smoothing / 2
        p = 1 / (1 + math.exp(-s))
        losses.append(-(y * math.log(p) + (1 - y) * math.log(1 - p)))
    return [x * w for x, w in zip(losses, weights, strict=True)]


def loop_listwise(scores, targets, groups):
    shares, lists = [0.0] * len(scores), 0
    for group in set(groups):
        rows = [i for i, g in enumerate(groups) if g == group]
        positive = sum(targets[i] for i in rows)
        if not positive:
            continue
        lists += 1
        z = sum(math.exp(scores[i]) for i in rows)
        for i in rows:
            shares[i] = -targets[i] / positive * math.log(math.exp(scores[i]) / z)
    return shares, lists


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(floats, st.integers(0, 1), st.floats(0.25, 4)), min_size=1, max_size=12),
    smoothing=st.sampled_from([0.0, 0.1]),
    column=st.booleans(),
    weighted=st.booleans(),
)
def test_bce_equals_a_loop(rows, smoothing, column, weighted):
    scores, targets, weights = map(list, zip(*rows, strict=True))
    shape = (-1, 1) if column else (-1,)
    s, y = torch.tensor(scores, dtype=torch.double).view(shape), torch.tensor(targets, dtype=torch.int8).view(shape)
    w = [torch.tensor(weights, dtype=torch.double).view(shape)] if weighted else []
    wanted = loop_bce(scores, targets, smoothing, weights if weighted else [1.0] * len(rows))
    total = sum(weights) if weighted else len(rows)
    assert BCE(smoothing=smoothing, reduction="none")(s, y, *w).tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert BCE(smoothing=smoothing, reduction="sum")(s, y, *w).item() == pytest.approx(sum(wanted), rel=1e-6)
    assert BCE(smoothing=smoothing)(s, y, *w).item() == pytest.approx(sum(wanted) / total, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float32, torch.float64])
def test_bce_takes_targets_of_any_dtype(dtype):
    loss = BCE()(torch.tensor([[0.0], [0.0]]), torch.tensor([1, 0]).to(dtype))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(2))


def test_bce_is_finite_for_sure_scores():
    assert BCE()(torch.tensor([1e4, -1e4]), torch.tensor([0, 1])).item() == pytest.approx(1e4)


def test_bce_decides_at_one_half():
    loss = BCE()
    p = loss.activation(torch.tensor([[-1.0], [0.0], [3.0]]))
    assert p.shape == (3, 1)
    assert loss.decodes(p).tolist() == [0, 1, 1]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(floats, st.integers(0, 2), st.integers(-3, 4)), min_size=1, max_size=15))
def test_listwise_equals_a_loop(rows):
    scores, targets, groups = map(list, zip(*rows, strict=True))
    s, y, g = torch.tensor(scores, dtype=torch.double), torch.tensor(targets), torch.tensor(groups)
    shares, lists = loop_listwise(scores, targets, groups)
    assert ListwiseSoftmax(reduction="none")(s, y, g).tolist() == pytest.approx(shares, rel=1e-6, abs=1e-9)
    assert ListwiseSoftmax(reduction="sum")(s, y, g).item() == pytest.approx(sum(shares), rel=1e-6, abs=1e-9)
    mean = ListwiseSoftmax()
    wanted = sum(shares) / max(lists, 1)
    assert mean(s[:, None], y[:, None], g[:, None]).item() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert mean(s, torch.stack([y, g], 1)).item() == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_gradients_are_right():
    torch.manual_seed(0)
    s = torch.randn(9, dtype=torch.double, requires_grad=True)
    y = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 2])
    g = torch.tensor([5, 5, 2, 2, 2, 9, 9, 5, 7])
    w = torch.rand(9, dtype=torch.double) + 0.1
    for reduction in ("mean", "sum", "none"):
        assert torch.autograd.gradcheck(lambda x, r=reduction: ListwiseSoftmax(reduction=r)(x, y, g), (s,))
        assert torch.autograd.gradcheck(lambda x, r=reduction: BCE(smoothing=0.1, reduction=r)(x, (y > 0), w), (s,))


def test_listwise_is_stable_and_moved_by_no_constant():
    y, g = torch.tensor([1, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
    s = torch.tensor([1e4, 1e4 + 2, -1e4, -1e4 - 2], requires_grad=True)
    loss = ListwiseSoftmax()(s, y, g)
    loss.backward()
    assert loss.item() == pytest.approx(2 + math.log1p(math.exp(-2)), rel=1e-4)
    assert s.grad.isfinite().all()


def test_listwise_lets_masked_candidates_be():
    s = torch.tensor([0.0, float("-inf"), 0.0], requires_grad=True)
    loss = ListwiseSoftmax()(s, torch.tensor([1, 0, 0]), torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert s.grad.tolist() == pytest.approx([-0.5, 0, 0.5])


def test_listwise_without_any_positive_is_zero_with_zero_gradient():
    s = torch.randn(4, requires_grad=True)
    loss = ListwiseSoftmax()(s, torch.zeros(4), torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.item() == 0
    assert s.grad.tolist() == [0, 0, 0, 0]


def test_half_precision_scores_are_summed_in_float32():
    s = torch.randn(4000).half()
    for loss, args in [(BCE(), ()), (ListwiseSoftmax(), (torch.zeros(4000, dtype=torch.long),))]:
        out = loss(s, torch.ones(4000), *args)
        assert out.dtype == torch.float32
        assert out.item() == pytest.approx(loss(s.double(), torch.ones(4000), *args).item(), rel=1e-4)


def test_bad_input_is_refused():
    s = torch.zeros(4)
    for call, words in [
        (lambda: BCE(smoothing=1.0), "smoothing"),
        (lambda: BCE()(torch.zeros(4, 2), s), r"scores of shape \[4, 2\]"),
        (lambda: BCE()(s, torch.zeros(3)), "3 targets for 4 scores"),
        (lambda: ListwiseSoftmax()(s, s), "no list ids"),
        (lambda: ListwiseSoftmax()(s, torch.zeros(4, 2)), "float32 do not hold them"),
        (lambda: ListwiseSoftmax()(s, s, torch.zeros(5)), "5 groups for 4 scores"),
    ]:
        with pytest.raises(DataError, match=words):
            call()


def test_losses_pickle():
    for loss in (BCE(smoothing=0.1), ListwiseSoftmax(reduction="sum")):
        assert vars(pickle.loads(pickle.dumps(loss))).keys() == vars(loss).keys()
