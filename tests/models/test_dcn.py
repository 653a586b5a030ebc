from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.models import DCNv2
from tests.models.plain import (
    NAMES,
    SIZES,
    TINY,
    assert_gradients,
    batch,
    count,
    dense_of,
    numbers,
    run,
    spread,
    vectors_of,
)


def crossed(cross, x0):
    """Entry by entry: ``x0_i (Σ_j W_ij x_j + b_i) + x_i``, layer after layer."""
    x = x0
    for layer in cross.layers:
        if isinstance(layer, nn.Linear):
            weight, bias = numbers(layer.weight), numbers(layer.bias)
        else:
            v, u = layer
            weight, bias = numbers(u.weight) @ numbers(v.weight), numbers(u.bias)
        mixed = [sum(weight[i, j] * x[j] for j in range(len(x))) + bias[i] for i in range(len(x))]
        x = np.array([x0[i] * mixed[i] + x[i] for i in range(len(x))])
    return x


def by_hand(net, structure, cats, conts, lists=(), vectors=()):
    outs = []
    for row in range(len(conts if cats is None else cats)):
        embedded = vectors_of(net.embeds, row, cats, lists) if net.embeds is not None else []
        x0 = np.concatenate([*embedded, *dense_of(net, row, conts, vectors)])
        x = crossed(net.cross, x0)
        hidden = np.concatenate([x, run(net.deep, x0)]) if structure == "parallel" else run(net.deep, x)
        outs.append(run(net.head, hidden))
    return torch.from_numpy(np.stack(outs))


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cross_layers": 1},
        {"low_rank": 2},
        {"cross_layers": 0},
        {"use_bn": False},
        {"bn_cont": False, "pad": False},
        {"y_range": (-1, 5)},
    ],
    ids=str,
)
def test_it_computes_what_the_paper_says(structure, options):
    net = spread(DCNv2(SIZES, 3, 2, layers=[12, 6], structure=structure, cat_names=NAMES, **options))
    cats, conts = batch()
    assert torch.allclose(net(cats, conts), by_hand(net, structure, cats, conts), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_without_an_mlp_the_cross_layers_are_the_model(structure):
    net = spread(DCNv2(SIZES, 3, 1, layers=[], structure=structure, cat_names=NAMES))
    cats, conts = batch()
    own = by_hand(net, "stacked", cats, conts)
    assert torch.allclose(net(cats, conts), own, rtol=1e-10)
    assert net.head[0].in_features == 16 + 3


def test_lists_vectors_and_one_kind_of_column():
    net = spread(DCNv2(SIZES, 3, 1, layers=[6], cat_names=NAMES, list_szs=[(5, 4)], list_names=["t"], vector_szs=[6]))
    cats, conts, tags, vector = batch(list_rows=(5,), vector_szs=(6,))
    own = by_hand(net, "parallel", cats, conts, [tags], [vector])
    assert torch.allclose(net(cats, conts, tags, vector), own, rtol=1e-10, atol=1e-10)
    net = spread(DCNv2(SIZES, 0, 1, layers=[6], cat_names=NAMES))
    assert torch.allclose(net(cats), by_hand(net, "parallel", cats, None), rtol=1e-10)
    net = spread(DCNv2([], 3, 1, layers=[6]))
    assert torch.allclose(net(None, conts), by_hand(net, "parallel", None, conts), rtol=1e-10)


def test_parameter_counts():
    d, tables = 16 + 3, sum(n * w for n, w in SIZES) + 2 * 3
    deep = d * 12 + 2 * 12 + 12 * 6 + 2 * 6
    net = DCNv2(SIZES, 3, 2, layers=[12, 6], cross_layers=4)
    assert count(net) == tables + 4 * (d * d + d) + deep + (d + 6) * 2 + 2
    net = DCNv2(SIZES, 3, 2, layers=[12, 6], cross_layers=4, low_rank=5, structure="stacked")
    assert count(net) == tables + 4 * (2 * d * 5 + d) + deep + 6 * 2 + 2


@pytest.mark.parametrize("options", [{}, {"structure": "stacked", "low_rank": 2}])
def test_gradients_are_right(options):
    net = DCNv2(TINY, 2, 2, layers=[3], act_cls=nn.Softplus, cross_layers=2, pad=False, **options)
    assert_gradients(net, *batch(5, 2, sizes=TINY))


def test_bad_configurations_are_refused():
    with pytest.raises(DataError, match="'beside'"):
        DCNv2(SIZES, 3, 1, structure="beside")
    with pytest.raises(DataError, match="rank 0"):
        DCNv2(SIZES, 3, 1, low_rank=0)
    with pytest.raises(DataError, match="1 dropouts for 2 layers"):
        DCNv2(SIZES, 1, 1, layers=[8, 4], ps=[0.1])
