import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core.device import resolve_device
from fastrec.errors import DataError
from fastrec.losses import BCE, BPR, InBatchSoftmax, ListwiseSoftmax
from fastrec.losses.lists import PairScores

makers = torch.tensor, torch.arange, torch.zeros, torch.ones, torch.randn, torch.rand
tensor, arange, zeros, ones, randn, rand = (partial(make, device=resolve_device()) for make in makers)
floats = st.floats(-8, 8, width=32)


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


def loop_pairs(scores, targets, groups):
    """Each row's sum over the rows of its list that are less relevant, and how many pairs there are."""
    shares, pairs = [0.0] * len(scores), 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if groups[i] == groups[j] and targets[i] > targets[j]:
                shares[i] += math.log(1 + math.exp(scores[j] - scores[i]))
                pairs += 1
    return shares, pairs


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(floats, st.integers(0, 1), st.floats(0.25, 4)), min_size=1, max_size=12),
    smoothing=st.sampled_from([0.0, 0.1]),
    column=st.booleans(),
    weighted=st.booleans(),
    dtype=st.sampled_from([torch.bool, torch.int8, torch.int64, torch.float32, torch.float64]),
)
def test_bce_equals_a_loop(rows, smoothing, column, weighted, dtype):
    scores, targets, weights = map(list, zip(*rows, strict=True))
    shape = (-1, 1) if column else (-1,)
    s, y = tensor(scores, dtype=torch.double).view(shape), tensor(targets, dtype=dtype).view(shape)
    w = [tensor(weights, dtype=torch.double).view(shape)] if weighted else []
    smoothed, p = np.array(targets) * (1 - smoothing) + smoothing / 2, 1 / (1 + np.exp(-np.array(scores)))
    wanted = -(smoothed * np.log(p) + (1 - smoothed) * np.log(1 - p)) * (weights if weighted else 1.0)
    total = sum(weights) if weighted else len(rows)
    assert BCE(smoothing=smoothing, reduction="none")(s, y, *w).tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert BCE(smoothing=smoothing, reduction="sum")(s, y, *w).item() == pytest.approx(sum(wanted), rel=1e-6)
    assert BCE(smoothing=smoothing)(s, y, *w).item() == pytest.approx(sum(wanted) / total, rel=1e-6)
    assert BCE()(s.float(), y).dtype == torch.float32


def test_bce_decides_at_one_half_and_sure_scores_have_finite_losses():
    p = BCE().activation(tensor([[-1.0], [0.0], [3.0]]))
    assert p.shape == (3, 1)
    assert BCE().decodes(p).tolist() == [0, 1, 1]
    assert BCE()(tensor([1e4, -1e4]), tensor([0, 1])).item() == pytest.approx(1e4)
    assert BPR()(tensor([-1e4, 1e4]), tensor([1, 0]), zeros(2)).item() == pytest.approx(2e4)


@pytest.mark.parametrize(("kind", "loop"), [(ListwiseSoftmax, loop_listwise), (BPR, loop_pairs)])
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(floats, st.integers(0, 2), st.integers(-3, 4)), min_size=1, max_size=15))
def test_losses_of_lists_equal_a_loop(kind, loop, rows):
    scores, targets, groups = map(list, zip(*rows, strict=True))
    s, y, g = tensor(scores, dtype=torch.double), tensor(targets), tensor(groups)
    shares, parts = loop(scores, targets, groups)
    assert kind(reduction="none")(s, y, g).tolist() == pytest.approx(shares, rel=1e-6, abs=1e-9)
    assert kind(reduction="sum")(s, y, g).item() == pytest.approx(sum(shares), rel=1e-6, abs=1e-9)
    wanted = pytest.approx(sum(shares) / max(parts, 1), rel=1e-6, abs=1e-9)
    assert kind()(s[:, None], y[:, None], g[:, None]).item() == wanted
    assert kind()(s, torch.stack([y, g], 1)).item() == wanted


@pytest.mark.parametrize(
    ("kind", "scores", "targets", "groups", "wanted", "gradient"),
    [  # stable and moved by no constant; masked candidates; no positive at all
        (ListwiseSoftmax, [1e4, 1e4 + 2, -1e4, -1e4 - 2], [1, 0, 0, 1], [0, 0, 1, 1], math.log(1 + math.e**2), None),
        (ListwiseSoftmax, [0.0, -math.inf, 0.0], [1, 0, 0], [0, 0, 0], math.log(2), [-0.5, 0, 0.5]),
        (ListwiseSoftmax, [0.5, -1.0, 2.0, 0.0], [0, 0, 0, 0], [0, 0, 1, 1], 0, [0, 0, 0, 0]),
        (BPR, [0.0, -math.inf, 2.0], [1, 0, 0], [0, 0, 0], math.log1p(math.exp(2.0)) / 2, None),
        (BPR, [0.0, -math.inf, 2.0], [0, 0, 0], [0, 0, 0], 0, [0, 0, 0]),
    ],
)
def test_lists_have_finite_losses_and_gradients(kind, scores, targets, groups, wanted, gradient):
    s = tensor(scores, requires_grad=True)
    loss = kind()(s, tensor(targets), tensor(groups))
    loss.backward()
    assert loss.item() == pytest.approx(wanted, rel=1e-4)
    assert s.grad.isfinite().all()
    assert gradient is None or s.grad.tolist() == pytest.approx(gradient)


# ---- the items of a batch


def loop_in_batch(matrix, weights, ids, log_q):
    losses = []
    for i in range(len(matrix)):
        row = [s - (log_q[ids[j]] if log_q else 0.0) for j, s in enumerate(matrix[i])]
        rivals = [math.exp(row[j]) for j in range(len(row)) if j == i or ids[j] != ids[i]]
        losses.append(-weights[i] * math.log(math.exp(row[i]) / sum(rivals)))
    return losses


@settings(max_examples=60, deadline=None)
@given(data=st.data(), b=st.integers(1, 6), corrected=st.booleans())
def test_in_batch_softmax_equals_a_loop(data, b, corrected):
    matrix = data.draw(st.lists(st.lists(floats, min_size=b, max_size=b), min_size=b, max_size=b))
    ids = data.draw(st.lists(st.integers(0, 3), min_size=b, max_size=b))
    weights = data.draw(st.lists(st.integers(0, 2), min_size=b, max_size=b))
    log_q = [math.log(q) for q in (0.4, 0.3, 0.2, 0.1)] if corrected else None
    q = None if log_q is None else tensor(log_q, dtype=torch.double)
    m, y, i = tensor(matrix, dtype=torch.double), tensor(weights), tensor(ids, dtype=torch.int32)
    wanted = loop_in_batch(matrix, weights, ids, log_q)
    assert InBatchSoftmax(q, reduction="none")(m, y, i).tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert InBatchSoftmax(q, reduction="sum")(m, y, i).item() == pytest.approx(sum(wanted), rel=1e-6, abs=1e-9)
    mean = sum(wanted) / (sum(weights) or 1)
    assert InBatchSoftmax(q)(m, y[:, None], i).item() == pytest.approx(mean, rel=1e-6, abs=1e-9)
    alone = loop_in_batch(matrix, [1] * b, range(b), None)
    assert InBatchSoftmax()(m).item() == pytest.approx(sum(alone) / b, rel=1e-6, abs=1e-9)


def test_pair_scores_know_their_vectors_and_are_plain_afterwards():
    torch.manual_seed(0)
    queries, items = randn(4, 3, requires_grad=True), randn(4, 3, requires_grad=True)
    scores = PairScores.of(queries, items, tensor([1, 2, 1, 0]))
    assert isinstance(scores, PairScores)
    assert torch.allclose(scores[:, 0], (queries @ items.T).diagonal())
    wanted = InBatchSoftmax()(queries @ items.T, ones(4), tensor([1, 2, 1, 0]))
    found = InBatchSoftmax()(scores, ones(4))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    found.backward()
    assert queries.grad.abs().sum() > 0
    assert items.grad.abs().sum() > 0
    assert scores.float() is scores  # what mixed precision does to predictions
    for other in (scores * 1, scores.detach(), torch.cat([scores, scores])):
        assert type(other) is torch.Tensor
        with pytest.raises(DataError, match="do not compare every row"):
            InBatchSoftmax()(other)
    scores.sum().backward()


def test_in_batch_scores_are_exact_under_autocast():
    torch.manual_seed(0)
    queries, items = randn(64, 8) * 5, randn(64, 8)
    wanted = InBatchSoftmax()(queries.bfloat16().float() @ items.bfloat16().float().T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = InBatchSoftmax()(PairScores.of(queries.bfloat16(), items.bfloat16()))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


# ---- all losses


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_are_right(reduction):
    torch.manual_seed(0)
    s, m = (randn(n, dtype=torch.double, requires_grad=True) for n in ((9,), (5, 5)))
    y, g = tensor([1, 0, 0, 1, 1, 0, 0, 0, 2]), tensor([5, 5, 2, 2, 2, 9, 9, 5, 7])
    w, ids = tensor([1, 0, 2, 1, 1]), tensor([0, 1, 0, 2, 1])
    q = tensor([0.5, 0.3, 0.2], dtype=torch.double).log()
    for of_lists in (kind(reduction=reduction) for kind in (ListwiseSoftmax, BPR)):
        assert torch.autograd.gradcheck(lambda x, f=of_lists: f(x, y, g), (s,))
    row_weights = rand(9, dtype=torch.double) + 0.1
    bce = BCE(smoothing=0.1, reduction=reduction)
    assert torch.autograd.gradcheck(lambda x: bce(x, (y > 0), row_weights), (s,))
    in_batch = InBatchSoftmax(q, reduction=reduction)
    assert torch.autograd.gradcheck(lambda x: in_batch(x, w, ids), (m,))


@pytest.mark.parametrize("loss", [BCE(), ListwiseSoftmax(), BPR()])
def test_half_precision_scores_are_summed_in_float32(loss):
    s, y = randn(4000).half(), arange(4000) % 2
    lists = () if isinstance(loss, BCE) else (arange(4000) // (4000 if isinstance(loss, ListwiseSoftmax) else 40),)
    found = loss(s, y, *lists)
    assert found.dtype == InBatchSoftmax()(randn(5, 5).bfloat16()).dtype == torch.float32
    assert found.item() == pytest.approx(loss(s.double(), y, *lists).item(), rel=1e-4)


S = zeros(4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BCE(smoothing=1.0), "smoothing"),
        (lambda: BCE()(zeros(4, 2), S), r"scores of shape \[4, 2\]"),
        (lambda: BCE()(S, zeros(3)), "3 targets for 4 scores"),
        (lambda: ListwiseSoftmax()(S, S), "no list ids"),
        (lambda: ListwiseSoftmax()(S, zeros(4, 2)), "float32 do not hold them"),
        (lambda: ListwiseSoftmax()(S, S, zeros(5)), "5 groups for 4 scores"),
        (lambda: BPR()(zeros(4, 2), S, S), r"scores of shape \[4, 2\]"),
        (lambda: BPR()(S, zeros(3), S), "3 targets for 4 scores"),
        (lambda: BPR()(S, S), "no list ids"),
        (lambda: BPR()(S, S, zeros(5)), "5 groups for 4 scores"),
        (lambda: InBatchSoftmax()(zeros(4, 1)), r"scores of shape \[4, 1\]"),
        (lambda: InBatchSoftmax(zeros(3))(zeros(4, 4)), "log_q needs to know"),
        (lambda: InBatchSoftmax()(zeros(4, 4), ones(3)), "3 targets for 4 scores"),
        (lambda: InBatchSoftmax()(zeros(4, 4), None, ones(3)), "3 ids for 4 scores"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()


def test_losses_pickle_and_those_that_rank_leave_scores_as_they_are():
    ranking = [ListwiseSoftmax(reduction="sum"), BPR(reduction="sum"), InBatchSoftmax(zeros(3))]
    for loss in (BCE(smoothing=0.1), *ranking):
        again = pickle.loads(pickle.dumps(loss))
        assert vars(again).keys() == vars(loss).keys()
        assert (again.reduction, again.n_out) == (loss.reduction, 1)
        if loss in ranking[1:]:
            assert again.activation(tensor([3.0])).item() == 3
