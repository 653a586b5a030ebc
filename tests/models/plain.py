"""What models compute, in plain numpy and loops over rows, from a model's own weights; and batches to compare on."""

from __future__ import annotations

import numpy as np
import torch
from fastai.layers import SigmoidRange
from torch import nn

from fastrec._core.device import on_host, resolve_device
from fastrec.table import ListBatch

DEVICE = resolve_device()
NONDET = 0.0 if on_host(DEVICE) else 1e-12  # CUDA adds gradients up in any order
SIZES = [(10, 4), (7, 8), (20, 4)]
TINY = [(3, 2), (4, 2)]  # for gradients by differences
NAMES = ["city", "item", "user"]


def batch(b=9, n_cont=3, seed=0, sizes=SIZES, list_rows=(), vector_szs=()):
    """Ids, numbers in float64, lists (the first empty, the second missing) and vectors."""
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in sizes], 1) if sizes else None
    conts = torch.randn(b, n_cont, generator=g).double() if n_cont else None
    lists = []
    for rows in list_rows:
        lengths = torch.randint(1, 5, (b,), generator=g).tolist()
        drawn = [torch.randint(0, rows, (k,), generator=g).tolist() for k in lengths]
        lists.append(ListBatch.of([[], None, *drawn[2:]][:b]))
    vectors = [torch.randn(b, d, generator=g).double() for d in vector_szs]
    return to_device(cats, conts, *lists, *vectors)


def spread(net, seed=0):
    """The net on the device, in float64 and eval mode; weights and statistics drawn so wide that any mistake shows."""
    g = torch.Generator().manual_seed(seed)
    net = net.to(DEVICE).double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.5)
        for m in net.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.copy_(torch.randn(m.num_features, generator=g))
                m.running_var.copy_(torch.rand(m.num_features, generator=g) + 0.5)
    return net


def to_device(*tensors):
    """Tensors and lists on the device; None stays."""
    return tuple(None if x is None else x.to(DEVICE) for x in tensors)


def numbers(tensor):
    return tensor.detach().cpu().numpy()


def run(modules, x):
    """One row through linear layers, activations and batch norms, one after the other."""
    for m in modules.modules():
        if isinstance(m, nn.Linear):
            x = numbers(m.weight) @ x + (0 if m.bias is None else numbers(m.bias))
        elif isinstance(m, nn.ReLU):
            x = np.where(x > 0, x, 0)
        elif isinstance(m, nn.BatchNorm1d):
            x = normed(m, x)
        elif isinstance(m, SigmoidRange):
            x = m.low + (m.high - m.low) / (1 + np.exp(-x))
        else:
            assert isinstance(m, nn.Sequential | nn.Identity | nn.Dropout), m
    return x


def normed(bn, x):
    scaled = (x - numbers(bn.running_mean)) / np.sqrt(numbers(bn.running_var) + bn.eps)
    return scaled * numbers(bn.weight) + numbers(bn.bias)


def vectors_of(tables, row, cats, lists=(), pool="mean"):
    """One row's vector of each column and list, from the tables by name."""
    found = [] if cats is None else list(zip(NAMES, cats[row].tolist(), strict=False))
    vectors = [numbers(tables.table(name))[i] for name, i in found]
    for name, column in zip(tables.list_names, lists, strict=True):
        table = numbers(tables.table(name))
        held = [table[i] for i in column.tolist()[row] or ()]
        vectors.append(getattr(np, pool)(held, 0) if held else np.zeros(table.shape[1]))
    return vectors


def dense_of(net, row, conts, vectors=()):
    """One row's numbers, then its vectors, as the net's inputs prepare them."""
    found = []
    if conts is not None:
        x = numbers(conts[row])
        found.append(x if net.bn_cont is None else normed(net.bn_cont, x))
    for norm, v in zip(net.vector_norms, vectors, strict=True):
        x = numbers(v[row])
        scaled = (x - x.mean()) / np.sqrt(x.var() + norm.eps)
        found.append(scaled * numbers(norm.weight) + numbers(norm.bias))
    return found


def stirred(net, scale=0.5):
    """The net on the device, with weights such that every one of them shows."""
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * scale)
    return net.to(DEVICE)


def assert_gradients(net, cats, conts=None, *extras, of=lambda out: out):
    """Gradients of every weight and number of a net against differences, in float64."""
    net, (cats, conts, *extras) = net.to(DEVICE).double(), to_device(cats, conts, *extras)
    names, free = [n for n, _ in net.named_parameters()], [] if conts is None else [conts.double().requires_grad_()]

    def f(*given):
        params = dict(zip(names, given[len(free) :], strict=True))
        return of(torch.func.functional_call(net, params, (cats, *given[: len(free)], *extras)))

    given = (*free, *(p.detach().requires_grad_() for p in net.parameters()))
    assert torch.autograd.gradcheck(f, given, nondet_tol=NONDET)


def count(net):
    return sum(p.numel() for p in net.parameters())
