from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.models import DeepFM
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
from tests.models.test_wide_deep import linear_terms


def fields_of(net, row, cats, conts, lists, vectors):
    """One row's fields: embeddings, each number times its vector, each vector column through its map."""
    found = vectors_of(net.embeds, row, cats, lists) if net.embeds is not None else []
    dense = dense_of(net, row, conts, vectors)
    if conts is not None:
        found += [x * v for x, v in zip(dense[0], numbers(net.number_vectors), strict=True)]
    for m, v in zip(net.vector_maps, dense[conts is not None :], strict=True):
        found.append(numbers(m.weight) @ v)
    return found


def pairs(net, fields, out):
    """All pairs i < j, entry by entry; several outputs weigh the entries."""
    weights = np.ones((net.emb_dim, 1)) if out == 1 else numbers(net.pair_weights)
    total = np.zeros(out)
    for i in range(len(fields)):
        for j in range(i):
            for d in range(net.emb_dim):
                total = total + fields[i][d] * fields[j][d] * weights[d]
    return total


def by_hand(net, out, cats, conts, lists=(), vectors=()):
    outs = []
    for row in range(len(conts if cats is None else cats)):
        fields = fields_of(net, row, cats, conts, lists, vectors)
        dense = np.concatenate([np.zeros(0), *dense_of(net, row, conts, vectors)])
        linear = linear_terms(net.linear, row, cats, dense, lists)
        outs.append(run(net.squash, linear + pairs(net, fields, out) + run(net.deep, np.concatenate(fields))))
    return torch.from_numpy(np.stack(outs))


@pytest.mark.parametrize("out", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"use_bn": False}, {"y_range": (-1, 5)}, {"bn_cont": False}, {"emb_dim": 6, "pad": False}, {"emb_dim": 6}],
    ids=str,
)
def test_it_computes_what_the_paper_says(out, options):
    net = spread(DeepFM(SIZES, 3, out, layers=[12, 6], cat_names=NAMES, **({"emb_dim": 8} | options)))
    cats, conts = batch()
    assert torch.allclose(net(cats, conts), by_hand(net, out, cats, conts), rtol=1e-10, atol=1e-10)
    assert {s.width for s in net.embeds.slices} == {6 if "pad" in options else 8}


@pytest.mark.parametrize("n_cont", [0, 3])
def test_lists_and_vectors_are_fields(n_cont):
    lists = {"list_szs": [(20, 4), (5, 6)], "list_names": ["seen", "tags"], "tie": {"seen": "user"}}
    net = spread(DeepFM(SIZES, n_cont, 2, layers=[6], emb_dim=4, cat_names=NAMES, vector_szs=[6, 2], **lists))
    cats, conts, seen, tags, one, two = batch(n_cont=n_cont, list_rows=(20, 5), vector_szs=(6, 2))
    own = by_hand(net, 2, cats, conts, (seen, tags), (one, two))
    assert torch.allclose(net(cats, conts, seen, tags, one, two), own, rtol=1e-10, atol=1e-10)


def test_one_kind_of_column_will_do():
    cats, conts = batch()
    net = spread(DeepFM(SIZES, 0, 1, layers=[6], cat_names=NAMES))
    assert torch.allclose(net(cats), by_hand(net, 1, cats, None), rtol=1e-10)
    net = spread(DeepFM([], 3, 1, layers=[6]))
    assert torch.allclose(net(None, conts), by_hand(net, 1, None, conts), rtol=1e-10)


@pytest.mark.parametrize("out", [1, 3])
def test_parameter_count(out):
    net = DeepFM(SIZES, 3, out, layers=[16], emb_dim=8, vector_szs=[5])
    rows, fields = sum(n for n, _ in SIZES), len(SIZES) + 3 + 1
    linear = (rows + 3 + 5) * out
    shared = (rows + 3 + 5) * 8  # the fields' vectors
    deep = fields * 8 * 16 + 2 * 16 + 16 * out + out
    assert count(net) == linear + shared + deep + 2 * 3 + 2 * 5 + (8 * out if out > 1 else 0)


def test_several_outputs_differ_in_what_they_take_from_pairs():
    torch.manual_seed(0)
    net = DeepFM(SIZES, 3, 4, emb_dim=16)
    assert len({tuple(column) for column in net.pair_weights.T.tolist()}) == 4
    assert net.pair_weights.abs().eq(1).all()
    assert DeepFM(SIZES, 3, 1).pair_weights is None


@pytest.mark.parametrize("out", [1, 2])
def test_gradients_are_right(out):
    net = DeepFM(TINY, 2, out, layers=[3], emb_dim=2, act_cls=nn.Softplus, pad=False)
    assert_gradients(net, *batch(5, 2, sizes=TINY))


def test_bad_configurations_are_refused():
    with pytest.raises(DataError, match="without any input"):
        DeepFM([], 0, 1)
    with pytest.raises(DataError, match="1 dropouts for 2 layers"):
        DeepFM(SIZES, 1, 1, layers=[8, 4], ps=[0.1])
    with pytest.raises(DataError, match="width 0"):
        DeepFM(SIZES, 1, 1, emb_dim=0)
