from __future__ import annotations

import pytest
import torch
from fastai.tabular.model import TabularModel
from torch import nn

from fastrec._core.device import on_host
from fastrec.errors import DataError
from fastrec.models import TabularNet
from tests.models.plain import DEVICE, assert_gradients, count, to_device

SIZES = [(10, 4), (7, 8), (20, 4), (5, 12)]


def batch(b=16, n_cont=3, seed=0, sizes=SIZES):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in sizes], 1) if sizes else None
    return to_device(cats, torch.randn(b, n_cont, generator=g))


def twins(sizes=SIZES, n_cont=3, out=2, layers=(16, 8), **options):
    """fastai's model and ours with its weights, the tables drawn wide so that differences would show."""
    torch.manual_seed(0)
    theirs = TabularModel(sizes, n_cont, out, list(layers), **options)
    ours = TabularNet(sizes, n_cont, out, layers, **options)
    rest = {k: v for k, v in theirs.state_dict().items() if not k.startswith("embeds.")}
    assert not ours.load_state_dict(rest, strict=False).unexpected_keys
    for i, e in enumerate(theirs.embeds):
        nn.init.normal_(e.weight)
        ours.embeds.load_table(str(i), e.weight)
    return theirs.to(DEVICE), ours.to(DEVICE)


def assert_same_training_step(theirs, ours, cats, conts):
    outs = []
    for net in (theirs, ours):
        torch.manual_seed(1)  # dropout's masks
        out = net(cats, conts)
        (out * torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)).sum().backward()
        outs.append(out)
    assert torch.allclose(*outs, rtol=1e-6, atol=1e-6)
    mine = dict(ours.named_parameters())
    for name, p in theirs.named_parameters():
        if name.startswith("embeds."):
            s = ours.embeds.slices[int(name.split(".")[1])]
            grad = ours.embeds.weights[s.group].grad[s.start : s.stop]
        else:
            grad = mine[name].grad
        assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-6), name
    theirs.eval(), ours.eval()
    assert torch.allclose(theirs(cats, conts), ours(cats, conts), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"y_range": (-1, 5)},
        {"use_bn": False},
        {"bn_final": True},
        {"bn_cont": False},
        {"lin_first": False},
        {"ps": 0.3, "embed_p": 0.2},
        {"ps": [0.1, 0.5]},
        {"act_cls": nn.GELU()},
        {"layers": ()},
    ],
    ids=str,
)
def test_same_numbers_as_fastai(options):
    assert_same_training_step(*twins(**options), *batch())


def test_same_numbers_as_fastai_with_one_kind_of_column():
    cats, conts = batch()
    theirs, ours = twins(n_cont=0, bn_cont=False)
    assert_same_training_step(theirs, ours, cats, None)
    theirs, ours = twins(sizes=[])
    assert_same_training_step(theirs, ours, torch.empty(16, 0, dtype=torch.long, device=DEVICE), conts)


def test_activations_may_be_classes_or_modules():
    for act in (nn.SiLU, nn.SiLU(), lambda: nn.LeakyReLU(0.3)):
        net = TabularNet(SIZES, 3, 1, [8], act_cls=act)
        assert any(isinstance(m, nn.SiLU | nn.LeakyReLU) for m in net.modules())


def test_parameter_count():
    net = TabularNet(SIZES, 3, 2, [16, 8])
    tables = sum(n * w for n, w in SIZES)
    width = sum(w for _, w in SIZES) + 3
    hidden = width * 16 + 2 * 16 + 16 * 8 + 2 * 8  # linear layers before a batch norm have no bias
    assert count(net) == tables + 2 * 3 + hidden + 8 * 2 + 2


def test_gradients_are_right():
    net = TabularNet([(5, 3), (4, 4)], 2, 2, [6], act_cls=nn.Softplus).eval()
    assert_gradients(net, *batch(7, 2, sizes=[(5, 3), (4, 4)]))


def test_the_share_and_scale_of_dropped_embeddings():
    net = TabularNet([(4, 8)], 1, 1, [4], embed_p=0.25, use_bn=False, bn_cont=False)
    net.embeds.load_table("0", torch.ones(4, 8))
    net.layers = nn.Sequential(nn.Sequential(nn.Identity()))
    out = net.to(DEVICE)(*to_device(torch.zeros(20_000, 1, dtype=torch.int64), torch.full((20_000, 1), 5.0)))
    kept = out[:, :8]
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert float((kept == 0).double().mean()) == pytest.approx(0.25, abs=0.005)  # sd .001
    assert (out[:, 8] == 5).all()


@pytest.mark.parametrize("width", [8, 72])
def test_ids_out_of_range_are_named(width):
    net = TabularNet([(50, width)], 0, 1, [8], cat_names=["city"], check_ids="auto" if on_host(DEVICE) else "always")
    with pytest.raises(DataError, match=r"city.*id 50"):
        net.to(DEVICE)(torch.tensor([[50]], device=DEVICE))
