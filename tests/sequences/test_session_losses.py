"""Losses of sessions against plain torch on small cases."""

import math

import pytest
import torch
from torch.nn import functional as F

from fastrec._core import limits
from fastrec._core.device import resolve_device
from fastrec.sequences import GBCE, BPRMax, FullSoftmax, ItemTower, SampledSoftmax, SessionNet, linear_cross_entropy
from fastrec.sequences.losses import ItemDraw

DEVICE = resolve_device()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def net_of(codes: int = 12, width: int = 5, cosine: float | None = None) -> SessionNet:
    return SessionNet(ItemTower(codes, width, extra=1), cosine=cosine).double().to(DEVICE)


def case(codes: int = 12, width: int = 5):
    hidden = torch.randn(3, 4, width, dtype=torch.float64, requires_grad=True, device=DEVICE)
    target = torch.randint(0, codes, (3, 4), device=DEVICE)
    target[0, 0] = 0
    target[0, 1] = 3
    return hidden, target


@pytest.mark.parametrize("cells", [1, 40, 1 << 22])
def test_blocks_give_the_gradients_of_autograd(monkeypatch, cells):
    monkeypatch.setattr(limits, "CHUNKED_LOSS_CELLS", cells)
    monkeypatch.setattr(limits, "CHUNKED_LOSS_FEWEST", 1)
    h, w, bias, own = (torch.randn(n, dtype=torch.float64, device=DEVICE) for n in ((7, 4), (9, 4), (9,), (7,)))
    h.requires_grad_(), w.requires_grad_()
    y = torch.randint(0, 9, (7,), device=DEVICE)
    wanted = F.cross_entropy(h @ w.T + bias + F.one_hot(y, 9) * own.unsqueeze(1), y)
    expected = torch.autograd.grad(3 * wanted, (h, w))
    found = linear_cross_entropy(h, w, y, bias=bias, own=own)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(3 * found, (h, w)), expected)


def test_half_precision_is_near():
    h, w = torch.randn(50, 16, requires_grad=True, device=DEVICE), torch.randn(40, 16, device=DEVICE)
    y = torch.randint(0, 40, (50,), device=DEVICE)
    exact, near = (linear_cross_entropy(h, w, y, half=half) for half in (False, True))
    assert abs(float((exact - near).detach())) < 0.05
    a, b = (torch.autograd.grad(x, h)[0] for x in (exact, near))
    assert float((a - b).norm() / a.norm()) < 0.03


def test_no_position_and_no_gradient():
    w, none = torch.randn(4, 3, requires_grad=True, device=DEVICE), torch.zeros(0, 3, device=DEVICE)
    assert linear_cross_entropy(none, w, torch.zeros(0, dtype=torch.int64, device=DEVICE)).item() == 0
    with torch.no_grad():
        assert linear_cross_entropy(torch.randn(2, 3, device=DEVICE), w, torch.tensor([1, 2], device=DEVICE)).item() > 0


@pytest.mark.parametrize("cosine", [None, 7.0])
def test_full_softmax_is_cross_entropy_over_known_items(cosine):
    net, (hidden, target) = net_of(cosine=cosine), case()
    table = net.items.table.weight[1:12]
    rows, right = hidden[target > 0], target[target > 0]
    if cosine:
        rows, table = F.normalize(rows, dim=1), cosine * F.normalize(table, dim=1)
    torch.testing.assert_close(FullSoftmax()(hidden, target, net), F.cross_entropy(rows @ table.T, right - 1))


def test_sampled_softmax_is_cross_entropy_over_the_batch_and_drawn_items():
    net, (hidden, target) = net_of(), case()
    loss = SampledSoftmax(0, "in_batch", log_q=False)
    codes = target[target > 0].unique()
    logits = hidden[target > 0] @ net.items.table.weight[codes].T
    place = torch.searchsorted(codes, target[target > 0])
    torch.testing.assert_close(loss(hidden, target, net), F.cross_entropy(logits, place))


@pytest.mark.parametrize("sampling", ["uniform", "popularity"])
def test_log_q_makes_the_sum_over_drawn_items_that_of_all(sampling, device):
    """The mean over draws of what stands for the softmax's denominator is the denominator itself."""
    codes, positions = 30, 20
    counts = torch.arange(codes, device=device).float()
    draw = ItemDraw(codes, counts, sampling, device=device)
    size = torch.linspace(0.5, 3.0, codes, device=device)
    total = torch.zeros((), device=device)
    for _ in range(3000):
        target = torch.multinomial(counts, positions, replacement=True)
        found, place, chance = draw.among(target, 10)
        assert torch.equal(found[place], target)
        assert len(found.unique()) == len(found)
        total += (size[found] / chance).sum()
    assert float(total / 3000) == pytest.approx(float(size[1:].sum()), rel=0.02)


def test_sampled_softmax_comes_near_the_full_one_with_many_negatives():
    net, (hidden, target) = net_of(), case()
    loss = SampledSoftmax(4000)
    loss.counts = torch.ones(12, device=DEVICE)
    torch.testing.assert_close(loss(hidden, target, net), FullSoftmax()(hidden, target, net), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", [GBCE(4, calibration=0.5), BPRMax(4, decay=0.1)])
def test_losses_of_drawn_items_equal_the_papers_formulas(loss, monkeypatch):
    net, (hidden, target) = net_of(codes=12), case()
    drawn = [2, 3, 7, 7] if isinstance(loss, GBCE) else [2, 3, 7, 9]
    monkeypatch.setattr(ItemDraw, "draw", lambda self, n: torch.tensor(drawn, device=DEVICE))
    share = 4 / 11
    beta = share * (0.5 * (1 - 1 / share) + 1 / share)
    total = 0.0
    for row, right in zip(hidden[target > 0], target[target > 0].tolist(), strict=True):
        scores = (net.items.table.weight @ row).detach()
        wrong = torch.stack([scores[i] for i in drawn if i != right])
        if isinstance(loss, GBCE):
            total -= beta * math.log(torch.sigmoid(scores[right]))
            total -= sum(math.log(1 - torch.sigmoid(w)) for w in wrong)
        else:
            shares = wrong.softmax(0)
            total -= float(torch.log((shares * torch.sigmoid(scores[right] - wrong)).sum()))
            total += 0.1 * float((shares * wrong**2).sum())
    assert loss(hidden, target, net).item() == pytest.approx(total / int((target > 0).sum()))
