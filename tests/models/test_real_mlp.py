"""RealMLP's layers against NumPy by hand, its first weights, and its parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fastrec.errors import DataError
from fastrec.models import RealMLP
from fastrec.models.real_mlp import PBLD, RATES, one_hot_table
from tests.models.plain import DEVICE, to_device

SIZES = [(4, 9), (3, 9), (12, 9)]  # three values and two: one-hot; eleven: embedded


def net(**options) -> RealMLP:
    torch.manual_seed(0)
    return RealMLP(SIZES, 2, 3, **{"layers": [6, 5], "frequencies": 4, **options}).to(DEVICE)


def batch(n: int = 64, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, r, (n,), generator=g) for r, _ in SIZES], 1)
    return to_device(cats, torch.randn(n, 2, generator=g))


def array(t: torch.Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


def clip(z: float) -> float:
    return z / math.sqrt(1 + (z / 3) ** 2)


@pytest.mark.parametrize("act", ["selu", "mish"])
def test_forward_is_the_formula(act):
    model = net(act=act)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape).to(DEVICE))  # nothing at 1 or 0 any more
    model.eval()
    cats, conts = batch(7)
    state, x = {n: array(p) for n, p in model.named_parameters()}, array(conts)
    # without shares all values but the missing one are as frequent: of three the median is 0 and the upper quartile
    # 1 - hence 2 / 3 of the rows have 0 - of two values it is -1, and the quartiles -1 and 1
    three, two = np.eye(4)[:, 1:] * clip(1), np.array([[clip(0.5)], [0], [clip(1)]])
    first, second, third = cats.cpu().numpy().T
    embedded = array(model.embeds.table("2"))[third]
    numbers = []
    for j in range(2):
        waves = np.cos(2 * np.pi * x[:, j : j + 1] * state["numbers.frequency"][j] + state["numbers.phase"][j])
        linear = waves @ state["numbers.weight"][j] + state["numbers.shift"][j]
        numbers.append(np.concatenate([x[:, j : j + 1], linear], 1))
    h = np.concatenate([three[first], two[second], embedded, *numbers], 1) * state["scale"]
    for linear, act_name in (("layers.0", "layers.1"), ("layers.3", "layers.4")):
        z = h @ state[f"{linear}.weight"].T / math.sqrt(h.shape[1]) + state[f"{linear}.bias"]
        a = state[f"{act_name}.alpha"]
        h = (1 - a) * z + a * getattr(F, act)(torch.tensor(z)).numpy()
    expected = h @ state["layers.6.weight"].T / math.sqrt(5) + state["layers.6.bias"]
    np.testing.assert_allclose(array(model(cats, conts)), expected, atol=1e-5)


def test_one_hot_columns_are_centred_and_scaled_by_their_shares():
    # shares .1 missing, .6, .2, .1: value 1 has median 1 and quartiles 0 and 1; the others' quartiles are 0, so that
    # they are divided by half their range
    got = one_hot_table(4, torch.tensor([0.1, 0.6, 0.2, 0.1])).numpy()
    expected = [[-1, 0, 0], [0, 0, 0], [-1, 2, 0], [-1, 0, 2]]
    np.testing.assert_allclose(got, [[clip(v) for v in row] for row in expected], atol=1e-6)
    # two values, .9 and .1: median and quartiles are -1, the range is 2
    got = one_hot_table(3, torch.tensor([0.0, 0.9, 0.1])).numpy()
    np.testing.assert_allclose(got, [[clip(1)], [0], [clip(2)]], atol=1e-6)
    assert one_hot_table(1).shape == (1, 0)
    assert one_hot_table(2, torch.tensor([0.0, 1.0])).tolist() == [[0.0], [0.0]]  # one value tells nothing


def test_cosines_start_at_random():
    torch.manual_seed(0)
    drawn = PBLD(300, 16)
    assert drawn.frequency.std().item() == pytest.approx(0.1, rel=0.1)
    assert drawn.phase.abs().max().item() <= math.pi
    assert max(drawn.weight.abs().max().item(), drawn.shift.abs().max().item()) <= 0.25
    with pytest.raises(DataError, match="cosines"):
        PBLD(1, 4, 1)


def test_the_first_training_batch_sets_the_weights():
    model, (cats, conts) = net(ps=0.0), batch(512)
    drawn = {n: p.clone() for n, p in model.named_parameters()}
    model.eval()(cats, conts)
    assert all(torch.equal(p, drawn[n]) for n, p in model.named_parameters())  # nothing in evaluation
    model.train()(cats, conts)
    first = {n: p.clone() for n, p in model.named_parameters()}
    x = array(torch.cat([model.one_hot(cats, 3), model.embeds(cats[:, 2:]), model.numbers(conts)], 1))
    for name in ("layers.0", "layers.2", "layers.4"):
        w, b = array(first[f"{name}.weight"]), array(first[f"{name}.bias"])
        out = x @ w.T / math.sqrt(x.shape[1])
        np.testing.assert_allclose(out.std(0), 1, atol=1e-4)
        assert (-b >= out.min(0)).all()  # a mean of five outputs
        assert (-b <= out.max(0)).all()
        assert np.abs(-b - out.mean(0)).mean() < 1  # their spread is less than one output's
        cosine = F.cosine_similarity(first[f"{name}.weight"], drawn[f"{name}.weight"])
        np.testing.assert_allclose(array(cosine), 1, rtol=1e-5)  # only lengths changed
        x = F.selu(torch.tensor(out + b)).numpy()
    assert torch.equal(first["numbers.weight"], drawn["numbers.weight"])
    model(*batch(512, seed=1))
    assert all(torch.equal(p, first[n]) for n, p in model.named_parameters())  # once is enough
    other = net(ps=0.0)
    other.load_state_dict(model.state_dict())
    other.train()(*batch(512, seed=2))
    assert all(torch.equal(p, first[n]) for n, p in other.named_parameters())  # loaded weights stay


@pytest.mark.parametrize("rows", [1, 3])
def test_equal_rows_and_a_single_one_leave_numbers(rows):
    model, (cats, conts) = net(), batch(1)
    model.train()(cats.expand(rows, -1), conts.expand(rows, -1))
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.eval()(*batch(9)).isfinite().all()


def test_every_parameter_is_in_the_part_that_its_rate_is_for():
    model = net(bn_cont=True)
    groups = dict(zip(RATES, RealMLP.rate_groups(model), strict=True))
    names = {id(p): n for n, p in model.named_parameters()}
    assert {part: sorted(names.pop(id(p)) for p in own) for part, own in groups.items()} == {
        "scale": ["scale"],
        "biases": ["bn_cont.bias", "layers.0.bias", "layers.3.bias", "layers.6.bias"],
        "activations": ["layers.1.alpha", "layers.4.alpha"],
        "numbers": ["numbers.frequency", "numbers.phase", "numbers.shift", "numbers.weight"],
        "weights": ["bn_cont.weight", "embeds.weights.w8", "layers.0.weight", "layers.3.weight", "layers.6.weight"],
    }
    assert not names
    assert RATES == {"weights": 1.0, "biases": 0.1, "scale": 6.0, "numbers": 0.1, "activations": 0.1}


def test_one_hot_columns_alone_make_a_net():
    model = RealMLP([(4, 1), (3, 1)], 0, 1, [4]).to(DEVICE)
    assert model.train()(torch.tensor([[0, 1], [3, 2]], device=DEVICE)).shape == (2, 1)
    assert model.embeds is None
    assert [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)] == []
    for wrong in ({"layers": []}, {"act": "relu"}):
        with pytest.raises(DataError, match="RealMLP of"):
            RealMLP([(4, 1)], 0, 1, **wrong)
    with pytest.raises(DataError, match=r"\[b, 3\]"):
        net()(batch(5)[0][:, :2], batch(5)[1])
